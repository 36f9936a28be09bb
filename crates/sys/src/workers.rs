//! Threads that do file I/O for the epoll engine, as files are always "ready" and always block.
//!
//! What always holds: a step's memory and descriptor outlive it, as the operation stays in its slot
//! until the completion is collected, and dropping the workers joins them first.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

use crate::errno::{Errno, check_count};
use crate::operation::{Completion, Start, Step};
use crate::wake::Waker;

/// Threads: enough to keep a disk busy at moderate depth; this engine is not the fast one.
pub(crate) const WORKERS: usize = 4;

/// A step on its way to a thread.
struct Job(Start);

// SAFETY: the pointers in a step lead to memory that the submitting thread leaves alone, or only
// reads together with the kernel, until it has collected the completion.
unsafe impl Send for Job {}

#[derive(Default)]
struct Desk {
    jobs: VecDeque<Job>,
    done: Vec<Completion>,
    stop: bool,
}

struct Room {
    desk: Mutex<Desk>,
    work: Condvar,
    waker: Waker,
}

impl Room {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().expect("no thread panics while it holds the desk")
    }
}

pub(crate) struct Workers {
    room: Arc<Room>,
    threads: Vec<JoinHandle<()>>,
    jobs_max: usize,
}

impl Workers {
    pub(crate) fn new(waker: Waker, jobs_max: usize) -> Result<Workers, Errno> {
        let room = Room { desk: Mutex::default(), work: Condvar::new(), waker };
        let room = Arc::new(room);
        let mut workers = Workers { room, threads: Vec::new(), jobs_max };
        for number in 0..WORKERS {
            let room = Arc::clone(&workers.room);
            let thread = std::thread::Builder::new()
                .name(format!("file-{number}"))
                .spawn(move || serve(&room))
                .map_err(|error| Errno::of(&error))?;
            workers.threads.push(thread);
        }
        Ok(workers)
    }

    pub(crate) fn push(&mut self, start: Start) {
        let mut desk = self.room.desk();
        assert!(desk.jobs.len() < self.jobs_max, "operations are limited before they come here");
        desk.jobs.push_back(Job(start));
        drop(desk);
        self.room.work.notify_one();
    }

    pub(crate) fn collect(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.room.desk().done);
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.room.desk().stop = true;
        self.room.work.notify_all();
        for thread in self.threads.drain(..) {
            // A worker that panicked has nothing left to be waited for.
            thread.join().ok();
        }
    }
}

fn serve(room: &Room) {
    block_all_signals();
    let mut desk = room.desk();
    loop {
        if let Some(Job(start)) = desk.jobs.pop_front() {
            drop(desk);
            let result = perform(start);
            desk = room.desk();
            desk.done.push(Completion { slot: start.slot, result, more: false });
            if desk.done.len() == 1 {
                room.waker.wake();
            }
        } else if desk.stop {
            return;
        } else {
            desk = room.work.wait(desk).expect("no thread panics while it holds the desk");
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
    // A negative offset is refused by the kernel, as one beyond its limit should be.
    i64::try_from(offset).unwrap_or(-1)
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
