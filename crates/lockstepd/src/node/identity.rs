//! Who this node is and whom it believes: read at the start, and again when the operator says so.
//!
//! A renewed certificate is shown in sessions that begin from then on; those under way go on as they
//! are. Sessions of who is revoked end at once, and no new one begins. No request is held back
//! meanwhile.
//!
//! Always: what cannot be used changes nothing, and is told to who asked and to the log.
//!
//! Not here: issuing certificates (`lockstep`), what a certificate has to be (`link`).

use std::path::Path;

use link::Peer;
use wire::admin::codes;

use super::Node;
use super::admin::Asker;
use super::threads::Parcel;
use crate::backing::Refused;
use crate::config::{Config, ConfigError, check_nvme};
use crate::log::{info, warning};

/// Reads certificate, key and authorities, and checks that they are this node's.
pub(super) fn read(config: &Config) -> Result<link::Config, String> {
    let files = config.identity.as_ref().ok_or("node.toml names no certificate")?;
    let read = |path: &Path| {
        std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let identity = link::Identity::from_pem(
        read(&files.certificate)?,
        read(&files.key)?,
        read(&files.authority)?,
    )
    .map_err(|error| format!("this node's identity: {error}"))?;
    if identity.cluster() != config.cluster || identity.peer() != &Peer::Node(config.node) {
        return Err(format!(
            "the certificate is for {} of cluster {:016x}, but node.toml says node {} of cluster \
             {:016x}: name this node's own certificate",
            identity.peer(),
            identity.cluster().0,
            config.node,
            config.cluster.0
        ));
    }
    let identity = link::Config::new(&identity, config.link_mode, config.revoked.clone())
        .map_err(|error| format!("this node's identity: {error}"))?;
    if let Some(words) = expiry_warning(identity.expires_unix(), sys::wall_clock_ms() / 1000) {
        warning!("{words}");
    }
    Ok(identity)
}

/// From so many days before its certificate ends a node says so.
const DAYS_TO_RENEW: u64 = 30;

/// What is to be said of a certificate that ends soon, or has ended. Times are in seconds since 1970.
pub(super) fn expiry_warning(expires_unix: u64, now_unix: u64) -> Option<String> {
    let left = expires_unix.saturating_sub(now_unix);
    let days = left.div_ceil(24 * 3600);
    let remedy = "renew it (docs/security.md), then `lockstep reload`";
    match left {
        0 => Some(format!(
            "this node's certificate has ended: no connection with another node, or by TLS, begins any more; {remedy}"
        )),
        _ if days <= DAYS_TO_RENEW => {
            Some(format!("this node's certificate ends within {days} days: {remedy}"))
        }
        _ => None,
    }
}

impl Node {
    /// Reads the files again; who asked hears how it went.
    pub(super) fn reload(&mut self, asker: Option<Asker>) {
        let running = self.config.clone();
        self.helper().start(move || {
            let result = again(&running);
            Box::new(move |node: &mut Node| {
                let result = result.map(|(config, identity)| node.renew(config, identity));
                if let Err(why) = &result {
                    warning!("nothing is reloaded: {why}");
                }
                if let Some(asker) = asker {
                    let refused = |why| Refused::new(&codes::BAD_IDENTITY, why);
                    node.answer_done(asker, result.map_err(refused));
                }
            })
        });
    }

    /// From now on the node is this, and believes no one who is revoked.
    fn renew(&mut self, config: Config, identity: Option<link::Config>) {
        match identity {
            Some(identity) => {
                let process = self.peers.process;
                self.tell_others(|| {
                    let renewed = (config.clone(), identity.clone(), process);
                    Parcel::Renew(Box::new(renewed))
                });
                self.take_identity(config, identity);
                info!("certificate and revocations are reloaded");
                self.drop_revoked_clients();
                self.vouch_anew();
            }
            // Hosts are served by this thread alone.
            None => self.config = config,
        }
        if let Some(table) = &self.config.nvme_hosts {
            info!("the table of {} NVMe hosts is reloaded", table.len());
        }
        self.judge_hosts();
    }

    /// The same, on each thread.
    pub(super) fn take_identity(&mut self, config: Config, identity: link::Config) {
        self.config = config;
        self.peers.config = Some(identity);
        self.end_revoked_peers();
    }
}

/// The settings in force, with identity, revocations and NVMe hosts as the files have them now. Those are judged with what
/// they go beside, which the file may not say any more.
fn again(running: &Config) -> Result<(Config, Option<link::Config>), String> {
    let mut read_now = Config::read(&running.directory).map_err(|error| error.to_string())?;
    // With a disk that forgets on purpose each reading counts as a new boot of the machine.
    read_now.boot = running.boot;
    let knows_hosts = running.nvme_hosts.is_some() || read_now.nvme_hosts.is_some();
    if running.identity.is_none() && (read_now.identity.is_some() || !knows_hosts) {
        return Err("this node was started without a certificate: start it again".to_owned());
    }
    if running.identity.is_some() && read_now.identity.is_none() {
        let path = running.directory.join("certificate.pem");
        return Err(format!(
            "{}: this node's certificate is not there, and node.toml names no other",
            path.display()
        ));
    }
    let mut config = running.clone();
    config.identity.clone_from(&read_now.identity);
    config.revoked.clone_from(&read_now.revoked);
    config.nvme_hosts_file.clone_from(&read_now.nvme_hosts_file);
    config.nvme_hosts.clone_from(&read_now.nvme_hosts);
    check_nvme(&config).map_err(|error| as_started(&config, &error))?;
    if config != read_now {
        warning!(
            "node.toml has changed in more than identity, revocations and NVMe hosts: start the node again"
        );
    }
    let identity = config.identity.is_some().then(|| read(&config)).transpose()?;
    Ok((config, identity))
}

/// Why a table of NVMe hosts does not go with the listener that runs.
fn as_started(config: &Config, error: &ConfigError) -> String {
    let address = config.nvme.map_or(String::new(), |address| format!(" at {address}"));
    format!(
        "this node serves NVMe{address} until it is started again, whatever node.toml says now, and with that table {error}"
    )
}

#[cfg(test)]
mod tests;
