//! What a front end or its machine did wrong.

use core::fmt;

/// Why a front end is sent away.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    /// Its header is none of this version.
    Header,
    /// A message is longer or shorter than its kind.
    Length(u32),
    /// A message that was not offered.
    Unknown(u32),
    /// Not as many descriptors came with a message as belong to it.
    Descriptors(u32),
    /// A descriptor is none of the kind that belongs there.
    Kind(u32),
    /// It wants what was not offered.
    Features,
    /// It names a queue that there is not.
    Queue(u32),
    /// A ring's size is no power of two, or too large.
    RingSize(u32),
    /// The memory that it shares is none: a region is empty, overlaps another, or there are too many.
    Regions,
    /// A region is not in the file that came with it, or cannot be mapped.
    Mapping,
    /// A region is a file on a disk, which might keep whoever reads it waiting.
    NoMemory,
    /// An address is in no region.
    Address(u64),
    /// A ring's parts lie askew.
    Alignment(u64),
    /// The machine gave more requests than its ring holds.
    Available(u16),
    /// A descriptor's number is beyond its table.
    Descriptor(u16),
    /// A chain of descriptors is longer than it may be, or goes in a circle.
    Chain,
    /// A descriptor is empty, or a table of them has a size that is none.
    Size(u32),
    /// A table of descriptors, in a table, or where it was not offered.
    Indirect,
    /// What is to be read comes after what is to be written.
    Order,
    /// A request is open that is given again.
    Twice(u16),
    /// A request without a header, or without a place for its status.
    Request,
    /// The record of unanswered requests is none of this volume's.
    Inflight,
    /// Its memory was taken away.
    Gone,
    /// It does not take what it is told.
    Deaf,
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Header => write!(out, "a message of another version"),
            Fault::Length(kind) => write!(out, "message {kind} has a wrong length"),
            Fault::Unknown(kind) => write!(out, "message {kind} was not offered"),
            Fault::Descriptors(kind) => {
                write!(out, "message {kind} came with too few or too many descriptors")
            }
            Fault::Kind(kind) => write!(out, "the descriptor of message {kind} is of another kind"),
            Fault::Features => write!(out, "it wants features that were not offered"),
            Fault::Queue(queue) => write!(out, "there is no queue {queue}"),
            Fault::RingSize(size) => write!(out, "a ring cannot have {size} places"),
            Fault::Regions => write!(out, "the table of its memory is none"),
            Fault::Mapping => write!(out, "a region of its memory cannot be mapped"),
            Fault::NoMemory => write!(
                out,
                "a region of its memory is a file that is none: give it a memfd, or a file in /dev/shm or of large pages"
            ),
            Fault::Address(address) => write!(out, "address {address:#x} is not in its memory"),
            Fault::Alignment(address) => write!(out, "address {address:#x} of a ring is askew"),
            Fault::Available(count) => write!(out, "{count} requests are more than a ring holds"),
            Fault::Descriptor(number) => write!(out, "there is no descriptor {number}"),
            Fault::Chain => write!(out, "a chain of descriptors has no end"),
            Fault::Size(bytes) => write!(out, "a descriptor of {bytes} bytes"),
            Fault::Indirect => write!(out, "a table of descriptors where none may be"),
            Fault::Order => write!(out, "a descriptor to read comes after one to write"),
            Fault::Twice(head) => write!(out, "request {head} is open, and was given again"),
            Fault::Request => write!(out, "a request without header or status"),
            Fault::Inflight => write!(out, "the record of open requests is of something else"),
            Fault::Gone => write!(out, "its memory cannot be reached any more"),
            Fault::Deaf => write!(out, "it does not take what it is told"),
        }
    }
}

impl core::error::Error for Fault {}
