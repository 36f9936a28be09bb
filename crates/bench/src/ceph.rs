//! Ceph, to stand beside ours: a monitor and three OSDs of this machine's packages, each with a file on the disk, and one image
//! of a pool that keeps three copies.
//!
//! Always: its processes are ended when the value goes; nothing of it is outside its directory, but for its logs, which are laid aside then.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tools::{Failure, Running, ensure, missing, wait_for};

use crate::fio::Target;
use crate::machine;
use crate::outcome::{Outcome, complain};
use crate::parts::lay_aside;

/// As tables call it.
pub(crate) const SUBJECT: &str = "Ceph RBD, 3 OSDs";

/// A loopback address that nothing else here uses.
const ADDRESS: &str = "127.77.200.1";
const MONITOR: &str = "[v2:127.77.200.1:13300]";
const OSDS: usize = 3;
const IMAGE: &str = "v";

/// How long its parts may take to find each other.
const START_LIMIT: Duration = Duration::from_secs(60);

/// A cluster that runs.
pub(crate) struct Ceph {
    directory: PathBuf,
    processes: Vec<Running>,
}

/// What of it is not on this machine.
pub(crate) fn is_missing() -> Option<String> {
    let missing = missing(&["ceph", "ceph-mon", "ceph-osd", "monmaptool", "ceph-authtool", "rbd"]);
    (!missing.is_empty()).then(|| missing.join(", "))
}

impl Ceph {
    /// Makes one in `directory`, with an image of this size.
    pub(crate) fn up(directory: &Path, size_mib: u64) -> Outcome<Ceph> {
        let text = |error: std::io::Error| error.to_string();
        fs::create_dir_all(directory).map_err(text)?;
        let mut ceph = Ceph { directory: directory.to_path_buf(), processes: Vec::new() };
        let place = directory.display();
        let cluster = fs::read_to_string("/proc/sys/kernel/random/uuid").map_err(text)?;
        let cluster = cluster.trim();
        // As much again for what it keeps of its own.
        let block_bytes = (2 * size_mib + 1024) << 20;
        let settings = format!(
            "[global]\nfsid = {cluster}\nmon_host = {MONITOR}\npublic_addr = {ADDRESS}\ncluster_addr = {ADDRESS}\n\
             auth_cluster_required = none\nauth_service_required = none\nauth_client_required = none\n\
             osd_pool_default_size = {OSDS}\nosd_pool_default_min_size = 2\nosd_crush_chooseleaf_type = 0\n\
             run_dir = {place}\nadmin_socket = {place}/$name.asok\npid_file =\nlog_file = {place}/$name.log\n\
             keyring = {place}/keyring\nmon_data = {place}/mon\nosd_data = {place}/osd$id\n\
             rbd_cache = false\nosd_objectstore = bluestore\nbluestore_block_size = {block_bytes}\n"
        );
        fs::write(ceph.settings(), settings).map_err(text)?;
        let monitors = directory.join("monitors");
        ceph.tool("ceph-authtool", &["--create-keyring", "keyring", "--gen-key", "-n", "mon."])?;
        let map = monitors.display().to_string();
        ceph.tool("monmaptool", &["--create", "--addv", "a", MONITOR, "--fsid", cluster, &map])?;
        let make =
            ["--no-mon-config", "--mkfs", "-i", "a", "--monmap", &map, "--keyring", "keyring"];
        ceph.tool("ceph-mon", &make)?;
        ceph.start("ceph-mon", "a", &["--no-mon-config"])?;
        wait_for("Ceph's monitor", START_LIMIT, || {
            ceph.processes[0].runs("ceph-mon")?;
            ceph.asked(&["-s"])
        })?;
        for number in 0..OSDS {
            let id = fs::read_to_string("/proc/sys/kernel/random/uuid").map_err(text)?;
            let (id, number) = (id.trim(), number.to_string());
            ceph.asked(&["osd", "new", id])?;
            fs::create_dir(directory.join(format!("osd{number}"))).map_err(text)?;
            let make = ["--no-mon-config", "--mkfs", "-i", &number, "--osd-uuid", id];
            ceph.tool("ceph-osd", &make)?;
            ceph.start("ceph-osd", &number, &[])?;
        }
        wait_for("Ceph's OSDs", START_LIMIT, || {
            let told = ceph.asked(&["osd", "stat"])?;
            ensure!(told.contains(&format!("{OSDS} up")), "{told}");
            Ok(())
        })?;
        ceph.asked(&["osd", "pool", "create", "rbd", "32", "32"])?;
        let size = format!("{size_mib}M");
        ceph.tool("rbd", &["create", IMAGE, "--size", &size, "--image-feature", "layering"])?;
        Ok(ceph)
    }

    /// Where fio finds the image.
    pub(crate) fn target(&self) -> Target {
        Target::Rbd { settings: self.settings(), image: IMAGE.to_owned() }
    }

    /// Its processes.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.processes.iter().map(Running::id).collect()
    }

    fn settings(&self) -> PathBuf {
        self.directory.join("ceph.conf")
    }

    fn tool(&self, name: &str, words: &[&str]) -> Outcome<String> {
        let mut command = Command::new(name);
        // The other tools know no cluster.
        if !matches!(name, "monmaptool" | "ceph-authtool") {
            command.arg("-c").arg(self.settings());
        }
        machine::run(command.args(words).current_dir(&self.directory))
    }

    fn asked(&self, words: &[&str]) -> Result<String, Failure> {
        Ok(self.tool("ceph", &[&["--connect-timeout", "5"], words].concat())?)
    }

    fn start(&mut self, name: &str, id: &str, words: &[&str]) -> Outcome<()> {
        let said = File::create(self.directory.join(format!("{name}-{id}.out")));
        let said = said.map_err(|error| error.to_string())?;
        let mut command = Command::new(name);
        command.arg("-c").arg(self.settings()).args(["-i", id, "-f"]).args(words);
        command.stdout(Stdio::null()).stderr(said).current_dir(&self.directory);
        self.processes.push(Running::start(&mut command)?);
        Ok(())
    }
}

impl Drop for Ceph {
    fn drop(&mut self) {
        self.processes.clear();
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with(".log") || name.ends_with(".out") {
                lay_aside(&self.directory, &entry.path(), &format!("{name}.log"));
            }
        }
        if let Err(error) = fs::remove_dir_all(&self.directory) {
            complain(format!("{}: {error}", self.directory.display()));
        }
    }
}
