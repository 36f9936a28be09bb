//! Steps on files that the kernel gives up before they begin, as it does where it can make no thread for them. Here by a request
//! to do so that the hands know nothing of; a pipe is a file whose read does not begin before somebody writes.

use std::io::Write;

use super::mounted::run;
use super::*;
use crate::settle::TRIES;

/// Hands with a read of a pipe under way, in the first slot, and the pipe; `None`, and why, where there are none.
fn reading() -> Option<(Hands, File, Scratch)> {
    let choice = EngineChoice::Uring;
    let mut hands = match Hands::with_engine(small(choice), choice) {
        Ok(hands) => hands,
        Err(why) => {
            println!("NOT RUN: {why}");
            return None;
        }
    };
    let scratch = Scratch::new();
    let path = scratch.0.join("pipe");
    run("mkfifo", &[path.to_str().unwrap()])?;
    let options = OpenOptions { access: Access::ReadWrite, ..Default::default() };
    let pipe = File::open(&path, options).unwrap();
    hands.read(1, &pipe, 0, BufferPool::new(4096).take(5).unwrap(), 0..5);
    hands.wait(Some(Duration(0)), &mut Vec::new()).unwrap();
    Some((hands, pipe, scratch))
}

/// Has the kernel give up the step in the first slot, and takes what comes of it.
fn give_up(hands: &mut Hands, pipe: &File, events: &mut Vec<Event>) {
    let before = hands.slots[0].given_up;
    let end = hands.now_fresh() + PATIENCE;
    hands.engine.cancel(0, &pipe.0);
    while events.is_empty() && hands.slots[0].given_up == before {
        assert!(hands.now_fresh() < end, "it is not given up");
        hands.wait(Some(Duration::from_secs(1)), events).unwrap();
    }
    // It begins again at once, or with the next look.
    while !hands.put_off.is_empty() {
        hands.wait(Some(Duration::from_secs(1)), events).unwrap();
    }
    hands.wait(Some(Duration(0)), events).unwrap();
}

#[test]
fn what_the_kernel_gave_up_of_a_file_before_it_began_is_begun_again() {
    let Some((mut hands, pipe, scratch)) = reading() else { return };
    let mut events = Vec::new();
    give_up(&mut hands, &pipe, &mut events);
    give_up(&mut hands, &pipe, &mut events);
    assert!(events.is_empty(), "{events:?}");
    let path = scratch.0.join("pipe");
    std::fs::File::options().write(true).open(path).unwrap().write_all(b"there").unwrap();
    let event = one(&mut hands);
    assert_eq!((event.token, event.result), (1, Ok(5)));
    assert_eq!(&*buffer_of(event), b"there");
}

#[test]
fn what_the_kernel_gives_up_of_a_file_for_ever_has_failed() {
    let Some((mut hands, pipe, _scratch)) = reading() else { return };
    let mut events = Vec::new();
    for _ in 0..TRIES {
        give_up(&mut hands, &pipe, &mut events);
        assert!(events.is_empty(), "{events:?}");
    }
    give_up(&mut hands, &pipe, &mut events);
    assert_eq!(events.len(), 1);
    assert_eq!((events[0].token, events[0].result), (1, Err(Errno::CANCELED)));
}

#[test]
fn hands_can_be_let_go_while_something_is_to_be_begun_again() {
    let Some((mut hands, pipe, _scratch)) = reading() else { return };
    let mut events = Vec::new();
    for given_up in 1..=TRIES {
        hands.engine.cancel(0, &pipe.0);
        while hands.slots[0].given_up < given_up {
            assert!(events.is_empty(), "{events:?}");
            hands.wait(Some(Duration::from_secs(1)), &mut events).unwrap();
        }
        // A look may have come with it.
        if !hands.put_off.is_empty() {
            break;
        }
        hands.wait(Some(Duration(0)), &mut events).unwrap();
    }
    assert!(!hands.put_off.is_empty() && events.is_empty(), "{events:?}");
    drop(hands);
    assert!(!pipe.is_shared(), "nothing is left of it");
}
