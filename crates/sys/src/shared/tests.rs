#![expect(clippy::unwrap_used, reason = "tests stop at the first surprise")]

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::mpsc;

use base::Duration;

use crate::{
    EngineChoice, Errno, Event, HANDLES_MAX, Handle, Hands, HandsConfig, SharedMemory, Socket,
};

/// A file system in memory.
const IN_MEMORY: &str = "/dev/shm";

/// A file of so many bytes that can be made shorter.
fn file(directory: &Path, bytes: u64) -> (std::fs::File, Handle) {
    let path = directory.join(format!("lockstep-shared-{:x}", crate::random_u64()));
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path);
    let file = file.unwrap();
    std::fs::remove_file(&path).unwrap();
    file.set_len(bytes).unwrap();
    let handle = Handle::from(OwnedFd::from(file.try_clone().unwrap()));
    (file, handle)
}

#[test]
fn memory_is_seen_by_both_sides_and_nothing_beside_it() {
    let (one, handle) = SharedMemory::create(8192).unwrap();
    let other = SharedMemory::map(&handle, 4096, 4096).unwrap();
    one.write(4090, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    let mut bytes = [0; 2];
    other.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [7, 8]);
    other.store(2, 0x1234).unwrap();
    assert_eq!((other.load(2), one.load(4098)), (Ok(0x1234), Ok(0x1234)));
    assert_eq!(other.load(1), Err(Errno::INVALID), "askew");
    for offset in [4095, 4096, u64::MAX - 1, u64::MAX] {
        assert_eq!(other.read(offset, &mut bytes), Err(Errno::INVALID));
        assert_eq!(other.write(offset, &bytes), Err(Errno::INVALID));
        assert_eq!(other.load(offset), Err(Errno::INVALID));
        assert_eq!(other.store(offset, 0), Err(Errno::INVALID));
    }
    for (offset, length) in [(0, 8193), (8192, 1), (0, 0), (u64::MAX, 2)] {
        assert!(SharedMemory::map(&handle, offset, length).is_err(), "{offset} {length}");
    }
    assert!(SharedMemory::map(&Handle::new_event().unwrap(), 0, 1).is_err(), "no file");
}

#[test]
fn memory_that_is_taken_away_is_an_error_and_not_the_end() {
    let (file, handle) = file(Path::new(IN_MEMORY), 8192);
    let memory = SharedMemory::map(&handle, 0, 8192).unwrap();
    memory.write(5000, b"here").unwrap();
    memory.store(6000, 7).unwrap();
    let mut bytes = [0; 4];
    memory.read(5000, &mut bytes).unwrap();
    assert_eq!((&bytes, memory.load(6000)), (b"here", Ok(7)));
    file.set_len(4096).unwrap();
    assert!(memory.read(5000, &mut bytes).is_err());
    assert!(memory.write(5000, &bytes).is_err());
    assert!(memory.load(6000).is_err() && memory.store(6000, 1).is_err());
    memory.read(0, &mut bytes).unwrap();
}

#[test]
fn a_file_that_is_no_memory_is_not_mapped() {
    // Where this program lies is a disk, or what stands for one.
    let program = std::env::current_exe().unwrap();
    let (_, handle) = file(program.parent().unwrap(), 8192);
    // SAFETY: plain call on a descriptor that is open.
    if unsafe { libc::fcntl(handle.0.number(), libc::F_GET_SEALS) } >= 0 {
        return println!("NOT RUN: this program lies in memory");
    }
    assert_eq!(SharedMemory::map(&handle, 0, 8192).err(), Some(Errno::NOT_SUPPORTED));
}

/// The flag that keeps whoever reads or writes from waiting belongs to all processes that have it.
#[test]
fn who_shares_a_signal_cannot_keep_this_process_waiting() {
    let event = Handle::new_event().unwrap();
    let theirs = event.clone();
    assert!(event.becomes_event());
    let number = theirs.0.number();
    // SAFETY: plain call without pointers on a descriptor that is open.
    assert_eq!(unsafe { libc::fcntl(number, libc::F_SETFL, 0) }, 0);
    let (say, heard) = mpsc::channel();
    std::thread::spawn(move || {
        say.send(event.take_signal()).unwrap();
        let full = (u64::MAX - 1).to_ne_bytes();
        // SAFETY: writes eight bytes from a local array.
        unsafe { libc::write(number, full.as_ptr().cast(), full.len()) };
        event.signal();
        say.send(event.take_signal()).unwrap();
        event.signal();
        say.send(event.take_signal()).unwrap();
        say.send(event.take_signal()).unwrap();
    });
    let patience = std::time::Duration::from_secs(20);
    for expected in [false, true, true, false] {
        assert_eq!(heard.recv_timeout(patience), Ok(expected), "or it waits");
    }
    drop(theirs);
}

#[test]
fn descriptors_come_with_their_bytes_and_not_more_than_there_is_room_for() {
    let (one, other) = Socket::pair().unwrap();
    let event = Handle::new_event().unwrap();
    let (mut bytes, mut handles) = ([0; 8], Vec::new());
    assert_eq!(other.receive_now(&mut bytes, &mut handles), Err(Errno::AGAIN));
    one.send_now(b"alone", None).unwrap();
    one.send_now(b"with", Some(&event)).unwrap();
    assert_eq!(other.receive_now(&mut bytes[..5], &mut handles), Ok(5));
    assert!(handles.is_empty());
    assert_eq!(other.receive_now(&mut bytes, &mut handles), Ok(4));
    let came = handles.pop().unwrap();
    assert!(came.becomes_event() && came.as_socket().is_none());
    event.signal();
    assert_eq!((came.take_signal(), came.take_signal()), (true, false));
    for _ in 0..=HANDLES_MAX {
        handles.push(event.clone());
    }
    one.send_now(b"more", Some(&event)).unwrap();
    assert!(other.receive_now(&mut bytes, &mut handles).is_err(), "too many");
    drop(one);
    assert_eq!(other.receive_now(&mut bytes, &mut Vec::new()), Ok(0));
    let (_, memory) = SharedMemory::create(1).unwrap();
    assert!(!memory.becomes_event(), "it would be readable for ever");
}

#[test]
fn a_signal_and_a_socket_are_waited_for_on_both_engines() {
    for engine in [EngineChoice::Uring, EngineChoice::Epoll] {
        let config = HandsConfig { engine, operations_max: 16 };
        let Ok(mut hands) = Hands::with_engine(config, engine) else {
            println!("NOT RUN: {engine:?}");
            continue;
        };
        let wait = |hands: &mut Hands| -> Event {
            let mut events = Vec::new();
            while events.is_empty() {
                hands.wait(Some(Duration::from_secs(20)), &mut events).unwrap();
            }
            assert_eq!(events.len(), 1);
            events.remove(0)
        };
        let event = Handle::new_event().unwrap();
        let (one, other) = Socket::pair().unwrap();
        for _ in 0..2 {
            hands.watch_handle(1, &event);
            hands.watch_socket(2, &other);
            event.signal();
            let came = wait(&mut hands);
            assert!(came.token == 1 && came.result.is_ok() && event.take_signal());
            one.send_now(b"x", None).unwrap();
            let came = wait(&mut hands);
            assert!(came.token == 2 && came.result.is_ok());
            assert_eq!(other.receive_now(&mut [0; 4], &mut Vec::new()), Ok(1));
        }
        hands.watch_handle(3, &event);
        hands.wait(Some(Duration(0)), &mut Vec::new()).unwrap();
        hands.stop_watching(&event);
        let came = wait(&mut hands);
        assert_eq!((came.token, came.result), (3, Err(Errno::CANCELED)));
        hands.watch_socket(4, &other);
        drop(one);
        assert_eq!(wait(&mut hands).token, 4);
        assert_eq!(other.receive_now(&mut [0; 4], &mut Vec::new()), Ok(0));
    }
}
