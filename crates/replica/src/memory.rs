//! When the memory of a process holds what counts: with protocol B a write is answered while some replicas have it
//! in memory only.
//!
//! Always: while `counts` is false for a replica, each answered write is on its own disk, or not needed there.
//!
//! Not here: when such a write is answered (`shard`), what becomes of a copy whose process ended (`start`).

use base::NodeId;
use wire::{Configuration, Protocol};

/// Whether a write that clients were told is done may be in the memory of the process on `node` only, as far as this
/// replica is concerned. The primary answers no write before its own disk has it, and a replica that is the only
/// one in sync is the disk that has it.
pub(crate) fn counts(configuration: &Configuration, node: NodeId) -> bool {
    configuration.options.protocol == Protocol::B
        && configuration.primary != Some(node)
        && configuration.is_in_sync(node)
        && configuration.in_sync().count() > 1
}
