//! What a disk has lost of its cache, and which shards were told.
//!
//! A disk says so once, to whoever asks first: by a flush that fails, or by a durable write. The kernel does the same with what it
//! could not write of its page cache. Whoever else has written there would be told that all is well.
//!
//! Always: after a loss no flush of a shard is believed before one of it has failed that covers all that the shard was
//! answered until the loss was told. A durable write that failed counts for nobody's flush: it says nothing of what others
//! wrote before.
//!
//! Not here: other stores on the same disk, which nobody tells.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// When a flush began.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FlushMark {
    losses: u64,
    answered: u64,
}

/// What one share of a store knows of it.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    /// How often any share was told.
    all: Arc<AtomicU64>,
    /// How often that was when this share came to be.
    first: u64,
    /// Of how many each shard was told, that was told of more.
    told: Vec<(u16, u64)>,
    /// How many writes, which a cache may hold, were answered by this share.
    answered: u64,
}

impl Losses {
    /// The same for another share.
    pub(crate) fn share(&self) -> Losses {
        let all = self.all.clone();
        let first = all.load(Ordering::SeqCst);
        Losses { all, first, told: Vec::new(), answered: 0 }
    }

    pub(crate) fn note(&self) {
        self.all.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether there was one since the store was opened.
    pub(crate) fn any(&self) -> bool {
        self.all.load(Ordering::SeqCst) > 0
    }

    pub(crate) fn note_answered(&mut self) {
        self.answered += 1;
    }

    pub(crate) fn flush_begins(&self) -> FlushMark {
        FlushMark { losses: self.all.load(Ordering::SeqCst), answered: self.answered }
    }

    /// A flush of a shard has ended, and well if `ok`. Whether it is to be believed.
    pub(crate) fn flush_ends(&mut self, shard: u16, mark: FlushMark, ok: bool) -> bool {
        if !ok {
            self.note();
        }
        let all = self.all.load(Ordering::SeqCst);
        let at = self.told.iter().position(|(of, _)| *of == shard).unwrap_or_else(|| {
            self.told.push((shard, self.first));
            self.told.len() - 1
        });
        let told = &mut self.told[at].1;
        let is_good = ok && mark.losses == all && *told == all;
        if !is_good {
            // What was answered since it began it does not cover: that may be lost as well.
            let covers_all = mark.answered == self.answered;
            *told = (*told).max(if covers_all { all } else { mark.losses });
        }
        is_good
    }
}
