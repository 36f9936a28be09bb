//! Threads that do file I/O for the epoll engine, as files are always "ready" and always block.
//!
//! Every disk has a lane: its steps begin in the order in which they came, and so many at once. Threads belong to no disk and
//! take what may begin; there are more of them when more disks are busy, and fewer again when nothing was to do for a
//! while. So a disk that hangs keeps its own threads and nobody else's.
//!
//! What always holds: a step's memory and descriptor outlive it, as the operation stays in its slot until the completion is
//! collected, or for ever. Dropping the workers waits for those that do nothing; one that hangs ends by itself, or with the process.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use crate::device::disk_of;
use crate::errno::{Errno, check_count};
use crate::operation::{Completion, Start, Step, known_place};
use crate::wake::Waker;

/// Steps of one disk at once: enough to keep it busy at moderate depth; this engine is not the fast one. As many threads stay
/// when nothing is to do.
pub(crate) const WORKERS: usize = 4;

/// A thread beyond those ends when nothing was to do for so long.
const LINGERS: Duration = Duration::from_secs(10);

/// A step on its way to a thread, and its lane.
struct Job {
    start: Start,
    lane: usize,
}

// SAFETY: the pointers in a step lead to memory that the submitting thread leaves alone, or only
// reads together with the kernel, until it has collected the completion.
unsafe impl Send for Job {}

/// What one disk has to do.
#[derive(Default)]
struct Lane {
    /// They wait until one of those that have begun ends.
    waiting: VecDeque<Job>,
    /// Steps that have begun, or may.
    begun: usize,
}

#[derive(Default)]
struct Desk {
    lanes: Vec<Lane>,
    /// What the next thread takes.
    next: VecDeque<Job>,
    done: Vec<Completion>,
    /// Threads that look here by themselves: they wait for work, or have just been started.
    free: usize,
    stop: bool,
}

struct Room {
    desk: Mutex<Desk>,
    work: Condvar,
    /// A thread has ended.
    ended: Condvar,
    waker: Waker,
}

impl Room {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().expect("no thread panics while it holds the desk")
    }
}

pub(crate) struct Workers {
    room: Arc<Room>,
    /// Lanes by disk, and by descriptor number with the identity for which that was found out; 0 for none.
    disks: BTreeMap<u64, usize>,
    lanes: Vec<(u64, usize)>,
    jobs: usize,
    jobs_max: usize,
    started: usize,
}

impl Workers {
    pub(crate) fn new(waker: Waker, jobs_max: usize) -> Result<Workers, Errno> {
        let (work, ended) = (Condvar::new(), Condvar::new());
        let room = Arc::new(Room { desk: Mutex::default(), work, ended, waker });
        let (disks, lanes) = (BTreeMap::new(), Vec::new());
        let mut workers = Workers { room, disks, lanes, jobs: 0, jobs_max, started: 0 };
        // Where no thread can be had, that is said now. Once there is one, work waits for it at worst.
        workers.start_thread()?;
        Ok(workers)
    }

    pub(crate) fn push(&mut self, start: Start) {
        assert!(self.jobs < self.jobs_max, "operations are limited before they come here");
        self.jobs += 1;
        let lane = self.lane_of(&start);
        let mut desk = self.room.desk();
        if lane == desk.lanes.len() {
            desk.lanes.push(Lane::default());
        }
        let job = Job { start, lane };
        let queue = &mut desk.lanes[lane];
        if queue.begun == WORKERS {
            queue.waiting.push_back(job);
            return;
        }
        queue.begun += 1;
        desk.next.push_back(job);
        let enough = desk.next.len() <= desk.free;
        drop(desk);
        if enough {
            self.room.work.notify_one();
        } else {
            // If it cannot be had the next thread that is done takes it.
            self.start_thread().ok();
        }
    }

    /// The lane of a step's disk.
    fn lane_of(&mut self, start: &Start) -> usize {
        let index = usize::try_from(start.fd).expect("an open descriptor is not negative");
        if index >= self.lanes.len() {
            self.lanes.resize(index + 1, (0, 0));
        }
        let (identity, known) = self.lanes[index];
        if identity == start.identity {
            return known;
        }
        let count = self.disks.len();
        let lane = *self.disks.entry(disk_of(start.fd)).or_insert(count);
        self.lanes[index] = (start.identity, lane);
        lane
    }

    fn start_thread(&mut self) -> Result<(), Errno> {
        let room = Arc::clone(&self.room);
        room.desk().free += 1;
        let name = format!("file-{}", self.started);
        self.started += 1;
        let started = std::thread::Builder::new().name(name).spawn(move || serve(&room));
        if let Err(error) = started {
            self.room.desk().free -= 1;
            return Err(Errno::of(&error));
        }
        Ok(())
    }

    pub(crate) fn collect(&mut self, done: &mut Vec<Completion>) {
        let before = done.len();
        done.append(&mut self.room.desk().done);
        self.jobs -= done.len() - before;
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let mut desk = self.room.desk();
        desk.stop = true;
        // Nobody hears of them any more.
        desk.next.clear();
        desk.lanes.clear();
        self.room.work.notify_all();
        while desk.free > 0 {
            desk = self.room.ended.wait(desk).expect("no thread panics while it holds the desk");
        }
    }
}

fn serve(room: &Room) {
    block_all_signals();
    let mut desk = room.desk();
    loop {
        if let Some(Job { start, lane }) = desk.next.pop_front() {
            desk.free -= 1;
            drop(desk);
            let result = perform(start);
            desk = room.desk();
            desk.free += 1;
            desk.end(lane, Completion { slot: start.slot, result, more: false });
            if desk.done.len() == 1 {
                room.waker.wake();
            }
        } else if desk.stop {
            break;
        } else if desk.free > WORKERS {
            let waited = room.work.wait_timeout(desk, LINGERS);
            let limit;
            (desk, limit) = waited.expect("no thread panics while it holds the desk");
            if limit.timed_out() && desk.next.is_empty() && desk.free > WORKERS {
                break;
            }
        } else {
            desk = room.work.wait(desk).expect("no thread panics while it holds the desk");
        }
    }
    desk.free -= 1;
    room.ended.notify_one();
}

impl Desk {
    /// A step has ended: the next of its lane may begin.
    fn end(&mut self, lane: usize, completion: Completion) {
        self.done.push(completion);
        let Some(queue) = self.lanes.get_mut(lane) else { return };
        match queue.waiting.pop_front() {
            Some(job) => self.next.push_back(job),
            None => queue.begun -= 1,
        }
    }
}

/// Signals are for the thread that watches them.
fn block_all_signals() {
    // SAFETY: plain data for which all zeroes is a value; `sigfillset` then fills it.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
    }
}

fn signed(offset: u64) -> i64 {
    i64::from_ne_bytes(known_place(offset).to_ne_bytes())
}

/// Does one step, blocking; answers as io_uring would.
fn perform(start: Start) -> i32 {
    let fd = start.fd;
    let answer = match start.step {
        Step::Read { at, length, offset } => {
            let length = usize::try_from(length).expect("32 bits fit");
            // SAFETY: the operation owns `length` bytes there, alone, until the step completes.
            check_count(unsafe { libc::pread(fd, at.cast(), length, signed(offset)) })
        }
        Step::Write { at, length, offset, durable } => {
            let length = usize::try_from(length).expect("32 bits fit");
            let vector = libc::iovec { iov_base: at.cast_mut().cast(), iov_len: length };
            let flags = if durable { libc::RWF_DSYNC } else { 0 };
            // SAFETY: one vector, local; its bytes stay with the operation, unchanged.
            check_count(unsafe { libc::pwritev2(fd, &raw const vector, 1, signed(offset), flags) })
        }
        // SAFETY: plain call on an open descriptor.
        Step::Sync => check_count(unsafe { libc::fdatasync(fd) } as isize),
        Step::Space { mode, offset, length } => {
            // SAFETY: plain call on an open descriptor.
            let answer = unsafe { libc::fallocate(fd, mode, signed(offset), signed(length)) };
            check_count(answer as isize)
        }
        _ => unreachable!("sockets are for epoll"),
    };
    match answer {
        Ok(count) => i32::try_from(count).expect("no step moves 2 GiB"),
        Err(errno) => -errno.0,
    }
}
