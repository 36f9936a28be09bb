//! Hosts that have to prove who they are: Linux' own initiator, with secrets as nvme-cli makes them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use tools::guest::Series;

use super::{Has, need_guest, paths, told, words};
use crate::bench::{Bench, Outcome, ensure, program, run};
use crate::cluster::{Cluster, SYNC_LIMIT};

/// Of the machine, in its script too.
pub(super) const HOST: &str =
    "nqn.2014-08.org.nvmexpress:uuid:1b4e28ba-2fa1-11d2-883f-0016d3cca427";

/// How long nvme-cli may take.
pub(super) const TOOL_LIMIT: Duration = Duration::from_secs(20);

/// A new secret, as nvme-cli makes it.
fn secret(hash: u8) -> Outcome<String> {
    let mut make = Command::new("nvme");
    let hash = format!("--hmac={hash}");
    let made = run(make.args(["gen-dhchap-key", &hash, "--nqn", HOST]), TOOL_LIMIT)?.ok()?;
    Ok(made.trim().to_owned())
}

/// Tells every node which hosts are let in: to the resource `free` everybody, and the machine by these lines.
pub(super) fn tell(cluster: &Cluster, lines: &str) -> Outcome<()> {
    let table = format!("open = [\"free\"]\n[[hosts]]\nnqn = \"{HOST}\"\n{lines}");
    for node in ["a", "b", "c"] {
        let path = cluster.home(node).join("nvme-hosts.toml");
        fs::write(&path, &table)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        let settings = cluster.settings(node);
        let text = fs::read_to_string(&settings)?;
        if !text.contains("nvme_hosts") {
            fs::write(&settings, format!("nvme_hosts = \"nvme-hosts.toml\"\n{text}"))?;
        }
    }
    cluster.ok(&["reload"]).map(drop)
}

pub(in crate::labs) fn proof(bench: &Bench, series: Series, has: Has) -> Outcome {
    let guest = need_guest!(bench, series);
    let cluster = Cluster::up(bench, 3)?;
    for name in ["web", "free"] {
        cluster.create(name, &["--size", "64MiB", "--replicas", "3"])?;
    }
    let (own, next, nodes, wrong) = (secret(1)?, secret(2)?, secret(1)?, secret(1)?);
    let of_nodes = format!("controller_secret = \"{nodes}\"\n");
    tell(&cluster, &format!("secret = \"{own}\"\n{of_nodes}"))?;
    let ((subsystem, ports), (open, _)) = (paths(&cluster, "web")?, paths(&cluster, "free")?);
    let share = bench.directory.join("share");
    fs::create_dir(&share)?;
    fs::copy(program("lockstep")?, share.join("lockstep"))?;
    fs::write(share.join("run"), include_str!("../../../vm/proof.sh"))?;
    let settings = format!(
        "SUBSYSTEM={subsystem} OPEN={open} PORTS=\"{}\"\nSECRET={own} NEXT={next} NODES={nodes} WRONG={wrong} HAS={}\n",
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
    tell(&cluster, &format!("secret = \"{next}\"\nold_secret = \"{own}\"\n{of_nodes}"))?;
    fs::write(share.join("both"), "")?;
    running.until("proved")?;
    tell(&cluster, &format!("secret = \"{next}\"\n{of_nodes}"))?;
    fs::write(share.join("only"), "")?;
    running.end()?;
    for node in ["a", "b", "c"] {
        let log = cluster.log(node);
        let told = [&own, &next, &nodes].iter().any(|secret| log.contains(&secret[10..40]));
        ensure!(!told, "node {node} tells a secret in its log");
    }
    told(&guest, &share)
}
