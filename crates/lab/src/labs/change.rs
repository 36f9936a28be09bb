//! What an operator changes while clients use a volume.

use std::time::Duration;

use super::kill::{DISK, SIZE, flush, load, roaming, settle, staying, three};
use super::modes::{member, resource_file};
use crate::bench::{
    Bench, Failure, Outcome, Verdict, ensure, let_run, need_tools, passed, text, wait_for,
};
use crate::cluster::{Cluster, SYNC_LIMIT, compare_files};
use crate::load::Load;
use client::{ANSWER_LIMIT, Volume};
use tools::{Device, has_loops};

/// Up and down.
pub(super) fn size(bench: &Bench) -> Outcome {
    let cluster = three(bench)?;
    let load = load(bench, staying(&cluster, &["a", "b"], 4)?);
    load.progress(100)?;
    cluster.ok(&["resource", "resize", DISK, "--size", "512MiB"])?;
    load.progress(100)?;
    let node = cluster.node("c")?.nbd;
    let mut volume = Volume::open(node, DISK, ANSWER_LIMIT)?;
    ensure!(volume.ready.size_bytes == 512 << 20, "the size is {}", volume.ready.size_bytes);
    let bytes = vec![0x5a; 1 << 20];
    let place = (512 << 20) - (1 << 20);
    volume.write(place, &bytes)?;
    let mut back = vec![0; 1 << 20];
    Volume::open(cluster.node("b")?.nbd, DISK, ANSWER_LIMIT)?.read(place, &mut back)?;
    ensure!(back == bytes, "the new end does not hold what was written");
    drop(volume);
    let summary = settle(bench, &cluster, load, &["a", "b", "c"])?;
    cluster.compare(DISK, 0, 512 << 20, &["a", "b", "c"])?;
    let refused = cluster.cli(&["resource", "resize", DISK, "--size", "128MiB"])?;
    ensure!(refused.code == Some(1), "{}", refused.failure("should have been refused"));
    ensure!(refused.words().contains("--force"), "{}", refused.failure("should name --force"));
    cluster.ok(&["resource", "resize", DISK, "--size", "128MiB", "--force"])?;
    let mut small = Volume::open(node, DISK, ANSWER_LIMIT)?;
    ensure!(small.ready.size_bytes == 128 << 20, "the size is {}", small.ready.size_bytes);
    small.write((128 << 20) - 4096, &bytes[..4096])?;
    drop(small);
    // One node is away, and its disk holds what was there, while the end goes and comes back.
    cluster.ok(&["resource", "resize", DISK, "--size", "512MiB"])?;
    wait_for("the new size", Duration::from_secs(20), || {
        Ok(Volume::open(node, DISK, ANSWER_LIMIT)?.write(place, &bytes)?)
    })?;
    cluster.kill("b")?;
    cluster.ok(&["resource", "resize", DISK, "--size", "128MiB", "--force"])?;
    cluster.ok(&["resource", "resize", DISK, "--size", "512MiB"])?;
    let mut back = vec![0x5a; 1 << 20];
    wait_for("the new size", Duration::from_secs(20), || {
        Ok(Volume::open(node, DISK, ANSWER_LIMIT)?.read(place, &mut back)?)
    })?;
    ensure!(back.iter().all(|&byte| byte == 0), "what was added does not read as zeroes");
    cluster.start("b")?;
    cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
    cluster.compare(DISK, 0, 512 << 20, &["a", "b", "c"])?;
    cluster.ok(&["resource", "resize", DISK, "--size", "128MiB", "--force"])?;
    // All of it survives a restart of everything.
    cluster.kill_all()?;
    cluster.start_all()?;
    let read = |mut volume: Volume| -> Outcome<Vec<u8>> {
        let mut back = vec![0; 4096];
        volume.read((128 << 20) - 4096, &mut back)?;
        Ok(back)
    };
    let back = read(Volume::open(node, DISK, ANSWER_LIMIT)?)?;
    ensure!(back == bytes[..4096], "the last block is lost");
    cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
    cluster.compare(DISK, 0, 128 << 20, &["a", "b", "c"])?;
    passed(summary)
}

/// On block devices, whose metadata lies at their end: their layout stays when the size changes.
pub(super) fn size_of_devices(bench: &Bench) -> Outcome {
    const SMALL: u64 = 32 << 20;
    const LARGE: u64 = 96 << 20;
    need_tools!("losetup");
    if !has_loops() {
        return Ok(Verdict::NotRun("needs root and loop devices".to_owned()));
    }
    let devices = [
        Device::new(&bench.directory.join("one"), 256 << 20)?,
        Device::new(&bench.directory.join("two"), 256 << 20)?,
        Device::new(&bench.directory.join("three"), 256 << 20)?,
    ];
    let cluster = Cluster::up(bench, 3)?;
    let members = [
        member("a", "device", &devices[0].device, None),
        member("b", "device", &devices[1].device, None),
    ];
    let path = resource_file(bench, DISK, &members, "96MiB")?;
    cluster.create(DISK, &["--from", text(&path)])?;
    let node = cluster.node("a")?.nbd;
    let bytes = vec![0x5a; 1 << 20];
    let write = |place: u64| -> Outcome<()> {
        let mut volume = Volume::open(node, DISK, ANSWER_LIMIT)?;
        Ok(volume.write(place, &bytes).and_then(|()| volume.flush())?)
    };
    write(0)?;
    write(LARGE - (1 << 20))?;
    cluster.ok(&["resource", "resize", DISK, "--size", "32MiB", "--force"])?;
    wait_for("the smaller size", Duration::from_secs(20), || {
        let size = Volume::open(node, DISK, ANSWER_LIMIT)?.ready.size_bytes;
        ensure!(size == SMALL, "it is {size}");
        Ok(())
    })?;
    // Every node is told anew what the resource is, its size too.
    let on_c = ["resource", "add-replica", DISK, "--node", "c", "--device", &devices[2].device];
    let two = cluster.cli(&[&on_c[..], &["--device", "/dev/null"]].concat())?;
    ensure!(two.code == Some(2), "{}", two.failure("there is one volume"));
    cluster.ok(&on_c)?;
    cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
    for round in 0..2 {
        cluster.kill_all()?;
        cluster.start_all()?;
        cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
        let mut back = vec![0; 1 << 20];
        Volume::open(node, DISK, ANSWER_LIMIT)?.read(0, &mut back)?;
        ensure!(back == bytes, "round {round}: the first bytes are lost");
        if round == 0 {
            cluster.ok(&["resource", "resize", DISK, "--size", "96MiB"])?;
        }
        let limit = Duration::from_secs(20);
        wait_for("the first size", limit, || {
            let mut volume = Volume::open(node, DISK, ANSWER_LIMIT)?;
            volume.read(LARGE - (1 << 20), &mut back)?;
            ensure!(round == 1 || back.iter().all(|&byte| byte == 0), "what was cut off is back");
            Ok(())
        })?;
        write(LARGE - (1 << 20))?;
    }
    let beyond = cluster.cli(&["resource", "resize", DISK, "--size", "300MiB"])?;
    ensure!(beyond.code == Some(1), "{}", beyond.failure("the devices have no room for that"));
    ensure!(beyond.words().contains("ls-0022"), "{}", beyond.failure("should be LS-0022"));
    wide(&cluster)?;
    flush(&cluster)?;
    let image = cluster.image("c", DISK, 0);
    ensure!(!image.exists(), "{} was made beside the device", image.display());
    compare_files(&devices.each_ref().map(|device| device.file.clone()), LARGE)?;
    passed("shrunk, another copy made, restarted, grown back, restarted")
}

/// A copy that is made on a client's node after the size changed finds itself again at the next start.
fn wide(cluster: &Cluster) -> Outcome<()> {
    // Files are laid out for eight times the first size, or 64 GiB: so this one is not as the others.
    let create = ["resource", "create", "wide", "--size", "9GiB", "--nodes", "a,b"];
    cluster.ok(&[&create[..], &["--replicas", "2"]].concat())?;
    let bytes = [0x5a; 4096];
    Volume::open(cluster.node("a")?.nbd, "wide", ANSWER_LIMIT)?.write(0, &bytes)?;
    cluster.ok(&["resource", "resize", "wide", "--size", "64MiB", "--force"])?;
    cluster.ok(&["resource", "add-replica", "wide", "--node", "c"])?;
    cluster.wait("wide", "in-sync", SYNC_LIMIT)?;
    cluster.kill("c")?;
    cluster.start("c")?;
    cluster.wait("wide", "in-sync", SYNC_LIMIT)?;
    cluster.compare("wide", 0, 64 << 20, &["a", "b", "c"])
}

/// In and out; clients of the nodes that get a copy or lose theirs may have to go elsewhere.
pub(super) fn members(bench: &Bench) -> Outcome {
    let cluster = Cluster::up(bench, 4)?;
    cluster.create(DISK, &["--size", super::kill::SIZE_TEXT, "--replicas", "3"])?;
    let mut clients = staying(&cluster, &["a"], 3)?;
    clients.extend(roaming(&cluster, &["b", "a"], 3)?);
    clients.extend(roaming(&cluster, &["d", "a"], 3)?);
    members_change(bench, &cluster, load(bench, clients))
}

/// The same, and the clients of that node see no error.
pub(super) fn members_unseen(bench: &Bench) -> Outcome {
    let cluster = Cluster::up(bench, 4)?;
    cluster.create(DISK, &["--size", super::kill::SIZE_TEXT, "--replicas", "3"])?;
    let clients = staying(&cluster, &["a", "b", "d"], 3)?;
    let load = load(bench, clients);
    // Who loses its copy is the one that orders the writes.
    load.progress(200)?;
    cluster.ok(&["resource", "promote", DISK, "--node", "b"])?;
    members_change(bench, &cluster, load)
}

/// Nodes that were away while a resource was made, lost a copy, and was deleted.
pub(super) fn late(bench: &Bench) -> Outcome {
    let cluster = Cluster::up(bench, 4)?;
    cluster.kill("d")?;
    cluster.create(DISK, &["--size", super::kill::SIZE_TEXT, "--replicas", "3"])?;
    let bytes = vec![0x5a; 1 << 20];
    Volume::open(cluster.node("a")?.nbd, DISK, ANSWER_LIMIT)?.write(0, &bytes)?;
    cluster.start("d")?;
    let mut back = vec![0; 1 << 20];
    let limit = Duration::from_secs(20);
    wait_for("d to serve what was made without it", limit, || {
        Ok(Volume::open(cluster.node("d")?.nbd, DISK, ANSWER_LIMIT)?.read(0, &mut back)?)
    })?;
    ensure!(back == bytes, "d serves something else");
    bench.tell("d serves what was made while it was away");
    cluster.kill("c")?;
    cluster.ok(&["resource", "remove-replica", DISK, "--node", "c"])?;
    ensure!(cluster.image("c", DISK, 0).exists(), "who removed it? its node is down");
    cluster.start("c")?;
    wait_for("c to remove its copy", limit, || {
        ensure!(!cluster.image("c", DISK, 0).exists(), "it is still there");
        Ok(())
    })?;
    Volume::open(cluster.node("c")?.nbd, DISK, ANSWER_LIMIT)?.read(0, &mut back)?;
    ensure!(back == bytes, "c serves something else");
    bench.tell("c became a client");
    cluster.kill("c")?;
    cluster.kill("d")?;
    let refused = cluster.cli(&["resource", "delete", DISK])?;
    ensure!(refused.code == Some(1), "{}", refused.failure("should be refused: nodes are away"));
    cluster.ok(&["resource", "delete", DISK, "--force"])?;
    cluster.start("c")?;
    cluster.start("d")?;
    wait_for("c and d to hear that it is deleted", limit, || {
        let listed = cluster.cli(&["status", DISK])?;
        ensure!(listed.code == Some(3), "{}", listed.failure("should have ended with 3"));
        Ok(())
    })?;
    // Its name is free again on every node.
    cluster.create(DISK, &["--size", super::kill::SIZE_TEXT, "--replicas", "3"])?;
    Volume::open(cluster.node("d")?.nbd, DISK, ANSWER_LIMIT)?.read(0, &mut back)?;
    ensure!(back.iter().all(|&byte| byte == 0), "the new volume holds what the old one held");
    passed("late nodes heard of a resource made, a copy removed, a resource deleted")
}

fn members_change(bench: &Bench, cluster: &Cluster, load: Load) -> Outcome {
    load.progress(200)?;
    cluster.ok(&["resource", "add-replica", DISK, "--node", "d"])?;
    cluster.wait_state(DISK, "d", "in-sync")?;
    bench.tell("d has a copy in sync");
    load.progress(200)?;
    let again = cluster.cli(&["resource", "add-replica", DISK, "--node", "d"])?;
    ensure!(again.code == Some(1), "{}", again.failure("should have been refused"));
    cluster.ok(&["resource", "remove-replica", DISK, "--node", "b"])?;
    bench.tell("b has none any more");
    ensure!(!cluster.image("b", DISK, 0).exists(), "the file of b's copy is still there");
    load.progress(200)?;
    let absent = cluster.cli(&["resource", "remove-replica", DISK, "--node", "b"])?;
    ensure!(absent.code == Some(3), "{}", absent.failure("should have ended with 3"));
    // The new one counts: the volume lives with d and one more.
    cluster.kill("c")?;
    load.progress(200)?;
    cluster.start("c")?;
    passed(settle(bench, cluster, load, &["a", "c", "d"])?)
}

/// Round and round.
pub(super) fn primary(bench: &Bench) -> Outcome {
    let cluster = three(bench)?;
    let load = load(bench, staying(&cluster, &["a", "b", "c"], 3)?);
    load.progress(100)?;
    for node in ["b", "c", "a", "c", "b", "a"] {
        cluster.ok(&["resource", "promote", DISK, "--node", node])?;
        load.progress(50)?;
    }
    passed(settle(bench, &cluster, load, &["a", "b", "c"])?)
}

/// Everything anew.
pub(super) fn invalidate(bench: &Bench) -> Outcome {
    let cluster = three(bench)?;
    let load = load(bench, staying(&cluster, &["a", "b"], 4)?);
    load.progress(200)?;
    cluster.ok(&["resource", "invalidate", DISK, "--node", "c"])?;
    load.progress(100)?;
    cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
    bench.tell("c's copy was made anew");
    let primary = cluster.primary(DISK)?;
    cluster.ok(&["resource", "invalidate", DISK, "--node", &primary])?;
    load.progress(100)?;
    bench.tell(format_args!("and the copy of {primary}, the primary"));
    passed(settle(bench, &cluster, load, &["a", "b", "c"])?)
}

/// Still.
pub(super) fn suspend(bench: &Bench) -> Outcome {
    let cluster = three(bench)?;
    let load = load(bench, roaming(&cluster, &["a", "b"], 8)?);
    load.progress(100)?;
    cluster.ok(&["resource", "suspend", DISK])?;
    let before = load.acknowledged();
    let status = cluster.status(DISK)?;
    ensure!(status["suspended"].is_string(), "the status does not say that requests wait");
    let_run(Duration::from_secs(1));
    let after = load.acknowledged();
    // Each client may have one that was answered just before.
    ensure!(after <= before + 8, "{} writes were acknowledged while suspended", after - before);
    let first = cluster.primary_told(DISK)?;
    cluster.kill(&first)?;
    let second = wait_for("another primary", SYNC_LIMIT, || {
        let told = cluster.primary_told(DISK)?;
        ensure!(told != first, "it is still {first}");
        Ok(told)
    })?;
    let before = load.acknowledged();
    let_run(Duration::from_secs(1));
    let after = load.acknowledged();
    ensure!(after == before, "{} writes were acknowledged by {second}", after - before);
    cluster.start(&first)?;
    cluster.ok(&["resource", "resume", DISK])?;
    load.progress(100)?;
    cluster.ok(&["resource", "promote", DISK, "--node", &first])?;
    load.progress(100)?;
    passed(settle(bench, &cluster, load, &["a", "b", "c"])?)
}

/// Gone.
pub(super) fn delete(bench: &Bench) -> Outcome {
    let cluster = three(bench)?;
    let load = load(bench, roaming(&cluster, &["a"], 2)?);
    load.progress(50)?;
    let refused = cluster.cli(&["resource", "delete", DISK])?;
    ensure!(refused.code == Some(1), "{}", refused.failure("should be refused while in use"));
    load.progress(50)?;
    drop(load.stop()?);
    wait_for("the resource to be deleted", Duration::from_secs(20), || {
        cluster.ok(&["resource", "delete", DISK]).map(drop)
    })?;
    for node in ["a", "b", "c"] {
        ensure!(!cluster.image(node, DISK, 0).exists(), "the file of {node}'s copy is still there");
    }
    let gone = cluster.cli(&["status", DISK])?;
    ensure!(gone.code == Some(3), "{}", gone.failure("should have ended with 3"));
    if Volume::open(cluster.node("a")?.nbd, DISK, ANSWER_LIMIT).is_ok() {
        return Err(Failure("the deleted volume can be opened".to_owned()));
    }
    cluster.create(DISK, &["--size", super::kill::SIZE_TEXT, "--replicas", "3"])?;
    let mut bytes = vec![1; 1 << 20];
    Volume::open(cluster.node("b")?.nbd, DISK, ANSWER_LIMIT)?.read(0, &mut bytes)?;
    ensure!(bytes.iter().all(|&byte| byte == 0), "the new volume holds what the old one held");
    cluster.compare(DISK, 0, SIZE, &["a", "b", "c"])?;
    passed("deleted, its name used again")
}
