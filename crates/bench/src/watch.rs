//! Looks at a replica, many in a second, and what they say of its resyncs.
//!
//! A look is a question on an admin socket whose connection stays open, and so is told what is to be copied anew: `lockstep status` or
//! `lockstep resource invalidate` would start a process for each, and the application beside it would feel that.
//!
//! Always: the primary is asked, for it drives resyncs; a rate is of times only of which both ends were seen.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use wire::admin::{
    Answer, Command, Lines, Operation, ReplicaStatus, Reply, Request, ResourceStatus, decode_line,
    encode_line,
};

use crate::fio::float;
use crate::outcome::{Outcome, fail};

/// How long a node may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Bytes received at once.
const RECEIVE_BYTES: usize = 16 << 10;

/// One node's replica of a resource, seen by the primary.
pub(crate) struct Watch {
    /// Each node, and its admin socket.
    nodes: Vec<(String, PathBuf)>,
    resource: String,
    node: String,
    /// Which of them is asked, as long as its connection lasts.
    asked: Option<(usize, Line)>,
    /// To the node itself, once it was told something.
    told: Option<Line>,
}

impl Watch {
    pub(crate) fn new(nodes: Vec<(String, PathBuf)>, resource: &str, node: &str) -> Watch {
        let (resource, node) = (resource.to_owned(), node.to_owned());
        Watch { nodes, resource, node, asked: None, told: None }
    }

    /// How the replica is.
    pub(crate) fn look(&mut self) -> Outcome<ReplicaStatus> {
        let mut status = self.ask()?;
        let primary = |status: &ResourceStatus, nodes: &[(String, PathBuf)]| {
            let name = status.primary.as_deref()?;
            nodes.iter().position(|(node, _)| node == name)
        };
        let asked = self.asked.as_ref().map(|(place, _)| *place);
        if let Some(other) = primary(&status, &self.nodes).filter(|place| Some(*place) != asked)
            && let Ok(line) = Line::open(&self.nodes[other].1)
        {
            self.asked = Some((other, line));
            status = self.ask()?;
        }
        let found = status.replicas.into_iter().find(|replica| replica.node == self.node);
        found.ok_or_else(|| format!("{} is not listed for {}", self.node, self.resource))
    }

    /// Tells the node that its replica is worthless, and is to be made anew from the others.
    pub(crate) fn invalidate(&mut self) -> Outcome<()> {
        let operation = Operation::Invalidate {};
        let command = Command::Operation { resource: self.resource.clone(), operation };
        // One that ended since is met anew once.
        if let Some(line) = &mut self.told
            && line.change(command.clone()).is_ok()
        {
            return Ok(());
        }
        let mut nodes = self.nodes.iter().filter(|(name, _)| *name == self.node);
        let (_, socket) = nodes.next().ok_or_else(|| format!("there is no node {}", self.node))?;
        let mut line = Line::open(socket)?;
        line.change(command)?;
        self.told = Some(line);
        Ok(())
    }

    /// Asks the node that was asked last; if it is gone, the next that is there.
    fn ask(&mut self) -> Outcome<ResourceStatus> {
        if let Some((_, line)) = &mut self.asked
            && let Ok(status) = line.status(&self.resource)
        {
            return Ok(status);
        }
        let mut said = String::new();
        for (place, (name, socket)) in self.nodes.iter().enumerate() {
            let asked = Line::open(socket).and_then(|mut line| {
                let status = line.status(&self.resource)?;
                Ok((line, status))
            });
            match asked {
                Ok((line, status)) => {
                    self.asked = Some((place, line));
                    return Ok(status);
                }
                Err(why) => said += &format!("\n{name}: {why}"),
            }
        }
        fail(format!("no node says how {} is:{said}", self.resource))
    }
}

/// A connection to an admin socket.
struct Line {
    stream: UnixStream,
    lines: Lines,
}

impl Line {
    fn open(socket: &PathBuf) -> Outcome<Line> {
        let stream = UnixStream::connect(socket).and_then(|stream| {
            stream.set_read_timeout(Some(ANSWER_LIMIT))?;
            stream.set_write_timeout(Some(ANSWER_LIMIT))?;
            Ok(stream)
        });
        Ok(Line { stream: stream.map_err(|error| error.to_string())?, lines: Lines::default() })
    }

    fn status(&mut self, resource: &str) -> Outcome<ResourceStatus> {
        let command = Command::Status { resource: Some(resource.to_owned()) };
        match self.answer(command)? {
            Answer::Status(status) => {
                status.resources.into_iter().next().ok_or("it knows none".to_owned())
            }
            other => fail(format!("not an answer to that: {other:?}")),
        }
    }

    fn change(&mut self, command: Command) -> Outcome<()> {
        match self.answer(command)? {
            Answer::Done {} => Ok(()),
            other => fail(format!("not an answer to that: {other:?}")),
        }
    }

    fn answer(&mut self, command: Command) -> Outcome<Answer> {
        let mut bytes = Vec::new();
        encode_line(&Request::new(1, command), &mut bytes).map_err(|error| error.to_string())?;
        self.stream.write_all(&bytes).map_err(|error| error.to_string())?;
        let line = self.line()?;
        let reply: Reply = decode_line(&line).map_err(|error| error.to_string())?;
        match reply.outcome {
            wire::admin::Outcome::Result(answer) => Ok(*answer),
            wire::admin::Outcome::Error(failure) => fail(format!("{failure:?}")),
        }
    }

    fn line(&mut self) -> Outcome<Vec<u8>> {
        let mut piece = vec![0; RECEIVE_BYTES];
        loop {
            if let Some(line) = self.lines.next_line() {
                return Ok(line);
            }
            let count = self.stream.read(&mut piece).map_err(|error| error.to_string())?;
            if count == 0 {
                return fail("it closed the connection");
            }
            self.lines.push(&piece[..count]).map_err(|error| error.to_string())?;
        }
    }
}

/// What looks at resyncs one after the other say. Times are since any moment, the same for all of them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Follow {
    /// The look before, if a resync went on then: when it was, and how much was done.
    before: Option<(Duration, u64)>,
    /// Since when nothing moved.
    still_since: Duration,
    looks: u64,
    looks_at_one: u64,
    bytes: u64,
    time: Duration,
    longest_stop: Duration,
}

impl Follow {
    /// Takes a look: how many bytes are done of how many, or that no resync goes on.
    pub(crate) fn see(&mut self, at: Duration, progress: Option<(u64, u64)>) {
        self.looks += 1;
        let Some((done, total)) = progress else {
            self.before = None;
            return;
        };
        self.looks_at_one += 1;
        match self.before {
            Some((then, had)) if done >= had => {
                self.time += at.saturating_sub(then);
                self.bytes += done - had;
                // One that has nothing left to do waits for no disk.
                if had < total {
                    self.longest_stop = self.longest_stop.max(at.saturating_sub(self.still_since));
                }
                if done > had {
                    self.still_since = at;
                }
            }
            // The first look at it; less done than before is another one.
            _ => self.still_since = at,
        }
        self.before = Some((at, done));
    }

    /// Bytes that were done while a resync was seen to go on, and for how long it was.
    pub(crate) fn seen(&self) -> (u64, Duration) {
        (self.bytes, self.time)
    }

    /// The longest time in which a resync that had something left got no farther.
    pub(crate) fn longest_stop(&self) -> Duration {
        self.longest_stop
    }

    /// Of how many looks in a hundred a resync went on.
    pub(crate) fn percent(&self) -> f64 {
        float(self.looks_at_one) * 100.0 / float(self.looks.max(1))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;
    use std::thread;
    use std::time::Duration;

    use wire::admin::{Answer, Command, Operation, Reply, Request, decode_line, encode_line};

    use super::{Follow, Watch};

    #[test]
    fn a_node_is_told_by_its_own_socket_over_one_connection_and_met_anew_when_that_ends() {
        let socket = std::env::temp_dir().join(format!("bench-watch-{}", std::process::id()));
        let listener = UnixListener::bind(&socket).expect("it is a new place");
        // Two requests by the first connection, one by the second.
        let node = thread::spawn(move || {
            for count in [2, 1] {
                let (stream, _) = listener.accept().expect("somebody comes");
                let mut lines = BufReader::new(stream.try_clone().expect("there is room"));
                for _ in 0..count {
                    let mut line = Vec::new();
                    lines.read_until(b'\n', &mut line).expect("it is a line");
                    let request: Request = decode_line(&line).expect("it is a request");
                    let operation = Operation::Invalidate {};
                    let wanted = Command::Operation { resource: "v".to_owned(), operation };
                    assert_eq!(request.command, wanted);
                    let mut bytes = Vec::new();
                    let reply = Reply::result(request.id, Answer::Done {});
                    encode_line(&reply, &mut bytes).expect("it is short");
                    (&stream).write_all(&bytes).expect("somebody reads");
                }
            }
        });
        let nodes = vec![("a".to_owned(), "/nowhere".into()), ("c".to_owned(), socket.clone())];
        let mut watch = Watch::new(nodes, "v", "c");
        for _ in 0..3 {
            watch.invalidate().expect("it is told");
        }
        node.join().expect("it was told so");
        std::fs::remove_file(&socket).expect("it is there");
    }

    const TOTAL: u64 = 1000;

    /// Looks at these milliseconds.
    fn seen(looks: &[(u64, Option<u64>)]) -> Follow {
        let mut follow = Follow::default();
        for &(at, done) in looks {
            follow.see(Duration::from_millis(at), done.map(|done| (done, TOTAL)));
        }
        follow
    }

    #[test]
    fn only_times_of_which_a_resync_was_seen_at_both_ends_count() {
        // One that is seen from 10 on and gone at 40; another from 80 on.
        let follow = seen(&[
            (0, None),
            (10, Some(100)),
            (20, Some(300)),
            (30, Some(500)),
            (40, None),
            (80, Some(50)),
            (100, Some(450)),
        ]);
        assert_eq!(follow.seen(), (800, Duration::from_millis(40)));
        assert!((follow.percent() - 500.0 / 7.0).abs() < 1e-9);
    }

    #[test]
    fn less_done_than_before_is_another_resync() {
        let follow = seen(&[(0, Some(100)), (10, Some(900)), (20, Some(40)), (30, Some(140))]);
        assert_eq!(follow.seen(), (900, Duration::from_millis(20)));
    }

    #[test]
    fn the_longest_stop_ends_when_something_moves_or_lasts_to_the_last_look() {
        let moves =
            seen(&[(0, Some(1)), (10, Some(2)), (20, Some(2)), (30, Some(2)), (40, Some(3))]);
        assert_eq!(moves.longest_stop(), Duration::from_millis(30));
        let stays = seen(&[(0, Some(1)), (10, Some(2)), (90, Some(2))]);
        assert_eq!(stays.longest_stop(), Duration::from_millis(80));
    }

    #[test]
    fn one_that_has_nothing_left_to_do_does_not_stop() {
        let follow = seen(&[(0, Some(900)), (10, Some(TOTAL)), (500, Some(TOTAL)), (510, None)]);
        assert_eq!(follow.longest_stop(), Duration::from_millis(10));
    }
}
