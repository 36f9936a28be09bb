//! `lockstep dev demo`: what Lockstep is for, in a minute, with every byte checked.
//!
//! Three nodes, one volume with three copies, sixteen clients that write; the primary's node is
//! killed under them; others go on; the node returns and copies what it missed. Then everything
//! acknowledged is read back and the copies are compared.
//!
//! Always: no node is left running, however it ends, unless that was asked for; a directory is
//! removed only if everything was as promised and it was made here.
//!
//! Not here: the clients (`load`, `disk`).

mod load;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use wire::admin::{Answer, Command as Ask, DumpVolume, Operation, codes};

use crate::cli::{Create, Form, Store, Wanted};
use crate::cluster::{Cluster, DevCluster, NodeEntry, absolute, make_private_directory};
use crate::dev::up::AddressLock;
use crate::dev::{Asked, bring_up, process, stop_flag};
use crate::output::{LiveLine, Style, Tone, bar, say, say_json};
use crate::problem::{CLUSTER_OTHER, DEMO_FAILED, INTERRUPTED, NODE_ABSENT, Problem, TIMED_OUT};
use crate::resource::make_new;
use crate::typed;
use crate::unit::show_size;
use crate::view::{Views, reached};
use client::{ANSWER_LIMIT, Volume};
use load::{BLOCK_BYTES, Expected, Progress, WRITERS, Writer, Written};

/// Name of the resource.
const NAME: &str = "demo";

/// Number of nodes and copies.
const NODES: u16 = 3;

/// How long each thing that is waited for may take, a slow machine included.
const STEP_LIMIT: Duration = Duration::from_secs(60);

/// How long a resync may take: it shares two cores with everything else.
const RESYNC_LIMIT: Duration = Duration::from_secs(180);

/// Between two looks at something that goes on.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// What came out.
#[derive(Serialize)]
struct Outcome {
    version: u16,
    acknowledged: u64,
    lost: u64,
    longest_pause_ms: u64,
    resynced_bytes: u64,
    volume_bytes: u64,
    replicas_identical: bool,
    broken_connections_to_living_nodes: u64,
}

/// The running demo.
struct Demo {
    style: Style,
    cluster: Cluster,
    dev: DevCluster,
    keep: bool,
    stop: Arc<AtomicBool>,
    begun: Instant,
    size: u64,
}

impl Drop for Demo {
    fn drop(&mut self) {
        if !self.keep {
            let all: Vec<&NodeEntry> = self.dev.file.nodes.iter().collect();
            if let Err(problem) = process::stop(&self.dev, &all) {
                eprintln!("{problem}");
            }
        }
    }
}

/// Runs it in `directory`, or in a temporary one.
pub(crate) fn run(
    directory: Option<&Path>,
    style: Style,
    keep: bool,
    size: u64,
    load_time: Duration,
) -> Result<(), Problem> {
    let own = directory.is_none();
    let directory = match directory {
        Some(directory) => absolute(directory)?,
        None => std::env::temp_dir().join(format!("lockstep-demo-{}", std::process::id())),
    };
    if DevCluster::read(&directory)?.is_some() {
        let message = format!("{} holds a cluster already", directory.display());
        return Err(Problem::new(CLUSTER_OTHER, message));
    }
    if !size.is_multiple_of(BLOCK_BYTES as u64) {
        return Err(Problem::new(crate::problem::USAGE, "--size must be a multiple of 4096"));
    }
    if own {
        make_private_directory(&directory)?;
    }
    let outcome = show(&directory, style, keep, size, load_time).map_err(|mut problem| {
        problem.message.push_str(&format!("; everything is kept in {}", directory.display()));
        problem
    })?;
    if own && !keep {
        let cluster = DevCluster::read(&directory)?;
        std::fs::remove_dir_all(&directory).map_err(|error| Problem::file(&directory, &error))?;
        if let Some(cluster) = cluster {
            AddressLock::take()?.release(&cluster);
        }
    }
    if style.form == Form::Json {
        return say_json(&outcome);
    }
    say(&commands(&directory, keep))
}

fn show(
    directory: &Path,
    style: Style,
    keep: bool,
    size: u64,
    load_time: Duration,
) -> Result<Outcome, Problem> {
    let stop = stop_flag()?;
    let begun = Instant::now();
    if style.form == Form::Human {
        let size = show_size(size);
        say(&format!(
            "Lockstep demo: {NODES} nodes on this machine, one volume of {size}, {NODES} copies.\n\
             Files and logs: {}\n\n",
            directory.display()
        ))?;
    }
    let wanted = Asked { nodes: Some(NODES), store: Some(Store::File), ..Asked::default() };
    let dev = bring_up(directory, &wanted)?;
    let nodes = dev.file.nodes.iter().map(|node| dev.admin_of(node)).collect();
    let cluster = Cluster { dev: Some(dev.clone()), nodes, identity: None };
    let demo = Demo { style, cluster, dev, keep, stop, begun, size };
    demo.play(load_time)
}

impl Demo {
    fn play(&self, load_time: Duration) -> Result<Outcome, Problem> {
        let names: Vec<&str> = self.dev.file.nodes.iter().map(|node| node.name.as_str()).collect();
        self.tell(&format!("Nodes {} run, each on an address of its own.", names.join(", ")))?;
        make_new(&self.cluster, self.style, &new_resource(self.size))?;
        self.until(Wanted::InSync)?;
        self.tell(&format!("Resource {NAME}: a copy on each node, all in sync."))?;
        let progress = Progress::new();
        let seed = sys::random_u64();
        let blocks = self.size / BLOCK_BYTES as u64;
        let writers = self.writers(seed, blocks);
        let (written, (victim, resynced)) = thread::scope(|scope| {
            let progress = &progress;
            let running: Vec<_> =
                writers.iter().map(|writer| scope.spawn(move || writer.run(progress))).collect();
            let resynced = self.crash_and_return(progress, load_time);
            progress.stop();
            let mut written = Vec::new();
            for thread in running {
                let died = |_| Err(Problem::new(DEMO_FAILED, "a writer died"));
                written.push(thread.join().unwrap_or_else(died)?);
            }
            Ok::<_, Problem>((written, resynced?))
        })?;
        let others = broken_elsewhere(&written, victim);
        let expected = Expected { written, seed, blocks };
        let lost = self.read_back(&expected, &progress)?;
        let identical = self.compare()?;
        self.conclude(Outcome {
            version: 1,
            acknowledged: progress.acknowledged(),
            lost,
            longest_pause_ms: u64::try_from(progress.longest_pause().as_millis())
                .unwrap_or(u64::MAX),
            resynced_bytes: resynced,
            volume_bytes: self.size,
            replicas_identical: identical,
            broken_connections_to_living_nodes: others,
        })
    }

    /// Half of the writers begin at the first node, half at the second; one of the two is primary.
    fn writers(&self, seed: u64, blocks: u64) -> Vec<Writer> {
        let addresses: Vec<SocketAddr> = self.dev.file.nodes.iter().map(|node| node.nbd).collect();
        let writer = |number: u64| {
            let mut nodes = addresses.clone();
            if !number.is_multiple_of(2) {
                nodes.rotate_left(1);
            }
            Writer { number, nodes, export: NAME.to_owned(), blocks, seed }
        };
        (0..WRITERS).map(writer).collect()
    }

    /// Kills the primary's node under load, and brings it back. Returns where it served clients, and
    /// the bytes it copied.
    fn crash_and_return(
        &self,
        progress: &Progress,
        load_time: Duration,
    ) -> Result<(SocketAddr, u64), Problem> {
        let begun = Instant::now();
        let third = load_time / 3;
        self.tell(&format!(
            "{WRITERS} clients write blocks of 4 KiB all over an eighth of the volume, half of them through node {}.",
            self.dev.file.nodes[1].name
        ))?;
        self.write_on(progress, begun, third)?;
        let victim = self.primary()?;
        let before = progress.acknowledged();
        process::kill(&self.dev, &victim)?;
        let crash = Instant::now();
        self.tell(&format!("kill -9: node {}, the primary, is gone.", victim.name))?;
        self.wait("the first write after it", || Ok(progress.acknowledged() > before + WRITERS))?;
        let pause = crash.elapsed().as_millis();
        let next = self.primary()?;
        self.tell(&format!("Node {} is primary now; writes went on after {pause} ms.", next.name))?;
        self.write_on(progress, begun, third * 2)?;
        let run = process::start(&self.dev, &victim)?;
        process::wait_until_it_answers(&self.dev, &victim, run)?;
        self.tell(&format!("Node {} is back, and copies what it missed.", victim.name))?;
        let resynced = self.resync(&victim.name)?;
        self.write_on(progress, begun, load_time)?;
        Ok((victim.nbd, resynced))
    }

    /// Lets the load go on until `until` after `begun`.
    fn write_on(
        &self,
        progress: &Progress,
        begun: Instant,
        until: Duration,
    ) -> Result<(), Problem> {
        let mut line = LiveLine::new(self.style);
        while begun.elapsed() < until || progress.acknowledged() == 0 {
            self.check_stop()?;
            if begun.elapsed() > until + STEP_LIMIT {
                return Err(Problem::new(TIMED_OUT, "no write is acknowledged"));
            }
            line.show(&format!("         {} writes acknowledged", progress.acknowledged()))?;
            thread::sleep(LOOK_INTERVAL);
        }
        line.end()
    }

    /// Waits until the returned node is in sync again. Returns the bytes it was sent.
    fn resync(&self, node: &str) -> Result<u64, Problem> {
        let begun = Instant::now();
        let mut line = LiveLine::new(self.style);
        let mut seen = 0;
        loop {
            self.check_stop()?;
            let views = Views::gather(&self.cluster, Some(NAME))?;
            for (_, view) in views.all_of(NAME) {
                let replica = view.replicas.iter().find(|replica| replica.node == node);
                let Some(resync) = replica.and_then(|replica| replica.resync) else { continue };
                seen = resync.done_bytes.max(seen);
                line.show(&format!(
                    "         {}",
                    bar(
                        resync.done_bytes,
                        resync.total_bytes,
                        resync.rate_bytes_per_second,
                        resync.eta_seconds
                    )
                ))?;
            }
            if reached(&views, &self.cluster, NAME, Wanted::InSync).is_ok() {
                line.end()?;
                let took = begun.elapsed().as_millis();
                let done = views
                    .best(NAME)
                    .and_then(|view| view.replicas.iter().find(|replica| replica.node == node))
                    .and_then(|replica| replica.last_resync);
                // A resync that came to its end under another primary leaves only what was seen.
                let (copied, equal) =
                    done.map_or((seen, 0), |done| (done.copied_bytes, done.equal_bytes));
                self.tell(&format!(
                    "All copies are in sync again after {took} ms: {} copied, {} compared and found equal.",
                    show_size(copied),
                    show_size(equal)
                ))?;
                return Ok(copied);
            }
            if begun.elapsed() > RESYNC_LIMIT {
                line.end()?;
                return Err(Problem::new(TIMED_OUT, format!("the copy on {node} is not in sync")));
            }
            thread::sleep(LOOK_INTERVAL);
        }
    }

    /// Reads the whole volume through all nodes. Returns the number of blocks that are not what was
    /// acknowledged.
    fn read_back(&self, expected: &Expected, progress: &Progress) -> Result<u64, Problem> {
        let nodes: Vec<SocketAddr> = self.dev.file.nodes.iter().map(|node| node.nbd).collect();
        let flushed = Volume::open(nodes[0], NAME, ANSWER_LIMIT).and_then(|mut disk| disk.flush());
        flushed.map_err(|error| {
            Problem::new(crate::problem::CLIENT_BROKEN, format!("flush: {error}"))
        })?;
        self.tell(&format!(
            "Reading everything back through every node: {} blocks were written, the rest must be zeroes.",
            expected.touched()
        ))?;
        let wrong = thread::scope(|scope| {
            let checking = scope.spawn(|| expected.check(&nodes, NAME, progress));
            let mut line = LiveLine::new(self.style);
            while !checking.is_finished() {
                line.show(&format!(
                    "         {}",
                    bar(progress.checked_bytes(), self.size, 0, None)
                ))?;
                thread::sleep(LOOK_INTERVAL);
            }
            line.end()?;
            checking.join().unwrap_or_else(|_| Err(Problem::new(DEMO_FAILED, "a reader died")))
        })?;
        if let Some(first) = wrong.first() {
            eprintln!("block {first} does not hold what was acknowledged");
        }
        Ok(wrong.len() as u64)
    }

    /// Compares the copies themselves, as they lie on the nodes' disks.
    fn compare(&self) -> Result<bool, Problem> {
        self.tell("Comparing the copies on the nodes' disks, byte for byte.")?;
        self.wait("the primary to step down", || {
            let (cluster, views) = Views::one(&self.cluster, NAME)?;
            let Some(primary) = views.require(NAME)?.primary.clone() else { return Ok(true) };
            match cluster.node(&primary)?.operate(NAME, Operation::Demote {}) {
                // Clients that have just gone may not be forgotten yet.
                Err(problem) if problem.is(&codes::IN_USE) => Ok(false),
                outcome => outcome.map(|()| false),
            }
        })?;
        let mut all: Vec<(String, Vec<DumpVolume>)> = Vec::new();
        let (cluster, _) = Views::one(&self.cluster, NAME)?;
        for node in &cluster.nodes {
            match node.ask(Ask::Dump { resource: NAME.to_owned() })? {
                Answer::Dump(dump) => all.push((node.name.clone(), dump.volumes)),
                other => return Err(crate::admin::unexpected(node, &other)),
            }
        }
        let first = all.first().map(|(_, volumes)| volumes.clone()).unwrap_or_default();
        let mut same = !first.is_empty();
        for (name, volumes) in &all {
            if *volumes != first {
                same = false;
                eprintln!("the copy on {name} differs from the one on {}", all[0].0);
            }
        }
        Ok(same)
    }

    fn conclude(&self, outcome: Outcome) -> Result<Outcome, Problem> {
        if self.style.form == Form::Human {
            let identical = if outcome.replicas_identical { "identical" } else { "DIFFERENT" };
            say(&format!(
                "\nacknowledged {}\nlost {}\nlongest pause {} ms\nresynced {} of {} bytes\n\
                 replicas {identical}\n",
                outcome.acknowledged,
                outcome.lost,
                outcome.longest_pause_ms,
                outcome.resynced_bytes,
                outcome.volume_bytes
            ))?;
        }
        let failed = |what: String| Err(Problem::new(DEMO_FAILED, what));
        if outcome.lost > 0 {
            return failed(format!("{} blocks do not hold what was acknowledged", outcome.lost));
        }
        if !outcome.replicas_identical {
            return failed("the copies differ".to_owned());
        }
        if outcome.broken_connections_to_living_nodes > 0 {
            return failed("connections to nodes that were alive broke".to_owned());
        }
        Ok(outcome)
    }

    /// The node that is primary, and says so itself.
    fn primary(&self) -> Result<NodeEntry, Problem> {
        self.until(Wanted::Primary)?;
        let views = Views::gather(&self.cluster, Some(NAME))?;
        let name = views.require(NAME)?.primary.clone();
        let none = || Problem::new(NODE_ABSENT, "no node is primary");
        self.dev.node(&name.ok_or_else(none)?).cloned()
    }

    fn until(&self, wanted: Wanted) -> Result<(), Problem> {
        let mut missing = String::new();
        let outcome = self.wait("", || {
            let views = Views::gather(&self.cluster, Some(NAME))?;
            match reached(&views, &self.cluster, NAME, wanted) {
                Ok(()) => Ok(true),
                Err(what) => {
                    missing = what;
                    Ok(false)
                }
            }
        });
        outcome.map_err(|mut problem| {
            problem.message.push_str(&missing);
            problem
        })
    }

    fn wait(
        &self,
        what: &str,
        mut done: impl FnMut() -> Result<bool, Problem>,
    ) -> Result<(), Problem> {
        let begun = Instant::now();
        while !done()? {
            self.check_stop()?;
            if begun.elapsed() > STEP_LIMIT {
                let message = format!("waited {} s for {what}", STEP_LIMIT.as_secs());
                return Err(Problem::new(TIMED_OUT, message));
            }
            thread::sleep(LOOK_INTERVAL);
        }
        Ok(())
    }

    fn check_stop(&self) -> Result<(), Problem> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Problem::new(INTERRUPTED, "interrupted"));
        }
        Ok(())
    }

    /// A line about what happens, with the time since the start.
    fn tell(&self, text: &str) -> Result<(), Problem> {
        self.check_stop()?;
        if self.style.form == Form::Json {
            return Ok(());
        }
        let time = format!("[{:5.1} s]", self.begun.elapsed().as_secs_f64());
        say(&format!("{} {text}\n", self.style.paint(Tone::Faint, &time)))
    }
}

/// Connections that broke although their node lived.
fn broken_elsewhere(written: &[Written], victim: SocketAddr) -> u64 {
    let broken = written.iter().flat_map(|written| &written.broken);
    let mut count = 0;
    for (node, reason) in broken.filter(|(node, _)| *node != victim) {
        count += 1;
        eprintln!("a connection to {node} broke, where the node lived: {reason}");
    }
    count
}

fn new_resource(size: u64) -> Create {
    Create { name: NAME.to_owned(), size: Some(size), replicas: NODES, ..Create::default() }
}

/// What to do next.
fn commands(directory: &Path, keep: bool) -> String {
    let program = typed::program();
    if keep {
        let directory = typed::path(directory);
        return format!(
            "\nThe cluster is still running. Go on from here:\n  {program} --dir {directory} status\n  \
             {program} --dir {directory} explain {NAME}\n  {program} --dir {directory} dev down\n"
        );
    }
    format!(
        "\nNow a cluster of your own:\n  {program} dev up --nodes 3 --dir /tmp/lockstep --detach\n  \
         {program} --dir /tmp/lockstep resource create disk --size 1GiB --replicas 3\n  \
         {program} --dir /tmp/lockstep status\n"
    )
}
