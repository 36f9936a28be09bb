//! Nodes of another release among today's.

use std::fs;
use std::path::{Path, PathBuf};

use super::kill::{Away, DISK, SIZE_TEXT, load, of_restarted, settle};
use crate::bench::{Bench, Outcome, Verdict, ensure, passed, program, wait_for};
use crate::cluster::{Cluster, SYNC_LIMIT};
use crate::load::Load;
use wire::admin::{Answer, Command};

const NODES: [&str; 3] = ["a", "b", "c"];

/// The program that a node's process is.
fn program_of(cluster: &Cluster, node: &str) -> Outcome<PathBuf> {
    let pid = cluster.process(node)?.as_raw_nonzero();
    Ok(fs::read_link(format!("/proc/{pid}/exe"))?)
}

fn assert_runs(cluster: &Cluster, node: &str, expected: &Path) -> Outcome<()> {
    let own = program_of(cluster, node)?;
    let expected = fs::canonicalize(expected)?;
    ensure!(own == expected, "{node} runs {}, not {}", own.display(), expected.display());
    Ok(())
}

/// One node goes over to another program, is sent what it missed and no more, and everybody is primary once.
fn turn(bench: &Bench, cluster: &mut Cluster, load: &Load, node: &str, to: &Path) -> Outcome<()> {
    let door = cluster.node(node)?.nbd;
    load.turn_away(door)?;
    let away = Away::of(cluster, load, node)?;
    cluster.stop(node)?;
    load.progress(50)?;
    cluster.node_program = Some(to.to_path_buf());
    cluster.start(node)?;
    assert_runs(cluster, node, to)?;
    cluster.wait(DISK, "healthy", SYNC_LIMIT)?;
    away.has_come_back(bench, cluster, load, node)?;
    load.let_in(door);
    for primary in NODES {
        cluster.ok(&["resource", "promote", DISK, "--node", primary])?;
        load.progress(50)?;
    }
    bench.tell(format_args!("{node} runs {}, and every node was primary since", revision(to)));
    Ok(())
}

/// What an old node says where the others have begun to do more than it can; `None` where it takes part.
fn refusal(cluster: &Cluster, node: &str) -> Outcome<Option<String>> {
    wait_for(&format!("{node} to take part or to say why not"), SYNC_LIMIT, || {
        let resource = Some(DISK.to_owned());
        let Answer::Status(status) = cluster.ask(node, Command::Status { resource })? else {
            return Err("no status".into());
        };
        let said = status.resources.first().and_then(|own| own.suspended.clone());
        if let Some(why) = said.filter(|why| why.contains("release is too old")) {
            return Ok(Some(why));
        }
        let state = cluster.replica(DISK, node)?["state"].take();
        ensure!(state == "in-sync", "it is {state}");
        Ok(None)
    })
}

/// The primary dies without a word: one of the others takes over, and has what was acknowledged. It is sent what it missed and no more.
fn lose_primary(bench: &Bench, cluster: &mut Cluster, load: &Load) -> Outcome<()> {
    let primary = cluster.primary(DISK)?;
    let own = program_of(cluster, &primary)?;
    let door = cluster.node(&primary)?.nbd;
    load.turn_away(door)?;
    let away = Away::of(cluster, load, &primary)?;
    cluster.kill(&primary)?;
    load.progress(100)?;
    cluster.node_program = Some(own);
    cluster.start(&primary)?;
    cluster.wait(DISK, "healthy", SYNC_LIMIT)?;
    away.has_come_back(bench, cluster, load, &primary)?;
    load.let_in(door);
    bench.tell(format_args!("{primary}, the primary, was killed and is back"));
    Ok(())
}

/// There and back, one node after the other. With two of one kind and one of the other the primary dies. Where the
/// members do by now what the old release cannot, there is no way back, and the old node says so.
pub(super) fn rolling(bench: &Bench) -> Outcome {
    let Some(old) = &bench.old else {
        let why = "it was not built: `cargo xtask lab upgrade` does that before";
        return Ok(Verdict::NotRun(bench.no_old.clone().unwrap_or_else(|| why.to_owned())));
    };
    let new = program("lockstepd")?;
    let mut cluster = Cluster::up_by(bench, 3, old)?;
    for node in NODES {
        assert_runs(&cluster, node, old)?;
    }
    cluster.create(DISK, &["--size", SIZE_TEXT, "--replicas", "3"])?;
    let load = load(bench, of_restarted(&cluster)?);
    load.progress(100)?;
    for node in NODES {
        turn(bench, &mut cluster, &load, node, &new)?;
        if node == "b" {
            lose_primary(bench, &mut cluster, &load)?;
        }
    }
    let mut way_back = "and back";
    for node in ["c", "a", "b"] {
        load.turn_away(cluster.node(node)?.nbd)?;
        cluster.stop(node)?;
        cluster.node_program = Some(old.clone());
        cluster.start(node)?;
        if let Some(why) = refusal(&cluster, node)? {
            bench.tell(format_args!("{node}, with the old release, says: {why}"));
            load.progress(100)?;
            turn(bench, &mut cluster, &load, node, &new)?;
            way_back = "and an old one among them said that there is no way back";
            break;
        }
        turn(bench, &mut cluster, &load, node, old)?;
        if node == "a" {
            lose_primary(bench, &mut cluster, &load)?;
        }
    }
    let summary = settle(bench, &cluster, load, &NODES)?;
    cluster.ok(&["resource", "verify", DISK, "--wait"])?;
    passed(format!("{summary}; three nodes went from {} to today's, {way_back}", revision(old)))
}

/// The revision that a program was built from, as its folder is named; today's lies in that of a profile.
fn revision(old: &Path) -> String {
    let folder = old.parent().and_then(Path::file_name).unwrap_or_default();
    folder.to_string_lossy().chars().take(7).collect()
}
