//! Databases: their own benchmark as load, and rows that count when their commit was answered.

use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::{Application, EXT4, XFS, cannot, survives};
use crate::bench::{Bench, Outcome, Said, TOOL_LIMIT, ensure, run, text, tool, wait_for};
use crate::mounted::Running;

/// Commits between two events.
const STEPS: usize = 150;

/// Clients that note what was committed.
const WRITERS: u64 = 3;

/// Between the numbers of two clients' rows.
const APART: u64 = 1_000_000;

/// How long a server may take to answer: after a crash it reads its log first.
const START_LIMIT: Duration = Duration::from_secs(90);

/// `MariaDB` on ext4, with sysbench.
pub(in super::super) fn mariadb(bench: &Bench) -> Outcome {
    if let Some(verdict) = cannot(&["mariadbd", "mariadb", "mariadb-install-db", "sysbench"]) {
        return Ok(verdict);
    }
    survives::<Database<MariaDb>>(bench, &EXT4, STEPS)
}

/// `PostgreSQL` on xfs, with pgbench.
pub(in super::super) fn postgresql(bench: &Bench) -> Outcome {
    if let Some(verdict) = cannot(&["pg_config", "psql", "pgbench", "setpriv", "mkfs.xfs"]) {
        return Ok(verdict);
    }
    survives::<Database<PostgreSql>>(bench, &XFS, STEPS)
}

/// Where a database lies, and where it listens.
struct Home {
    data: PathBuf,
    sockets: PathBuf,
    log: PathBuf,
}

/// What differs from one to another.
trait Kind {
    /// Makes a new one.
    fn make(home: &Home) -> Outcome<()>;
    /// The server's command line.
    fn server(home: &Home) -> Outcome<Command>;
    /// A client that reads statements, prints what they give at once, and ends at an error.
    fn client(home: &Home, database: &str) -> Command;
    /// The client's word before a statement to carry out.
    const EXECUTE: &'static str;
    /// The database to connect to before there is another.
    const FIRST: &'static str;
    /// Fills tables for the benchmark.
    fn prepare(home: &Home) -> Outcome<()>;
    /// The benchmark.
    fn load(home: &Home) -> Command;
    /// Whether everything is whole, by its own means.
    fn is_whole(home: &Home) -> Outcome<()>;
    /// The signal that stops the server in good order.
    const STOP: &'static str;
}

struct MariaDb;

impl MariaDb {
    fn socket(home: &Home) -> String {
        format!("--socket={}", home.sockets.join("s").display())
    }

    fn sysbench(home: &Home) -> Command {
        let mut command = Command::new("sysbench");
        command.args(["oltp_read_write", "--db-driver=mysql", "--mysql-user=root"]);
        command.arg(format!("--mysql-socket={}", home.sockets.join("s").display()));
        command.args(["--mysql-db=lab", "--tables=10", "--table-size=1000", "--threads=4"]);
        command
    }
}

impl Kind for MariaDb {
    const EXECUTE: &'static str = "--execute";
    const FIRST: &'static str = "mysql";
    const STOP: &'static str = "-TERM";

    fn make(home: &Home) -> Outcome<()> {
        let data = format!("--datadir={}", home.data.display());
        let normal = "--auth-root-authentication-method=normal";
        let words = ["--no-defaults", "--user=root", normal, "--skip-test-db", &data];
        tool("mariadb-install-db", &words).map(drop)
    }

    fn server(home: &Home) -> Outcome<Command> {
        let mut command = Command::new("mariadbd");
        command.args(["--no-defaults", "--user=root", "--skip-networking"]);
        command.arg(format!("--datadir={}", home.data.display())).arg(MariaDb::socket(home));
        command.args(["--innodb-flush-method=O_DIRECT", "--innodb-flush-log-at-trx-commit=1"]);
        command.args(["--innodb-log-file-size=32M", "--sync-binlog=1"]);
        Ok(command)
    }

    fn client(home: &Home, database: &str) -> Command {
        let mut command = Command::new("mariadb");
        command.args(["--no-defaults", "--user=root", "--batch", "--skip-column-names"]);
        command.arg("--unbuffered").arg(MariaDb::socket(home)).arg(database);
        command
    }

    fn prepare(home: &Home) -> Outcome<()> {
        run(MariaDb::sysbench(home).arg("prepare"), TOOL_LIMIT)?.ok().map(drop)
    }

    fn load(home: &Home) -> Command {
        let mut command = MariaDb::sysbench(home);
        command.args(["--time=600", "run"]);
        command
    }

    fn is_whole(home: &Home) -> Outcome<()> {
        let words = [
            "--no-defaults",
            "--user=root",
            "--check",
            "--extended",
            "--all-databases",
            "--silent",
        ];
        let said =
            run(Command::new("mariadb-check").args(words).arg(MariaDb::socket(home)), TOOL_LIMIT)?;
        let told = said.ok()?;
        ensure!(!told.to_lowercase().contains("error"), "mariadb-check: {told}");
        Ok(())
    }
}

struct PostgreSql;

impl PostgreSql {
    /// A program of the version that is installed, as the user that may run it.
    fn program(name: &str) -> Outcome<Command> {
        let directory = tool("pg_config", &["--bindir"])?;
        let mut command = Command::new("setpriv");
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
        command.arg(Path::new(directory.trim()).join(name));
        Ok(command)
    }

    fn pgbench(home: &Home) -> Command {
        let mut command = Command::new("pgbench");
        command.args(["--host", text(&home.sockets), "--username", "postgres"]);
        command
    }
}

impl Kind for PostgreSql {
    const EXECUTE: &'static str = "--command";
    const FIRST: &'static str = "postgres";
    const STOP: &'static str = "-INT";

    fn make(home: &Home) -> Outcome<()> {
        fs::create_dir_all(&home.data)?;
        tool("chown", &["postgres:", text(&home.data), text(&home.sockets)])?;
        let mut make = PostgreSql::program("initdb")?;
        make.args(["--auth=trust", "--data-checksums", "--username=postgres", "--pgdata"]);
        run(make.arg(&home.data), TOOL_LIMIT)?.ok().map(drop)
    }

    fn server(home: &Home) -> Outcome<Command> {
        let mut command = PostgreSql::program("postgres")?;
        command.arg("-D").arg(&home.data).arg("-k").arg(&home.sockets);
        command.args(["-c", "listen_addresses="]);
        Ok(command)
    }

    fn client(home: &Home, database: &str) -> Command {
        let mut command = Command::new("psql");
        command.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align"]);
        command.args(["--set=ON_ERROR_STOP=1", "--username=postgres", "--host"]);
        command.arg(&home.sockets).arg(database);
        command
    }

    fn prepare(home: &Home) -> Outcome<()> {
        let words = ["--initialize", "--quiet", "--scale=2", "lab"];
        run(PostgreSql::pgbench(home).args(words), TOOL_LIMIT)?.ok().map(drop)
    }

    fn load(home: &Home) -> Command {
        let mut command = PostgreSql::pgbench(home);
        command.args(["--client=4", "--time=600", "--no-vacuum", "lab"]);
        command
    }

    fn is_whole(home: &Home) -> Outcome<()> {
        // Every transaction of pgbench adds one number to each of three balances, and to its history.
        let sums = "SELECT (SELECT sum(abalance) FROM pgbench_accounts), \
                    (SELECT sum(bbalance) FROM pgbench_branches), \
                    (SELECT sum(tbalance) FROM pgbench_tellers), \
                    (SELECT coalesce(sum(delta), 0) FROM pgbench_history);";
        let told = ask::<PostgreSql>(home, "lab", sums)?.ok()?;
        let sums: Vec<&str> = told.trim().split('|').collect();
        ensure!(
            sums.len() == 4 && sums.iter().all(|sum| *sum == sums[0]),
            "balances do not agree: {told}"
        );
        Ok(())
    }
}

/// What a database answers to a statement.
fn ask<K: Kind>(home: &Home, database: &str, statement: &str) -> Outcome<Said> {
    run(K::client(home, database).args([K::EXECUTE, statement]), TOOL_LIMIT)
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

    /// Fills what is new, and begins to work on it.
    fn work(&mut self) -> Outcome<()> {
        ask::<K>(&self.home, K::FIRST, "CREATE DATABASE lab;")?.ok()?;
        ask::<K>(&self.home, "lab", "CREATE TABLE steps (number bigint primary key);")?.ok()?;
        K::prepare(&self.home)?;
        let output = fs::File::create(self.home.log.with_extension("load"))?;
        self.load = Some(Running::start(K::load(&self.home).stdout(output))?);
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
        }
        let log = fs::File::options().create(true).append(true).open(&home.log)?;
        let mut server = K::server(&home)?;
        let server = Running::start(server.stdout(log.try_clone()?).stderr(log))?;
        let (stable, kind) = (Arc::default(), std::marker::PhantomData);
        let mut database = Database { home, server, load: None, writers: Vec::new(), stable, kind };
        wait_for("the database to answer", START_LIMIT, || {
            let told = ask::<K>(&database.home, K::FIRST, "SELECT 1;")?.ok()?;
            ensure!(told.trim() == "1", "it says {told}");
            Ok(())
        })?;
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

    fn check(mut self, bench: &Bench, steps: &[u64]) -> Outcome<()> {
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
        tool("kill", &[K::STOP, &self.server.id().to_string()])?;
        ensure!(self.server.wait()?, "the database did not stop in good order");
        Ok(())
    }
}
