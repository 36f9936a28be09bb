//! What an operator may choose: block devices, metadata elsewhere, odd sizes, protocol B, plain links.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use super::kill::{DISK, SIZE, SIZE_TEXT, flush, load, roaming, settle, staying, three};
use crate::bench::{Bench, Outcome, Verdict, ensure, need_tools, passed, text, tool, wait_for};
use crate::cluster::{Cluster, SYNC_LIMIT, compare_files};
use crate::load::Load;
use crate::supervise::{MEMORY, memory_of};
use client::{ANSWER_LIMIT, Volume};
use tools::{Device, has_loops};

/// Room for metadata beside the data of a volume of `SIZE`.
const METADATA_BYTES: u64 = 64 << 20;

/// A member with one store, as a part of a resource file.
pub(super) fn member(node: &str, kind: &str, path: &str, metadata: Option<&Path>) -> String {
    let metadata = metadata
        .map(|path| format!(", metadata_path = \"{}\"", path.display()))
        .unwrap_or_default();
    format!(
        "[[members]]\nnode = \"{node}\"\n\
         stores = [{{ volume = 0, kind = \"{kind}\", path = \"{path}\"{metadata} }}]\n"
    )
}

/// A description of a resource of one volume.
pub(super) fn resource_file(
    bench: &Bench,
    name: &str,
    members: &[String],
    size: &str,
) -> Outcome<PathBuf> {
    let path = bench.directory.join(format!("{name}.toml"));
    let volumes = format!("[[volumes]]\nsize = \"{size}\"\n");
    fs::write(&path, format!("{}{volumes}", members.concat()))?;
    Ok(path)
}

/// A node dies under the load, and is back when the resource is in `state` again; requests are answered before,
/// meanwhile and after.
fn die_and_return(
    bench: &Bench,
    cluster: &Cluster,
    load: &Load,
    victim: &str,
    state: &str,
) -> Outcome<()> {
    load.progress(300)?;
    cluster.kill(victim)?;
    bench.tell(format_args!("{victim} is killed"));
    load.progress(300)?;
    cluster.start(victim)?;
    cluster.wait(DISK, state, SYNC_LIMIT)?;
    load.progress(100)
}

/// Compares all copies. What differs would be repaired, so that only what is said then tells that nothing did.
fn verify(cluster: &Cluster) -> Outcome<()> {
    let said = cluster.ok(&["resource", "verify", DISK, "--wait"])?;
    ensure!(said.contains("all replicas were compared, and are the same"), "{said}");
    Ok(())
}

/// A device, a device with its metadata in a file, a file with its metadata on a device.
pub(super) fn devices(bench: &Bench) -> Outcome {
    need_tools!("losetup");
    if !has_loops() {
        return Ok(Verdict::NotRun("needs root and loop devices".to_owned()));
    }
    let one = Device::new(&bench.directory.join("one"), SIZE + METADATA_BYTES)?;
    let two = Device::new(&bench.directory.join("two"), SIZE)?;
    let beside = Device::new(&bench.directory.join("beside"), 4 * METADATA_BYTES)?;
    let cluster = Cluster::up(bench, 3)?;
    let (file, elsewhere) = (bench.directory.join("three"), bench.directory.join("two.metadata"));
    // A new volume reads zeroes, whatever its device held.
    fs::write(&one.file, vec![0xee; 1 << 20])?;
    File::options().write(true).open(&one.file)?.set_len(SIZE + METADATA_BYTES)?;
    let members = [
        member("a", "device", &one.device, None),
        member("b", "device", &two.device, Some(&elsewhere)),
        member("c", "file", text(&file), Some(Path::new(&beside.device))),
    ];
    let path = resource_file(bench, DISK, &members, SIZE_TEXT)?;
    let refused = cluster.cli(&["resource", "create", DISK, "--from", text(&path)])?;
    ensure!(refused.code == Some(1), "{}", refused.failure("its device holds something"));
    for word in ["ls-0020", &one.device, "--force"] {
        ensure!(refused.words().contains(word), "{}", refused.failure(&format!("lacks {word:?}")));
    }
    ensure!(fs::read(&one.file)?.starts_with(&[0xee; 4096]), "what the device held was touched");
    cluster.create(DISK, &["--from", text(&path), "--force"])?;
    let mut bytes = vec![1; 1 << 20];
    Volume::open(cluster.node("a")?.nbd, DISK, ANSWER_LIMIT)?.read(0, &mut bytes)?;
    ensure!(bytes.iter().all(|&byte| byte == 0), "a new volume shows what its device held");
    let mut clients = staying(&cluster, &["a"], 3)?;
    clients.extend(roaming(&cluster, &["b", "c", "a"], 3)?);
    let load = load(bench, clients);
    for victim in ["b", "c"] {
        die_and_return(bench, &cluster, &load, victim, "in-sync")?;
    }
    verify(&cluster)?;
    let mut record = load.stop()?;
    let all: Vec<_> = cluster.nodes.iter().map(|node| node.nbd).collect();
    record.judge(&all)?;
    flush(&cluster)?;
    compare_files(&[one.file.clone(), two.file.clone(), file], SIZE)?;
    let grown = cluster.cli(&["resource", "resize", DISK, "--size", "1GiB"])?;
    ensure!(grown.code == Some(1), "{}", grown.failure("there is no room on these devices"));
    cluster.ok(&["resource", "delete", DISK])?;
    ensure!(!elsewhere.exists(), "the file of b's metadata is still there");
    passed(record.summary())
}

/// Metadata of each node in a file that is memory and written in place.
pub(super) fn in_place(bench: &Bench) -> Outcome {
    if !Path::new(MEMORY).is_dir() {
        return Ok(Verdict::NotRun(format!("there is no {MEMORY}")));
    }
    let memory = memory_of(&bench.directory);
    fs::create_dir(&memory)?;
    let cluster = Cluster::up(bench, 3)?;
    let metadata = |node: &str| memory.join(node);
    let data = |node: &str| bench.directory.join(format!("{node}.data"));
    let names = ["a", "b", "c"];
    let members = names.map(|node| member(node, "file", text(&data(node)), Some(&metadata(node))));
    let path = resource_file(bench, DISK, &members, SIZE_TEXT)?;
    cluster.create(DISK, &["--from", text(&path)])?;
    for node in names {
        let log = cluster.log(node);
        ensure!(
            log.contains("(memory of this machine"),
            "node {node} does not write it in place:\n{log}"
        );
    }
    let load = load(bench, roaming(&cluster, &["b", "c", "a"], 6)?);
    for victim in ["b", "c"] {
        die_and_return(bench, &cluster, &load, victim, "in-sync")?;
    }
    // All of them at once: what was hot is in doubt, and is what the logs in memory say.
    bench.tell("all are killed");
    for node in names {
        cluster.kill(node)?;
    }
    for node in names {
        cluster.start(node)?;
    }
    cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
    load.progress(100)?;
    let mut record = load.stop()?;
    bench.tell("all are back");
    verify(&cluster)?;
    let all: Vec<_> = cluster.nodes.iter().map(|node| node.nbd).collect();
    record.judge(&all)?;
    flush(&cluster)?;
    compare_files(&names.map(data), SIZE)?;
    cluster.ok(&["resource", "delete", DISK])?;
    ensure!(!metadata("b").exists(), "the file of b's metadata is still there");
    passed(record.summary())
}

/// Devices and a file that are full of old bytes, and really have them on their disk.
pub(super) fn thick(bench: &Bench) -> Outcome {
    const VOLUME: u64 = 64 << 20;
    need_tools!("losetup");
    if !has_loops() {
        return Ok(Verdict::NotRun("needs root and loop devices".to_owned()));
    }
    let cluster = Cluster::up(bench, 3)?;
    let old = |byte: u8| vec![byte; 1 << 20];
    let fill = |path: &Path, byte: u8, bytes: u64| -> Outcome<()> {
        let mut file = File::create(path)?;
        for _ in 0..bytes >> 20 {
            file.write_all(&old(byte))?;
        }
        Ok(file.sync_all()?)
    };
    let (one, two) = (bench.directory.join("one"), bench.directory.join("two"));
    fill(&one, 0xee, VOLUME + METADATA_BYTES)?;
    fill(&two, 0x55, VOLUME + METADATA_BYTES)?;
    let (one, two) = (Device::over(&one)?, Device::over(&two)?);
    let file = bench.directory.join("three");
    fill(&file, 0xaa, VOLUME)?;
    let members = [
        member("a", "device", &one.device, None),
        member("b", "device", &two.device, None),
        member("c", "file", text(&file), None),
    ];
    let path = resource_file(bench, DISK, &members, "64MiB")?;
    let path = text(&path);
    let refused = cluster.cli(&["resource", "create", DISK, "--from", path])?;
    ensure!(refused.code == Some(1), "{}", refused.failure("c's file has content"));
    cluster.create(DISK, &["--from", path, "--force"])?;
    let length = usize::try_from(VOLUME).map_err(|error| error.to_string())?;
    for node in ["a", "b", "c"] {
        let mut volume = Volume::open(cluster.node(node)?.nbd, DISK, ANSWER_LIMIT)?;
        let mut back = vec![1; 32 << 20];
        for place in [0, 32 << 20] {
            volume.read(place, &mut back)?;
            ensure!(back.iter().all(|&byte| byte == 0), "{node} shows old bytes");
        }
    }
    for path in [&one.file, &two.file, &file] {
        let mut bytes = vec![1; length];
        File::open(path)?.read_exact(&mut bytes)?;
        ensure!(bytes.iter().all(|&byte| byte == 0), "{} holds old bytes", path.display());
    }
    verify(&cluster)?;
    passed("two devices and a file, all full of other bytes before: all copies are zero")
}

/// Devices that are not free.
pub(super) fn devices_refused(bench: &Bench) -> Outcome {
    need_tools!("losetup", "mkfs.ext4", "mount", "umount");
    if !has_loops() {
        return Ok(Verdict::NotRun("needs root and loop devices".to_owned()));
    }
    let device = Device::new(&bench.directory.join("device"), 128 << 20)?;
    let cluster = Cluster::up(bench, 3)?;
    let attempt = |size: &str, path: &str, more: &[&str]| {
        let members = [member("a", "device", path, None)];
        let file = resource_file(bench, "next", &members, size)?;
        cluster.cli(&[&["resource", "create", "next", "--from", text(&file)], more].concat())
    };
    let refused = |said: crate::bench::Said, words: &[&str]| -> Outcome<()> {
        ensure!(said.code == Some(1), "{}", said.failure("should have been refused"));
        for word in words.iter().chain(&["nothing was changed"]) {
            ensure!(said.words().contains(word), "{}", said.failure(&format!("lacks {word:?}")));
        }
        Ok(())
    };
    refused(attempt("512MiB", &device.device, &[])?, &[&device.device, "needs"])?;
    refused(attempt("64MiB", "/dev/nosuchdevice", &[])?, &["/dev/nosuchdevice"])?;
    tool("mkfs.ext4", &["-q", "-F", &device.device])?;
    let before = fs::read(&device.file)?;
    refused(attempt("64MiB", &device.device, &[])?, &[&device.device, "ext", "--force"])?;
    ensure!(fs::read(&device.file)? == before, "the file system was touched");
    let mount = bench.directory.join("mount");
    fs::create_dir_all(&mount)?;
    tool("mount", &[&device.device, text(&mount)])?;
    let while_mounted = attempt("64MiB", &device.device, &["--force"])?;
    tool("umount", &[text(&mount)])?;
    refused(while_mounted, &[&device.device, "in use"])?;
    let made = attempt("64MiB", &device.device, &["--force"])?;
    ensure!(made.code == Some(0), "{}", made.failure("--force should take it"));
    // It is a replica now: another resource does not get it.
    let members = [member("b", "device", &device.device, None)];
    let file = resource_file(bench, "other", &members, "64MiB")?;
    let taken = cluster.cli(&["resource", "create", "other", "--from", text(&file)])?;
    refused(taken, &[&device.device])?;
    large_sectors(bench, &cluster, &refused)?;
    passed(
        "too small, missing, foreign, mounted, in use by another node, with sectors larger than the volume's blocks",
    )
}

/// A device with sectors of 4096 bytes: under a volume of smaller blocks it is refused; of one that it fits, clients of a node without a
/// copy are told what those of the others are.
fn large_sectors(
    bench: &Bench,
    cluster: &Cluster,
    refused: &impl Fn(crate::bench::Said, &[&str]) -> Outcome<()>,
) -> Outcome<()> {
    let file = bench.directory.join("large");
    File::create(&file)?.set_len(128 << 20)?;
    let large = Device::with_sectors(&file, "4096")?;
    let attempt = |block: u32| -> Outcome<crate::bench::Said> {
        let path = bench.directory.join("large.toml");
        let volume = format!("[[volumes]]\nsize = \"64MiB\"\nblock_bytes = {block}\n");
        fs::write(&path, format!("{}{volume}", member("a", "device", &large.device, None)))?;
        cluster.cli(&["resource", "create", "large", "--from", text(&path)])
    };
    refused(attempt(512)?, &[&large.device, "blocks are of 4096 bytes, the volume's of 512"])?;
    let made = attempt(4096)?;
    ensure!(made.code == Some(0), "{}", made.failure("it fits"));
    let mut bytes = vec![0; 4096];
    for (node, byte) in [("a", 1), ("b", 2)] {
        let mut volume = Volume::open(cluster.node(node)?.nbd, "large", ANSWER_LIMIT)?;
        let told = (volume.ready.block_bytes_min, volume.ready.block_bytes_preferred);
        ensure!(told == (4096, 4096), "clients of {node} are told {told:?}");
        volume.write(4096, &[byte; 4096])?;
        volume.read(4096, &mut bytes)?;
        ensure!(bytes == [byte; 4096], "{node} reads something else");
    }
    Ok(())
}

/// Blocks of 512 bytes, two volumes, and sizes that end within an extent and within a page of the bitmap.
pub(super) fn odd(bench: &Bench) -> Outcome {
    let cluster = Cluster::up(bench, 3)?;
    let size: u64 = (70 << 20) + 7 * 512;
    let path = bench.directory.join("odd.toml");
    let members: String =
        ["a", "b", "c"].map(|n| format!("[[members]]\nnode = \"{n}\"\n")).concat();
    let volume = |index: u16, bytes: u64| {
        format!("[[volumes]]\nindex = {index}\nsize_bytes = {bytes}\nblock_bytes = 512\n")
    };
    fs::write(&path, format!("{members}{}{}", volume(0, size), volume(1, size - 512)))?;
    cluster.create("odd", &["--from", text(&path)])?;
    let open = |node: &str, export: &str| -> Outcome<Volume> {
        Ok(Volume::open(cluster.node(node)?.nbd, export, ANSWER_LIMIT)?)
    };
    let last = |export: &str| if export == "odd" { size - 512 } else { size - 1024 };
    for (byte, victim) in [(1, "b"), (2, "c")] {
        cluster.kill(victim)?;
        for export in ["odd", "odd/1"] {
            let mut volume = open("a", export)?;
            ensure!(volume.ready.size_bytes == last(export) + 512, "{export} has another size");
            // The last block, one in the last page, one over the border of extents.
            for place in [last(export), last(export) - 512 * 9, (4 << 20) - 512] {
                volume.write(place, &[byte; 512])?;
            }
            ensure!(
                volume.write(last(export) + 512, &[9; 512]).is_err(),
                "there is a block beyond"
            );
        }
        cluster.start(victim)?;
        cluster.wait("odd", "in-sync", SYNC_LIMIT)?;
        for export in ["odd", "odd/1"] {
            let mut back = [0; 512];
            let mut volume = open(victim, export)?;
            volume.read(last(export), &mut back)?;
            ensure!(back == [byte; 512], "the last block of {export} was not copied");
            volume.flush()?;
        }
    }
    cluster.ok(&["resource", "resize", "odd", "--volume", "1", "--size", "71MiB"])?;
    cluster.compare("odd", 0, size, &["a", "b", "c"])?;
    cluster.compare("odd", 1, size - 512, &["a", "b", "c"])?;
    passed("two volumes of 512-byte blocks that end anywhere")
}

/// Acknowledged once every in-sync memory and one disk has a write; and options that change meanwhile.
pub(super) fn protocol_b(bench: &Bench) -> Outcome {
    let cluster = Cluster::up(bench, 3)?;
    cluster.create(DISK, &["--size", SIZE_TEXT, "--replicas", "3", "--protocol", "b"])?;
    let mut clients = staying(&cluster, &["b", "c"], 3)?;
    clients.extend(roaming(&cluster, &["a", "b"], 2)?);
    let load = load(bench, clients);
    load.progress(300)?;
    cluster.ok(&["resource", "promote", DISK, "--node", "a"])?;
    cluster.kill("a")?;
    bench.tell("a, the primary, is killed");
    load.progress(300)?;
    cluster.start("a")?;
    cluster.wait(DISK, "in-sync", SYNC_LIMIT)?;
    let change = |more: &[&str]| {
        cluster.ok(&[&["resource", "set-options", DISK], more].concat())?;
        load.progress(100)
    };
    change(&["--protocol", "c", "--read-policy", "round-robin"])?;
    change(&["--read-policy", "striped", "--durability", "write-through"])?;
    change(&["--read-policy", "least-pending"])?;
    change(&["--read-policy", "latency-aware", "--in-sync-min", "2"])?;
    change(&["--protocol", "b", "--durability", "flush"])?;
    let shown = cluster.ok(&["resource", "show", DISK, "--output", "json"])?;
    for word in ["latency-aware", "\"in_sync_min\":2"] {
        ensure!(shown.contains(word), "the options are not as they were set: {shown}");
    }
    passed(settle(bench, &cluster, load, &["a", "b", "c"])?)
}

/// Links in the clear, as a closed network may have them.
pub(super) fn plain_links(bench: &Bench) -> Outcome {
    let cluster = three(bench)?;
    for node in ["a", "b", "c"] {
        cluster.stop(node)?;
        let path = cluster.settings(node);
        let text = fs::read_to_string(&path)?;
        fs::write(&path, format!("link_encryption = false\n{text}"))?;
    }
    cluster.start_all()?;
    cluster.wait(DISK, "healthy", SYNC_LIMIT)?;
    let status = cluster.status(DISK)?;
    ensure!(status["link_encryption"] == false, "the status does not tell of it: {status}");
    let load = load(bench, staying(&cluster, &["a", "b"], 4)?);
    load.progress(300)?;
    cluster.kill("c")?;
    load.progress(300)?;
    cluster.start("c")?;
    let summary = settle(bench, &cluster, load, &["a", "b", "c"])?;
    // One end that asks for encryption and one that does not never talk.
    cluster.stop("c")?;
    let path = cluster.settings("c");
    let text = fs::read_to_string(&path)?.replace("link_encryption = false\n", "");
    fs::write(&path, text)?;
    cluster.start("c")?;
    let mut volume = Volume::open(cluster.node("a")?.nbd, DISK, ANSWER_LIMIT)?;
    volume.write(0, &[7; 4096])?;
    let state = cluster.replica(DISK, "c")?;
    ensure!(state["in_sync"] == false, "c is in sync over a link that should not be: {state}");
    passed(summary)
}

/// Nodes with one, two and four threads serve a volume of four shards.
pub(super) fn threads(bench: &Bench) -> Outcome {
    let cluster = Cluster::up(bench, 3)?;
    for (node, threads) in [("a", 1), ("b", 2), ("c", 4)] {
        cluster.stop(node)?;
        let path = cluster.settings(node);
        let text = fs::read_to_string(&path)?;
        let rest = text.lines().filter(|line| !line.starts_with("threads"));
        let rest: String = rest.flat_map(|line| [line, "\n"]).collect();
        fs::write(&path, format!("threads = {threads}\n{rest}"))?;
    }
    cluster.start_all()?;
    let size = ["--size", SIZE_TEXT, "--replicas", "3", "--shards", "4"];
    cluster.create(DISK, &size)?;
    let mut clients = staying(&cluster, &["a"], 3)?;
    clients.extend(roaming(&cluster, &["b", "c", "a"], 3)?);
    clients.extend(roaming(&cluster, &["c", "a", "b"], 3)?);
    let load = load(bench, clients);
    for victim in ["b", "c"] {
        cluster.ok(&["resource", "promote", DISK, "--node", victim])?;
        die_and_return(bench, &cluster, &load, victim, "in-sync")?;
    }
    verify(&cluster)?;
    passed(settle(bench, &cluster, load, &["a", "b", "c"])?)
}

/// Two copies, a witness on a node of its own, and a fourth node that only uses the volume.
pub(super) fn witness(bench: &Bench) -> Outcome {
    let cluster = Cluster::up(bench, 4)?;
    let more = ["--size", SIZE_TEXT, "--replicas", "2", "--witnesses", "1", "--nodes", "a,b,d"];
    cluster.create(DISK, &more)?;
    let load = load(bench, staying(&cluster, &["c"], 6)?);
    for victim in ["a", "d", "b"] {
        die_and_return(bench, &cluster, &load, victim, "healthy")?;
    }
    wait_for("the status to name the witness", SYNC_LIMIT, || {
        let state = cluster.replica(DISK, "d")?;
        ensure!(state["state"] == "witness", "d is {state}");
        Ok(())
    })?;
    passed(settle(bench, &cluster, load, &["a", "b"])?)
}
