//! What a campaign must have counted beside the marks that the simulator has a list of: faults that struck, and what came of them.
//!
//! Always: each kind of fault, and each mark that the simulator makes of its own, stands in one of the lists below; a test of
//! them reads its code.
//!
//! Not here: marks of the replica code, and of each kind of message one that was held (`sim marks` tells of those).

/// Of both kinds of histories.
const ALWAYS: &[&str] = &[
    "fault: crash",
    "fault: disk stalls",
    "fault: flapping link",
    "fault: message held",
    "fault: operator: cut",
    "fault: operator: demote",
    "fault: operator: pause resync",
    "fault: operator: promote",
    "fault: operator: suspend",
    "fault: partition",
    "fault: partition, one way",
    "fault: pause",
    "fault: power cut",
    "fault: second connection",
    "fault: session broken",
    "fault: shutdown",
    "fault: slow link",
    "fault: stop in good order",
    "sim: a client goes another way",
    "sim: a disk is closed in good order",
    "sim: a disk that fails is not closed",
    "sim: a fault that waited for an output strikes before all is healed",
    "sim: a process ends before all is healed, for too little went wrong",
    "sim: a stop in good order took too long",
    "sim: answer path",
    "sim: answer session lost",
    "sim: second connection",
    "sim: threads learn one after the other that a session ended",
    "sim: what was held is let go",
    "sim: wish granted",
    "sim: wish refused",
];

/// Of those with quorum. Without it no disk fails, rots, is replaced or put back, no volume changes its size, no host reserves, and no
/// operator forces a node, takes members out or asks for a verify.
const WITH_QUORUM: &[&str] = &[
    "fault: all but one die, forced",
    "fault: data rots",
    "fault: data write astray",
    "fault: data write lost",
    "fault: disk errors",
    "fault: disk full",
    "fault: disk put back",
    "fault: disk replaced",
    "fault: host: reservations",
    "fault: metadata rots",
    "fault: metadata write astray",
    "fault: metadata write lost",
    "fault: operator: fail waiting requests",
    "fault: operator: invalidate",
    "fault: operator: replica out and in",
    "fault: operator: resize",
    "fault: operator: verify",
    "fault: operator: witness out and in",
    "fault: record write astray",
    "fault: record write lost",
    "sim: a bad page of the last good copy is taken back",
    "sim: a bad page of which nobody could tell is taken back",
    "sim: a copy that was not in sync is forced",
    "sim: a disk is not put back, because too few could tell",
    "sim: a fork begins",
    "sim: a host is kept from a volume",
    "sim: a page of metadata goes bad",
    "sim: a sector rots",
    "sim: a verify looks for rot",
    "sim: a volume grew",
    "sim: a write of data goes astray",
    "sim: a write of data is lost",
    "sim: an operator adds a member again",
    "sim: answer io",
    "sim: answer no quorum",
    "sim: answer out of range",
    "sim: answer reserved",
    "sim: disk failed",
    "sim: disk replaced",
    "sim: disk restored",
    "sim: every in-sync cache lost",
    "sim: final reads are asked again",
    "sim: forced",
    "sim: no copy has what was answered from memory",
    "sim: rot on the last good copy is taken back",
    "sim: the last good copy is spared",
    "sim: what a flush failed is gone though a later one said that it was there",
];

/// Of those without. With quorum no history has two sides.
const WITHOUT_QUORUM: &[&str] = &[
    "sim: a fork is begun by right",
    "sim: a side was given up",
    "sim: a split brain is named by both sides",
    "sim: an operator ends a split brain",
    "sim: an operator ends a split brain where he was sent to",
];

/// What a campaign may do without, of either kind, and why.
#[cfg(test)]
const NOT_DUE: &[(&str, &str)] = &[
    (
        "sim: a sector has too many orders to look at",
        "it says what was not judged: none would be best",
    ),
    (
        "sim: a volume grows where it was cut off above its first size",
        "three of 210 000 histories did",
    ),
    ("sim: answer gone", "simulated clients take no single request back"),
    ("sim: log damaged", "one copy of a page goes bad at once; both do in a scenario of that"),
];

/// What histories of this kind, with quorum or without, must have counted at least once, as the simulator prints it.
pub(super) fn counted(with_quorum: bool) -> impl Iterator<Item = &'static str> {
    let of_kind = if with_quorum { WITH_QUORUM } else { WITHOUT_QUORUM };
    ALWAYS.iter().chain(of_kind).copied()
}

#[cfg(test)]
mod tests {
    use super::{ALWAYS, NOT_DUE, WITH_QUORUM, WITHOUT_QUORUM};
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    /// Every kind of fault that plans have, and every mark of the simulator's own but those of messages.
    fn counted_by_the_simulator() -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../sim/src")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("the simulator stands beside") {
                let path = entry.expect("a folder can be read").path();
                if path.is_dir() {
                    folders.push(path);
                } else if !path.ends_with("tests.rs") {
                    read(&fs::read_to_string(&path).expect("code can be read"), &mut found);
                }
            }
        }
        found
    }

    fn read(code: &str, found: &mut BTreeSet<String>) {
        for line in code.lines() {
            for mark in line.split("\"sim: ").skip(1).filter_map(|rest| rest.split('"').next()) {
                if !mark.starts_with("message held: ") {
                    found.insert(format!("sim: {mark}"));
                }
            }
            let (named, rest) = line.split_once("=> \"").unwrap_or_default();
            if ["FaultKind::", "Wish::"].iter().any(|of| named.trim_start().starts_with(of)) {
                let name = rest.split('"').next().expect("what is before the first");
                found.insert(format!("fault: {name}"));
            }
        }
    }

    #[test]
    fn all_that_the_simulator_counts_is_due_or_is_said_not_to_be() {
        let found = counted_by_the_simulator();
        assert!(found.len() > 60 && found.contains("fault: crash"), "{found:?}");
        let mut listed = BTreeSet::new();
        let due = ALWAYS.iter().chain(WITH_QUORUM).chain(WITHOUT_QUORUM);
        for name in due.chain(NOT_DUE.iter().map(|(name, _)| name)) {
            assert!(listed.insert((*name).to_owned()), "{name} is there twice");
        }
        let left_out: Vec<&String> = found.difference(&listed).collect();
        let unknown: Vec<&String> = listed.difference(&found).collect();
        assert!(left_out.is_empty(), "put these into a list of this file: {left_out:?}");
        assert!(unknown.is_empty(), "the simulator counts no such thing: {unknown:?}");
    }
}
