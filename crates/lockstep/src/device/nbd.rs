//! Disks by the kernel's NBD client: it gets a connection that has negotiated, and another one when that breaks.
//!
//! Always: a disk is found again by the name that the kernel keeps with it (`backend`), never by its number; nobody's
//! connection is replaced while it is whole; only who attaches a disk makes it smaller.
//!
//! Not here: the messages (`genl`), who looks after disks (`keep`).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::net::sockopt::{set_socket_keepalive, set_tcp_user_timeout};
use sys::Errno;

use super::attached::Disk;
use super::genl::{Export, Family};
use super::host::Host;
use super::place::{NbdPlace, Server, Target};
use super::{ABSENT, Going, Left, Made, Maker, PathState, Unmade};
use crate::unix::connect_within;

/// How long a node may take to accept a connection, and for each answer on the way to the volume.
const REACH_LIMIT: Duration = Duration::from_secs(5);

/// After so long without a word the other machine is gone, in milliseconds.
const SILENCE_MS: u32 = 20_000;

/// The kernel's smallest block.
const BLOCK_BYTES_MIN: u32 = 512;

/// The most that a disk gives back by one request: a node is done with that long before the kernel gives the request up, and the
/// kernel asks for up to 4 GiB unless it is told.
const TRIM_BYTES_MAX: u64 = 256 << 20;

/// Why a disk that is there is offered a connection.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Offer {
    /// Somebody attaches the disk.
    Asked,
    /// It has none, as the kernel says.
    Broken,
    /// It may have one.
    Perhaps,
}

/// The kernel's client.
#[derive(Default)]
pub(super) struct Nbd {
    /// Where the connection of a disk leads that this process gave it, by the disk's names.
    leads: RefCell<BTreeMap<String, NbdPlace>>,
}

impl Maker for Nbd {
    fn make(&self, host: &Host, disk: &Disk) -> Result<Made, Unmade> {
        let places = disk.nbd();
        if places.is_empty() {
            let why = "no node says where NBD clients reach the volume without TLS (`nbd_socket` in node.toml)";
            return Err(why.to_owned().into());
        }
        host.load("nbd", "sys/module/nbd")?;
        let mut left = Left::Nothing;
        let (name, place) = match index(host, disk) {
            Some((name, index)) => {
                let place = self.reconnect(host, disk, (&name, index), Offer::Asked)?;
                (name, place)
            }
            None => {
                let mut family = Family::open().map_err(no_netlink)?;
                let (place, socket, export) = reach_one(&places, None, disk)?;
                let number = family.connect(&export, socket.as_fd()).map_err(refused)?;
                let name = format!("nbd{number}");
                left = Left::Added(vec![name.clone()]);
                self.leads.borrow_mut().insert(disk.target().to_string(), place.clone());
                (name, place)
            }
        };
        let there = || {
            (host.at(format!("dev/{name}")).exists() && index(host, disk).is_some()).then_some(())
        };
        let file = |what: &str| host.at(format!("sys/block/{name}/{what}"));
        if file("pid").exists() && !file("backend").exists() {
            let why = "this kernel's client keeps no name with its disks (`/sys/block/nbd0/backend`, since Linux 5.14), so that \
                       nobody could tell whose is whose";
            return Err(Unmade { why: why.to_owned(), left });
        }
        if host.wait_for(there).is_none() {
            return Err(Unmade { why: format!("the kernel shows no /dev/{name}"), left });
        }
        limit_trims(host, &name);
        Ok(Made {
            disk: name,
            why: format!("a connection to {}, and another one when it breaks", place.server),
            id: index(host, disk).and_then(|(name, _)| identity_of(host, &name)),
        })
    }

    fn undo(&self, _: &Host, _: &Disk, added: &[String]) -> Result<(), String> {
        let number = |name: &String| name.strip_prefix("nbd")?.parse().ok();
        let mut numbers = added.iter().filter_map(number);
        let ended = Family::open()
            .and_then(|mut family| numbers.try_for_each(|number| family.disconnect(number)));
        ended.map_err(|errno| format!("/dev/{}: {errno}", added.join(", /dev/")))
    }

    fn find(&self, host: &Host, disk: &Disk) -> Option<String> {
        index(host, disk).map(|(name, _)| name)
    }

    fn paths(&self, host: &Host, disk: &Disk) -> Vec<PathState> {
        let state = if index(host, disk).is_some() { "possible" } else { ABSENT };
        let path = |place: &NbdPlace| PathState {
            address: place.server.to_string(),
            state: state.to_owned(),
        };
        disk.nbd().iter().map(path).collect()
    }

    /// The kernel says of no connection whether it is whole; so it is offered another one.
    fn answers(&self, host: &Host, disk: &Disk) -> Result<(), String> {
        self.mend(host, disk, false)
    }

    /// That no list is locked does no harm: the kernel takes no connection for a disk that it ends, nor for one of another name.
    fn mend(&self, host: &Host, disk: &Disk, is_broken: bool) -> Result<(), String> {
        let (name, number) = index(host, disk).ok_or_else(|| "it is not there".to_owned())?;
        let offer = if is_broken { Offer::Broken } else { Offer::Perhaps };
        self.reconnect(host, disk, (&name, number), offer).map(drop)
    }

    fn unmake(&self, host: &Host, disk: &Disk, going: Going) -> Result<(), String> {
        let Some((name, number)) = index(host, disk) else { return Ok(()) };
        let ended = Family::open().and_then(|mut family| family.disconnect(number));
        ended.map_err(|errno| format!("/dev/{name}: {errno}"))?;
        // The kernel keeps its name for who has it open.
        drop(going.held);
        let gone = || index(host, disk).is_none().then_some(());
        host.wait_for(gone).ok_or_else(|| format!("/dev/{name} does not go"))
    }
}

/// Whether the kernel's client, which is loaded, keeps a name with each disk.
pub(crate) fn keeps_names() -> Result<bool, Errno> {
    Ok(Family::open()?.keeps_names())
}

fn no_netlink(errno: Errno) -> String {
    format!("the kernel's NBD client has no netlink: {errno}")
}

fn refused(errno: Errno) -> String {
    format!("the kernel's NBD client: {errno}")
}

impl Nbd {
    /// Offers a disk that is there a connection; to which place.
    fn reconnect(
        &self,
        host: &Host,
        disk: &Disk,
        (name, number): (&str, u32),
        offer: Offer,
    ) -> Result<NbdPlace, String> {
        let mut family = Family::open().map_err(no_netlink)?;
        let target = disk.target().to_string();
        // Where it broke it may break again: the next place may serve.
        let broke = self.leads.borrow().get(&target).filter(|_| offer == Offer::Broken).cloned();
        let (place, socket, mut export) = reach_one(&disk.nbd(), broke.as_ref(), disk)?;
        let kept = host.text(format!("sys/block/{name}/backend")).unwrap_or_default();
        if kept != export.backend {
            let server = &place.server;
            return Err(format!(
                "{server} has another resource of that name than /dev/{name} ({kept})"
            ));
        }
        if offer != Offer::Asked {
            export.size_bytes = export.size_bytes.filter(|&bytes| !is_less(host, name, bytes));
        }
        family.reconnect(number, &export, socket.as_fd()).map_err(refused)?;
        if offer == Offer::Broken {
            self.leads.borrow_mut().insert(target, place.clone());
        }
        // Some kernels forget it with each connection.
        limit_trims(host, name);
        Ok(place)
    }
}

/// Whether a disk has more than so many bytes. A node that was cut off while the volume grew does not know of it.
fn is_less(host: &Host, name: &str, bytes: u64) -> bool {
    let sectors = host.text(format!("sys/block/{name}/size"));
    let sectors = sectors.and_then(|text| text.parse::<u64>().ok());
    sectors.is_some_and(|sectors| bytes / 512 < sectors)
}

/// Has the kernel cut what it gives back. One that does not let itself be told has large requests cut short by the node.
fn limit_trims(host: &Host, name: &str) {
    let file = format!("sys/block/{name}/queue/discard_max_bytes");
    let told = host.text(&file).and_then(|text| text.parse::<u64>().ok());
    if told.is_some_and(|bytes| bytes > TRIM_BYTES_MAX) {
        fs::write(host.at(file), TRIM_BYTES_MAX.to_string()).ok();
    }
}

/// What the kernel keeps with a volume's disk. It takes no connection for that disk by another name, so that a resource that gets
/// the name of one that was deleted does not get its disk.
fn backend(target: &Target, resource: &str) -> String {
    format!("lockstep:{target}:{resource}")
}

/// The identity of the resource, as the server's words about it tell; empty if they do not.
fn identity(description: &str) -> &str {
    let told = description.rsplit_once(" resource ").map_or("", |(_, told)| told);
    let is_one = told.len() == 16 && told.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_one { told } else { "" }
}

/// The identity in what the kernel keeps.
fn identity_in(backend: &str) -> Option<u64> {
    u64::from_str_radix(backend.rsplit(':').next()?, 16).ok()
}

/// Identity of the resource that a disk is of.
fn identity_of(host: &Host, name: &str) -> Option<u64> {
    identity_in(&host.text(format!("sys/block/{name}/backend"))?)
}

/// Name and number of a volume's disk; one of another resource that had the name before is none.
fn index(host: &Host, disk: &Disk) -> Option<(String, u32)> {
    let wanted = backend(&disk.target(), "");
    host.names("sys/block").into_iter().find_map(|name| {
        let number = name.strip_prefix("nbd")?.parse().ok()?;
        let kept = host.text(format!("sys/block/{name}/backend"))?;
        let is_it = kept.starts_with(&wanted) && disk.is_of(identity_in(&kept));
        is_it.then_some((name, number))
    })
}

/// Those places first that are behind the one whose connection broke.
fn in_turn<'a>(
    places: &'a [NbdPlace],
    broke: Option<&NbdPlace>,
) -> impl Iterator<Item = &'a NbdPlace> {
    let at = broke.and_then(|broke| places.iter().position(|place| place == broke));
    let (before, behind) = places.split_at(at.map_or(0, |at| at + 1));
    behind.iter().chain(before)
}

/// A connection to the first place that has the volume, behind the one whose connection broke.
fn reach_one(
    places: &[NbdPlace],
    broke: Option<&NbdPlace>,
    disk: &Disk,
) -> Result<(NbdPlace, OwnedFd, Export), String> {
    let mut refused = Vec::new();
    // The kernel sends what has no answer to whoever is next.
    let moves = if places.len() > 1 { client::MOVES } else { "" };
    for place in in_turn(places, broke) {
        match reach(place, moves, &disk.target()) {
            Ok((_, export)) if !disk.is_of(identity_in(&export.backend)) => {
                refused.push(format!("{} has another resource of that name", place.server));
            }
            Ok((socket, export)) => return Ok((place.clone(), socket, export)),
            Err(error) => refused.push(format!("{}: {error}", place.server)),
        }
    }
    Err(format!("no node could be reached: {}", refused.join("; ")))
}

fn reach(place: &NbdPlace, moves: &str, target: &Target) -> io::Result<(OwnedFd, Export)> {
    let name = format!("{}{moves}", place.export);
    let (socket, ready): (OwnedFd, _) = match &place.server {
        Server::Tcp(address) => {
            let mut stream = TcpStream::connect_timeout(address, REACH_LIMIT)?;
            stream.set_nodelay(true)?;
            set_tcp_user_timeout(&stream, SILENCE_MS)?;
            set_socket_keepalive(&stream, true)?;
            limit(
                |limit| stream.set_read_timeout(limit),
                |limit| stream.set_write_timeout(limit),
                Some(REACH_LIMIT),
            )?;
            let ready = client::negotiate(&mut stream, &name)?;
            limit(
                |limit| stream.set_read_timeout(limit),
                |limit| stream.set_write_timeout(limit),
                None,
            )?;
            (stream.into(), ready)
        }
        Server::Unix(path) => {
            let mut stream = connect_within(path, REACH_LIMIT)?;
            limit(
                |limit| stream.set_read_timeout(limit),
                |limit| stream.set_write_timeout(limit),
                Some(REACH_LIMIT),
            )?;
            let ready = client::negotiate(&mut stream, &name)?;
            limit(
                |limit| stream.set_read_timeout(limit),
                |limit| stream.set_write_timeout(limit),
                None,
            )?;
            (stream.into(), ready)
        }
    };
    let export = Export {
        size_bytes: Some(ready.size_bytes),
        block_bytes: ready.block_bytes_min.max(BLOCK_BYTES_MIN),
        // Newer kernels ask for up to 4 GiB of zeroes by one request, which a node's disk may have to write, and for all of it anew
        // when that took ten seconds. Without the flag they write zeroes as they write anything.
        flags: ready.flags_without_zeroes(),
        backend: backend(target, identity(&ready.description)),
    };
    Ok((socket, export))
}

/// The kernel's client takes a socket with its limits, and is to have none.
fn limit(
    reading: impl Fn(Option<Duration>) -> io::Result<()>,
    writing: impl Fn(Option<Duration>) -> io::Result<()>,
    limit: Option<Duration>,
) -> io::Result<()> {
    reading(limit)?;
    writing(limit)
}

#[cfg(test)]
mod tests {
    use super::super::attached::Disk;
    use super::super::place::{NbdPlace, Place, parse_place, parse_target};
    use super::super::tests::{Root, known};
    use super::{backend, identity, identity_in, in_turn, index, is_less, limit_trims};

    #[test]
    fn the_place_whose_connection_broke_is_tried_last() {
        let place = |number: u8| match parse_place(&format!("nbd://127.77.0.{number}:10809/web")) {
            Ok(Place::Nbd(place)) => place,
            other => panic!("{other:?}"),
        };
        let places = [1, 2, 3].map(place);
        let tried = |broke: Option<u8>| -> Vec<NbdPlace> {
            in_turn(&places, broke.map(place).as_ref()).cloned().collect()
        };
        for (broke, order) in [
            (None, [1, 2, 3]),
            (Some(1), [2, 3, 1]),
            (Some(2), [3, 1, 2]),
            (Some(3), [1, 2, 3]),
            (Some(9), [1, 2, 3]),
        ] {
            assert_eq!(tried(broke), order.map(place), "{broke:?}");
        }
        let only: Vec<_> = in_turn(&places[..1], Some(&places[0])).collect();
        assert_eq!(only, [&places[0]]);
    }

    #[test]
    fn a_disk_is_seen_to_have_more_than_a_node_tells() {
        let root = Root::of("size");
        root.put("sys/block/nbd0/size", "2048\n");
        let less = |bytes| is_less(&root.host(), "nbd0", bytes);
        assert_eq!([(1 << 20) - 512, 1 << 20, 2 << 20].map(less), [true, false, false]);
        assert!(!is_less(&root.host(), "nbd1", 0), "nothing is known of it");
    }

    #[test]
    fn the_identity_is_what_stands_last_in_the_words_about_a_volume() {
        let words = "volume 0 of resource , 64 MiB, resource 6b1f0c9a2e77d431";
        assert_eq!(identity(words), "6b1f0c9a2e77d431");
        for none in ["", "volume 0 of web, 64 MiB", "x resource ", "x resource 6b1f0c9a2e77d43g"] {
            assert_eq!(identity(none), "", "{none:?}");
        }
    }

    #[test]
    fn the_kernel_is_told_to_cut_what_it_gives_back_where_it_gives_back_more() {
        let root = Root::of("trims");
        let file = "sys/block/nbd0/queue/discard_max_bytes";
        for (there, then) in [("4294966784\n", "268435456"), ("0\n", "0"), ("1048576\n", "1048576")]
        {
            root.put(file, there);
            limit_trims(&root.host(), "nbd0");
            assert_eq!(root.host().text(file).unwrap(), then);
        }
        limit_trims(&root.host(), "nbd1");
        assert!(root.host().text("sys/block/nbd1/queue/discard_max_bytes").is_none());
    }

    #[test]
    fn a_disk_of_a_resource_that_had_the_name_before_is_another() {
        let root = Root::of("index");
        let of = |id: &str| Disk { id: Some(id.to_owned()), ..known("web")().unwrap() };
        let unknown = Disk { id: None, ..of("") };
        let target = unknown.target();
        root.put("sys/block/nbd0/backend", &backend(&target, "00000000000000a1"));
        let number = |disk: &Disk| index(&root.host(), disk).map(|(_, number)| number);
        assert_eq!(
            [number(&of("b2")), number(&of("a1")), number(&unknown)],
            [None, Some(0), Some(0)]
        );
        root.put("sys/block/nbd1/backend", &backend(&target, "00000000000000b2"));
        assert_eq!(number(&of("b2")), Some(1));
    }

    #[test]
    fn what_the_kernel_keeps_tells_the_identity_or_nothing() {
        let target = parse_target("web/1").unwrap();
        assert_eq!(identity_in(&backend(&target, "00000000000000b2")), Some(0xb2));
        assert_eq!(identity_in(&backend(&target, "")), None);
    }
}
