//! Real nodes for tests: processes of the built program, each with a directory and an address of its
//! own on the loopback network, asked over their admin sockets.
//!
//! Waiting is asking the status again until a deadline. Everything goes when the cluster is dropped.

#![allow(dead_code, reason = "each file of tests uses a part")]

pub(crate) mod meddler;
pub(crate) mod nvme;
pub(crate) mod outsider;
pub(crate) mod refusing;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base::{ClusterId, NodeId};
use nbd::{Client, ClientEvent, Goal, Op, Replies, Reply as NbdReply};
use wire::admin::{
    Answer, Command, FileMember, FileNode, FileTiming, FileVolume, Outcome, ReplicaState, Reply,
    Request, ResourceFile, ResourceStatus, decode_line, encode_line,
};

/// What a slow machine may take for anything that tests wait for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Clusters that this process has made.
static CLUSTERS: AtomicU16 = AtomicU16::new(0);

/// Nodes 1..=count of one cluster.
pub(crate) struct Cluster {
    directory: PathBuf,
    /// First three numbers of every address, and what is added to a node's number in the last.
    network: (String, u16),
    nodes: Vec<Option<Child>>,
}

/// Threads, and shards, where a test does not care: one, or as many as `LOCKSTEP_TEST_THREADS` says.
pub(crate) fn usual_threads() -> Option<u16> {
    let text = std::env::var("LOCKSTEP_TEST_THREADS").ok()?;
    Some(text.parse().expect("LOCKSTEP_TEST_THREADS is a number of threads"))
}

impl Cluster {
    /// Directories, certificates and settings of `count` nodes, not started.
    pub(crate) fn new(name: &str, count: u16) -> Cluster {
        let process = std::process::id();
        let directory = std::env::temp_dir().join(format!("lockstepd-{name}-{process}"));
        // Tests of one process run at once: each cluster has sixteen addresses of its own.
        let number = CLUSTERS.fetch_add(1, Ordering::Relaxed);
        assert!(number < 15 && count < 16, "a process has addresses for 15 clusters of 15 nodes");
        let network = (format!("127.77.{}", process % 250), 16 * number);
        let mark = process << 8 | u32::from(number);
        std::fs::create_dir_all(&directory).expect("a temporary directory");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
        let authority =
            link::Authority::create(ClusterId(u64::from(mark) + 1), now).expect("an authority");
        let place = directory.join("authority");
        std::fs::create_dir_all(&place).expect("made");
        authority.save(&place).expect("written");
        let cluster = Cluster { directory, network, nodes: (0..count).map(|_| None).collect() };
        for node in 1..=count {
            let home = cluster.home(node);
            std::fs::create_dir_all(&home).expect("a directory for each node");
            let address = cluster.address(node).parse().expect("an address");
            let identity = authority.issue(NodeId(node), &node_name(node), &[address], now);
            identity.expect("a certificate").save(&home).expect("written");
            std::fs::write(home.join("node.toml"), cluster.settings(node, u64::from(mark) + 1))
                .expect("written");
        }
        cluster
    }

    fn settings(&self, node: u16, cluster: u64) -> String {
        let address = self.address(node);
        let mut text = format!(
            "cluster = \"{cluster:x}\"\nnode = {node}\nname = \"{}\"\nlisten = \"{address}:7800\"\n\
             nbd = \"{address}:10809\"\n",
            node_name(node)
        );
        for peer in (1..=self.nodes.len()).map(|peer| u16::try_from(peer).expect("few")) {
            if peer != node {
                text += &format!(
                    "[[peers]]\nid = {peer}\nname = \"{}\"\naddresses = [\"{}:7800\"]\n",
                    node_name(peer),
                    self.address(peer)
                );
            }
        }
        text
    }

    /// Who issues this cluster's certificates.
    pub(crate) fn authority(&self) -> link::Authority {
        link::Authority::load(&self.directory.join("authority")).expect("it was saved")
    }

    /// Gives a node a new certificate, in the files of the old one.
    pub(crate) fn renew(&self, node: u16) -> link::Identity {
        self.renew_at(node, unix_now())
    }

    /// The same with one that was issued at this time, in seconds since 1970.
    pub(crate) fn renew_at(&self, node: u16, unix: u64) -> link::Identity {
        let address = self.address(node).parse().expect("an address");
        let identity = self.authority().issue(NodeId(node), &node_name(node), &[address], unix);
        let identity = identity.expect("a certificate");
        identity.save(&self.home(node)).expect("written");
        identity
    }

    /// Puts further lines into a node's settings.
    pub(crate) fn add_settings(&self, node: u16, lines: &str) {
        let path = self.home(node).join("node.toml");
        let text = std::fs::read_to_string(&path).expect("it is there");
        std::fs::write(&path, format!("{lines}\n{text}")).expect("written");
    }

    /// Puts further lines into what a node's settings say of another.
    pub(crate) fn add_to_peer(&self, node: u16, peer: u16, lines: &str) {
        let path = self.home(node).join("node.toml");
        let text = std::fs::read_to_string(&path).expect("it is there");
        let head = format!("[[peers]]\nid = {peer}\n");
        assert!(text.contains(&head), "{text}");
        std::fs::write(&path, text.replace(&head, &format!("{head}{lines}\n"))).expect("written");
    }

    /// What a node warns of, which it says with every status.
    pub(crate) fn warnings(&self, node: u16) -> Vec<String> {
        let with_status = match self.ask(node, Command::Status { resource: None }) {
            Ok(Answer::Status(status)) => status.warnings,
            other => panic!("no status: {other:?}"),
        };
        match self.ask(node, Command::NodeStatus {}) {
            Ok(Answer::Node(status)) => assert_eq!(status.warnings, with_status),
            other => panic!("no status: {other:?}"),
        }
        with_status
    }

    /// The process of a node that runs.
    pub(crate) fn process(&self, node: u16) -> u32 {
        self.nodes[usize::from(node) - 1].as_ref().expect("it runs").id()
    }

    pub(crate) fn home(&self, node: u16) -> PathBuf {
        self.directory.join(node_name(node))
    }

    pub(crate) fn address(&self, node: u16) -> String {
        format!("{}.{}", self.network.0, self.network.1 + node)
    }

    /// Puts a further table behind a node's settings.
    pub(crate) fn append_settings(&self, node: u16, table: &str) {
        let path = self.home(node).join("node.toml");
        let text = std::fs::read_to_string(&path).expect("it is there");
        std::fs::write(&path, text + table).expect("written");
    }

    /// Replaces words in a node's settings.
    pub(crate) fn change_settings(&self, node: u16, from: &str, to: &str) {
        let path = self.home(node).join("node.toml");
        let text = std::fs::read_to_string(&path).expect("it is there");
        assert!(text.contains(from), "the settings of node {node} do not say {from}");
        std::fs::write(&path, text.replace(from, to)).expect("written");
    }

    /// What a node has logged: all that it has said so far.
    pub(crate) fn log(&self, node: u16) -> String {
        if let Some(child) = &self.nodes[usize::from(node) - 1] {
            tools::wait_logged(child.id()).expect("it is written");
        }
        std::fs::read_to_string(self.home(node).join("log")).expect("a log")
    }

    /// Starts a node and waits until it answers.
    pub(crate) fn start(&mut self, node: u16) {
        self.start_with(node, "");
    }

    /// The same, with this way to the system's input and output: `uring`, `epoll`, or nothing for what can be had.
    pub(crate) fn start_with(&mut self, node: u16, io: &str) {
        let mut command = Process::new(env!("CARGO_BIN_EXE_lockstepd"));
        command.env("LOCKSTEP_IO", io);
        self.start_by(node, command);
    }

    /// The same, by a command that becomes the node when its arguments follow.
    pub(crate) fn start_by(&mut self, node: u16, command: Process) {
        self.spawn(node, command);
        self.wait_answers(node);
    }

    /// Waits until a node answers.
    pub(crate) fn wait_answers(&self, node: u16) {
        self.wait_for("the node answers", || {
            self.try_ask(node, &Request::new(1, Command::Ping {}))
                .map(|_| ())
                .map_err(|error| error.to_string())
        });
    }

    /// The same, without waiting until it answers.
    pub(crate) fn spawn(&mut self, node: u16, command: Process) {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.home(node).join("log"))
            .expect("a log");
        self.spawn_to(node, command, log);
    }

    /// The same with what the node says going elsewhere.
    pub(crate) fn spawn_to(&mut self, node: u16, mut command: Process, log: impl Into<Stdio>) {
        let settings = std::fs::read_to_string(self.home(node).join("node.toml"));
        let says = |text: &String| text.lines().any(|line| line.starts_with("threads"));
        if let (Some(threads), Ok(false)) = (usual_threads(), settings.as_ref().map(says)) {
            self.add_settings(node, &format!("threads = {threads}"));
        }
        let child = command
            .args(["node", "--verbose", "--dir"])
            .arg(self.home(node))
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the program starts");
        self.nodes[usize::from(node) - 1] = Some(child);
    }

    /// Sends a signal to a node that runs, by its name, as in `TERM`.
    pub(crate) fn signal(&self, node: u16, signal: &str) {
        run("sh", &["-c", &format!("kill -{signal} {}", self.process(node))]);
    }

    /// Waits for a node's process to end; whether it ended well.
    pub(crate) fn ends(&mut self, node: u16) -> bool {
        let mut child = self.nodes[usize::from(node) - 1].take().expect("it runs");
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = child.try_wait().expect("it is ours") {
                return status.success();
            }
            if Instant::now() > deadline {
                // Back where it is killed when the cluster goes.
                self.nodes[usize::from(node) - 1] = Some(child);
                panic!("node {node} does not end");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends a node as a power cut would.
    pub(crate) fn kill(&mut self, node: u16) {
        let mut child = self.nodes[usize::from(node) - 1].take().expect("it runs");
        child.kill().expect("it is ours");
        child.wait().expect("it ends");
    }

    /// Ends a node in good order; its exit status says whether it went well.
    pub(crate) fn stop(&mut self, node: u16) -> bool {
        self.ask(node, Command::Stop { graceful: true }).expect("it takes the order");
        self.ends(node)
    }

    fn try_ask(&self, node: u16, request: &Request) -> std::io::Result<Result<Answer, String>> {
        let mut socket = UnixStream::connect(self.home(node).join("admin.sock"))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let mut line = Vec::new();
        encode_line(request, &mut line).expect("a short line");
        socket.write_all(&line)?;
        let mut reply = Vec::new();
        BufReader::new(socket).read_until(b'\n', &mut reply)?;
        if reply.is_empty() {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let reply: Reply = decode_line(&reply).expect("a reply");
        Ok(match reply.outcome {
            Outcome::Result(answer) => Ok(*answer),
            Outcome::Error(failure) => Err(format!("{} {}", failure.code, failure.message)),
        })
    }

    /// Asks a node that runs.
    pub(crate) fn ask(&self, node: u16, command: Command) -> Result<Answer, String> {
        self.try_ask(node, &Request::new(1, command)).expect("the node answers")
    }

    /// The same about the resource with this identity only.
    pub(crate) fn ask_of(
        &self,
        node: u16,
        identity: Option<u64>,
        command: Command,
    ) -> Result<Answer, String> {
        let request = Request { identity, ..Request::new(1, command) };
        self.try_ask(node, &request).expect("the node answers")
    }

    /// A resource with replicas on `replicas`, known to every node.
    pub(crate) fn resource(&self, name: &str, size_bytes: u64, replicas: &[u16]) -> ResourceFile {
        ResourceFile {
            name: name.to_owned(),
            id: 0xabcd,
            shards: usual_threads().unwrap_or(1),
            options: wire::Options::default(),
            timing: FileTiming::default(),
            nodes: (1..=self.nodes.len())
                .map(|node| u16::try_from(node).expect("few"))
                .map(|id| FileNode { id, name: node_name(id), addresses: Vec::new() })
                .collect(),
            members: replicas
                .iter()
                .map(|&node| FileMember {
                    node,
                    kind: wire::MemberKind::Replica,
                    voter: None,
                    incarnation: None,
                    in_sync: None,
                    stores: Vec::new(),
                })
                .collect(),
            volumes: vec![FileVolume {
                index: 0,
                size_bytes,
                block_bytes: 4096,
                log_extents: 1237,
            }],
        }
    }

    /// Defines a resource on every node, and makes it where it has members.
    pub(crate) fn create(&self, file: &ResourceFile) {
        for node in &file.nodes {
            self.ask(node.id, Command::ResourceDefine { file: Box::new(file.clone()) })
                .expect("defined");
        }
        for member in &file.members {
            let command = Command::ResourceCreate { resource: file.name.clone(), force: false };
            self.ask(member.node, command).expect("created");
        }
    }

    pub(crate) fn status(&self, node: u16, resource: &str) -> ResourceStatus {
        let command = Command::Status { resource: Some(resource.to_owned()) };
        match self.ask(node, command) {
            Ok(Answer::Status(mut status)) => status.resources.remove(0),
            other => panic!("no status: {other:?}"),
        }
    }

    /// Waits until a node names these nodes as in sync and reachable, and no others.
    pub(crate) fn wait_in_sync(&self, asked: u16, resource: &str, nodes: &[u16]) {
        self.wait_for("replicas in sync", || {
            let status = self.status(asked, resource);
            let in_sync: Vec<u16> = status
                .replicas
                .iter()
                .filter(|replica| replica.in_sync && replica.state == ReplicaState::InSync)
                .map(|replica| replica.node_id)
                .collect();
            if in_sync == nodes { Ok(()) } else { Err(format!("{status:?}")) }
        });
    }

    /// Hash of what a node's replica holds, once nobody uses it.
    pub(crate) fn dump(&self, node: u16, resource: &str) -> String {
        let mut hash = String::new();
        self.wait_for("a dump", || {
            match self.ask(node, Command::Dump { resource: resource.to_owned() })? {
                Answer::Dump(dump) => hash.clone_from(&dump.volumes[0].hash),
                other => return Err(format!("{other:?}")),
            }
            Ok(())
        });
        hash
    }

    /// Asks again and again until it is so.
    pub(crate) fn wait_for(&self, what: &str, mut ask: impl FnMut() -> Result<(), String>) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match ask() {
                Ok(()) => return,
                Err(why) if Instant::now() > deadline => {
                    self.show_logs();
                    panic!("waited in vain for {what}: {why}");
                }
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// The end of every node's log, for a test that failed.
    pub(crate) fn show_logs(&self) {
        for node in (1..=self.nodes.len()).map(|node| u16::try_from(node).expect("few")) {
            let log = std::fs::read_to_string(self.home(node).join("log")).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("--- log of node {node}");
            for line in &lines[lines.len().saturating_sub(60)..] {
                eprintln!("{line}");
            }
        }
    }

    /// Opens a volume over a node.
    pub(crate) fn open(&self, node: u16, export: &str) -> Volume {
        Volume::open(&format!("{}:10809", self.address(node)), export)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.show_logs();
        }
        for child in self.nodes.iter_mut().flatten() {
            child.kill().ok();
            child.wait().ok();
        }
        std::fs::remove_dir_all(&self.directory).ok();
    }
}

pub(crate) fn node_name(node: u16) -> String {
    format!("n{node}")
}

/// A program that may not be installed; says so on standard output if it is not.
pub(crate) fn find_program(name: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|paths| std::env::split_paths(&paths).any(|path| path.join(name).exists()));
    if !found {
        println!("NOT RUN: {name} is not installed");
    }
    found
}

/// Seconds since 1970.
pub(crate) fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

/// What an NBD client believes and shows over TLS.
pub(crate) struct Secret {
    /// Whose certificates it believes, PEM.
    pub(crate) authority_pem: String,
    /// What it shows, if anything.
    pub(crate) identity: Option<link::Identity>,
}

impl Secret {
    /// A connection that insists on the server's address in its certificate, as any TLS client does.
    fn connect(&self, socket: TcpStream, address: &str) -> Box<dyn Stream> {
        use rustls::pki_types::pem::PemObject;
        use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
        let certificate =
            |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate");
        let mut roots = rustls::RootCertStore::empty();
        roots.add(certificate(&self.authority_pem)).expect("an authority");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring has ciphers")
            .with_root_certificates(roots);
        let config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let key = PrivateKeyDer::from_pem_slice(identity.key_pem().as_bytes());
                let chain = vec![certificate(identity.certificate_pem())];
                builder.with_client_auth_cert(chain, key.expect("a key")).expect("they fit")
            }
        };
        let host = address.rsplit_once(':').expect("host and port").0.to_owned();
        let name = ServerName::try_from(host).expect("an address");
        let client = rustls::ClientConnection::new(Arc::new(config), name).expect("a client");
        Box::new(rustls::StreamOwned::new(client, socket))
    }
}

/// Bytes both ways, in the clear or not.
trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// An NBD client that does one request after the other.
pub(crate) struct Volume {
    socket: Box<dyn Stream>,
    /// What is below it.
    plain: TcpStream,
    replies: Replies,
    pub(crate) size_bytes: u64,
    cookie: u64,
}

impl Volume {
    fn open(address: &str, export: &str) -> Volume {
        Volume::try_open(address, export, None).expect("the node serves it")
    }

    /// Opens an export, over TLS if there is a secret.
    pub(crate) fn try_open(
        address: &str,
        export: &str,
        secret: Option<&Secret>,
    ) -> Result<Volume, String> {
        let words = |error: std::io::Error| error.to_string();
        let plain = TcpStream::connect(address).map_err(words)?;
        plain.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut socket: Box<dyn Stream> = Box::new(plain.try_clone().map_err(words)?);
        let goal = Goal::Use { name: export.to_owned(), structured: true, allocation: false };
        let mut client = Client::new(goal, secret.is_some());
        let mut input = Vec::new();
        loop {
            let mut send = Vec::new();
            let (used, event) = client.feed(&input, &mut send).map_err(|e| format!("{e:?}"))?;
            input.drain(..used);
            socket.write_all(&send).map_err(words)?;
            match event {
                Some(ClientEvent::Ready(ready)) => {
                    let size_bytes = ready.size_bytes;
                    let replies = Replies::new();
                    return Ok(Volume { socket, plain, replies, size_bytes, cookie: 0 });
                }
                Some(ClientEvent::StartTls) => {
                    assert!(input.is_empty(), "nothing comes before TLS was begun");
                    let secret = secret.expect("only then it is asked for");
                    socket = secret.connect(plain.try_clone().map_err(words)?, address);
                    client.tls_started(&mut send);
                    socket.write_all(&send).map_err(words)?;
                }
                Some(other) => return Err(format!("no export {export}: {other:?}")),
                None if used == 0 => {
                    let mut byte = [0];
                    socket.read_exact(&mut byte).map_err(words)?;
                    input.push(byte[0]);
                }
                None => {}
            }
        }
    }

    /// Sends a request; the answer's data if it was a read.
    fn request(
        &mut self,
        op: Op,
        offset: u64,
        length: u32,
        payload: &[u8],
    ) -> Result<Vec<u8>, String> {
        self.cookie += 1;
        let mut send = Vec::new();
        nbd::encode_request(self.cookie, op, offset, length, false, &mut send);
        send.extend_from_slice(payload);
        self.socket.write_all(&send).map_err(|error| error.to_string())?;
        let mut data = vec![0; if matches!(op, Op::Read { .. }) { length as usize } else { 0 }];
        loop {
            match self.next_reply()? {
                NbdReply::Simple { error: None, .. } | NbdReply::Done { .. } => return Ok(data),
                NbdReply::Data { offset_bytes, length_bytes, done, .. } => {
                    let at = usize::try_from(offset_bytes - offset).expect("small");
                    let part = &mut data[at..at + length_bytes as usize];
                    self.socket.read_exact(part).map_err(|error| error.to_string())?;
                    if done {
                        return Ok(data);
                    }
                }
                NbdReply::Hole { done: true, .. } => return Ok(data),
                NbdReply::Hole { .. } => {}
                other => return Err(format!("{other:?}")),
            }
        }
    }

    /// Announces a write of which nothing comes.
    pub(crate) fn begin_write(&mut self, offset: u64, length: u32) {
        let mut send = Vec::new();
        nbd::encode_request(1, Op::Write, offset, length, false, &mut send);
        self.socket.write_all(&send).expect("the node takes it");
    }

    /// Asks for a read whose answer is not taken.
    pub(crate) fn begin_read(&mut self, offset: u64, length: u32) {
        let mut send = Vec::new();
        nbd::encode_request(1, Op::Read { whole: false }, offset, length, false, &mut send);
        self.socket.write_all(&send).expect("the node takes it");
    }

    /// Takes the beginning of an answer.
    pub(crate) fn take_some(&mut self) {
        self.socket.read_exact(&mut [0; 16]).expect("an answer comes");
    }

    /// Whether something comes in the next moments.
    pub(crate) fn hears_something(&self) -> bool {
        self.plain.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
        let heard = self.plain.peek(&mut [0]).is_ok();
        self.plain.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        heard
    }

    /// Asks for space to be given back, and does not wait for the answer.
    pub(crate) fn begin_trim(&mut self, offset: u64, length: u32) {
        let mut send = Vec::new();
        nbd::encode_request(1, Op::Trim, offset, length, false, &mut send);
        self.socket.write_all(&send).expect("the node takes it");
    }

    /// Asks for space to be given back again and again, and takes no answers, until the node takes no more of it or
    /// has had so much.
    pub(crate) fn flood(&mut self, count: usize) {
        self.plain.set_write_timeout(Some(Duration::from_secs(3))).expect("a timeout");
        for place in 0..count {
            let mut send = Vec::new();
            let offset = u64::try_from(place % 512 * 4096).expect("small");
            nbd::encode_request(1, Op::Trim, offset, 4096, false, &mut send);
            if self.socket.write_all(&send).is_err() {
                return;
            }
        }
    }

    /// Waits for the answer to one of those that were not waited for; not of a read.
    pub(crate) fn take_answer(&mut self) -> Result<(), String> {
        match self.next_reply()? {
            NbdReply::Simple { error: None, .. } | NbdReply::Done { .. } => Ok(()),
            other => Err(format!("{other:?}")),
        }
    }

    /// Sends a write and does not wait for its answer.
    pub(crate) fn send_write(&mut self, offset: u64, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).expect("small");
        self.begin_write(offset, length);
        self.socket.write_all(bytes).expect("the node takes it");
    }

    /// Its machine dies: no word of farewell, and no answer is waited for.
    pub(crate) fn vanish(self) {
        self.plain.shutdown(Shutdown::Both).expect("it is connected");
    }

    fn next_reply(&mut self) -> Result<NbdReply, String> {
        let mut input = Vec::new();
        loop {
            let fed = self.replies.feed(&input).map_err(|error| format!("{error:?}"))?;
            input.drain(..fed.0);
            if let Some(reply) = fed.1 {
                return Ok(reply);
            }
            let mut byte = [0];
            self.socket.read_exact(&mut byte).map_err(|error| error.to_string())?;
            input.push(byte[0]);
        }
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), String> {
        let length = u32::try_from(bytes.len()).expect("small");
        self.request(Op::Write, offset, length, bytes).map(drop)
    }

    /// A write that is to survive a loss of power once it is answered.
    pub(crate) fn write_stably(&mut self, offset: u64, bytes: &[u8]) -> Result<(), String> {
        let length = u32::try_from(bytes.len()).expect("small");
        let mut send = Vec::new();
        nbd::encode_request(1, Op::Write, offset, length, true, &mut send);
        send.extend_from_slice(bytes);
        self.socket.write_all(&send).map_err(|error| error.to_string())?;
        self.take_answer()
    }

    /// Gives space back.
    pub(crate) fn trim(&mut self, offset: u64, length: u32) -> Result<(), String> {
        self.request(Op::Trim, offset, length, &[]).map(drop)
    }

    pub(crate) fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>, String> {
        self.request(Op::Read { whole: false }, offset, length, &[])
    }

    pub(crate) fn flush(&mut self) -> Result<(), String> {
        self.request(Op::Flush, 0, 0, &[]).map(drop)
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        let mut send = Vec::new();
        nbd::encode_disconnect(&mut send);
        self.socket.write_all(&send).ok();
    }
}

/// `length` bytes that differ for each `seed`.
pub(crate) fn content(seed: u64, length: usize) -> Vec<u8> {
    let mut random = base::Prng::new(seed);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&random.next_u64().to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Runs a program that has to end well; what it printed.
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Process::new(program).args(arguments).output().expect("it is installed");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?} failed: {printed}{errors}");
    printed
}

/// Runs the program under test to its end; whether it ended well.
pub(crate) fn run_status(arguments: &[&str]) -> bool {
    let program = env!("CARGO_BIN_EXE_lockstepd");
    Process::new(program).args(arguments).output().expect("it is built").status.success()
}

/// A path as an argument.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are plain")
}
