//! `node.toml`: who this node is, where it listens, who its peers are.
//!
//! Read at start, and again when the operator asks for it: then who this node is and who is revoked
//! take effect, the rest at the next start. A key that is not known is refused, because a misspelt one would silently keep
//! its default. Relative paths are relative to the node's directory.
//!
//! Not here: resources, which have a file each (`resource_file`).

mod hosts;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{ClusterId, Duration, NodeId};
use link::{LinkMode, Revocations};
use serde::Deserialize;
use store::FaultSpec;
use wire::admin::{check_name, with_quotes};

use crate::node::{BUFFER_BYTES_MIN, THREADS_MAX};

pub(crate) use hosts::{Admission, HostTable};

/// Peers of one node, at most: a cluster of 64 nodes.
pub(crate) const PEERS_MAX: usize = 63;

/// The file as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    cluster: String,
    node: u16,
    name: String,
    listen: SocketAddr,
    #[serde(default)]
    nbd: Option<SocketAddr>,
    #[serde(default)]
    nvme: Option<SocketAddr>,
    #[serde(default)]
    nvme_hosts: Option<PathBuf>,
    #[serde(default)]
    nbd_tls_required: bool,
    #[serde(default)]
    nbd_socket: Option<PathBuf>,
    #[serde(default)]
    nbd_socket_group: Option<String>,
    #[serde(default)]
    admin_socket: Option<PathBuf>,
    #[serde(default, alias = "link-encryption")]
    link_encryption: Switch,
    #[serde(default)]
    certificate: Option<PathBuf>,
    #[serde(default)]
    key: Option<PathBuf>,
    #[serde(default)]
    authority: Option<PathBuf>,
    #[serde(default)]
    revoked_nodes: Vec<u16>,
    #[serde(default)]
    revoked_serials: Vec<String>,
    #[serde(default)]
    allow_memory_store: bool,
    #[serde(default)]
    allow_faults: bool,
    #[serde(default)]
    faults: Option<FileFaults>,
    #[serde(default)]
    insecure: bool,
    #[serde(default)]
    buffer_bytes: Option<u64>,
    #[serde(default = "disk_late_ms")]
    disk_late_ms: u32,
    #[serde(default)]
    threads: FileThreads,
    #[serde(default)]
    peers: Vec<FilePeer>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FilePeer {
    id: u16,
    name: String,
    addresses: Vec<SocketAddr>,
    #[serde(default)]
    nbd: Option<SocketAddr>,
    #[serde(default)]
    nvme: Option<SocketAddr>,
}

/// Faults of this node's disks, for tests.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct FileFaults {
    resource: Option<String>,
    seed: u64,
    read_errors_one_in: u64,
    write_errors_one_in: u64,
    flush_errors_one_in: u64,
    stalls_one_in: u64,
    stall_ms: u64,
    stalls_before: bool,
    full_after_bytes: u64,
    hangs_after_bytes: u64,
    volatile_cache: bool,
    written_back_one_in: u64,
}

impl FileFaults {
    fn spec(&self) -> FaultSpec {
        FaultSpec {
            seed: self.seed,
            read_errors_one_in: self.read_errors_one_in,
            write_errors_one_in: self.write_errors_one_in,
            flush_errors_one_in: self.flush_errors_one_in,
            stalls_one_in: self.stalls_one_in,
            stall: Duration::from_millis(self.stall_ms),
            stalls_before: self.stalls_before,
            full_after_bytes: self.full_after_bytes,
            hangs_after_bytes: self.hangs_after_bytes,
            volatile_cache: self.volatile_cache,
            written_back_one_in: self.written_back_one_in,
        }
    }
}

/// Whether something is on: a word, or what TOML has for it.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged)]
enum Switch {
    Truth(bool),
    Word(OnOff),
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum OnOff {
    On,
    Off,
}

impl Default for Switch {
    fn default() -> Switch {
        Switch::Word(OnOff::On)
    }
}

impl Switch {
    fn is_on(self) -> bool {
        matches!(self, Switch::Truth(true) | Switch::Word(OnOff::On))
    }
}

/// Longer than a disk takes that mends a bad block by itself (7 s is usual for disks made for arrays),
/// shorter than clients' patience (30 s is usual).
fn disk_late_ms() -> u32 {
    10_000
}

/// How many threads serve.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged)]
enum FileThreads {
    Count(u16),
    Word(Auto),
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Auto {
    Auto,
}

impl Default for FileThreads {
    /// One serves a volume of one shard without ever passing a request on; more are for who has volumes of
    /// several shards and cores to spare.
    fn default() -> FileThreads {
        FileThreads::Count(1)
    }
}

impl FileThreads {
    /// How many that are, and of how many cores that follows, if nobody said.
    fn count(self) -> Result<(u16, Option<usize>), ConfigError> {
        match self {
            FileThreads::Count(count) if !count.is_power_of_two() || count > THREADS_MAX => {
                let words = "must be 1, 2, 4, 8 or \"auto\": shards are dealt to them in turn";
                Err(refuse("threads", words))
            }
            FileThreads::Count(count) => Ok((count, None)),
            FileThreads::Word(Auto::Auto) => {
                let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
                Ok((threads_for(cores), Some(cores)))
            }
        }
    }
}

/// Half of the cores, as a power of two: the kernel and the clients' programs work beside. On two cores two
/// threads were measured and brought nothing (`bench/results/recovery-2cores.md`).
fn threads_for(cores: usize) -> u16 {
    let half = u16::try_from(cores / 2).unwrap_or(THREADS_MAX).clamp(1, THREADS_MAX);
    1 << half.ilog2()
}

/// Below this a loaded disk would be taken for a dead one.
const DISK_LATE_MS_MIN: u32 = 1_000;

/// A node that this one talks to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct PeerConfig {
    /// Its number.
    pub(crate) id: NodeId,
    /// Its name.
    pub(crate) name: String,
    /// Where it listens; tried in turn.
    pub(crate) addresses: Vec<SocketAddr>,
    /// Where NBD clients reach it, for who asks this node where a volume is.
    pub(crate) nbd: Option<SocketAddr>,
    /// Where NVMe hosts do.
    pub(crate) nvme: Option<SocketAddr>,
}

/// Files that prove who this node is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Identity {
    /// Its certificate, PEM.
    pub(crate) certificate: PathBuf,
    /// Its private key, PEM.
    pub(crate) key: PathBuf,
    /// Who signs every node's certificate, PEM.
    pub(crate) authority: PathBuf,
}

/// A checked configuration.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Config {
    /// Where everything is kept.
    pub(crate) directory: PathBuf,
    /// The cluster.
    pub(crate) cluster: ClusterId,
    /// This node.
    pub(crate) node: NodeId,
    /// This node's name.
    pub(crate) name: String,
    /// Where peers reach this node.
    pub(crate) listen: SocketAddr,
    /// Where NBD clients reach it over TCP.
    pub(crate) nbd: Option<SocketAddr>,
    /// Whether those have to, may, or cannot use TLS.
    pub(crate) nbd_tls: nbd::Tls,
    /// Where NVMe hosts reach it: this machine only, unless `insecure` is stated.
    pub(crate) nvme: Option<SocketAddr>,
    /// The file that says which of those are let in.
    pub(crate) nvme_hosts_file: Option<PathBuf>,
    /// What it says. `None`: everybody is.
    pub(crate) nvme_hosts: Option<Arc<HostTable>>,
    /// Where NBD clients reach it on this machine.
    pub(crate) nbd_socket: Option<PathBuf>,
    /// Whose socket that is besides this node's own user: a group of this host, by name or number.
    pub(crate) nbd_socket_group: Option<String>,
    /// Where the operator reaches it.
    pub(crate) admin_socket: PathBuf,
    /// `None`: there are no peers.
    pub(crate) identity: Option<Identity>,
    /// Who is not let in any more.
    pub(crate) revoked: Revocations,
    /// Whether links are encrypted once both ends have proved who they are.
    pub(crate) link_mode: LinkMode,
    /// Stores in memory, which forget at every stop, may be made.
    pub(crate) allow_memory_store: bool,
    /// Faults of this node's disks, for tests.
    pub(crate) faults: Option<FaultSpec>,
    /// Whose disks those are; everybody's if nobody is named.
    pub(crate) faulty: Option<String>,
    /// Identity of the time in which disks keep what they cache: of the machine's start, or, where the
    /// faults include a cache that dies with the process, of this process.
    pub(crate) boot: u128,
    /// NBD may be served beyond this machine without TLS.
    pub(crate) insecure: bool,
    /// Bytes of buffers between nodes and disks, if somebody set them.
    pub(crate) buffer_bytes: Option<usize>,
    /// Threads that serve: 1, 2, 4 or 8.
    pub(crate) threads: u16,
    /// ... chosen because the machine has so many cores, if they were not set.
    pub(crate) threads_chosen_from: Option<usize>,
    /// What a disk of this node has not done after so long has failed.
    pub(crate) disk_late: Duration,
    /// Ascending by id, without this node.
    pub(crate) peers: Vec<PeerConfig>,
}

/// Why a configuration was refused; says which file, what is wrong, and what to do.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct ConfigError(pub(crate) String);

impl std::fmt::Display for ConfigError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.0)
    }
}

impl Config {
    /// Reads `directory/node.toml`.
    pub(crate) fn read(directory: &Path) -> Result<Config, ConfigError> {
        let path = directory.join("node.toml");
        let text = std::fs::read_to_string(&path)
            .map_err(|error| ConfigError(format!("{}: {error}", path.display())))?;
        let mut config = Config::parse(directory, &text)
            .map_err(|error| ConfigError(format!("{}: {}", path.display(), error.0.trim_end())))?;
        config.nvme_hosts =
            HostTable::read(directory, config.nvme_hosts_file.as_deref())?.map(Arc::new);
        check_nvme(&config).map_err(|error| ConfigError(format!("{}: {error}", path.display())))?;
        Ok(config)
    }

    /// What stands in the file itself.
    fn parse(directory: &Path, text: &str) -> Result<Config, ConfigError> {
        let file: File =
            toml::from_str(&with_quotes(text)).map_err(|error| ConfigError(error.to_string()))?;
        let cluster = parse_id(&file.cluster).ok_or_else(|| {
            refuse("cluster", "must be up to 16 hexadecimal digits, the same on every node")
        })?;
        if file.node == 0 {
            return Err(refuse("node", "must be between 1 and 65535, unique in the cluster"));
        }
        check_name("this node", &file.name).map_err(|error| refuse("name", &error.0))?;
        let identity = identity(&file, directory)?;
        let nbd_tls = nbd_tls(&file, identity.is_some())?;
        if file.faults.is_some() && !file.allow_faults {
            return Err(refuse(
                "faults",
                "makes disks fail on purpose, for tests; remove it, or state `allow_faults = true`",
            ));
        }
        let faults = file.faults.as_ref().map(FileFaults::spec);
        let boot = match &faults {
            Some(faults) if faults.volatile_cache => u128::from(sys::random_u64()),
            _ => boot(sys::boot_id()),
        };
        if file.disk_late_ms < DISK_LATE_MS_MIN {
            return Err(refuse("disk_late_ms", "must be 1000 or more: a busy disk is no dead one"));
        }
        let buffer_bytes = buffer_bytes(&file)?;
        if file.nbd_socket_group.is_some() && file.nbd_socket.is_none() {
            let why = "says whose `nbd_socket` is, and there is none";
            return Err(refuse("nbd_socket_group", why));
        }
        let (threads, threads_chosen_from) = file.threads.count()?;
        let revoked = revoked(&file)?;
        let peers = peers(file.peers, NodeId(file.node))?;
        let admin = file.admin_socket.unwrap_or_else(|| PathBuf::from("admin.sock"));
        Ok(Config {
            directory: directory.to_path_buf(),
            cluster: ClusterId(cluster),
            node: NodeId(file.node),
            name: file.name,
            listen: file.listen,
            nbd: file.nbd,
            nvme: file.nvme,
            nvme_hosts_file: file.nvme_hosts.map(|path| directory.join(path)),
            nvme_hosts: None,
            nbd_tls,
            nbd_socket: file.nbd_socket.map(|path| directory.join(path)),
            nbd_socket_group: file.nbd_socket_group,
            admin_socket: directory.join(admin),
            identity,
            revoked,
            link_mode: if file.link_encryption.is_on() {
                LinkMode::Encrypted
            } else {
                LinkMode::Plain
            },
            allow_memory_store: file.allow_memory_store,
            faults,
            faulty: file.faults.and_then(|faults| faults.resource),
            boot,
            insecure: file.insecure,
            buffer_bytes,
            threads,
            threads_chosen_from,
            disk_late: Duration::from_millis(u64::from(file.disk_late_ms)),
            peers,
        })
    }
}

fn buffer_bytes(file: &File) -> Result<Option<usize>, ConfigError> {
    let bytes = file.buffer_bytes.and_then(|bytes| usize::try_from(bytes).ok());
    if bytes.is_some_and(|bytes| bytes < BUFFER_BYTES_MIN) {
        return Err(refuse("buffer_bytes", "must be 16777216 (16 MiB) or more"));
    }
    Ok(bytes)
}

fn refuse(key: &str, why: &str) -> ConfigError {
    ConfigError(format!("`{key}` {why}"))
}

/// An identity as people write it: up to 16 hexadecimal digits, not 0.
pub(crate) fn parse_id(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u64::from_str_radix(digits, 16).ok().filter(|&id| id != 0)
}

/// Serial numbers are written in hexadecimal, as `openssl x509 -serial` prints them.
fn revoked(file: &File) -> Result<Revocations, ConfigError> {
    let mut revoked = Revocations::default();
    for &node in &file.revoked_nodes {
        if node == 0 || node == file.node {
            return Err(refuse("revoked_nodes", "must name other nodes, by their numbers"));
        }
        revoked.nodes.insert(NodeId(node));
    }
    for text in &file.revoked_serials {
        let serial = parse_serial(text).ok_or_else(|| {
            let why = format!("{text:?} is no serial number: two hexadecimal digits for each byte");
            refuse("revoked_serials", &why)
        })?;
        revoked.serials.insert(serial);
    }
    Ok(revoked)
}

/// The bytes of a serial number, as they stand in a certificate.
fn parse_serial(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b':').collect();
    if digits.is_empty() || !digits.len().is_multiple_of(2) {
        return None;
    }
    let mut serial = Vec::new();
    for pair in digits.chunks(2) {
        let pair = std::str::from_utf8(pair).ok()?;
        // A sign would pass as a digit otherwise.
        if !pair.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        serial.push(u8::from_str_radix(pair, 16).ok()?);
    }
    // An integer that begins with a high bit has a zero before it, which nobody prints.
    if serial[0] >= 0x80 {
        serial.insert(0, 0);
    }
    Some(serial)
}

/// The boot that disks' caches belong to. Where `/proc` does not tell, each start is taken for one of its own: what a copy had
/// confirmed and not flushed may be gone.
fn boot(told: Option<u128>) -> u128 {
    told.unwrap_or_else(|| u128::from(sys::random_u64()) << 64 | u128::from(sys::random_u64()))
}

/// Peers must prove who they are even where links are not encrypted afterwards.
fn identity(file: &File, directory: &Path) -> Result<Option<Identity>, ConfigError> {
    let named = [&file.certificate, &file.key, &file.authority];
    let default = Path::new("certificate.pem");
    if named.iter().all(|path| path.is_none())
        && file.peers.is_empty()
        && !directory.join(default).exists()
    {
        return Ok(None);
    }
    let or = |path: &Option<PathBuf>, name: &str| {
        directory.join(path.as_deref().unwrap_or(Path::new(name)))
    };
    Ok(Some(Identity {
        certificate: or(&file.certificate, "certificate.pem"),
        key: or(&file.key, "key.pem"),
        authority: or(&file.authority, "authority.pem"),
    }))
}

/// Beyond this machine only clients with a certificate are served, unless the operator says otherwise.
fn nbd_tls(file: &File, has_identity: bool) -> Result<nbd::Tls, ConfigError> {
    let beyond = file.nbd.is_some_and(|address| !address.ip().is_loopback()) && !file.insecure;
    match (has_identity, beyond || file.nbd_tls_required) {
        (true, true) => Ok(nbd::Tls::Required),
        (true, false) => Ok(nbd::Tls::Offered),
        (false, false) => Ok(nbd::Tls::Absent),
        (false, true) if !beyond => Err(refuse(
            "nbd_tls_required",
            "needs this node's certificate: name `certificate`, `key` and `authority`",
        )),
        (false, true) => Err(refuse(
            "nbd",
            "is reachable from other machines, and TLS needs this node's certificate: name \
             `certificate`, `key` and `authority`, use a loopback address, or state \
             `insecure = true`",
        )),
    }
}

/// Beyond this machine what NVMe hosts send can be read and changed on its way, unless all of them speak TLS.
pub(crate) fn check_nvme(config: &Config) -> Result<(), ConfigError> {
    let beyond = config.nvme.is_some_and(|address| !address.ip().is_loopback());
    let sealed = config.nvme_hosts.as_ref().is_some_and(|table| table.is_sealed());
    if beyond && !config.insecure && !sealed {
        return Err(refuse(
            "nvme",
            "is reachable from other machines, and what travels is not encrypted, whoever has proved who it \
             is: use a loopback address, give every host of `nvme_hosts` a `tls_key` and open nothing to others, or \
             state `insecure = true`",
        ));
    }
    Ok(())
}

fn peers(list: Vec<FilePeer>, own: NodeId) -> Result<Vec<PeerConfig>, ConfigError> {
    if list.len() > PEERS_MAX {
        return Err(refuse("peers", &format!("are more than {PEERS_MAX}")));
    }
    let mut peers: Vec<PeerConfig> = Vec::new();
    for peer in list {
        let id = NodeId(peer.id);
        if peer.id == 0 || id == own {
            return Err(refuse("peers", &format!("`{}` has this node's id, or 0", peer.name)));
        }
        if peers.iter().any(|other| other.id == id || other.name == peer.name) {
            return Err(refuse("peers", &format!("`{}` is there twice (id or name)", peer.name)));
        }
        check_name("a peer", &peer.name).map_err(|error| refuse("peers", &error.0))?;
        if peer.addresses.is_empty() {
            return Err(refuse("peers", &format!("`{}` has no address", peer.name)));
        }
        let FilePeer { name, addresses, nbd, nvme, .. } = peer;
        if [nbd, nvme].into_iter().flatten().any(|address| address.ip().is_unspecified()) {
            let why = format!("`{name}`: `nbd` and `nvme` are addresses by which it is reached");
            return Err(refuse("peers", &why));
        }
        peers.push(PeerConfig { id, name, addresses, nbd, nvme });
    }
    peers.sort_by_key(|peer| peer.id);
    Ok(peers)
}

#[cfg(test)]
mod tests;
