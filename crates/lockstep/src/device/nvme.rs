//! Disks by the kernel's NVMe/TCP initiator: a path to every node, which its multipath makes one disk of.
//!
//! Facts: options of `/dev/nvme-fabrics` and the directories below `/sys/class/nvme*` as the kernel's
//! `drivers/nvme/host` names them; the files of `/etc/nvme` as nvme-cli keeps them, so that both agree who this host is.
//!
//! Always: a disk of another resource that has the name now is not this one's (its identity is in the namespace's NGUID, and is the
//! serial number). A path is added where there is none, so `make` completes what a crash, or a node that was away, left undone; if
//! that fails only the paths that it added are undone, for others may use the subsystem. Controllers belong to the resource:
//! they go with the last of its volumes, and all disks of the subsystem with them, also those that nobody attached.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use super::attached::Disk;
use super::host::Host;
use super::keys::{Keys, Teach, teach};
use super::place::NvmePlace;
use super::{ABSENT, Going, Left, Made, Maker, PathState, Unmade};

/// Where the kernel takes lines that describe paths.
const FABRICS: &str = "dev/nvme-fabrics";

/// How long a node may take to accept a connection. The kernel itself would wait for minutes, with nothing to interrupt it.
const REACH_LIMIT: Duration = Duration::from_secs(3);

/// A try that took so long and failed is not made again at once: others wait meanwhile.
const COSTLY: Duration = Duration::from_secs(1);

/// How long such a place is left alone by this process.
const LEFT_ALONE: Duration = Duration::from_secs(60);

/// What the kernel answers when it has the path already (`EALREADY`).
const HAS_IT: i32 = 114;

/// What it answers when a node does not let it in.
const EACCES: i32 = 13;
const ECONNRESET: i32 = 104;
const ENOKEY: i32 = 126;
const EKEYREJECTED: i32 = 129;

/// The kernel's initiator.
pub(super) struct Nvme {
    /// Hands the kernel a line that describes a path; the name of the controller that it makes.
    pub(super) connect: fn(&Host, &str) -> io::Result<String>,
    /// Has the kernel end a controller.
    pub(super) delete: fn(&Host, &str) -> Result<(), String>,
    /// Whether a node accepts connections there.
    pub(super) reach: fn(SocketAddr) -> io::Result<()>,
    /// Hands the kernel a key for TLS.
    pub(super) teach: Teach,
    /// How long a try may take in vain before its place is left alone.
    pub(super) costly: Duration,
    /// Since when places are.
    pub(super) left_alone: Mutex<BTreeMap<SocketAddr, Instant>>,
}

/// What has become of paths that were not there.
#[derive(Default)]
struct Paths {
    /// Controllers, by the kernel's names.
    added: Vec<String>,
    /// Why of each that could not be added.
    refused: Vec<String>,
}

impl Nvme {
    pub(super) fn of_the_kernel() -> Nvme {
        Nvme { connect, delete, reach, teach, costly: COSTLY, left_alone: Mutex::default() }
    }

    /// Tries something with a place. One that lets this host wait in vain is left alone for a while: who looks after disks would
    /// wait for it in every round, with the list locked.
    fn try_at<T>(
        &self,
        address: SocketAddr,
        what: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let left_alone = || self.left_alone.lock().expect("nobody panics with it");
        if left_alone().get(&address).is_some_and(|since| since.elapsed() < LEFT_ALONE) {
            return Err(io::Error::other("it let this host wait in vain a moment ago"));
        }
        let begun = Instant::now();
        let done = what();
        if done.is_err() && begun.elapsed() >= self.costly {
            left_alone().insert(address, Instant::now());
        }
        done
    }

    fn try_reach(&self, address: SocketAddr) -> io::Result<()> {
        self.try_at(address, || (self.reach)(address))
    }

    /// What a path proves itself by, as the kernel's line says it; those that are there go on by it too.
    fn prove(&self, host: &Host, disk: &Disk, nqn: &str) -> Result<String, String> {
        let Some((path, place)) = disk.keys.as_deref().zip(disk.nvme().into_iter().next()) else {
            return Ok(String::new());
        };
        let keys = Keys::read(path, nqn)?;
        for controller in controllers(host, &place.subsystem) {
            keys.renew(host, &controller)?;
        }
        keys.options(host, nqn, &place.subsystem, self.teach)
    }

    /// Adds the paths that are not there.
    fn add_paths(&self, host: &Host, disk: &Disk, places: &[NvmePlace]) -> Result<Paths, String> {
        if places.is_empty() && disk.keys.is_none() {
            return Ok(Paths::default());
        }
        let (nqn, id) = identity(host)?;
        let options = self.prove(host, disk, &nqn)?;
        let reached: Vec<io::Result<()>> = thread::scope(|scope| {
            let tried = places.iter().map(|place| scope.spawn(|| self.try_reach(place.address)));
            let tried: Vec<_> = tried.collect();
            tried.into_iter().map(|one| one.join().expect("it does not panic")).collect()
        });
        let mut paths = Paths::default();
        for (place, reached) in places.iter().zip(reached) {
            let line = format!(
                "nqn={},transport=tcp,traddr={},trsvcid={},hostnqn={nqn},hostid={id},disable_sqflow,keep_alive_tmo=5,\
                 reconnect_delay=2,ctrl_loss_tmo=-1{options}",
                place.subsystem,
                place.address.ip(),
                place.address.port()
            );
            let connect = || (self.connect)(host, &line);
            match reached.and_then(|()| self.try_at(place.address, connect)) {
                Err(error) if error.raw_os_error() == Some(HAS_IT) => {}
                Err(error) => {
                    let hint = if disk.keys.is_none() && is_for_want_of_proof(&error) {
                        " (the node wants a proof, or TLS: --nvme-keys)"
                    } else {
                        ""
                    };
                    paths.refused.push(format!("{}: {error}{hint}", place.address));
                }
                Ok(controller) => paths.added.push(controller),
            }
        }
        Ok(paths)
    }
}

impl Maker for Nvme {
    fn make(&self, host: &Host, disk: &Disk) -> Result<Made, Unmade> {
        let places = disk.nvme();
        let Some(first) = places.first() else {
            let why = "no node says where hosts of NVMe/TCP reach the volume (`nvme` in node.toml)";
            return Err(why.to_owned().into());
        };
        if places
            .iter()
            .any(|one| (&one.subsystem, one.namespace) != (&first.subsystem, first.namespace))
        {
            return Err("the places are not all of one volume".to_owned().into());
        }
        host.load("nvme-tcp", FABRICS)?;
        require_multipath(host)?;
        let missing: Vec<NvmePlace> =
            places.iter().filter(|place| !has_path(host, place)).cloned().collect();
        let Paths { added, refused } = self.add_paths(host, disk, &missing)?;
        if controllers(host, &first.subsystem).is_empty() {
            return Err(format!("no path could be made: {}", refused.join("; ")).into());
        }
        let found = host.wait_for(|| {
            let name = find(host, first)?;
            host.at(format!("dev/{name}")).exists().then_some(name)
        });
        let Some(name) = found else {
            let why =
                format!("the kernel shows no namespace {} of {}", first.namespace, first.subsystem);
            return Err(Unmade { why, left: Left::Added(added) });
        };
        let id = identity_of(host, &first.subsystem, &name);
        if !disk.is_of(id) {
            let why = format!("/dev/{name} is of another resource of that name");
            return Err(Unmade { why, left: Left::Added(added) });
        }
        let mut why = format!(
            "a path to {} of {} nodes, joined by the kernel's multipath",
            places.len() - refused.len(),
            places.len()
        );
        if !refused.is_empty() {
            why.push_str(&format!("; not yet: {}", refused.join("; ")));
        }
        Ok(Made { disk: name, why, id })
    }

    fn undo(&self, host: &Host, disk: &Disk, added: &[String]) -> Result<(), String> {
        // Where nothing else leads to them, disks go with it: one may have been mounted as soon as it was there.
        let subsystem = disk.nvme().into_iter().next().map_or(String::new(), |one| one.subsystem);
        if controllers(host, &subsystem).iter().all(|name| added.contains(name))
            && let Some(user) = disks(host, &subsystem).iter().find_map(|name| host.user_of(name))
        {
            return Err(user);
        }
        added.iter().try_for_each(|name| (self.delete)(host, name))?;
        let is_gone = |name: &String| !host.at(format!("sys/class/nvme/{name}")).exists();
        let gone = || added.iter().all(is_gone).then_some(());
        host.wait_for(gone).ok_or_else(|| format!("{} does not go", added.join(", ")))
    }

    fn find(&self, host: &Host, disk: &Disk) -> Option<String> {
        let place = disk.nvme().into_iter().next()?;
        let name = find(host, &place)?;
        disk.is_of(identity_of(host, &place.subsystem, &name)).then_some(name)
    }

    fn going(&self, host: &Host, disk: &Disk, others: &[Disk]) -> Vec<String> {
        let Some(place) = disk.nvme().into_iter().next() else { return Vec::new() };
        match is_shared(&place, others) {
            true => find(host, &place).into_iter().collect(),
            false => disks(host, &place.subsystem),
        }
    }

    fn paths(&self, host: &Host, disk: &Disk) -> Vec<PathState> {
        let state = |place: &NvmePlace| {
            let controller = controllers(host, &place.subsystem)
                .into_iter()
                .find(|name| is_to(host, name, place.address));
            let state =
                controller.and_then(|name| host.text(format!("sys/class/nvme/{name}/state")));
            PathState {
                address: place.address.to_string(),
                state: state.unwrap_or_else(|| ABSENT.to_owned()),
            }
        };
        disk.nvme().iter().map(state).collect()
    }

    fn lacks(&self, host: &Host, disk: &Disk) -> bool {
        let places = disk.nvme().into_iter();
        let mut missing = places.filter(|place| !has_path(host, place));
        missing.any(|place| self.try_reach(place.address).is_ok())
    }

    fn answers(&self, host: &Host, disk: &Disk) -> Result<(), String> {
        let is_live = self.paths(host, disk).iter().any(|path| path.state == "live");
        if is_live { Ok(()) } else { Err("none of its paths is live".to_owned()) }
    }

    fn unmake(&self, host: &Host, disk: &Disk, going: Going) -> Result<(), String> {
        let Some(place) = disk.nvme().into_iter().next() else { return Ok(()) };
        if is_shared(&place, &going.others) {
            return Ok(());
        }
        for name in controllers(host, &place.subsystem) {
            (self.delete)(host, &name)?;
        }
        drop(going.held);
        let gone = || {
            (controllers(host, &place.subsystem).is_empty() && find(host, &place).is_none())
                .then_some(())
        };
        host.wait_for(gone).ok_or_else(|| format!("{} does not go", place.subsystem))
    }
}

/// Asks the kernel to end a controller.
fn delete(host: &Host, controller: &str) -> Result<(), String> {
    let path = host.at(format!("sys/class/nvme/{controller}/delete_controller"));
    match fs::write(&path, "1") {
        // It went meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done.map_err(|error| format!("{}: {error}", path.display())),
    }
}

/// Hands the kernel a line; it answers with the number that it gave the controller.
fn connect(host: &Host, line: &str) -> io::Result<String> {
    let mut file = OpenOptions::new().read(true).write(true).open(host.at(FABRICS))?;
    file.write_all(line.as_bytes())?;
    let mut answer = [0; 256];
    let count = file.read(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer[..count]);
    let number = answer.trim_end().split(',').find_map(|word| word.strip_prefix("instance="));
    let name = number.map(|number| format!("nvme{number}"));
    name.ok_or_else(|| io::Error::other(format!("the kernel answers {answer:?}")))
}

fn reach(address: SocketAddr) -> io::Result<()> {
    TcpStream::connect_timeout(&address, REACH_LIMIT).map(drop)
}

/// Without it each path were a disk of its own, and a node that fails an error of that disk.
fn require_multipath(host: &Host) -> Result<(), String> {
    match host.text("sys/module/nvme_core/parameters/multipath").as_deref() {
        Some("Y") => Ok(()),
        Some(_) => {
            Err("the kernel's NVMe multipath is turned off (nvme_core.multipath=Y)".to_owned())
        }
        None => Err("this kernel was built without NVMe multipath".to_owned()),
    }
}

/// Controllers of a subsystem, by the kernel's names.
fn controllers(host: &Host, subsystem: &str) -> Vec<String> {
    let names = host.names("sys/class/nvme").into_iter();
    let is_of = |name: &String| {
        host.text(format!("sys/class/nvme/{name}/subsysnqn")).as_deref() == Some(subsystem)
    };
    names.filter(is_of).collect()
}

/// Whether a controller leads to an address: `traddr=…,trsvcid=…`, and possibly more.
fn is_to(host: &Host, controller: &str, address: SocketAddr) -> bool {
    let text = host.text(format!("sys/class/nvme/{controller}/address")).unwrap_or_default();
    let value = |key: &str| text.split(',').find_map(|word| word.strip_prefix(key));
    value("traddr=").and_then(|ip| ip.parse().ok()) == Some(address.ip())
        && value("trsvcid=").and_then(|port| port.parse().ok()) == Some(address.port())
}

/// Whether other volumes need the controllers.
fn is_shared(place: &NvmePlace, others: &[Disk]) -> bool {
    let shares = |other: &Disk| other.nvme().iter().any(|its| its.subsystem == place.subsystem);
    others.iter().any(shares)
}

fn has_path(host: &Host, place: &NvmePlace) -> bool {
    controllers(host, &place.subsystem).iter().any(|name| is_to(host, name, place.address))
}

/// Where the kernel tells of a subsystem.
fn directories(host: &Host, subsystem: &str) -> Vec<String> {
    let class = "sys/class/nvme-subsystem";
    let paths = host.names(class).into_iter().map(|name| format!("{class}/{name}"));
    let is_it =
        |path: &String| host.text(format!("{path}/subsysnqn")).as_deref() == Some(subsystem);
    paths.filter(is_it).collect()
}

/// The disks of a subsystem, by the kernel's names. Each path has one of each, too, which is hidden and has `c` in its name.
fn disks(host: &Host, subsystem: &str) -> Vec<String> {
    let directories = directories(host, subsystem).into_iter();
    directories.flat_map(|path| host.names(path)).filter(|name| is_disk(name)).collect()
}

/// The disk of a namespace.
fn find(host: &Host, place: &NvmePlace) -> Option<String> {
    let number = place.namespace.to_string();
    directories(host, &place.subsystem).into_iter().find_map(|path| {
        let of_volume = |name: &String| {
            is_disk(name) && host.text(format!("{path}/{name}/nsid")).as_deref() == Some(&number)
        };
        host.names(&path).into_iter().find(of_volume)
    })
}

/// Identity of the resource that a disk is of. The number of the namespace says it first, since the kernel keeps the serial
/// number that a subsystem had when it was first seen.
fn identity_of(host: &Host, subsystem: &str, name: &str) -> Option<u64> {
    let nguid = host.text(format!("sys/block/{name}/nguid")).map(|text| text.replace('-', ""));
    let serial = |name: &String| host.text(format!("sys/class/nvme/{name}/serial"));
    let told = nguid.or_else(|| controllers(host, subsystem).iter().find_map(serial))?;
    u64::from_str_radix(told.trim().get(..16)?, 16).ok()
}

/// `nvme0n1`, not `nvme0` nor `nvme0c1n1`.
fn is_disk(name: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let parts = name.strip_prefix("nvme").and_then(|rest| rest.split_once('n'));
    parts.is_some_and(|(subsystem, disk)| digits(subsystem) && digits(disk))
}

/// Whether the kernel says by this that a node lets in only who it knows.
fn is_for_want_of_proof(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(EACCES | ECONNRESET | ENOKEY | EKEYREJECTED))
}

/// Who this host is: its name, and the identity in it. Made where there is none.
pub(super) fn identity(host: &Host) -> Result<(String, String), String> {
    kept_identity(host).map_err(|error| format!("/etc/nvme: {error}"))
}

fn kept_identity(host: &Host) -> io::Result<(String, String)> {
    let kept = |file: &str| {
        let text = host.text(format!("etc/nvme/{file}"));
        text.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    let (nqn, id) = (kept("hostnqn"), kept("hostid"));
    let in_name = nqn.as_ref().and_then(|nqn| Some(nqn.split_once(":uuid:")?.1.to_owned()));
    let id = id.or(in_name).unwrap_or_else(new_uuid);
    let nqn = nqn.unwrap_or_else(|| format!("nqn.2014-08.org.nvmexpress:uuid:{id}"));
    for (file, text) in [("hostnqn", &nqn), ("hostid", &id)] {
        if kept(file).is_none() {
            let path = host.at(format!("etc/nvme/{file}"));
            fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
            sys::replace_file(&path, format!("{text}\n").as_bytes(), 0o644)?;
        }
    }
    Ok((nqn, id))
}

/// Of random numbers (version 4).
fn new_uuid() -> String {
    let (high, low) = (sys::random_u64(), sys::random_u64());
    let high = high & !0xf000 | 0x4000;
    let low = low & !(0b11 << 62) | 1 << 63;
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xffff,
        low >> 48,
        low & 0xffff_ffff_ffff
    )
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::SocketAddr;
    use std::time::{Duration, Instant};

    use super::super::host::Host;
    use super::super::tests::{nvme_disk, nvme_host};
    use super::{LEFT_ALONE, Maker, Nvme};

    /// A node that stands still: the kernel gives it up after some time.
    fn connect_in_vain(host: &Host, _: &str) -> io::Result<String> {
        let tries = host.text("tmp/tries").unwrap_or_default();
        std::fs::create_dir_all(host.at("tmp")).unwrap();
        std::fs::write(host.at("tmp/tries"), format!("{tries}x")).unwrap();
        Err(io::ErrorKind::WouldBlock.into())
    }

    #[test]
    fn a_place_that_lets_a_host_wait_in_vain_is_left_alone_for_a_while() {
        let (root, nvme) = nvme_host("in-vain");
        let (host, address) = (root.host(), "127.77.0.1:4420");
        let disk = nvme_disk("web", &[address]);
        let tries = || host.text("tmp/tries").unwrap_or_default().len();
        // One that refuses at once is tried again at once.
        let quick = Nvme { connect: connect_in_vain, costly: Duration::from_secs(3600), ..nvme };
        for count in 1..=2 {
            assert!(quick.lacks(&host, &disk), "it accepts connections");
            assert!(quick.make(&host, &disk).is_err());
            assert_eq!(tries(), count);
        }
        let slow = Nvme { costly: Duration::ZERO, ..quick };
        for _ in 0..2 {
            assert!(slow.make(&host, &disk).is_err());
            assert!(!slow.lacks(&host, &disk));
            assert_eq!(tries(), 3);
        }
        let address: SocketAddr = address.parse().unwrap();
        let long_ago = Instant::now().checked_sub(LEFT_ALONE).unwrap();
        assert!(slow.left_alone.lock().unwrap().insert(address, long_ago).is_some());
        assert!(slow.lacks(&host, &disk), "it has had its time");
    }
}
