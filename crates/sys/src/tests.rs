//! What the hands promise, on both engines.
#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests stop at the first surprise"
)]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use base::Duration;

use crate::descriptor::Descriptor;
use crate::streams::{SendBatch, SendQueue};
use crate::{
    Access, Account, Budget, Buffer, BufferPool, EngineChoice, Errno, Event, File, Hands,
    HandsConfig, OpenOptions, Payload, Piece, Socket, SocketAddress, listen_tcp, listen_unix,
    listen_unix_private,
};

mod given_up;
mod hung;
pub(crate) mod mounted;

/// Longer than anything here takes; only a failing test waits for it.
const PATIENCE: Duration = Duration::from_secs(20);

fn small(engine: EngineChoice) -> HandsConfig {
    HandsConfig { engine, operations_max: 64 }
}

/// Runs a test on each engine; where one cannot be had, says so.
fn on_both(test: impl Fn(&mut Hands)) {
    for choice in [EngineChoice::Uring, EngineChoice::Epoll] {
        match Hands::with_engine(small(choice), choice) {
            Ok(mut hands) => test(&mut hands),
            Err(why) => println!("NOT RUN: {choice:?}: {why}"),
        }
    }
}

/// Waits until `count` events came.
fn gather(hands: &mut Hands, count: usize) -> Vec<Event> {
    let mut events = Vec::new();
    let end = hands.now_fresh() + PATIENCE;
    while events.len() < count {
        assert!(hands.now_fresh() < end, "{count} events awaited, these came: {events:?}");
        hands.wait(Some(Duration::from_secs(1)), &mut events).unwrap();
    }
    assert_eq!(events.len(), count, "{events:?}");
    events
}

fn one(hands: &mut Hands) -> Event {
    gather(hands, 1).remove(0)
}

fn take(events: &mut Vec<Event>, token: u64) -> Event {
    let at = events.iter().position(|event| event.token == token).expect("the token came back");
    events.remove(at)
}

fn buffer_of(event: Event) -> Buffer {
    match event.payload {
        Payload::Buffer(buffer) => buffer,
        other => panic!("a buffer was awaited, not {other:?}"),
    }
}

fn socket_of(event: Event) -> Socket {
    match event.payload {
        Payload::Socket(socket) => socket,
        other => panic!("a socket was awaited, not {other:?}"),
    }
}

/// A directory of its own for a test, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        let name = format!("lockstep-sys-{:016x}", crate::random_u64());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// A connected pair: (connecting end, accepted end).
fn pair(hands: &mut Hands, unix: Option<&Scratch>) -> (Socket, Socket) {
    let (listener, address) = match unix {
        Some(scratch) => {
            let path = scratch.0.join("socket");
            (listen_unix(&path).unwrap(), SocketAddress::Unix(path))
        }
        None => {
            let listener = listen_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
            let address = listener.local_address().unwrap();
            (listener, SocketAddress::Tcp(address))
        }
    };
    hands.accept(1, &listener);
    let client = hands.connect(2, None, &address).unwrap();
    let mut events = gather(hands, 2);
    assert_eq!(take(&mut events, 2).result, Ok(0));
    let server = socket_of(take(&mut events, 1));
    hands.stop_accepting(&listener);
    let last = one(hands);
    assert_eq!((last.token, last.result), (1, Err(Errno::CANCELED)));
    (client, server)
}

fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut prng = base::Prng::new(seed);
    (0..length).map(|_| prng.next_u64() as u8).collect()
}

fn filled(pool: &BufferPool, bytes: &[u8]) -> Buffer {
    let mut buffer = pool.take(bytes.len()).unwrap();
    buffer.as_mut().unwrap().copy_from_slice(bytes);
    buffer
}

fn echo(hands: &mut Hands, client: &Socket, server: &Socket) {
    let pool = BufferPool::new(16 << 20);
    let (big, tail) = (pattern(1 << 20, 1), pattern(300_000, 2));
    let shared = filled(&pool, &big);
    let other = filled(&pool, &tail);
    // Far more than a socket holds, in several sends, some queued while others are in flight.
    hands.send(10, client, [Piece::from(b"head".to_vec()), Piece::from(shared.clone())]);
    hands.send(
        11,
        client,
        [Piece::part(&other, 0..100_000), Piece::part(&other, 100_000..300_000)],
    );
    let mut received = Vec::new();
    let total = 4 + big.len() + tail.len() + big.len();
    let mut sent = Vec::new();
    let mut queued_more = false;
    hands.receive(20, server, pool.take(1 << 20).unwrap(), 0..1 << 20);
    while received.len() < total {
        let mut events = Vec::new();
        hands.wait(Some(PATIENCE), &mut events).unwrap();
        for event in events {
            if event.token != 20 {
                sent.push((event.token, event.result));
                continue;
            }
            let count = event.result.unwrap() as usize;
            assert!(count > 0, "the stream goes on");
            let buffer = buffer_of(event);
            received.extend_from_slice(&buffer[..count]);
            if !queued_more {
                queued_more = true;
                hands.send(12, client, [Piece::from(shared.clone())]);
            }
            if received.len() < total {
                hands.receive(20, server, buffer, 0..1 << 20);
            }
        }
    }
    while sent.len() < 3 {
        sent.extend(gather(hands, 1).iter().map(|event| (event.token, event.result)));
    }
    assert_eq!(received, [&b"head"[..], &big, &tail, &big].concat());
    assert_eq!(sent, [(10, Ok(4 + (1 << 20))), (11, Ok(300_000)), (12, Ok(1 << 20))]);
    // And back, into the middle of a buffer, whole.
    hands.send(30, server, [Piece::from(tail.clone())]);
    hands.receive_full(31, client, pool.take(400_000).unwrap(), 1000..301_000);
    let mut events = gather(hands, 2);
    let back = take(&mut events, 31);
    assert_eq!(back.result, Ok(300_000));
    assert_eq!(&buffer_of(back)[1000..301_000], &tail[..]);
    drop((shared, other, events));
    assert_eq!(pool.used_bytes(), 0, "every buffer came back");
    assert_eq!(hands.in_flight(), 0);
}

#[test]
fn big_vectored_sends_arrive_whole_and_in_order_over_tcp() {
    on_both(|hands| {
        let (client, server) = pair(hands, None);
        echo(hands, &client, &server);
    });
}

#[test]
fn big_vectored_sends_arrive_whole_and_in_order_over_unix_sockets() {
    on_both(|hands| {
        let scratch = Scratch::new();
        let (client, server) = pair(hands, Some(&scratch));
        assert_eq!(server.peer_user_id(), client.peer_user_id());
        echo(hands, &client, &server);
    });
}

/// Small sends, until one finds no room: nobody reads.
fn small_sends_fill_a_socket(hands: &mut Hands, client: &Socket, server: &Socket) {
    const BYTES: usize = 20_000;
    let pool = BufferPool::new(1 << 20);
    hands.send(0, client, [Piece::from(pattern(BYTES, 0))]);
    let mut events = Vec::new();
    while events.is_empty() {
        // It ends although nothing else happens.
        hands.wait(None, &mut events).unwrap();
    }
    let mut count = 1;
    while events.len() == count {
        hands.send(count as u64, client, [Piece::from(pattern(BYTES, count as u64))]);
        count += 1;
        let end = hands.now_fresh() + Duration::from_millis(100);
        while events.len() < count && hands.now_fresh() < end {
            hands.wait(Some(Duration::from_millis(20)), &mut events).unwrap();
        }
    }
    for more in count..count + 3 {
        hands.send(more as u64, client, [Piece::from(pattern(BYTES, more as u64))]);
    }
    count += 3;
    for at in 0..count as u64 {
        hands.receive_full(u64::MAX, server, pool.take(BYTES).unwrap(), 0..BYTES);
        while events.iter().all(|event| event.token != u64::MAX) {
            hands.wait(Some(PATIENCE), &mut events).unwrap();
        }
        let received = buffer_of(take(&mut events, u64::MAX));
        assert_eq!(&received[..], &pattern(BYTES, at)[..], "send {at}");
    }
    while events.len() < count {
        hands.wait(Some(PATIENCE), &mut events).unwrap();
    }
    let tokens: Vec<u64> = events.iter().map(|event| event.token).collect();
    assert_eq!(tokens, (0..count as u64).collect::<Vec<_>>(), "told in order");
    assert!(events.iter().all(|event| event.result == Ok(BYTES as u32)), "{events:?}");
}

#[test]
fn a_send_behind_which_others_wait_is_told_when_it_has_gone() {
    let mut queue = SendQueue::default();
    let mut batch = SendBatch::new();
    queue.push(1, (0..100).map(|_| Piece::from(vec![1])));
    batch.fill(&queue);
    assert_eq!((batch.at_once(false), batch.at_once(true)), (Some(100), None));
    queue.push(2, (0..100).map(|_| Piece::from(vec![1])));
    batch.fill(&queue);
    assert_eq!(batch.at_once(false), None, "a batch has fewer pieces than wait");
    queue.sent(100, |_, _| ());
    queue.push(3, [Piece::from(vec![1; 1 << 20])]);
    batch.fill(&queue);
    assert_eq!(batch.at_once(false), None, "too many bytes to be told of late");
}

#[test]
fn small_sends_beyond_a_socket_s_room_wait_for_it_and_arrive_in_order() {
    on_both(|hands| {
        let scratch = Scratch::new();
        for unix in [None, Some(&scratch)] {
            let (client, server) = pair(hands, unix);
            small_sends_fill_a_socket(hands, &client, &server);
        }
    });
}

#[test]
fn one_accept_takes_many_connections() {
    on_both(|hands| {
        let listener = listen_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = SocketAddress::Tcp(listener.local_address().unwrap());
        hands.accept(1, &listener);
        let local = Some("127.0.0.1:0".parse().unwrap());
        let clients: Vec<_> =
            (0..20).map(|n| hands.connect(100 + n, local, &address).unwrap()).collect();
        let events = gather(hands, 40);
        let accepted = events.iter().filter(|event| event.token == 1).count();
        assert_eq!((accepted, clients.len()), (20, 20));
    });
}

#[test]
fn a_refused_connection_says_so() {
    on_both(|hands| {
        let listener = listen_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = SocketAddress::Tcp(listener.local_address().unwrap());
        drop(listener);
        let _socket = hands.connect(7, None, &address).unwrap();
        assert_eq!(one(hands).result, Err(Errno(libc::ECONNREFUSED)));
        let nowhere = SocketAddress::Unix("/nonexistent/socket".into());
        let _socket = hands.connect(8, None, &nowhere).unwrap();
        assert_eq!(one(hands).result, Err(Errno::NOT_FOUND));
    });
}

#[test]
fn the_end_of_a_stream_is_a_receive_of_nothing() {
    on_both(|hands| {
        let (client, server) = pair(hands, None);
        let pool = BufferPool::new(1 << 20);
        hands.send(1, &client, [Piece::from(b"last words".to_vec())]);
        assert_eq!(one(hands).result, Ok(10));
        hands.close(&client);
        drop(client);
        hands.receive_full(2, &server, pool.take(4096).unwrap(), 0..4096);
        assert_eq!(one(hands).result, Ok(10));
        hands.receive(3, &server, pool.take(4096).unwrap(), 0..4096);
        assert_eq!(one(hands).result, Ok(0));
    });
}

#[test]
fn a_close_ends_a_pending_receive_and_queued_sends() {
    on_both(|hands| {
        let (client, server) = pair(hands, None);
        let pool = BufferPool::new(64 << 20);
        hands.receive(1, &client, pool.take(4096).unwrap(), 0..4096);
        let big = pool.take_zeroed(1 << 20).unwrap();
        let flood: Vec<_> = (0..32).map(|_| Piece::from(big.clone())).collect();
        hands.send(2, &client, flood);
        // Let the send begin: the peer reads nothing, so it cannot end.
        let mut events = Vec::new();
        hands.wait(Some(Duration(0)), &mut events).unwrap();
        assert!(events.is_empty(), "{events:?}");
        hands.send(3, &client, [Piece::from(big)]);
        hands.close(&client);
        let mut events = gather(hands, 3);
        for token in 1..=3 {
            assert_eq!(take(&mut events, token).result, Err(Errno::CANCELED), "token {token}");
        }
        assert_eq!((hands.in_flight(), pool.used_bytes()), (0, 0));
        drop(server);
    });
}

#[test]
fn a_number_reused_after_a_close_belongs_to_the_new_socket() {
    on_both(|hands| {
        let pool = BufferPool::new(1 << 20);
        for _ in 0..10 {
            let (client, server) = pair(hands, None);
            hands.receive(1, &server, pool.take(100).unwrap(), 0..100);
            hands.wait(Some(Duration(0)), &mut Vec::new()).unwrap();
            hands.send(2, &client, [Piece::from(b"x".to_vec())]);
            let mut events = gather(hands, 2);
            assert_eq!(take(&mut events, 1).result, Ok(1));
        }
    });
}

fn direct(path: &std::path::Path) -> File {
    let options = OpenOptions { access: Access::ReadWrite, direct: true, ..Default::default() };
    File::open(path, options)
        .or_else(|_| File::open(path, OpenOptions { direct: false, ..options }))
        .unwrap()
}

#[test]
fn holes_of_a_file_are_where_nothing_was_written() {
    let scratch = Scratch::new();
    let path = scratch.0.join("disk");
    std::fs::File::create(&path).unwrap().set_len(8 << 20).unwrap();
    let options = OpenOptions { access: Access::ReadWrite, ..Default::default() };
    let file = File::open(&path, options).unwrap();
    file.write_now(&vec![7; 1 << 20], 2 << 20).unwrap();
    let all = file.holes_now(0..8 << 20, 9).unwrap();
    let is_hole = |at: u64| all.iter().any(|hole| hole.contains(&at));
    assert!(!is_hole(2 << 20) && !is_hole((3 << 20) - 1), "{all:?}");
    assert!(all.windows(2).all(|pair| pair[0].end < pair[1].start), "{all:?}");
    // A file system that keeps no holes names none.
    if !all.is_empty() {
        assert_eq!(all, [0..2 << 20, 3 << 20..8 << 20]);
        let part = file.holes_now(1 << 20..(3 << 20) + 4096, 9).unwrap();
        assert_eq!(part, [1 << 20..2 << 20, 3 << 20..(3 << 20) + 4096]);
        assert_eq!(file.holes_now(0..8 << 20, 1).unwrap(), all[..1]);
        let beyond = file.holes_now(7 << 20..9 << 20, 9).unwrap();
        assert_eq!(beyond.iter().map(|hole| hole.end - hole.start).sum::<u64>(), 2 << 20);
    }
    assert_eq!(file.holes_now(5..5, 9).unwrap(), []);
}

#[test]
fn files_are_written_read_punched_and_flushed() {
    on_both(|hands| {
        let scratch = Scratch::new();
        let path = scratch.0.join("disk");
        std::fs::write(&path, vec![0xee; 4 << 20]).unwrap();
        let file = direct(&path);
        let pool = BufferPool::new(16 << 20);
        let bytes = pattern(1 << 20, 3);
        let buffer = filled(&pool, &bytes);
        hands.write(1, &file, 1 << 20, Piece::from(buffer.clone()), false);
        hands.write(2, &file, 3 << 20, Piece::part(&buffer, 4096..12_288), true);
        let mut events = gather(hands, 2);
        assert_eq!(take(&mut events, 1).result, Ok(1 << 20));
        assert_eq!(take(&mut events, 2).result, Ok(8192));
        hands.zero(3, &file, (1 << 20) + 4096, 8192, true, false);
        assert_eq!(one(hands).result, Ok(0));
        hands.zero(4, &file, (1 << 20) + 65_536, 4096, false, true);
        assert_eq!(one(hands).result, Ok(0));
        hands.sync(5, &file);
        assert_eq!(one(hands).result, Ok(0));
        let mut expected = bytes.clone();
        expected[4096..4096 + 8192].fill(0);
        expected[65_536..65_536 + 4096].fill(0);
        hands.read(6, &file, 1 << 20, pool.take(1 << 20).unwrap(), 0..1 << 20);
        let event = one(hands);
        assert_eq!(event.result, Ok(1 << 20));
        assert_eq!(&buffer_of(event)[..], &expected[..]);
        let on_disk = std::fs::read(&path).unwrap();
        assert_eq!(&on_disk[3 << 20..(3 << 20) + 8192], &bytes[4096..12_288]);
        assert_eq!(on_disk.len(), 4 << 20, "nothing changes a file's size");
    });
}

#[test]
fn a_read_beyond_the_end_and_a_write_to_nowhere_are_errors() {
    on_both(|hands| {
        let scratch = Scratch::new();
        let path = scratch.0.join("short");
        std::fs::write(&path, vec![1; 8192]).unwrap();
        let file = File::open(&path, OpenOptions::default()).unwrap();
        let pool = BufferPool::new(1 << 20);
        hands.read(1, &file, 4096, pool.take(8192).unwrap(), 0..8192);
        let event = one(hands);
        assert_eq!(event.result, Err(Errno::NO_DATA));
        assert_eq!(buffer_of(event).len(), 8192, "the buffer comes back with an error");
        hands.write(2, &file, 0, Piece::from(pool.take_zeroed(4096).unwrap()), false);
        assert_eq!(one(hands).result, Err(Errno(libc::EBADF)));
    });
}

#[test]
fn an_offset_that_no_file_has_is_refused_and_is_not_where_the_file_was_left() {
    on_both(|hands| {
        let scratch = Scratch::new();
        let path = scratch.0.join("file");
        std::fs::write(&path, vec![1; 8192]).unwrap();
        let options = OpenOptions { access: Access::ReadWrite, ..Default::default() };
        let file = File::open(&path, options).unwrap();
        let pool = BufferPool::new(1 << 20);
        for offset in [u64::MAX, u64::MAX - 4095, 1 << 63] {
            let zeroes = Piece::from(pool.take_zeroed(4096).unwrap());
            hands.write(1, &file, offset, zeroes, false);
            assert_eq!(one(hands).result, Err(Errno::INVALID), "{offset:#x}");
            hands.read(2, &file, offset, pool.take(4096).unwrap(), 0..4096);
            assert_eq!(one(hands).result, Err(Errno::INVALID), "{offset:#x}");
            hands.zero(3, &file, offset, 4096, true, false);
            assert_eq!(one(hands).result, Err(Errno::INVALID), "{offset:#x}");
        }
        assert_eq!(std::fs::read(&path).unwrap(), vec![1; 8192]);
    });
}

#[test]
fn zeroes_are_written_where_nothing_cheaper_works() {
    let mut zeroing = crate::operation::Zeroing {
        token: 1,
        file: File::open("/dev/null".as_ref(), OpenOptions::default()).unwrap(),
        offset: 4096,
        length: 3 << 20,
        done: 0,
        durable: true,
        stage: crate::operation::ZeroStage::Punch,
        zeroes: BufferPool::new(1 << 20).take_zeroed(1 << 20).unwrap(),
    };
    assert_eq!(zeroing.advance(-libc::EOPNOTSUPP), None);
    assert_eq!(zeroing.advance(-libc::EINTR), None, "a signal came first");
    assert_eq!(zeroing.stage, crate::operation::ZeroStage::ZeroRange);
    assert_eq!(zeroing.advance(-libc::EOPNOTSUPP), None);
    assert_eq!(zeroing.advance(1 << 20), None, "the first of three");
    assert_eq!(zeroing.advance(2 << 20), None, "all written, now the flush");
    assert_eq!(zeroing.stage, crate::operation::ZeroStage::Sync);
    assert_eq!(zeroing.advance(0), Some(0));
}

#[test]
fn a_waker_ends_a_wait_from_another_thread() {
    on_both(|hands| {
        for _ in 0..50 {
            let waker = hands.waker();
            let thread = std::thread::spawn(move || waker.wake());
            let mut events = Vec::new();
            // Without an end: a lost wake-up hangs the test.
            hands.wait(None, &mut events).unwrap();
            assert!(events.is_empty());
            thread.join().unwrap();
        }
        // Wakes before a wait end it, and do not disturb what comes after.
        hands.waker().wake();
        hands.waker().wake();
        hands.wait(None, &mut Vec::new()).unwrap();
        hands.post(Event::plain(1, Ok(1)));
        assert_eq!(one(hands).token, 1);
    });
}

#[test]
fn posted_events_come_with_the_next_wait_and_late_ones_in_their_time() {
    on_both(|hands| {
        let later = hands.now_fresh() + Duration::from_millis(3);
        hands.post_at(later, Event::plain(2, Ok(2)));
        hands.post(Event::plain(1, Ok(1)));
        let first = one(hands);
        assert_eq!((first.token, first.result), (1, Ok(1)));
        let mut events = Vec::new();
        while events.is_empty() {
            hands.wait(None, &mut events).unwrap();
        }
        assert!(hands.now() >= later && events[0].token == 2);
    });
}

#[test]
fn operations_beyond_the_limit_are_answered_with_an_error() {
    on_both(|hands| {
        let (client, _server) = pair(hands, None);
        let pool = BufferPool::new(1 << 20);
        hands.receive(0, &client, pool.take(100).unwrap(), 0..100);
        for token in 1..=100 {
            hands.send(token, &client, [Piece::from(vec![1])]);
        }
        let events = gather(hands, 100);
        let refused = events.iter().filter(|event| event.result == Err(Errno::NO_BUFFERS)).count();
        assert_eq!(refused, 100 - 63);
        hands.send(200, &client, [Piece::from(vec![1])]);
        assert_eq!(one(hands).result, Ok(1), "there is room again");
    });
}

#[test]
fn what_is_asked_of_files_beyond_the_limit_waits_and_is_not_failed() {
    on_both(|hands| {
        let scratch = Scratch::new();
        let path = scratch.0.join("disk");
        std::fs::File::create(&path).unwrap();
        let file = direct(&path);
        let (client, _server) = pair(hands, None);
        let pool = BufferPool::new(1 << 20);
        let zeroes = pool.take_zeroed(4096).unwrap();
        for number in 0..100 {
            hands.write(number, &file, number * 4096, Piece::from(zeroes.clone()), false);
        }
        hands.sync(100, &file);
        hands.zero(101, &file, 0, 4096, false, false);
        let buffer = pool.take(4096).unwrap();
        hands.read(102, &file, 0, buffer, 0..4096);
        hands.send(103, &client, [Piece::from(vec![1])]);
        let events = gather(hands, 104);
        let failed = events.iter().filter(|event| event.result.is_err()).count();
        assert_eq!(
            failed, 0,
            "a disk that was not asked yet did not fail, nor has a socket no room"
        );
        assert_eq!(hands.in_flight(), 0);
    });
}

/// A "file" that is the same socket tells in which order the kernel carried out what one turn handed over.
#[test]
fn what_is_sent_in_a_turn_goes_before_what_is_asked_of_files_in_it() {
    let choice = EngineChoice::Uring;
    let Ok(mut hands) = Hands::with_engine(small(choice), choice) else {
        return println!("NOT RUN: no io_uring");
    };
    let hands = &mut hands;
    let (client, server) = pair(hands, None);
    // SAFETY: a plain call without pointers.
    let file = File(Descriptor::adopt(unsafe { libc::dup(client.0.number()) }));
    let pool = BufferPool::new(1 << 20);
    hands.write(1, &file, 0, Piece::from(b"first on disk, ".to_vec()), false);
    hands.write(2, &file, 0, Piece::from(b"second on disk".to_vec()), false);
    hands.send(3, &client, [Piece::from(b"sent, ".to_vec())]);
    assert_eq!(hands.in_flight(), 3);
    gather(hands, 3);
    let said = b"sent, first on disk, second on disk";
    hands.receive_full(4, &server, pool.take(said.len()).unwrap(), 0..said.len());
    assert_eq!(&*buffer_of(one(hands)), said);
}

#[test]
fn signals_become_events() {
    on_both(|hands| {
        hands.watch_signals(9, &[libc::SIGUSR2]).unwrap();
        for _ in 0..2 {
            // SAFETY: a signal to this very thread, which has it blocked.
            unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR2) };
            let event = one(hands);
            assert_eq!((event.token, event.result), (9, Ok(libc::SIGUSR2 as u32)));
        }
    });
}

#[test]
fn hands_dropped_with_work_in_flight_end_it() {
    for choice in [EngineChoice::Uring, EngineChoice::Epoll] {
        let Ok(mut hands) = Hands::with_engine(small(choice), choice) else { continue };
        let pool = BufferPool::new(64 << 20);
        let scratch = Scratch::new();
        let (client, server) = pair(&mut hands, None);
        let path = scratch.0.join("disk");
        std::fs::write(&path, vec![0; 1 << 20]).unwrap();
        hands.receive(1, &client, pool.take(4096).unwrap(), 0..4096);
        let big = pool.take_zeroed(1 << 20).unwrap();
        hands.send(2, &server, (0..32).map(|_| Piece::from(big.clone())));
        hands.write(3, &direct(&path), 0, Piece::from(big.clone()), true);
        hands.wait(Some(Duration(0)), &mut Vec::new()).unwrap();
        drop((hands, big));
        assert_eq!(pool.used_bytes(), 0, "{choice:?}");
    }
}

#[test]
fn a_part_that_leaves_something_for_others_takes_nothing_above_its_ceiling() {
    let pool = BufferPool::new(3 << 20);
    let modest = pool.below(2 << 20);
    let held = [modest.take(1 << 20).unwrap(), pool.take(1 << 20).unwrap()];
    assert!(modest.take(1).is_none() && modest.reserve(1).is_none());
    assert!(pool.take(1 << 20).is_some(), "the rest is for others");
    drop(held);
    assert!(modest.take(1 << 20).is_some());
}

#[test]
fn a_share_takes_its_first_and_then_no_more_than_is_left() {
    let pool = BufferPool::new(8 << 20);
    let shares = [(); 3].map(|()| pool.share_of(&Account::default()));
    let take = |share: &BufferPool| std::iter::from_fn(|| share.take(1 << 20)).collect::<Vec<_>>();
    let first = take(&shares[0]);
    let second = take(&shares[1]);
    assert_eq!((first.len(), second.len()), (4, 2), "half of what it found");
    // Though others hold theirs, whoever has nothing gets something as long as there is any.
    assert_eq!(take(&shares[2]).len(), 1);
    assert!(shares[1].reserve(1 << 20).is_none());
    drop(second);
    assert!(shares[1].reserve(2 << 20).is_some(), "what was given back counts no more");
    drop(first);
    assert_eq!(pool.used_bytes(), 0);
    let whole = shares[0].reserve(8 << 20);
    assert!(whole.is_some() && pool.take(1).is_none(), "the first may be as large as the pool");
}

#[test]
fn what_several_threads_take_for_one_account_leaves_as_much_for_others_as_if_it_were_one() {
    let budget = Budget::new(8 << 20);
    let (one, other) = (Account::default(), Account::default());
    let take = |account: &Account| {
        let share = budget.pool().share_of(account);
        std::iter::from_fn(|| share.take(1 << 20)).collect::<Vec<_>>()
    };
    let first = take(&one);
    let second = std::thread::scope(|scope| scope.spawn(|| take(&one)).join().unwrap());
    assert_eq!((first.len(), second.len()), (4, 0));
    let third = take(&other);
    assert_eq!(third.len(), 2, "half of what is left");
    drop((first, third));
    assert_eq!(take(&one).len(), 4, "what was given back counts no more");
}

#[test]
fn a_buffer_that_is_charged_to_room_elsewhere_counts_there_until_its_last_clone_goes() {
    let (from, to) = (BufferPool::new(1 << 20), BufferPool::new(1 << 20));
    let mut room = to.share_of(&Account::default()).reserve(1 << 20).unwrap();
    let buffer = from.take(1 << 20).unwrap();
    assert!(from.take(1).is_none());
    let clone = buffer.clone();
    buffer.charge(room.split(buffer.capacity()));
    clone.charge(from.reserve(0).unwrap());
    drop((room, buffer));
    assert_eq!((from.used_bytes(), to.used_bytes()), (0, 1 << 20));
    let other = from.take(1 << 20).unwrap();
    drop(clone);
    assert_eq!((from.used_bytes(), to.used_bytes()), (1 << 20, 0));
    assert_eq!(
        (from.held_bytes(), to.held_bytes()),
        (1 << 20, 0),
        "within the limits, idle and used"
    );
    drop(other);
    assert_eq!((from.used_bytes(), from.held_bytes()), (0, 1 << 20));
}

#[test]
fn what_is_taken_beyond_the_limit_is_not_kept_when_it_comes_back() {
    let pool = BufferPool::new(1 << 20);
    let taken: Vec<_> = (0..3).map(|_| pool.take_beyond(1 << 20).unwrap()).collect();
    assert_eq!(pool.used_bytes(), 3 << 20);
    assert!(pool.take(1).is_none() && pool.reserve(1).is_none());
    drop(taken);
    assert_eq!((pool.used_bytes(), pool.held_bytes()), (0, 1 << 20));
}

#[test]
fn what_is_not_counted_is_always_there_and_lies_idle_within_the_limit_only() {
    let pool = BufferPool::new(2 << 20);
    let uncounted = pool.uncounted();
    let all = pool.reserve(2 << 20);
    let mut taken: Vec<_> = (0..3).map(|_| uncounted.take(1 << 20).unwrap()).collect();
    assert_eq!(pool.used_bytes(), 2 << 20);
    drop(taken.pop());
    assert_eq!(pool.held_bytes(), 2 << 20, "all there may be is in use");
    taken[0].charge(all.unwrap());
    taken.truncate(1);
    assert_eq!(pool.used_bytes(), 2 << 20);
    drop(taken);
    assert_eq!((pool.used_bytes(), pool.held_bytes()), (0, 1 << 20), "the last was kept");
    drop(pool.take(1 << 20));
    assert_eq!(pool.held_bytes(), 1 << 20, "and taken again");
    assert!(pool.reserve(2 << 20).is_some(), "what lies idle makes room");
}

#[test]
fn a_pool_keeps_its_limit_and_gets_every_block_back() {
    let pool = BufferPool::new(3 << 20);
    let buffers: Vec<_> = (0..3).map(|_| pool.take(1 << 20).unwrap()).collect();
    assert!(pool.take(1).is_none(), "the limit is met");
    assert!(buffers.iter().all(|buffer| (buffer.as_ptr() as usize).is_multiple_of(4096)));
    drop(buffers);
    assert_eq!((pool.used_bytes(), pool.held_bytes()), (0, 3 << 20));
    let small = pool.take(5000).unwrap();
    assert_eq!(small.capacity(), 8 << 10);
    assert!(pool.held_bytes() <= 3 << 20, "idle blocks made room for another class");
    assert!(pool.take((1 << 20) + 1).is_none() && pool.take(0).is_none());
}

#[test]
fn threads_that_draw_from_one_budget_have_its_limit_together() {
    let budget = Budget::new(8 << 20);
    let pool = budget.pool();
    let mine: Vec<_> = (0..3).map(|_| pool.take(1 << 20).unwrap()).collect();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let pool = budget.pool();
            let theirs: Vec<_> = std::iter::from_fn(|| pool.take(1 << 20)).collect();
            assert_eq!(theirs.len(), 5);
            drop(theirs);
            assert_eq!(
                pool.held_bytes() - pool.used_bytes(),
                1 << 20,
                "a quarter, for two threads"
            );
        });
        other.join().unwrap();
    });
    assert_eq!(pool.used_bytes(), 3 << 20);
    drop(mine);
    assert_eq!(pool.held_bytes(), 3 << 20, "alone again");
}

#[test]
fn a_limit_that_falls_takes_idle_blocks_and_leaves_those_in_use() {
    let budget = Budget::new(4 << 20);
    let pool = budget.pool();
    let mut buffers: Vec<_> = (0..4).map(|_| pool.take(1 << 20).unwrap()).collect();
    buffers.truncate(2);
    assert_eq!((pool.used_bytes(), pool.held_bytes()), (2 << 20, 4 << 20));
    budget.set_limit(1 << 20);
    pool.trim();
    assert_eq!((pool.used_bytes(), pool.held_bytes()), (2 << 20, 2 << 20));
    assert!(pool.take(1).is_none());
    drop(buffers);
    assert_eq!((pool.used_bytes(), pool.held_bytes()), (0, 1 << 20));
    budget.set_limit(2 << 20);
    assert!(pool.reserve(2 << 20).is_some(), "what lies idle makes room");
}

#[test]
fn blocks_that_other_threads_give_back_are_taken_again_and_never_twice() {
    const BLOCKS: usize = 64;
    let pool = BufferPool::new(BLOCKS * 4096);
    let (give, gets) = std::sync::mpsc::channel::<Buffer>();
    let gets = std::sync::Mutex::new(gets);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                loop {
                    let Ok(buffer) = gets.lock().unwrap().recv() else { return };
                    let first = buffer[0];
                    assert!(buffer.iter().all(|byte| *byte == first), "nobody else has it");
                }
            });
        }
        let mut taken = 0_usize;
        while taken < 20_000 {
            let Some(mut buffer) = pool.take(4096) else {
                std::thread::yield_now();
                continue;
            };
            buffer.as_mut().unwrap().fill(taken.to_le_bytes()[0]);
            give.send(buffer).unwrap();
            taken += 1;
        }
        drop(give);
    });
    assert_eq!(pool.used_bytes(), 0);
    assert!(pool.held_bytes() <= BLOCKS * 4096);
}

#[test]
fn shared_buffers_cannot_be_written() {
    let pool = BufferPool::new(1 << 20);
    let mut buffer = filled(&pool, b"payload");
    let clone = buffer.clone();
    assert!(buffer.as_mut().is_none());
    let piece = Piece::part(&clone, 3..7);
    drop(clone);
    assert!(buffer.as_mut().is_none(), "the piece still needs it");
    assert_eq!(piece.as_slice(), b"load");
    drop(piece);
    buffer.as_mut().unwrap()[0] = b'P';
    assert_eq!(&buffer[..], b"Payload");
    assert_eq!(pool.used_bytes(), 4096);
}

#[test]
fn a_lock_keeps_others_out() {
    let scratch = Scratch::new();
    let path = scratch.0.join("locked");
    std::fs::write(&path, b"").unwrap();
    let options = OpenOptions { access: Access::ReadWrite, ..Default::default() };
    let first = File::open(&path, options).unwrap();
    let second = File::open(&path, options).unwrap();
    first.lock().unwrap();
    assert_eq!(second.lock(), Err(Errno::BUSY));
    drop(first);
    second.lock().unwrap();
}

#[test]
fn a_stale_unix_socket_is_replaced_and_a_live_one_is_not() {
    let scratch = Scratch::new();
    let path = scratch.0.join("socket");
    let long = path.with_file_name("x".repeat(108));
    for listen in [listen_unix, listen_unix_private] {
        assert_eq!(listen(&long).unwrap_err(), Errno(libc::ENAMETOOLONG));
    }
    let listener = listen_unix(&path).unwrap();
    assert_eq!(listen_unix(&path).unwrap_err(), Errno(libc::EADDRINUSE));
    drop(listener);
    listen_unix(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, b"precious").unwrap();
    listen_unix(&path).unwrap_err();
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
}

#[test]
fn a_private_unix_socket_is_its_owners_only_and_replaces_stale_ones_too() {
    let scratch = Scratch::new();
    let path = scratch.0.join("socket");
    let listener = listen_unix_private(&path).unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(listen_unix_private(&path).unwrap_err(), Errno(libc::EADDRINUSE));
    drop(listener);
    let _listener = listen_unix_private(&path).unwrap();
    std::os::unix::net::UnixStream::connect(&path).expect("it listens");
}

#[test]
fn the_machine_answers_simple_questions() {
    assert!(crate::boot_id().is_some());
    assert_ne!(crate::random_u64(), crate::random_u64());
    assert!(crate::raise_open_files().unwrap() >= 256);
    let before = crate::clock();
    assert!(crate::clock() >= before);
}

#[test]
fn clones_of_a_buffer_that_threads_let_go_at_once_bring_its_block_back_once() {
    let pool = BufferPool::new(4096);
    for _ in 0..2000 {
        let buffer = pool.take(4096).expect("the block came back");
        let threads = [buffer.clone(), buffer].map(|clone| {
            std::thread::spawn(move || {
                assert_eq!(clone.len(), 4096);
            })
        });
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!((pool.used_bytes(), pool.held_bytes()), (0, 4096));
    }
}

#[test]
fn a_socket_is_left_once_the_other_end_is_closed_and_not_when_it_only_sends_no_more() {
    let scratch = Scratch::new();
    let path = scratch.0.join("socket");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let client = std::os::unix::net::UnixStream::connect(&path).unwrap();
    let server = Socket::from(std::os::fd::OwnedFd::from(listener.accept().unwrap().0));
    std::io::Write::write_all(&mut &client, b"words").unwrap();
    assert!(!server.is_left());
    client.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(!server.is_left());
    drop(client);
    assert!(server.is_left());
}

#[test]
fn a_buffer_that_somebody_else_has_counts_elsewhere_until_it_goes() {
    let (pool, other) = (BufferPool::new(64 << 10), BufferPool::new(8192));
    let used = || [pool.used_bytes(), other.used_bytes()];
    let buffers: Vec<Buffer> = (0..3).map(|_| pool.take(4096).expect("room")).collect();
    let traces: Vec<_> = buffers.iter().map(Buffer::trace).collect();
    for trace in &traces {
        trace.charge_to(&other);
    }
    assert_eq!(used(), [4096, 8192], "as many as there is room for");
    assert!(buffers.iter().all(Buffer::is_unique), "nobody else has them");
    drop(buffers);
    assert_eq!(used(), [0; 2]);
    traces[0].charge_to(&other);
    assert_eq!(used(), [0; 2], "it is gone");
}
