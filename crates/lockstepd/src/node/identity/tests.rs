//! What a reload takes from the files of a node that runs, and what it refuses.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use super::{again, expiry_warning};
use crate::config::Config;

const ALONE: &str = "cluster = \"c0ffee\"\nnode = 2\nname = \"b\"\nlisten = \"127.77.0.2:7800\"\n";

/// A node's directory, which goes with it.
struct Home(PathBuf);

impl Home {
    fn new() -> Home {
        let name = format!("lockstepd-identity-{:x}", sys::random_u64());
        let home = Home(std::env::temp_dir().join(name));
        std::fs::create_dir_all(&home.0).expect("a directory for this test");
        home
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.0.join(name);
        std::fs::write(&path, text).expect("written");
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("permitted");
    }

    /// A node with these settings, and this table of NVMe hosts if there is one.
    fn has(&self, settings: &str, table: Option<&str>) {
        let named = table.map_or("", |_| "nvme_hosts = \"nvme-hosts.toml\"\n");
        std::fs::remove_file(self.0.join("nvme-hosts.toml")).ok();
        if let Some(table) = table {
            self.write("nvme-hosts.toml", table);
        }
        self.write("node.toml", &format!("{ALONE}{named}{settings}"));
    }

    fn read(&self) -> Config {
        Config::read(&self.0).expect("it is good")
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// A table with one host, which has to prove who it is and speaks in the clear.
fn in_the_clear() -> String {
    let secret = nvme::Secret::new(&[1; 32], None).expect("32 bytes").to_text();
    format!("[[hosts]]\nnqn = \"nqn.one\"\nsecret = \"{secret}\"\n")
}

#[test]
fn a_table_of_hosts_is_judged_with_the_listener_that_runs() {
    let home = Home::new();
    home.has("nvme = \"0.0.0.0:4420\"\n", Some(""));
    let running = home.read();
    let table = in_the_clear();
    // Each of these is good for a node that starts with it.
    let (near, stated) =
        ("nvme = \"127.0.0.1:4420\"\n", "nvme = \"0.0.0.0:4420\"\ninsecure = true\n");
    for (settings, table) in
        [(near, Some(&*table)), (near, None), (stated, Some(&*table)), (stated, None), ("", None)]
    {
        home.has(settings, table);
        home.read();
        let why = again(&running).map(drop).expect_err("hosts would be served in the clear");
        assert!(why.contains("0.0.0.0:4420") && why.contains("start"), "{why}");
    }
    home.has(near, Some("open = []\n"));
    let (config, _) = again(&running).expect("nobody is let in");
    assert_eq!((config.nvme, config.insecure), (running.nvme, false));
    // A node that serves its own machine only, or whose operator stated it, may have any.
    for settings in [near, stated] {
        home.has(settings, Some(""));
        let running = home.read();
        home.has(settings, Some(&table));
        let (config, _) = again(&running).expect("it is good");
        assert_eq!(config.nvme_hosts.map(|table| table.len()), Some(1));
    }
}

#[test]
fn a_reload_while_the_certificate_is_not_there_is_refused_whole() {
    let home = Home::new();
    home.write("certificate.pem", "in its usual place, where nobody has to name it");
    home.has("", Some(""));
    let running = home.read();
    assert!(running.identity.is_some());
    std::fs::remove_file(home.0.join("certificate.pem")).expect("it is there");
    home.has("revoked_serials = [\"0a\"]\n", Some(&in_the_clear()));
    let why = again(&running).map(drop).expect_err("nobody revoked would be sent away");
    assert!(why.contains("certificate.pem"), "{why}");
}

#[test]
fn a_certificate_that_ends_soon_or_has_ended_is_told() {
    const DAY: u64 = 24 * 3600;
    let at = 1_800_000_000;
    assert_eq!(expiry_warning(at, at - 30 * DAY - 1), None);
    let said = |now| expiry_warning(at, now).expect("it is to be renewed");
    assert!(said(at - 30 * DAY).contains("within 30 days"), "{}", said(at - 30 * DAY));
    assert!(said(at - 1).contains("within 1 days"), "{}", said(at - 1));
    assert!(said(at).contains("has ended") && said(at + DAY).contains("has ended"));
}
