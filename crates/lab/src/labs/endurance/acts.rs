//! What happens in a round, one thing after the other.
//!
//! Always: an act is over when it returns: what was cut is whole, who was stopped runs, what was held back goes on. Words that
//! may well be refused now are said for what they do when they are not, and what came of each is counted.

use std::collections::BTreeMap;
use std::time::Duration;

use base::Prng;

use super::super::faults::restart_with;
use super::super::kill::{DISK, SIZE, SIZE_TEXT};
use super::super::net::Network;
use super::{COPIES, LASTING, NODES, PASSING, insist};
use crate::bench::{Outcome, ensure, let_run, wait_for};
use crate::cluster::SYNC_LIMIT;
use crate::load::{BLOCK_BYTES, Load, addresses};
use client::{ANSWER_LIMIT, Volume};

/// A volume that has grown.
const GROWN: u64 = 320 << 20;
const GROWN_TEXT: &str = "320MiB";

/// How long a cut lasts at most: longer than lease and take-over.
const CUT_MS: u64 = 6_000;

/// How long clients may take to be told a new size.
const TOLD_LIMIT: Duration = Duration::from_secs(30);

/// Kinds of acts; promoting is two of them.
const KINDS: u64 = 22;

/// Rounds in which each of the words that may be refused is said some times.
const ROUNDS_ENOUGH: usize = 30;

/// What the command line ends with: done, refused, and not done in time, as where no majority is left for a while.
const DONE: i32 = 0;
const REFUSED: i32 = 1;
const LATE: i32 = 4;

/// What came of a word that may be refused.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Heard {
    done: u64,
    refused: u64,
    late: u64,
}

/// What came of all of them.
pub(super) type Words = BTreeMap<&'static str, Heard>;

/// Those of which nothing has come yet.
pub(super) fn unheard() -> Words {
    let words = ["promote", "demote", "suspend", "pause-resync", "verify", "invalidate"];
    let more = ["remove-replica", "fail-waiting", "let-wait"];
    words.into_iter().chain(more).map(|word| (word, Heard::default())).collect()
}

/// Words that nobody ever carried out, though there were rounds enough for each.
pub(super) fn never_done(words: &Words, rounds: usize) -> Vec<&'static str> {
    let never = words.iter().filter(|(_, heard)| rounds >= ROUNDS_ENOUGH && heard.done == 0);
    never.map(|(word, _)| *word).collect()
}

/// Who acts.
pub(super) struct Acts<'a> {
    /// The cluster, and what its nodes hear of each other.
    pub(super) network: &'a Network<'a>,
    /// Must get on.
    pub(super) load: &'a Load,
    /// What the settings of nodes that die say of their disks in this round; empty: those are plain.
    pub(super) forgets: String,
    /// Whether `d` is a witness at present.
    pub(super) witness: bool,
    /// What came of words that may be refused.
    pub(super) words: &'a mut Words,
}

fn pick(random: &mut Prng, of: &[&'static str]) -> &'static str {
    let count = u64::try_from(of.len()).unwrap_or(1);
    of[usize::try_from(random.below(count)).unwrap_or(0)]
}

fn ms(random: &mut Prng, least: u64, most: u64) -> Duration {
    Duration::from_millis(least + random.below(most - least))
}

impl Acts<'_> {
    /// One thing happens. Returns what it is called.
    pub(super) fn act(&mut self, random: &mut Prng) -> Outcome<&'static str> {
        let cluster = self.network.cluster;
        let node = pick(random, &NODES);
        match random.below(KINDS) {
            0 => self.kill(pick(random, &PASSING)),
            1 => {
                let victim = pick(random, &PASSING);
                cluster.stop(victim)?;
                self.back(victim)?;
                Ok("stop")
            }
            2 => {
                cluster.freeze(node)?;
                let_run(ms(random, 100, 4100));
                cluster.thaw(node)?;
                Ok("freeze")
            }
            3 | 4 => self.say("promote", &["--node", node], "promote"),
            5 => self.say("demote", &[], "demote"),
            6 => {
                self.say("suspend", &[], "suspend")?;
                self.insist("resume", &[])?;
                Ok("suspend")
            }
            7 => {
                self.say("pause-resync", &[], "pause resync")?;
                self.load.progress(20)?;
                self.insist("resume-resync", &[])?;
                Ok("pause resync")
            }
            8 => self.say("verify", &["--anew"], "verify"),
            9 => self.say("invalidate", &["--node", pick(random, &COPIES)], "invalidate"),
            10 => self.out_and_in(),
            11 => self.connect(),
            12 => self.grow_and_shrink(random),
            13 => self.witness_in_or_out(),
            14 | 15 => self.fail_of_disk(random),
            _ => self.cut(random),
        }
    }

    /// A word that may be refused: whether it was carried out. That it makes no sense, or that there is no such thing, is no refusal.
    fn is_heard(&mut self, verb: &'static str, more: &[&str]) -> Outcome<bool> {
        let said = self.network.cluster.cli(&[&["resource", verb, DISK], more].concat())?;
        let heard = self.words.entry(verb).or_default();
        match said.code {
            Some(DONE) => heard.done += 1,
            Some(REFUSED) => heard.refused += 1,
            Some(LATE) => heard.late += 1,
            _ => return Err(said.failure("should have been carried out or refused")),
        }
        Ok(said.code == Some(DONE))
    }

    /// The same for who does not care.
    fn say(
        &mut self,
        verb: &'static str,
        more: &[&str],
        name: &'static str,
    ) -> Outcome<&'static str> {
        self.is_heard(verb, more)?;
        Ok(name)
    }

    /// One that must be heard in the end.
    fn insist(&self, verb: &str, more: &[&str]) -> Outcome<()> {
        insist(self.network.cluster, &[&["resource", verb, DISK], more].concat())
    }

    /// A node dies; where its disk forgets, its power is cut.
    fn kill(&self, victim: &str) -> Outcome<&'static str> {
        if !self.forgets.is_empty() {
            self.a_lasting_copy()?;
        }
        self.network.cluster.kill(victim)?;
        self.back(victim)?;
        Ok(if self.forgets.is_empty() { "kill" } else { "power cut" })
    }

    /// Starts a node that is away, once the others have gone on without it: where two copies were invalidated its own may be
    /// the only one that has everything, and they cannot.
    fn back(&self, node: &str) -> Outcome<()> {
        let before = self.load.acknowledged();
        wait_for("20 more acknowledged writes", SYNC_LIMIT, || {
            let more = self.load.acknowledged() - before;
            ensure!(more >= 20 || !self.has_copy(|other| other != node)?, "there were {more}");
            Ok(())
        })?;
        self.network.cluster.start(node)
    }

    /// Whether one of these nodes is known to have everything.
    fn has_copy(&self, of: impl Fn(&str) -> bool) -> Outcome<bool> {
        let status = self.network.cluster.status(DISK)?;
        let replicas = status["replicas"].as_array().map(Vec::as_slice).unwrap_or_default();
        let wanted = |node: Option<&str>| node.is_some_and(&of);
        Ok(replicas.iter().any(|one| wanted(one["node"].as_str()) && one["in_sync"] == true))
    }

    /// Waits until a node that neither dies nor forgets has everything.
    fn a_lasting_copy(&self) -> Outcome<()> {
        wait_for("a copy in sync of a node that lasts", SYNC_LIMIT, || {
            ensure!(self.has_copy(|node| LASTING.contains(&node))?, "there is none");
            Ok(())
        })
    }

    fn out_and_in(&mut self) -> Outcome<&'static str> {
        self.network.cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
        if self.is_heard("remove-replica", &["--node", "c"])? {
            self.load.progress(20)?;
            self.insist("add-replica", &["--node", "c"])?;
        }
        Ok("remove and add")
    }

    fn connect(&self) -> Outcome<&'static str> {
        for address in addresses(self.network.cluster, &NODES)?.repeat(10) {
            // A node that is just coming back may refuse it.
            drop(Volume::open(address, DISK, ANSWER_LIMIT));
        }
        Ok("connect")
    }

    /// `d` votes, or does no more.
    pub(super) fn witness_in_or_out(&mut self) -> Outcome<&'static str> {
        match self.witness {
            false => self.insist("add-replica", &["--node", "d", "--witness"])?,
            true => self.insist("remove-replica", &["--node", "d"])?,
        }
        self.witness = !self.witness;
        Ok(if self.witness { "witness in" } else { "witness out" })
    }

    /// What is added reads as zeroes, whatever was there once, and keeps what is written.
    fn grow_and_shrink(&self, random: &mut Prng) -> Outcome<&'static str> {
        let place = SIZE + random.below((GROWN - SIZE) / 4096) * 4096;
        self.insist("resize", &["--size", GROWN_TEXT])?;
        let mut bytes = vec![1; BLOCK_BYTES];
        self.at(random, |volume| volume.read(place, &mut bytes))?;
        ensure!(bytes.iter().all(|&byte| byte == 0), "what was added is not zero at {place}");
        let written = vec![0x5a; BLOCK_BYTES];
        self.at(random, |volume| volume.write(place, &written))?;
        self.at(random, |volume| volume.read(place, &mut bytes))?;
        ensure!(bytes == written, "what was written at {place}, which was added, is not there");
        self.load.progress(20)?;
        self.insist("resize", &["--size", SIZE_TEXT, "--force"])?;
        Ok("grow and shrink")
    }

    /// Does something with the volume by a node, which may have to hear of its size first.
    fn at(
        &self,
        random: &mut Prng,
        mut act: impl FnMut(&mut Volume) -> std::io::Result<()>,
    ) -> Outcome<()> {
        let node = self.network.cluster.node(pick(random, &NODES))?.nbd;
        wait_for("the volume to be as large as it was said", TOLD_LIMIT, || {
            let mut volume = Volume::open(node, DISK, ANSWER_LIMIT)?;
            ensure!(volume.ready.size_bytes == GROWN, "it has {}", volume.ready.size_bytes);
            Ok(act(&mut volume)?)
        })
    }

    /// The disk of `c` fails, is full, or is late, for a while.
    fn fail_of_disk(&self, random: &mut Prng) -> Outcome<&'static str> {
        let (name, faults) = match random.below(3) {
            0 => {
                let what = pick(random, &["read", "write", "flush"]);
                ("disk fails", format!("{what}_errors_one_in = {}", 50 + random.below(300)))
            }
            1 => ("disk full", format!("full_after_bytes = {}", 1 + random.below(16 << 20))),
            _ => {
                let (one_in, ms) = (50 + random.below(400), 100 + random.below(4000));
                let before = random.once_in(2);
                let words =
                    format!("stalls_one_in = {one_in}\nstall_ms = {ms}\nstalls_before = {before}");
                ("disk stalls", words)
            }
        };
        let seed = match self.forgets.is_empty() {
            true => format!("seed = {}\n", random.below(1 << 32)),
            false => String::new(),
        };
        let cluster = self.network.cluster;
        self.a_lasting_copy()?;
        restart_with(cluster, "c", &format!("{seed}{}{faults}", self.forgets))?;
        self.load.progress(20)?;
        let_run(ms(random, 500, 4000));
        self.a_lasting_copy()?;
        restart_with(cluster, "c", &self.forgets)?;
        Ok(name)
    }

    /// Packets between nodes are lost for a while.
    fn cut(&mut self, random: &mut Prng) -> Outcome<&'static str> {
        let (one, network) = (pick(random, &NODES), self.network);
        let others: Vec<&'static str> = NODES.into_iter().filter(|node| *node != one).collect();
        let other = pick(random, &others);
        let name = match random.below(6) {
            0 | 1 => {
                network.isolate(one)?;
                "isolated"
            }
            2 => {
                network.cut(one, other)?;
                "one way"
            }
            3 => {
                network.cut(one, other)?;
                network.cut(other, one)?;
                "round a corner"
            }
            4 => return self.flap(random, one, other),
            _ => return self.fail_waiting(random),
        };
        let_run(ms(random, 100, CUT_MS));
        network.heal()?;
        Ok(name)
    }

    /// Comes and goes.
    fn flap(&self, random: &mut Prng, one: &str, other: &str) -> Outcome<&'static str> {
        for _ in 0..6 {
            self.network.cut(one, other)?;
            let_run(ms(random, 50, 1200));
            self.network.heal()?;
            let_run(ms(random, 0, 500));
        }
        Ok("flap")
    }

    /// Requests of a node that is cut off get errors, which its clients take elsewhere, until it is cut off no more.
    fn fail_waiting(&mut self, random: &mut Prng) -> Outcome<&'static str> {
        let node = pick(random, &PASSING);
        self.network.isolate(node)?;
        let_run(ms(random, 500, CUT_MS));
        self.say("fail-waiting", &["--node", node], "fail waiting")?;
        let_run(ms(random, 100, 1000));
        if random.once_in(2) {
            self.say("let-wait", &["--node", node], "fail waiting")?;
        }
        self.network.heal()?;
        Ok("fail waiting")
    }
}

#[cfg(test)]
mod tests {
    use super::{ROUNDS_ENOUGH, never_done, unheard};

    #[test]
    fn a_word_that_was_always_refused_is_told_once_there_were_rounds_enough() {
        let mut words = unheard();
        for (word, heard) in &mut words {
            heard.done = u64::from(*word != "demote");
            heard.refused = 7;
        }
        assert_eq!(never_done(&words, ROUNDS_ENOUGH - 1), Vec::<&str>::new());
        assert_eq!(never_done(&words, ROUNDS_ENOUGH), ["demote"]);
    }
}
