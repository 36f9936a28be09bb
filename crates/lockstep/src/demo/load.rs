//! The write load: many clients, each block's content its own, everything acknowledged remembered.
//!
//! Each writer owns every sixteenth block and has one write open at a time. A write whose connection
//! breaks is sent again, the same bytes, by way of another node, until it is acknowledged; only then
//! does the writer go on. So what every block must hold in the end is known exactly.
//!
//! Always: the clock of pauses runs from one acknowledgement to the next of any writer.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use base::Prng;

use crate::problem::{CLIENT_BROKEN, Problem};
use client::{ANSWER_LIMIT, Volume};

/// Writes under way at once.
pub(crate) const WRITERS: u64 = 16;

/// Bytes of a write.
pub(crate) const BLOCK_BYTES: usize = 4096;

/// Blocks of a window: 4 MiB, the extent of the activity log.
const WINDOW_BLOCKS: u64 = 1024;

/// One window in so many is written to. Programs write in some places more than in others, and so
/// it can be seen that a returning copy is not sent everything.
const WINDOW_STRIDE: u64 = 8;

/// Bytes of a read of the final check.
const CHECK_BYTES: u64 = 256 * 1024;

/// How long a write may take in all, with every other way tried.
const WRITE_LIMIT: Duration = Duration::from_secs(60);

/// Between two tries to connect when no node takes one.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// What all writers share.
pub(crate) struct Progress {
    acknowledged: AtomicU64,
    checked: AtomicU64,
    stop: AtomicBool,
    pauses: Mutex<Pauses>,
}

struct Pauses {
    last: Instant,
    longest: Duration,
}

impl Progress {
    pub(crate) fn new() -> Progress {
        Progress {
            acknowledged: AtomicU64::new(0),
            checked: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            pauses: Mutex::new(Pauses { last: Instant::now(), longest: Duration::ZERO }),
        }
    }

    /// Writes acknowledged so far.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Bytes checked so far.
    pub(crate) fn checked_bytes(&self) -> u64 {
        self.checked.load(Ordering::Relaxed)
    }

    /// Writers end once their open write is acknowledged.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// The longest time without any acknowledgement, the present one included.
    pub(crate) fn longest_pause(&self) -> Duration {
        self.pauses.lock().unwrap_or_else(PoisonError::into_inner).longest
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn acknowledge(&self) {
        let first = self.acknowledged.fetch_add(1, Ordering::Relaxed) == 0;
        let now = Instant::now();
        let mut pauses = self.pauses.lock().unwrap_or_else(PoisonError::into_inner);
        // Before the first, nothing was promised: opening the volume is no pause.
        let pause = if first { Duration::ZERO } else { now.saturating_duration_since(pauses.last) };
        pauses.longest = pauses.longest.max(pause);
        pauses.last = now;
    }
}

/// What one writer knows in the end.
pub(crate) struct Written {
    /// For each of its blocks, the number of the last acknowledged write; 0: never written.
    versions: Vec<u64>,
    /// Connections that broke: to which node, and why.
    pub(crate) broken: Vec<(SocketAddr, String)>,
}

/// One writer. Its block number `n` is block `n * WRITERS + number` of the volume.
pub(crate) struct Writer {
    pub(crate) number: u64,
    /// Where to connect, the first choice first.
    pub(crate) nodes: Vec<SocketAddr>,
    pub(crate) export: String,
    /// Size of the volume in blocks.
    pub(crate) blocks: u64,
    pub(crate) seed: u64,
}

impl Writer {
    /// Writes until it is told to stop.
    pub(crate) fn run(&self, progress: &Progress) -> Result<Written, Problem> {
        let mine = (self.blocks.saturating_sub(self.number)).div_ceil(WRITERS);
        let windows = (self.blocks / (WINDOW_BLOCKS * WINDOW_STRIDE)).max(1);
        let window = (WINDOW_BLOCKS / WRITERS).min(mine);
        let count = usize::try_from(mine).unwrap_or(usize::MAX);
        let mut written = Written { versions: vec![0; count], broken: Vec::new() };
        let mut random = Prng::new(self.seed ^ (self.number + 1));
        let mut bytes = vec![0; BLOCK_BYTES];
        let mut connection = Connection { writer: self, disk: None, choice: 0 };
        let mut version = 0;
        while mine > 0 && !progress.stopped() {
            version += 1;
            let start = random.below(windows) * WINDOW_STRIDE * WINDOW_BLOCKS / WRITERS;
            let index = start + random.below(window);
            let block = index * WRITERS + self.number;
            fill(&mut bytes, self.seed, block, version);
            connection.write_until_acknowledged(block, &bytes, &mut written)?;
            if let Some(entry) =
                usize::try_from(index).ok().and_then(|i| written.versions.get_mut(i))
            {
                *entry = version;
            }
            progress.acknowledge();
        }
        Ok(written)
    }
}

struct Connection<'a> {
    writer: &'a Writer,
    disk: Option<Volume>,
    choice: usize,
}

impl Connection<'_> {
    fn write_until_acknowledged(
        &mut self,
        block: u64,
        bytes: &[u8],
        written: &mut Written,
    ) -> Result<(), Problem> {
        let begun = Instant::now();
        loop {
            let had = self.disk.is_some();
            match self.try_write(block, bytes) {
                Ok(()) => return Ok(()),
                Err(error) => {
                    self.disk = None;
                    if had {
                        written.broken.push((self.node(), error.to_string()));
                    }
                    self.choice += 1;
                    if begun.elapsed() > WRITE_LIMIT {
                        let message = format!(
                            "block {block} was not acknowledged by any node within {} s: {error}",
                            WRITE_LIMIT.as_secs()
                        );
                        return Err(Problem::new(CLIENT_BROKEN, message));
                    }
                    if !had {
                        thread::sleep(RETRY_INTERVAL);
                    }
                }
            }
        }
    }

    fn node(&self) -> SocketAddr {
        self.writer.nodes[self.choice % self.writer.nodes.len()]
    }

    fn try_write(&mut self, block: u64, bytes: &[u8]) -> io::Result<()> {
        let node = self.node();
        let disk = match &mut self.disk {
            Some(disk) => disk,
            None => self.disk.insert(Volume::open(node, &self.writer.export, ANSWER_LIMIT)?),
        };
        disk.write(block * BLOCK_BYTES as u64, bytes)
    }
}

/// The content of a block after its write number `version`; zeroes before the first.
fn fill(bytes: &mut [u8], seed: u64, block: u64, version: u64) {
    if version == 0 {
        bytes.fill(0);
        return;
    }
    let mut random = Prng::new(seed ^ block.rotate_left(32) ^ version.rotate_left(48));
    // The two numbers themselves make a wrong block tell where it is from.
    let mut words =
        [block, version].into_iter().chain(std::iter::repeat_with(|| random.next_u64()));
    for chunk in bytes.chunks_exact_mut(8) {
        let word = words.next().unwrap_or_default();
        chunk.copy_from_slice(&word.to_le_bytes());
    }
}

/// What every block must hold.
pub(crate) struct Expected {
    pub(crate) written: Vec<Written>,
    pub(crate) seed: u64,
    pub(crate) blocks: u64,
}

impl Expected {
    fn version(&self, block: u64) -> u64 {
        let writer = usize::try_from(block % WRITERS).unwrap_or_default();
        let index = usize::try_from(block / WRITERS).unwrap_or(usize::MAX);
        let writer = self.written.get(writer);
        writer.and_then(|written| written.versions.get(index)).copied().unwrap_or_default()
    }

    /// Number of blocks that were written at least once.
    pub(crate) fn touched(&self) -> u64 {
        let touched = |written: &Written| written.versions.iter().filter(|&&v| v > 0).count();
        self.written.iter().map(|written| touched(written) as u64).sum()
    }

    /// Reads the whole volume through the nodes, a piece of it through each, and returns the blocks
    /// that do not hold what they must.
    pub(crate) fn check(
        &self,
        nodes: &[SocketAddr],
        export: &str,
        progress: &Progress,
    ) -> Result<Vec<u64>, Problem> {
        thread::scope(|scope| {
            let parts = nodes.len() as u64;
            let readers: Vec<_> = (0..)
                .zip(nodes)
                .map(|(part, &node)| {
                    scope.spawn(move || self.check_part(node, export, part, parts, progress))
                })
                .collect();
            let mut wrong = Vec::new();
            for reader in readers {
                let part = reader.join().unwrap_or_else(|_| Err(io::Error::other("a thread died")));
                let part = part.map_err(|error| {
                    Problem::new(CLIENT_BROKEN, format!("reading back: {error}"))
                })?;
                wrong.extend(part);
            }
            wrong.sort_unstable();
            Ok(wrong)
        })
    }

    /// Every `parts`-th piece, beginning with number `part`.
    fn check_part(
        &self,
        node: SocketAddr,
        export: &str,
        part: u64,
        parts: u64,
        progress: &Progress,
    ) -> io::Result<Vec<u64>> {
        let mut disk = Volume::open(node, export, ANSWER_LIMIT)?;
        let total = self.blocks * BLOCK_BYTES as u64;
        let mut piece = vec![0; usize::try_from(CHECK_BYTES).unwrap_or(BLOCK_BYTES)];
        let mut wanted = vec![0; BLOCK_BYTES];
        let mut wrong = Vec::new();
        let mut offset = part * CHECK_BYTES;
        while offset < total {
            let length = usize::try_from(CHECK_BYTES.min(total - offset)).unwrap_or(BLOCK_BYTES);
            let piece = &mut piece[..length];
            disk.read(offset, piece)?;
            for (block, bytes) in
                (offset / BLOCK_BYTES as u64..).zip(piece.chunks_exact(BLOCK_BYTES))
            {
                fill(&mut wanted, self.seed, block, self.version(block));
                if bytes != wanted {
                    wrong.push(block);
                }
            }
            progress.checked.fetch_add(length as u64, Ordering::Relaxed);
            offset += parts * CHECK_BYTES;
        }
        Ok(wrong)
    }
}
