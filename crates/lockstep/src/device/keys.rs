//! By what this host proves to nodes who it is, or speaks TLS with them: its own entry in a table as nodes have one (`nvme-hosts.toml`).
//!
//! Always: the table is read anew for each path; one that others can read is refused; what is told of it contains no line of it.
//!
//! Facts: type and names of keys as the kernel's `drivers/nvme/common/keyring.c` looks for them, the list of keyrings as `proc_keys(5)`.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nvme::{Derivation, Secret, TlsKey, TlsNames, TlsPsk};
use serde::Deserialize;

use super::host::Host;

/// What a table has at most, as for nodes.
const TABLE_BYTES_MAX: u64 = 1 << 20;

/// The keyring in which the kernel looks for keys of NVMe hosts.
const RING: &str = ".nvme";

/// The table, as far as it matters to hosts.
#[derive(Deserialize)]
struct Table {
    #[serde(default)]
    hosts: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    nqn: String,
    secret: Option<String>,
    controller_secret: Option<String>,
    tls_key: Option<String>,
}

/// What this host has.
pub(super) struct Keys {
    secret: Option<String>,
    controller_secret: Option<String>,
    tls: Option<TlsKey>,
}

/// Hands the kernel a key for TLS between a host and a subsystem.
pub(super) type Teach = fn(&Host, &TlsNames, &TlsPsk) -> Result<(), String>;

impl Keys {
    /// What `path` says of the host `nqn`. Errors are sentences for people.
    pub(super) fn read(path: &Path, nqn: &str) -> Result<Keys, String> {
        let shown = path.display();
        let file = |error: std::io::Error| format!("{shown}: {error}");
        let table = File::open(path).map_err(file)?;
        if table.metadata().map_err(file)?.permissions().mode() & 0o077 != 0 {
            return Err(format!("{shown}: others may read or write it: chmod 600"));
        }
        let mut text = String::new();
        table.take(TABLE_BYTES_MAX).read_to_string(&mut text).map_err(file)?;
        // The parser's own words would show lines of it.
        let table: Table = toml::from_str(&text).map_err(|error| {
            let line = error.span().map_or(1, |span| text[..span.start].lines().count().max(1));
            format!("{shown}: line {line} is not as in a table of NVMe hosts")
        })?;
        let entry = table.hosts.into_iter().find(|host| host.nqn == nqn).ok_or_else(|| {
            format!("{shown} has no secret and no key of this host, which is {nqn} (`lockstep nvme-host` makes one)")
        })?;
        for (name, secret) in
            [("secret", &entry.secret), ("controller_secret", &entry.controller_secret)]
        {
            let parsed = secret.as_deref().map(Secret::parse).transpose();
            parsed.map_err(|fault| format!("{shown}: `{name}` of {nqn} {fault}"))?;
        }
        let tls = entry.tls_key.as_deref().map(TlsKey::parse).transpose();
        let tls = tls.map_err(|fault| format!("{shown}: `tls_key` of {nqn} {fault}"))?;
        if entry.secret.is_none() && tls.is_none() {
            return Err(format!("{shown}: {nqn} has neither `secret` nor `tls_key` there"));
        }
        Ok(Keys { secret: entry.secret, controller_secret: entry.controller_secret, tls })
    }

    /// What follows in the line that describes a path to this subsystem; the kernel knows the key for TLS then.
    pub(super) fn options(
        &self,
        host: &Host,
        nqn: &str,
        subsystem: &str,
        teach: Teach,
    ) -> Result<String, String> {
        let secrets = self.secrets().map(|(name, secret)| format!(",{name}={secret}"));
        let mut options: String = secrets.collect();
        if let Some(key) = &self.tls {
            let names = TlsNames { host: nqn.to_owned(), subsystem: subsystem.to_owned() };
            let psk = key.psk(&names, 1, Derivation::Labelled);
            let psk = psk.ok_or("the names of host and subsystem are too long for TLS")?;
            teach(host, &names, &psk)?;
            options.push_str(",tls");
        }
        Ok(options)
    }

    /// The secrets, by the kernel's words for them.
    fn secrets(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let both =
            [("dhchap_secret", &self.secret), ("dhchap_ctrl_secret", &self.controller_secret)];
        both.into_iter().filter_map(|(name, secret)| Some((name, secret.as_deref()?)))
    }

    /// Has a path that is there prove itself by these secrets, if it does so by others.
    pub(super) fn renew(&self, host: &Host, controller: &str) -> Result<(), String> {
        for (name, secret) in self.secrets() {
            let path = format!("sys/class/nvme/{controller}/{name}");
            // There is none where the path was made without.
            if host.text(&path).is_some_and(|known| known != secret && known != "none") {
                let told = std::fs::write(host.at(&path), secret);
                told.map_err(|error| format!("/{path}: {error}"))?;
            }
        }
        Ok(())
    }
}

/// Puts a key where the kernel looks for it, in place of all others for these names: it takes any of them.
pub(super) fn teach(host: &Host, names: &TlsNames, psk: &TlsPsk) -> Result<(), String> {
    let keys = host.text("proc/keys").unwrap_or_default();
    let ring = ring(&keys).ok_or_else(|| {
        format!("this kernel has no keyring {RING}: its NVMe/TCP cannot speak TLS, or nvme-keyring is not loaded")
    })?;
    let added = sys::add_key("psk", &psk.identity, &psk.key, ring);
    added.map_err(|errno| format!("the kernel does not take the key for TLS: {errno}"))?;
    for other in others(&keys, names, &psk.identity) {
        sys::remove_key(other, ring).ok();
    }
    Ok(())
}

/// A line of `/proc/keys`: number, flags, uses, end, rights, owner, group, type, and name with a colon and more behind it.
fn parse(line: &str) -> Option<(i32, &str, &str)> {
    let mut words = line.split_whitespace();
    let number = i32::from_str_radix(words.next()?, 16).ok()?;
    let kind = words.nth(6)?;
    let name = line.split_once(kind)?.1.trim_start();
    Some((number, kind, name.rsplit_once(':')?.0))
}

/// The number of the keyring.
pub(super) fn ring(keys: &str) -> Option<i32> {
    let mut keys = keys.lines().filter_map(parse);
    keys.find_map(|(number, kind, name)| (kind == "keyring" && name == RING).then_some(number))
}

/// Keys for these names, but for the one that is called so.
pub(super) fn others(keys: &str, names: &TlsNames, identity: &str) -> Vec<i32> {
    let keys = keys.lines().filter_map(parse);
    let others = keys.filter(|&(_, kind, name)| {
        kind == "psk" && name != identity && TlsNames::parse(name).as_ref() == Some(names)
    });
    others.map(|(number, ..)| number).collect()
}
