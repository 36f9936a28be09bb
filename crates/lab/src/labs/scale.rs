//! Few and many: replicas, nodes, resources, connections; and how fast a copy is made.

use std::fs;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use super::kill::{DISK, SIZE, SIZE_TEXT, load, roaming, settle, staying, three};
use crate::bench::{Bench, Outcome, ensure, passed, wait_for};
use crate::cluster::{Cluster, SYNC_LIMIT};
use crate::load::{BLOCK_BYTES, fill};
use client::{ANSWER_LIMIT, Volume};

/// One.
pub(super) fn one(bench: &Bench) -> Outcome {
    let cluster = Cluster::up(bench, 2)?;
    cluster.create(DISK, &["--size", SIZE_TEXT, "--replicas", "1"])?;
    let load = load(bench, roaming(&cluster, &["a", "b"], 6)?);
    load.progress(200)?;
    cluster.kill("a")?;
    cluster.start("a")?;
    load.progress(200)?;
    cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
    let mut record = load.stop()?;
    let nodes: Vec<_> = cluster.nodes.iter().map(|node| node.nbd).collect();
    record.judge(&nodes)?;
    passed(record.summary())
}

/// Three copies, clients at a fourth node.
pub(super) fn diskless(bench: &Bench) -> Outcome {
    let cluster = Cluster::up(bench, 4)?;
    cluster.create(DISK, &["--size", SIZE_TEXT, "--replicas", "3"])?;
    let load = load(bench, staying(&cluster, &["d"], 8)?);
    load.progress(200)?;
    for victim in ["a", "b", "c"] {
        cluster.kill(victim)?;
        load.progress(100)?;
        cluster.start(victim)?;
        cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
        bench.tell(format_args!("{victim} was killed and is back"));
    }
    load.progress(100)?;
    passed(settle(bench, &cluster, load, &["a", "b", "c"])?)
}

/// Eight copies.
pub(super) fn eight(bench: &Bench) -> Outcome {
    let cluster = Cluster::up(bench, 8)?;
    cluster.create(DISK, &["--size", SIZE_TEXT, "--replicas", "8"])?;
    let load = load(bench, staying(&cluster, &["a", "b", "e"], 2)?);
    load.progress(100)?;
    for victims in [["c", "d"], ["g", "h"]] {
        for victim in victims {
            cluster.kill(victim)?;
        }
        load.progress(50)?;
        for victim in victims {
            cluster.start(victim)?;
        }
        cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
    }
    passed(settle(bench, &cluster, load, &["a", "b", "c", "d", "e", "f", "g", "h"])?)
}

/// Many.
pub(super) fn resources(bench: &Bench) -> Outcome {
    const COUNT: u64 = 100;
    let cluster = Cluster::up(bench, 3)?;
    let name = |number: u64| format!("disk-{number}");
    let mut bytes = vec![0; BLOCK_BYTES];
    for number in 0..COUNT {
        cluster.ok(&["resource", "create", &name(number), "--size", "4MiB", "--replicas", "3"])?;
    }
    let write = |number: u64, version: u64, bytes: &mut Vec<u8>| -> Outcome<()> {
        let node = &cluster.nodes[usize::try_from(number % 2).unwrap_or(0)];
        let mut volume = Volume::open(node.nbd, &name(number), ANSWER_LIMIT)?;
        fill(bytes, number, version);
        Ok(volume.write(0, bytes)?)
    };
    for number in 0..COUNT {
        write(number, 1, &mut bytes)?;
    }
    bench.tell(format_args!("{COUNT} resources made and written"));
    cluster.kill("c")?;
    for number in 0..COUNT {
        write(number, 2, &mut bytes)?;
    }
    cluster.start("c")?;
    for number in 0..COUNT {
        cluster.wait(&name(number), "in-sync", SYNC_LIMIT)?;
    }
    for number in 0..COUNT {
        let mut back = vec![0; BLOCK_BYTES];
        let node = cluster.node("c")?.nbd;
        Volume::open(node, &name(number), ANSWER_LIMIT)?.read(0, &mut back)?;
        fill(&mut bytes, number, 2);
        ensure!(back == bytes, "{} lost its write", name(number));
        cluster.compare(&name(number), 0, 4 << 20, &["a", "b", "c"])?;
    }
    passed(format!("{COUNT} resources written, one node killed, all equal again"))
}

/// In and out.
pub(super) fn connects(bench: &Bench) -> Outcome {
    const COUNT: u32 = 1000;
    let cluster = three(bench)?;
    let count = |node: &str| -> Outcome<usize> {
        let pid = cluster.process(node)?.as_raw_nonzero();
        Ok(fs::read_dir(format!("/proc/{pid}/fd"))?.count())
    };
    let node = cluster.node("a")?.nbd;
    let mut bytes = vec![0; BLOCK_BYTES];
    Volume::open(node, DISK, ANSWER_LIMIT)?.read(0, &mut bytes)?;
    let before = count("a")?;
    for number in 0..COUNT {
        let mut volume = Volume::open(node, DISK, ANSWER_LIMIT)?;
        if number % 3 == 0 {
            volume.read(0, &mut bytes)?;
        }
    }
    wait_for("connections to be closed", Duration::from_secs(20), || {
        let now = count("a")?;
        // Sessions with peers and the admin socket may come and go.
        ensure!(now <= before + 8, "{now} descriptors are open, {before} were before");
        Ok(())
    })?;
    passed(format!("{COUNT} connects and disconnects"))
}

/// Numbers only.
pub(super) fn resync(bench: &Bench) -> Outcome {
    let cluster = Cluster::up(bench, 4)?;
    cluster.create(DISK, &["--size", SIZE_TEXT, "--replicas", "2"])?;
    let mut volume = Volume::open(cluster.node("a")?.nbd, DISK, ANSWER_LIMIT)?;
    let mut bytes = vec![0; 1 << 20];
    for place in 0..SIZE >> 20 {
        for (block, content) in (place << 8..).zip(bytes.chunks_exact_mut(BLOCK_BYTES)) {
            fill(content, block, 1);
        }
        volume.write(place << 20, &bytes)?;
    }
    volume.flush()?;
    drop(volume);
    let begun = Instant::now();
    cluster.ok(&["resource", "add-replica", DISK, "--node", "c"])?;
    cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
    let synced = begun.elapsed();
    cluster.compare(DISK, 0, SIZE, &["a", "b", "c"])?;
    let begun = Instant::now();
    let source = fs::File::open(cluster.image("a", DISK, 0))?;
    let target = fs::File::create(bench.directory.join("plain"))?;
    for place in 0..SIZE >> 20 {
        source.read_exact_at(&mut bytes, place << 20)?;
        target.write_all_at(&bytes, place << 20)?;
    }
    target.sync_all()?;
    let copied = begun.elapsed();
    let rate = |time: Duration| u128::from(SIZE >> 20) * 1000 / time.as_millis().max(1);
    passed(format!("resync {} MiB/s, plain copy {} MiB/s", rate(synced), rate(copied)))
}
