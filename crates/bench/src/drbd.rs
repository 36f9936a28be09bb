//! Beside DRBD: both in the same two emulated machines, on disks of the same kind.
//!
//! DRBD is a part of the kernel, so it needs machines with kernels of their own. They are emulated, which makes everything many
//! times slower: only the ratios mean something, and those of processor time more than they would elsewhere.
//!
//! Always: all subjects are measured in the same machines, by turns; programs that are not on this machine are taken out of
//! Debian's packages, and nothing is installed.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tools::guest::{Guest, LINUX_6_12, Machine, Series};
use tools::wait_for;

use crate::cluster::speak_plainly;
use crate::fio::{self, Workload};
use crate::machine;
use crate::outcome::{Outcome, complain, fail, not_run, say};
use crate::run::Run;
use crate::sample::Repeats;
use crate::stop;
use crate::tables::{Row, Table};

/// The kernel whose machines these are: one that has ublk, too.
const SERIES: Series = LINUX_6_12;

/// What the two need, in MiB.
const MEMORY_MIB: u32 = 1200;

/// Behind the volume: either's metadata.
const METADATA_MIB: u64 = 128;

/// How long the machines may take beside what is measured.
const MAKE_LIMIT: Duration = Duration::from_secs(400);

/// What a measurement may take beside its time: fio starts and ends twice, and both machines are asked what they did.
const BESIDE_SECONDS: f64 = 6.0;

/// How often it is begun.
const ATTEMPTS: u32 = 2;

/// How long a machine may take until it listens for the other.
const LISTEN_LIMIT: Duration = Duration::from_secs(30);

pub(crate) const RAW: &str = "the disk";
pub(crate) const DRBD: &str = "DRBD 8.4";
pub(crate) const UNFLUSHED: &str = "DRBD 8.4, disk-flushes no";
pub(crate) const LOCKSTEP: &str = "2 replicas, by ublk";

/// As the script calls them, and as people do.
const SUBJECTS: [(&str, &str); 4] =
    [("raw", RAW), ("drbd", DRBD), ("drbd-unflushed", UNFLUSHED), ("lockstep", LOCKSTEP)];

/// What the columns mean here.
const COSTS: &str = "CPU is for how long the processors of both machines were busy, kernel and fio included, and own is that less what the same \
    requests take on the disk that nobody replicates; of these, too, only ratios count. Nothing counts system calls in these machines.";

const fn workload(
    name: &'static str,
    pattern: &'static str,
    block_kib: u32,
    depth: u32,
) -> Workload {
    let reads = if matches!(pattern.as_bytes(), b"randread" | b"read") { 100 } else { 0 };
    Workload { name, pattern, block_kib, depth, reads }
}

pub(crate) const WORKLOADS: [Workload; 6] = [
    workload("4K random write, depth 64", "randwrite", 4, 64),
    workload("4K random write, depth 1", "randwrite", 4, 1),
    workload("4K random read, depth 64", "randread", 4, 64),
    workload("4K random read, depth 1", "randread", 4, 1),
    workload("128K sequential write, depth 16", "write", 128, 16),
    workload("128K sequential read, depth 16", "read", 128, 16),
];

/// What the machines are made of, and DRBD's programs; `None`, where this machine has not got all of it: it says so.
pub(crate) fn can_be(run: &Run) -> Outcome<Option<(Guest, Vec<PathBuf>)>> {
    let made = Guest::of(SERIES)?;
    let found = made.and_then(|guest| Ok((guest, utilities(&run.scratch.join("drbd-utils"))?)));
    if let Err(why) = &found {
        not_run(format!("DRBD in emulated machines: {why}"));
    }
    Ok(found.ok())
}

/// Measures it; nothing, where this machine cannot.
pub(crate) fn drbd(run: &Run) -> Outcome<Option<Table>> {
    let Some((guest, tools)) = can_be(run)? else { return Ok(None) };
    let mut said = String::new();
    // An emulator dies now and then of its own faults.
    for attempt in 0..ATTEMPTS {
        let directory = run.scratch.join(format!("vm{attempt}"));
        match once(run, &guest, &tools, &directory) {
            Ok(table) => return Ok(Some(table)),
            Err(why) => {
                stop::check()?;
                complain(format!("beside DRBD, attempt {}: {why}", attempt + 1));
                said = why;
            }
        }
        // Six disks.
        fs::remove_dir_all(&directory).map_err(|error| error.to_string())?;
    }
    fail(said)
}

/// Boots both machines and waits for their end.
fn once(run: &Run, guest: &Guest, tools: &[PathBuf], directory: &Path) -> Outcome<Table> {
    let pace = Settings::of(run);
    pace.prepare(run, directory, tools)?;
    let own_share = directory.join("a");
    let wire = directory.join("wire");
    let mut other = pace.boot(guest, directory, "b", &wire, true)?;
    wait_for("a machine that listens", LISTEN_LIMIT, || {
        tools::ensure!(wire.exists() || other.has_ended()?, "no socket yet");
        Ok(())
    })?;
    let mut own = pace.boot(guest, directory, "a", &wire, false)?;
    for repeat in 1..=run.pace.repeats() {
        say(format!(
            "Beside DRBD, in emulated machines: repeat {repeat} of {}",
            run.pace.repeats()
        ));
        while !own_share.join(format!("repeat-{repeat}")).exists() {
            stop::check()?;
            if own.has_ended()? {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    own.end().map_err(|failure| format!("{failure}\nthe other:\n{}", other.said()))?;
    other.end()?;
    read_table(run, &own_share)
}

/// What fio saw, as it lies in the share of the machine that asked.
fn read_table(run: &Run, share: &Path) -> Outcome<Table> {
    let mut table = Table {
        key: "drbd",
        title: "Beside DRBD, in two emulated machines",
        seed: "what people run today: DRBD 8.4 as Debian's kernel has it, protocol C, two nodes, a block device on each side; \
               everything here is many times slower than on a real machine, and only ratios count",
        reference: RAW,
        notes: vec![COSTS.to_owned()],
        rows: Vec::new(),
    };
    if let [measured, _, ..] = run.programs.as_slice() {
        table
            .notes
            .push(format!("Only {} was measured here: nothing is compared.", measured.label));
    }
    for (number, workload) in WORKLOADS.into_iter().enumerate() {
        for (key, subject) in SUBJECTS {
            let mut repeats = Repeats::default();
            for repeat in 1..=run.pace.repeats() {
                let report = share.join(format!("{key}-{number}-{repeat}.json"));
                let busy_ms = busy_ms(&report.with_extension("busy"))?;
                repeats.samples.push(fio::read_report(&report, busy_ms)?);
            }
            let subject = subject.to_owned();
            let (own_ms, system_calls) = (None, None);
            table.rows.push(Row { workload, subject, threads: 1, repeats, own_ms, system_calls });
        }
    }
    own_times(&mut table);
    Ok(table)
}

/// For how long the processors of both machines were busy, as the script wrote it down.
fn busy_ms(path: &Path) -> Outcome<u64> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let ticks: u64 = text.trim().parse().map_err(|_| format!("{}: {text}", path.display()))?;
    Ok(ticks * 1000 / machine::TICKS_PER_SECOND)
}

/// Enters what each row takes more than the same requests on the disk that nobody replicates: there as here fio and the kernel are in it.
fn own_times(table: &mut Table) {
    let cost = |row: &Row| row.repeats.median(|sample| sample.cpu_ms);
    let raw = table.rows.iter().filter(|row| row.subject == RAW);
    let raw: Vec<(Workload, f64)> = raw.map(|row| (row.workload, cost(row))).collect();
    for row in table.rows.iter_mut().filter(|row| row.subject != RAW) {
        let disk = raw.iter().find(|(workload, _)| *workload == row.workload);
        row.own_ms = disk.map(|(_, disk)| cost(row) - disk);
    }
}

fn copy(file: &Path, directory: &Path) -> Outcome<()> {
    let name = file.file_name().unwrap_or_default();
    fs::copy(file, directory.join(name))
        .map(drop)
        .map_err(|error| format!("{}: {error}", file.display()))
}

/// DRBD's programs, out of Debian's package.
fn utilities(directory: &Path) -> Outcome<Vec<PathBuf>> {
    fs::create_dir_all(directory).map_err(|error| error.to_string())?;
    let fetch =
        "apt-get download -q -o APT::Sandbox::User=root drbd-utils && dpkg -x drbd-utils_*.deb .";
    machine::run(Command::new("sh").args(["-c", fetch]).current_dir(directory))
        .map_err(|error| format!("no drbd-utils: {error}"))?;
    Ok(["lib/drbd/drbdsetup-84", "sbin/drbdmeta"].map(|name| directory.join(name)).to_vec())
}

/// What the machines are told.
struct Settings {
    size_mib: u64,
    repeats: u32,
    seconds: f64,
    warm_seconds: f64,
}

impl Settings {
    /// An emulated machine does less in a second.
    fn of(run: &Run) -> Settings {
        let (size_mib, seconds, warm_seconds) = match run.pace {
            pace if pace.sanity => (32, 0.5, 0.0),
            pace if pace.full => (256, 10.0, 2.0),
            _ => (256, 3.0, 0.5),
        };
        Settings { size_mib, repeats: run.pace.repeats(), seconds, warm_seconds }
    }

    /// Lays out what the machines find: programs, and the directory of a node for each.
    fn prepare(&self, run: &Run, directory: &Path, tools: &[PathBuf]) -> Outcome<()> {
        fs::create_dir_all(directory.join("both")).map_err(|error| error.to_string())?;
        let homes = directory.join("homes");
        let programs = &run.programs[0].directory;
        machine::run(
            Command::new(programs.join("lockstep"))
                .args(["cluster", "make", "--out"])
                .arg(&homes)
                .args(["a=10.9.0.1", "b=10.9.0.2"]),
        )?;
        for role in ["a", "b"] {
            let share = directory.join(role);
            speak_plainly(&homes.join(role))?;
            self.lay_out(&share, role, &homes.join(role))?;
            for program in ["lockstep", "lockstepd", "carry"] {
                copy(&programs.join(program), &share)?;
            }
            for tool in tools {
                copy(tool, &share)?;
            }
        }
        Ok(())
    }

    /// What one of the machines finds.
    fn lay_out(&self, share: &Path, role: &str, home: &Path) -> Outcome<()> {
        let text = |error: std::io::Error| error.to_string();
        fs::create_dir(share).map_err(text)?;
        machine::run(Command::new("cp").arg("-r").arg(home).arg(share.join("home")))?;
        fs::write(share.join("run"), include_str!("../guest/drbd.sh")).map_err(text)?;
        let Settings { size_mib, repeats, seconds, warm_seconds } = self;
        let settings = format!(
            "ROLE={role} SIZE={size_mib} REPEATS={repeats} SECONDS_EACH={:.0} WARM={:.0}\n",
            seconds * 1000.0,
            warm_seconds * 1000.0
        );
        fs::write(share.join("settings"), settings).map_err(text)?;
        let mut jobs = String::new();
        for (number, Workload { pattern, block_kib, depth, .. }) in WORKLOADS.iter().enumerate() {
            writeln!(jobs, "{number} {pattern} {block_kib} {depth}").expect("a string takes all");
        }
        fs::write(share.join("jobs"), jobs).map_err(text)
    }

    /// How long a machine may run.
    fn limit(&self) -> Duration {
        let each = Duration::from_secs_f64(self.seconds + self.warm_seconds + BESIDE_SECONDS);
        let runs = self.repeats * 4 * u32::try_from(WORKLOADS.len()).unwrap_or(u32::MAX);
        MAKE_LIMIT + each * runs
    }

    /// Starts a machine with three disks, that is joined to the other.
    fn boot(
        &self,
        guest: &Guest,
        directory: &Path,
        role: &str,
        wire: &Path,
        listens: bool,
    ) -> Outcome<Machine> {
        let mut words: Vec<String> = Vec::new();
        let mut add = |name: &str, word: String| words.extend([name.to_owned(), word]);
        let both = directory.join("both");
        add("-fsdev", format!("local,id=b,path={},security_model=none", both.display()));
        add("-device", "virtio-9p-pci,fsdev=b,mount_tag=both".to_owned());
        for number in 0..3 {
            let image = directory.join(format!("{role}{number}.img"));
            File::create(&image)
                .and_then(|file| file.set_len((self.size_mib + METADATA_MIB) << 20))
                .map_err(|error| format!("{}: {error}", image.display()))?;
            let (id, path) = (format!("d{number}"), image.display());
            add(
                "-drive",
                format!("if=none,id={id},file={path},format=raw,cache=none,aio=io_uring"),
            );
            add("-device", format!("virtio-blk-pci,drive={id}"));
        }
        let (server, path) = (if listens { "on" } else { "off" }, wire.display());
        add("-netdev", format!("stream,id=n1,server={server},addr.type=unix,addr.path={path}"));
        let address = if listens { "02:00:00:00:09:02" } else { "02:00:00:00:09:01" };
        add("-device", format!("virtio-net-pci,netdev=n1,romfile=,mac={address}"));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let share = directory.join(role);
        if !share.is_dir() {
            return fail(format!("{} is not there", share.display()));
        }
        Ok(guest.start_for(self.limit(), &share, MEMORY_MIB, &words)?)
    }
}

#[cfg(test)]
mod tests {
    use super::{DRBD, RAW, WORKLOADS, own_times};
    use crate::sample::{Repeats, Sample};
    use crate::tables::{Row, Table};

    fn row(subject: &str, number: usize, cpu_ms: f64) -> Row {
        Row {
            workload: WORKLOADS[number],
            subject: subject.to_owned(),
            threads: 1,
            repeats: Repeats { samples: vec![Sample { cpu_ms, ..Sample::default() }] },
            own_ms: None,
            system_calls: None,
        }
    }

    #[test]
    fn own_time_is_what_the_disk_with_the_same_requests_does_not_take() {
        let rows =
            vec![row(RAW, 0, 100.0), row(DRBD, 0, 250.0), row(RAW, 1, 10.0), row(DRBD, 1, 30.0)];
        let (key, title, seed, reference, notes) = ("drbd", "", "", RAW, Vec::new());
        let mut table = Table { key, title, seed, reference, notes, rows };
        own_times(&mut table);
        let own: Vec<Option<f64>> = table.rows.iter().map(|row| row.own_ms).collect();
        assert_eq!(own, [None, Some(150.0), None, Some(20.0)]);
    }
}
