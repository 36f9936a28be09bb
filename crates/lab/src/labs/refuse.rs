//! Bad input: what is refused, with which words, and that nothing has changed afterwards.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use base::Prng;
use serde_json::Value;
use wire::admin::{Answer, Command, Faults};

use super::kill::{DISK, load, settle, staying, three};
use super::modes::{member, resource_file};
use crate::bench::{
    Bench, Failure, Outcome, Said, Verdict, ensure, is_root, missing, need_tools, passed, program,
    text, tool, wait_for,
};
use crate::cluster::{Cluster, NodeInfo, SYNC_LIMIT};
use client::{ANSWER_LIMIT, Volume};

/// How long a server may take to close a connection that breaks the protocol.
const CLOSE_LIMIT: Duration = Duration::from_secs(20);

/// Everything a refusal must leave as it was: resources, and files of stores.
fn snapshot(cluster: &Cluster) -> Outcome<String> {
    let listed = cluster.ok(&["resource", "list", "--output", "json"])?;
    let listed: Value = serde_json::from_str(&listed).map_err(|error| error.to_string())?;
    let mut all = String::new();
    for resource in listed["resources"].as_array().into_iter().flatten() {
        all.push_str(&format!("{} {}:", resource["name"], resource["volumes"][0]["size_bytes"]));
        for replica in resource["replicas"].as_array().into_iter().flatten() {
            all.push_str(&format!(" {}", replica["node"]));
        }
    }
    for node in &cluster.nodes {
        let mut files = Vec::new();
        if let Ok(entries) = fs::read_dir(cluster.home(&node.name).join("volumes")) {
            for entry in entries.flatten() {
                let length = entry.metadata()?.len();
                files.push(format!("{} {length}", entry.file_name().to_string_lossy()));
            }
        }
        files.sort();
        all.push_str(&format!("\n{}: {}", node.name, files.join(", ")));
    }
    Ok(all)
}

/// What was said must end with `code`, and hold all these words.
fn check(said: &Said, code: i32, words: &[&str]) -> Outcome<()> {
    if said.code != Some(code) {
        return Err(said.failure(&format!("should have ended with {code}")));
    }
    match words.iter().find(|word| !said.words().contains(&word.to_lowercase())) {
        None => Ok(()),
        Some(word) => Err(said.failure(&format!("should have named {word:?}"))),
    }
}

/// A command, what it ends with, the error's code, and words that its message or remedy must have.
type Case<'a> = (&'a [&'a str], i32, &'a str, &'a [&'a str]);

/// Words of the command line that are wrong.
const COMMANDS: &[Case<'static>] = &[
    (&["status", "nosuch"], 3, "LS-0914", &["nosuch", "resource list"]),
    (&["explain", "nosuch"], 3, "LS-0914", &["nosuch"]),
    (&["wait", "nosuch", "--for", "primary", "--timeout", "1s"], 3, "LS-0914", &["nosuch"]),
    (&["resource", "delete", "nosuch"], 3, "LS-0914", &["nosuch"]),
    (&["resource", "verify", "nosuch", "--wait"], 3, "LS-0914", &["nosuch"]),
    (&["resource", "promote", "nosuch", "--node", "a"], 3, "LS-0914", &["nosuch"]),
    (&["resource", "promote", "disk", "--node", "z"], 3, "LS-0909", &["\"z\""]),
    (&["resource", "add-replica", "disk", "--node", "z"], 3, "LS-0909", &["\"z\""]),
    (&["resource", "add-replica", "disk", "--node", "a"], 1, "LS-0918", &["member"]),
    (&["resource", "resize", "nosuch", "--size", "1GiB"], 3, "LS-0914", &["nosuch"]),
    (&["resource", "resize", "disk", "--size", "0"], 2, "LS-0900", &["size"]),
    (&["resource", "resize", "disk", "--size", "32MiB", "--volume", "7"], 3, "LS-0924", &["7"]),
    (&["resource", "create", "disk", "--size", "16MiB"], 1, "LS-0915", &["disk", "another name"]),
    (&["resource", "create", "zero", "--size", "0", "--replicas", "3"], 2, "LS-0900", &["size"]),
    (&["resource", "create", "huge", "--size", "9000000TiB"], 2, "LS-0900", &["size"]),
    (&["resource", "create", "huge", "--size", "2PiB"], 2, "LS-0900", &["1pib", "largest"]),
    (&["resource", "resize", "disk", "--size", "2PiB"], 2, "LS-0900", &["1pib", "largest"]),
    (&["resource", "create", "odd", "--size", "1000001"], 2, "LS-0900", &["4096"]),
    (&["resource", "create", "Bad Name", "--size", "16MiB"], 2, "LS-0900", &["name"]),
    (&["resource", "create", "../up", "--size", "16MiB"], 2, "LS-0900", &["name"]),
    (
        &["resource", "create", "many", "--size", "16MiB", "--replicas", "4"],
        2,
        "LS-0916",
        &["4", "3"],
    ),
    (
        &["resource", "create", "nine", "--size", "16MiB", "--replicas", "9"],
        2,
        "LS-0900",
        &["9", "8"],
    ),
    (
        &["resource", "create", "few", "--size", "16MiB", "--replicas", "2", "--in-sync-min", "3"],
        2,
        "LS-0900",
        &["in_sync_min", "3", "2"],
    ),
    (
        &["resource", "create", "twice", "--size", "16MiB", "--nodes", "a,a"],
        2,
        "LS-0900",
        &["twice"],
    ),
    (
        &["resource", "create", "none", "--size", "16MiB", "--nodes", "a,z"],
        3,
        "LS-0909",
        &["\"z\""],
    ),
    (&["resource", "remove-replica", "disk", "--node", "z"], 3, "LS-0919", &["z"]),
    (&["resource", "create", "sizeless"], 2, "LS-0900", &["--size"]),
    (&["resource", "create", "both", "--size", "16MiB", "--from", "x"], 2, "LS-0900", &["--from"]),
    (&["resource", "create", "lost", "--from", "/nosuch.toml"], 1, "LS-0905", &["/nosuch.toml"]),
    (&["resource", "set-options", "disk"], 2, "LS-0900", &["option"]),
    (&["resource", "set-options", "disk", "--protocol", "z"], 2, "LS-0900", &["z", "b, c"]),
    (&["resource", "set-options", "nosuch", "--protocol", "b"], 3, "LS-0914", &["nosuch"]),
    (&["resource", "frobnicate"], 2, "LS-0900", &["frobnicate"]),
    (&["dev", "kill", "z"], 3, "LS-0909", &["\"z\""]),
    (&["dev", "up", "--nodes", "5"], 1, "LS-0904", &["3 nodes"]),
    (&["status", "--frob"], 2, "LS-0900", &["--frob"]),
];

/// Words of the command line.
pub(super) fn words(bench: &Bench) -> Outcome {
    let cluster = Cluster::up(bench, 3)?;
    cluster.create("disk", &["--size", "16MiB", "--replicas", "3"])?;
    let before = snapshot(&cluster)?;
    let cases = COMMANDS;
    let mut wrong: Vec<String> =
        cases.iter().filter_map(|case| told(&cluster, case).err()).map(|why| why.0).collect();
    let files = descriptions(bench, &cluster, &mut wrong)?;
    cluster.stop("c")?;
    let wait: Case = (
        &["wait", "disk", "--for", "healthy", "--timeout", "300ms"],
        4,
        "LS-0917",
        &["c", "explain"],
    );
    wrong.extend(told(&cluster, &wait).err().map(|why| why.0));
    let create = ["resource", "create", "next", "--size", "16MiB", "--nodes", "a,c"];
    let gone: Case = (&create, 1, "LS-0910", &["c"]);
    wrong.extend(told(&cluster, &gone).err().map(|why| why.0));
    cluster.start("c")?;
    let count = cases.len() + files + 2;
    ensure!(wrong.is_empty(), "{} of {count} are wrong: {}", wrong.len(), wrong.join("\n"));
    let after = snapshot(&cluster)?;
    ensure!(before == after, "something was changed: {before}\nbecame\n{after}");
    passed(format!("{count} bad commands and descriptions"))
}

/// A command is refused as it should be, for people and for programs.
fn told(cluster: &Cluster, (arguments, exit, code, words): &Case<'_>) -> Outcome<()> {
    check(&cluster.cli(arguments)?, *exit, &[*words, &[*code][..]].concat())?;
    let said = cluster.cli(&[*arguments, &["--output", "json"][..]].concat())?;
    let value: Value = serde_json::from_str(&said.out)
        .map_err(|error| said.failure(&format!("should say why in JSON ({error})")))?;
    let error = &value["error"];
    let whole = ["message", "cause", "remedy"]
        .iter()
        .all(|name| error[name].as_str().is_some_and(|text| !text.is_empty()));
    let same = error["code"] == *code && error["exit"] == *exit && said.code == Some(*exit);
    if whole && same { Ok(()) } else { Err(said.failure(&format!("should be {code}, and whole"))) }
}

/// Descriptions of resources that are wrong; returns how many.
fn descriptions(bench: &Bench, cluster: &Cluster, wrong: &mut Vec<String>) -> Outcome<usize> {
    let member = |more: &str| format!("[[members]]\nnode = \"a\"\n{more}");
    let volume = |size: &str| format!("[[volumes]]\nsize = \"{size}\"\n");
    let good = volume("16MiB");
    let files: &[(String, &[&str])] = &[
        (format!("sharts = 1\n{}{good}", member("")), &["sharts"]),
        (format!("{}{good}frobs = 7\n", member("")), &["frobs"]),
        (format!("[options]\nprotocl = \"b\"\n{}{good}", member("")), &["protocl"]),
        (format!("{}{}", member(""), volume("0")), &["size"]),
        (format!("{}{}", member(""), volume("2PiB")), &["1pib"]),
        (format!("{}{}", member(""), volume("1000001")), &["sectors"]),
        (format!("{}{}{good}", member(""), member("")), &["a"]),
        (format!("[[members]]\nnode = \"z\"\n{good}"), &["z"]),
        (member(""), &["volume"]),
        ("no description".to_owned(), &["description.toml"]),
    ];
    let path = bench.directory.join("description.toml");
    for (text_of, words) in files {
        fs::write(&path, text_of)?;
        let said = cluster.cli(&["resource", "create", "next", "--from", text(&path)])?;
        let named = said.words().contains("ls-");
        let code = said.code.filter(|code| named && [1, 2, 3].contains(code));
        let result = match code {
            Some(code) => check(&said, code, words),
            None => Err(said.failure(&format!("should have been refused:\n{text_of}"))),
        };
        wrong.extend(result.err().map(|why| why.0));
    }
    Ok(files.len())
}

/// Stores and settings.
pub(super) fn stores(bench: &Bench) -> Outcome {
    let cluster = Cluster::up(bench, 3)?;
    cluster.create("disk", &["--size", "16MiB", "--replicas", "3"])?;
    let before = snapshot(&cluster)?;
    let create = ["resource", "create", "next", "--size", "16MiB", "--replicas", "3"];
    let image = cluster.image("b", "next", 0);
    let mut wrong = Vec::new();
    let mut case = |said: Said, code: i32, words: &[&str]| {
        if let Err(failure) = check(&said, code, words) {
            wrong.push(failure.0);
        }
    };
    // Foreign data, as a file and as a file system.
    fs::write(&image, b"somebody's letters")?;
    case(cluster.cli(&create)?, 1, &["LS-0020", "next-0.img", "--force"]);
    ensure!(fs::read(&image)? == b"somebody's letters", "the foreign file was touched");
    if missing(&["mkfs.ext4"]).is_empty() {
        fs::File::create(&image)?.set_len(64 << 20)?;
        tool("mkfs.ext4", &["-q", "-F", text(&image)])?;
        let content = fs::read(&image)?;
        case(cluster.cli(&create)?, 1, &["LS-0020", "next-0.img", "ext", "--force"]);
        ensure!(fs::read(&image)? == content, "the foreign file system was touched");
    }
    fs::remove_file(&image)?;
    let between = snapshot(&cluster)?;
    ensure!(before == between, "something was changed: {before}\nbecame\n{between}");
    // A directory that cannot be written.
    let volumes = cluster.home("b").join("volumes");
    let blocked = cluster.home("b").join("volumes-kept");
    fs::rename(&volumes, &blocked)?;
    fs::write(&volumes, b"no directory")?;
    case(cluster.cli(&create)?, 1, &["LS-0021", "volumes"]);
    fs::remove_file(&volumes)?;
    fs::rename(&blocked, &volumes)?;
    used_and_small(bench, &cluster, &mut case)?;
    read_only(bench, &cluster, &mut case)?;
    let after = snapshot(&cluster)?;
    ensure!(before == after, "something was changed: {before}\nbecame\n{after}");
    unknown_key(&cluster, &mut case)?;
    ensure!(wrong.is_empty(), "{} are wrong: {}", wrong.len(), wrong.join("\n"));
    cluster.ok(&create)?;
    passed("foreign files, used, small and large ones, full and read-only disks, unknown keys")
}

/// A file that another node has open, one that is too small, one beyond what the file system has.
fn used_and_small(
    bench: &Bench,
    cluster: &Cluster,
    case: &mut impl FnMut(Said, i32, &[&str]),
) -> Outcome<()> {
    let attempt = |path: &Path, size: &str| {
        let members = [member("b", "file", text(path), None)];
        let file = resource_file(bench, "next", &members, size)?;
        cluster.cli(&["resource", "create", "next", "--from", text(&file)])
    };
    let used = cluster.image("a", "disk", 0);
    case(attempt(&used, "16MiB")?, 1, &["LS-0021", "disk-0.img", "in use"]);
    let small = bench.directory.join("small");
    fs::write(&small, vec![0; 1 << 20])?;
    case(attempt(&small, "16MiB")?, 1, &["LS-0020", "small", "--force"]);
    ensure!(fs::read(&small)? == vec![0; 1 << 20], "the small file was touched");
    // ext4 has files of 16 TiB at most; elsewhere this may do.
    let large = bench.directory.join("large");
    let said = attempt(&large, "1PiB")?;
    if said.code == Some(0) {
        bench.tell("NOT RUN: this file system has files of 1 PiB");
        cluster.ok(&["resource", "delete", "next"])?;
    } else {
        case(said, 1, &["LS-0022", "large", "file system"]);
        ensure!(!large.exists(), "a part of what was refused is left");
    }
    Ok(())
}

/// A disk that is full, and one that is mounted read-only.
fn read_only(
    bench: &Bench,
    cluster: &Cluster,
    case: &mut impl FnMut(Said, i32, &[&str]),
) -> Outcome<()> {
    if !is_root() || !missing(&["mount", "umount"]).is_empty() {
        bench.tell("NOT RUN: full and read-only disks need root and mount");
        return Ok(());
    }
    let volumes = cluster.home("b").join("volumes");
    let create = ["resource", "create", "next", "--size", "16MiB", "--replicas", "3"];
    tool("mount", &["-t", "tmpfs", "-o", "size=64k", "none", text(&volumes)])?;
    fs::write(volumes.join("filler"), vec![1; 60 << 10])?;
    case(cluster.cli(&create)?, 1, &["LS-0021", "space"]);
    ensure!(fs::read_dir(&volumes)?.count() == 1, "a part of what was refused is left");
    tool("mount", &["-o", "remount,ro", text(&volumes)])?;
    case(
        cluster.cli(&create)?,
        1,
        &["LS-0021", "nothing can be written there", "read-only", "next-0.img"],
    );
    tool("umount", &[text(&volumes)])?;
    Ok(())
}

/// A misspelt key in a node's settings.
fn unknown_key(cluster: &Cluster, case: &mut impl FnMut(Said, i32, &[&str])) -> Outcome<()> {
    let path = cluster.settings("c");
    let good = fs::read_to_string(&path)?;
    cluster.stop("c")?;
    fs::write(&path, format!("link_encrypt = false\n{good}"))?;
    case(cluster.cli(&["dev", "start", "c"])?, 1, &["LS-0908", "link_encrypt", "node.toml"]);
    fs::write(&path, good)?;
    cluster.start("c")?;
    cluster.wait("disk", "in-sync", SYNC_LIMIT)
}

/// A disk that has room for a part of the volume only.
pub(super) fn full(bench: &Bench) -> Outcome {
    need_tools!("mount", "umount");
    if !is_root() {
        return Ok(Verdict::NotRun("needs root, to mount small file systems".to_owned()));
    }
    let cluster = Cluster::up(bench, 3)?;
    let volumes = cluster.home("c").join("volumes");
    fs::create_dir_all(&volumes)?;
    tool("mount", &["-t", "tmpfs", "-o", "size=16m", "none", text(&volumes)])?;
    cluster.create(DISK, &["--size", super::kill::SIZE_TEXT, "--replicas", "3"])?;
    let load = load(bench, staying(&cluster, &["a", "b"], 3)?);
    let mut volume = Volume::open(cluster.node("a")?.nbd, DISK, ANSWER_LIMIT)?;
    // Where the load does not go: between its windows.
    for step in 0..16 {
        volume.write((step << 24) + (8 << 20), &vec![7; 4 << 20])?;
    }
    load.progress(200)?;
    wait_for("c to be left behind", SYNC_LIMIT, || {
        let state = cluster.replica(DISK, "c")?;
        ensure!(state["in_sync"] == false, "c is {state}");
        Ok(())
    })?;
    let told = cluster.ok(&["explain", DISK])?;
    ensure!(told.contains("on c") || told.contains("of c"), "explain does not name c: {told}");
    ensure!(told.contains("you can:"), "explain names no remedy: {told}");
    ensure!(cluster.log("c").contains("No space left"), "c's log does not say that it is full");
    bench.tell("c's disk is full, and nobody saw an error");
    cluster.stop("c")?;
    tool("mount", &["-o", "remount,size=512m", text(&volumes)])?;
    cluster.start("c")?;
    drop(volume);
    passed(settle(bench, &cluster, load, &["a", "b", "c"])?)
}

/// Nodes that do not belong.
pub(super) fn strangers(bench: &Bench) -> Outcome {
    let cluster = three(bench)?;
    let load = load(bench, staying(&cluster, &["a", "b"], 3)?);
    load.progress(100)?;
    let stranger = Cluster::up_in(bench, "x", 3)?;
    // As node c of the other cluster, whole: its certificate, and its cluster's identity.
    let own = cluster.home("c");
    cluster.stop("c")?;
    let (kept, settings) = (bench.directory.join("kept"), cluster.settings("c"));
    fs::create_dir_all(&kept)?;
    copy_identity(&own, &kept)?;
    let good = fs::read_to_string(&settings)?;
    copy_identity(&stranger.home("c"), &own)?;
    let misfit = cluster.cli(&["dev", "start", "c"])?;
    check(&misfit, 1, &["certificate", "cluster", "node.toml"])?;
    let identity =
        |text: &str| text.lines().find(|line| line.starts_with("cluster = ")).map(str::to_owned);
    let theirs = identity(&fs::read_to_string(stranger.settings("c"))?).ok_or("no cluster")?;
    let ours = identity(&good).ok_or("no cluster")?;
    fs::write(&settings, good.replace(&ours, &theirs))?;
    check(&cluster.cli(&["dev", "start", "c"])?, 1, &["LS-0926", "cluster"])?;
    let foreign = Foreign::start(&cluster.home("c"))?;
    refused(&cluster, "c")?;
    load.progress(100)?;
    let asked = Command::Status { resource: Some(DISK.to_owned()) };
    let Answer::Status(status) = cluster.ask("a", asked)? else { return Err("no status".into()) };
    let rows = status.resources.iter().flat_map(|resource| &resource.replicas);
    let counts = rows.filter(|row| row.node == "c").any(|row| row.in_sync || row.connected);
    ensure!(!counts, "c takes part as a node of another cluster: {status:?}");
    drop(foreign);
    fs::write(&settings, good)?;
    // With the certificate of another node of the same cluster.
    copy_identity(&cluster.home("b"), &own)?;
    let started = cluster.cli(&["dev", "start", "c"])?;
    if started.code == Some(0) {
        refused(&cluster, "c")?;
        cluster.stop("c")?;
    } else {
        check(&started, 1, &["certificate"])?;
    }
    copy_identity(&kept, &own)?;
    load.progress(100)?;
    cluster.start("c")?;
    passed(settle(bench, &cluster, load, &["a", "b", "c"])?)
}

/// A node that is started by hand, since the command line does not.
struct Foreign(std::process::Child);

impl Foreign {
    fn start(home: &Path) -> Outcome<Foreign> {
        let mut command = std::process::Command::new(program("lockstepd")?);
        command.args(["node", "--dir", text(home)]).stderr(std::process::Stdio::null());
        Ok(Foreign(command.spawn()?))
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

const IDENTITY: [&str; 3] = ["certificate.pem", "key.pem", "authority.pem"];

fn copy_identity(from: &Path, to: &Path) -> Outcome<()> {
    for name in IDENTITY {
        fs::copy(from.join(name), to.join(name))?;
    }
    Ok(())
}

/// Nodes a and b have no session with `node`, and say why.
fn refused(cluster: &Cluster, node: &str) -> Outcome<()> {
    wait_for("a to say why it refuses the node", Duration::from_secs(20), || {
        let answer = cluster.ask("a", Command::NodeStatus {})?;
        let Answer::Node(status) = answer else { return Err("no status".into()) };
        let peer = status.peers.iter().find(|peer| peer.node == node);
        let peer = peer.ok_or("it is not listed")?;
        ensure!(!peer.connected, "it is connected");
        let reason = peer.reason.clone().unwrap_or_default().to_lowercase();
        ensure!(
            reason.contains("certificate") || reason.contains("cluster"),
            "the reason is {reason:?}"
        );
        Ok(())
    })
}

/// Bytes that are no protocol, at every port, while others work.
pub(super) fn frames(bench: &Bench) -> Outcome {
    let cluster = three(bench)?;
    let load = load(bench, staying(&cluster, &["a", "b", "c"], 2)?);
    load.progress(100)?;
    let mut random = Prng::new(bench.seed);
    let listens = listen_addresses(&cluster)?;
    let before = counted(&cluster)?;
    for round in 0..20 {
        for (node, listen) in cluster.nodes.iter().zip(&listens) {
            let length = if round % 4 == 0 { 70_000 } else { 8 + random.below(200) };
            let bytes: Vec<u8> = (0..length).map(|_| random.next_u64().to_le_bytes()[0]).collect();
            for address in [node.nbd, node.nvme, *listen] {
                throw(address, &bytes);
            }
            // A host's first words whole, with a digest that was not agreed to behind.
            throw(node.nvme, &[&[0, 1, 128, 0, 128, 0, 0, 0][..], &[0; 120], &bytes].concat());
            if let Ok(mut socket) = UnixStream::connect(&node.admin) {
                // It may be closed in the middle.
                let _ = socket.write_all(&bytes);
                let _ = socket.write_all(b"\n{\"version\":9,\"id\":1}\n");
            }
        }
    }
    // After a good handshake, too: a request without its magic, and one beyond the end.
    for node in &cluster.nodes {
        let mut volume = Volume::open(node.nbd, DISK, CLOSE_LIMIT)?;
        volume.send_raw(&[0xff; 64])?;
        if !volume.is_closed_by_server() {
            return Err(Failure(format!(
                "{} keeps a connection that breaks the protocol",
                node.name
            )));
        }
        let mut volume = Volume::open(node.nbd, DISK, ANSWER_LIMIT)?;
        ensure!(volume.write(1 << 40, &[0; 4096]).is_err(), "a write beyond the end is taken");
        volume.read(0, &mut [0; 4096])?;
        if Volume::open(node.nbd, "nosuch", ANSWER_LIMIT).is_ok() {
            return Err(Failure("an export that does not exist can be opened".to_owned()));
        }
    }
    load.progress(200)?;
    ensure!(cluster.processes()?.len() == 3, "a node ended");
    wait_for("every door to count what it closed", CLOSE_LIMIT, || {
        for (one, two) in before.iter().zip(counted(&cluster)?) {
            // Those of NVMe hosts are counted with NBD clients.
            let more =
                one.peers < two.peers && one.nbd + 60 < two.nbd && one.admin + 20 <= two.admin;
            ensure!(more, "{one:?} became {two:?}");
        }
        Ok(())
    })?;
    passed(settle(bench, &cluster, load, &["a", "b", "c"])?)
}

/// Connections that each node has closed because of what came over them.
fn counted(cluster: &Cluster) -> Outcome<Vec<Faults>> {
    let of = |node: &NodeInfo| match cluster.ask(&node.name, Command::NodeStatus {})? {
        Answer::Node(status) => Ok(status.faults),
        _ => Err("no status".into()),
    };
    cluster.nodes.iter().map(of).collect()
}

/// Where nodes listen for each other.
fn listen_addresses(cluster: &Cluster) -> Outcome<Vec<SocketAddr>> {
    let mut found = Vec::new();
    for node in &cluster.nodes {
        let settings = fs::read_to_string(cluster.settings(&node.name))?;
        let line = settings.lines().find_map(|line| line.strip_prefix("listen = "));
        let address = line.and_then(|value| value.trim_matches('"').parse().ok());
        found.push(address.ok_or_else(|| Failure(format!("{} listens nowhere", node.name)))?);
    }
    Ok(found)
}

fn throw(address: SocketAddr, bytes: &[u8]) {
    if let Ok(mut socket) = TcpStream::connect_timeout(&address, CLOSE_LIMIT) {
        // It may be closed in the middle.
        let _ = socket.write_all(bytes);
    }
}
