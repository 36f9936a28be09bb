//! Disks that lose, change or forget what they hold while their node is down.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use super::kill::{DISK, SIZE, load, settle, staying, three};
use crate::bench::{Bench, Failure, Outcome, ensure, passed, text, tool, wait_for};
use crate::cluster::Cluster;
use crate::load::{BLOCK_BYTES, fill};
use client::{ANSWER_LIMIT, Volume};

/// Where blocks rot.
const PLACES: [u64; 4] = [0, 8 << 20, SIZE / 2, SIZE - 4096];

/// What happens to the file of node c.
fn meddle(
    bench: &Bench,
    what: &str,
    before: impl Fn(&Path) -> Outcome<()>,
    after: impl Fn(&Path) -> Outcome<()>,
) -> Outcome<(Cluster, crate::load::Load)> {
    let cluster = three(bench)?;
    let load = load(bench, staying(&cluster, &["a", "b"], 4)?);
    load.progress(200)?;
    cluster.kill("c")?;
    before(&cluster.image("c", DISK, 0))?;
    cluster.start("c")?;
    cluster.wait(DISK, "in-sync", crate::cluster::SYNC_LIMIT)?;
    load.progress(200)?;
    load.run_for(bench.time(Duration::from_secs(4), Duration::from_secs(1)))?;
    cluster.kill("c")?;
    load.progress(200)?;
    after(&cluster.image("c", DISK, 0))?;
    bench.tell(what);
    Ok((cluster, load))
}

fn nothing(_: &Path) -> Outcome<()> {
    Ok(())
}

/// Deleted.
pub(super) fn emptied(bench: &Bench) -> Outcome {
    let remove = |image: &Path| Ok(fs::remove_file(image)?);
    let (cluster, load) = meddle(bench, "the file of c's copy is deleted", nothing, remove)?;
    replaced(bench, &cluster, "c")?;
    load.progress(200)?;
    passed(settle(bench, &cluster, load, &["a", "b", "c"])?)
}

/// Starts a node whose file cannot be used, and does what `explain` then says, word for word.
fn replaced(bench: &Bench, cluster: &Cluster, node: &str) -> Outcome<()> {
    cluster.start(node)?;
    let replica = cluster.replica(DISK, node)?;
    let state = replica["state"].as_str().unwrap_or_default();
    bench.tell(format_args!("{node} started; its copy is {state}"));
    if state == "in-sync" {
        // Only trusted after everything was copied: that is what `settle` compares.
        return Ok(());
    }
    ensure!(
        state == "detached",
        "{node} has no disk that can be used, and its copy is said to be {state}"
    );
    let explained = cluster.ok(&["explain", DISK])?;
    for verb in ["remove-replica", "add-replica"] {
        let start = format!("lockstep resource {verb} {DISK} --node {node}");
        let offered = explained.find(&start).and_then(|at| explained[at..].lines().next());
        ensure!(offered.is_some(), "explain does not offer {start:?}: {explained}");
        // An effect may stand behind the command.
        let command = offered.unwrap_or_default().split("   (").next().unwrap_or_default();
        let words: Vec<&str> = command.split_whitespace().skip(1).collect();
        cluster.ok(&words)?;
    }
    Ok(())
}

/// Cut to half its size.
pub(super) fn truncated(bench: &Bench) -> Outcome {
    let cut = |image: &Path| {
        let file = OpenOptions::new().write(true).open(image)?;
        Ok(file.set_len(SIZE / 2)?)
    };
    let (cluster, load) = meddle(bench, "the file of c's copy is cut to half", nothing, cut)?;
    replaced(bench, &cluster, "c")?;
    load.progress(200)?;
    passed(settle(bench, &cluster, load, &["a", "b", "c"])?)
}

/// An older copy of itself.
pub(super) fn rolled_back(bench: &Bench) -> Outcome {
    let snapshot = bench.directory.join("snapshot");
    let keep =
        |image: &Path| tool("cp", &["--sparse=always", text(image), text(&snapshot)]).map(drop);
    let restore =
        |image: &Path| tool("cp", &["--sparse=always", text(&snapshot), text(image)]).map(drop);
    let (cluster, load) = meddle(bench, "c's copy goes back to what it was before", keep, restore)?;
    cluster.start("c")?;
    load.progress(200)?;
    passed(settle(bench, &cluster, load, &["a", "b", "c"])?)
}

/// Two resources' files are exchanged.
pub(super) fn swapped(bench: &Bench) -> Outcome {
    let cluster = three(bench)?;
    cluster.create("other", &["--size", super::kill::SIZE_TEXT, "--replicas", "3"])?;
    let mark = vec![0x5a; 1 << 20];
    let mut other = Volume::open(cluster.node("a")?.nbd, "other", ANSWER_LIMIT)?;
    other.write(0, &mark)?;
    other.flush()?;
    drop(other);
    let load = load(bench, staying(&cluster, &["a", "b"], 4)?);
    load.progress(200)?;
    cluster.kill("c")?;
    let (one, two) = (cluster.image("c", DISK, 0), cluster.image("c", "other", 0));
    let between = cluster.home("c").join("between");
    exchange(&one, &two, &between)?;
    cluster.start("c")?;
    for name in [DISK, "other"] {
        cluster.wait_state(name, "c", "detached")?;
        let log = cluster.log("c");
        let refused = |line: &str| line.contains("LS-0025") && line.contains(&format!("{name}: "));
        ensure!(
            log.lines().any(refused),
            "c's log does not say of {name} that its store is another's: {log}"
        );
    }
    load.progress(200)?;
    cluster.stop("c")?;
    exchange(&one, &two, &between)?;
    cluster.start("c")?;
    let summary = settle(bench, &cluster, load, &["a", "b", "c"])?;
    cluster.wait("other", "in-sync", crate::cluster::SYNC_LIMIT)?;
    cluster.compare("other", 0, SIZE, &["a", "b", "c"])?;
    let mut found = vec![0; mark.len()];
    for node in ["a", "b", "c"] {
        Volume::open(cluster.node(node)?.nbd, "other", ANSWER_LIMIT)?.read(0, &mut found)?;
        ensure!(found == mark, "{node} shows something else of the other resource");
    }
    passed(summary)
}

fn exchange(one: &Path, two: &Path, between: &Path) -> Outcome<()> {
    fs::rename(one, between)?;
    fs::rename(two, one)?;
    fs::rename(between, two)?;
    Ok(())
}

/// Bits that rot.
pub(super) fn verify(bench: &Bench) -> Outcome {
    let cluster = three(bench)?;
    let load = load(bench, staying(&cluster, &["a", "b"], 4)?);
    load.progress(200)?;
    load.run_for(Duration::from_secs(1))?;
    let summary = settle(bench, &cluster, load, &["a", "b", "c"])?;
    // Stopped in good order, so that no extent of its log makes a resync find it by chance.
    cluster.stop("c")?;
    let image = OpenOptions::new().read(true).write(true).open(cluster.image("c", DISK, 0))?;
    for at in [0, SIZE / 2 + 8192, SIZE - 4096] {
        let mut byte = [0];
        image.read_exact_at(&mut byte, at)?;
        image.write_all_at(&[!byte[0]], at)?;
    }
    image.sync_all()?;
    drop(image);
    cluster.start("c")?;
    cluster.wait(DISK, "in-sync", crate::cluster::SYNC_LIMIT)?;
    if cluster.compare(DISK, 0, SIZE, &["a", "b", "c"]).is_ok() {
        return Err(Failure("the flipped bytes were gone before verify ran".to_owned()));
    }
    cluster.ok(&["resource", "verify", DISK, "--wait"])?;
    cluster.wait(DISK, "in-sync", crate::cluster::SYNC_LIMIT)?;
    cluster.compare(DISK, 0, SIZE, &["a", "b", "c"])?;
    passed(format!("three flipped bytes repaired; {summary}"))
}

/// What is compared before it is written down how far it is, in bytes.
const STRIDE: u64 = 1 << 30;

/// Bits that rot, and a primary that dies before they are found.
pub(super) fn verify_moves(bench: &Bench) -> Outcome {
    let cluster = Cluster::up(bench, 4)?;
    cluster.create(DISK, &["--size", "3GiB", "--replicas", "4"])?;
    cluster.ok(&["resource", "promote", DISK, "--node", "a"])?;
    cluster.stop("d")?;
    let place = 5 * STRIDE / 2;
    let image = OpenOptions::new().write(true).open(cluster.image("d", DISK, 0))?;
    image.write_all_at(&[1], place)?;
    image.sync_all()?;
    drop(image);
    cluster.start("d")?;
    cluster.wait(DISK, "in-sync", crate::cluster::SYNC_LIMIT)?;
    cluster.ok(&["resource", "verify", DISK])?;
    wait_for("a stride to be compared", crate::cluster::SYNC_LIMIT, || {
        let verify = cluster.status(DISK)?["verify"].take();
        ensure!(verify["done_bytes"].as_u64() > Some(STRIDE), "{verify}");
        Ok(())
    })?;
    let first = cluster.primary(DISK)?;
    cluster.kill(&first)?;
    let mut least = u64::MAX;
    let verify = wait_for("the end", crate::cluster::SYNC_LIMIT, || {
        let verify = cluster.status(DISK)?["verify"].take();
        least = least.min(verify["done_bytes"].as_u64().unwrap_or(u64::MAX));
        ensure!(verify["state"] == "done", "{verify}");
        Ok(verify)
    })?;
    ensure!(least >= STRIDE, "it began anew: only {least} bytes were compared then");
    ensure!(verify["repaired_bytes"].as_u64() > Some(0), "nothing was repaired: {verify}");
    cluster.start(&first)?;
    cluster.wait(DISK, "in-sync", crate::cluster::SYNC_LIMIT)?;
    let said = cluster.ok(&["resource", "verify", DISK, "--wait"])?;
    ensure!(said.contains("are the same"), "{said}");
    cluster.compare(DISK, 0, 3 * STRIDE, &["a", "b", "c", "d"])?;
    let mut found = [1; BLOCK_BYTES];
    Volume::open(cluster.node("d")?.nbd, DISK, ANSWER_LIMIT)?.read(place, &mut found)?;
    ensure!(found == [0; BLOCK_BYTES], "the copy that rotted was believed");
    passed(format!("{} bytes repaired after {first} was killed", verify["repaired_bytes"]))
}

/// Bits that rot where checksums are on.
pub(super) fn rotten(bench: &Bench) -> Outcome {
    let cluster = Cluster::up(bench, 3)?;
    let size = ["--size", super::kill::SIZE_TEXT, "--replicas", "3", "--data-checksum", "crc32c"];
    cluster.create(DISK, &size)?;
    let load = load(bench, staying(&cluster, &["a", "b", "c"], 2)?);
    load.progress(200)?;
    let summary = settle(bench, &cluster, load, &["a", "b", "c"])?;
    let mut good = vec![0; BLOCK_BYTES * PLACES.len()];
    let read_all = |node: &str, bytes: &mut [u8]| -> Outcome<()> {
        let mut volume = Volume::open(cluster.node(node)?.nbd, DISK, ANSWER_LIMIT)?;
        for (&place, content) in PLACES.iter().zip(bytes.chunks_exact_mut(BLOCK_BYTES)) {
            volume.read(place, content)?;
        }
        Ok(())
    };
    let mut volume = Volume::open(cluster.node("a")?.nbd, DISK, ANSWER_LIMIT)?;
    for (&place, content) in PLACES.iter().zip(good.chunks_exact_mut(BLOCK_BYTES)) {
        fill(content, place, 1);
        volume.write(place, content)?;
    }
    volume.flush()?;
    drop(volume);
    // Below two running nodes, each with other blocks, so that a good copy is left of each.
    let primary = cluster.primary(DISK)?;
    let second = if primary == "b" { "c" } else { "b" };
    for (number, &place) in PLACES.iter().enumerate() {
        let victim = if number % 2 == 0 { primary.as_str() } else { second };
        let image = cluster.image(victim, DISK, 0);
        let image = OpenOptions::new().read(true).write(true).open(image)?;
        image.write_all_at(&[0x5a; 16], place + 512)?;
        image.sync_all()?;
    }
    for node in [primary.as_str(), second, "a"] {
        let mut found = vec![0; good.len()];
        read_all(node, &mut found)?;
        ensure!(found == good, "through {node} a rotten block was read");
    }
    cluster.ok(&["resource", "verify", DISK, "--wait"])?;
    cluster.wait(DISK, "in-sync", crate::cluster::SYNC_LIMIT)?;
    cluster.compare(DISK, 0, SIZE, &["a", "b", "c"])?;
    passed(format!("{} rotten blocks never read and mended; {summary}", PLACES.len()))
}
