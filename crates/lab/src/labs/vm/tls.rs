//! Hosts that speak TLS by keys: Linux' own initiator, its handshake made by tlshd, its keys by nvme-cli.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tools::guest::{MAKE_LIMIT, Series, is_made, kept};

use super::proof::{HOST, TOOL_LIMIT, tell};
use super::{Has, need_guest, paths, told, words};
use crate::bench::{Bench, Outcome, Verdict, ensure, program, run, text};
use crate::cluster::{Cluster, SYNC_LIMIT};

/// Programs of a newer Debian, for the machine; kept beside the kernels. The inner error: they cannot be had.
pub(super) fn newer_tools() -> Outcome<Result<PathBuf, String>> {
    let directory = kept()?.join("tools-13");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("vm/newer.sh");
    if is_made(&directory.join("made"), &script) {
        return Ok(Ok(directory));
    }
    let ran = run(Command::new(&script).arg(text(&directory)), MAKE_LIMIT)?;
    if ran.code != Some(0) {
        return Ok(Err(format!("tlshd cannot be had from Debian 13: {}", ran.words())));
    }
    Ok(Ok(directory))
}

/// A new key, as nvme-cli makes it.
fn key() -> Outcome<String> {
    let mut make = Command::new("nvme");
    let made = run(make.args(["gen-tls-key", "--hmac=1"]), TOOL_LIMIT)?.ok()?;
    Ok(made.trim().to_owned())
}

pub(in crate::labs) fn tls(bench: &Bench, series: Series, has: Has) -> Outcome {
    let guest = need_guest!(bench, series);
    let tools = match newer_tools()? {
        Ok(tools) => tools,
        Err(why) => return Ok(Verdict::NotRun(why)),
    };
    let cluster = Cluster::up(bench, 3)?;
    cluster.create("web", &["--size", "64MiB", "--replicas", "3"])?;
    let (own, next, wrong) = (key()?, key()?, key()?);
    tell(&cluster, &format!("tls_key = \"{own}\"\n"))?;
    let (subsystem, ports) = paths(&cluster, "web")?;
    let share = bench.directory.join("share");
    fs::create_dir(&share)?;
    copy(&tools, &share.join("tools"))?;
    fs::copy(program("lockstep")?, share.join("lockstep"))?;
    fs::write(share.join("run"), include_str!("../../../vm/tls.sh"))?;
    let id = HOST.rsplit(':').next().unwrap_or_default();
    let settings = format!(
        "HOST={HOST} ID={id} SUBSYSTEM={subsystem} PORTS=\"{}\"\nKEY={own} NEXT={next} WRONG={wrong} HAS={}\n",
        words(&ports),
        u8::from(has == Has::All)
    );
    fs::write(share.join("settings"), settings)?;
    let mut running = guest.start(&share)?;
    if has == Has::None {
        running.end()?;
        return told(&guest, &share);
    }
    running.until("ready")?;
    let killed = cluster.primary("web")?;
    cluster.kill(&killed)?;
    cluster.start(&killed)?;
    bench.tell(format!("node {killed}, the primary's, was killed and is back"));
    cluster.wait("web", "in-sync", SYNC_LIMIT)?;
    fs::write(share.join("back"), "")?;
    tell(&cluster, &format!("tls_key = \"{next}\"\nold_tls_key = \"{own}\"\n"))?;
    fs::write(share.join("both"), "")?;
    running.until("changed")?;
    tell(&cluster, &format!("tls_key = \"{next}\"\n"))?;
    fs::write(share.join("only"), "")?;
    running.until("left")?;
    tell(&cluster, &format!("tls_key = \"{wrong}\"\n"))?;
    fs::write(share.join("other"), "")?;
    running.end()?;
    for node in ["a", "b", "c"] {
        let log = cluster.log(node);
        let told = [&own, &next, &wrong].iter().any(|key| log.contains(&key[16..40]));
        ensure!(!told && log.contains("inside TLS"), "node {node} tells a key, or of no TLS");
    }
    told(&guest, &share)
}

/// Two folders of files.
fn copy(from: &Path, to: &Path) -> Outcome<()> {
    for folder in ["lib", "bin"] {
        fs::create_dir_all(to.join(folder))?;
        for file in fs::read_dir(from.join(folder))? {
            let file = file?;
            fs::copy(file.path(), to.join(folder).join(file.file_name()))?;
        }
    }
    Ok(())
}
