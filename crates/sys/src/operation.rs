//! Operations in flight: what each keeps alive, and its next step for an engine.
//!
//! An [`Operation`] is what a caller asked for. It takes one or more [`Step`]s, each one kernel
//! call; short reads and writes lead to a further step. Engines know only steps.

use std::os::fd::RawFd;

use base::Duration;

use crate::buffer::{Buffer, Piece};
use crate::descriptor::{Descriptor, File, Listener, Socket};
use crate::socket::RawAddress;
use crate::streams::SendBatch;

/// How long it may take until an engine tells that a send went at once.
pub(crate) const QUIET: Duration = Duration::from_millis(10);

/// One kernel call, described by plain values. Pointers lead into the operation that the step
/// belongs to, which stays in its slot until the step completes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// Accept connections, again and again until the first failure.
    Accept,
    Connect {
        address: *const libc::sockaddr,
        length: libc::socklen_t,
    },
    /// Receive at most this much from a socket.
    Receive {
        at: *mut u8,
        length: u32,
    },
    /// Send what the message lists. `at_once`: its bytes, if those that find no room now may be left for another step;
    /// the engine may then tell that all went only when something else ends, or after [`QUIET`].
    Send {
        message: *const libc::msghdr,
        at_once: Option<i32>,
    },
    /// Wait until there is something to read.
    Ready,
    /// Read from something without offsets, once it is readable.
    ReadStream {
        at: *mut u8,
        length: u32,
    },
    Read {
        at: *mut u8,
        length: u32,
        offset: u64,
    },
    Write {
        at: *const u8,
        length: u32,
        offset: u64,
        durable: bool,
    },
    /// Make the data of a file durable.
    Sync,
    /// `fallocate(2)` with this mode.
    Space {
        mode: i32,
        offset: u64,
        length: u64,
    },
}

/// A step that is to be started, and on what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    pub(crate) slot: usize,
    pub(crate) fd: RawFd,
    /// Of the descriptor, so that an engine sees when a number means another file.
    pub(crate) identity: u64,
    pub(crate) step: Step,
}

/// A step that the kernel finished.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub(crate) slot: usize,
    /// A count or a descriptor; an error number negated.
    pub(crate) result: i32,
    /// The step goes on and will complete again.
    pub(crate) more: bool,
}

/// What a caller asked for and has not been answered yet.
pub(crate) enum Operation {
    Accept {
        token: u64,
        listener: Listener,
        /// It was begun once more, in a way that older kernels know.
        again: bool,
    },
    Connect {
        token: u64,
        socket: Socket,
        address: Box<RawAddress>,
    },
    Receive {
        token: u64,
        socket: Socket,
        buffer: Buffer,
        at: usize,
        end: usize,
        done: usize,
        full: bool,
    },
    /// All that was queued on one socket; the queue itself is in `streams`.
    Send {
        socket: Socket,
        batch: Box<SendBatch>,
        /// It waits for room if there is none.
        patient: bool,
    },
    /// Waits until there is something to read, and reads nothing.
    Watch {
        token: u64,
        source: Descriptor,
    },
    Signals {
        token: u64,
        source: Descriptor,
        record: Box<libc::signalfd_siginfo>,
    },
    Read {
        token: u64,
        file: File,
        buffer: Buffer,
        at: usize,
        length: usize,
        offset: u64,
        done: usize,
    },
    Write {
        token: u64,
        file: File,
        piece: Piece,
        offset: u64,
        done: usize,
        durable: bool,
    },
    Sync {
        token: u64,
        file: File,
    },
    Zero(Box<Zeroing>),
}

/// A zeroing under way: the cheapest way that works is found by trying.
pub(crate) struct Zeroing {
    pub(crate) token: u64,
    pub(crate) file: File,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    /// Bytes written so far in [`ZeroStage::Write`].
    pub(crate) done: u64,
    pub(crate) durable: bool,
    pub(crate) stage: ZeroStage,
    /// Zeroes to write from.
    pub(crate) zeroes: Buffer,
}

/// Ways to zero, in the order they are tried, and the flush after.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ZeroStage {
    /// Give the space back.
    Punch,
    /// Let the file system or device write zeroes.
    ZeroRange,
    /// Write them ourselves.
    Write,
    /// Make them durable.
    Sync,
}

fn count(bytes: usize) -> u32 {
    // One kernel call moves less than 2 GiB; longer operations take several steps.
    u32::try_from(bytes.min(1 << 30)).expect("2^30 fits in 32 bits")
}

fn position(offset: u64, done: usize) -> u64 {
    offset + u64::try_from(done).expect("a length in memory fits in 64 bits")
}

/// An offset as the kernel is told it. One beyond what it can have is a negative one to it, which it refuses, but for -1: that
/// is wherever the file was left by what came before.
pub(crate) fn known_place(offset: u64) -> u64 {
    const NEGATIVE: u64 = 1 << 63;
    if offset < NEGATIVE { offset } else { NEGATIVE }
}

impl Operation {
    /// Whether it is one on a file.
    pub(crate) fn is_on_file(&self) -> bool {
        matches!(
            self,
            Operation::Read { .. }
                | Operation::Write { .. }
                | Operation::Sync { .. }
                | Operation::Zero(_)
        )
    }

    /// The descriptor it works on.
    pub(crate) fn descriptor(&self) -> &Descriptor {
        match self {
            Operation::Accept { listener, .. } => &listener.0,
            Operation::Connect { socket, .. }
            | Operation::Receive { socket, .. }
            | Operation::Send { socket, .. } => &socket.0,
            Operation::Signals { source, .. } | Operation::Watch { source, .. } => source,
            Operation::Read { file, .. }
            | Operation::Write { file, .. }
            | Operation::Sync { file, .. } => &file.0,
            Operation::Zero(zeroing) => &zeroing.file.0,
        }
    }

    /// Its next step.
    pub(crate) fn step(&mut self) -> Step {
        match self {
            Operation::Accept { .. } => Step::Accept,
            Operation::Connect { address, .. } => {
                Step::Connect { address: address.pointer(), length: address.length }
            }
            Operation::Receive { buffer, at, end, done, .. } => Step::Receive {
                at: buffer.address().wrapping_add(*at + *done),
                length: count(*end - *at - *done),
            },
            Operation::Send { batch, patient, .. } => {
                Step::Send { message: batch.message(), at_once: batch.at_once(*patient) }
            }
            Operation::Watch { .. } => Step::Ready,
            Operation::Signals { record, .. } => Step::ReadStream {
                at: (&raw mut **record).cast(),
                length: count(size_of::<libc::signalfd_siginfo>()),
            },
            Operation::Read { buffer, at, length, offset, done, .. } => Step::Read {
                at: buffer.address().wrapping_add(*at + *done),
                length: count(*length - *done),
                offset: position(*offset, *done),
            },
            Operation::Write { piece, offset, done, durable, .. } => {
                let rest = &piece.as_slice()[*done..];
                Step::Write {
                    at: rest.as_ptr(),
                    length: count(rest.len()),
                    offset: position(*offset, *done),
                    durable: *durable,
                }
            }
            Operation::Sync { .. } => Step::Sync,
            Operation::Zero(zeroing) => zeroing.step(),
        }
    }
}

impl Zeroing {
    fn step(&self) -> Step {
        let keep = libc::FALLOC_FL_KEEP_SIZE;
        let space = |mode| Step::Space { mode, offset: self.offset, length: self.length };
        match self.stage {
            ZeroStage::Punch => space(keep | libc::FALLOC_FL_PUNCH_HOLE),
            ZeroStage::ZeroRange => space(keep | libc::FALLOC_FL_ZERO_RANGE),
            ZeroStage::Write => {
                let rest = usize::try_from(self.length - self.done).unwrap_or(usize::MAX);
                Step::Write {
                    at: self.zeroes.as_ptr(),
                    length: count(rest.min(self.zeroes.len())),
                    offset: self.offset + self.done,
                    durable: false,
                }
            }
            ZeroStage::Sync => Step::Sync,
        }
    }

    /// What to do after the current stage ended with `result`: `None` when there is a further
    /// step, the final result otherwise.
    pub(crate) fn advance(&mut self, result: i32) -> Option<i32> {
        let refused = result == -libc::EOPNOTSUPP || result == -libc::ENOSYS;
        match self.stage {
            // A signal came first: the same again.
            _ if result == -libc::EINTR => {}
            ZeroStage::Punch if refused => self.stage = ZeroStage::ZeroRange,
            ZeroStage::ZeroRange if refused => self.stage = ZeroStage::Write,
            _ if result < 0 => return Some(result),
            ZeroStage::Sync => return Some(0),
            ZeroStage::Write if result == 0 => return Some(-libc::EIO),
            ZeroStage::Write => {
                self.done += u64::try_from(result).expect("checked not negative");
                if self.done >= self.length {
                    return self.settle();
                }
            }
            ZeroStage::Punch | ZeroStage::ZeroRange => return self.settle(),
        }
        None
    }

    fn settle(&mut self) -> Option<i32> {
        if self.durable {
            self.stage = ZeroStage::Sync;
            return None;
        }
        Some(0)
    }
}
