//! Which volume is meant, and where it is: the words of the command line and the URLs that nodes print.
//!
//! Always: what was parsed is written again as it was read, so that a file with it can be read by people.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use wire::admin::check_name;

/// A volume of a resource: `NAME` or `NAME/VOL`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Target {
    pub(crate) resource: String,
    pub(crate) volume: u16,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.resource, self.volume)
    }
}

/// Takes a word of the command line apart. The name becomes a path and must stay one word of it.
pub(crate) fn parse_target(text: &str) -> Result<Target, String> {
    let (resource, volume) = text.split_once('/').unwrap_or((text, "0"));
    let fits = check_name("the resource", resource).is_ok();
    let volume = volume.parse().ok().filter(|_| volume.bytes().all(|byte| byte.is_ascii_digit()));
    match volume {
        Some(volume) if fits => Ok(Target { resource: resource.to_owned(), volume }),
        _ => Err(format!("{text:?} is no volume: write NAME or NAME/VOL, as in disk or disk/1")),
    }
}

/// Where a volume can be reached.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Place {
    Nvme(NvmePlace),
    Nbd(NbdPlace),
}

/// `nvme+tcp://ADDRESS:PORT/SUBSYSTEM/NAMESPACE`
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct NvmePlace {
    pub(crate) address: SocketAddr,
    pub(crate) subsystem: String,
    pub(crate) namespace: u32,
}

/// `nbd://ADDRESS:PORT/EXPORT` or `nbd+unix:///EXPORT?socket=PATH`
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct NbdPlace {
    pub(crate) server: Server,
    pub(crate) export: String,
}

impl Place {
    /// Whether this is a place of the volume, as far as its words tell.
    pub(crate) fn is_of(&self, target: &Target) -> bool {
        let Target { resource, volume } = target;
        match self {
            Place::Nvme(NvmePlace { subsystem, namespace, .. }) => {
                let named = subsystem.rsplit(':').next();
                *namespace == u32::from(*volume) + 1 && named == Some(resource)
            }
            Place::Nbd(NbdPlace { export, .. }) => {
                *export == target.to_string() || *volume == 0 && export == resource
            }
        }
    }
}

/// Who answers to NBD.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Server {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Server::Unix(path) => write!(f, "{}", path.display()),
            Server::Tcp(address) => write!(f, "{address}"),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Nvme(NvmePlace { address, subsystem, namespace }) => {
                write!(f, "nvme+tcp://{address}/{subsystem}/{namespace}")
            }
            Place::Nbd(NbdPlace { server: Server::Tcp(address), export }) => {
                write!(f, "nbd://{address}/{export}")
            }
            Place::Nbd(NbdPlace { server: Server::Unix(path), export }) => {
                write!(f, "nbd+unix:///{export}?socket={}", path.display())
            }
        }
    }
}

/// Takes a URL apart as nodes print it.
pub(crate) fn parse_place(text: &str) -> Result<Place, String> {
    let place = match text.split_once("://") {
        Some(("nvme+tcp", rest)) => nvme(rest),
        Some(("nbd", rest)) => nbd_tcp(rest),
        Some(("nbd+unix", rest)) => nbd_unix(rest),
        _ => None,
    };
    place.ok_or_else(|| {
        format!(
            "{text:?} is no place that a kernel reaches: give nvme+tcp://, nbd:// or nbd+unix:// as \
             `lockstep resource show` prints them"
        )
    })
}

fn nvme(rest: &str) -> Option<Place> {
    let mut words = rest.split('/');
    let address = words.next()?.parse().ok()?;
    let subsystem = words.next().filter(|name| is_subsystem(name))?.to_owned();
    let namespace = words.next()?.parse().ok().filter(|&number| number > 0)?;
    let place = NvmePlace { address, subsystem, namespace };
    words.next().is_none().then_some(Place::Nvme(place))
}

/// It goes into a line of options, which commas part.
fn is_subsystem(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_graphic() && byte != b',';
    name.starts_with("nqn.") && name.len() <= 223 && name.bytes().all(plain)
}

fn nbd_tcp(rest: &str) -> Option<Place> {
    let (address, export) = rest.split_once('/')?;
    let server = Server::Tcp(address.parse().ok()?);
    (!export.is_empty()).then(|| Place::Nbd(NbdPlace { server, export: export.to_owned() }))
}

fn nbd_unix(rest: &str) -> Option<Place> {
    let (export, path) = rest.strip_prefix('/')?.split_once("?socket=")?;
    let server = Server::Unix(PathBuf::from(path));
    let whole = !export.is_empty() && path.starts_with('/');
    whole.then(|| Place::Nbd(NbdPlace { server, export: export.to_owned() }))
}

#[cfg(test)]
mod tests {
    use super::{Target, parse_place, parse_target};

    #[test]
    fn a_volume_is_named_by_its_resource_and_its_number() {
        let target = |resource: &str, volume| Target { resource: resource.to_owned(), volume };
        assert_eq!(parse_target("disk"), Ok(target("disk", 0)));
        assert_eq!(parse_target("my-disk.1/12"), Ok(target("my-disk.1", 12)));
        for text in [
            "", "/", "/1", "disk/", "disk/-1", "disk/+1", "disk/x", "a/b/1", "..", "../1", "D",
            "a b",
        ] {
            assert!(parse_target(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn places_are_read_as_nodes_print_them_and_written_the_same() {
        for text in [
            "nvme+tcp://127.77.0.1:4420/nqn.2026-11.invalid.lockstep:00000000beef0001:disk/1",
            "nvme+tcp://[::1]:4420/nqn.x:disk/2",
            "nbd://127.77.0.1:10809/disk",
            "nbd://127.77.0.1:10809/disk/1",
            "nbd+unix:///disk/1?socket=/var/lib/lockstep/nbd.sock",
        ] {
            assert_eq!(parse_place(text).expect(text).to_string(), text);
        }
    }

    #[test]
    fn a_place_says_of_which_volume_it_is() {
        let is_of = |place: &str, target: &str| {
            parse_place(place).expect(place).is_of(&parse_target(target).expect(target))
        };
        let subsystem = "nvme+tcp://127.77.0.1:4420/nqn.2026-11.invalid.lockstep:beef:disk";
        for (place, is, others) in [
            (format!("{subsystem}/1"), "disk", ["disk/1", "isk"]),
            (format!("{subsystem}/2"), "disk/1", ["disk", "disk/2"]),
            ("nbd://127.77.0.1:10809/disk".to_owned(), "disk", ["disk/1", "dis"]),
            ("nbd://127.77.0.1:10809/disk/0".to_owned(), "disk/0", ["disk/1", "db"]),
            ("nbd+unix:///disk/1?socket=/s".to_owned(), "disk/1", ["disk", "disk/11"]),
        ] {
            assert!(is_of(&place, is), "{place} {is}");
            assert_eq!(others.map(|other| is_of(&place, other)), [false; 2], "{place}");
        }
    }

    #[test]
    fn a_place_that_no_kernel_reaches_or_that_would_say_more_than_a_place_is_refused() {
        for text in [
            "",
            "disk",
            "nbds://127.77.0.1:10809/disk",
            "nbd://somewhere:10809/disk",
            "nbd://127.77.0.1:10809/",
            "nbd+unix:///disk?socket=nbd.sock",
            "nvme+tcp://127.77.0.1:4420/nqn.x",
            "nvme+tcp://127.77.0.1:4420/nqn.x/0",
            "nvme+tcp://127.77.0.1:4420/nqn.x/1/1",
            "nvme+tcp://127.77.0.1:4420/nqn.x,hostid=0/1",
            "nvme+tcp://127.77.0.1:4420/nqn.x\n/1",
        ] {
            assert!(parse_place(text).is_err(), "{text:?}");
        }
    }
}
