//! Table 5: databases on a volume, beside the same databases on one copy that nobody replicates.
//!
//! Both go the same way: NBD over a Unix socket, nbdfuse, a loop device, ext4. Once all copies lie on the one disk that this
//! machine has; and once each on a device of its own, all limited alike (`throttle`), as nodes have in life: so slow that the
//! device should be the limit, and not the machine that all nodes share with the database.
//!
//! Always: servers run all the time and are measured by turns, those of two revisions as well.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use serde::Serialize;
use tools::database::{Home, Kind, MariaDb, PostgreSql, ask, serve, stop};
use tools::{Running, missing, no_disk};

use crate::cluster::{Cluster, Programs, Wanted};
use crate::fio::{Target, fill, float};
use crate::mirror::{self, OwnDevices};
use crate::outcome::{Outcome, fail, not_run};
use crate::resync::Anew;
use crate::run::{Pace, Run};
use crate::sample::{median, spread};
use crate::server::Server;
use crate::tree::Tree;

/// Between two looks at a benchmark that runs.
const LOOK: Duration = Duration::from_millis(20);

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
    /// Transactions in a second, as it says.
    parse: fn(&str) -> Option<f64>,
}

const SYSBENCH: Benchmark = Benchmark {
    name: "MariaDB, sysbench oltp_read_write",
    prepare: |home| Ok(MariaDb::prepare(home)?),
    command: |home, seconds| Ok(MariaDb::load(home, seconds)),
    parse: sysbench_rate,
};
const PGBENCH: Benchmark = Benchmark {
    name: "PostgreSQL, pgbench",
    prepare: |home| Ok(PostgreSql::prepare(home)?),
    command: |home, seconds| Ok(PostgreSql::load(home, seconds)),
    parse: pgbench_rate,
};
const YCSB: Benchmark = Benchmark {
    name: "PostgreSQL, half reads and half updates (YCSB A)",
    prepare: ycsb_table,
    command: ycsb_command,
    parse: pgbench_rate,
};

/// Names of the benchmarks.
pub(crate) fn names() -> [&'static str; 3] {
    [SYSBENCH, PGBENCH, YCSB].map(|benchmark| benchmark.name)
}

/// What a database is put on.
struct Subject {
    name: String,
    tree: Tree,
    /// To be measured while a copy is made, too: called so.
    copied: Option<(String, Cluster)>,
    _server: Option<Server>,
}

/// Measures all of it; what is missing here is left out, and said to be.
pub(crate) fn measure(run: &Run) -> Outcome<Vec<Transactions>> {
    if let Some(why) = no_disk() {
        not_run(format!("databases on volumes: {why}"));
        return Ok(Vec::new());
    }
    if !run.has("nbdkit", "databases beside one copy") {
        return Ok(Vec::new());
    }
    let cannot = mirror::cannot();
    let mut found = Vec::new();
    // A brief run is for what nodes with disks of their own do, if it can be.
    if !run.pace.brief || cannot.is_some() {
        found.extend(on_one_disk(run)?);
    }
    match cannot {
        Some(why) => not_run(format!("databases on devices of their own: {why}")),
        None => found.extend(on_own_devices(run)?),
    }
    Ok(found)
}

/// All copies share the disk.
fn on_one_disk(run: &Run) -> Outcome<Vec<Transactions>> {
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
            copied: None,
            _server: None,
        });
        subjects.push(Subject {
            name: format!("{REPLICATED}{suffix}"),
            tree: Tree::new(&volume, &place(subjects.len()))?,
            copied: Some((format!("{RESYNCING}{suffix}"), cluster)),
            _server: None,
        });
    }
    let found = compare(run, subjects)?;
    fs::remove_file(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(found)
}

/// Each copy has a device.
fn on_own_devices(run: &Run) -> Outcome<Vec<Transactions>> {
    let size_mib = size_mib(run);
    let mut devices = OwnDevices::new(&run.scratch, "own", size_mib);
    let device = devices.add()?;
    let limit = mirror::slower(run, &device, size_mib, REQUESTS_MAX)?;
    let server = Server::nbdkit_file(&run.scratch, Path::new(&device))?;
    let place = |number: usize| run.scratch.join(format!("own{number}"));
    let mut subjects = vec![plain(OWN_PLAIN, server, &place(0))?];
    for programs in &run.programs {
        let suffix = run.suffix(programs);
        let cluster = three(run, programs, &format!("oc{}", subjects.len()))?;
        let mut stores = Vec::new();
        for node in ["a", "b", "c"] {
            stores.push((node, devices.add()?));
        }
        cluster.create_from("v", &mirror::description("majority", &stores, size_mib))?;
        let volume = Target::Nbd(cluster.url("a", "v"));
        fill(&volume, size_mib)?;
        subjects.push(Subject {
            name: format!("{OWN_REPLICATED}{suffix}"),
            tree: Tree::new(&volume, &place(subjects.len()))?,
            copied: Some((format!("{OWN_RESYNCING}{suffix}"), cluster)),
            _server: None,
        });
    }
    let _throttle = devices.limit(limit)?;
    println!("each device does {} requests a second from here on", limit.requests);
    compare(run, subjects)
}

/// One copy that nobody replicates.
fn plain(name: &str, server: Server, place: &Path) -> Outcome<Subject> {
    let tree = Tree::new(&Target::Nbd(server.url()), place)?;
    Ok(Subject { name: name.to_owned(), tree, copied: None, _server: Some(server) })
}

fn size_mib(run: &Run) -> u64 {
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
    let both = [PGBENCH, YCSB];
    let wanted = if run.pace.brief { &both[..1] } else { &both[..] };
    found.extend(of::<PostgreSql>(run, &subjects, wanted)?);
    for subject in subjects {
        // Before what serves it.
        subject.tree.remove()?;
    }
    Ok(found)
}

/// One database on every subject.
fn of<K: Kind>(
    run: &Run,
    subjects: &[Subject],
    benchmarks: &[Benchmark],
) -> Outcome<Vec<Transactions>> {
    let missing = missing(K::TOOLS);
    if !missing.is_empty() {
        for benchmark in benchmarks {
            not_run(format!("{}: not on this machine: {}", benchmark.name, missing.join(", ")));
        }
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
        turns.push((&subject.name, home, None));
        if let Some((name, cluster)) = &subject.copied {
            turns.push((name, home, Some(cluster)));
        }
    }
    let mut all = Vec::new();
    for benchmark in benchmarks {
        let mut seen = vec![(Vec::new(), Vec::new()); turns.len()];
        for number in 0..run.pace.repeats() {
            println!("{}: repeat {} of {}", benchmark.name, number + 1, run.pace.repeats());
            for ((_, home, copied), (rates, shares)) in turns.iter().zip(&mut seen) {
                let (rate, share) = once(run, benchmark, home, *copied)?;
                rates.push(rate);
                shares.push(share);
            }
        }
        for ((name, ..), (rates, shares)) in turns.iter().zip(seen) {
            all.push(Transactions {
                benchmark: benchmark.name,
                subject: (*name).clone(),
                reference: subjects[0].name.clone(),
                range: spread(&rates),
                per_second: median(rates),
                copied_percent: median(shares),
            });
        }
    }
    for server in servers {
        stop::<K>(server)?;
    }
    Ok(all)
}

/// Runs a benchmark to its end; with a cluster one copy is made anew all the time. Transactions in a second, and how much of
/// the time that was, in per cent.
fn once(
    run: &Run,
    benchmark: &Benchmark,
    home: &Home,
    copied: Option<&Cluster>,
) -> Outcome<(f64, f64)> {
    let text = |error: std::io::Error| error.to_string();
    let output = run.scratch.join("benchmark.txt");
    let file = fs::File::create(&output).map_err(text)?;
    let seconds = match run.pace {
        Pace { sanity: true, .. } => 1,
        Pace { full: true, .. } => 20,
        Pace { brief: true, .. } => 3,
        Pace { .. } => 4,
    };
    let mut command = (benchmark.command)(home, seconds)?;
    command.stdout(file.try_clone().map_err(text)?).stderr(file);
    let mut anew = copied.map(|cluster| Anew::new(cluster, COPIED));
    if let Some(anew) = &mut anew {
        anew.look()?;
    }
    let mut job = Running::start(&mut command)?;
    let (mut looks, mut copying) = (0, 0);
    while job.runs(benchmark.name).is_ok() {
        thread::sleep(LOOK);
        let Some(anew) = &mut anew else { continue };
        looks += 1;
        copying += u64::from(!anew.look()?.in_sync);
    }
    let well = job.wait()?;
    let said = fs::read_to_string(&output).unwrap_or_default();
    if let Some(cluster) = copied {
        cluster.wait("v", "in-sync", 600)?;
    }
    match (benchmark.parse)(&said).filter(|_| well) {
        Some(rate) => Ok((rate, float(copying) * 100.0 / float(looks.max(1)))),
        None => fail(format!("{}: not understood:\n{said}", benchmark.name)),
    }
}

/// `transactions:   4711   (1177.52 per sec.)`
fn sysbench_rate(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.trim_start().starts_with("transactions:"))?;
    line.split('(').nth(1)?.split(' ').next()?.parse().ok()
}

/// `tps = 1177.520000 (without initial connection time)`
fn pgbench_rate(text: &str) -> Option<f64> {
    let rest = text.lines().find_map(|line| line.strip_prefix("tps = "))?;
    rest.split(' ').next()?.parse().ok()
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
    use super::{pgbench_rate, sysbench_rate};

    #[test]
    fn what_benchmarks_say_is_understood() {
        let said =
            "SQL statistics:\n    transactions:                        4711   (1177.52 per sec.)\n";
        assert_eq!(sysbench_rate(said), Some(1177.52));
        let said =
            "latency average = 3.2 ms\ntps = 2114.250000 (without initial connection time)\n";
        assert_eq!(pgbench_rate(said), Some(2114.25));
        assert_eq!((sysbench_rate("no"), pgbench_rate("no")), (None, None));
    }
}
