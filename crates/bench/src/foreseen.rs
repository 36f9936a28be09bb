//! What a run leaves out, told before its first table: who wants it installs what is missing then, and not after hours.
//!
//! Always: it is said in the words of the table that leaves it out, which says it once more when it comes; and all of it stands at the end of the run.
//!
//! Not here: what only shows itself, as whether the kernel makes disks of volumes.

use std::fs;

use crate::attached;
use crate::databases;
use crate::drbd;
use crate::failover;
use crate::metadata;
use crate::mirror;
use crate::outcome::{Outcome, complain, say};
use crate::run::Run;
use crate::space;
use crate::tables;

/// Says it, of these tables.
pub(crate) fn tell(run: &Run, asked: &[&str]) -> Outcome<()> {
    let wants = |table: &str| asked.contains(&table);
    say("What of these tables is left out on this machine is said first.");
    if wants("record-memory") || wants("depth") {
        tables::has_memory_plugin(run);
    }
    if wants("record-file") {
        tables::file_servers(run);
        tables::has_ceph(run);
    }
    if wants("record-memory") || wants("record-file") && !run.pace.brief {
        for what in attached::doubtful() {
            say(format!("Whether there is {what} is seen when its table comes."));
        }
    }
    if wants("metadata") {
        metadata::has_memory(run.pace);
    }
    if wants("threads") {
        tables::shard_counts();
    }
    if wants("drbd") {
        let below = run.below("foreseen")?;
        if let Err(why) = drbd::can_be(&below) {
            complain(format!("drbd: {why}"));
        }
        fs::remove_dir_all(&below.scratch).map_err(|error| error.to_string())?;
    }
    if wants("mirror") {
        mirror::can_be();
    }
    if wants("databases") {
        databases::foresee(run);
    }
    if wants("failover") {
        failover::has_copies(run);
    }
    for part in space::PARTS.into_iter().filter(|part| wants(crate::parts::table(part))) {
        if let Some(why) = space::is_short(part, run) {
            complain(format!("{part} is left out unless there is more by then: {why}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::tell;
    use crate::outcome::left_out;
    use crate::run::{Pace, Run, Turns};

    #[test]
    fn what_a_table_leaves_out_is_known_before_it_is_made() {
        let pace = Pace { full: true, sanity: false, brief: false, turns: Turns::Usual };
        let (programs, scratch) = (Vec::new(), std::env::temp_dir());
        let run = Run { programs, pace, scratch, counts: false };
        let known = || left_out().iter().any(|what| what == "16 shards: a resource has 8 at most");
        tell(&run, &["idle"]).expect("nothing is made for it");
        assert!(!known());
        tell(&run, &["threads"]).expect("nothing is made for it");
        assert!(known());
    }
}
