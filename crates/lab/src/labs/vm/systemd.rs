//! The units and rules that are shipped, in a machine that systemd starts: a node of its own, disks of volumes, and file systems on them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tools::guest::{Guest, MAKE_LIMIT, Machine, Series, is_made, kept};

use super::{By, attach, moved, need_guest, told};
use crate::bench::{Bench, Outcome, Verdict, ensure, program, run, text};
use crate::cluster::{Cluster, SYNC_LIMIT};

/// What the machine needs, in MiB.
const MEMORY_MIB: u32 = 1400;

const SIZE_MIB: u64 = 64;

/// What the system does once it is up; its end is told when all else has ended, so that a stop that hangs is seen.
const UNITS: [(&str, &str); 3] = [
    (
        "default.target",
        "[Unit]\nRequires=multi-user.target\nAfter=multi-user.target\nWants=lab.service lab-end.service\n",
    ),
    (
        "lab.service",
        "[Unit]\nAfter=multi-user.target remote-fs.target\n[Service]\nWorkingDirectory=/host\n\
         ExecStart=/bin/bash -c 'exec bash ./run > out 2>&1'\n",
    ),
    (
        "lab-end.service",
        "[Unit]\nRequiresMountsFor=/host\nBefore=network-pre.target remote-fs-pre.target lockstepd.service lab.service\n[Service]\nType=oneshot\n\
         RemainAfterExit=yes\nExecStart=/bin/true\nExecStop=/bin/bash -c 'cat /run/rc > /host/rc'\n",
    ),
];

/// A system for the machine; kept beside the kernels. The inner error: it cannot be had.
pub(super) fn system() -> Outcome<Result<PathBuf, String>> {
    let directory = kept()?.join("system");
    let made = directory.join("root.tar");
    let script = script("system.sh");
    if is_made(&made, &script) {
        return Ok(Ok(made));
    }
    let ran = run(Command::new(&script).arg(text(&directory)), MAKE_LIMIT)?;
    if ran.code != Some(0) {
        return Ok(Err(format!("no system can be made of Debian's packages: {}", ran.words())));
    }
    Ok(Ok(made))
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("vm").join(name)
}

/// The machine's disk: the system with this project's programs, units and rules where a person puts them.
fn disk(bench: &Bench, guest: &Guest, system: &Path) -> Outcome<PathBuf> {
    let more = bench.directory.join("more");
    let units = more.join("etc/systemd/system");
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    for folder in ["etc/systemd/system", "etc/udev/rules.d", "usr/bin", "var/lib/lockstep"] {
        fs::create_dir_all(more.join(folder))?;
    }
    for name in ["lockstep", "lockstepd"] {
        fs::copy(program(name)?, more.join("usr/bin").join(name))?;
    }
    for file in fs::read_dir(shipped.join("systemd"))? {
        let file = file?;
        fs::copy(file.path(), units.join(file.file_name()))?;
    }
    let rules = "65-lockstep.rules";
    fs::copy(shipped.join("udev").join(rules), more.join("etc/udev/rules.d").join(rules))?;
    for (name, words) in UNITS {
        fs::write(units.join(name), words)?;
    }
    fs::set_permissions(more.join("var/lib/lockstep"), fs::Permissions::from_mode(0o700))?;
    let disk = bench.directory.join("disk");
    let mut make = Command::new(script("disk.sh"));
    make.args([text(system), text(&guest.directory.join("initrd")), text(&more), text(&disk)]);
    run(&mut make, MAKE_LIMIT)?.ok()?;
    Ok(disk)
}

/// `via`: by what the volume of its own node is a disk there.
pub(in crate::labs) fn systemd(bench: &Bench, series: Series, via: By) -> Outcome {
    let guest = need_guest!(bench, series);
    let system = match system()? {
        Ok(system) => system,
        Err(why) => return Ok(Verdict::NotRun(why)),
    };
    let disk = disk(bench, &guest, &system)?;
    let own = bench.directory.join("machine");
    fs::create_dir(&own)?;
    moved::with_first_program(&guest, "init", include_str!("../../../vm/first.sh"), &own)?;
    std::os::unix::fs::symlink(guest.directory.join("vmlinuz"), own.join("vmlinuz"))?;
    let machine =
        Guest { kernel: guest.kernel.clone(), version: guest.version.clone(), directory: own };
    let cluster = Cluster::up(bench, 3)?;
    cluster.create("web", &["--size", &format!("{SIZE_MIB}MiB"), "--replicas", "3"])?;
    let places = attach::places(&cluster)?;
    let share = bench.directory.join("share");
    fs::create_dir(&share)?;
    fs::write(share.join("run"), include_str!("../../../vm/systemd.sh"))?;
    let drive = format!("file={},format=raw,if=virtio,cache=unsafe", text(&disk));
    let start = |phase: &str| -> Outcome<Machine> {
        let settings = format!("{places}PHASE={phase}\nVIA={}\n", via.word());
        fs::write(share.join("settings"), settings)?;
        machine.start_by(&share, MEMORY_MIB, &["-drive", &drive])
    };
    start("made")?.end()?;
    bench.tell("the machine was set up by hand, and started anew");
    let mut running = start("used")?;
    running.until("written")?;
    running.lose_power(&drive)?;
    bench.tell("its power was cut while it wrote");
    start("lost")?.end()?;
    cluster.wait("web", "in-sync", SYNC_LIMIT)?;
    cluster.compare("web", 0, SIZE_MIB << 20, &["a", "b", "c"])?;
    let mut check = Command::new("dumpe2fs");
    let header = run(check.arg("-h").arg(cluster.image("a", "web", 0)), MAKE_LIMIT)?.ok()?;
    let clean = header
        .lines()
        .any(|line| line.starts_with("Filesystem state:") && line.ends_with(" clean"));
    ensure!(clean && !header.contains("needs_recovery"), "it was not unmounted:\n{header}");
    told(&guest, &share)
}
