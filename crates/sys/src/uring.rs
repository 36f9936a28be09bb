//! The engine on io_uring: steps become entries of a shared ring.
//!
//! A turn is one `io_uring_enter`: it submits everything queued and waits. Kernel work for
//! completions runs only inside it where the kernel can (6.1), so nothing interrupts the thread.
//! What each kernel offers is probed, never guessed by version.
//!
//! Not here: what an operation is, short writes, order of sends (`settle`, `streams`).

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use base::Duration;
use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, cqueue, opcode, squeue};

use crate::errno::Errno;
use crate::operation::{Completion, QUIET, Start, Step, known_place};
use crate::wake::Waker;

/// Marks the completion of the read by which wakers end a wait.
const WAKE: u64 = u64::MAX;
/// Marks the answer to a cancel, which nobody awaits.
const CANCEL: u64 = u64::MAX - 1;

/// Marks what was only tried, when the ring was made.
const PROBE: u64 = u64::MAX - 2;

/// Completions the kernel has room for, as a multiple of submissions: many connections at once.
const COMPLETIONS_PER_ENTRY: u32 = 4;

/// How a send goes that may not wait: all of it, or it has failed.
const QUIETLY: libc::c_int = libc::MSG_NOSIGNAL | libc::MSG_WAITALL | libc::MSG_DONTWAIT;

/// Threads are added in such steps: the kernel is told seldom.
const SPARE_STEP: usize = 64;

pub(crate) struct Uring {
    ring: IoUring,
    words: &'static str,
    /// What found no room in the submission ring.
    backlog: VecDeque<squeue::Entry>,
    waker: Waker,
    /// Where the kernel puts the wakers' count. Never freed, as the read outlives the ring for a
    /// moment when that is closed.
    woken: &'static mut [u8; 8],
    armed: bool,
    multishot: bool,
    /// The kernel keeps to itself that a send ended well, and tells of one that did not how far it came.
    skips: bool,
    /// Sends of which the kernel says nothing if all bytes went at once: slot, and bytes. Whether they did is known once they
    /// are submitted.
    quiet: Vec<(usize, i32)>,
    /// Threads that the kernel has at most for requests that block on files, all disks together, by itself: a few for each core. 0
    /// where it does not tell (before Linux 5.15).
    threads: u32,
    /// How many more it may have now.
    spare: u32,
}

impl Uring {
    pub(crate) fn new(entries: u32) -> Result<Uring, Errno> {
        let (mut ring, words) = build(entries)?;
        let skips = skips(&mut ring);
        if !ring.submission().is_empty() {
            // What was tried would be sent on whatever has its number then.
            return Err(Errno::AGAIN);
        }
        if !lacking(&ring)?.is_empty() {
            return Err(Errno::NOT_SUPPORTED);
        }
        // Blocking, as a non-blocking one would answer at once instead of waiting.
        let waker = Waker::new(false)?;
        let woken = Box::leak(Box::new([0; 8]));
        // Zeroes ask.
        let mut limits = [0; 2];
        let told = ring.submitter().register_iowq_max_workers(&mut limits);
        Ok(Uring {
            threads: if told.is_ok() { limits[0] } else { 0 },
            spare: 0,
            skips,
            ring,
            words,
            backlog: VecDeque::new(),
            waker,
            woken,
            armed: false,
            multishot: true,
            quiet: Vec::new(),
        })
    }

    pub(crate) fn describe(&self) -> String {
        self.words.to_owned()
    }

    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Falls back to one accept at a time.
    pub(crate) fn accept_plainly(&mut self) {
        self.multishot = false;
    }

    pub(crate) fn start(&mut self, start: Start) {
        let data = u64::try_from(start.slot).expect("slots are few");
        let mut entry = self.entry(start).user_data(data);
        if self.skips
            && let Step::Send { at_once: Some(bytes), .. } = start.step
        {
            entry = entry.flags(squeue::Flags::SKIP_SUCCESS);
            self.quiet.push((start.slot, bytes));
        }
        self.push(entry);
    }

    pub(crate) fn cancel(&mut self, slot: usize) {
        let data = u64::try_from(slot).expect("slots are few");
        self.push(opcode::AsyncCancel::new(data).build().user_data(CANCEL));
    }

    /// Lets the kernel have so many more threads as there are requests on files that take long, so that those to other disks
    /// find one. It makes them when they are needed.
    pub(crate) fn set_slow(&mut self, count: usize) {
        let spare = u32::try_from(count.next_multiple_of(SPARE_STEP)).unwrap_or(u32::MAX);
        if self.threads == 0 || spare == self.spare {
            return;
        }
        let mut limits = [self.threads.saturating_add(spare), 0];
        if self.ring.submitter().register_iowq_max_workers(&mut limits).is_err() {
            return;
        }
        if spare > self.spare {
            // What waits there has the first of them made only when something comes to it.
            let entry = opcode::Nop::new().build().flags(squeue::Flags::ASYNC);
            self.push(entry.user_data(PROBE));
        }
        self.spare = spare;
    }

    fn entry(&self, start: Start) -> squeue::Entry {
        let fd = Fd(start.fd);
        match start.step {
            Step::Accept if self.multishot => {
                opcode::AcceptMulti::new(fd).flags(libc::SOCK_CLOEXEC).build()
            }
            Step::Accept => {
                let none = std::ptr::null_mut();
                opcode::Accept::new(fd, none, std::ptr::null_mut())
                    .flags(libc::SOCK_CLOEXEC)
                    .build()
            }
            Step::Connect { address, length } => opcode::Connect::new(fd, address, length).build(),
            Step::Receive { at, length } => opcode::Recv::new(fd, at, length).build(),
            Step::Send { message, at_once } => {
                // WAITALL: the kernel itself goes on after a short send, and calls it a failure where it may not wait.
                let patiently = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
                let flags = if at_once.is_some() && self.skips { QUIETLY } else { patiently };
                opcode::SendMsg::new(fd, message).flags(flags.cast_unsigned()).build()
            }
            Step::Ready => {
                let events = u32::from(libc::POLLIN.cast_unsigned());
                opcode::PollAdd::new(fd, events).build()
            }
            Step::ReadStream { at, length } => {
                opcode::Read::new(fd, at, length).offset(u64::MAX).build()
            }
            Step::Read { at, length, offset } => {
                opcode::Read::new(fd, at, length).offset(known_place(offset)).build()
            }
            Step::Write { at, length, offset, durable } => {
                let flags = if durable { libc::RWF_DSYNC } else { 0 };
                let offset = known_place(offset);
                opcode::Write::new(fd, at, length).offset(offset).rw_flags(flags).build()
            }
            Step::Sync => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
            Step::Space { mode, offset, length } => {
                opcode::Fallocate::new(fd, length).offset(known_place(offset)).mode(mode).build()
            }
        }
    }

    fn push(&mut self, entry: squeue::Entry) {
        if !self.backlog.is_empty() || !offer(&mut self.ring, &entry) {
            self.backlog.push_back(entry);
        }
    }

    /// Submits everything, waits if nothing has completed yet, and collects completions.
    pub(crate) fn turn(
        &mut self,
        limit: Option<Duration>,
        done: &mut Vec<Completion>,
    ) -> Result<(), Errno> {
        if !self.armed {
            self.armed = true;
            let fd = Fd(self.waker.signal().number());
            let read = opcode::Read::new(fd, self.woken.as_mut_ptr(), 8).offset(u64::MAX);
            self.push(read.build().user_data(WAKE));
        }
        while !self.backlog.is_empty() {
            while self.backlog.front().is_some_and(|entry| offer(&mut self.ring, entry)) {
                self.backlog.pop_front();
            }
            if !self.backlog.is_empty() {
                tolerate(self.ring.submit())?;
                self.collect(done);
            }
        }
        let limit = match limit {
            _ if self.quiet.is_empty() => limit,
            Some(limit) => Some(limit.min(QUIET)),
            None => Some(QUIET),
        };
        // A call that was seen above has no read behind it: it ends this turn, and the next has one again.
        self.enter(limit, !done.is_empty() || !self.armed)?;
        self.collect(done);
        if !self.quiet.is_empty() && self.has_told_all() {
            // Before what they may have been the cause of.
            let gone = |(slot, result)| Completion { slot, result, more: false };
            done.splice(0..0, self.quiet.drain(..).map(gone));
        }
        Ok(())
    }

    /// Everything is submitted, and what the kernel has said so far was looked at.
    fn has_told_all(&mut self) -> bool {
        let queue = self.ring.submission();
        queue.is_empty() && !queue.cq_overflow()
    }

    fn enter(&mut self, limit: Option<Duration>, have_some: bool) -> Result<(), Errno> {
        let none_ready = !have_some && self.ring.completion().is_empty();
        let block = none_ready && limit != Some(Duration(0));
        if block {
            return match limit {
                None => tolerate(self.ring.submit_and_wait(1)),
                Some(limit) => {
                    let nanoseconds = u32::try_from(limit.0 % 1_000_000_000).expect("below 10^9");
                    let time = Timespec::new().sec(limit.0 / 1_000_000_000).nsec(nanoseconds);
                    let arguments = SubmitArgs::new().timespec(&time);
                    tolerate(self.ring.submitter().submit_with_args(1, &arguments))
                }
            };
        }
        let queue = self.ring.submission();
        let idle = queue.is_empty() && !queue.taskrun() && !queue.cq_overflow();
        drop(queue);
        if idle { Ok(()) } else { tolerate(self.ring.submit()) }
    }

    fn collect(&mut self, done: &mut Vec<Completion>) {
        for entry in self.ring.completion() {
            match entry.user_data() {
                CANCEL | PROBE => {}
                WAKE => {
                    self.armed = false;
                    self.waker.seen();
                }
                data => {
                    let slot = usize::try_from(data).expect("we gave a slot");
                    self.quiet.retain(|&(send, _)| send != slot);
                    let (result, more) = (entry.result(), cqueue::more(entry.flags()));
                    done.push(Completion { slot, result, more });
                }
            }
        }
    }
}

/// Puts an entry into the submission ring; false when it is full.
fn offer(ring: &mut IoUring, entry: &squeue::Entry) -> bool {
    // SAFETY: what an entry points to belongs to an operation that stays in its slot, with its
    // descriptor open, until the completion arrives, or to `Uring` itself, which outlives its
    // ring's use. `Hands::drop` waits for completions or leaks the operations.
    unsafe { ring.submission().push(entry).is_ok() }
}

/// A wait that ended early is a wait that ended.
fn tolerate(answer: io::Result<usize>) -> Result<(), Errno> {
    match answer.map_err(|error| Errno::of(&error)) {
        Ok(_) | Err(Errno(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN)) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// A ring with the best manners this kernel knows.
fn build(entries: u32) -> Result<(IoUring, &'static str), Errno> {
    let mut modern = IoUring::builder();
    modern.setup_cqsize(entries * COMPLETIONS_PER_ENTRY).setup_submit_all().setup_taskrun_flag();
    let mut newest = modern.clone();
    newest.setup_single_issuer().setup_defer_taskrun();
    if let Ok(ring) = newest.build(entries) {
        return Ok((ring, "io_uring, work deferred to the wait"));
    }
    if let Ok(ring) = modern.setup_coop_taskrun().build(entries) {
        return Ok((ring, "io_uring, cooperative"));
    }
    let mut plain = IoUring::builder();
    plain.setup_cqsize(entries * COMPLETIONS_PER_ENTRY);
    let ring = plain.build(entries).map_err(|error| Errno::of(&error))?;
    Ok((ring, "io_uring, plain"))
}

/// Bytes of a send that finds no room for all of them, by a socket with the least room there is.
const PROBE_BYTES: usize = 1 << 20;

/// Whether a send that may not wait is told of only if it did not go whole, and then by the bytes that went. Kernels 5.19 and 6.0
/// may say that none did: it is tried.
fn skips(ring: &mut IoUring) -> bool {
    if !ring.params().is_feature_skip_cqe_on_success() {
        return false;
    }
    let Ok((near, far)) = UnixStream::pair() else { return false };
    let least: libc::c_int = 1;
    // SAFETY: the kernel reads one integer, which lives during the call. If it fails there is more room.
    unsafe {
        let size = libc::socklen_t::try_from(size_of_val(&least)).expect("a few bytes");
        let at = (&raw const least).cast();
        libc::setsockopt(near.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, at, size);
    }
    let bytes = vec![0; PROBE_BYTES];
    let [whole, part] = [&bytes[..1], &bytes[..]].map(|bytes| {
        let iov_base = bytes.as_ptr().cast_mut().cast();
        let vector = libc::iovec { iov_base, iov_len: bytes.len() };
        // SAFETY: plain data for which all zeroes is the empty message.
        let header: libc::msghdr = unsafe { std::mem::zeroed() };
        Box::new((vector, header))
    });
    let mut sends = [whole, part];
    for send in &mut sends {
        let (vector, header) = &mut **send;
        (header.msg_iov, header.msg_iovlen) = (&raw mut *vector, 1);
        let entry = opcode::SendMsg::new(Fd(near.as_raw_fd()), &raw const *header)
            .flags(QUIETLY.cast_unsigned())
            .build()
            .flags(squeue::Flags::SKIP_SUCCESS)
            .user_data(PROBE);
        // The ring is empty.
        offer(ring, &entry);
    }
    let submitted = ring.submit().is_ok();
    let told: Vec<i32> = ring.completion().map(|entry| entry.result()).collect();
    let mut there: libc::c_int = 0;
    // SAFETY: the kernel writes one integer.
    let counted = unsafe { libc::ioctl(far.as_raw_fd(), libc::FIONREAD, &raw mut there) } == 0;
    let skips = submitted && counted && there > 1 && told == [there - 1];
    if !skips {
        // It may not be over: the kernel keeps the memory.
        std::mem::forget((sends, bytes));
    }
    skips
}

/// What the engine asks of the kernel, by the kernel's names.
const NEEDED: [(u8, &str); 10] = [
    (opcode::Accept::CODE, "IORING_OP_ACCEPT"),
    (opcode::Connect::CODE, "IORING_OP_CONNECT"),
    (opcode::Recv::CODE, "IORING_OP_RECV"),
    (opcode::SendMsg::CODE, "IORING_OP_SENDMSG"),
    (opcode::PollAdd::CODE, "IORING_OP_POLL_ADD"),
    (opcode::Read::CODE, "IORING_OP_READ"),
    (opcode::Write::CODE, "IORING_OP_WRITE"),
    (opcode::Fsync::CODE, "IORING_OP_FSYNC"),
    (opcode::Fallocate::CODE, "IORING_OP_FALLOCATE"),
    (opcode::AsyncCancel::CODE, "IORING_OP_ASYNC_CANCEL"),
];

fn lacking(ring: &IoUring) -> Result<Vec<&'static str>, Errno> {
    let parameters = ring.params();
    let features = [
        (parameters.is_feature_ext_arg(), "IORING_FEAT_EXT_ARG"),
        (parameters.is_feature_nodrop(), "IORING_FEAT_NODROP"),
        (parameters.is_feature_fast_poll(), "IORING_FEAT_FAST_POLL"),
    ];
    let features = features.into_iter().filter(|(has, _)| !has).map(|(_, name)| name);
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).map_err(|error| Errno::of(&error))?;
    Ok(features.chain(lacking_of(&probe)).collect())
}

/// The operations that the kernel does not say that it has.
fn lacking_of(probe: &Probe) -> Vec<&'static str> {
    let lacks = NEEDED.iter().filter(|(code, _)| !probe.is_supported(*code));
    lacks.map(|(_, name)| *name).collect()
}

/// What the engine on io_uring needs and this kernel lacks, by the kernel's names: where there is something,
/// [`Errno::NOT_SUPPORTED`] is why it does not start.
///
/// # Errors
/// The kernel's: it gives no ring, or does not tell.
pub fn io_uring_lacks() -> Result<Vec<&'static str>, Errno> {
    lacking(&IoUring::new(8).map_err(|error| Errno::of(&error))?)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use io_uring::Probe;

    use super::{NEEDED, Uring, io_uring_lacks, lacking_of};
    use crate::operation::{Start, Step};
    use crate::wake::Waker;

    #[test]
    fn a_call_that_is_seen_while_a_large_batch_is_submitted_ends_the_turn() {
        let (ends, ended) = channel();
        std::thread::spawn(move || {
            let mut engine = match Uring::new(8) {
                Ok(engine) => engine,
                Err(errno) => {
                    println!("NOT RUN: {errno}");
                    return ends.send(());
                }
            };
            let mut done = Vec::new();
            engine.turn(Some(base::Duration(0)), &mut done).expect("a ring takes turns");
            engine.waker().wake();
            let silent = Waker::new(false).expect("an eventfd");
            let (fd, identity) = (silent.signal().number(), silent.signal().identity());
            for slot in 0..32 {
                engine.start(Start { slot, fd, identity, step: Step::Ready });
            }
            // Without an end.
            engine.turn(None, &mut done).expect("a ring takes turns");
            assert!(done.is_empty());
            ends.send(())
        });
        assert_eq!(ended.recv_timeout(Duration::from_secs(20)), Ok(()));
    }

    #[test]
    fn what_a_kernel_does_not_tell_that_it_has_is_named() {
        let names: Vec<&str> = NEEDED.iter().map(|(_, name)| *name).collect();
        assert_eq!(lacking_of(&Probe::new()), names);
        match Uring::new(8) {
            Ok(_) => assert_eq!(io_uring_lacks(), Ok(Vec::new())),
            Err(errno) => println!("NOT RUN: {errno}"),
        }
    }
}
