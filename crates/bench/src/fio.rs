//! fio: one job, and what it saw. Where two protocols are compared that fio does not both speak, our own program in its place.
//!
//! Always: direct I/O, random offsets from a new seed each time, latencies from fio's own histograms, or all of them. A latency runs
//! from the request on, by fio (`lat`, not `clat`, which begins when the request was handed over) as by our own program.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::machine::{run, shown, start_silent};
use crate::outcome::{Outcome, fail};
use crate::sample::{Sample, spread};
use crate::stop;

/// What is asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq, serde::Serialize)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    /// fio's `rw`.
    pub(crate) pattern: &'static str,
    pub(crate) block_kib: u32,
    pub(crate) depth: u32,
    /// Per cent of reads.
    pub(crate) reads: u32,
}

impl Workload {
    fn has_both_sides(&self) -> bool {
        !matches!(self.reads, 0 | 100)
    }
}

/// Whom it is asked of.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// fio's nbd engine.
    Nbd(String),
    /// io_uring on a file, direct.
    File(PathBuf),
    /// fio's rbd engine, on an image of a Ceph cluster.
    Rbd { settings: PathBuf, image: String },
    /// Our own load, by the protocol that the URL names.
    Load { program: PathBuf, url: String },
}

/// What fio saw.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) requests: u64,
    pub(crate) iops: f64,
    pub(crate) mb_per_second: f64,
    pub(crate) mean_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) max_us: f64,
    /// Processor time of fio itself, in ms per 1000 requests.
    pub(crate) fio_ms: f64,
    /// Requests of the second half of the time in parts of those of the first; `None`: nobody counted them apart.
    pub(crate) second_half: Option<f64>,
}

impl Seen {
    /// The same, as one of several measurements; the servers took so much processor time, in ms per 1000 requests.
    pub(crate) fn sample(self, cpu_ms: f64) -> Sample {
        Sample {
            iops: self.iops,
            mb_per_second: self.mb_per_second,
            mean_us: self.mean_us,
            p50_us: self.p50_us,
            p99_us: self.p99_us,
            p999_us: self.p999_us,
            cpu_ms,
            fio_ms: self.fio_ms,
            second_half: self.second_half,
        }
    }
}

/// A job that was started.
pub(crate) struct Job {
    child: Child,
    output: PathBuf,
    /// Where fio says how much it did in each window of time; nothing may be there.
    windows: PathBuf,
    words: String,
    begun: Instant,
    /// How long it may take.
    limit: Duration,
}

/// What a job may take beside its time: fio starts and ends, and a node that was killed is waited for.
const SPARE: Duration = Duration::from_secs(120);

/// Percentiles, and histograms, of the whole time from a request to its answer.
pub(crate) const WHOLE_LATENCY: [&str; 2] = ["--lat_percentiles=1", "--clat_percentiles=0"];

/// Windows of a measurement in which requests are counted apart.
const WINDOWS: f64 = 20.0;

/// How long a measurement is at least that is counted so, in seconds: of a shorter one fio's start is too large a part.
const WINDOWS_SECONDS_MIN: f64 = 1.0;

fn command(target: &Target, workload: &Workload, size_mib: u64) -> Command {
    let mut command = Command::new("fio");
    command.args(["--name=bench", "--randrepeat=0", "--group_reporting"]);
    command.arg(format!("--rw={}", workload.pattern));
    command.arg(format!("--bs={}k", workload.block_kib));
    command.arg(format!("--iodepth={}", workload.depth));
    command.arg(format!("--size={size_mib}M"));
    if workload.pattern == "randrw" {
        command.arg(format!("--rwmixread={}", workload.reads));
    }
    match target {
        Target::Nbd(url) => command.args(["--ioengine=nbd".to_owned(), format!("--uri={url}")]),
        Target::File(path) => command.args([
            "--ioengine=io_uring".to_owned(),
            "--direct=1".to_owned(),
            format!("--filename={}", path.display()),
        ]),
        Target::Rbd { settings, image } => command.env("CEPH_CONF", settings).args([
            "--ioengine=rbd".to_owned(),
            "--clientname=admin".to_owned(),
            "--pool=rbd".to_owned(),
            format!("--rbdname={image}"),
        ]),
        // Without fio.
        Target::Load { .. } => &mut command,
    };
    command
}

/// The same by our own load, which prints what it saw.
fn own_command(
    (program, url): (&Path, &str),
    workload: &Workload,
    size_mib: u64,
    seconds: f64,
    output: &Path,
) -> Outcome<Command> {
    let text = |error: std::io::Error| error.to_string();
    let mut command = Command::new(program);
    command.arg(url).args(["--pattern", workload.pattern]);
    command.args(["--block-kib", &workload.block_kib.to_string()]);
    command.args(["--depth", &workload.depth.to_string(), "--size-mib", &size_mib.to_string()]);
    command.args(["--seconds", &seconds.to_string()]);
    command.stdout(fs::File::create(output).map_err(text)?);
    Ok(command)
}

/// Writes everything once, in random bytes, so that reads find data and writes find blocks.
pub(crate) fn fill(target: &Target, size_mib: u64) -> Outcome<()> {
    let whole = Workload { name: "fill", pattern: "write", block_kib: 1024, depth: 8, reads: 0 };
    run(command(target, &whole, size_mib).arg("--output-format=terse")).map(drop)
}

/// Writes so much, in blocks of this size at random places of all of it; none twice.
pub(crate) fn scatter(
    target: &Target,
    size_mib: u64,
    changed_mib: u64,
    block_kib: u32,
) -> Outcome<()> {
    let pattern = "randwrite";
    let parts = Workload { name: "scatter", pattern, block_kib, depth: 16, reads: 0 };
    let mut command = command(target, &parts, size_mib);
    command.arg(format!("--io_size={changed_mib}M"));
    run(command.arg("--output-format=terse")).map(drop)
}

/// Starts a job of `threads` instances; its report goes to a file below `scratch`.
pub(crate) fn start(
    target: &Target,
    workload: &Workload,
    size_mib: u64,
    seconds: f64,
    threads: u32,
    scratch: &Path,
) -> Outcome<Job> {
    static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let [output, windows] =
        ["json", "log"].map(|kind| scratch.join(format!("fio-{number}_iops.{kind}")));
    let (begun, limit) = (Instant::now(), Duration::from_secs_f64(seconds) + SPARE);
    if let Target::Load { program, url } = target {
        let mut command = own_command((program, url), workload, size_mib, seconds, &output)?;
        let (words, child) = (shown(&command), command.process_group(0).spawn());
        let child = child.map_err(|error| format!("{words}: {error}"))?;
        return Ok(Job { child, output, windows, words, begun, limit });
    }
    let part_mib = part_mib(workload, size_mib, threads);
    let mut command = command(target, workload, part_mib);
    if part_mib < size_mib {
        command.arg(format!("--offset_increment={part_mib}M"));
    }
    // With whole histograms where two sides are to be taken together.
    let format = if workload.has_both_sides() { "json+" } else { "json" };
    command.args(WHOLE_LATENCY);
    command.args(["--time_based", "--norandommap", &format!("--output-format={format}")]);
    command.arg(format!("--runtime={:.0}ms", seconds * 1000.0));
    command.arg(format!("--numjobs={threads}"));
    command.arg(format!("--output={}", output.display()));
    if seconds >= WINDOWS_SECONDS_MIN {
        // It adds `_iops.log` to the name.
        let name = scratch.join(format!("fio-{number}"));
        let window_ms = seconds * 1000.0 / WINDOWS;
        command
            .args(["--per_job_logs=0".to_owned(), format!("--write_iops_log={}", name.display())]);
        command.args([
            format!("--log_avg_msec={window_ms:.0}"),
            format!("--iopsavgtime={window_ms:.0}"),
        ]);
    }
    let words = shown(&command);
    let child = start_silent(&mut command)?;
    Ok(Job { child, output, windows, words, begun, limit })
}

/// How much of it each of several instances asks for: who goes in order has a part of its own, for all of them would ask for the same blocks
/// at once.
fn part_mib(workload: &Workload, size_mib: u64, threads: u32) -> u64 {
    match workload.pattern {
        "read" | "write" => (size_mib / u64::from(threads.max(1))).max(1),
        _ => size_mib,
    }
}

impl Job {
    /// Waits for its end.
    pub(crate) fn finish(mut self) -> Outcome<Seen> {
        let left = self.limit.saturating_sub(self.begun.elapsed());
        let status = stop::wait(&mut self.child, left);
        let status = status.map_err(|why| format!("{}: {why}", self.words))?;
        let text = fs::read_to_string(&self.output).unwrap_or_default();
        if !status.success() {
            return Err(format!("{}: {status}\n{text}", self.words));
        }
        let mut seen = parse(&text)
            .or_else(|| parse_own(&text))
            .ok_or_else(|| format!("{}: not understood:\n{text}", self.words))?;
        // It is there of long measurements by fio only.
        seen.second_half = second_half(&fs::read_to_string(&self.windows).unwrap_or_default());
        Ok(seen)
    }

    /// Whether it has ended by itself; fails when the run is told to stop, or it took too long.
    pub(crate) fn has_ended(&mut self) -> Outcome<bool> {
        stop::check()?;
        let ended = self.child.try_wait().map_err(|error| error.to_string())?;
        if ended.is_none() && self.begun.elapsed() > self.limit {
            return fail(format!("{}: {}", self.words, stop::too_long(self.limit)));
        }
        Ok(ended.is_some())
    }

    /// Ends it; what it saw is not asked for.
    pub(crate) fn end(self) {
        drop(self);
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        stop::end(&mut self.child);
        // What is gone already need not be removed.
        let _ = fs::remove_file(&self.output);
        let _ = fs::remove_file(&self.windows);
    }
}

/// Runs a job to its end.
pub(crate) fn measure(
    target: &Target,
    workload: &Workload,
    size_mib: u64,
    seconds: f64,
    threads: u32,
    scratch: &Path,
) -> Outcome<Seen> {
    start(target, workload, size_mib, seconds, threads, scratch)?.finish()
}

/// What a report says that fio wrote elsewhere, where processors were busy for so long meanwhile.
pub(crate) fn read_report(path: &Path, busy_ms: u64) -> Outcome<Sample> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let seen = parse(&text);
    let Some(seen) = seen else {
        return Err(format!("{}: not understood:\n{text}", path.display()));
    };
    Ok(seen.sample(float(busy_ms) * 1000.0 / float(seen.requests)))
}

/// fio's report; the nbd engine says a line of its own before it.
fn parse(text: &str) -> Option<Seen> {
    let value: Value = serde_json::from_str(&text[text.find('{')?..]).ok()?;
    let job = value["jobs"].get(0)?;
    let of = |side: &str| {
        let number = |value: &Value| value.as_f64().unwrap_or_default();
        let side = &job[side];
        let latency = &side["lat_ns"];
        let percentile = |name: &str| number(&latency["percentile"][name]) / 1000.0;
        Seen {
            requests: side["total_ios"].as_u64().unwrap_or_default(),
            iops: number(&side["iops"]),
            mb_per_second: number(&side["bw_bytes"]) / 1e6,
            mean_us: number(&latency["mean"]) / 1000.0,
            p50_us: percentile("50.000000"),
            p99_us: percentile("99.000000"),
            p999_us: percentile("99.900000"),
            max_us: number(&latency["max"]) / 1000.0,
            ..Seen::default()
        }
    };
    // Of a side that was asked for nothing there are none.
    let has_latencies = |side: &str| {
        job[side]["total_ios"] == 0 || job[side]["lat_ns"]["percentile"]["99.000000"].is_number()
    };
    if !["read", "write"].into_iter().all(has_latencies) {
        return None;
    }
    let (read, write) = (of("read"), of("write"));
    let requests = read.requests + write.requests;
    // Without histograms a mixture shows the latencies of its slower side.
    let slower = if read.p99_us > write.p99_us { read } else { write };
    let both = read.requests > 0 && write.requests > 0;
    let together = if both { histogram(job) } else { None };
    let [p50_us, p99_us, p999_us] = match &together {
        Some(counts) => [0.5, 0.99, 0.999].map(|part| at_part(counts, part) / 1000.0),
        None => [slower.p50_us, slower.p99_us, slower.p999_us],
    };
    let share =
        |a: f64, b: f64| (a * read.iops + b * write.iops) / (read.iops + write.iops).max(1.0);
    let busy = job["usr_cpu"].as_f64()? + job["sys_cpu"].as_f64()?;
    let run_ms = job["job_runtime"].as_f64()?;
    (requests > 0).then(|| Seen {
        requests,
        iops: read.iops + write.iops,
        mb_per_second: read.mb_per_second + write.mb_per_second,
        mean_us: share(read.mean_us, write.mean_us),
        p50_us,
        p99_us,
        p999_us,
        max_us: read.max_us.max(write.max_us),
        fio_ms: busy / 100.0 * run_ms / float(requests) * 1000.0,
        second_half: None,
    })
}

/// How many requests of either side took how many ns, if both sides have histograms.
fn histogram(job: &Value) -> Option<BTreeMap<u64, u64>> {
    let mut counts = BTreeMap::new();
    for side in ["read", "write"] {
        for (nanoseconds, count) in job[side]["lat_ns"]["bins"].as_object()? {
            *counts.entry(nanoseconds.parse().ok()?).or_default() += count.as_u64()?;
        }
    }
    (!counts.is_empty()).then_some(counts)
}

/// The ns that this part of all requests took at most; 0 of none.
fn at_part(counts: &BTreeMap<u64, u64>, part: f64) -> f64 {
    let wanted = part * float(counts.values().sum());
    let mut seen = 0;
    let found = counts.iter().find(|&(_, count)| {
        seen += count;
        float(seen) >= wanted
    });
    found.map_or(0.0, |(&nanoseconds, _)| float(nanoseconds))
}

/// What fio's log of windows says: a line for each of them, each side and each instance, when it ended in ms and how many requests in a second
/// there were in it. The first window, in which fio begins, counts for neither half. `None` where one half has none.
fn second_half(log: &str) -> Option<f64> {
    let number = |word: Option<&str>| word?.trim().parse::<f64>().ok();
    let window = |line: &str| {
        let mut words = line.split(',');
        Some((number(words.next())?, number(words.next())?))
    };
    let all: Vec<(f64, f64)> = log.lines().filter_map(window).collect();
    let (first, last) = spread(&all.iter().map(|&(end, _)| end).collect::<Vec<f64>>());
    // Of several instances the first window ends now and then a little later.
    let begun = first + (last - first) / WINDOWS / 2.0;
    let middle = f64::midpoint(first, last);
    let mean = |from: f64, to: f64| {
        let within = all.iter().filter(|&&(end, _)| end > from && end <= to);
        let rates: Vec<f64> = within.map(|&(_, rate)| rate).collect();
        rates.iter().sum::<f64>() / float(rates.len() as u64)
    };
    let ratio = mean(middle, last) / mean(begun, middle);
    ratio.is_finite().then_some(ratio)
}

/// What our own load prints.
fn parse_own(text: &str) -> Option<Seen> {
    let value: Value = serde_json::from_str(text).ok()?;
    let of = |name: &str| value[name].as_u64();
    let micros = |name: &str| of(name).map(|nanoseconds| float(nanoseconds) / 1000.0);
    let (requests, seconds) = (of("requests")?, float(of("nanoseconds")?) / 1e9);
    let iops = float(requests) / seconds;
    (requests > 0).then_some(Seen {
        requests,
        iops,
        mb_per_second: iops * float(of("block_bytes")?) / 1e6,
        mean_us: micros("mean_ns")?,
        p50_us: micros("p50_ns")?,
        p99_us: micros("p99_ns")?,
        p999_us: micros("p999_ns")?,
        max_us: micros("max_ns")?,
        ..Seen::default()
    })
}

/// A count as a number to divide by; counts here are far below 2^52.
pub(crate) fn float(count: u64) -> f64 {
    let (high, low) = (count >> 32, count & u64::from(u32::MAX));
    let part = |number: u64| u32::try_from(number).map_or(0.0, f64::from);
    part(high) * 4_294_967_296.0 + part(low)
}

#[cfg(test)]
mod tests;
