//! The cache of a disk that forgets: writes stay here until a flush, and die with the process.
//!
//! A disk may write what it caches whenever it likes, and in any order. So, if that is asked for, some pages
//! are written at once: which ones the seed says, and then any part of what was not flushed is gone after the
//! process is killed.
//!
//! Part of the fault layer. Everything here blocks; it is for tests of power cuts, not for speed.
//!
//! What always holds: a read sees the newest write; a flush leaves nothing behind; a killed process
//! leaves each page either as it was or as it was written at some time since the flush, never mixed.

use std::collections::BTreeMap;
use std::ops::Range;

use base::Prng;
use sys::{BufferPool, Errno};

use crate::disk::Backing;
use crate::faults::FaultSpec;

/// Blocks written back with one call at most.
const RUN_BYTES: usize = 1 << 20;

/// What is written early is chosen in pages of this many bytes, the least that a volume writes by default.
const PAGE_BYTES: u64 = 4096;

/// So many pages of a longer write are chosen together: a call for each of its pages would hold up the thread for seconds.
const PAGES_AT_ONCE: u64 = 16;

/// Longer zeroings go to the backing at once, as a real disk may do with any write.
const ZERO_BYTES_MAX: u64 = 1 << 20;

pub(crate) struct Cache {
    /// By block number.
    blocks: BTreeMap<u64, Box<[u8]>>,
    block_bytes: usize,
    prng: Prng,
    /// One page in so many is written at once; 0: none.
    early_one_in: u64,
    /// Aligned memory to write from and read into.
    pool: BufferPool,
}

impl Cache {
    pub(crate) fn new(block_bytes: u32, faults: &FaultSpec) -> Cache {
        Cache {
            blocks: BTreeMap::new(),
            block_bytes: usize::try_from(block_bytes).expect("32 bits fit"),
            prng: Prng::new(faults.seed),
            early_one_in: faults.written_back_one_in,
            pool: BufferPool::new(RUN_BYTES),
        }
    }

    fn step(&self) -> u64 {
        u64::try_from(self.block_bytes).expect("at most 4096")
    }

    pub(crate) fn read(
        &self,
        backing: &Backing,
        offset: u64,
        target: &mut [u8],
    ) -> Result<(), Errno> {
        backing.read_now(offset, target)?;
        let first = offset / self.step();
        for (number, block) in (first..).zip(target.chunks_exact_mut(self.block_bytes)) {
            if let Some(cached) = self.blocks.get(&number) {
                block.copy_from_slice(cached);
            }
        }
        Ok(())
    }

    pub(crate) fn write(&mut self, backing: &Backing, offset: u64, source: &[u8]) {
        let mut number = offset / self.step();
        let first = number;
        for block in source.chunks_exact(self.block_bytes) {
            self.blocks.insert(number, block.into());
            number += 1;
        }
        self.write_some(backing, first..number);
    }

    /// Writes the pages of this run of blocks that the seed says. What cannot be written stays cached: the flush
    /// will tell.
    fn write_some(&mut self, backing: &Backing, run: Range<u64>) {
        if self.early_one_in == 0 {
            return;
        }
        let page = PAGE_BYTES / self.step();
        let is_long = run.end - run.start > page * PAGES_AT_ONCE;
        let chosen = if is_long { page * PAGES_AT_ONCE } else { page };
        let mut numbers = Vec::new();
        let mut at = run.start;
        while at < run.end {
            let end = ((at / chosen + 1) * chosen).min(run.end);
            if self.prng.once_in(self.early_one_in) {
                numbers.extend(at..end);
            }
            at = end;
        }
        if self.write_back(backing, &numbers).is_ok() {
            for number in numbers {
                self.blocks.remove(&number);
            }
        }
    }

    /// Writes past the cache; what it held there is older.
    pub(crate) fn write_through(
        &mut self,
        backing: &Backing,
        offset: u64,
        source: &[u8],
    ) -> Result<(), Errno> {
        let mut bounce = self.pool.take(RUN_BYTES).ok_or(Errno::NO_BUFFERS)?;
        let mut at = offset;
        for part in source.chunks(RUN_BYTES) {
            bounce.set_len(part.len());
            bounce.as_mut().expect("nobody else has it").copy_from_slice(part);
            backing.write_now(at, &bounce)?;
            at += u64::try_from(part.len()).expect("at most 2^20");
        }
        self.forget(offset, at);
        backing.sync_now()
    }

    pub(crate) fn zero(
        &mut self,
        backing: &Backing,
        offset: u64,
        length: u64,
        durable: bool,
    ) -> Result<(), Errno> {
        if durable || length > ZERO_BYTES_MAX {
            backing.zero_now(offset, length)?;
            self.forget(offset, offset + length);
            return if durable { backing.sync_now() } else { Ok(()) };
        }
        let run = offset / self.step()..(offset + length) / self.step();
        for number in run.clone() {
            self.blocks.insert(number, vec![0; self.block_bytes].into_boxed_slice());
        }
        self.write_some(backing, run);
        Ok(())
    }

    fn forget(&mut self, from: u64, until: u64) {
        // One by one: to take the map apart and put it together costs as much as all that is cached, for each stable write.
        let range = from / self.step()..until / self.step();
        let held: Vec<u64> = self.blocks.range(range).map(|(&number, _)| number).collect();
        for number in held {
            self.blocks.remove(&number);
        }
    }

    /// Writes everything back and makes it durable. What could not be written stays cached.
    pub(crate) fn flush(&mut self, backing: &Backing) -> Result<(), Errno> {
        let numbers: Vec<u64> = self.blocks.keys().copied().collect();
        self.write_back(backing, &numbers)?;
        self.blocks.clear();
        backing.sync_now()
    }

    /// Writes these blocks, neighbours together.
    fn write_back(&mut self, backing: &Backing, numbers: &[u64]) -> Result<(), Errno> {
        let mut bounce = self.pool.take(RUN_BYTES).ok_or(Errno::NO_BUFFERS)?;
        let limit = RUN_BYTES / self.block_bytes;
        let mut rest = numbers;
        while let Some(&first) = rest.first() {
            let run =
                (first..).zip(rest).take(limit).take_while(|(n, number)| n == *number).count();
            bounce.set_len(run * self.block_bytes);
            let bytes = bounce.as_mut().expect("nobody else has it");
            for (number, target) in rest.iter().zip(bytes.chunks_exact_mut(self.block_bytes)) {
                target.copy_from_slice(&self.blocks[number]);
            }
            backing.write_now(first * self.step(), &bounce)?;
            rest = &rest[run..];
        }
        Ok(())
    }
}
