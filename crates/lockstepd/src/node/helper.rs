//! What would keep the loop waiting: making, loading, wiping and comparing backing files.
//!
//! One thread does such jobs one after the other, with plain blocking calls; the loop is woken when one
//! is done. A job that hangs keeps only further jobs waiting, never I/O.
//!
//! Always: a job is answered once, on the loop's thread.

use std::cell::Cell;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use sys::Waker;

/// How long the end of a node waits for each job that is under way. With all other limits of a stop it is less than the service manager waits.
const FAREWELL: Duration = Duration::from_secs(3);

/// A job's second half, which the loop runs with the node at hand.
pub(crate) type Finish<N> = Box<dyn FnOnce(&mut N) + Send>;
/// Answers as well whether it was one that may take long.
type Job<N> = Box<dyn FnOnce() -> (bool, Finish<N>) + Send>;

/// The door to the helping thread. `N` is what jobs finish on.
pub(crate) struct Helper<N: 'static> {
    jobs: Option<Sender<Job<N>>>,
    /// Jobs that are not done and may take long.
    long: Cell<usize>,
    done: Receiver<(bool, Finish<N>)>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl<N> Helper<N> {
    /// Starts the thread.
    pub(crate) fn new(waker: Waker) -> std::io::Result<Helper<N>> {
        let (jobs, taken) = channel::<Job<N>>();
        let (finished, done) = channel();
        let thread = std::thread::Builder::new().name("helper".to_owned()).spawn(move || {
            for job in taken {
                if finished.send(job()).is_err() {
                    break;
                }
                waker.wake();
            }
        })?;
        Ok(Helper { jobs: Some(jobs), long: Cell::new(0), done, thread: Some(thread) })
    }

    /// Does `job` on the thread; what it returns is run on the loop.
    pub(crate) fn start(&self, job: impl FnOnce() -> Finish<N> + Send + 'static) {
        self.long.set(self.long.get() + 1);
        self.send(move || (true, job()));
    }

    /// The same for a job that takes as long as a look at a file's tables, unless longer ones are
    /// under way: then false, and nothing is done.
    pub(crate) fn start_short(&self, job: impl FnOnce() -> Finish<N> + Send + 'static) -> bool {
        let free = self.long.get() == 0;
        if free {
            self.send(move || (false, job()));
        }
        free
    }

    fn send(&self, job: impl FnOnce() -> (bool, Finish<N>) + Send + 'static) {
        let jobs = self.jobs.as_ref().expect("the helper lives as long as the node");
        jobs.send(Box::new(job)).expect("the helper ends only with the node");
    }

    /// A job that is done, if there is one.
    pub(crate) fn finished(&self) -> Option<Finish<N>> {
        let (long, finish) = self.done.try_recv().ok()?;
        self.long.set(self.long.get() - usize::from(long));
        Some(finish)
    }
}

impl<N> Drop for Helper<N> {
    fn drop(&mut self) {
        self.jobs = None;
        loop {
            match self.done.recv_timeout(FAREWELL) {
                // What was to follow is nobody's any more.
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => break,
                // It hangs: it ends with the process, and what it was about is as after a crash.
                Err(RecvTimeoutError::Timeout) => return,
            }
        }
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use sys::{Hands, HandsConfig};

    use super::Helper;

    #[test]
    fn a_helper_is_let_go_once_its_jobs_are_done_and_with_one_that_hangs() {
        let hands = Hands::new(HandsConfig::default()).expect("hands");
        let helper: Helper<()> = Helper::new(hands.waker()).expect("a thread");
        let (does, done) = channel();
        for number in 0..3 {
            let does = does.clone();
            helper.start(move || {
                does.send(number).expect("it is counted");
                Box::new(|()| {})
            });
        }
        drop(helper);
        assert_eq!(done.try_iter().count(), 3, "each is waited for");
        let helper: Helper<()> = Helper::new(hands.waker()).expect("a thread");
        let (answers, disk) = channel::<()>();
        helper.start(move || {
            disk.recv().ok();
            Box::new(|()| {})
        });
        drop(helper);
        drop(answers);
    }
}
