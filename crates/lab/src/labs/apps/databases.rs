//! Databases: their own benchmark as load, and rows that count when their commit was answered.

use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use super::{Application, EXT4, XFS, cannot, survives};
use crate::bench::{Bench, Outcome, ensure, text, tool};
use tools::Running;
use tools::database::{Home, Kind, MariaDb, PostgreSql, ask, complaint, serve, stop};

/// Commits between two events.
const STEPS: usize = 150;

/// Clients that note what was committed.
const WRITERS: u64 = 3;

/// Between the numbers of two clients' rows.
const APART: u64 = 1_000_000;

/// How long the benchmark goes on if nobody ends it.
const LOAD_SECONDS: u64 = 600;

/// `MariaDB` on ext4, with sysbench.
pub(in super::super) fn mariadb(bench: &Bench) -> Outcome {
    if let Some(verdict) = cannot(MariaDb::TOOLS) {
        return Ok(verdict);
    }
    survives::<Database<MariaDb>>(bench, &EXT4, STEPS)
}

/// `PostgreSQL` on xfs, with pgbench.
pub(in super::super) fn postgresql(bench: &Bench) -> Outcome {
    if let Some(verdict) = cannot(&[PostgreSql::TOOLS, &["mkfs.xfs"]].concat()) {
        return Ok(verdict);
    }
    survives::<Database<PostgreSql>>(bench, &XFS, STEPS)
}

/// A client that commits one row after the other.
struct Writer {
    client: Child,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.client.kill();
        let _ = self.client.wait();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Writer {
    fn start(mut command: Command, first: u64, stable: &Arc<Mutex<Vec<u64>>>) -> Outcome<Writer> {
        let mut client = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdin = client.stdin.take().ok_or("no way to tell it")?;
        let stdout = client.stdout.take().ok_or("no way to hear it")?;
        let stable = Arc::clone(stable);
        let thread = thread::spawn(move || commit(stdin, BufReader::new(stdout), first, &stable));
        Ok(Writer { client, thread: Some(thread) })
    }
}

/// Until the client ends: a row, and when its commit was answered, the next one.
fn commit(mut stdin: ChildStdin, stdout: impl BufRead, first: u64, stable: &Mutex<Vec<u64>>) {
    let mut lines = stdout.lines();
    for number in first.. {
        let words = format!("INSERT INTO steps VALUES ({number});\nSELECT {number};\n");
        if stdin.write_all(words.as_bytes()).is_err() {
            return;
        }
        match lines.next() {
            Some(Ok(line)) if line.trim() == number.to_string() => {}
            _ => return,
        }
        stable.lock().unwrap_or_else(PoisonError::into_inner).push(number);
    }
}

/// A database that runs.
struct Database<K: Kind> {
    home: Home,
    server: Running,
    load: Option<Running>,
    writers: Vec<Writer>,
    stable: Arc<Mutex<Vec<u64>>>,
    kind: std::marker::PhantomData<K>,
}

impl<K: Kind> Database<K> {
    fn stable(&self) -> Vec<u64> {
        self.stable.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Where the benchmark writes what it has to say.
    fn said_by_load(&self) -> PathBuf {
        self.home.log.with_extension("load")
    }

    /// Neither a client of the benchmark nor the server itself had an error.
    fn has_no_complaint(&self) -> Outcome<()> {
        let server = fs::read_to_string(&self.home.log)?;
        let line = complaint(&server, K::SERVER_FAILS, K::SERVER_WAITS);
        ensure!(line.is_none(), "the server says: {}", line.unwrap_or_default());
        if self.load.is_some() {
            let load = fs::read_to_string(self.said_by_load())?;
            let line = complaint(&load, K::LOAD_FAILS, &[]);
            ensure!(line.is_none(), "the benchmark says: {}", line.unwrap_or_default());
        }
        Ok(())
    }

    /// Fills what is new, and begins to work on it.
    fn work(&mut self) -> Outcome<()> {
        ask::<K>(&self.home, K::FIRST, "CREATE DATABASE lab;")?.ok()?;
        ask::<K>(&self.home, "lab", "CREATE TABLE steps (number bigint primary key);")?.ok()?;
        K::prepare(&self.home)?;
        let said = fs::File::create(self.said_by_load())?;
        let mut load = K::load(&self.home, LOAD_SECONDS);
        self.load = Some(Running::start(load.stdout(said.try_clone()?).stderr(said))?);
        for writer in 0..WRITERS {
            let client = K::client(&self.home, "lab");
            self.writers.push(Writer::start(client, writer * APART, &self.stable)?);
        }
        Ok(())
    }
}

impl<K: Kind> Application for Database<K> {
    fn start(bench: &Bench, mount: &Path, is_new: bool) -> Outcome<Database<K>> {
        // Servers that refuse to be root have to come through.
        fs::set_permissions(&bench.directory, fs::Permissions::from_mode(0o755))?;
        let (data, sockets) = (mount.join("data"), bench.directory.join("s"));
        let home = Home { data, sockets, log: bench.directory.join("server.txt") };
        fs::create_dir_all(&home.sockets)?;
        if is_new {
            K::make(&home)?;
            // MariaDB's installer leaves tables that survive no crash to the file system's next half minute.
            tool("sync", &["--file-system", text(mount)])?;
        }
        let server = serve::<K>(&home)?;
        let (stable, kind) = (Arc::default(), std::marker::PhantomData);
        let mut database = Database { home, server, load: None, writers: Vec::new(), stable, kind };
        if is_new {
            database.work()?;
        }
        Ok(database)
    }

    fn steps(&mut self) -> Outcome<usize> {
        self.server.runs("the server")?;
        if let Some(load) = &mut self.load {
            load.runs("the benchmark")?;
        }
        for writer in &mut self.writers {
            ensure!(writer.client.try_wait()?.is_none(), "a client of the database ended");
        }
        self.has_no_complaint()?;
        Ok(self.stable().len())
    }

    fn end(mut self) -> Outcome<Vec<u64>> {
        drop(self.load.take());
        self.writers.clear();
        let stable = self.stable();
        // Without any order: the disk is gone.
        drop(self.server);
        Ok(stable)
    }

    fn check(self, bench: &Bench, steps: &[u64]) -> Outcome<()> {
        let told = ask::<K>(&self.home, "lab", "SELECT number FROM steps;")?.ok()?;
        let there: std::collections::BTreeSet<u64> =
            told.lines().filter_map(|line| line.trim().parse().ok()).collect();
        let lost: Vec<&u64> = steps.iter().filter(|step| !there.contains(step)).collect();
        ensure!(lost.is_empty(), "{} committed rows are gone: {lost:?}", lost.len());
        K::is_whole(&self.home)?;
        bench.tell(format_args!(
            "{} rows, {} of them known to be committed",
            there.len(),
            steps.len()
        ));
        stop::<K>(self.server)
    }
}
