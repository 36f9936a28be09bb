//! Networks that fail between nodes: cut both ways, one way, again and again; with a quorum and without; that lose packets, and
//! that are long.
//!
//! These labs run in a network namespace of their own (`supervise`), in which nft drops what one node's
//! address sends to another's, or some of it, or leads it through a relay that takes its time. Clients reach every node all
//! the time, and at once.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use base::Prng;
use wire::admin::{Answer, Command, SplitBrain};

use super::kill::{
    DISK, SIZE, SIZE_TEXT, by_nvme, load, roaming, settle, settle_later, staying, three,
};
use crate::bench::{Bench, Failure, Outcome, ensure, let_run, passed, tool, wait_for};
use crate::cluster::{Cluster, SYNC_LIMIT};
use crate::load::{ClientPlan, Load, LoadPlan, addresses};
use crate::relay::{Delay, relay};
use client::{ANSWER_LIMIT, Volume};

/// Clients that look at each node and wait as long as it takes.
const LOOKING: usize = 4;

/// How long a cut lasts: longer than lease and take-over.
const CUT: Duration = Duration::from_secs(6);

/// The rules of this namespace.
pub(super) struct Network<'a> {
    pub(super) cluster: &'a Cluster,
}

impl<'a> Network<'a> {
    /// Without any cut.
    pub(super) fn new(cluster: &'a Cluster) -> Outcome<Network<'a>> {
        tool("nft", &["add", "table", "ip", "lab"])?;
        tool(
            "nft",
            &["add", "chain", "ip", "lab", "cuts", "{ type filter hook input priority 0; }"],
        )?;
        Ok(Network { cluster })
    }

    /// Of what nodes send to each other so many packets of a hundred are lost, in both directions.
    fn lose(&self, percent: u8) -> Outcome<()> {
        let percent = percent.to_string();
        for (from, to) in self.ways()? {
            let chosen = ["numgen", "random", "mod", "100", "<", &percent, "counter", "drop"];
            let rule =
                ["add", "rule", "ip", "lab", "cuts", "ip", "saddr", &from, "ip", "daddr", &to];
            tool("nft", &[&rule[..], &chosen].concat())?;
        }
        Ok(())
    }

    /// What nodes say to each other from their next connection on comes so late.
    fn delay(&self, delay: Delay) -> Outcome<()> {
        let chain = "{ type nat hook output priority -100; }";
        tool("nft", &["add", "chain", "ip", "lab", "ways", chain])?;
        for node in &self.cluster.nodes {
            let door = self.cluster.peer_door(&node.name)?;
            let (address, port) = (door.ip().to_string(), door.port().to_string());
            let relay = format!("127.0.0.1:{}", relay(door, delay)?);
            for from in self.cluster.nodes.iter().filter(|other| other.name != node.name) {
                let from = from.nbd.ip().to_string();
                let rule = [
                    "add", "rule", "ip", "lab", "ways", "ip", "saddr", &from, "ip", "daddr",
                    &address, "tcp", "dport", &port, "counter", "dnat", "to", &relay,
                ];
                tool("nft", &rule)?;
            }
        }
        Ok(())
    }

    /// How many packets were lost, if some were in every direction between two nodes.
    fn lost(&self) -> Outcome<u64> {
        let struck = self.struck("cuts")?;
        let none = self.ways()?.into_iter().find(|way| struck.get(way).is_none_or(|&one| one == 0));
        ensure!(none.is_none(), "nothing was lost on the way {none:?}: {struck:?}");
        Ok(struck.values().sum())
    }

    /// How many connections were led through relays, if some were between any two nodes, whichever dialled.
    fn led(&self) -> Outcome<u64> {
        let struck = self.struck("ways")?;
        let of = |from: &str, to: &str| struck.get(&(from.into(), to.into())).copied();
        let total =
            |(from, to): &(String, String)| of(from, to).unwrap_or(0) + of(to, from).unwrap_or(0);
        let none = self.ways()?.into_iter().find(|way| total(way) == 0);
        ensure!(none.is_none(), "no connection between {none:?} was led through: {struck:?}");
        Ok(struck.values().sum())
    }

    /// How often the rules of a chain struck, by who sent and who was sent to.
    fn struck(&self, chain: &str) -> Outcome<BTreeMap<(String, String), u64>> {
        let told = tool("nft", &["list", "chain", "ip", "lab", chain])?;
        let after = |line: &str, word: &str| {
            let mut words = line.split_whitespace().skip_while(|one| *one != word);
            words.nth(1).map(str::to_owned)
        };
        let rule = |line: &str| {
            let way = (after(line, "saddr")?, after(line, "daddr")?);
            Some((way, after(line, "packets")?.parse().ok()?))
        };
        Ok(told.lines().filter_map(rule).collect())
    }

    /// Every pair of addresses of nodes, in both orders.
    fn ways(&self) -> Outcome<Vec<(String, String)>> {
        let mut ways = Vec::new();
        for from in &self.cluster.nodes {
            for to in self.cluster.nodes.iter().filter(|to| to.name != from.name) {
                let [from, to] = [self.address(&from.name)?, self.address(&to.name)?];
                ways.push((from.to_string(), to.to_string()));
            }
        }
        Ok(ways)
    }

    fn address(&self, node: &str) -> Outcome<IpAddr> {
        Ok(self.cluster.node(node)?.nbd.ip())
    }

    /// What `from` sends does not reach `to` any more.
    pub(super) fn cut(&self, from: &str, to: &str) -> Outcome<()> {
        let (from, to) = (self.address(from)?.to_string(), self.address(to)?.to_string());
        let rule = ["add", "rule", "ip", "lab", "cuts", "ip", "saddr", &from, "ip", "daddr", &to];
        tool("nft", &[&rule[..], &["drop"]].concat()).map(drop)
    }

    /// Nothing passes to or from this port, of a client.
    fn cut_off(&self, port: u16) -> Outcome<()> {
        for end in ["sport", "dport"] {
            let port = port.to_string();
            tool("nft", &["add", "rule", "ip", "lab", "cuts", "tcp", end, &port, "drop"])?;
        }
        Ok(())
    }

    /// Nothing passes between `node` and the others.
    pub(super) fn isolate(&self, node: &str) -> Outcome<()> {
        for other in self.cluster.nodes.iter().filter(|other| other.name != node) {
            self.cut(node, &other.name)?;
            self.cut(&other.name, node)?;
        }
        Ok(())
    }

    /// Everything passes.
    pub(super) fn heal(&self) -> Outcome<()> {
        tool("nft", &["flush", "chain", "ip", "lab", "cuts"]).map(drop)
    }
}

/// Writers everywhere that wait as long as it takes, by NBD and by NVMe/TCP, some that go elsewhere, and those who only look.
fn clients(cluster: &Cluster) -> Outcome<Vec<ClientPlan>> {
    let nodes = addresses(cluster, &["a", "b", "c"])?;
    let limit = Duration::from_secs(90);
    let looking = |&node| vec![ClientPlan::looking(node, CUT, limit); LOOKING];
    let mut clients: Vec<ClientPlan> = nodes.iter().flat_map(looking).collect();
    let staying = nodes.iter().map(|&node| ClientPlan { limit, ..ClientPlan::pinned(node) });
    let mut hosts: Vec<ClientPlan> = staying.clone().collect();
    clients.extend(staying);
    let limit = Duration::from_secs(2);
    let impatient = ClientPlan { limit, ..ClientPlan::roaming(&nodes) };
    hosts.push(impatient.clone());
    clients.extend(vec![impatient.clone(); 3]);
    clients.push(impatient.deep());
    clients.extend(by_nvme(cluster, hosts)?);
    Ok(clients)
}

/// The primary alone on one side.
pub(super) fn isolated(bench: &Bench) -> Outcome {
    let cluster = three(bench)?;
    let network = Network::new(&cluster)?;
    let load = load(bench, clients(&cluster)?);
    load.progress(200)?;
    for _ in 0..2 {
        let primary = cluster.primary(DISK)?;
        network.isolate(&primary)?;
        bench.tell(format_args!("{primary}, the primary, is cut off"));
        load.progress(100)?;
        load.run_for(CUT)?;
        network.heal()?;
        load.progress(100)?;
        cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
        bench.tell("healed, in sync");
    }
    passed(settle(bench, &cluster, load, &["a", "b", "c"])?)
}

/// A replica that cannot be reached but for its clients.
pub(super) fn replica(bench: &Bench) -> Outcome {
    let cluster = three(bench)?;
    let network = Network::new(&cluster)?;
    let load = load(bench, staying(&cluster, &["a", "b", "c"], 3)?);
    load.progress(200)?;
    let primary = cluster.primary(DISK)?;
    let other = if primary == "c" { "b" } else { "c" };
    network.isolate(other)?;
    bench.tell(format_args!("{other}, which is not primary, is cut off"));
    load.progress(100)?;
    load.run_for(CUT)?;
    network.heal()?;
    load.progress(100)?;
    passed(settle(bench, &cluster, load, &["a", "b", "c"])?)
}

/// An NBD client that moves is cut off from its node with a write on its way, writes by another, and its packets pass again.
pub(super) fn moved(bench: &Bench) -> Outcome {
    const BLOCK: u32 = 4096;
    let cluster = three(bench)?;
    let network = Network::new(&cluster)?;
    let open = |node: &str| {
        let export = format!("{DISK}{}", client::MOVES);
        Ok::<_, Failure>(Volume::open(cluster.node(node)?.nbd, &export, ANSWER_LIMIT)?)
    };
    let (old, newer) = (vec![1; BLOCK as usize], vec![2; BLOCK as usize]);
    let (mut other, mut left) = (open("a")?, open("b")?);
    let mut read = vec![0; BLOCK as usize];
    left.read(0, &mut read)?;
    network.cut_off(left.stream()?.local_addr()?.port())?;
    let mut write = Vec::new();
    nbd::encode_request(77, nbd::Op::Write, 0, BLOCK, false, &mut write);
    write.extend_from_slice(&old);
    left.send_raw(&write)?;
    wait_for("node b to give its client up", SYNC_LIMIT, || {
        ensure!(cluster.log("b").contains("an NBD client went"), "it has not");
        Ok(())
    })?;
    other.write(0, &newer)?;
    network.heal()?;
    ensure!(left.is_closed_by_server(), "what was on its way was taken in");
    for node in ["a", "b", "c"] {
        open(node)?.read(0, &mut read)?;
        ensure!(read == newer, "an older write came later, as {node} has it");
    }
    passed("its connection had ended when its write came")
}

/// Every direction by itself, and links that lead round a corner.
pub(super) fn one_way(bench: &Bench) -> Outcome {
    let cluster = three(bench)?;
    let network = Network::new(&cluster)?;
    let load = load(bench, clients(&cluster)?);
    load.progress(200)?;
    for (from, to) in [("a", "b"), ("b", "a"), ("c", "a"), ("a", "c")] {
        network.cut(from, to)?;
        bench.tell(format_args!("what {from} sends does not reach {to}"));
        load.progress(50)?;
        load.run_for(CUT)?;
        network.heal()?;
        load.progress(50)?;
        cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
    }
    // Both ways between two, each of which reaches the third.
    network.cut("a", "b")?;
    network.cut("b", "a")?;
    bench.tell("a and b do not reach each other, c reaches both");
    load.progress(50)?;
    load.run_for(CUT)?;
    network.heal()?;
    load.progress(50)?;
    passed(settle(bench, &cluster, load, &["a", "b", "c"])?)
}

/// Links that come and go.
pub(super) fn flapping(bench: &Bench) -> Outcome {
    let cluster = three(bench)?;
    let network = Network::new(&cluster)?;
    let load = load(bench, clients(&cluster)?);
    load.progress(200)?;
    let mut random = Prng::new(bench.seed);
    let names = ["a", "b", "c"];
    for _ in 0..20 {
        let from = usize::try_from(random.below(3)).unwrap_or(0);
        let to = (from + 1 + usize::try_from(random.below(2)).unwrap_or(0)) % 3;
        network.cut(names[from], names[to])?;
        if random.once_in(2) {
            network.cut(names[to], names[from])?;
        }
        let_run(Duration::from_millis(100 + random.below(1500)));
        network.heal()?;
        let_run(Duration::from_millis(random.below(700)));
    }
    load.progress(50)?;
    passed(settle(bench, &cluster, load, &["a", "b", "c"])?)
}

/// A load over a network that is bad and stays so, in which the primary is killed, and comes back.
/// In the end `strikes` tells how often that struck, or where it did not.
fn bad(
    bench: &Bench,
    worsen: impl Fn(&Network<'_>) -> Outcome<()>,
    strikes: impl Fn(&Network<'_>) -> Outcome<u64>,
    words: &str,
) -> Outcome {
    let cluster = three(bench)?;
    let network = Network::new(&cluster)?;
    worsen(&network)?;
    // What is connected already does not go another way.
    for node in ["a", "b", "c"] {
        cluster.stop(node)?;
    }
    cluster.start_all()?;
    cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
    bench.tell(words);
    cluster.ok(&["resource", "promote", DISK, "--node", "a"])?;
    let mut clients = staying(&cluster, &["b", "c"], 4)?;
    clients.extend(roaming(&cluster, &["a", "b"], 2)?);
    let load = load(bench, clients);
    load.progress(100)?;
    load.run_for(CUT)?;
    let victim = cluster.primary(DISK)?;
    ensure!(victim == "a", "{victim} is primary, though a was promoted and has clients");
    cluster.kill(&victim)?;
    bench.tell("a, the primary, is killed");
    load.progress(50)?;
    cluster.start(&victim)?;
    load.run_for(CUT)?;
    load.progress(50)?;
    // Beside requests a resync goes at their pace, which is slow here.
    let summary = settle_later(bench, &cluster, load, &["a", "b", "c"])?;
    passed(format!("it struck {} times; {summary}", strikes(&network)?))
}

/// One packet of fifty is lost.
pub(super) fn lossy(bench: &Bench) -> Outcome {
    let words = "between nodes two packets of a hundred are lost";
    bad(bench, |network| network.lose(2), |network| network.lost(), words)
}

/// Twenty to forty milliseconds each way.
pub(super) fn long(bench: &Bench) -> Outcome {
    let more_at_most = Duration::from_millis(20);
    let delay = Delay { least: Duration::from_millis(20), more_at_most };
    let words = "between nodes it takes 20 to 40 ms each way";
    bad(bench, |network| network.delay(delay), |network| network.led(), words)
}

/// What a node says of the split brain that it is in.
fn split_at(cluster: &Cluster, node: &str) -> Outcome<SplitBrain> {
    let answer = cluster.ask(node, Command::Status { resource: Some(DISK.to_owned()) })?;
    let Answer::Status(mut status) = answer else { return Err("no status".into()) };
    let resource = status.resources.pop().ok_or("the resource is not known")?;
    let split = resource.split_brain.into_iter().next();
    Ok(split.ok_or_else(|| format!("{node} sees no split brain"))?)
}

/// Two copies without quorum: both sides go on, each names the split brain when they meet, one is given up.
pub(super) fn without_quorum(bench: &Bench) -> Outcome {
    let cluster = Cluster::up(bench, 2)?;
    let network = Network::new(&cluster)?;
    cluster.create(DISK, &["--size", SIZE_TEXT, "--replicas", "2", "--quorum", "off"])?;
    let kept = load(bench, staying(&cluster, &["a"], 4)?);
    kept.progress(200)?;
    network.isolate("b")?;
    bench.tell("a and b are cut from each other");
    let clients = roaming(&cluster, &["b"], 3)?;
    let lost = Load::start(LoadPlan::new(DISK, SIZE, bench.seed ^ 1, clients));
    let both = || kept.progress(200).and_then(|()| lost.progress(200));
    both()?;
    // Something that only b's side has, where no load goes.
    let (place, mark) = (SIZE - 4096, [0x5a; 4096]);
    let other = cluster.node("b")?.nbd;
    Volume::open(other, DISK, ANSWER_LIMIT)?.write(place, &mark)?;
    network.heal()?;
    bench.tell("the network is whole again");
    wait_for("both to name the split brain", SYNC_LIMIT, || {
        let [mine, theirs] = [split_at(&cluster, "a")?, split_at(&cluster, "b")?];
        ensure!(mine.node == "b" && theirs.node == "a", "{mine:?}, {theirs:?}");
        let names = (&mine.mine, &mine.theirs) == (&theirs.theirs, &theirs.mine);
        ensure!(names && mine.mine != mine.theirs, "{mine:?}, {theirs:?}");
        let bytes = mine.theirs_changed_bytes.zip(theirs.theirs_changed_bytes);
        ensure!(bytes.is_some_and(|(one, two)| one.min(two) > 0), "{mine:?}, {theirs:?}");
        Ok(())
    })?;
    let told = cluster.ok(&["explain", DISK])?.to_lowercase();
    for word in ["split brain", "resolve disk --discard"] {
        ensure!(told.contains(word), "explain does not say {word:?}: {told}");
    }
    // Nobody's data is taken while nobody has chosen.
    both()?;
    let mut back = [0; 4096];
    Volume::open(other, DISK, ANSWER_LIMIT)?.read(place, &mut back)?;
    ensure!(back == mark, "b's side was taken from its clients before anybody chose");
    cluster.ok(&["resource", "resolve", DISK, "--discard", "b"])?;
    // b's side ends when its clients have left.
    drop(lost.stop()?);
    cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
    bench.tell("b's side is given up, b is in sync");
    kept.progress(200)?;
    for node in ["a", "b"] {
        let mut volume = Volume::open(cluster.node(node)?.nbd, DISK, ANSWER_LIMIT)?;
        volume.read(place, &mut back)?;
        ensure!(back == [0; 4096], "{node} shows what the side that was given up wrote");
    }
    passed(settle(bench, &cluster, kept, &["a", "b"])?)
}
