//! Databases on a directory: made, served, asked, and their own benchmarks.
//!
//! Not here: what is measured, or must be there afterwards.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::{Outcome, Running, Said, TOOL_LIMIT, ensure, run, text, tool, wait_for};

/// How long a server may take to answer: after a crash it reads its log first.
const START_LIMIT: Duration = Duration::from_secs(90);

/// Where a database lies, and where it listens.
#[derive(Debug)]
pub struct Home {
    /// Its data; not there before it is made.
    pub data: PathBuf,
    /// A directory with a short path.
    pub sockets: PathBuf,
    /// What the server says.
    pub log: PathBuf,
}

/// What differs from one to another.
pub trait Kind {
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
    /// Fills tables for the benchmark, in the database `lab`.
    fn prepare(home: &Home) -> Outcome<()>;
    /// The benchmark, for so many seconds.
    fn load(home: &Home, seconds: u64) -> Command;
    /// Whether everything is whole, by its own means.
    fn is_whole(home: &Home) -> Outcome<()>;
    /// Programs that it takes, its benchmark too.
    const TOOLS: &'static [&'static str];
    /// The signal that stops the server in good order.
    const STOP: &'static str;
    /// Words by which the server says that something failed, for a client or for itself.
    const SERVER_FAILS: &'static [&'static str];
    /// Words by which it says so of what is no failure: nobody is served before it has started.
    const SERVER_WAITS: &'static [&'static str];
    /// Words by which the benchmark says that something failed.
    const LOAD_FAILS: &'static [&'static str];
}

/// The first line by which a server, or its benchmark, says that something failed.
#[must_use]
pub fn complaint<'a>(said: &'a str, fails: &[&str], not: &[&str]) -> Option<&'a str> {
    let has = |line: &str, words: &[&str]| words.iter().any(|word| line.contains(word));
    said.lines().find(|line| has(line, fails) && !has(line, not))
}

/// `MariaDB`.
#[derive(Debug)]
pub struct MariaDb;

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
    const LOAD_FAILS: &'static [&'static str] = &["FATAL"];
    const SERVER_FAILS: &'static [&'static str] = &["[ERROR]"];
    const SERVER_WAITS: &'static [&'static str] = &[];
    const STOP: &'static str = "-TERM";
    const TOOLS: &'static [&'static str] =
        &["mariadbd", "mariadb", "mariadb-install-db", "mariadb-check", "sysbench"];

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

    fn load(home: &Home, seconds: u64) -> Command {
        let mut command = MariaDb::sysbench(home);
        command.args([&format!("--time={seconds}"), "run"]);
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

/// `PostgreSQL`.
#[derive(Debug)]
pub struct PostgreSql;

impl PostgreSql {
    /// A program of the version that is installed, as the user that may run it.
    fn program(name: &str) -> Outcome<Command> {
        let directory = tool("pg_config", &["--bindir"])?;
        let mut command = Command::new("setpriv");
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
        command.arg(Path::new(directory.trim()).join(name));
        Ok(command)
    }

    /// The benchmark, which is told what to do.
    pub fn pgbench(home: &Home) -> Command {
        let mut command = Command::new("pgbench");
        command.args(["--host", text(&home.sockets), "--username", "postgres"]);
        command
    }
}

impl Kind for PostgreSql {
    const EXECUTE: &'static str = "--command";
    const FIRST: &'static str = "postgres";
    const LOAD_FAILS: &'static [&'static str] = &["aborted", "error:", "ERROR:"];
    const SERVER_FAILS: &'static [&'static str] = &["ERROR:", "FATAL:", "PANIC:"];
    const SERVER_WAITS: &'static [&'static str] = &["the database system is starting up"];
    const STOP: &'static str = "-INT";
    const TOOLS: &'static [&'static str] = &["pg_config", "psql", "pgbench", "setpriv"];

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

    fn load(home: &Home, seconds: u64) -> Command {
        let mut command = PostgreSql::pgbench(home);
        command.args(["--client=4", &format!("--time={seconds}"), "--no-vacuum", "lab"]);
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
pub fn ask<K: Kind>(home: &Home, database: &str, statement: &str) -> Outcome<Said> {
    run(K::client(home, database).args([K::EXECUTE, statement]), TOOL_LIMIT)
}

/// Starts the server of one that is made; it answers.
pub fn serve<K: Kind>(home: &Home) -> Outcome<Running> {
    let log = fs::File::options().create(true).append(true).open(&home.log)?;
    let mut server = K::server(home)?;
    let server = Running::start(server.stdout(log.try_clone()?).stderr(log))?;
    wait_for("the database to answer", START_LIMIT, || {
        let told = ask::<K>(home, K::FIRST, "SELECT 1;")?.ok()?;
        ensure!(told.trim() == "1", "it says {told}");
        Ok(())
    })?;
    Ok(server)
}

/// Stops a server in good order.
pub fn stop<K: Kind>(mut server: Running) -> Outcome<()> {
    tool("kill", &[K::STOP, &server.id().to_string()])?;
    ensure!(server.wait()?, "the database did not stop in good order");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Kind, PostgreSql, complaint};

    #[test]
    fn an_error_of_a_client_is_a_complaint_and_a_server_that_starts_has_none() {
        let find = |said| complaint(said, PostgreSql::SERVER_FAILS, PostgreSql::SERVER_WAITS);
        let starts = "LOG:  listening\nFATAL:  the database system is starting up\nLOG:  ready";
        assert_eq!(find(starts), None);
        let fails = "LOG:  ready\nERROR:  could not read block 7 in file \"base/5/2\"\nLOG:  on";
        assert_eq!(find(fails), fails.lines().nth(1));
    }
}
