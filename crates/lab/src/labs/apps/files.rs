//! Files on a file system, each synced with its directory before it counts.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use base::Prng;

use super::{Application, BTRFS, EXT4, Kind, XFS, cannot, survives};
use crate::bench::{Bench, Failure, Outcome, ensure};

/// Steps between two events.
const STEPS: usize = 60;

/// Of these many files at once; a later one takes the place of an earlier one.
const FILES: u64 = 200;

/// The largest file.
const BYTES_MAX: u64 = 256 << 10;

pub(in super::super) fn ext4(bench: &Bench) -> Outcome {
    file_system(bench, &EXT4)
}

pub(in super::super) fn xfs(bench: &Bench) -> Outcome {
    file_system(bench, &XFS)
}

pub(in super::super) fn btrfs(bench: &Bench) -> Outcome {
    file_system(bench, &BTRFS)
}

fn file_system(bench: &Bench, kind: &Kind) -> Outcome {
    if let Some(verdict) = cannot(&[kind.make[0], kind.check[0]]) {
        return Ok(verdict);
    }
    survives::<Files>(bench, kind, STEPS)
}

/// Files whose bytes follow from the number of the step that wrote them.
struct Files {
    directory: PathBuf,
    seed: u64,
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    stable: Mutex<Vec<u64>>,
    error: Mutex<Option<io::Error>>,
}

impl Shared {
    fn stable(&self) -> Vec<u64> {
        self.stable.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn content(seed: u64, step: u64) -> Vec<u8> {
    let mut random = Prng::new(seed ^ step << 20);
    let length = usize::try_from(random.below(BYTES_MAX)).unwrap_or(0);
    let words = std::iter::repeat_with(|| random.next_u64().to_le_bytes());
    step.to_le_bytes().into_iter().chain(words.flatten()).take(length + 8).collect()
}

fn name(step: u64) -> String {
    format!("file-{}", step % FILES)
}

/// Writes one file beside its place, and puts it there.
fn write(directory: &Path, seed: u64, step: u64) -> io::Result<()> {
    let new = directory.join("new");
    let mut file = File::create(&new)?;
    file.write_all(&content(seed, step))?;
    file.sync_all()?;
    fs::rename(&new, directory.join(name(step)))?;
    File::open(directory)?.sync_all()
}

impl Application for Files {
    fn start(bench: &Bench, mount: &Path, is_new: bool) -> Outcome<Files> {
        let directory = mount.join("files");
        let (seed, shared) = (bench.seed, Arc::new(Shared::default()));
        let mut files = Files { directory, seed, shared, writer: None };
        if is_new {
            fs::create_dir(&files.directory)?;
            let (directory, shared) = (files.directory.clone(), Arc::clone(&files.shared));
            let work = move || {
                for step in 0.. {
                    if shared.stop.load(Ordering::Relaxed) {
                        return;
                    }
                    if let Err(error) = write(&directory, seed, step) {
                        *shared.error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                        return;
                    }
                    shared.stable.lock().unwrap_or_else(PoisonError::into_inner).push(step);
                }
            };
            files.writer = Some(thread::spawn(work));
        }
        Ok(files)
    }

    fn steps(&mut self) -> Outcome<usize> {
        let error = self.shared.error.lock().unwrap_or_else(PoisonError::into_inner);
        match &*error {
            Some(error) => Err(Failure(format!("a file could not be written: {error}"))),
            None => Ok(self.shared.stable().len()),
        }
    }

    fn end(mut self) -> Outcome<Vec<u64>> {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(writer) = self.writer.take() {
            writer.join().map_err(|_| "the writer panicked")?;
        }
        Ok(self.shared.stable())
    }

    fn check(self, _: &Bench, steps: &[u64]) -> Outcome<()> {
        let newest = steps.iter().max().copied().unwrap_or(0);
        for &step in steps.iter().filter(|step| **step + FILES > newest) {
            let bytes = fs::read(self.directory.join(name(step)))?;
            // The step after the last that is known may have taken a place.
            let is_next = newest + 1 == step + FILES && bytes == content(self.seed, newest + 1);
            ensure!(
                is_next || bytes == content(self.seed, step),
                "{} does not hold what step {step} synced",
                name(step)
            );
        }
        Ok(())
    }
}
