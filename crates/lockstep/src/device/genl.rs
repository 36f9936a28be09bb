//! The kernel's NBD client, as its generic netlink family offers it.
//!
//! Facts: layout of messages and of the controller's from `linux/netlink.h` and `linux/genetlink.h`, numbers of the family
//! `nbd` from `linux/nbd-netlink.h`.
//!
//! Not here: which disks there are to be (`nbd`).

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use sys::{Errno, Netlink};

/// How long the kernel may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

const HEAD_BYTES: usize = 16;
const GENERIC_BYTES: usize = 4;

const ERROR: u16 = 2;
const REQUEST_AND_ACK: u16 = 1 | 4;

/// The family that knows the others.
const CONTROLLER: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
const ATTRIBUTES_MAX: u16 = 5;
const GROUPS: u16 = 7;
const GROUP_NAME: u16 = 1;
const GROUP_ID: u16 = 2;

const CONNECT: u8 = 1;
const DISCONNECT: u8 = 2;
const RECONFIGURE: u8 = 3;
const LINK_DEAD: u8 = 4;
const INDEX: u16 = 1;
const SIZE: u16 = 2;
const BLOCK_SIZE: u16 = 3;
const TIMEOUT: u16 = 4;
const FLAGS: u16 = 5;
const SOCKETS: u16 = 7;
const DEAD_TIMEOUT: u16 = 8;
const BACKEND: u16 = 10;
const SOCKET: u16 = 1;
const SOCKET_NUMBER: u16 = 1;

/// Attributes of a message.
#[derive(Debug, Default)]
struct Attributes(Vec<u8>);

impl Attributes {
    fn put(mut self, kind: u16, value: &[u8]) -> Attributes {
        let length = u16::try_from(value.len() + 4).expect("values are short");
        self.0.extend_from_slice(&length.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    fn number(self, kind: u16, value: u32) -> Attributes {
        self.put(kind, &value.to_ne_bytes())
    }

    fn long(self, kind: u16, value: u64) -> Attributes {
        self.put(kind, &value.to_ne_bytes())
    }

    fn text(self, kind: u16, value: &str) -> Attributes {
        self.put(kind, format!("{value}\0").as_bytes())
    }
}

/// Attributes that came: kind and value.
type Read<'a> = Vec<(u16, &'a [u8])>;

/// The attributes in `bytes`. What is cut off ends them.
fn attributes(mut bytes: &[u8]) -> Read<'_> {
    let mut all = Vec::new();
    while let Some((length, kind)) = short(bytes, 0).zip(short(bytes, 2)) {
        let length = usize::from(length);
        let Some(value) = bytes.get(4..length) else { break };
        // The two highest bits say how the value is to be read.
        all.push((kind & 0x3fff, value));
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    all
}

fn value<'a>(all: &[(u16, &'a [u8])], kind: u16) -> Option<&'a [u8]> {
    all.iter().find(|(its, _)| *its == kind).map(|&(_, value)| value)
}

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// A message: family, command, sequence, attributes.
fn message(family: u16, command: u8, sequence: u32, attributes: &Attributes) -> Vec<u8> {
    let length = HEAD_BYTES + GENERIC_BYTES + attributes.0.len();
    let length = u32::try_from(length).expect("messages are short");
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend_from_slice(&family.to_ne_bytes());
    bytes.extend_from_slice(&REQUEST_AND_ACK.to_ne_bytes());
    bytes.extend_from_slice(&sequence.to_ne_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&[command, 1, 0, 0]);
    bytes.extend_from_slice(&attributes.0);
    bytes
}

/// A message that came.
#[derive(Debug, Eq, PartialEq)]
struct Came<'a> {
    family: u16,
    sequence: u32,
    body: &'a [u8],
}

/// The messages in what was received. What is cut off ends them.
fn messages(mut bytes: &[u8]) -> Vec<Came<'_>> {
    let mut all = Vec::new();
    while let Some((length, family)) = number(bytes, 0).zip(short(bytes, 4)) {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let body = bytes.get(HEAD_BYTES..length);
        let (Some(sequence), Some(body)) = (number(bytes, 8), body) else { break };
        all.push(Came { family, sequence, body });
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    all
}

impl Came<'_> {
    /// Command and attributes, if it is of a family.
    fn open(&self) -> Option<(u8, Read<'_>)> {
        Some((*self.body.first()?, attributes(self.body.get(GENERIC_BYTES..)?)))
    }
}

/// The disk of a connection that broke, if that is what the message says.
fn dead(came: &Came<'_>, family: u16) -> Option<u32> {
    let (command, all) = came.open().filter(|_| came.family == family)?;
    (command == LINK_DEAD).then(|| number(value(&all, INDEX)?, 0)).flatten()
}

/// What the kernel is told of a volume.
#[derive(Clone, Debug)]
pub(super) struct Export {
    /// None: a disk that is there keeps the size that it has.
    pub(super) size_bytes: Option<u64>,
    pub(super) block_bytes: u32,
    /// As the protocol numbers them.
    pub(super) flags: u16,
    /// A name by which its disk is found again.
    pub(super) backend: String,
}

/// The family `nbd`.
#[derive(Debug)]
pub(super) struct Family {
    socket: Netlink,
    family: u16,
    group: Option<u32>,
    /// The highest attribute that it knows.
    knows: u32,
    sequence: u32,
}

impl Family {
    /// Looks it up; the kernel has it as long as its module `nbd` is loaded.
    pub(super) fn open() -> Result<Family, Errno> {
        let socket = Netlink::generic()?;
        let mut this = Family { socket, family: CONTROLLER, group: None, knows: 0, sequence: 0 };
        let mut found = None;
        let name = Attributes::default().text(FAMILY_NAME, "nbd");
        this.ask(GET_FAMILY, &name, |all| {
            let knows = value(all, ATTRIBUTES_MAX).and_then(|most| number(most, 0));
            let id = value(all, FAMILY_ID).and_then(|id| short(id, 0));
            found = id.map(|id| (id, group(all), knows.unwrap_or(0)));
        })?;
        (this.family, this.group, this.knows) = found.ok_or(Errno::NOT_FOUND)?;
        Ok(this)
    }

    /// Whether a disk is found again by its name.
    pub(super) fn keeps_names(&self) -> bool {
        self.knows >= u32::from(BACKEND)
    }

    /// Hears from now on of connections that break.
    pub(super) fn listen(&self) -> Result<(), Errno> {
        self.socket.join(self.group.ok_or(Errno::NOT_FOUND)?)
    }

    /// Waits for news: the disk whose connection broke; `None`: nothing within `limit`, or nothing that matters.
    pub(super) fn hear(&self, limit: Duration) -> Result<Option<u32>, Errno> {
        let mut bytes = [0; 4096];
        match self.socket.receive(&mut bytes, limit) {
            Ok(count) => {
                Ok(messages(&bytes[..count]).iter().find_map(|one| dead(one, self.family)))
            }
            Err(Errno::TIMED_OUT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Has the kernel make a disk of a connection that has negotiated; its number.
    pub(super) fn connect(
        &mut self,
        export: &Export,
        socket: BorrowedFd<'_>,
    ) -> Result<u32, Errno> {
        let mut index = None;
        self.ask(CONNECT, &disk(export, socket), |all| {
            index = value(all, INDEX).and_then(|index| number(index, 0));
        })?;
        index.ok_or(Errno::NO_DATA)
    }

    /// Gives a disk a connection instead of one that broke; one that is whole keeps what it has. Its size is set anew if
    /// there is one.
    pub(super) fn reconnect(
        &mut self,
        index: u32,
        export: &Export,
        socket: BorrowedFd<'_>,
    ) -> Result<(), Errno> {
        let told = disk(export, socket).number(INDEX, index);
        self.ask(RECONFIGURE, &told, |_| {})
    }

    /// Ends a disk.
    pub(super) fn disconnect(&mut self, index: u32) -> Result<(), Errno> {
        self.ask(DISCONNECT, &Attributes::default().number(INDEX, index), |_| {})
    }

    /// Asks, hears what comes of it, and waits until the kernel says that this was all.
    fn ask(
        &mut self,
        command: u8,
        attributes: &Attributes,
        mut hear: impl FnMut(&[(u16, &[u8])]),
    ) -> Result<(), Errno> {
        self.sequence += 1;
        self.socket.send(&message(self.family, command, self.sequence, attributes))?;
        let mut bytes = [0; 4096];
        loop {
            let count = self.socket.receive(&mut bytes, ANSWER_LIMIT)?;
            for came in messages(&bytes[..count]) {
                if came.sequence != self.sequence {
                    continue;
                }
                if came.family == ERROR {
                    // Zero is good; else an error number below zero.
                    return match number(came.body, 0).map(u32::cast_signed) {
                        Some(0) => Ok(()),
                        Some(negative) => Err(Errno(negative.wrapping_neg())),
                        None => Err(Errno::NO_DATA),
                    };
                }
                if let Some((_, all)) = came.open() {
                    hear(&all);
                }
            }
        }
    }
}

/// The group that hears of connections that break.
fn group(all: &[(u16, &[u8])]) -> Option<u32> {
    let groups = attributes(value(all, GROUPS)?);
    groups.iter().find_map(|(_, group)| {
        let group = attributes(group);
        let name = value(&group, GROUP_NAME)?;
        let id = number(value(&group, GROUP_ID)?, 0)?;
        (name.strip_suffix(b"\0") == Some(b"nbd_mc_group")).then_some(id)
    })
}

/// Seconds after which a request is sent anew, if its connection broke meanwhile: the kernel does it no sooner. A connection
/// on which a request had no answer for so long is given up.
const REQUEST_SECONDS: u64 = 10;

/// Seconds for which requests wait for a new connection: never do they fail for want of one.
const WAIT_SECONDS: u64 = 366 * 24 * 3600;

fn disk(export: &Export, socket: BorrowedFd<'_>) -> Attributes {
    let descriptor = socket.as_raw_fd().cast_unsigned();
    let socket = Attributes::default().number(SOCKET_NUMBER, descriptor);
    let sockets = Attributes::default().put(SOCKET | NESTED, &socket.0);
    let size = Attributes::default();
    export
        .size_bytes
        .map_or_else(Attributes::default, |bytes| size.long(SIZE, bytes))
        .long(BLOCK_SIZE, u64::from(export.block_bytes))
        .long(TIMEOUT, REQUEST_SECONDS)
        .long(FLAGS, u64::from(export.flags))
        .long(DEAD_TIMEOUT, WAIT_SECONDS)
        .put(SOCKETS | NESTED, &sockets.0)
        .text(BACKEND, &export.backend)
}

/// The value is made of attributes.
const NESTED: u16 = 0x8000;

#[cfg(test)]
mod tests {
    use super::{
        Attributes, BACKEND, BLOCK_SIZE, CONTROLLER, Errno, Export, FAMILY_ID, Family, GROUP_ID,
        GROUP_NAME, GROUPS, INDEX, LINK_DEAD, NESTED, SIZE, attributes, dead, disk, group, message,
        messages, number, value,
    };
    use std::os::fd::AsFd;

    #[test]
    fn attributes_are_read_as_they_are_written_whatever_their_lengths() {
        let written = Attributes::default().number(1, 7).text(2, "nbd").put(3, &[]).long(4, 9);
        let read = attributes(&written.0);
        assert_eq!(written.0.len() % 4, 0);
        assert_eq!(value(&read, 1).and_then(|bytes| number(bytes, 0)), Some(7));
        assert_eq!(value(&read, 2), Some(b"nbd\0".as_slice()));
        assert_eq!(value(&read, 3), Some([].as_slice()));
        assert_eq!(value(&read, 4), Some(9u64.to_ne_bytes().as_slice()));
        assert_eq!(value(&read, 5), None);
    }

    #[test]
    fn what_is_cut_off_or_says_a_length_that_cannot_be_ends_what_is_read() {
        let whole = message(CONTROLLER, 3, 1, &Attributes::default().text(2, "nbd"));
        assert_eq!(messages(&whole).len(), 1);
        for end in 0..whole.len() {
            assert!(messages(&whole[..end]).is_empty(), "{end}");
        }
        for length in [0u32, 3, 15, u32::MAX] {
            let mut odd = whole.clone();
            odd[..4].copy_from_slice(&length.to_ne_bytes());
            assert!(messages(&odd).is_empty(), "{length}");
        }
        assert!(attributes(&[3, 0, 1, 0]).is_empty());
        assert!(attributes(&[200, 0, 1, 0, 5]).is_empty());
    }

    #[test]
    fn the_group_is_found_by_its_name() {
        let one =
            |name: &str, id| Attributes::default().text(GROUP_NAME, name).number(GROUP_ID, id);
        let groups = Attributes::default()
            .put(1 | NESTED, &one("other", 3).0)
            .put(2 | NESTED, &one("nbd_mc_group", 40).0);
        let family = Attributes::default().put(FAMILY_ID, &[9, 0]).put(GROUPS, &groups.0);
        assert_eq!(group(&attributes(&family.0)), Some(40));
        assert_eq!(group(&[]), None);
    }

    #[test]
    fn the_kernel_answers_whether_it_has_the_family_or_not() {
        match Family::open() {
            Ok(family) => assert!(family.group.is_some()),
            Err(errno) => assert_eq!(errno, Errno::NOT_FOUND),
        }
    }

    #[test]
    fn a_disk_is_told_a_size_only_where_it_is_to_have_that() {
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        for size_bytes in [Some(1 << 20), None] {
            let backend = "lockstep:web/0:b2".to_owned();
            let export = Export { size_bytes, block_bytes: 4096, flags: 1, backend };
            let told = disk(&export, socket.as_fd()).0;
            let told = attributes(&told);
            assert_eq!(
                value(&told, SIZE),
                size_bytes.map(u64::to_ne_bytes).as_ref().map(|of| &of[..])
            );
            assert!(value(&told, BLOCK_SIZE).is_some() && value(&told, BACKEND).is_some());
        }
    }

    #[test]
    fn a_broken_connection_is_told_by_the_number_of_its_disk() {
        let news = message(30, LINK_DEAD, 0, &Attributes::default().number(INDEX, 2));
        let all = messages(&news);
        assert_eq!(dead(&all[0], 30), Some(2));
        assert_eq!(dead(&all[0], 31), None);
        let other = message(30, LINK_DEAD + 1, 0, &Attributes::default().number(INDEX, 2));
        assert_eq!(dead(&messages(&other)[0], 30), None);
    }
}
