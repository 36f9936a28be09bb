//! Bytes in memory that behave like a disk which never fails and never remembers.
//!
//! Threads that share it wait for each other only in the same chunk, and, like on a disk, see of
//! requests that overlap at one time a mixture.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Memory is allocated in chunks of this many bytes when first written: a large volume costs what
/// is in it.
const CHUNK_BYTES: usize = 1 << 20;

/// A sparse array of bytes. Ranges are checked by its caller.
pub(crate) struct Memory {
    chunks: Vec<Mutex<Option<Box<[u8]>>>>,
    size_bytes: u64,
}

fn to_usize(number: u64) -> usize {
    usize::try_from(number).expect("a volume in memory is addressable")
}

fn chunk_bytes() -> u64 {
    u64::try_from(CHUNK_BYTES).expect("2^20 fits")
}

impl Memory {
    pub(crate) fn new(size_bytes: u64) -> Memory {
        let count = to_usize(size_bytes.div_ceil(chunk_bytes()));
        Memory {
            chunks: std::iter::repeat_with(|| Mutex::new(None)).take(count).collect(),
            size_bytes,
        }
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn chunk(&self, number: usize) -> MutexGuard<'_, Option<Box<[u8]>>> {
        self.chunks[number].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn read(&self, offset: u64, target: &mut [u8]) {
        each_chunk(offset, target.len(), |chunk, inside, part| {
            let target = &mut target[part];
            match &*self.chunk(chunk) {
                Some(bytes) => target.copy_from_slice(&bytes[inside..inside + target.len()]),
                None => target.fill(0),
            }
        });
    }

    pub(crate) fn write(&self, offset: u64, source: &[u8]) {
        each_chunk(offset, source.len(), |chunk, inside, part| {
            let source = &source[part];
            let mut chunk = self.chunk(chunk);
            let bytes = chunk.get_or_insert_with(|| vec![0; CHUNK_BYTES].into_boxed_slice());
            sys::copy_past_caches(&mut bytes[inside..inside + source.len()], source);
        });
    }

    pub(crate) fn zero(&self, offset: u64, length: u64) {
        each_chunk(offset, to_usize(length), |chunk, inside, part| {
            let mut chunk = self.chunk(chunk);
            if part.len() == CHUNK_BYTES {
                *chunk = None;
            } else if let Some(bytes) = &mut *chunk {
                bytes[inside..inside + part.len()].fill(0);
            }
        });
    }
}

/// Calls `each` with every chunk that a range touches: its number, where the range begins in it,
/// and which part of the range it is.
fn each_chunk(
    offset: u64,
    length: usize,
    mut each: impl FnMut(usize, usize, std::ops::Range<usize>),
) {
    let mut done = 0;
    while done < length {
        let at = to_usize(offset) + done;
        let inside = at % CHUNK_BYTES;
        let count = (CHUNK_BYTES - inside).min(length - done);
        each(at / CHUNK_BYTES, inside, done..done + count);
        done += count;
    }
}
