//! Talking to a node: its admin socket, a request, its answer.
//!
//! Always: no answer is waited for without a limit, but for a stream of events; what acts on a resource names it by
//! its identity, too, because another node may know another one by the name; a node is told to do something only when
//! it has just said that it is there.
//!
//! Not here: which nodes to ask (`cluster`).

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use wire::admin::{
    Answer, Command, Event, LINE_BYTES_MAX, Lines, Operation, Outcome, Reply, Request, Status,
    codes, decode_line, encode_line,
};

use crate::problem::{INTERRUPTED, PROTOCOL, Problem, TIMED_OUT, UNREACHED};
use crate::unix::connect_within;

/// How long a question takes at most: a node answers from memory.
pub(crate) const QUESTION_LIMIT: Duration = Duration::from_secs(5);

/// How long a node that tells of events may say nothing before it is asked whether it is there, and then take to answer.
const SILENCE_LIMIT: Duration = Duration::from_secs(2);

/// How long a node may take to say that it is there, before it is told to do something.
const THERE_LIMIT: Duration = Duration::from_secs(3);

/// How long a change takes at most: a majority must agree, a store be made, a disk flushed.
const CHANGE_LIMIT: Duration = Duration::from_secs(60);

/// How long making, comparing or hashing whole replicas may take: a large, slow disk.
const WHOLE_LIMIT: Duration = Duration::from_secs(24 * 3600);

/// How long a node that is busy with the resource is asked again: it takes a store away, or exchanges its part.
const FREE_LIMIT: Duration = Duration::from_secs(20);

/// Between two looks whether a node is free, or whether who waits for one wants to stop.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What is said of a change to which no answer came.
const MAY_BE: &str = "; what it was asked to do may still take effect";

/// A node that can be asked.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Node {
    /// Its name; of a node named by its socket only, the socket's path until it has answered.
    pub(crate) name: String,
    /// Its admin socket.
    pub(crate) socket: PathBuf,
    /// The resource that is meant: requests about another one of its name are refused. Nothing acts on a resource
    /// without it.
    pub(crate) identity: Option<u64>,
}

/// A name that a node keeps for this process until it is dropped.
pub(crate) struct Reserved {
    _connection: UnixStream,
}

/// A connection to a node's admin socket.
struct Line<'a> {
    node: &'a Node,
    stream: UnixStream,
    lines: Lines,
}

impl Node {
    /// Asks, and waits for the one answer.
    pub(crate) fn ask(&self, command: Command) -> Result<Answer, Problem> {
        let limit = limit_of(&command);
        self.ask_within(command, limit)
    }

    /// Asks, and waits no longer than `limit` for each piece of the answer. A node that is busy with the resource is asked
    /// for a change again until it is free.
    pub(crate) fn ask_within(&self, command: Command, limit: Duration) -> Result<Answer, Problem> {
        if is_question(&command) {
            let mut line = Line::open(self, Some(limit))?;
            line.send(command)?;
            return line.answer();
        }
        when_free(FREE_LIMIT, || self.tell(&command, limit))
    }

    /// Asks for a change, once.
    fn tell(&self, command: &Command, limit: Duration) -> Result<Answer, Problem> {
        let mut line = Line::open(self, Some(THERE_LIMIT))?;
        line.greet()?;
        line.wait_for(limit)?;
        line.send(command.clone())?;
        line.answer().map_err(|problem| self.unanswered(problem))
    }

    /// Asks for a change that takes long, and waits for it as long as `is_told` does not say that it is to stop. Who stops
    /// hangs up: the node hears that, and ends what it has begun.
    pub(crate) fn change_unless(
        &self,
        command: Command,
        is_told: &dyn Fn() -> bool,
    ) -> Result<(), Problem> {
        let limit = limit_of(&command);
        let mut line = Line::open(self, Some(THERE_LIMIT))?;
        line.greet()?;
        line.wait_for(LOOK_EVERY)?;
        line.send(command)?;
        let begun = Instant::now();
        loop {
            match line.answer() {
                Err(late) if late.is_kind(TIMED_OUT) && is_told() => {
                    let message = format!("interrupted while node {} was at work", self.name);
                    return Err(Problem::new(INTERRUPTED, message));
                }
                Err(late) if late.is_kind(TIMED_OUT) && begun.elapsed() < limit => {}
                Err(problem) => return Err(self.unanswered(problem)),
                Ok(Answer::Done {}) => return Ok(()),
                Ok(other) => return Err(unexpected(self, &other)),
            }
        }
    }

    /// Says of a change whose answer did not come that it may be made all the same.
    fn unanswered(&self, mut problem: Problem) -> Problem {
        if problem.is_kind(TIMED_OUT) {
            return silent(self, MAY_BE);
        }
        if problem.is_kind(UNREACHED) {
            problem.message.push_str(MAY_BE);
        }
        problem
    }

    /// Whether the node is there and does not stand still.
    pub(crate) fn greet(&self) -> Result<(), Problem> {
        Line::open(self, Some(THERE_LIMIT))?.greet()
    }

    /// Has a name kept for this process, so that nobody else makes a resource of it meanwhile.
    pub(crate) fn reserve(&self, resource: &str) -> Result<Reserved, Problem> {
        let command = Command::ResourceReserve { resource: resource.to_owned() };
        let mut line = Line::open(self, Some(limit_of(&command)))?;
        line.send(command)?;
        match line.answer()? {
            Answer::Done {} => Ok(Reserved { _connection: line.stream }),
            other => Err(unexpected(self, &other)),
        }
    }

    /// The same node, asked about this resource only.
    pub(crate) fn about(&self, identity: u64) -> Node {
        Node { identity: Some(identity), ..self.clone() }
    }

    /// A change, or another question that is answered by `Done`.
    pub(crate) fn change(&self, command: Command) -> Result<(), Problem> {
        match self.ask(command)? {
            Answer::Done {} => Ok(()),
            other => Err(unexpected(self, &other)),
        }
    }

    /// Changes a resource.
    pub(crate) fn operate(&self, resource: &str, operation: Operation) -> Result<(), Problem> {
        self.change(Command::Operation { resource: resource.to_owned(), operation })
    }

    /// Resources as this node sees them.
    pub(crate) fn status(&self, resource: Option<&str>) -> Result<Status, Problem> {
        self.status_within(resource, QUESTION_LIMIT)
    }

    /// The same, in this time at most.
    pub(crate) fn status_within(
        &self,
        resource: Option<&str>,
        limit: Duration,
    ) -> Result<Status, Problem> {
        let command = Command::Status { resource: resource.map(str::to_owned) };
        match self.status_by(command, limit) {
            Err(refused) if resource.is_none() && refused.is(&codes::REPLY_TOO_LONG) => {
                match self.status_in_pages(limit) {
                    // One of before there were pages.
                    Err(problem) if problem.is(&codes::MALFORMED_REQUEST) => Err(refused),
                    pages => pages,
                }
            }
            answer => answer,
        }
    }

    /// All resources, asked for until no more are told.
    fn status_in_pages(&self, limit: Duration) -> Result<Status, Problem> {
        let mut all = self.status_by(Command::StatusPage { after: String::new() }, limit)?;
        while std::mem::take(&mut all.more) {
            let last = all.resources.last().map(|resource| resource.name.clone());
            let command = Command::StatusPage { after: last.unwrap_or_default() };
            let page = self.status_by(command, limit)?;
            all.more = page.more && !page.resources.is_empty();
            all.resources.extend(page.resources);
        }
        Ok(all)
    }

    fn status_by(&self, command: Command, limit: Duration) -> Result<Status, Problem> {
        match self.ask_within(command, limit)? {
            Answer::Status(status) => Ok(status),
            other => Err(unexpected(self, &other)),
        }
    }

    /// Hears every change until `hear` says to stop, by answering false, or the node ends or stands still. First it
    /// hears, by an empty event, that the node is there and will tell.
    pub(crate) fn events(
        &self,
        resource: Option<&str>,
        hear: &mut dyn FnMut(Option<Event>) -> bool,
    ) -> Result<(), Problem> {
        let mut line = Line::open(self, Some(QUESTION_LIMIT))?;
        // In one piece: when the first is answered, the second has been heard, too.
        line.send_all(&[
            Command::Events { resource: resource.map(str::to_owned) },
            Command::Ping {},
        ])?;
        let (mut begun, mut asked) = (false, true);
        loop {
            let answer = match line.answer() {
                // Nothing happened, or the node stands still with its socket open.
                Err(problem) if begun && !asked && problem.is_kind(TIMED_OUT) => {
                    line.send(Command::Ping {})?;
                    asked = true;
                    continue;
                }
                answer => answer?,
            };
            match answer {
                Answer::Pong { .. } => {
                    asked = false;
                    if !begun && !hear(None) {
                        return Ok(());
                    }
                    begun = true;
                    line.wait_for(SILENCE_LIMIT)?;
                }
                Answer::Event(event) if hear(Some((*event).clone())) => {}
                Answer::Event(_) => return Ok(()),
                other => return Err(unexpected(self, &other)),
            }
        }
    }
}

/// Asks again and again while a node is busy with the resource, for this long.
fn when_free<T>(
    limit: Duration,
    mut ask: impl FnMut() -> Result<T, Problem>,
) -> Result<T, Problem> {
    let begun = Instant::now();
    loop {
        match ask() {
            Err(problem) if problem.is(&codes::BUSY) && begun.elapsed() < limit => {
                std::thread::sleep(LOOK_EVERY);
            }
            outcome => return outcome,
        }
    }
}

/// Whether a node changes nothing for it.
fn is_question(command: &Command) -> bool {
    matches!(
        command,
        Command::Ping {}
            | Command::NodeStatus {}
            | Command::Status { .. }
            | Command::StatusPage { .. }
            | Command::UblkList {}
            | Command::VhostList {}
    )
}

/// A node has its socket open and does not answer.
fn silent(node: &Node, and: &str) -> Problem {
    let name = &node.name;
    let mut problem = Problem::new(TIMED_OUT, format!("node {name} does not answer{and}"));
    problem.cause = "Its process stands still, or its machine is overloaded.".to_owned();
    problem.remedy = format!(
        "Let its process go on, or start it anew (development cluster: lockstep dev kill {name}, then lockstep dev start \
         {name}); `lockstep status` says what has become of it."
    );
    problem
}

fn limit_of(command: &Command) -> Duration {
    match command {
        question if is_question(question) => QUESTION_LIMIT,
        Command::ResourceReserve { .. } => QUESTION_LIMIT,
        Command::Dump { .. }
        | Command::ResourceCreate { .. }
        | Command::Operation {
            operation: Operation::Verify { .. } | Operation::Resize { .. },
            ..
        } => WHOLE_LIMIT,
        _ => CHANGE_LIMIT,
    }
}

/// An answer of a kind that does not belong to the question.
pub(crate) fn unexpected(node: &Node, answer: &Answer) -> Problem {
    let text = format!("{answer:?}");
    let kind = text.split([' ', '(', '{']).next().unwrap_or("?").to_owned();
    Problem::new(PROTOCOL, format!("node {} gave an answer of another kind: {kind}", node.name))
}

fn unreached(node: &Node, socket: &Path, error: &std::io::Error) -> Problem {
    Problem::new(UNREACHED, format!("node {}: {}: {error}", node.name, socket.display()))
}

impl Line<'_> {
    fn open(node: &Node, limit: Option<Duration>) -> Result<Line<'_>, Problem> {
        let stream = connect_within(&node.socket, QUESTION_LIMIT)
            .and_then(|stream| stream.set_read_timeout(limit).map(|()| stream))
            .map_err(|error| unreached(node, &node.socket, &error))?;
        Ok(Line { node, stream, lines: Lines::default() })
    }

    /// From now on each piece of an answer is waited for so long.
    fn wait_for(&self, limit: Duration) -> Result<(), Problem> {
        let told = self.stream.set_read_timeout(Some(limit));
        told.map_err(|error| unreached(self.node, &self.node.socket, &error))
    }

    /// Asks whether the node is there.
    fn greet(&mut self) -> Result<(), Problem> {
        self.send(Command::Ping {})?;
        match self.answer() {
            Ok(Answer::Pong { .. }) => Ok(()),
            Ok(other) => Err(unexpected(self.node, &other)),
            Err(problem) if problem.is_kind(TIMED_OUT) => {
                Err(silent(self.node, "; it was not told to do anything"))
            }
            Err(problem) => Err(problem),
        }
    }

    fn send(&mut self, command: Command) -> Result<(), Problem> {
        self.send_all(&[command])
    }

    fn send_all(&mut self, commands: &[Command]) -> Result<(), Problem> {
        let mut bytes = Vec::new();
        for command in commands {
            let named = command.acts_on().is_none() || self.node.identity.is_some();
            assert!(named, "a resource is asked for by its name alone: {command:?}");
            let request = Request::new(1, command.clone()).about(self.node.identity);
            encode_line(&request, &mut bytes)
                .map_err(|error| Problem::new(PROTOCOL, format!("the request is {error}")))?;
        }
        self.stream
            .write_all(&bytes)
            .map_err(|error| unreached(self.node, &self.node.socket, &error))
    }

    fn answer(&mut self) -> Result<Answer, Problem> {
        let line = self.line()?;
        let reply: Reply = decode_line(&line).map_err(|error| {
            let message = format!("node {} answered nonsense: {error}", self.node.name);
            Problem::new(PROTOCOL, message)
        })?;
        match reply.outcome {
            Outcome::Result(answer) => Ok(*answer),
            Outcome::Error(failure) => Err(Problem::from_node(&self.node.name, failure)),
        }
    }

    fn line(&mut self) -> Result<Vec<u8>, Problem> {
        let mut piece = vec![0; LINE_BYTES_MAX / 16];
        loop {
            if let Some(line) = self.lines.next_line() {
                return Ok(line);
            }
            let count = match self.stream.read(&mut piece) {
                // Its process has ended: one that goes on answers first.
                Ok(0) => {
                    let message = format!("node {} closed the connection", self.node.name);
                    return Err(Problem::new(UNREACHED, message));
                }
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    return Err(silent(self.node, ""));
                }
                Err(error) => return Err(unreached(self.node, &self.node.socket, &error)),
            };
            self.lines.push(&piece[..count]).map_err(|error| {
                Problem::new(PROTOCOL, format!("node {} answered {error}", self.node.name))
            })?;
        }
    }
}

#[cfg(test)]
mod tests;
