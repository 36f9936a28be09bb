//! A quick hash of states. Two states with one hash are taken for the same: at 10 million states the
//! chance that one was passed over is below one in 100 000.
//!
//! Not here: what is hashed (`world`).

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::Mutex;

/// Multiply and fold.
#[derive(Clone, Default)]
pub(super) struct Mix(u64);

impl Mix {
    fn word(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word ^ 0x9e37_79b9_7f4a_7c15)
            .wrapping_mul(0xa076_1d64_78bd_642f_e703_7ed1_a0b4_28db);
        let (low, high) = (product & u128::from(u64::MAX), product >> 64);
        let fold = |part: u128| u64::try_from(part).expect("64 bits are left");
        self.0 = fold(low) ^ fold(high).rotate_left(23) ^ word.rotate_left(41);
    }
}

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        let mut mix = self.clone();
        mix.word(0x1234_5678);
        mix.word(0x9abc_def0);
        mix.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(u64::from_le_bytes(word).wrapping_add(chunk.len() as u64));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.word(u64::from(value));
    }

    fn write_u16(&mut self, value: u16) {
        self.word(u64::from(value));
    }

    fn write_u32(&mut self, value: u32) {
        self.word(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.word(value);
    }

    fn write_usize(&mut self, value: usize) {
        self.word(value as u64);
    }
}

/// The hash of one value.
pub(super) fn of(value: &impl Hash) -> u64 {
    let mut mix = Mix::default();
    value.hash(&mut mix);
    mix.finish()
}

/// For tables whose keys are hashes already.
#[derive(Clone, Default)]
pub(super) struct Same(u64);

impl Hasher for Same {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only whole words are keys");
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

/// What was seen, and with how much left to spend.
pub(super) type Seen = std::collections::HashMap<u64, u8, BuildHasherDefault<Same>>;

/// Whether a state was seen.
pub(super) enum Mark {
    New,
    /// With less left to spend.
    Again,
    Old,
}

/// What several threads have seen, and with how much left to spend: 3 bits of each word.
pub(super) struct Marks([Mutex<HashSet<u64, BuildHasherDefault<Same>>>; PARTS]);

const PARTS: usize = 256;
const LEFT_MAX: u8 = 7;

impl Default for Marks {
    fn default() -> Marks {
        Marks(std::array::from_fn(|_| Mutex::default()))
    }
}

impl Marks {
    /// Notes that a state is searched with `left`, 7 at most.
    pub(super) fn mark(&self, print: u64, left: u8) -> Mark {
        let word = |left: u8| print & !u64::from(LEFT_MAX) | u64::from(left.min(LEFT_MAX));
        let part = usize::try_from(print >> 3).unwrap_or(0) % PARTS;
        let mut seen = self.0[part].lock().expect("nobody panics with it");
        if (left..=LEFT_MAX).any(|left| seen.contains(&word(left))) {
            return Mark::Old;
        }
        let again = (0..left).any(|left| seen.remove(&word(left)));
        seen.insert(word(left));
        if again { Mark::Again } else { Mark::New }
    }
}
