//! Words for a resource's options, and a change of them.
//!
//! Always: a word that stands here was checked when it was parsed; what is not given stays as it is.
//!
//! Not here: which changes a node allows.

use crate::unit::parse_size;
use clap::Args;
use wire::admin::OptionsChange;
use wire::{
    AfterSplitBrain, Durability, OnIoError, OnNoQuorum, Protocol, Quorum, RESYNC_RATES, ReadPolicy,
    SHARDS_MAX,
};

/// Options to change.
#[derive(Args, Clone, Debug)]
pub(crate) struct SetOptions {
    /// The resource
    pub(crate) name: String,
    /// When a write counts as complete: on every in-sync disk (c), or in every in-sync memory and on one disk (b)
    #[arg(long, value_name = "P", value_parser = protocol_parser())]
    pub(crate) protocol: Option<String>,
    /// What makes a write survive a power cut
    #[arg(long, value_name = "D", value_parser = ["flush", "write-through"])]
    pub(crate) durability: Option<String>,
    /// What requests do without a quorum
    #[arg(long, value_name = "DO", value_parser = ["suspend-io", "io-error"])]
    pub(crate) on_no_quorum: Option<String>,
    /// What happens when a replica's disk fails
    #[arg(long, value_name = "DO", value_parser = ["detach", "pass-on"])]
    pub(crate) on_io_error: Option<String>,
    /// Whether changes need a majority of voters
    #[arg(long, value_name = "Q", value_parser = ["majority", "off"])]
    pub(crate) quorum: Option<String>,
    /// Whose changes are given up when two sides that went on without each other meet again
    /// (without quorum): disconnect, discard-younger, discard-older, discard-least-changes,
    /// discard-zero-changes, discard-node=NODE
    #[arg(long, value_name = "DO", value_parser = parse_after_split_brain)]
    pub(crate) after_split_brain: Option<String>,
    /// Which replica serves a read
    #[arg(long, value_name = "POLICY",
          value_parser = ["prefer-local", "round-robin", "least-pending", "latency-aware", "striped"])]
    pub(crate) read_policy: Option<String>,
    /// Requests wait while fewer replicas are in sync
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=8))]
    pub(crate) in_sync_min: Option<u8>,
    /// What resyncs copy at most per second, as in 100MiB, all targets together; `off`: no limit
    #[arg(long, value_name = "SIZE", value_parser = parse_rate)]
    pub(crate) resync_rate_max: Option<u64>,
    /// What they keep per second although requests take longer for it; `off`: they yield as far as it helps
    #[arg(long, value_name = "SIZE", value_parser = parse_rate)]
    pub(crate) resync_rate_min: Option<u64>,
}

impl SetOptions {
    /// The node whose side is given up after a split brain, if one is named.
    pub(crate) fn discarded_node(&self) -> Option<&str> {
        self.after_split_brain.as_deref().and_then(discarded_node)
    }

    /// What is to change.
    pub(crate) fn change(&self) -> OptionsChange {
        OptionsChange {
            protocol: self.protocol.as_deref().map(protocol),
            durability: self.durability.as_deref().map(durability),
            quorum: self.quorum.as_deref().map(quorum),
            on_no_quorum: self.on_no_quorum.as_deref().map(on_no_quorum),
            on_io_error: self.on_io_error.as_deref().map(on_io_error),
            read_policy: self.read_policy.as_deref().map(read_policy),
            in_sync_min: self.in_sync_min,
            data_checksum: None,
            after_split_brain: self.after_split_brain.as_deref().map(after_split_brain),
            resync_rate_max: self.resync_rate_max,
            resync_rate_min: self.resync_rate_min,
        }
    }
}

/// A number of shards.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Shards {
    /// As many as there are threads for.
    Auto,
    Count(u16),
}

impl Shards {
    /// How many that are where the nodes with replicas have so many threads.
    pub(crate) fn count(self, threads: impl Iterator<Item = u16>) -> u16 {
        match self {
            Shards::Auto => threads.max().unwrap_or(1).clamp(1, SHARDS_MAX),
            Shards::Count(count) => count,
        }
    }
}

/// `auto`, or a number.
pub(super) fn parse_shards(text: &str) -> Result<Shards, String> {
    if text == "auto" {
        return Ok(Shards::Auto);
    }
    let count = text.parse().ok().filter(|count| (1..=SHARDS_MAX).contains(count));
    count.map(Shards::Count).ok_or_else(|| format!("1 to {SHARDS_MAX}, or auto"))
}

/// Bytes per second; `off` is 0.
pub(super) fn parse_rate(text: &str) -> Result<u64, String> {
    if text == "off" {
        return Ok(0);
    }
    let bytes = parse_size(text.strip_suffix("/s").unwrap_or(text));
    bytes.ok().filter(|bytes| RESYNC_RATES.contains(bytes)).ok_or_else(|| {
        format!("{text:?} is no rate: write 64KiB to 1TiB (each second), as in 100MiB, or off")
    })
}

/// `b` or `c`, in either case.
pub(crate) fn protocol_parser() -> clap::builder::PossibleValuesParser {
    use clap::builder::PossibleValue;
    [PossibleValue::new("b").alias("B"), PossibleValue::new("c").alias("C")].into()
}

pub(super) fn protocol(word: &str) -> Protocol {
    if word.eq_ignore_ascii_case("b") { Protocol::B } else { Protocol::C }
}

pub(super) fn durability(word: &str) -> Durability {
    if word == "write-through" { Durability::WriteThrough } else { Durability::Flush }
}

pub(super) fn quorum(word: &str) -> Quorum {
    if word == "off" { Quorum::Off } else { Quorum::Majority }
}

pub(super) fn on_no_quorum(word: &str) -> OnNoQuorum {
    if word == "io-error" { OnNoQuorum::IoError } else { OnNoQuorum::SuspendIo }
}

pub(super) fn on_io_error(word: &str) -> OnIoError {
    if word == "pass-on" { OnIoError::PassOn } else { OnIoError::Detach }
}

pub(super) fn read_policy(word: &str) -> ReadPolicy {
    match word {
        "round-robin" => ReadPolicy::RoundRobin,
        "least-pending" => ReadPolicy::LeastPending,
        "latency-aware" => ReadPolicy::LatencyAware,
        "striped" => ReadPolicy::Striped,
        _ => ReadPolicy::PreferLocal,
    }
}

pub(super) fn after_split_brain(word: &str) -> AfterSplitBrain {
    match word {
        "discard-younger" => AfterSplitBrain::DiscardYounger,
        "discard-older" => AfterSplitBrain::DiscardOlder,
        "discard-least-changes" => AfterSplitBrain::DiscardLeastChanges,
        "discard-zero-changes" => AfterSplitBrain::DiscardZeroChanges,
        // A node's number is known when the nodes are (`discarded_node`).
        _ => AfterSplitBrain::Disconnect,
    }
}

/// Words of `--after-split-brain`; a node follows the last one.
const AFTER_SPLIT_BRAIN: [&str; 5] = [
    "disconnect",
    "discard-younger",
    "discard-older",
    "discard-least-changes",
    "discard-zero-changes",
];

pub(super) fn parse_after_split_brain(text: &str) -> Result<String, String> {
    if discarded_node(text).is_some() || AFTER_SPLIT_BRAIN.contains(&text) {
        return Ok(text.to_owned());
    }
    Err(format!("one of {}, discard-node=NODE", AFTER_SPLIT_BRAIN.join(", ")))
}

/// The node whose side is given up, if the word names one.
pub(crate) fn discarded_node(word: &str) -> Option<&str> {
    word.strip_prefix("discard-node=").filter(|node| !node.is_empty())
}
