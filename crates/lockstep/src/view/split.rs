//! A split brain in the words of somebody who is woken by it: what happened, what is on either side, and the
//! three commands from which one goes on.
//!
//! Not here: what else is so (`show`, `explain`).

use wire::admin::{ResourceStatus, SplitBrain};

use super::{Views, now_ms};
use crate::unit::{show_seconds, show_size};

/// What is to be said of one split brain.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Words {
    /// What happened, in one sentence.
    pub(crate) what: String,
    /// One line for each side.
    pub(crate) sides: Vec<String>,
    /// What it waits for.
    pub(crate) waits_for: String,
    /// Commands, each with what it does.
    pub(crate) commands: Vec<(String, String)>,
}

/// The view of a node that sees a split brain, the believed one first.
pub(crate) fn seen_by<'a>(views: &'a Views, name: &str) -> Option<(&'a str, &'a ResourceStatus)> {
    let best = views.best(name)?;
    let all = views.all_of(name);
    let splits = || all.iter().filter(|(_, view)| !view.split_brain.is_empty());
    let found = splits().find(|(_, view)| view == best).or_else(|| splits().next())?;
    Some((found.0.as_str(), &found.1))
}

fn side(node: &str, history: &str, since_ms: Option<u64>, changed: Option<u64>) -> String {
    let since = since_ms.map_or(String::new(), |at| {
        format!(", alone since {} ago", show_seconds(now_ms().saturating_sub(at) / 1000))
    });
    // After a crash whole extents count as written.
    let changed = changed
        .map_or("an unknown amount".to_owned(), |bytes| format!("up to {}", show_size(bytes)));
    let history = if history.is_empty() { "the first one" } else { history };
    format!("{node}: {changed} written since{since} (history {history})")
}

/// Where `node`'s first volume is read, and what is to be known of that: who reaches it only by TLS needs a certificate, and who has
/// the machine before him does not.
fn saved_from(views: &Views, name: &str, node: &str) -> (String, String) {
    let volume = views.of(name, node).and_then(|view| view.volumes.first());
    let urls = volume.map_or(&[][..], |volume| &volume.nbd);
    let of = |scheme: &str| urls.iter().find(|url| url.starts_with(scheme)).cloned();
    if let Some(url) = of("nbd://") {
        return (url, String::new());
    }
    if let Some(url) = of("nbd+unix:") {
        return (url, format!("; on the machine of {node}"));
    }
    match of("nbds:") {
        Some(url) => (
            format!("{url}?tls-certificates=DIR"),
            "; DIR: of `lockstep client-certificate`".to_owned(),
        ),
        None => (format!("nbd://ADDRESS/{name}"), String::new()),
    }
}

/// What to say of `split`, as `node` sees it.
pub(crate) fn words(views: &Views, name: &str, node: &str, split: &SplitBrain) -> Words {
    let other = split.node.as_str();
    // The other side knows best what it wrote by now.
    let theirs = views.of(name, other).and_then(|view| {
        view.split_brain.iter().find(|back| back.node == node).map(|back| back.mine_changed_bytes)
    });
    let theirs = theirs.or(split.theirs_changed_bytes);
    let mine = split.mine_changed_bytes;
    let (export, where_to) = saved_from(views, name, other);
    let amount = |bytes: Option<u64>| {
        bytes.map_or("what it wrote".to_owned(), |bytes| format!("up to {}", show_size(bytes)))
    };
    let (what, waits_for, commands) = if split.discarded {
        (
            format!(
                "The side of {other} goes on, and that of {node} does not: what was written on it is about to go."
            ),
            format!("the NBD clients of {node} to leave; then its copy follows {other} by itself"),
            vec![(format!("lockstep status {name}"), "shows how many clients are left".to_owned())],
        )
    } else {
        (
            format!(
                "SPLIT BRAIN: {node} and {other} lost each other, and both went on. Nothing is lost yet, and nothing will be merged: one side has to be given up."
            ),
            "an operator, unless after_split_brain says which side goes".to_owned(),
            vec![
                (
                    format!("nbdcopy '{export}' {name}-on-{other}.img"),
                    format!("first saves what {other} has{where_to}"),
                ),
                (
                    format!("lockstep resource resolve {name} --discard {other}"),
                    format!("{node} goes on; {} of {other} go", amount(theirs)),
                ),
                (
                    format!("lockstep resource resolve {name} --discard {node}"),
                    format!("{other} goes on; {} of {node} go", amount(Some(mine))),
                ),
            ],
        )
    };
    Words {
        what,
        sides: vec![
            side(node, &split.mine, split.mine_since_ms, Some(mine)),
            side(other, &split.theirs, split.theirs_since_ms, theirs),
        ],
        waits_for,
        commands,
    }
}
