//! Certificates: the authority of a cluster, those that it issues to nodes and to clients of NBD over TLS.
//!
//! Always: a key is readable by its owner only.
//!
//! Not here: what else a new cluster's nodes need (`dev`, `machines`).

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::SystemTime;

use base::{ClusterId, NodeId};
use link::{Authority, Identity};
use serde::Serialize;
use wire::admin::Command as Ask;

use crate::cli::{Form, Global};
use crate::cluster::{Cluster, NodeEntry, make_directory};
use crate::output::{Style, say, say_json};
use crate::problem::{CERTIFICATE_EXISTS, Problem, UNREACHED};

/// What a client's certificate consists of besides the authority's.
const CLIENT_FILES: [&str; 2] = ["client-cert.pem", "client-key.pem"];

#[derive(Serialize)]
struct CertificateJson {
    version: u16,
    name: String,
    directory: String,
    serial: String,
    expires_unix: u64,
}

/// Makes a certificate for a client, and writes it where it is wanted.
pub(crate) fn client(
    global: &Global,
    name: &str,
    out: &Path,
    authority: Option<&Path>,
) -> Result<(), Problem> {
    let authority = open_authority(global, authority)?;
    let identity = authority.issue_client(name, unix_now())?;
    if let Some(old) = CLIENT_FILES.iter().map(|file| out.join(file)).find(|path| path.exists()) {
        let message = format!("{} is there already; nothing was changed", old.display());
        return Err(Problem::new(CERTIFICATE_EXISTS, message));
    }
    let authorities = out.join("ca-cert.pem");
    match fs::read_to_string(&authorities) {
        Ok(other) if other != identity.authority_pem() => {
            let message = format!(
                "{} is there already, and is another authority's; nothing was changed",
                authorities.display()
            );
            return Err(Problem::new(CERTIFICATE_EXISTS, message));
        }
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(Problem::file(&authorities, &error));
        }
        _ => {}
    }
    make_directory(out)?;
    identity.save_for_client(out)?;
    let directory = out.display();
    say_made(
        global,
        name,
        out,
        &identity,
        &format!(
            "An NBD client that has {directory} is let in as {name}:\n  \
         nbdinfo 'nbds://ADDRESS/VOLUME?tls-certificates={directory}'\n"
        ),
    )
}

/// Gives a node of the development cluster a new certificate, in the files of the old one.
pub(crate) fn renew(global: &Global, name: &str) -> Result<(), Problem> {
    let cluster = Cluster::open_dev(global)?;
    let node = cluster.node(name)?;
    let authority = open_authority(global, None)?;
    let directory = cluster.directory_of(node);
    let identity = issue_node(&authority, node, &directory)?;
    let text = format!(
        "Node {name} has a new certificate. `lockstep reload --node {name}` takes it into use.\n"
    );
    say_made(global, name, &directory, &identity, &text)
}

/// Lets nodes read their certificates and revocations again.
pub(crate) fn reload(global: &Global, name: Option<&str>) -> Result<(), Problem> {
    let cluster = Cluster::open(global)?;
    let asked = match name {
        Some(name) => vec![cluster.node(name)?],
        None => cluster.nodes.iter().collect(),
    };
    let answers = cluster.ask_each(|node| {
        asked.iter().any(|one| one.name == node.name).then(|| node.change(Ask::Reload {}))
    });
    let (mut told, mut silent, mut refused) = (Vec::new(), Vec::new(), None);
    for (node, answer) in cluster.nodes.iter().zip(answers) {
        match answer {
            None => {}
            Some(Ok(())) => told.push(node.name.as_str()),
            Some(Err(problem)) if problem.is_kind(UNREACHED) => silent.push((node, problem)),
            // Whoever was to be shut out is let in there still, wherever else not.
            Some(Err(problem)) => refused = refused.or(Some(problem)),
        }
    }
    if let Some(mut problem) = refused {
        if !told.is_empty() {
            problem.message.push_str(&format!("; reloaded: {}", told.join(", ")));
        }
        return Err(problem);
    }
    let names: Vec<&str> = silent.iter().map(|(node, _)| node.name.as_str()).collect();
    if told.is_empty()
        && let Some((_, problem)) = silent.into_iter().next()
    {
        return Err(problem);
    }
    if Style::of(global).form == Form::Json {
        let answer = serde_json::json!({ "version": 1, "reloaded": told, "not_reached": names });
        return say_json(&answer);
    }
    let mut text = format!("Reloaded: {}.\n", told.join(", "));
    if !names.is_empty() {
        text.push_str(&format!("Not reached, and not told: {}.\n", names.join(", ")));
    }
    say(&text)
}

/// The authority that was named, or the development cluster's.
fn open_authority(global: &Global, directory: Option<&Path>) -> Result<Authority, Problem> {
    let directory = match directory {
        Some(directory) => directory.to_path_buf(),
        None => Cluster::open_dev(global)?.directory.join("authority"),
    };
    Ok(Authority::load(&directory)?)
}

/// Makes the authority of a new cluster, in a directory of its own.
pub(crate) fn create_authority(cluster: u64, directory: &Path) -> Result<Authority, Problem> {
    let authority = Authority::create(ClusterId(cluster), unix_now())?;
    make_directory(directory)?;
    authority.save(directory)?;
    Ok(authority)
}

/// Lets a node in: its certificate and key, in its directory.
pub(crate) fn issue_node(
    authority: &Authority,
    node: &NodeEntry,
    directory: &Path,
) -> Result<Identity, Problem> {
    let identity = authority.issue(NodeId(node.id), &node.name, &[node.address], unix_now())?;
    make_directory(directory)?;
    identity.save(directory)?;
    Ok(identity)
}

pub(crate) fn say_made(
    global: &Global,
    name: &str,
    directory: &Path,
    identity: &Identity,
    text: &str,
) -> Result<(), Problem> {
    let serial: String =
        identity.claims().serial.iter().map(|byte| format!("{byte:02x}")).collect();
    if Style::of(global).form == Form::Json {
        return say_json(&CertificateJson {
            version: 1,
            name: name.to_owned(),
            directory: directory.display().to_string(),
            serial,
            expires_unix: identity.expires_unix(),
        });
    }
    say(&format!("{text}Its serial number, should it be revoked: {serial}\n"))
}

fn unix_now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}
