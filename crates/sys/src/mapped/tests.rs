#![expect(clippy::unwrap_used, reason = "tests stop at the first surprise")]

use std::path::{Path, PathBuf};
use std::process::Command;

use super::*;
use crate::{Access, OpenOptions};

/// A file system in memory of its own, with room for `size`; `None`, and why, where none can be had.
struct Room(PathBuf);

impl Room {
    fn new(name: &str, size: &str) -> Option<Room> {
        let path =
            std::env::temp_dir().join(format!("lockstep-mapped-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let room = Room(path);
        let options = format!("size={size}");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(&room.0)
            .output();
        if mounted.is_ok_and(|said| said.status.success()) {
            return Some(room);
        }
        println!("NOT RUN: no file system in memory can be mounted");
        None
    }

    fn file(&self, name: &str, bytes: u64) -> File {
        file(&self.0.join(name), bytes)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).output();
        let _ = std::fs::remove_dir(&self.0);
    }
}

fn file(path: &Path, bytes: u64) -> File {
    let options =
        OpenOptions { access: Access::ReadWrite, create_new: true, ..OpenOptions::default() };
    let file = File::open(path, options).unwrap();
    file.set_size(bytes).unwrap();
    file
}

#[test]
fn what_is_written_in_place_is_read_from_the_file() {
    let Some(room) = Room::new("read", "8m") else { return };
    let file = room.file("pages", 1 << 20);
    let mapped = file.map(1 << 20).unwrap();
    assert_eq!(mapped.kind(), MappedKind::Volatile);
    mapped.make_present(0, 40_960).unwrap();
    let page: Vec<u8> = (0..4096).map(|at| u8::try_from(at % 251).unwrap()).collect();
    mapped.clone().write(ROOM_BYTES - 2048, &page).unwrap();
    let mut found = vec![0; 4096];
    file.read_now(&mut found, ROOM_BYTES - 2048).unwrap();
    assert_eq!(found, page);
    file.read_now(&mut found, 0).unwrap();
    assert!(found.iter().all(|&byte| byte == 0), "nothing else was written");
    for (offset, length) in
        [(1 << 20, 8), ((1 << 20) - 8, 16), (4, 8), (0, 12), (8, 0), (u64::MAX, 8)]
    {
        assert_eq!(mapped.write(offset, &page[..length]), Err(Errno::INVALID), "{offset} {length}");
    }
    assert!(matches!(file.map((1 << 20) + 1), Err(Errno::INVALID)));
}

#[test]
fn where_the_file_system_has_no_room_a_write_is_an_error() {
    let Some(room) = Room::new("full", "1m") else { return };
    let file = room.file("pages", 8 << 20);
    let mapped = file.map(8 << 20).unwrap();
    let full = (0..32).find_map(|piece| mapped.write(piece * ROOM_BYTES, &[7; 8]).err());
    assert_eq!(full, Some(Errno::NO_SPACE), "and this process lives");
    mapped.write(8, &[9; 8]).unwrap();
}

#[test]
fn a_page_that_the_memory_cannot_give_is_an_error_of_what_is_written_there() {
    let Some(room) = Room::new("bad", "8m") else { return };
    let file = room.file("pages", 1 << 20);
    let mapped = file.map(1 << 20).unwrap();
    mapped.write(0, &[7; 8]).unwrap();
    // Whoever touches what the file has no more gets a signal, as with a bad place of a module.
    file.set_size(1 << 19).unwrap();
    assert_eq!(mapped.make_present(1 << 19, 8192), Err(Errno::IO));
    assert_eq!(mapped.write((1 << 20) - 8, &[7; 8]), Err(Errno::IO), "and this process lives");
    mapped.write(4096, &[7; 8]).unwrap();
}

#[test]
fn a_file_on_a_disk_is_not_written_in_place() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join(format!("../../target/not-mapped-{}", std::process::id()));
    let file = file(&path, 1 << 20);
    let in_memory = file.is_in_memory().unwrap();
    let mapped = file.map(1 << 20);
    std::fs::remove_file(&path).unwrap();
    if in_memory {
        println!("NOT RUN: the build's directory is in memory");
    } else {
        assert_eq!(mapped.err(), Some(Errno::NOT_SUPPORTED));
    }
}
