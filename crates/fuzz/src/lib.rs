//! Bytes from strangers: every parser of them, fed with input that is almost right.
//!
//! A [`Target`] is one parser: what it is given, and what must hold whatever that is. [`run`] takes inputs
//! of its corpus and random right ones, changes them (`mutate`), mends their checksums most of the time, so
//! that what lies behind those is reached, and judges each. An input with an outcome not seen before is kept
//! and changed further.
//!
//! Always, for every input:
//! - the parser does not panic;
//! - it holds no more memory than a few times the input's length, whatever lengths the input states;
//! - what it takes, written again, is what was taken, or at least is taken for the same;
//! - the same seed and number of inputs try the same inputs, but for targets whose right inputs hold fresh keys
//!   (`certificate`, `identity`, `link`).
//!
//! Not here: what authenticated peers say in the wrong order (`sim`, the tests of `replica`); what only a
//! program's own tests reach, which judge it by this crate's means (`targets::ELSEWHERE`).

pub mod command;
pub mod corpus;
mod mutate;
mod run;
pub mod targets;

pub use command::judge_all;
pub use mutate::{INPUT_BYTES_MAX, mutate};
pub use run::{Found, Report, Watch, run, try_one};

use base::Prng;

/// Memory is counted in every program that is made with this crate: tests and the fuzzer itself.
#[global_allocator]
static ALLOCATOR: sys::Counted = sys::Counted;

/// A parser of bytes from outside.
pub struct Target {
    /// Its name on the command line, and the name of its file in `crates/fuzz/corpus`.
    pub name: &'static str,
    /// What is parsed.
    pub what: &'static str,
    /// A random input that is right.
    pub valid: fn(&mut Prng) -> Vec<u8>,
    /// Puts right again what a peer at fault would put right too: checksums, lengths.
    pub mend: fn(&mut Vec<u8>),
    /// Parses, checks all that must hold, and says what came of it: equal numbers for alike outcomes.
    ///
    /// # Panics
    /// If something does not hold.
    pub judge: fn(&[u8]) -> u64,
    /// Pieces that mean something to the parser.
    pub words: &'static [&'static str],
}

/// Bytes that a parser may hold at one time for an input of `length` bytes: values are larger in memory than on
/// the wire, and buffers grow by doubling. A length that the input merely states never counts.
#[must_use]
pub fn memory_max(length: usize) -> usize {
    (256 << 10) + 64 * length
}

/// For targets without anything to mend.
pub fn nothing(_: &mut Vec<u8>) {}

/// One number for what an outcome says of itself.
#[must_use]
pub fn outcome(what: &impl std::fmt::Debug) -> u64 {
    let text = format!("{what:?}");
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
