//! What goes on: waiting for a state, showing it again and again.
//!
//! Not here: telling every change (`events`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use wire::admin::{Event, ResourceStatus};

use super::show::replica_line;
use super::{Views, human, reached};
use crate::admin::QUESTION_LIMIT;
use crate::cli::{Form, Global, Wanted};
use crate::cluster::Cluster;
use crate::output::{LiveLine, Style, bar, say, say_json};
use crate::problem::{Problem, TIMED_OUT, UNREACHED};

/// Between two looks when waiting: an answer costs a node less than this by far.
const WAIT_INTERVAL: Duration = Duration::from_millis(50);

/// Any node that does not stand still answers in this time.
const LOOK_LEAST: Duration = Duration::from_millis(100);

/// Between two pictures when watching.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);

/// `lockstep wait`.
pub(crate) fn wait(
    global: &Global,
    name: &str,
    wanted: Wanted,
    limit: Duration,
) -> Result<(), Problem> {
    let style = Style::of(global);
    let begun = Instant::now();
    let cluster = Cluster::open_within(global, look_limit(limit))?;
    wait_for(&cluster, style, name, wanted, limit.saturating_sub(begun.elapsed()))?;
    if style.form == Form::Json {
        return say_json(&Views::gather(&cluster, Some(name))?.merged());
    }
    Ok(())
}

/// Waits until the resource is as wanted; shows on a terminal what is missing.
pub(crate) fn wait_for(
    cluster: &Cluster,
    style: Style,
    name: &str,
    wanted: Wanted,
    limit: Duration,
) -> Result<(), Problem> {
    let begun = Instant::now();
    let mut line = LiveLine::new(style);
    loop {
        let left = look_limit(limit.saturating_sub(begun.elapsed()));
        let missing = match look(cluster, name, wanted, left) {
            Ok(None) => return line.end(),
            Ok(Some(missing)) => missing,
            Err(problem) if problem.is_kind(UNREACHED) || problem.is_kind(TIMED_OUT) => {
                problem.message
            }
            Err(problem) => return line.end().and(Err(problem)),
        };
        if begun.elapsed() >= limit {
            line.end()?;
            return Err(Problem::new(TIMED_OUT, format!("{name}: {missing}")));
        }
        if style.form == Form::Human {
            let copied = resyncs(cluster, name, left);
            line.show(&if copied.is_empty() { format!("waiting: {missing}") } else { copied })?;
        }
        thread::sleep(WAIT_INTERVAL.min(limit.saturating_sub(begun.elapsed())));
    }
}

/// How long a node that stands still is waited for when this much is left: a look is never longer than the whole.
pub(crate) fn look_limit(left: Duration) -> Duration {
    left.clamp(LOOK_LEAST, QUESTION_LIMIT)
}

/// A bar for each replica that is being resynced, in one line.
fn resyncs(cluster: &Cluster, name: &str, limit: Duration) -> String {
    let Ok(views) = Views::gather_within(cluster, Some(name), limit) else { return String::new() };
    let Some(view) = views.best(name) else { return String::new() };
    let bars = view.replicas.iter().filter_map(|replica| {
        let at = replica.resync?;
        let bar = bar(at.done_bytes, at.total_bytes, at.rate_bytes_per_second, at.eta_seconds);
        Some(format!("{} {bar}", replica.node))
    });
    bars.collect::<Vec<_>>().join("   ")
}

/// A bar on a terminal while a node is waited for: how far it is with what it does.
pub(crate) struct Watching {
    over: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Watching {
    /// Begins to show it behind `word`, where somebody looks. `at` finds what is done, and all, in bytes.
    pub(crate) fn begin(
        cluster: &Cluster,
        style: Style,
        name: &str,
        word: &'static str,
        at: impl Fn(&ResourceStatus) -> Option<(u64, u64)> + Send + 'static,
    ) -> Watching {
        let over = Arc::new(AtomicBool::new(false));
        if !style.terminal || style.form != Form::Human {
            return Watching { over, thread: None };
        }
        let (ended, cluster, name) = (over.clone(), cluster.clone(), name.to_owned());
        let thread = thread::spawn(move || {
            let mut line = LiveLine::new(style);
            let mut first = None;
            while !ended.load(Ordering::Relaxed) {
                let views = Views::gather(&cluster, Some(&name)).ok();
                if let Some((done, total)) = views.and_then(|views| at(views.best(&name)?)) {
                    let (begun, from) = *first.get_or_insert((Instant::now(), done));
                    let milliseconds = begun.elapsed().as_millis().max(1);
                    let rate = u128::from(done.saturating_sub(from)) * 1000 / milliseconds;
                    let rate = u64::try_from(rate).unwrap_or(u64::MAX);
                    let left = total.saturating_sub(done).checked_div(rate);
                    line.show(&format!("{word} {}", bar(done, total, rate, left))).ok();
                }
                thread::sleep(WAIT_INTERVAL);
            }
            line.end().ok();
        });
        Watching { over, thread: Some(thread) }
    }

    /// It is over.
    pub(crate) fn end(mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// What is missing, if anything is. A resource that no node knows is a problem only if every node
/// has answered: one that is down may know it.
fn look(
    cluster: &Cluster,
    name: &str,
    wanted: Wanted,
    limit: Duration,
) -> Result<Option<String>, Problem> {
    let views = Views::gather_within(cluster, Some(name), limit)?;
    views.refuse_ambiguous(name)?;
    if views.silent.is_empty() {
        views.require(name)?;
    }
    Ok(reached(&views, cluster, name, wanted).err())
}

/// `lockstep status --watch`: a new picture whenever something changed.
pub(super) fn watch(cluster: &Cluster, style: Style, name: Option<&str>) -> Result<(), Problem> {
    let mut before = String::new();
    loop {
        let now = match (Views::gather(cluster, name), style.form) {
            (Ok(views), Form::Human) => human(style, &views),
            (Ok(views), Form::Json) => serde_json::to_string(&views.merged()).unwrap_or_default(),
            (Err(problem), Form::Human) => format!("{}\n", problem.message),
            (Err(_), Form::Json) => before.clone(),
        };
        if now != before {
            if style.form == Form::Json {
                say(&format!("{now}\n"))?;
            } else if style.terminal {
                // Home, picture, clear what an earlier one left below.
                let picture = now.replace('\n', "\x1b[K\n");
                say(&format!("\x1b[H{picture}\x1b[J"))?;
            } else {
                say(&format!("{now}\n"))?;
            }
            before = now;
        }
        thread::sleep(WATCH_INTERVAL);
    }
}

/// `12:00:01.250  disk  epoch 5  primary a  a in-sync, b absent`
pub(crate) fn event_line(event: &Event, before: Option<&ResourceStatus>) -> String {
    let day_ms = event.at_ms % 86_400_000;
    let time = format!(
        "{:02}:{:02}:{:02}.{:03}",
        day_ms / 3_600_000,
        day_ms / 60_000 % 60,
        day_ms / 1000 % 60,
        day_ms % 1000
    );
    let Some(status) = &event.status else {
        return format!("{time}  {}  is gone\n", event.resource);
    };
    let primary = status.primary.as_deref().unwrap_or("none");
    let nodes: Vec<String> = status
        .replicas
        .iter()
        .filter(|replica| before.is_none_or(|before| !before.replicas.contains(replica)))
        .map(replica_line)
        .collect();
    let mut line = format!("{time}  {}  epoch {}  primary {primary}", event.resource, status.epoch);
    if !nodes.is_empty() {
        line.push_str(&format!("  {}", nodes.join(", ")));
    }
    for split in &status.split_brain {
        let goes = if split.discarded { ", and this side is given up" } else { "" };
        line.push_str(&format!("  SPLIT BRAIN with {}{goes}", split.node));
    }
    if let Some(reason) = &status.suspended {
        line.push_str(&format!("  {}", super::held(status, reason)));
    }
    line.push('\n');
    line
}
