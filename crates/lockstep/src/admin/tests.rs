//! Nodes that do not answer; no real one takes part.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use wire::admin::{
    Answer, Command, Reply, Request, ResourceStatus, Status, codes, decode_line, encode_line,
};

use super::{Node, WHOLE_LIMIT, limit_of};
use crate::problem::{INTERRUPTED, Problem, TIMED_OUT, UNREACHED};
use crate::tests::fake::{Fake, Says};

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

/// A node that greets each who comes and answers what else it is asked by one of these, in turn; with none it hangs up.
/// Returns how often it was asked.
fn answered_by(
    replies: Vec<Option<Reply>>,
    ask: impl FnOnce(&Node) -> Result<(), Problem>,
) -> (Result<(), Problem>, usize) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let socket = std::env::temp_dir().join(format!("ls-answers-{}-{number}", std::process::id()));
    let listener = UnixListener::bind(&socket).unwrap();
    let node = std::thread::spawn(move || {
        let mut asked = 0;
        for reply in replies {
            let (mut stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let mut say = |reply: &Reply| {
                let mut bytes = Vec::new();
                encode_line(reply, &mut bytes).unwrap();
                stream.write_all(&bytes).unwrap();
            };
            lines.next().unwrap().unwrap();
            say(&Reply::result(1, Answer::Pong { program: String::new(), node: "a".to_owned() }));
            lines.next().unwrap().unwrap();
            asked += 1;
            reply.iter().for_each(say);
        }
        asked
    });
    let result = ask(&Node { name: "a".to_owned(), socket: socket.clone(), identity: Some(7) });
    std::fs::remove_file(&socket).unwrap();
    (result, node.join().unwrap())
}

#[test]
fn a_node_whose_process_ends_is_not_reached_and_may_have_done_it() {
    let (result, _) = answered_by(vec![None], |node| node.change(Command::Reload {}));
    let problem = result.unwrap_err();
    assert!(problem.is_kind(UNREACHED), "{problem}");
    assert!(problem.message.contains("may still take effect"), "{problem}");
}

#[test]
fn a_node_that_is_busy_is_asked_again() {
    let busy = || Some(Reply::error(1, &codes::BUSY, "disk: a store is being made"));
    let done = Some(Reply::result(1, Answer::Done {}));
    let (result, asked) =
        answered_by(vec![busy(), busy(), done], |node| node.change(Command::Reload {}));
    assert_eq!((result, asked), (Ok(()), 3));
}

#[test]
fn who_makes_a_store_waits_for_a_day_unless_it_is_told_to_stop_and_hangs_up() {
    let create = Command::ResourceCreate { resource: "disk".to_owned(), force: false };
    assert_eq!(limit_of(&create), WHOLE_LIMIT);
    let socket = std::env::temp_dir().join(format!("ls-making-{}", std::process::id()));
    let listener = UnixListener::bind(&socket).unwrap();
    let node = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        lines.next().unwrap().unwrap();
        let pong = Answer::Pong { program: String::new(), node: "a".to_owned() };
        let mut bytes = Vec::new();
        encode_line(&Reply::result(1, pong), &mut bytes).unwrap();
        stream.write_all(&bytes).unwrap();
        // What it is to make, and then the end of the connection.
        lines.count()
    });
    let asked = Node { name: "a".to_owned(), socket: socket.clone(), identity: Some(7) };
    let problem = asked.change_unless(create, &|| true).unwrap_err();
    assert!(problem.is_kind(INTERRUPTED), "{problem}");
    assert_eq!(node.join().unwrap(), 1);
    std::fs::remove_file(&socket).unwrap();
}

/// How a resource is of which nothing but its name matters.
fn named(name: &str) -> ResourceStatus {
    let text = format!(
        r#"{{"name":"{name}","epoch":5,"primary":null,"quorum":true,"suspended":null,"replicas":[],"volumes":[]}}"#
    );
    decode_line(text.as_bytes()).unwrap()
}

#[test]
fn what_does_not_fit_into_one_answer_is_asked_for_in_pages() {
    let page = |names: &[&str], more| {
        let resources = names.iter().map(|name| named(name)).collect();
        let (warnings, cluster) = (Vec::new(), String::new());
        Says::That(Answer::Status(Status { version: 1, resources, warnings, cluster, more }))
    };
    let node = Fake::new("a", move |command| match command {
        Command::Status { .. } => Says::Refused(&codes::REPLY_TOO_LONG),
        Command::StatusPage { after } => match after.as_str() {
            "" => page(&["r1", "r2"], true),
            "r2" => page(&["r3"], true),
            _ => page(&[], false),
        },
        _ => Says::Nothing,
    });
    let all = node.node.status(None).unwrap();
    assert!(!all.more);
    let names: Vec<&str> = all.resources.iter().map(|resource| resource.name.as_str()).collect();
    assert_eq!(names, ["r1", "r2", "r3"]);
    // A node of before there were pages says what it said then.
    let old = Fake::new("a", |command| match command {
        Command::Status { .. } => Says::Refused(&codes::REPLY_TOO_LONG),
        _ => Says::Refused(&codes::MALFORMED_REQUEST),
    });
    let refused = old.node.status(None).unwrap_err();
    assert!(refused.is(&codes::REPLY_TOO_LONG), "{refused}");
}
