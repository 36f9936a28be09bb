//! `nvme-host`: secrets by which an NVMe host and the nodes prove to each other who they are, or a key by which they speak TLS.
//!
//! Always: a secret, or a key, is made of 32 random bytes; a table is readable by its owner only; what stands in it is not touched.
//!
//! Not here: reading the table (`lockstepd`), proving (`nvme`).

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use nvme::{Hash, NQN_BYTES_MAX, Secret, TlsKey};
use serde::Serialize;

use crate::cli::{Form, Global};
use crate::output::{Style, say, say_json};
use crate::problem::{BAD_NVME_HOST, Problem};

#[derive(Serialize)]
struct HostJson<'a> {
    version: u16,
    nqn: &'a str,
    secret: Option<&'a str>,
    controller_secret: Option<&'a str>,
    tls_key: Option<&'a str>,
    table: Option<String>,
}

/// What is made for a host.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Made {
    /// A secret of its own.
    Secret,
    /// And one of the nodes.
    Secrets,
    /// A key for TLS.
    Key,
}

/// Makes them, and tells what to do with them.
pub(crate) fn run(
    global: &Global,
    nqn: &str,
    table: Option<&Path>,
    resources: &[String],
    made: Made,
) -> Result<(), Problem> {
    // What TOML would not take as it is has no place in a name.
    let plain = nqn.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\'));
    if !nqn.starts_with("nqn.") || nqn.len() > NQN_BYTES_MAX || !plain {
        return Err(Problem::new(BAD_NVME_HOST, format!("{nqn:?} is no NVMe host's name")));
    }
    let secret = (made != Made::Key).then(make);
    let controller_secret = (made == Made::Secrets).then(make);
    let tls_key = (made == Made::Key).then(make_key);
    let made = [
        ("secret", secret.as_deref()),
        ("controller_secret", controller_secret.as_deref()),
        ("tls_key", tls_key.as_deref()),
    ];
    let lines = lines(nqn, &made, resources);
    if let Some(path) = table {
        append(path, nqn, &lines)?;
    }
    if Style::of(global).form == Form::Json {
        let table = table.map(|path| path.display().to_string());
        let [(_, secret), (_, controller_secret), (_, tls_key)] = made;
        return say_json(&HostJson { version: 1, nqn, secret, controller_secret, tls_key, table });
    }
    let connect = commands(nqn, &made);
    match table {
        None => say(&lines),
        Some(path) => say(&format!(
            "{} lets {nqn} in. Put it on every node, name it in node.toml (nvme_hosts), then `lockstep reload`.\n\
             On the host:\n  {connect}",
            path.display()
        )),
    }
}

/// What the host types.
fn commands(nqn: &str, made: &[(&str, Option<&str>); 3]) -> String {
    let connect = format!("nvme connect -t tcp -a ADDRESS -s PORT -n SUBSYSTEM -q {nqn}");
    match made.map(|(_, text)| text) {
        [.., Some(key)] => format!(
            "nvme check-tls-key --insert --identity=1 --hostnqn={nqn} --subsysnqn=SUBSYSTEM --keydata={key}\n  {connect} --tls\n\
             (tlshd has to run there, of the package ktls-utils.)\n"
        ),
        [secret, controller, None] => {
            let option = |name: &str, text: Option<&str>| {
                text.map(|text| format!(" --{name}={text}")).unwrap_or_default()
            };
            let (own, other) =
                (option("dhchap-secret", secret), option("dhchap-ctrl-secret", controller));
            format!("{connect}{own}{other}\n")
        }
    }
}

fn make_key() -> String {
    let mut key = [0; 32];
    sys::random_bytes(&mut key);
    TlsKey::new(&key, Some(Hash::Sha256)).expect("32 bytes are right").to_text()
}

fn make() -> String {
    let mut key = [0; 32];
    sys::random_bytes(&mut key);
    Secret::new(&key, Some(Hash::Sha256)).expect("32 bytes are right").to_text()
}

fn lines(nqn: &str, made: &[(&str, Option<&str>)], resources: &[String]) -> String {
    let mut lines = format!("\n[[hosts]]\nnqn = \"{nqn}\"\n");
    for (name, text) in made {
        if let Some(text) = text {
            lines += &format!("{name} = \"{text}\"\n");
        }
    }
    if !resources.is_empty() {
        lines += &format!("resources = {resources:?}\n");
    }
    lines
}

/// Adds the lines, unless the table names the host already: one program at a time, for a table that names a host twice is
/// refused.
fn append(path: &Path, nqn: &str, lines: &str) -> Result<(), Problem> {
    let file = |error: std::io::Error| Problem::file(path, &error);
    let mut options = OpenOptions::new();
    let options = options.read(true).append(true).create(true).mode(0o600);
    let mut table: File = options.open(path).map_err(file)?;
    table.lock().map_err(file)?;
    let mode = table.metadata().map_err(file)?.permissions().mode();
    if mode & 0o077 != 0 {
        let message = format!("{}: others may read or write it: chmod 600", path.display());
        return Err(Problem::new(BAD_NVME_HOST, message));
    }
    let mut text = String::new();
    table.read_to_string(&mut text).map_err(file)?;
    if text.contains(&format!("\"{nqn}\"")) {
        let message = format!("{} names {nqn} already; nothing was changed", path.display());
        return Err(Problem::new(BAD_NVME_HOST, message));
    }
    let length = table.metadata().map_err(file)?.len();
    if let Err(error) = table.write_all(lines.as_bytes()).and_then(|()| table.sync_all()) {
        // Half of a row would be the end of the whole table.
        return Err(match table.set_len(length).and_then(|()| table.sync_all()) {
            Ok(()) => file(error),
            Err(_) => {
                let message = format!(
                    "{}: {error}; what stands behind byte {length} is to be removed",
                    path.display()
                );
                Problem::new(BAD_NVME_HOST, message)
            }
        });
    }
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = File::open(directory.unwrap_or(Path::new(".")));
    directory.and_then(|directory| directory.sync_all()).map_err(file)
}
