//! The engine where io_uring is forbidden: sockets by epoll, files by a few threads.
//!
//! A step on a socket is tried at once, without blocking, in the turn after it was queued. If it
//! would block it waits for the kernel to report the socket ready (edge-triggered, registered once
//! per descriptor) and is tried again.
//!
//! Not here: what an operation is, short writes, order of sends (`settle`, `streams`).

use std::collections::VecDeque;

use base::Duration;

use crate::descriptor::Descriptor;
use crate::errno::{Errno, check, check_count};
use crate::operation::{Completion, Start, Step};
use crate::wake::Waker;
use crate::workers::{WORKERS, Workers};

/// Readiness reports taken from the kernel at once.
const REPORTS: usize = 256;

/// Connections accepted from one listener before others have their turn.
const ACCEPTS_IN_TURN: usize = 64;

/// What stands for the waker where a report names a descriptor number.
const WAKE: u64 = u64::MAX;

/// Steps that wait for one descriptor.
#[derive(Default)]
struct Waits {
    /// Identity of the descriptor the kernel watches under this number; 0 for none.
    watched: u64,
    inward: Vec<Start>,
    outward: Vec<Start>,
}

pub(crate) struct Epoll {
    epoll: Descriptor,
    waker: Waker,
    workers: Workers,
    /// Steps to try in the next turn.
    fresh: VecDeque<Start>,
    /// By descriptor number.
    waits: Vec<Waits>,
    /// Cancelled since the last turn.
    cancelled: Vec<Completion>,
    reports: Vec<libc::epoll_event>,
}

impl Epoll {
    pub(crate) fn new(operations_max: usize) -> Result<Epoll, Errno> {
        // SAFETY: plain call without pointers.
        let number = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        let epoll = Descriptor::adopt(number);
        let waker = Waker::new(true)?;
        watch(&epoll, waker.signal().number(), libc::EPOLLIN.cast_unsigned(), WAKE)?;
        let workers = Workers::new(waker.clone(), operations_max)?;
        Ok(Epoll {
            epoll,
            waker,
            workers,
            fresh: VecDeque::new(),
            waits: Vec::new(),
            cancelled: Vec::new(),
            reports: vec![libc::epoll_event { events: 0, u64: 0 }; REPORTS],
        })
    }

    pub(crate) fn describe(&self) -> String {
        format!("epoll, {WORKERS} threads for files of each disk")
    }

    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    pub(crate) fn start(&mut self, start: Start) {
        match start.step {
            Step::Read { .. } | Step::Write { .. } | Step::Sync | Step::Space { .. } => {
                self.workers.push(start);
            }
            _ => self.fresh.push_back(start),
        }
    }

    /// Ends a step that waits; one that a thread works on ends by itself.
    pub(crate) fn cancel(&mut self, slot: usize, descriptor: &Descriptor) {
        let fresh = self.fresh.len();
        self.fresh.retain(|start| start.slot != slot);
        let mut found = self.fresh.len() < fresh;
        if let Some(waits) = self.waits.get_mut(descriptor.index()) {
            let count = waits.inward.len() + waits.outward.len();
            waits.inward.retain(|start| start.slot != slot);
            waits.outward.retain(|start| start.slot != slot);
            found |= waits.inward.len() + waits.outward.len() < count;
        }
        if found {
            self.cancelled.push(Completion { slot, result: -libc::ECANCELED, more: false });
        }
    }

    /// Tries everything fresh, waits if nothing has completed yet, and collects completions.
    pub(crate) fn turn(
        &mut self,
        limit: Option<Duration>,
        done: &mut Vec<Completion>,
    ) -> Result<(), Errno> {
        done.append(&mut self.cancelled);
        for start in std::mem::take(&mut self.fresh) {
            self.attempt(start, done)?;
        }
        let at_once = !done.is_empty() || !self.fresh.is_empty();
        let count = self.await_reports(if at_once { Some(Duration(0)) } else { limit })?;
        for index in 0..count {
            let report = self.reports[index];
            self.act_on(report, done)?;
        }
        self.workers.collect(done);
        Ok(())
    }

    fn await_reports(&mut self, limit: Option<Duration>) -> Result<usize, Errno> {
        let milliseconds = match limit {
            None => -1,
            // Rounded up, so that a wait never ends just before its time and spins.
            Some(limit) => i32::try_from(limit.0.div_ceil(1_000_000)).unwrap_or(i32::MAX),
        };
        let room = i32::try_from(self.reports.len()).expect("a constant below 2^31");
        // SAFETY: the kernel fills at most `room` entries of a vector that has as many.
        let answer = check(unsafe {
            libc::epoll_wait(self.epoll.number(), self.reports.as_mut_ptr(), room, milliseconds)
        });
        match answer {
            Ok(count) => Ok(usize::try_from(count).expect("checked not negative")),
            Err(Errno(libc::EINTR)) => Ok(0),
            Err(errno) => Err(errno),
        }
    }

    fn act_on(
        &mut self,
        report: libc::epoll_event,
        done: &mut Vec<Completion>,
    ) -> Result<(), Errno> {
        let (events, data) = (report.events, report.u64);
        if data == WAKE {
            let mut count = [0; 8];
            // SAFETY: the kernel fills at most eight bytes of a local array.
            unsafe {
                libc::read(self.waker.signal().number(), count.as_mut_ptr().cast(), count.len())
            };
            self.waker.seen();
            return Ok(());
        }
        let has = |flags: i32| events & flags.cast_unsigned() != 0;
        let ended = has(libc::EPOLLERR | libc::EPOLLHUP);
        let index = usize::try_from(data).expect("a descriptor number");
        let waits = &mut self.waits[index];
        let mut ready = Vec::new();
        if ended || has(libc::EPOLLIN | libc::EPOLLRDHUP) {
            ready.append(&mut waits.inward);
        }
        if ended || has(libc::EPOLLOUT) {
            ready.append(&mut waits.outward);
        }
        for start in ready {
            self.attempt(start, done)?;
        }
        Ok(())
    }

    /// Tries a step without blocking.
    fn attempt(&mut self, start: Start, done: &mut Vec<Completion>) -> Result<(), Errno> {
        let fd = start.fd;
        let answer = match start.step {
            Step::Accept => return self.attempt_accept(start, done),
            Step::Connect { address, length } => attempt_connect(fd, address, length),
            Step::Receive { at, length } => {
                let length = usize::try_from(length).expect("32 bits fit");
                // SAFETY: the operation owns `length` bytes there, alone, until the step completes.
                check_count(unsafe { libc::recv(fd, at.cast(), length, libc::MSG_DONTWAIT) })
            }
            Step::Send { message, .. } => {
                let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
                // SAFETY: the message and what it lists stay with the operation, unchanged.
                check_count(unsafe { libc::sendmsg(fd, message, flags) })
            }
            Step::Ready => look(fd),
            Step::ReadStream { at, length } => {
                let length = usize::try_from(length).expect("32 bits fit");
                // SAFETY: as for `Receive`.
                check_count(unsafe { libc::read(fd, at.cast(), length) })
            }
            Step::Read { .. } | Step::Write { .. } | Step::Sync | Step::Space { .. } => {
                unreachable!("files are for the workers")
            }
        };
        match answer {
            Err(Errno(libc::EAGAIN)) if !is_refusal(start) => self.park(start),
            Err(Errno(libc::EINPROGRESS)) => self.park(start),
            answer => {
                done.push(Completion { slot: start.slot, result: encode(answer), more: false });
                Ok(())
            }
        }
    }

    fn attempt_accept(&mut self, start: Start, done: &mut Vec<Completion>) -> Result<(), Errno> {
        set_nonblocking(start.fd, true);
        for _ in 0..ACCEPTS_IN_TURN {
            let none = std::ptr::null_mut();
            // SAFETY: no address is asked for, so no pointer is used.
            let answer = check(unsafe {
                libc::accept4(start.fd, none, std::ptr::null_mut(), libc::SOCK_CLOEXEC)
            });
            match answer {
                Ok(number) => {
                    done.push(Completion { slot: start.slot, result: number, more: true });
                }
                Err(Errno(libc::EAGAIN)) => return self.park(start),
                Err(errno) => {
                    done.push(Completion { slot: start.slot, result: -errno.0, more: false });
                    return Ok(());
                }
            }
        }
        self.fresh.push_back(start);
        Ok(())
    }

    /// Lets a step wait until its descriptor is ready.
    fn park(&mut self, start: Start) -> Result<(), Errno> {
        let index = usize::try_from(start.fd).expect("an open descriptor is not negative");
        if index >= self.waits.len() {
            self.waits.resize_with(index + 1, Waits::default);
        }
        let waits = &mut self.waits[index];
        if waits.watched != start.identity {
            let interest = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;
            let data = u64::try_from(index).expect("64 bits fit");
            watch(&self.epoll, start.fd, interest.cast_unsigned(), data)?;
            waits.watched = start.identity;
        }
        match start.step {
            Step::Send { .. } | Step::Connect { .. } => waits.outward.push(start),
            _ => waits.inward.push(start),
        }
        Ok(())
    }
}

/// Whether there is something to read; `EAGAIN` if not.
fn look(fd: i32) -> Result<usize, Errno> {
    let mut polled = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid entry, which outlives the call.
    let count = check(unsafe { libc::poll(&raw mut polled, 1, 0) })?;
    if count == 0 { Err(Errno::AGAIN) } else { Ok(0) }
}

fn encode(answer: Result<usize, Errno>) -> i32 {
    match answer {
        Ok(count) => i32::try_from(count).expect("no step moves 2 GiB"),
        Err(errno) => -errno.0,
    }
}

/// A Unix socket whose listener's queue is full answers EAGAIN and will never report readiness.
fn is_refusal(start: Start) -> bool {
    matches!(start.step, Step::Connect { .. })
}

fn attempt_connect(
    fd: i32,
    address: *const libc::sockaddr,
    length: libc::socklen_t,
) -> Result<usize, Errno> {
    set_nonblocking(fd, true);
    // SAFETY: the operation owns the address until the step completes.
    let answer = match check(unsafe { libc::connect(fd, address, length) }) {
        Ok(_) | Err(Errno(libc::EISCONN)) => Ok(0),
        Err(Errno(libc::EALREADY | libc::EINPROGRESS)) => return Err(Errno(libc::EINPROGRESS)),
        Err(errno) => Err(errno),
    };
    set_nonblocking(fd, false);
    answer
}

/// Cannot fail for an open descriptor.
fn set_nonblocking(fd: i32, on: bool) {
    // SAFETY: plain calls without pointers.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        let flags = if on { flags | libc::O_NONBLOCK } else { flags & !libc::O_NONBLOCK };
        libc::fcntl(fd, libc::F_SETFL, flags);
    }
}

/// Lets the kernel report on a descriptor, whether or not it did before.
fn watch(epoll: &Descriptor, fd: i32, events: u32, data: u64) -> Result<(), Errno> {
    let mut event = libc::epoll_event { events, u64: data };
    let mut control = |operation| {
        // SAFETY: the kernel reads a local structure.
        check(unsafe { libc::epoll_ctl(epoll.number(), operation, fd, &raw mut event) })
    };
    match control(libc::EPOLL_CTL_ADD) {
        Err(Errno(libc::EEXIST)) => control(libc::EPOLL_CTL_MOD).map(drop),
        other => other.map(drop),
    }
}
