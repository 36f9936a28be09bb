//! Other block servers, to stand beside ours: one copy, the same kind of socket.
//!
//! Always: a server is ended when its value goes.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use crate::machine::{shown, start_silent};
use crate::outcome::{Outcome, fail};

/// How long a server may take until its socket is there.
const START_LIMIT: Duration = Duration::from_secs(10);

/// A server that runs.
pub(crate) struct Server {
    child: Child,
    socket: PathBuf,
    cached: Option<PathBuf>,
}

impl Server {
    /// nbdkit's memory plugin.
    pub(crate) fn nbdkit_memory(scratch: &Path, size_mib: u64) -> Outcome<Server> {
        let socket = scratch.join("nbdkit-memory.sock");
        let mut command = Command::new("nbdkit");
        command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(&socket);
        Server::start(command.args(["memory", &format!("{size_mib}M")]), socket)
    }

    /// nbdkit's file plugin, through the page cache, which is told not to keep what was read or written.
    pub(crate) fn nbdkit_file(scratch: &Path, file: &Path) -> Outcome<Server> {
        let socket = scratch.join("nbdkit-file.sock");
        let mut command = Command::new("nbdkit");
        command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(&socket);
        command.args(["file", "cache=none"]).arg(file);
        let mut server = Server::start(&mut command, socket)?;
        server.cached = Some(file.to_path_buf());
        Ok(server)
    }

    /// qemu-nbd with io_uring and O_DIRECT.
    pub(crate) fn qemu(scratch: &Path, file: &Path) -> Outcome<Server> {
        let socket = scratch.join("qemu.sock");
        let mut command = Command::new("qemu-nbd");
        command.args(["--format=raw", "--cache=none", "--aio=io_uring", "--persistent"]);
        command.args(["--shared=8", "--socket"]).arg(&socket).arg(file);
        Server::start(&mut command, socket)
    }

    fn start(command: &mut Command, socket: PathBuf) -> Outcome<Server> {
        let words = shown(command);
        let child = start_silent(command)?;
        let mut server = Server { child, socket, cached: None };
        let begun = Instant::now();
        while !server.socket.exists() {
            let ended = server.child.try_wait().map_err(|error| error.to_string())?;
            if ended.is_some() || begun.elapsed() > START_LIMIT {
                return fail(format!("{words}: does not serve"));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    /// Where fio finds it.
    pub(crate) fn url(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }

    /// The file that it goes to by the page cache, if it does.
    pub(crate) fn cached(&self) -> Option<PathBuf> {
        self.cached.clone()
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}
