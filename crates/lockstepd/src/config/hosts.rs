//! `nvme-hosts.toml`: which NVMe hosts are let in, where to, by which secrets they prove who they are, and by which keys they speak TLS.
//!
//! Always: where there is such a file, a host that it does not name reaches no resource but those that it calls open; a file that
//! cannot be read, or that others can read, lets nobody in, because the node does not start with it, and goes on with what it had;
//! nothing that is told of the file contains a line of it; each host has a secret or a key for TLS, or both.
//!
//! Not here: the proof itself (`nvme`), asking for it (`node/hosts`).

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nvme::{Credentials, NQN_BYTES_MAX, Secret, TlsKey, TlsNames, TlsPsk};
use serde::Deserialize;
use sys::PskTls;
use wire::admin::{NAME_BYTES_MAX, check_name};

use super::ConfigError;

/// What the file is called if nobody calls it otherwise.
const USUAL_NAME: &str = "nvme-hosts.toml";

/// Bytes of the file, at most: some thousand hosts.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    open: Vec<String>,
    #[serde(default)]
    hosts: Vec<FileHost>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileHost {
    nqn: String,
    #[serde(default)]
    secret: Option<String>,
    #[serde(default)]
    old_secret: Option<String>,
    #[serde(default)]
    controller_secret: Option<String>,
    #[serde(default)]
    tls_key: Option<String>,
    #[serde(default)]
    old_tls_key: Option<String>,
    #[serde(default)]
    resources: Option<Vec<String>>,
}

/// Which hosts are let in.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct HostTable {
    /// Resources that every host reaches without a proof.
    open: Vec<String>,
    hosts: Vec<Host>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
struct Host {
    nqn: String,
    /// `None`: its key for TLS is enough.
    credentials: Option<Credentials>,
    /// If there are some, it speaks TLS by one of them.
    keys: Vec<TlsKey>,
    /// `None`: all.
    resources: Option<Vec<String>>,
}

/// Whether a host may reach a resource.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Admission<'a> {
    /// Whoever it is.
    Open,
    /// Once it has proved who it is.
    Proof(&'a Credentials),
    /// It is known by the key that it speaks TLS with.
    Sealed,
    /// It may not.
    Refused,
}

impl FileHost {
    /// The secrets by which it proves who it is, if it has any.
    fn credentials(&self) -> Result<Option<Credentials>, String> {
        let nqn = &self.nqn;
        let parse = |key: &str, text: &Option<String>| {
            let parsed = text.as_deref().map(Secret::parse).transpose();
            parsed.map_err(|fault| format!("`{key}` of host {nqn} {fault}"))
        };
        let secret = parse("secret", &self.secret)?;
        let old = parse("old_secret", &self.old_secret)?;
        let controller = parse("controller_secret", &self.controller_secret)?;
        let Some(secret) = secret else {
            let alone = old.is_some() || controller.is_some();
            return if alone {
                Err(format!("host {nqn} has secrets, and no `secret` among them"))
            } else {
                Ok(None)
            };
        };
        let secrets: Vec<Secret> = std::iter::once(secret).chain(old).collect();
        let is_own = |own: &Secret| secrets.iter().any(|secret| secret.is_like(own));
        if controller.as_ref().is_some_and(is_own) {
            return Err(format!(
                "`controller_secret` of host {nqn} is the host's own: who knows one must not know the other"
            ));
        }
        Ok(Some(Credentials { host: secrets, controller }))
    }

    /// The keys by which it speaks TLS.
    fn keys(&self) -> Result<Vec<TlsKey>, String> {
        let nqn = &self.nqn;
        let parse = |key: &str, text: &Option<String>| {
            let parsed = text.as_deref().map(TlsKey::parse).transpose();
            parsed.map_err(|fault| format!("`{key}` of host {nqn} {fault}"))
        };
        let (key, old) =
            (parse("tls_key", &self.tls_key)?, parse("old_tls_key", &self.old_tls_key)?);
        if key.is_none() && old.is_some() {
            return Err(format!("host {nqn} has `old_tls_key`, and no `tls_key`"));
        }
        Ok(key.into_iter().chain(old).collect())
    }
}

impl HostTable {
    /// Reads the file that the settings name, if they name one.
    pub(super) fn read(
        directory: &Path,
        path: Option<&Path>,
    ) -> Result<Option<HostTable>, ConfigError> {
        let usual = directory.join(USUAL_NAME);
        let Some(path) = path else {
            // Forgotten, it would let everybody in.
            return if usual.exists() {
                let named = usual.display();
                Err(ConfigError(format!(
                    "{named} is there, but node.toml does not name it, and without it every NVMe host is let in: \
                     set `nvme_hosts = \"{USUAL_NAME}\"`, or remove it"
                )))
            } else {
                Ok(None)
            };
        };
        let refuse =
            |why: &dyn std::fmt::Display| ConfigError(format!("{}: {why}", path.display()));
        let file = std::fs::File::open(path).map_err(|error| refuse(&error))?;
        let metadata = file.metadata().map_err(|error| refuse(&error))?;
        if metadata.permissions().mode() & 0o077 != 0 {
            return Err(refuse(&"holds secrets, and others may read or write it: chmod 600"));
        }
        let mut text = String::new();
        let most = FILE_BYTES_MAX + 1;
        let read = file.take(most).read_to_string(&mut text).map_err(|error| refuse(&error))?;
        if read as u64 == most {
            return Err(refuse(&"is longer than 1 MiB"));
        }
        let table = HostTable::parse(&text).map_err(|why| refuse(&why))?;
        if table.has_keys() {
            PskTls::new().map_err(|why| refuse(&why))?;
        }
        Ok(Some(table))
    }

    pub(super) fn parse(text: &str) -> Result<HostTable, String> {
        // What the parser prints has the line, and its message the value, that it did not like: it may be a secret.
        let file: File = toml::from_str(text).map_err(|error| {
            let before = error.span().map_or(0, |span| span.start);
            let line = text.get(..before).unwrap_or_default().matches('\n').count() + 1;
            let what = error.message().split(['`', '"', '\'', ':']).next().unwrap_or_default().trim_end();
            format!("line {line}: {what}; its keys are `open`, and of [[hosts]] `nqn`, `secret`, `old_secret`, \
                     `controller_secret`, `tls_key`, `old_tls_key`, `resources`")
        })?;
        check_names("`open`", &file.open)?;
        let mut hosts: Vec<Host> = Vec::new();
        for host in file.hosts {
            if !host.nqn.starts_with("nqn.") || host.nqn.len() > NQN_BYTES_MAX {
                // It may be a secret that went to the wrong line.
                return Err(format!(
                    "`nqn` of host number {} is no host's name: up to {NQN_BYTES_MAX} bytes, as in /etc/nvme/hostnqn",
                    hosts.len() + 1
                ));
            }
            if hosts.iter().any(|other| other.nqn == host.nqn) {
                return Err(format!("host {} is there twice", host.nqn));
            }
            let names = host.resources.as_deref().unwrap_or_default();
            check_names(&format!("`resources` of host {}", host.nqn), names)?;
            let (credentials, keys) = (host.credentials()?, host.keys()?);
            if credentials.is_none() && keys.is_empty() {
                return Err(format!("host {} has neither `secret` nor `tls_key`", host.nqn));
            }
            hosts.push(Host { nqn: host.nqn, credentials, keys, resources: host.resources });
        }
        Ok(HostTable { open: file.open, hosts })
    }

    /// Whether the host may reach the resource.
    pub(crate) fn admits(&self, host: &str, resource: &str) -> Admission<'_> {
        if self.open.iter().any(|open| open == resource) {
            return Admission::Open;
        }
        let known = self.hosts.iter().find(|known| known.nqn == host);
        let reaches = |known: &&Host| {
            known.resources.as_ref().is_none_or(|names| names.iter().any(|name| name == resource))
        };
        match known.filter(reaches) {
            None => Admission::Refused,
            Some(Host { credentials: Some(credentials), .. }) => Admission::Proof(credentials),
            Some(_) => Admission::Sealed,
        }
    }

    /// Whether the host gets nothing outside of TLS.
    pub(crate) fn seals(&self, host: &str) -> bool {
        self.hosts.iter().any(|known| known.nqn == host && !known.keys.is_empty())
    }

    /// Whether any host speaks TLS.
    pub(crate) fn has_keys(&self) -> bool {
        self.hosts.iter().any(|known| !known.keys.is_empty())
    }

    /// Whether nobody gets anything of a volume outside of TLS.
    pub(crate) fn is_sealed(&self) -> bool {
        self.open.is_empty() && self.hosts.iter().all(|known| !known.keys.is_empty())
    }

    /// What TLS gets for an identity: `names` says which host and subsystem it names.
    pub(crate) fn psks(&self, names: &TlsNames, identity: &str) -> Vec<TlsPsk> {
        let known = self.hosts.iter().filter(|known| known.nqn == names.host);
        let made = known.flat_map(|known| &known.keys).flat_map(|key| key.psks(names));
        made.filter(|psk| psk.identity == identity).collect()
    }

    /// How many hosts it knows.
    pub(crate) fn len(&self) -> usize {
        self.hosts.len()
    }
}

/// A name that no resource can have would open nothing, and nobody would hear of it. It is not repeated: it may be a secret
/// that went to the wrong line.
fn check_names(key: &str, names: &[String]) -> Result<(), String> {
    let is_wrong = |name: &String| check_name("a resource", name).is_err();
    match names.iter().position(is_wrong) {
        None => Ok(()),
        Some(at) => Err(format!(
            "{key}: number {} is no name of a resource: 1 to {NAME_BYTES_MAX} lower-case letters, digits, '-', '_' \
             and '.', beginning with a letter or digit",
            at + 1
        )),
    }
}

#[cfg(test)]
mod tests;
