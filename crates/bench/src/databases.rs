//! Table 5: databases on a volume, beside the same databases on one copy that nobody replicates.
//!
//! Both go the same way: NBD over a Unix socket, nbdfuse, a loop device, ext4. Once all copies lie on the one disk that this
//! machine has; and once each on a device of its own, all limited alike (`throttle`), as nodes have in life: so slow that the
//! device should be the limit, and not the machine that all nodes share with the database.
//!
//! Always: servers run all the time and are measured by turns, those of two revisions as well.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use tools::database::{Home, Kind, MariaDb, PostgreSql, ask, serve, stop};
use tools::{Running, missing, no_disk};

use crate::cache;
use crate::calls::Counter;
use crate::cluster::{Cluster, Programs, Wanted};
use crate::fio::{Target, fill, float};
use crate::machine::processor_ms;
use crate::mirror::{self, OwnDevices};
use crate::outcome::{Outcome, fail, not_run, say};
use crate::resync::Anew;
use crate::run::{Pace, Run, order};
use crate::sample::{median, spread};
use crate::server::Server;
use crate::stop::{check, too_long};
use crate::tree::Tree;

/// For how long, and how often, system calls are counted at most.
const CALLS_SECONDS: u64 = 2;
const CALLS_REPEATS: u32 = 3;

/// How long a counter may take until it counts.
const ATTACH: Duration = Duration::from_millis(300);

/// Between two looks at a benchmark that runs.
const LOOK: Duration = Duration::from_millis(20);

/// What a benchmark may take beside its time.
const SPARE: Duration = Duration::from_secs(120);

/// The node whose copy is made anew.
const COPIED: &str = "c";

/// Rows of the table that the mix of reads and updates asks of.
const YCSB_ROWS: u32 = 10_000;

pub(crate) const PLAIN: &str = "nbdkit file, 1 copy";
pub(crate) const ALONE: &str = "1 replica";
pub(crate) const REPLICATED: &str = "3 replicas";
pub(crate) const RESYNCING: &str = "3 replicas, one of them being copied";

/// Requests in a second that each device does at most, where each copy has one: few enough that four clients should reach them.
const REQUESTS_MAX: u64 = 2_000;

pub(crate) const OWN_ALONE: &str = "1 replica, a device of its own";
pub(crate) const OWN_PLAIN: &str = "nbdkit on a device of its own, 1 copy";
pub(crate) const OWN_REPLICATED: &str = "3 replicas, a device for each";
pub(crate) const OWN_RESYNCING: &str = "3 replicas, a device for each, one of them being copied";

/// One benchmark on one subject.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Transactions {
    pub(crate) benchmark: &'static str,
    pub(crate) subject: String,
    /// The subject that it is compared with.
    pub(crate) reference: String,
    /// In a second: the median, the smallest and the largest.
    pub(crate) per_second: f64,
    pub(crate) range: (f64, f64),
    /// How long one took, in ms: the mean and the 99th percentile, as the benchmark says it or its log does; medians.
    pub(crate) mean_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) range_p99_ms: (f64, f64),
    /// Processor time of the nodes, or of nbdkit, in ms for 1 000 transactions.
    pub(crate) cpu_ms: f64,
    /// System calls of theirs for a transaction; `None`: not counted.
    pub(crate) system_calls: Option<f64>,
    /// How much of the time a copy was being made, in per cent.
    pub(crate) copied_percent: f64,
}

/// A benchmark of a database.
struct Benchmark {
    name: &'static str,
    /// Makes what it works on.
    prepare: fn(&Home) -> Outcome<()>,
    /// Its command line, for so many seconds.
    command: fn(&Home, u64) -> Outcome<Command>,
    /// What it says.
    parse: fn(&str) -> Option<Told>,
}

const SYSBENCH: Benchmark = Benchmark {
    name: "MariaDB, sysbench oltp_read_write",
    prepare: |home| Ok(MariaDb::prepare(home)?),
    command: |home, seconds| {
        let mut command = MariaDb::load(home, seconds);
        command.arg("--percentile=99");
        Ok(command)
    },
    parse: told_by_sysbench,
};
const PGBENCH: Benchmark = Benchmark {
    name: "PostgreSQL, pgbench",
    prepare: |home| Ok(PostgreSql::prepare(home)?),
    command: |home, seconds| Ok(logged(PostgreSql::load(home, seconds), home)),
    parse: told_by_pgbench,
};
const YCSB: Benchmark = Benchmark {
    name: "PostgreSQL, half reads and half updates (YCSB A)",
    prepare: ycsb_table,
    command: |home, seconds| Ok(logged(ycsb_command(home, seconds)?, home)),
    parse: told_by_pgbench,
};

/// Names of the benchmarks.
pub(crate) fn names() -> [&'static str; 3] {
    [SYSBENCH, PGBENCH, YCSB].map(|benchmark| benchmark.name)
}

/// What a benchmark says of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Told {
    per_second: f64,
    mean_ms: f64,
    /// `None`: its log says it.
    p99_ms: Option<f64>,
}

/// One run of a benchmark.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    per_second: f64,
    mean_ms: f64,
    p99_ms: f64,
    /// Of the subject's processes, for 1 000 transactions.
    cpu_ms: f64,
    copied_percent: f64,
}

/// What a database is put on.
struct Subject {
    name: String,
    tree: Tree,
    /// Processes that serve its blocks.
    pids: Vec<u32>,
    /// To be measured while a copy is made, too: called so.
    copied: Option<(String, Cluster)>,
    /// The one that is no cluster.
    server: Option<Server>,
}

/// Whether there can be any; what is missing here is said to be left out.
fn can_be(run: &Run) -> bool {
    if let Some(why) = no_disk() {
        not_run(format!("databases on volumes: {why}"));
        return false;
    }
    run.has("nbdkit", "databases beside one copy")
}

/// Whether each copy can have a device; what is missing for that is said, too.
fn can_have_devices() -> bool {
    let why = mirror::cannot();
    if let Some(why) = &why {
        not_run(format!("databases on devices of their own: {why}"));
    }
    why.is_none()
}

/// Says all that will be left out.
pub(crate) fn foresee(run: &Run) {
    if can_be(run) {
        can_have_devices();
        is_there::<MariaDb>(&[SYSBENCH]);
        is_there::<PostgreSql>(of_postgresql(run.pace));
    }
}

/// All copies share the disk.
pub(crate) fn on_one_disk(run: &Run) -> Outcome<Vec<Transactions>> {
    // A brief run is for what nodes with disks of their own do, if it can be.
    if !can_be(run) || run.pace.brief && mirror::cannot().is_none() {
        return Ok(Vec::new());
    }
    let size_mib = size_mib(run);
    let file = run.scratch.join("plain.img");
    fill(&Target::File(file.clone()), size_mib)?;
    let server = Server::nbdkit_file(&run.scratch, &file)?;
    let place = |number: usize| run.scratch.join(format!("db{number}"));
    let mut subjects = vec![plain(PLAIN, server, &place(0))?];
    for programs in &run.programs {
        let suffix = run.suffix(programs);
        let cluster = three(run, programs, &format!("dc{}", subjects.len()))?;
        cluster.create("v", size_mib, &["a", "b", "c"])?;
        cluster.create("alone", size_mib, &["a"])?;
        let [volume, alone] = ["v", "alone"].map(|name| Target::Nbd(cluster.url("a", name)));
        fill(&volume, size_mib)?;
        fill(&alone, size_mib)?;
        subjects.push(Subject {
            name: format!("{ALONE}{suffix}"),
            tree: Tree::new(&alone, &place(subjects.len()))?,
            pids: cluster.pids()?,
            copied: None,
            server: None,
        });
        subjects.push(Subject {
            name: format!("{REPLICATED}{suffix}"),
            tree: Tree::new(&volume, &place(subjects.len()))?,
            pids: cluster.pids()?,
            copied: Some((format!("{RESYNCING}{suffix}"), cluster)),
            server: None,
        });
    }
    let found = compare(run, subjects)?;
    fs::remove_file(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(found)
}

/// Each copy has a device.
pub(crate) fn on_own_devices(run: &Run) -> Outcome<Vec<Transactions>> {
    if !can_have_devices() || !can_be(run) {
        return Ok(Vec::new());
    }
    let size_mib = size_mib(run);
    let mut devices = OwnDevices::new(&run.scratch, "own", size_mib);
    let device = devices.add()?;
    let limit = mirror::quarter(run, &device, size_mib)?.at_most(REQUESTS_MAX, mirror::BYTES_MAX);
    let server = Server::nbdkit_file(&run.scratch, &devices.add_file()?)?;
    let mut free = Some(device);
    let place = |number: usize| run.scratch.join(format!("own{number}"));
    let mut subjects = vec![plain(OWN_PLAIN, server, &place(0))?];
    for programs in &run.programs {
        let suffix = run.suffix(programs);
        let cluster = three(run, programs, &format!("oc{}", subjects.len()))?;
        let mut stores = Vec::new();
        for node in ["a", "b", "c"] {
            stores.push((node, devices.add()?));
        }
        // On the device that was tried, if it is nobody's yet.
        let one = [("a", free.take().map_or_else(|| devices.add(), Ok)?)];
        cluster.create_from("v", &mirror::description("majority", &stores, size_mib))?;
        cluster.create_from("alone", &mirror::description("majority", &one, size_mib))?;
        let [volume, alone] = ["v", "alone"].map(|name| Target::Nbd(cluster.url("a", name)));
        fill(&volume, size_mib)?;
        fill(&alone, size_mib)?;
        subjects.push(Subject {
            name: format!("{OWN_ALONE}{suffix}"),
            tree: Tree::new(&alone, &place(subjects.len()))?,
            pids: cluster.pids()?,
            copied: None,
            server: None,
        });
        subjects.push(Subject {
            name: format!("{OWN_REPLICATED}{suffix}"),
            tree: Tree::new(&volume, &place(subjects.len()))?,
            pids: cluster.pids()?,
            copied: Some((format!("{OWN_RESYNCING}{suffix}"), cluster)),
            server: None,
        });
    }
    let _throttle = devices.limit(limit)?;
    say(format!("each device does {} requests a second from here on", limit.requests));
    compare(run, subjects)
}

/// One copy that nobody replicates.
fn plain(name: &str, server: Server, place: &Path) -> Outcome<Subject> {
    let tree = Tree::new(&Target::Nbd(server.url()), place)?;
    let pids = vec![server.pid()];
    Ok(Subject { name: name.to_owned(), tree, pids, copied: None, server: Some(server) })
}

/// Size of each volume.
pub(crate) fn size_mib(run: &Run) -> u64 {
    run.pace.file_mib().max(512)
}

/// Three nodes whose links are not enciphered.
fn three(run: &Run, programs: &Programs, name: &str) -> Outcome<Cluster> {
    let wanted = Wanted { nodes: 3, store: "file", encryption: false, threads: 1 };
    Cluster::up(programs, &run.scratch.join(name), wanted)
}

/// Every benchmark on every subject, by turns; the first is what the others are compared with.
fn compare(run: &Run, subjects: Vec<Subject>) -> Outcome<Vec<Transactions>> {
    let mut found = of::<MariaDb>(run, &subjects, &[SYSBENCH])?;
    found.extend(of::<PostgreSql>(run, &subjects, of_postgresql(run.pace))?);
    for subject in subjects {
        // Before what serves it.
        subject.tree.remove()?;
    }
    Ok(found)
}

/// Those of PostgreSQL.
fn of_postgresql(pace: Pace) -> &'static [Benchmark] {
    const BOTH: [Benchmark; 2] = [PGBENCH, YCSB];
    if pace.brief { &BOTH[..1] } else { &BOTH }
}

/// Whether a database is here; says which of its benchmarks are left out if not.
fn is_there<K: Kind>(benchmarks: &[Benchmark]) -> bool {
    let missing = missing(K::TOOLS);
    if !missing.is_empty() {
        for benchmark in benchmarks {
            not_run(format!("{}: not on this machine: {}", benchmark.name, missing.join(", ")));
        }
    }
    missing.is_empty()
}

/// One database on every subject.
fn of<K: Kind>(
    run: &Run,
    subjects: &[Subject],
    benchmarks: &[Benchmark],
) -> Outcome<Vec<Transactions>> {
    if !is_there::<K>(benchmarks) {
        return Ok(Vec::new());
    }
    let mut homes = Vec::new();
    let mut servers: Vec<Running> = Vec::new();
    for subject in subjects {
        // Beside the mount, whose name no other subject of the run has.
        let mount = subject.tree.mount();
        let of = |what: &str| mount.with_extension(format!("{}{what}", K::FIRST));
        let data = mount.join(K::FIRST);
        let home = Home { data, sockets: of("s"), log: of("log") };
        fs::create_dir_all(&home.sockets).map_err(|error| error.to_string())?;
        K::make(&home)?;
        servers.push(serve::<K>(&home)?);
        ask::<K>(&home, K::FIRST, "CREATE DATABASE lab;")?.ok()?;
        for benchmark in benchmarks {
            (benchmark.prepare)(&home)?;
        }
        homes.push(home);
    }
    let mut turns = Vec::new();
    for (subject, home) in subjects.iter().zip(&homes) {
        let (name, pids) = (&*subject.name, &subject.pids[..]);
        let cached = subject.server.as_ref().and_then(Server::cached);
        turns.push(Turn { name, home, pids, copied: None, cached });
        if let Some((name, cluster)) = &subject.copied {
            turns.push(Turn { name, home, pids, copied: Some(cluster), cached: None });
        }
    }
    let mut all = Vec::new();
    for benchmark in benchmarks {
        all.extend(by_turns(run, benchmark, &turns)?);
    }
    for server in servers {
        stop::<K>(server)?;
    }
    Ok(all)
}

/// What is measured when it is a subject's turn.
struct Turn<'a> {
    name: &'a str,
    home: &'a Home,
    pids: &'a [u32],
    /// One copy of this cluster's volume is made anew meanwhile.
    copied: Option<&'a Cluster>,
    /// What its server keeps its copy in, if it goes through the page cache.
    cached: Option<PathBuf>,
}

impl Turn<'_> {
    fn settle(&self) -> Outcome<()> {
        self.cached.as_deref().map_or(Ok(()), cache::settle)
    }
}

/// One benchmark on all of them; the first is what the others are compared with.
fn by_turns(run: &Run, benchmark: &Benchmark, turns: &[Turn]) -> Outcome<Vec<Transactions>> {
    let mut seen: Vec<Vec<Seen>> = vec![Vec::new(); turns.len()];
    for number in 0..run.pace.repeats() {
        say(format!("{}: repeat {} of {}", benchmark.name, number + 1, run.pace.repeats()));
        for who in order(number, turns.len()) {
            seen[who].push(once(run, benchmark, &turns[who])?);
        }
    }
    let mut all = Vec::new();
    for (turn, seen) in turns.iter().zip(seen) {
        let figures = |of: fn(&Seen) -> f64| -> Vec<f64> { seen.iter().map(of).collect() };
        all.push(Transactions {
            benchmark: benchmark.name,
            subject: turn.name.to_owned(),
            reference: turns[0].name.to_owned(),
            range: spread(&figures(|seen| seen.per_second)),
            per_second: median(figures(|seen| seen.per_second)),
            mean_ms: median(figures(|seen| seen.mean_ms)),
            p99_ms: median(figures(|seen| seen.p99_ms)),
            range_p99_ms: spread(&figures(|seen| seen.p99_ms)),
            cpu_ms: median(figures(|seen| seen.cpu_ms)),
            system_calls: system_calls(run, benchmark, turn)?,
            copied_percent: median(figures(|seen| seen.copied_percent)),
        });
    }
    Ok(all)
}

/// How long a benchmark runs.
fn seconds(run: &Run) -> u64 {
    match run.pace {
        Pace { sanity: true, .. } => 1,
        Pace { full: true, .. } => 20,
        Pace { brief: true, .. } => 3,
        Pace { .. } => 4,
    }
}

/// How long it runs before, which does not count; `None`: not at all.
fn warm_seconds(pace: Pace) -> Option<u64> {
    pace.full.then_some(3)
}

/// Runs a benchmark to its end; with a cluster one copy is made anew all the time.
fn once(run: &Run, benchmark: &Benchmark, turn: &Turn) -> Outcome<Seen> {
    turn.settle()?;
    if let Some(seconds) = warm_seconds(run.pace) {
        carried_out(run, benchmark, turn.home, seconds, || Ok(()))?;
    }
    let mut anew = turn.copied.map(|cluster| Anew::new(cluster.watch("v", COPIED)));
    if let Some(anew) = &mut anew {
        anew.look()?;
    }
    let (mut looks, mut copying) = (0, 0);
    let before_ms = processor_ms(turn.pids)?;
    let told = carried_out(run, benchmark, turn.home, seconds(run), || {
        let Some(anew) = &mut anew else { return Ok(()) };
        looks += 1;
        copying += u64::from(!anew.look()?.in_sync);
        Ok(())
    })?;
    let used_ms = processor_ms(turn.pids)?.saturating_sub(before_ms);
    turn.settle()?;
    if let Some(cluster) = turn.copied {
        cluster.wait("v", "in-sync", 600)?;
    }
    let p99_ms = match told.p99_ms {
        Some(p99_ms) => p99_ms,
        None => logged_p99_ms(turn.home)?,
    };
    Ok(Seen {
        per_second: told.per_second,
        mean_ms: told.mean_ms,
        p99_ms,
        cpu_ms: float(used_ms) * 1000.0 / (told.per_second * float(seconds(run))).max(1.0),
        copied_percent: float(copying) * 100.0 / float(looks.max(1)),
    })
}

/// Runs a benchmark to its end, and looks at something now and then meanwhile: what it says.
fn carried_out(
    run: &Run,
    benchmark: &Benchmark,
    home: &Home,
    seconds: u64,
    mut look: impl FnMut() -> Outcome<()>,
) -> Outcome<Told> {
    let text = |error: std::io::Error| error.to_string();
    remove_logs(home)?;
    let output = run.scratch.join("benchmark.txt");
    let file = fs::File::create(&output).map_err(text)?;
    let mut command = (benchmark.command)(home, seconds)?;
    command.stdout(file.try_clone().map_err(text)?).stderr(file);
    let mut job = Running::start(&mut command)?;
    let (begun, limit) = (Instant::now(), Duration::from_secs(seconds) + SPARE);
    while job.runs(benchmark.name).is_ok() {
        check()?;
        if begun.elapsed() > limit {
            return fail(format!("{}: {}", benchmark.name, too_long(limit)));
        }
        thread::sleep(LOOK);
        look()?;
    }
    let well = job.wait()?;
    let said = fs::read_to_string(&output).unwrap_or_default();
    match (benchmark.parse)(&said).filter(|told| well && told.per_second > 0.0) {
        Some(told) => Ok(told),
        None => fail(format!("{}: not understood:\n{said}", benchmark.name)),
    }
}

/// System calls of those that serve the blocks, for a transaction: the median of a few runs. None of what is copied meanwhile, too.
fn system_calls(run: &Run, benchmark: &Benchmark, turn: &Turn) -> Outcome<Option<f64>> {
    if !run.counts || turn.copied.is_some() {
        return Ok(None);
    }
    let mut all = Vec::new();
    let seconds = seconds(run).min(CALLS_SECONDS);
    for _ in 0..run.pace.repeats().min(CALLS_REPEATS) {
        let counter = Counter::start(turn.pids, &run.scratch)?;
        // A benchmark begins at once, and the counter does not; nodes that nobody asks do little meanwhile.
        thread::sleep(ATTACH);
        let told = carried_out(run, benchmark, turn.home, seconds, || Ok(()))?;
        match counter.end() {
            Ok(calls) => all.push(float(calls) / (told.per_second * float(seconds))),
            Err(why) if run.pace.sanity => return Err(why),
            // As of requests: hours are not for these alone.
            Err(why) => not_run(format!("system calls of {}: {why}", turn.name)),
        }
    }
    Ok((!all.is_empty()).then(|| median(all)))
}

/// `transactions:   4711   (1177.52 per sec.)`, and its latencies: `avg:   3.40`, `99th percentile:   8.90`.
fn told_by_sysbench(text: &str) -> Option<Told> {
    let after = |start: &str| {
        let lines = text.lines().map(str::trim);
        lines.filter_map(|line| line.strip_prefix(start)).next().map(str::trim)
    };
    let rate = after("transactions:")?.split('(').nth(1)?.split(' ').next()?;
    Some(Told {
        per_second: rate.parse().ok()?,
        mean_ms: after("avg:")?.parse().ok()?,
        p99_ms: Some(after("99th percentile:")?.parse().ok()?),
    })
}

/// `latency average = 3.2 ms`, `tps = 1177.520000 (without initial connection time)`
fn told_by_pgbench(text: &str) -> Option<Told> {
    let number = |start: &str| {
        let rest = text.lines().find_map(|line| line.strip_prefix(start))?;
        rest.split(' ').next()?.parse().ok()
    };
    let (per_second, mean_ms) = (number("tps = ")?, number("latency average = ")?);
    Some(Told { per_second, mean_ms, p99_ms: None })
}

/// pgbench, with a log of each transaction.
fn logged(mut command: Command, home: &Home) -> Command {
    let prefix = home.sockets.join(LOG);
    command.arg("--log").arg(format!("--log-prefix={}", prefix.display()));
    command
}

/// What logs' names begin with.
const LOG: &str = "transactions";

/// The logs of the last run.
fn logs(home: &Home) -> Outcome<Vec<PathBuf>> {
    let text = |error: std::io::Error| format!("{}: {error}", home.sockets.display());
    let mut all = Vec::new();
    for entry in fs::read_dir(&home.sockets).map_err(text)? {
        let entry = entry.map_err(text)?;
        if entry.file_name().to_string_lossy().starts_with(LOG) {
            all.push(entry.path());
        }
    }
    Ok(all)
}

fn remove_logs(home: &Home) -> Outcome<()> {
    for log in logs(home)? {
        fs::remove_file(&log).map_err(|error| format!("{}: {error}", log.display()))?;
    }
    Ok(())
}

fn logged_p99_ms(home: &Home) -> Outcome<f64> {
    let mut text = String::new();
    for log in logs(home)? {
        text += &fs::read_to_string(&log).map_err(|error| format!("{}: {error}", log.display()))?;
    }
    p99_ms(&text).ok_or_else(|| "pgbench logged no transaction".to_owned())
}

/// Of a log's lines: client, number, µs that it took (or a word, if it failed), script, and when. `None` without any.
fn p99_ms(log: &str) -> Option<f64> {
    let mut all: Vec<u64> =
        log.lines().filter_map(|line| line.split(' ').nth(2)?.parse().ok()).collect();
    all.sort_unstable();
    all.get(all.len() * 99 / 100).map(|&micros| float(micros) / 1000.0)
}

/// As YCSB's: ten fields of a hundred characters in a row.
fn ycsb_table(home: &Home) -> Outcome<()> {
    let fields: Vec<String> = (0..10).map(|field| format!("field{field} text")).collect();
    let values = ["repeat(md5(random()::text), 3) || 'four'"; 10].join(", ");
    let statement = format!(
        "CREATE TABLE usertable (id int primary key, {}); \
         INSERT INTO usertable SELECT number, {values} FROM generate_series(1, {YCSB_ROWS}) AS number;",
        fields.join(", ")
    );
    ask::<PostgreSql>(home, "lab", &statement)?.ok()?;
    Ok(())
}

/// Keys as YCSB has them, most of them few; its exponent of 0.99 is below what pgbench takes.
fn ycsb_command(home: &Home, seconds: u64) -> Outcome<Command> {
    let script = |name: &str, statement: &str| -> Outcome<String> {
        let path = home.sockets.join(name);
        let text = format!("\\set id random_zipfian(1, {YCSB_ROWS}, 1.001)\n{statement}\n");
        fs::write(&path, text).map_err(|error| error.to_string())?;
        Ok(weight_of_half(&path))
    };
    let read = script("read.sql", "SELECT * FROM usertable WHERE id = :id;")?;
    let update =
        "UPDATE usertable SET field0 = repeat(md5(random()::text), 3) || 'four' WHERE id = :id;";
    let update = script("update.sql", update)?;
    let mut command = PostgreSql::pgbench(home);
    command.args(["--client=4", &format!("--time={seconds}"), "--no-vacuum"]);
    command.args(["--file", &read, "--file", &update, "lab"]);
    Ok(command)
}

/// A script that is one of two, as pgbench takes it.
fn weight_of_half(path: &Path) -> String {
    format!("{}@1", path.display())
}

#[cfg(test)]
mod tests {
    use super::{Told, p99_ms, told_by_pgbench, told_by_sysbench, warm_seconds};
    use crate::run::{Pace, Turns};

    #[test]
    fn a_database_is_warmed_up_in_long_runs_only() {
        let pace = |full, brief| Pace { full, sanity: false, brief, turns: Turns::Usual };
        assert!(warm_seconds(pace(true, false)).is_some());
        assert_eq!([pace(false, true), pace(false, false)].map(warm_seconds), [None, None]);
    }

    #[test]
    fn what_benchmarks_say_is_understood() {
        let said = "SQL statistics:\n    transactions:                        4711   (1177.52 per sec.)\n\n\
            Latency (ms):\n         min:                                    1.20\n         avg:                                    3.40\n         \
            max:                                   99.00\n         99th percentile:                        8.90\n         sum:    16017.40\n";
        let expected = Told { per_second: 1177.52, mean_ms: 3.4, p99_ms: Some(8.9) };
        assert_eq!(told_by_sysbench(said), Some(expected));
        let said =
            "latency average = 3.2 ms\ntps = 2114.250000 (without initial connection time)\n";
        let expected = Told { per_second: 2114.25, mean_ms: 3.2, p99_ms: None };
        assert_eq!(told_by_pgbench(said), Some(expected));
        assert_eq!((told_by_sysbench("no"), told_by_pgbench("no")), (None, None));
    }

    #[test]
    fn the_99th_percentile_of_a_log_leaves_out_what_failed() {
        let line = |number: u32| format!("0 {number} {} 0 1700000000 1\n", number * 1000);
        let log: String = (0..200).rev().map(line).collect();
        assert_eq!(p99_ms(&(log + "1 7 failed 0 1700000000 2\n")), Some(198.0));
        assert_eq!(p99_ms(""), None);
    }
}
