//! What would keep the loop waiting: making, loading, wiping and comparing backing files.
//!
//! One thread does such jobs one after the other, with plain blocking calls; the loop is woken when one
//! is done. A job that hangs keeps only further jobs waiting, never I/O.
//!
//! Always: a job is answered once, on the loop's thread.

use std::sync::mpsc::{Receiver, Sender, channel};

use sys::Waker;

/// A job's second half, which the loop runs with the node at hand.
pub(crate) type Finish<N> = Box<dyn FnOnce(&mut N) + Send>;
type Job<N> = Box<dyn FnOnce() -> Finish<N> + Send>;

/// The door to the helping thread. `N` is what jobs finish on.
pub(crate) struct Helper<N: 'static> {
    jobs: Option<Sender<Job<N>>>,
    done: Receiver<Finish<N>>,
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
        Ok(Helper { jobs: Some(jobs), done, thread: Some(thread) })
    }

    /// Does `job` on the thread; what it returns is run on the loop.
    pub(crate) fn start(&self, job: impl FnOnce() -> Finish<N> + Send + 'static) {
        let jobs = self.jobs.as_ref().expect("the helper lives as long as the node");
        jobs.send(Box::new(job)).expect("the helper ends only with the node");
    }

    /// A job that is done, if there is one.
    pub(crate) fn finished(&self) -> Option<Finish<N>> {
        self.done.try_recv().ok()
    }
}

impl<N> Drop for Helper<N> {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}
