//! Scenarios one can read: a cluster, what happens to it line by line, and what must be true then.
//!
//! One command per line; `#` begins a comment. Nodes are numbered from 1; replicas come first, then
//! witnesses, then nodes without either.
//!
//! ```text
//! cluster replicas 3 witnesses 0 diskless 0 shards 1 protocol C checksums 0 write-through 0
//!                        hot 16 (extents in the activity log)
//!                        paths 1 (clients have several ways; 0: one each)
//!                        volumes 1 (a span of another one: 1:0+8)  in-sync-min 1  on-no-quorum suspend-io
//!                        timing short (or `default`: leases as long as a node's are unless it is told otherwise)
//! cluster replicas 2 quorum off             without quorum
//! write a 1 0+8          the client on node 1 writes sectors 0..8 and is answered; call it a
//! write b 1 0+8 fua      ... and it survives a power cut
//! submit c 1 0+8         asks, and does not wait for the answer
//! ask r 1 0+8            reads, and does not wait for the answer
//! elsewhere 4 5          the client on node 4 goes by node 5 from now on, and asks anew there for what it waits for
//! flush 1                is answered
//! read 2 0+8 is a        is answered with what a wrote; `zero`: zeroes
//! crash 2                the process dies; `start 2` starts it again
//! stop 2                 the process stops in good order; `until stopped 2`. `shutdown 2`: the machine is switched off then
//! power 1 2 3            the power goes, and every cache with it
//! torn 2                 likewise, and what is just written of metadata is there in its first piece only (`until storing 2`)
//! rewind 2               the process dies and its disk is what it was at its first start
//! pause 1, resume 1      the process stands still
//! cut 1 | 2 3            no message passes between the sides; `mend` ends every cut
//! one-way 1 | 2          no message passes from the left to the right
//! hold written 2 1 500   the next message of this kind (`network::KINDS`, spaces as `-`) from node 2 to node 1, and all
//!                        that follows it in its stream, takes 500 ms longer; `hold write 2 1 500 stream 3`: the next in that of
//!                        shard 3 (the first one is 0)
//! keep 2, restore 2      the disk is copied; the process dies, and the disk is that copy again
//! replace 2              the process dies, and the disk is an empty one
//! spoil 2 flipped        a page of metadata rots; `stale`: the next one is confirmed and not written; `astray`: or written elsewhere;
//!                        `stale-record`, `astray-record`: likewise the record. `log`: both copies of a page of the log rot;
//!                        `bits 3`: the page of what node 3 misses does
//! lose 2 lost            the next write of data that node 2's disk confirms is not carried out; `lose 2 astray 64`: it goes
//!                        over sectors 64 and those that follow
//! unlost                 no such write is still to come
//! damage 2 17+3          sectors of node 2's disk change by themselves, and no checksum tells
//! had a 0+64             every replica's disk held this before the resource was made (before anything else is asked for)
//! rot 2 17               sector 17 of node 2's disk changes by itself, if its checksum is stored
//! demote 1, promote 2, verify 1, invalidate 2, force 2
//! remove 2, add 2        asked of the primary: a replica is taken out, or added
//! resize 2048            asked of the primary: sectors; `resize 2048 by 2`: of node 2, where there may be several
//! resolve 1 2            an operator ends a split brain: node 1 goes on, the side of node 2 is given up
//! leave 2                the clients of node 2 are gone
//! zero 1 0+8             the client zeroes these sectors, and is answered; `discard 1 0+8`: and needs no room for them any more
//! submit d 1 0+8 discard asks for that by a name, and does not wait
//! fails write d 1 0+8    is answered by an error; so is `fails read 1 0+8`
//! failed b               what was submitted by this name was answered by an error
//! errors 2               from now on every request to the disk of node 2 fails; `full 2`: every write of data. `well 2`
//!                        ends both
//! stall 2 500            the disk answers nothing for 500 ms
//! slow 1 2 30            messages between the two take up to 30 ms longer; `slow 1 2 0`: as before
//! break 1 2              their connection breaks, and is made again; `reconnect 1 2`: although the old one lasts
//! drain 2 1 20           whenever that happens, shards of node 2 go on for 20 ms with what still comes by the old one
//! suspend 1, go-on 1     an operator holds all requests back; `hold-resync 1`, `let-resync 1`: resync
//! set on-no-quorum io-error       asked of the primary: `on-no-quorum`, `protocol`, `in-sync-min`, `read-policy`,
//!                        `resync-rate-max` and `resync-rate-min` (KiB per second)
//! repeat 5 ... end       the lines between, five times; a repeat has no other inside
//! wait 300               milliseconds pass; `calm 300`: and meanwhile no configuration is decided, and no connection made
//! until primary 2        time passes until it is so: `primary N`, `in-sync N…`, `syncing N`, `fork N`, `answered`,
//!                        `split N M`, `stopped N…`, `storing N` (metadata), `clean` (no replica has any block marked or in doubt)
//! within 3000 write b 2 0+8       what follows comes true within 3000 ms
//! waits                  something that was submitted is still not answered; `waits b`: what has that name, or a part of it
//! saw r is a             what was asked by this name was answered with what a wrote; `zero`: zeroes
//! stale 2                node 2 does not count as in sync now
//! copied 2 8             the last resync of node 2 sent it 8 sectors at most; `compared 2 64`: no more than 64 had to be looked at;
//!                        `copied 2 just 8`, `compared 2 just 64`: no fewer either
//! found 8                the last verify found 8 sectors that were not the same everywhere, and made them the same
//! refused                the last thing that an operator asked for was refused
//! reached sim: log damaged        this mark of the code was reached (`marks`, and those of the simulator's own)
//! done                   everything that operators asked for has ended; `undone`: something has not yet
//! identical              all replicas hold the same; `identical 2 3`: these do
//! holds 2 0+8 is a       the disk of node 2 holds what a wrote, whatever reads would say; `zero`: zeroes
//! ```
//!
//! At the end everything that was read must be linear.
//!
//! Not here: random faults (`plan`).

mod acts;
mod looks;
#[cfg(test)]
mod tests;

use crate::history::{Effect, OpIndex, Token};
use crate::plan::{BadWrite, Plan, Role};
use crate::queue::{MILLI, SECOND, Time};
use crate::world::{World, node_id, node_index};
use base::{Op, Span, VolumeId};
use replica::Operation;
use std::collections::BTreeMap;

/// Whatever a scenario waits for must be so within this time.
const PATIENCE: Time = 20 * SECOND;

/// Runs a scenario.
///
/// # Errors
/// The line that did not come true or could not be understood, and why.
pub fn run(text: &str, trace: bool) -> Result<(), String> {
    let mut scenario: Option<Scenario> = None;
    for (number, line) in unroll(text)? {
        let words: Vec<&str> = line.split_whitespace().collect();
        if trace {
            println!("==== {line}");
        }
        let done = match (&mut scenario, words[0]) {
            (None, "cluster") => cluster(&words, trace).map(|made| scenario = Some(made)),
            (None, _) => Err("the first line must say what the cluster is".to_owned()),
            (Some(scenario), _) => scenario.line(&words),
        };
        done.map_err(|error| format!("line {}: {line}: {error}", number + 1))?;
    }
    let Some(scenario) = scenario else { return Err("an empty scenario".to_owned()) };
    scenario.end()
}

/// The lines of a scenario as they are carried out, each with its number from 0.
fn unroll(text: &str) -> Result<Vec<(usize, &str)>, String> {
    let mut lines = Vec::new();
    // How often, and where in `lines` it begins.
    let mut repeat: Option<(usize, usize)> = None;
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or("").trim();
        match (line.split_once(' ').map_or((line, ""), |parts| parts), repeat) {
            (("", _), _) => {}
            (("repeat", count), None) => {
                let count =
                    count.trim().parse().map_err(|_| format!("line {}: how often?", number + 1))?;
                repeat = Some((count, lines.len()));
            }
            (("end", _), Some((count, from))) => {
                let body = lines[from..].to_vec();
                (1..count).for_each(|_| lines.extend_from_slice(&body));
                repeat = None;
            }
            (("repeat" | "end", _), _) => return Err(format!("line {}: no pair", number + 1)),
            _ => lines.push((number, line)),
        }
    }
    if repeat.is_some() { Err("a repeat without its end".to_owned()) } else { Ok(lines) }
}

/// Runs every scenario of `crates/sim/scenarios`, or those named: how many, and how many did not come true.
///
/// # Errors
/// The folder cannot be found or read.
pub fn run_all(names: &[String], trace: bool) -> std::io::Result<(u64, u64)> {
    let folder = crate::alarm::root()?.join("crates/sim/scenarios");
    let mut paths: Vec<_> = std::fs::read_dir(folder)?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .collect();
    paths.sort();
    let (mut runs, mut failures) = (0, 0);
    for path in paths {
        let name =
            path.file_stem().map_or(String::new(), |stem| stem.to_string_lossy().into_owned());
        if !names.is_empty() && !names.contains(&name) {
            continue;
        }
        let text = std::fs::read_to_string(&path)?;
        runs += 1;
        let caught = std::panic::catch_unwind(|| run(&text, trace));
        let done = caught.unwrap_or_else(|_| Err("a machine's own assertion failed".to_owned()));
        match done {
            Ok(()) => println!("ok    {name}"),
            Err(error) => {
                failures += 1;
                println!("FAIL  {name}: {error}");
            }
        }
    }
    if runs < names.len() as u64 {
        return Err(std::io::Error::other(
            "one of these scenarios does not exist: their files are the list",
        ));
    }
    Ok((runs, failures))
}

struct Scenario {
    world: World,
    /// What each named write wrote where, a token for each extent.
    labels: BTreeMap<String, Vec<(Span, Token)>>,
    /// Its requests.
    calls: BTreeMap<String, Vec<OpIndex>>,
}

fn cluster(words: &[&str], trace: bool) -> Result<Scenario, String> {
    let count = |what: &str, default: usize| -> Result<usize, String> {
        let at = words.iter().position(|word| *word == what);
        at.map_or(Ok(default), |at| number(words.get(at + 1)))
    };
    let mut roles = vec![Role::Replica; count("replicas", 3)?];
    roles.extend(vec![Role::Witness; count("witnesses", 0)?]);
    roles.extend(vec![Role::Diskless; count("diskless", 0)?]);
    let shards = u16::try_from(count("shards", 1)?).map_err(|_| "too many shards")?;
    let mut plan = Plan::quiet(roles, shards);
    if words.windows(2).any(|pair| pair == ["quorum", "off"]) {
        plan.options.quorum = wire::Quorum::Off;
    }
    let protocol =
        words.iter().position(|word| *word == "protocol").and_then(|at| words.get(at + 1));
    if protocol == Some(&"B") {
        plan.options.protocol = wire::Protocol::B;
    }
    plan.options.data_checksum = count("checksums", 0)? > 0;
    if count("write-through", 0)? > 0 {
        plan.options.durability = wire::Durability::WriteThrough;
    }
    if words.windows(2).any(|pair| pair == ["timing", "default"]) {
        plan.timing = replica::door::Timing::default();
    }
    plan.geometry.log_extents = count("hot", plan.geometry.log_extents)?;
    for volume in 1..u16::try_from(count("volumes", 1)?).map_err(|_| "too many volumes")? {
        plan.volumes.push((VolumeId(volume), plan.volumes[0].1));
    }
    for option in ["in-sync-min", "on-no-quorum", "read-policy", "after-split-brain"] {
        if let Some(at) = words.iter().position(|word| *word == option) {
            acts::set_option(&mut plan.options, option, words.get(at + 1))?;
        }
    }
    let mut world = World::new(plan);
    world.trace = trace;
    if count("paths", 0)? > 0 {
        world.paths.have_several(world.plan.clients.len());
    }
    let mut scenario = Scenario { world, labels: BTreeMap::new(), calls: BTreeMap::new() };
    scenario.wait(500 * MILLI)?;
    Ok(scenario)
}

/// What an operator asks of single nodes by this word.
fn wish(word: &str) -> Option<Operation> {
    Some(match word {
        "promote" => Operation::Promote,
        "demote" => Operation::Demote,
        "verify" => Operation::Verify { anew: false },
        "invalidate" => Operation::Invalidate,
        "force" => Operation::Force,
        "suspend" => Operation::Suspend(true),
        "go-on" => Operation::Suspend(false),
        "hold-resync" => Operation::PauseResync(true),
        "let-resync" => Operation::PauseResync(false),
        "fail-waiting" => Operation::FailWaiting(true),
        "let-wait" => Operation::FailWaiting(false),
        _ => return None,
    })
}

fn number(word: Option<&&str>) -> Result<usize, String> {
    word.and_then(|word| word.parse().ok()).ok_or_else(|| "a number is missing".to_owned())
}

/// `FIRST+COUNT`, or `VOLUME:FIRST+COUNT`.
fn span(word: Option<&&str>) -> Result<(VolumeId, Span), String> {
    let word = word.copied().ok_or("a span is missing")?;
    let (volume, word) = word.split_once(':').unwrap_or(("0", word));
    let volume = VolumeId(volume.parse().map_err(|_| "a volume is a number")?);
    let (first, count) = word.split_once('+').ok_or("a span is FIRST+COUNT")?;
    let first = first.parse().map_err(|_| "a span is FIRST+COUNT")?;
    let count = count.parse().map_err(|_| "a span is FIRST+COUNT")?;
    let span = Span::new(first, count).ok_or_else(|| "an empty span".to_owned())?;
    Ok((volume, span))
}

impl Scenario {
    fn line(&mut self, words: &[&str]) -> Result<(), String> {
        match words[0] {
            "write" | "submit" => self.write(words),
            "zero" | "discard" => self.zero(words),
            "ask" => self.ask(words),
            "fails" => self.fails(&words[1..]),
            "errors" | "full" | "well" | "stall" => self.disk_trouble(words),
            "slow" | "break" | "reconnect" | "drain" => self.link_trouble(words),
            "elsewhere" => self.elsewhere(words),
            "set" => self.set(words),
            "within" => self.within(&words[1..]),
            "flush" => {
                let client = self.client(words.get(1))?;
                let index = self.world.history.len();
                self.world.flush(client, VolumeId(0));
                self.answered(index)
            }
            "read" => self.read(words),
            "crash" | "power" | "torn" | "rewind" | "start" | "pause" | "resume" | "stop"
            | "shutdown" => self.process(words),
            "cut" | "one-way" => self.cut(words),
            "hold" => self.hold(words),
            "keep" | "restore" | "replace" | "rot" | "lose" | "spoil" => self.disk(words),
            "damage" | "had" => self.alter(words),
            "remove" | "add" | "resize" => self.ask_primary(words),
            "mend" => {
                for one in 0..self.world.nodes.len() {
                    for other in 0..self.world.nodes.len() {
                        while self.world.links[one][other].blocked > 0 {
                            self.world.unblock(one, other);
                        }
                    }
                }
                Ok(())
            }
            "resolve" => {
                let &[at, discard] = self.nodes(&words[1..])?.as_slice() else {
                    return Err("resolve HERE DISCARDED".to_owned());
                };
                self.world.resolve(at, node_id(discard));
                self.broken()
            }
            "leave" => {
                for node in self.nodes(&words[1..])? {
                    self.world.count_clients(node, 0);
                }
                Ok(())
            }
            word => match wish(word) {
                Some(operation) => self.operation(words, operation),
                None => self.look(words),
            },
        }
    }

    fn client(&self, word: Option<&&str>) -> Result<usize, String> {
        let node = number(word)? - 1;
        let at = self.world.plan.clients.iter().position(|&client| client == node);
        at.ok_or_else(|| "that node has no client".to_owned())
    }

    fn nodes(&self, words: &[&str]) -> Result<Vec<usize>, String> {
        let mut nodes = Vec::new();
        for word in words {
            let node = number(Some(word))?;
            if node == 0 || node > self.world.nodes.len() {
                return Err("no such node".to_owned());
            }
            nodes.push(node - 1);
        }
        Ok(nodes)
    }

    fn write(&mut self, words: &[&str]) -> Result<(), String> {
        let label = (*words.get(1).ok_or("a write needs a name")?).to_owned();
        let client = self.client(words.get(2))?;
        let (volume, span) = span(words.get(3))?;
        let fua = words.get(4) == Some(&"fua");
        let discards = words.get(4) == Some(&"discard");
        self.world.count_clients(self.world.plan.clients[client], 1);
        let mut calls = Vec::new();
        let mut written = Vec::new();
        for piece in self.pieces(span) {
            let token = if discards { 0 } else { self.world.fresh_token() };
            let op = if discards { Op::Zero { unmap: true } } else { Op::Write };
            written.push((piece, token));
            calls.push(self.world.history.len());
            self.world.call_as(client, volume, piece, op, Effect::Write(token), fua);
        }
        self.labels.insert(label.clone(), written);
        self.calls.insert(label, calls.clone());
        if words[0] == "write" {
            calls.into_iter().try_for_each(|index| self.answered(index))?;
        }
        Ok(())
    }

    /// The parts of a span that lie in one extent each, as nodes cut requests.
    fn pieces(&self, span: Span) -> Vec<Span> {
        let extent = self.world.plan.geometry.extent_sectors;
        let mut pieces = Vec::new();
        let mut first = span.first();
        while first < span.end() {
            let end = span.end().min((first / extent + 1) * extent);
            let count = u32::try_from(end - first).expect("a part of a span");
            pieces.extend(Span::new(first, count));
            first = end;
        }
        pieces
    }

    fn read(&mut self, words: &[&str]) -> Result<(), String> {
        let client = self.client(words.get(1))?;
        let (volume, span) = span(words.get(2))?;
        self.world.count_clients(self.world.plan.clients[client], 1);
        for piece in self.pieces(span) {
            let index = self.world.history.len();
            self.world.call(client, volume, piece, Effect::Read(Vec::new()), false);
            self.answered(index)?;
            let operation = self.world.history.operation(index);
            if let (Some(&label), Effect::Read(seen)) = (words.get(4), &operation.effect) {
                self.is_what_was_written(piece, seen, label)?;
            }
        }
        Ok(())
    }

    /// Whether what is in these sectors is what the write of this name wrote to each of them.
    fn is_what_was_written(&self, span: Span, seen: &[Token], label: &str) -> Result<(), String> {
        let zero = vec![(span, 0)];
        let written = match label {
            "zero" => &zero,
            _ => self.labels.get(label).ok_or("no write has that name")?,
        };
        let at = |sector| {
            let piece =
                written.iter().find(|(piece, _)| (piece.first()..piece.end()).contains(&sector));
            piece.map(|&(_, token)| token)
        };
        let expected: Vec<Option<Token>> = (span.first()..span.end()).map(at).collect();
        let expected: Option<Vec<Token>> = expected.into_iter().collect();
        let expected = expected.ok_or("that write did not write all of these sectors")?;
        if seen == expected { Ok(()) } else { Err(format!("it is {seen:?}, not {expected:?}")) }
    }

    fn process(&mut self, words: &[&str]) -> Result<(), String> {
        let nodes = self.nodes(&words[1..])?;
        for &node in &nodes {
            match words[0] {
                "crash" => self.world.kill(node, false),
                "power" => self.world.kill(node, true),
                // It is started again by `start`.
                "stop" => {
                    self.world.stop_in_order(node, false, PATIENCE * 1_000);
                }
                "shutdown" => {
                    self.world.stop_in_order(node, true, PATIENCE * 1_000);
                }
                "torn" => {
                    let disk = self.world.nodes[node].disk.as_mut();
                    let disk = disk.filter(|disk| disk.is_storing());
                    disk.ok_or("nothing of its metadata is being written")?.tears = true;
                    self.world.kill(node, true);
                }
                "rewind" => {
                    self.world.kill(node, false);
                    self.world.restore_disk(node, 0);
                }
                "start" => {
                    let life = self.world.nodes[node].life;
                    self.world.on_start(node, life);
                }
                "pause" => self.world.nodes[node].paused = true,
                _ => self.world.resume(node),
            }
        }
        if matches!(words[0], "power" | "torn") {
            self.world.look_for_loss();
        }
        self.broken()
    }

    fn cut(&mut self, words: &[&str]) -> Result<(), String> {
        let middle = words.iter().position(|word| *word == "|").ok_or("cut A | B")?;
        let one = self.nodes(&words[1..middle])?;
        let other = self.nodes(&words[middle + 1..])?;
        for &from in &one {
            for &to in &other {
                self.world.block(from, to);
                if words[0] == "cut" {
                    self.world.block(to, from);
                }
            }
        }
        Ok(())
    }

    fn hold(&mut self, words: &[&str]) -> Result<(), String> {
        let name = words.get(1).map(|word| word.replace('-', " ")).unwrap_or_default();
        let kind = crate::network::KINDS.iter().position(|kind| *kind == name);
        let kind = kind.ok_or_else(|| format!("no message is a {name}"))?;
        let nodes = self.nodes(words.get(2..4).ok_or("hold KIND FROM TO MS")?)?;
        let length = number(words.get(4))? as Time * MILLI;
        match words.get(5) {
            None => self.world.holds.push((nodes[0], nodes[1], kind, length)),
            Some(&"stream") => {
                let stream = number(words.get(6))?;
                self.world.links[nodes[0]][nodes[1]].holds.push((kind, stream, length));
            }
            Some(_) => return Err("hold KIND FROM TO MS stream N".to_owned()),
        }
        Ok(())
    }

    fn disk(&mut self, words: &[&str]) -> Result<(), String> {
        let node = self.nodes(words.get(1..2).ok_or("which node?")?)?[0];
        match words[0] {
            "keep" => {
                let disk = self.world.nodes[node].disk.clone();
                self.world.nodes[node].backups = disk.into_iter().collect();
            }
            "rot" => {
                let sector = number(words.get(2))? as u64;
                let disk = self.world.nodes[node].disk.as_mut().ok_or("it has no disk")?;
                if !disk.rot(VolumeId(0), sector) {
                    return Err("its checksum is not stored".to_owned());
                }
            }
            "lose" => {
                let to = words.get(3).map(|word| number(Some(word))).transpose()?;
                let how = match (words.get(2), to) {
                    (Some(&"lost"), None) => BadWrite::Lost,
                    (Some(&"astray"), Some(_)) => BadWrite::Astray,
                    _ => return Err("lose NODE lost, or lose NODE astray SECTOR".to_owned()),
                };
                self.world.nodes[node].bad_write = Some((how, to.map(|to| to as u64)));
            }
            "spoil" => {
                self.spoil(node, &words[2..])?;
            }
            _ => self.world.swap_disk(node, Time::MAX / 8, words[0] == "restore"),
        }
        Ok(())
    }

    fn ask_primary(&mut self, words: &[&str]) -> Result<(), String> {
        let newest = self.world.oracle.newest.as_ref().ok_or("there is no configuration")?;
        let primary = match words.get(2) {
            Some(&"by") => self.nodes(words.get(3..4).ok_or("by which node?")?)?[0],
            _ => newest.primary.map(node_index).ok_or("nobody is primary")?,
        };
        let operation = if words[0] == "resize" {
            let sectors = number(words.get(1))? as u64;
            Operation::Resize { volume: VolumeId(0), sectors, shrinks: true }
        } else {
            let node = self.nodes(&words[1..2])?[0];
            let (id, voter) = (node_id(node), self.world.nodes[node].voter);
            if words[0] == "remove" {
                Operation::RemoveMember { node: id }
            } else {
                let witness = self.world.plan.roles[node] == Role::Witness;
                let kind = [wire::MemberKind::Replica, wire::MemberKind::Witness];
                Operation::AddMember { node: id, kind: kind[usize::from(witness)], voter }
            }
        };
        self.world.want(primary, operation);
        self.until(&["done"])?;
        // It is committed; the shards are still to hear of it.
        self.wait(50 * MILLI)
    }

    fn operation(&mut self, words: &[&str], operation: Operation) -> Result<(), String> {
        for node in self.nodes(&words[1..])? {
            self.world.want(node, operation.clone());
        }
        self.broken()
    }

    fn wait(&mut self, length: Time) -> Result<(), String> {
        let end = self.world.queue.now() + length;
        while self.world.queue.next_at().is_some_and(|at| at <= end) {
            self.world.advance();
            self.broken()?;
        }
        Ok(())
    }

    fn answered(&mut self, index: OpIndex) -> Result<(), String> {
        if self.outcome(index)? {
            return Ok(());
        }
        Err("is answered by an error".to_owned())
    }

    /// Whether it ended well, once it has ended.
    fn outcome(&mut self, index: OpIndex) -> Result<bool, String> {
        let end = self.world.queue.now() + PATIENCE;
        while !self.world.history.operation(index).ended {
            if self.world.queue.now() > end {
                return Err("is not answered".to_owned());
            }
            self.world.advance();
            self.broken()?;
        }
        Ok(self.world.history.operation(index).ok)
    }

    fn until(&mut self, words: &[&str]) -> Result<(), String> {
        let end = self.world.queue.now() + PATIENCE;
        while !self.is_so(words)? {
            if self.world.queue.now() > end {
                let newest = self.world.oracle.newest.as_ref().map(crate::oracle::short);
                let unclean = self.unclean().filter(|_| words == ["clean"]).unwrap_or_default();
                return Err(format!("does not come true: {newest:?} {unclean}"));
            }
            self.world.advance();
            self.broken()?;
        }
        Ok(())
    }

    /// The rule that was broken, if one was.
    fn broken(&self) -> Result<(), String> {
        let Some(failure) = &self.world.failure else { return Ok(()) };
        Err(format!("{}: {}", failure.checker, failure.text))
    }

    fn end(self) -> Result<(), String> {
        self.broken()?;
        match self.world.check_history() {
            Ok(0) => Ok(()),
            Ok(_) => Err("there are too many orders of what clients asked for".to_owned()),
            Err(found) => Err(format!("not linear: {}", found.text)),
        }
    }
}
