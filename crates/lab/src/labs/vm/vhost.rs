//! A machine whose disk is a volume by vhost-user: the node of its host has its memory, and dies.

use std::fs;
use std::time::Duration;

use tools::guest::{MEMORY_MIB, Series};

use super::{need_guest, told};
use crate::bench::{Bench, Outcome, ensure, let_run, text};
use crate::cluster::{Cluster, SYNC_LIMIT};

const SIZE_MIB: u64 = 64;
const GROWN_MIB: u64 = 96;

/// Between two deaths of the node.
const GOES_ON: Duration = Duration::from_secs(8);

pub(in crate::labs) fn vhost(bench: &Bench, series: Series) -> Outcome {
    let guest = need_guest!(bench, series);
    let cluster = Cluster::up(bench, 2)?;
    cluster.create("web", &["--size", &format!("{SIZE_MIB}MiB"), "--replicas", "2"])?;
    cluster.wait("web", "in-sync", SYNC_LIMIT)?;
    let place = cluster.ok(&["vhost", "add", "web", "--node", "a"])?;
    let socket = cluster.home("a").join("vhost/web-0.sock");
    ensure!(place.contains(text(&socket)) && socket.exists(), "no socket at {place}");
    let share = bench.directory.join("share");
    fs::create_dir(&share)?;
    fs::write(share.join("run"), include_str!("../../../vm/vhost.sh"))?;
    fs::write(share.join("settings"), format!("SIZE={SIZE_MIB}\nGROWN={GROWN_MIB}\n"))?;
    let memory = format!("memory-backend-memfd,id=memory,size={MEMORY_MIB}M,share=on");
    let path = format!("socket,id=disk,path={},reconnect=1", text(&socket));
    let words = ["-object", &memory, "-machine", "memory-backend=memory", "-chardev", &path];
    let device = ["-device", "vhost-user-blk-pci,chardev=disk"];
    let mut running = guest.start_by(&share, MEMORY_MIB, &[&words[..], &device].concat())?;
    running.until("ready")?;
    for gently in [false, true, false] {
        let_run(GOES_ON);
        if gently {
            cluster.stop("a")?;
            bench.tell("the node that serves it is stopped");
        } else {
            cluster.kill("a")?;
            bench.tell("the node that serves it is killed");
        }
        let_run(Duration::from_secs(1));
        cluster.start("a")?;
        cluster.wait("web", "in-sync", SYNC_LIMIT)?;
    }
    let_run(GOES_ON);
    fs::write(share.join("enough"), "")?;
    running.until("grow")?;
    cluster.ok(&["resource", "resize", "web", "--size", &format!("{GROWN_MIB}MiB")])?;
    running.end()?;
    cluster.wait("web", "in-sync", SYNC_LIMIT)?;
    cluster.compare("web", 0, GROWN_MIB << 20, &["a", "b"])?;
    told(&guest, &share)
}
