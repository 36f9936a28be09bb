//! A machine that moves from one host to another while it uses a volume: QEMU's live migration.
//!
//! Both QEMUs have the volume open, each by the node that would be on its own host. The one that is left flushes and lets go,
//! the other goes on; then the node of the host that was left is killed.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read as _, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::{need_guest, tell, told};
use crate::bench::{Bench, Failure, Outcome, ensure, run, text, wait_for};
use crate::cluster::{Cluster, SYNC_LIMIT};
use tools::Running;
use tools::guest::{Guest, Series};

const SIZE_MIB: u64 = 64;

/// How long a machine may take to boot, or to get on by a round.
const GUEST_LIMIT: Duration = Duration::from_secs(150);

/// How long QEMU may take to answer, or to make a socket.
const QEMU_LIMIT: Duration = Duration::from_secs(30);

/// Of the machine.
const MEMORY_MIB: &str = "400";

pub(in crate::labs) fn moved(bench: &Bench, series: Series) -> Outcome {
    let guest = need_guest!(bench, series);
    let script = include_str!("../../../vm/move.sh");
    let initrd = with_first_program(&guest, "move", script, &bench.directory)?;
    let cluster = Cluster::up(bench, 3)?;
    cluster.create("web", &["--size", &format!("{SIZE_MIB}MiB"), "--replicas", "3"])?;
    let source = Machine::start(bench, &guest, &initrd, &cluster, "a", None)?;
    wait_rounds(&source, None, 2)?;
    let socket = bench.directory.join("move");
    let way = format!("unix:{}", socket.display());
    let target = Machine::start(bench, &guest, &initrd, &cluster, "b", Some(&way))?;
    wait_for("the other QEMU", QEMU_LIMIT, || {
        ensure!(socket.exists(), "{} is not there", socket.display());
        Ok(())
    })?;
    bench.tell("the machine works, and moves from a's host to b's");
    source.ask("migrate-set-parameters", &json!({ "downtime-limit": 2000 }))?;
    source.ask("migrate", &json!({ "uri": way }))?;
    wait_for("the machine to have moved", GUEST_LIMIT, || {
        let told = source.ask("query-migrate", &json!({}))?;
        let status = told["status"].as_str().unwrap_or_default();
        ensure!(status == "completed", "it is {status}: {told}");
        Ok(())
    })?;
    wait_rounds(&target, Some(&source), 2)?;
    bench.tell("it has moved, and works");
    drop(source);
    cluster.kill("a")?;
    wait_rounds(&target, None, 3)?;
    bench.tell("a is killed, and it works");
    target.say("end\n")?;
    wait_for("the machine's last word", GUEST_LIMIT, || {
        let heard = target.heard();
        ensure!(!heard.contains("something is wrong"), "it found fault:\n{heard}");
        ensure!(heard.contains("all is well"), "it says\n{heard}");
        Ok(())
    })?;
    drop(target);
    cluster.start("a")?;
    cluster.wait("web", "in-sync", SYNC_LIMIT)?;
    cluster.compare("web", 0, SIZE_MIB << 20, &["a", "b", "c"])?;
    let share = bench.directory.join("share");
    fs::create_dir(&share)?;
    tell(
        &share,
        "seen",
        "moved works: moved while it wrote, and the node it left was killed: no error\n",
    )?;
    told(&guest, &share)
}

/// Makes `own/initrd`, a file system for a machine of this kernel in which `script` is the program `/NAME`.
pub(super) fn with_first_program(
    guest: &Guest,
    name: &str,
    script: &str,
    own: &Path,
) -> Outcome<PathBuf> {
    let place = own.join("first");
    fs::create_dir(&place)?;
    let program = place.join(name);
    fs::write(&program, script)?;
    fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let pack = format!("cd {} && echo {name} | cpio -o -H newc --quiet > ../more", text(&place));
    run(Command::new("sh").args(["-c", &pack]), QEMU_LIMIT)?.ok()?;
    // Archives may follow each other, and the last has the last word.
    let initrd = own.join("initrd");
    fs::copy(guest.directory.join("initrd"), &initrd)?;
    let mut whole = File::options().append(true).open(&initrd)?;
    // Each begins at a multiple of four bytes.
    let fill = (4 - whole.metadata()?.len() % 4) % 4;
    whole.write_all(&[0; 4][..usize::try_from(fill).unwrap_or(0)])?;
    whole.write_all(&fs::read(own.join("more"))?)?;
    Ok(initrd)
}

/// An emulated machine, or the place for one that is to come.
struct Machine {
    _qemu: Running,
    monitor: PathBuf,
    serial: UnixStream,
    heard: Arc<Mutex<String>>,
}

impl Machine {
    fn start(
        bench: &Bench,
        guest: &Guest,
        initrd: &Path,
        cluster: &Cluster,
        node: &str,
        from: Option<&str>,
    ) -> Outcome<Machine> {
        let place = |name: &str| bench.directory.join(format!("{node}-{name}"));
        let (monitor, serial) = (place("monitor"), place("serial"));
        let address = cluster.node(node)?.nbd;
        let server =
            json!({ "type": "inet", "host": address.ip(), "port": address.port().to_string() });
        let disk = json!({ "driver": "nbd", "node-name": "disk", "server": server, "export": "web",
            "reconnect-delay": 60, "cache": { "direct": true } });
        let socket = |path: &Path| format!("unix:{},server=on,wait=off", text(path));
        let mut qemu = Command::new("qemu-system-x86_64");
        qemu.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-m", MEMORY_MIB, "-nodefaults"]);
        qemu.args(["-nographic", "-no-reboot", "-kernel", text(&guest.directory.join("vmlinuz"))]);
        qemu.args([
            "-initrd",
            text(initrd),
            "-serial",
            &socket(&serial),
            "-qmp",
            &socket(&monitor),
        ]);
        let words = "console=ttyS0 quiet loglevel=3 panic=-1 mitigations=off nokaslr \
                     random.trust_cpu=1 tsc=reliable no_timer_check rdinit=/move";
        qemu.args(["-append", words, "-device", "virtio-rng-pci", "-blockdev", &disk.to_string()]);
        qemu.args(["-device", "virtio-blk-pci,drive=disk"]);
        if let Some(way) = from {
            qemu.args(["-incoming", way]);
        }
        let said = File::create(place("qemu"))?;
        let qemu = Running::start(qemu.stdout(Stdio::null()).stderr(said))?;
        let connect = || Ok(UnixStream::connect(&serial)?);
        let serial = wait_for("QEMU's serial line", QEMU_LIMIT, connect)?;
        let heard = Arc::new(Mutex::new(String::new()));
        let (mut from, to) = (serial.try_clone()?, Arc::clone(&heard));
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count) = from.read(&mut bytes)
                && count > 0
            {
                let text = String::from_utf8_lossy(&bytes[..count]);
                to.lock().unwrap_or_else(PoisonError::into_inner).push_str(&text);
            }
        });
        Ok(Machine { _qemu: qemu, monitor, serial, heard })
    }

    /// What came by the serial line.
    fn heard(&self) -> String {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn say(&self, words: &str) -> Outcome<()> {
        Ok((&self.serial).write_all(words.as_bytes())?)
    }

    /// What QEMU says of itself and its disk, for who looks into a failure.
    fn state(&self) -> String {
        let told = |command: &str| match self.ask(command, &json!({})) {
            Ok(answer) => format!("{command}: {answer}"),
            Err(failure) => format!("{command}: {failure}"),
        };
        ["query-status", "query-blockstats"].map(told).join("; ")
    }

    /// Has QEMU do something.
    fn ask(&self, command: &str, arguments: &Value) -> Outcome<Value> {
        let stream = UnixStream::connect(&self.monitor)?;
        stream.set_read_timeout(Some(QEMU_LIMIT))?;
        let mut lines = BufReader::new(&stream).lines();
        let mut answer = Value::Null;
        lines.next().ok_or("QEMU says nothing")??;
        for ask in [
            json!({ "execute": "qmp_capabilities" }),
            json!({ "execute": command, "arguments": arguments }),
        ] {
            (&stream).write_all(format!("{ask}\n").as_bytes())?;
            answer = loop {
                let line = lines.next().ok_or("QEMU went away")??;
                let value: Value = serde_json::from_str(&line).map_err(|e| e.to_string())?;
                ensure!(value["error"].is_null(), "{command}: {value}");
                // Other lines tell what happens.
                if !value["return"].is_null() {
                    break value["return"].clone();
                }
            };
        }
        Ok(answer)
    }
}

/// Waits until the machine has got on by so many rounds. If it does not, both QEMUs are asked how they are: this one, and the one that it
/// has left.
fn wait_rounds(machine: &Machine, left: Option<&Machine>, count: usize) -> Outcome<()> {
    let rounds = || machine.heard().matches("round ").count();
    let begun = rounds();
    let waited = wait_for("the machine to get on", GUEST_LIMIT, || {
        let heard = machine.heard();
        ensure!(!heard.contains("something is wrong"), "it found fault:\n{heard}");
        ensure!(rounds() >= begun + count, "it says\n{heard}");
        Ok(())
    });
    waited.map_err(|failure| {
        let left = left.map(|left| format!("\nthe QEMU that it left: {}", left.state()));
        let own = machine.state();
        Failure(format!("{failure}\nits QEMU: {own}{}", left.unwrap_or_default()))
    })
}
