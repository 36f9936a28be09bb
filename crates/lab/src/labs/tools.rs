//! Clients that others wrote.

use std::fs;
use std::path::Path;

use base::Prng;

use super::kill::three;
use crate::bench::{Bench, Failure, Outcome, Verdict, ensure, need_tools, passed, text, tool};
use crate::cluster::{Cluster, SYNC_LIMIT};
use client::{ANSWER_LIMIT, Volume, list};
use tools::{Disk, no_disk};

/// Writes a file of bytes that do not repeat.
fn write_file(path: &Path, length: usize, seed: u64) -> Outcome<()> {
    let mut random = Prng::new(seed);
    let words = std::iter::repeat_with(|| random.next_u64().to_le_bytes());
    let bytes: Vec<u8> = words.flatten().take(length).collect();
    fs::write(path, bytes)?;
    Ok(())
}

fn same(one: &Path, two: &Path) -> Outcome<()> {
    ensure!(fs::read(one)? == fs::read(two)?, "{} and {} differ", one.display(), two.display());
    Ok(())
}

/// libnbd's.
pub(super) fn libnbd(bench: &Bench) -> Outcome {
    need_tools!("nbdinfo", "nbdcopy");
    let cluster = Cluster::up(bench, 3)?;
    cluster.create("two", &["--size", "64MiB", "--replicas", "3", "--volumes", "2"])?;
    let (first, second) = (cluster.url("a", "two")?, cluster.url("b", "two/1")?);
    let said = tool("nbdinfo", &["--json", &first])?;
    let told: serde_json::Value =
        serde_json::from_str(&said).map_err(|error| Failure(format!("{error}: {said}")))?;
    let size = &told["exports"][0]["export-size"];
    ensure!(size.as_u64() == Some(64 << 20), "nbdinfo says the size is {size}");
    tool("nbdinfo", &["--map", &first])?;
    let exports = tool("nbdinfo", &["--list", &cluster.url("c", "")?])?;
    for export in ["\"two\"", "\"two/1\""] {
        ensure!(exports.contains(export), "nbdinfo --list does not name {export}: {exports}");
    }
    let listed = list(cluster.node("c")?.nbd)?;
    let named =
        |wanted: &str| listed.iter().any(|(name, about)| name == wanted && !about.is_empty());
    ensure!(named("two") && named("two/1"), "the exports with descriptions are {listed:?}");
    let (one, two) = (bench.directory.join("one"), bench.directory.join("two"));
    write_file(&one, 64 << 20, bench.seed)?;
    write_file(&two, 64 << 20, bench.seed + 1)?;
    tool("nbdcopy", &["--flush", text(&one), &first])?;
    tool("nbdcopy", &["--flush", text(&two), &second])?;
    let back = bench.directory.join("back");
    for (export, written) in [("two", &one), ("two/1", &two)] {
        for node in ["a", "b", "c"] {
            tool("nbdcopy", &[&cluster.url(node, export)?, text(&back)])?;
            same(written, &back)?;
        }
    }
    for volume in [0, 1] {
        cluster.compare("two", volume, 64 << 20, &["a", "b", "c"])?;
    }
    passed("64 MiB in through two nodes, out through three, for both volumes")
}

/// QEMU's.
pub(super) fn qemu(bench: &Bench) -> Outcome {
    need_tools!("qemu-img", "qemu-io");
    let cluster = Cluster::up(bench, 3)?;
    cluster.create("disk", &["--size", "64MiB", "--replicas", "3"])?;
    let source = bench.directory.join("source");
    write_file(&source, 64 << 20, bench.seed)?;
    let urls = [cluster.url("a", "disk")?, cluster.url("b", "disk")?, cluster.url("c", "disk")?];
    let raw = ["convert", "-n", "-f", "raw", "-O", "raw", text(&source)];
    tool("qemu-img", &[raw.as_slice(), &[&urls[0]]].concat())?;
    for url in &urls {
        tool("qemu-img", &["compare", "-f", "raw", "-F", "raw", text(&source), url])?;
    }
    let back = bench.directory.join("back.qcow2");
    tool("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &urls[1], text(&back)])?;
    tool("qemu-img", &["compare", "-f", "qcow2", "-F", "raw", text(&back), &urls[2]])?;
    let write = [
        "-f",
        "raw",
        "-c",
        "write -P 0xa5 1M 256k",
        "-c",
        "write -z 2M 1M",
        "-c",
        "discard 4M 1M",
        "-c",
        "write -f -P 0x5a 8M 4k",
        "-c",
        "flush",
    ];
    tool("qemu-io", &[write.as_slice(), &[&urls[2]]].concat())?;
    let read = [
        "-f",
        "raw",
        "-c",
        "read -P 0xa5 1M 256k",
        "-c",
        "read -P 0 2M 1M",
        "-c",
        "read -P 0 4M 1M",
        "-c",
        "read -P 0x5a 8M 4k",
    ];
    for url in &urls {
        let said = tool("qemu-io", &[read.as_slice(), &[url]].concat())?;
        ensure!(!said.contains("verification failed"), "qemu-io through {url}: {said}");
    }
    cluster.compare("disk", 0, 64 << 20, &["a", "b", "c"])?;
    passed("64 MiB converted in and out, patterns, zeroes and discards read back through each node")
}

/// fio's.
pub(super) fn fio(bench: &Bench) -> Outcome {
    need_tools!("fio");
    let engines = tool("fio", &["--enghelp"])?;
    if !engines.split_whitespace().any(|word| word == "nbd") {
        return Ok(Verdict::NotRun("this fio has no nbd engine".to_owned()));
    }
    let cluster = three(bench)?;
    let amount = if bench.quick { 16 } else { 128 };
    for (size, node) in [("4k", "a"), ("64k", "b"), ("1M", "c")] {
        let uri = format!("--uri={}", cluster.url(node, "disk")?);
        let block = format!("--bs={size}");
        let total = format!("--size={amount}M");
        tool(
            "fio",
            &[
                "--name=lab",
                "--ioengine=nbd",
                "--rw=randwrite",
                "--verify=crc32c",
                "--do_verify=1",
                "--verify_fatal=1",
                // Else it leaves a file where the lab was started.
                "--verify_state_save=0",
                "--iodepth=16",
                "--randrepeat=0",
                &uri,
                &block,
                &total,
            ],
        )?;
    }
    cluster.wait("disk", "in-sync", SYNC_LIMIT)?;
    cluster.compare("disk", 0, super::kill::SIZE, &["a", "b", "c"])?;
    passed(format!("{amount} MiB each of 4K, 64K and 1M through another node, verified"))
}

/// A file system on the volume, as far as this host can mount one.
pub(super) fn filesystem(bench: &Bench) -> Outcome {
    mounted(bench, "4096")
}

/// With the smallest blocks there are.
pub(super) fn filesystem_512(bench: &Bench) -> Outcome {
    mounted(bench, "512")
}

fn mounted(bench: &Bench, block: &str) -> Outcome {
    need_tools!("mkfs.ext4", "e2fsck");
    if let Some(why) = no_disk() {
        return Ok(Verdict::NotRun(why));
    }
    let cluster = Cluster::up(bench, 3)?;
    let size = ["--size", super::kill::SIZE_TEXT, "--replicas", "3", "--block-size", block];
    cluster.create("disk", &size)?;
    let place = bench.directory.join("fuse");
    let mount = bench.directory.join("mount");
    fs::create_dir_all(&mount)?;
    let mut digest = None;
    for (round, node) in ["b", "c"].into_iter().enumerate() {
        let url = cluster.url(node, "disk")?;
        let disk = Disk::attach(&place.join(round.to_string()), &url, block)?;
        let device = disk.device.clone();
        if round == 0 {
            tool("mkfs.ext4", &["-q", "-F", &device])?;
        }
        tool("e2fsck", &["-f", "-n", &device])?;
        tool("mount", &[&device, text(&mount)])?;
        let data = mount.join("data");
        if round == 0 {
            write_file(&data, 48 << 20, bench.seed)?;
            tool("sync", &["-f", text(&data)])?;
            // Without clients of its own it would make way for the node that has the file system.
            let stays = Volume::open(cluster.node("a")?.nbd, "disk", ANSWER_LIMIT)?;
            cluster.ok(&["resource", "promote", "disk", "--node", "a"])?;
            let primary = cluster.primary("disk")?;
            ensure!(primary == "a", "{primary} is primary, though a was promoted and has a client");
            cluster.kill("a")?;
            drop(stays);
            bench.tell("a, the primary, is killed while the file system is mounted");
            tool("cp", &[text(&data), text(&mount.join("copy"))])?;
            tool("sync", &["-f", text(&mount)])?;
            cluster.start("a")?;
        }
        let sum = tool("sha256sum", &[text(&data)])?;
        let sum = sum.split_whitespace().next().unwrap_or_default().to_owned();
        let copy = tool("sha256sum", &[text(&mount.join("copy"))])?;
        ensure!(copy.starts_with(&sum), "the copy differs: {copy}");
        let before = digest.get_or_insert_with(|| sum.clone());
        ensure!(*before == sum, "through {node} the file has another content");
        tool("umount", &[text(&mount)])?;
        tool("e2fsck", &["-f", "-n", &device])?;
        disk.detach()?;
        cluster.wait("disk", "in-sync", SYNC_LIMIT)?;
    }
    cluster.compare("disk", 0, super::kill::SIZE, &["a", "b", "c"])?;
    passed("ext4 made, filled, checked, and mounted again through another node")
}
