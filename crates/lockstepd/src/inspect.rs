//! `check` and `dump`: what the metadata of a backing store says, without a node.
//!
//! Always: nothing is written; a store that a node has open is refused.
//!
//! Not here: comparing data (`Dump` on the admin socket, `Verify`).

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use replica::disk::{
    BadMetadata, Layout, RECORD_BYTES, RECORD_COPIES, Record, Superblock, decode_bitmap_page,
    decode_log_page, hot_extents, newest_record,
};
use replica::door::{LogSize, MetaPage, Page};
use sys::{Access, File, OpenOptions};
use wire::admin::LOG_EXTENTS;

const PAGE_BYTES: usize = 4096;

/// What was found, and what is wrong with it.
struct Seen {
    superblock: Superblock,
    record: Option<Record>,
    lines: Vec<String>,
    faults: Vec<String>,
}

/// `check`: says what is wrong; ends well if nothing is.
pub(crate) fn check(path: &Path) -> ExitCode {
    match look(path) {
        Ok(seen) if seen.faults.is_empty() => {
            let good = "the metadata is good".to_owned();
            let lines = std::iter::once(good).chain(unwritable(&seen.superblock));
            say(lines.map(|line| format!("{}: {line}", path.display())));
            ExitCode::SUCCESS
        }
        Ok(seen) => {
            say(seen.faults.iter().map(|fault| format!("{}: {fault}", path.display())));
            ExitCode::FAILURE
        }
        Err(why) => {
            eprintln!("lockstepd: {}: {why}", path.display());
            ExitCode::FAILURE
        }
    }
}

/// `dump`: prints superblock, record and log.
pub(crate) fn dump(path: &Path) -> ExitCode {
    let seen = match look(path) {
        Ok(seen) => seen,
        Err(why) => {
            eprintln!("lockstepd: {}: {why}", path.display());
            return ExitCode::FAILURE;
        }
    };
    let record = match &seen.record {
        Some(record) => format!("{record:#?}"),
        None => "no record: the volume is not the first of its resource".to_owned(),
    };
    let first = [format!("{:#?}", seen.superblock), record];
    let rest = seen.lines.into_iter().chain(seen.faults).chain(unwritable(&seen.superblock));
    say(first.into_iter().chain(rest));
    ExitCode::SUCCESS
}

/// Prints lines for as long as somebody reads them.
fn say(lines: impl Iterator<Item = String>) {
    let mut out = std::io::stdout().lock();
    for line in lines {
        if writeln!(out, "{line}").is_err() {
            return;
        }
    }
}

/// Why no node of this release uses the disk although it can be read.
fn unwritable(superblock: &Superblock) -> Option<String> {
    let bits = superblock.unwritable();
    (bits != 0).then(|| {
        format!(
            "a node of this release leaves it alone: writing needs features {bits:#x}, unknown here"
        )
    })
}

fn look(path: &Path) -> Result<Seen, String> {
    let options = OpenOptions { access: Access::Read, ..OpenOptions::default() };
    let file = File::open(path, options).map_err(|errno| errno.to_string())?;
    file.lock_for_reading().map_err(|errno| format!("a node has it open, or {errno}"))?;
    let size = file.facts().map_err(|errno| errno.to_string())?.size_bytes;
    let (start, superblock) = find_superblock(&file, size)?;
    let layout = superblock.area().ok_or("its superblock names no activity log")?;
    let mut seen = Seen { superblock, record: None, lines: Vec::new(), faults: Vec::new() };
    look_at_record(&file, start, &layout, &mut seen);
    look_at_log(&file, start, &layout, &mut seen);
    look_at_bitmaps(&file, start, &layout, &mut seen);
    Ok(seen)
}

/// The metadata area starts the file (external), or stands at its end (internal), on a page: the
/// superblock itself says how long it is.
fn find_superblock(file: &File, size: u64) -> Result<(u64, Superblock), String> {
    if let Some(found) = superblock_at(file, 0)? {
        return Ok((0, found));
    }
    let pages = size / 4096;
    // Checksums and bitmaps take less than a 256th part of the data; and there are fixed pages, and those of the log.
    let log_pages = LogSize::of(*LOG_EXTENTS.end()).pages;
    let most = pages / 256 + 2048 + 4 * u64::from(log_pages);
    for back in 1..=most.min(pages) {
        let at = (pages - back) * 4096;
        if let Some(found) = superblock_at(file, at)? {
            return Ok((at, found));
        }
    }
    Err("there is no metadata of a replica".to_owned())
}

/// The superblock that stands there, if one does; an error if it does and cannot be used here.
fn superblock_at(file: &File, at: u64) -> Result<Option<Superblock>, String> {
    match read_page(file, at).map(|page| Superblock::decode(&page)) {
        Ok(Ok(found)) => Ok(Some(found)),
        Ok(Err(BadMetadata::NotOurs | BadMetadata::Torn)) | Err(_) => Ok(None),
        Ok(Err(bad)) => Err(format!("its superblock cannot be used: {bad}")),
    }
}

fn read_page(file: &File, at: u64) -> Result<Page, String> {
    let mut page: Page = [0; PAGE_BYTES];
    file.read_now(&mut page, at).map_err(|errno| errno.to_string())?;
    Ok(page)
}

fn look_at_record(file: &File, start: u64, layout: &Layout, seen: &mut Seen) {
    let length = usize::try_from(RECORD_BYTES).expect("16 KiB");
    let copies: Vec<Option<Vec<u8>>> = (0..u8::try_from(RECORD_COPIES).expect("two"))
        .map(|copy| {
            let mut bytes = vec![0; length];
            file.read_now(&mut bytes, start + layout.record_offset(copy)).ok()?;
            Some(bytes)
        })
        .collect();
    let copies: Vec<Option<&[u8]>> = copies.iter().map(Option::as_deref).collect();
    let empty = copies.iter().flatten().all(|copy| copy.iter().all(|&byte| byte == 0));
    match newest_record(&copies) {
        Ok(record) => seen.record = Some(record),
        Err(_) if empty && seen.superblock.volume.0 != 0 => {}
        Err(bad) => seen.faults.push(format!("no copy of the record is good: {bad}")),
    }
}

fn look_at_log(file: &File, start: u64, layout: &Layout, seen: &mut Seen) {
    let volume = seen.superblock.volume;
    let mut pages = Vec::new();
    for place in layout.log_places() {
        let MetaPage::Log { half, page, copy } = place else { continue };
        let bytes = read_page(file, start + layout.page_offset(place)).ok();
        match &bytes {
            Some(bytes) => {
                if let Err(bad) = decode_log_page(volume, half, page, copy, bytes) {
                    // One copy may be torn by a crash; the other is then the one that counts.
                    seen.lines.push(format!("log half {half} page {page} copy {copy}: {bad}"));
                }
            }
            None => seen.faults.push(format!("log half {half} page {page}: cannot be read")),
        }
        pages.push((place, bytes));
    }
    let Some(record) = &seen.record else { return };
    match hot_extents(volume, &pages, record.log_half, record.life) {
        Ok(found) => {
            let hot = found.extents.len();
            seen.lines.push(format!(
                "log of life {}: {hot} hot extents, {} page writes",
                record.life, found.writes
            ));
            seen.lines.extend(
                found.extents.iter().map(|(volume, extent)| format!("hot: {volume}/{extent}")),
            );
        }
        Err(bad) => seen.faults.push(format!("the log cannot be believed: {bad}")),
    }
}

fn look_at_bitmaps(file: &File, start: u64, layout: &Layout, seen: &mut Seen) {
    let volume = seen.superblock.volume;
    let slots = seen.record.as_ref().map_or(Vec::new(), |record| record.slots.clone());
    for slot in slots.iter().filter(|slot| slot.number < layout.slots) {
        let mut dirty = 0;
        for page in 0..layout.bitmap_pages {
            let place = MetaPage::Bitmap { slot: slot.number, page };
            let bytes = read_page(file, start + layout.page_offset(place));
            let decoded = bytes.and_then(|bytes| {
                decode_bitmap_page(volume, slot.number, page, &bytes).map_err(|bad| bad.to_string())
            });
            match decoded {
                Ok((generation, runs)) if generation == slot.generation => {
                    dirty += runs.iter().map(|(first, end)| end - first).sum::<u64>();
                }
                Ok(_) => {}
                Err(why) => {
                    seen.faults.push(format!("bitmap of node {} page {page}: {why}", slot.node));
                }
            }
        }
        let full = if slot.full { ", and everything is to be copied" } else { "" };
        seen.lines.push(format!("node {} lacks {dirty} blocks of 4 KiB{full}", slot.node));
    }
}
