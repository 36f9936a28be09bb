//! Nodes that do not answer; no real one takes part.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use wire::admin::{Answer, Command, Reply, Request, encode_line};

use super::Node;
use crate::problem::{Problem, TIMED_OUT};

/// A node that says that it is there if it `greets`, and answers nothing else. Returns what it was asked.
fn told_by(greets: bool) -> (Problem, Vec<Request>) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let socket = std::env::temp_dir().join(format!("ls-silent-{}-{number}", std::process::id()));
    let listener = UnixListener::bind(&socket).unwrap();
    let node = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut asked = Vec::new();
        // Until the asker has given up.
        for line in BufReader::new(stream.try_clone().unwrap()).lines() {
            let request = Request::decode(line.unwrap().as_bytes()).unwrap();
            if greets && request.command == (Command::Ping {}) {
                let pong = Answer::Pong { program: String::new(), node: "a".to_owned() };
                let mut bytes = Vec::new();
                encode_line(&Reply::result(request.id, pong), &mut bytes).unwrap();
                stream.write_all(&bytes).unwrap();
            }
            asked.push(request);
        }
        asked
    });
    let asked = Node { name: "a".to_owned(), socket: socket.clone(), identity: None };
    let limit = Duration::from_millis(10);
    let problem = asked.ask_within(Command::Reload {}, limit).unwrap_err();
    std::fs::remove_file(&socket).unwrap();
    (problem, node.join().unwrap())
}

#[test]
fn a_node_that_stands_still_is_told_nothing_and_one_that_stops_then_may_still_do_it() {
    let (problem, asked) = told_by(false);
    assert!(problem.is_kind(TIMED_OUT), "{problem}");
    assert!(problem.message.contains("it was not told to do anything"), "{problem}");
    assert!(matches!(&asked[..], [only] if only.command == (Command::Ping {})), "{asked:?}");
    let (problem, asked) = told_by(true);
    assert!(problem.is_kind(TIMED_OUT), "{problem}");
    assert!(problem.message.contains("may still take effect"), "{problem}");
    assert!(!problem.to_string().contains("--timeout"), "{problem}");
    assert_eq!(asked.last().unwrap().command, Command::Reload {});
}
