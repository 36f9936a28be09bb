//! What who waits for a comparison is told, by nodes that go away; no real one takes part.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use wire::admin::{Answer, Command, Operation, Status, Verifying, codes, decode_line};

use super::to_its_end;
use crate::cluster::Cluster;
use crate::problem::Problem;
use crate::tests::fake::{Fake, Says};

const STATUS: &str = r#"{"version":1,"resources":[{"name":"disk","id":"6b1f0c9a2e77d431","epoch":5,"primary":null,
"quorum":true,"suspended":null,"replicas":[
{"node":"a","state":"in-sync","in_sync":true,"resync":null,"node_id":1,"connected":true,"store":"file"},
{"node":"b","state":"in-sync","in_sync":true,"resync":null,"node_id":2,"connected":true,"store":"file"}],
"volumes":[{"volume":0,"size_bytes":1048576,"block_bytes":4096,"nbd":[]}]}]}"#;

/// How a verify stands, as nodes tell it.
fn verify(state: &str, repaired: u64, at_ms: u64) -> Option<Verifying> {
    let text = format!(
        r#"{{"state":"{state}","done_bytes":4096,"total_bytes":1048576,"repaired_bytes":{repaired},"partial":false,"at_ms":{at_ms}}}"#
    );
    Some(decode_line(text.as_bytes()).unwrap())
}

/// What the nodes do when one of them is asked to compare.
enum Ends {
    /// The node is gone, and this is how it stands.
    Gone(Option<Verifying>),
    /// The node stays, but knows the resource no more, and this is how it stands.
    Forgets(Option<Verifying>),
    /// It is done, as the node says, and this is what they tell of it.
    Done(Option<Verifying>),
}

/// Two nodes; a is primary, b will be.
struct Pair {
    primary: &'static str,
    verify: Option<Verifying>,
    /// What is to happen at each wish to compare.
    ends: Vec<Ends>,
    wishes: Vec<(&'static str, Operation)>,
    sockets: Vec<(&'static str, PathBuf)>,
}

impl Pair {
    fn answer(&mut self, node: &'static str, command: &Command) -> Says {
        match command {
            Command::Status { .. } => {
                let mut status: Status = decode_line(STATUS.as_bytes()).unwrap();
                status.resources[0].verify = self.verify;
                status.resources[0].primary = Some(self.primary.to_owned());
                Says::That(Answer::Status(status))
            }
            Command::Operation { operation, .. } => {
                self.wishes.push((node, operation.clone()));
                match self.ends.remove(0) {
                    Ends::Gone(verify) => {
                        (self.verify, self.primary) = (verify, "b");
                        let socket = self.sockets.iter().find(|(name, _)| *name == node).unwrap();
                        std::fs::remove_file(&socket.1).unwrap();
                        Says::Nothing
                    }
                    Ends::Forgets(verify) => {
                        (self.verify, self.primary) = (verify, "b");
                        Says::Refused(&codes::NO_RESOURCE)
                    }
                    Ends::Done(verify) => {
                        self.verify = verify;
                        Says::That(Answer::Done {})
                    }
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

/// What who asks for a verify is told, and which wishes reached which node.
fn asked(
    before: Option<Verifying>,
    anew: bool,
    ends: Vec<Ends>,
) -> (Result<Verifying, Problem>, Vec<(&'static str, Operation)>) {
    let (wishes, sockets) = (Vec::new(), Vec::new());
    let pair = Pair { primary: "a", verify: before, ends, wishes, sockets };
    let pair = Arc::new(Mutex::new(pair));
    let fakes = ["a", "b"].map(|name| {
        let pair = Arc::clone(&pair);
        Fake::new(name, move |command| pair.lock().unwrap().answer(name, command))
    });
    pair.lock().unwrap().sockets =
        ["a", "b"].into_iter().zip(fakes.iter().map(|fake| fake.node.socket.clone())).collect();
    let nodes = fakes.iter().map(|fake| fake.node.clone()).collect();
    let cluster = Cluster { dev: None, nodes, identity: None };
    let told = to_its_end(&cluster, "disk", Operation::Verify { anew });
    let wishes = std::mem::take(&mut pair.lock().unwrap().wishes);
    (told, wishes)
}

const GOES_ON: Operation = Operation::Verify { anew: false };
const ANEW: Operation = Operation::Verify { anew: true };

#[test]
fn who_waits_at_a_node_that_goes_away_is_told_of_the_end() {
    let done = verify("done", 4096, 9);
    let ends = vec![Ends::Gone(verify("running", 0, 7)), Ends::Done(done)];
    let (told, wishes) = asked(None, true, ends);
    assert_eq!(told.unwrap(), done.unwrap());
    assert_eq!(wishes, [("a", ANEW), ("b", GOES_ON)], "the same one is waited for");
    let (told, wishes) = asked(verify("done", 0, 3), true, vec![Ends::Gone(done)]);
    assert_eq!(told.unwrap(), done.unwrap());
    assert_eq!(wishes, [("a", ANEW)], "it was over already");
}

#[test]
fn who_waits_at_a_node_that_has_the_resource_no_more_is_told_of_the_end() {
    let done = verify("done", 4096, 9);
    let ends = vec![Ends::Forgets(verify("running", 0, 7)), Ends::Done(done)];
    let (told, wishes) = asked(None, false, ends);
    assert_eq!(told.unwrap(), done.unwrap());
    assert_eq!(wishes, [("a", GOES_ON), ("b", GOES_ON)]);
}

#[test]
fn what_was_stopped_while_the_node_that_was_asked_went_away_is_not_begun_again() {
    let ends = vec![Ends::Gone(verify("stopped", 0, 7))];
    let (told, wishes) = asked(verify("running", 0, 7), false, ends);
    assert!(told.unwrap_err().is(&codes::VERIFY_STOPPED));
    assert_eq!(wishes, [("a", GOES_ON)]);
}

#[test]
fn one_that_was_to_begin_anew_and_did_not_does_so_at_the_next_node() {
    let (old, done) = (verify("stopped", 8192, 7), verify("done", 0, 9));
    let (told, wishes) = asked(old, true, vec![Ends::Gone(old), Ends::Done(done)]);
    assert_eq!(told.unwrap(), done.unwrap());
    assert_eq!(wishes, [("a", ANEW), ("b", ANEW)]);
}

#[test]
fn nobody_is_told_that_copies_are_the_same_by_who_does_not_know_it() {
    for unknown in [None, verify("running", 0, 12)] {
        let (told, _) = asked(None, false, vec![Ends::Done(unknown)]);
        let problem = told.unwrap_err();
        assert!(problem.message.contains("not known"), "{problem}");
    }
}
