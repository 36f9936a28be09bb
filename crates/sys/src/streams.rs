//! Sends waiting on each socket, in order.
//!
//! A socket has at most one send in the kernel, because two could interleave their bytes. What is
//! queued meanwhile, and what is queued between two waits, goes out together in the next one.
//!
//! What always holds: pieces stay in the queue, unmoved in memory, until their bytes are sent.

use std::collections::VecDeque;

use crate::buffer::Piece;

/// Pieces in one send at most; the kernel takes 1024, but cache lines are better spent on bytes.
const PIECES_IN_SEND: usize = 128;

/// Bytes in one send at most, so that answers to small requests wait behind at most this much.
const BYTES_IN_SEND: usize = 4 << 20;

/// Bytes in a send at most that may be told late: so much memory may be free a moment before anybody knows.
const BYTES_AT_ONCE: usize = 64 << 10;

/// One send as its caller asked for it.
struct Queued {
    token: u64,
    /// Bytes not sent yet.
    left: usize,
    total: usize,
}

/// What is to be sent on one socket.
#[derive(Default)]
pub(crate) struct SendQueue {
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that are sent already.
    first_done: usize,
    sends: VecDeque<Queued>,
}

impl SendQueue {
    pub(crate) fn push(&mut self, token: u64, pieces: impl IntoIterator<Item = Piece>) {
        let mut total = 0;
        for piece in pieces.into_iter().filter(|piece| !piece.is_empty()) {
            total += piece.len();
            self.pieces.push_back(piece);
        }
        self.sends.push_back(Queued { token, left: total, total });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sends.is_empty()
    }

    /// Notes that `count` bytes were sent; `answer` is called for each send that is complete.
    pub(crate) fn sent(&mut self, mut count: usize, mut answer: impl FnMut(u64, usize)) {
        let mut bytes = count;
        while bytes > 0 {
            let first = self.pieces.front().expect("the kernel sends no more than it was given");
            let rest = first.len() - self.first_done;
            if bytes < rest {
                self.first_done += bytes;
                break;
            }
            bytes -= rest;
            self.first_done = 0;
            self.pieces.pop_front();
        }
        while let Some(send) = self.sends.front_mut() {
            let part = count.min(send.left);
            send.left -= part;
            count -= part;
            if send.left > 0 {
                break;
            }
            answer(send.token, send.total);
            self.sends.pop_front();
        }
    }

    /// Forgets everything; `answer` is called with the token of each send that was not complete.
    pub(crate) fn fail(&mut self, mut answer: impl FnMut(u64)) {
        self.pieces.clear();
        self.first_done = 0;
        for send in self.sends.drain(..) {
            answer(send.token);
        }
    }
}

/// The list that the kernel reads while a send is in flight. Reused from send to send.
pub(crate) struct SendBatch {
    vectors: Vec<libc::iovec>,
    header: libc::msghdr,
    bytes: usize,
    /// Nothing is queued behind these bytes.
    all: bool,
}

impl SendBatch {
    pub(crate) fn new() -> Box<SendBatch> {
        // SAFETY: `msghdr` is plain data for which all zeroes is the empty message.
        let header = unsafe { std::mem::zeroed() };
        let vectors = Vec::with_capacity(PIECES_IN_SEND);
        Box::new(SendBatch { vectors, header, bytes: 0, all: false })
    }

    /// Lists the first bytes of the queue. The queue must keep its pieces until the send is done.
    pub(crate) fn fill(&mut self, queue: &SendQueue) {
        self.vectors.clear();
        let mut skip = queue.first_done;
        let mut bytes = 0;
        for piece in queue.pieces.iter().take(PIECES_IN_SEND) {
            let rest = &piece.as_slice()[skip..];
            skip = 0;
            self.vectors.push(libc::iovec {
                iov_base: rest.as_ptr().cast_mut().cast(),
                iov_len: rest.len(),
            });
            bytes += rest.len();
            if bytes >= BYTES_IN_SEND {
                break;
            }
        }
        self.header.msg_iov = self.vectors.as_mut_ptr();
        self.header.msg_iovlen = self.vectors.len() as _;
        self.bytes = bytes;
        self.all = self.vectors.len() == queue.pieces.len();
    }

    /// How many bytes these are, if they are few, nobody has to wait for room, and nothing waits for their end.
    pub(crate) fn at_once(&self, patient: bool) -> Option<i32> {
        let may = !patient && self.all && self.bytes <= BYTES_AT_ONCE;
        i32::try_from(self.bytes).ok().filter(|_| may)
    }

    pub(crate) fn message(&self) -> *const libc::msghdr {
        &raw const self.header
    }
}
