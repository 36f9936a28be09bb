//! What a configuration is refused for.

use super::{Config, File, HostTable, NodeId, PEERS_MAX, check_nvme, threads_for};
use fuzz::{Target, nothing, outcome};
use std::path::Path;

const GOOD: &str = r#"
cluster = "c0ffee"
node = 2
name = "b"
listen = "127.77.0.2:7800"
nbd = "127.77.0.2:10809"
link_encryption = false
[[peers]]
id = 3
name = "c"
addresses = ["127.77.0.3:7800"]
[[peers]]
id = 1
name = "a"
addresses = ["127.77.0.1:7800"]
"#;

fn refused(text: &str) -> String {
    Config::parse(Path::new("/nowhere"), text).expect_err("this is no good configuration").0
}

#[test]
fn a_good_file_is_taken_and_its_peers_are_in_order() {
    let config = Config::parse(Path::new("/nowhere"), GOOD).expect("it is good");
    assert_eq!(config.cluster.0, 0xc0_ffee);
    assert_eq!(config.peers.iter().map(|peer| peer.id.0).collect::<Vec<_>>(), [1, 3]);
    assert_eq!(config.admin_socket, Path::new("/nowhere/admin.sock"));
}

#[test]
fn where_a_peer_serves_clients_is_an_address_that_can_be_reached() {
    let with = |line: &str| GOOD.replace("name = \"c\"", &format!("name = \"c\"\n{line}"));
    let config = Config::parse(Path::new("/nowhere"), &with("nvme = \"127.77.0.3:4420\""));
    let peer = config.expect("it is good").peers.remove(1);
    assert_eq!((peer.nvme, peer.nbd), ("127.77.0.3:4420".parse().ok(), None));
    for line in ["nvme = \"0.0.0.0:4420\"", "nbd = \"[::]:10809\""] {
        assert!(refused(&with(line)).contains("`c`"), "{line}");
    }
}

#[test]
fn names_that_no_resource_could_have_among_its_nodes_are_refused() {
    for (key, good) in [("name", "name = \"b\""), ("peers", "name = \"c\"")] {
        for odd in ["", ".", "B", "b/c", "b c", &"b".repeat(49)] {
            let why = refused(&GOOD.replace(good, &format!("name = {odd:?}")));
            assert!(why.contains(key) && why.contains("a name is"), "{why}");
        }
    }
}

#[test]
fn an_unknown_key_is_refused_by_name() {
    assert!(
        refused(&GOOD.replace("link_encryption", "link_encription")).contains("link_encription")
    );
}

#[test]
fn link_encryption_is_switched_by_whatever_word_people_use() {
    let mode = |line: &str| {
        let text = GOOD.replace("link_encryption = false", line);
        Config::parse(Path::new("/nowhere"), &text).map(|config| config.link_mode)
    };
    for line in [
        "link_encryption = false",
        "link-encryption = off",
        "link-encryption = off # the network is closed",
        "link-encryption=\"off\"",
        "link_encryption = off",
    ] {
        assert_eq!(mode(line), Ok(link::LinkMode::Plain), "{line}");
    }
    for line in ["", "link-encryption = on", "link_encryption = true", "link-encryption = \"on\""] {
        assert_eq!(mode(line), Ok(link::LinkMode::Encrypted), "{line}");
    }
    for line in ["link-encryption = no", "link-encryption = 0", "link-encryption = \"plain\""] {
        assert!(mode(line).is_err(), "{line}");
    }
    assert!(mode("link-encryption = off\nlink_encryption = true").is_err(), "said twice");
}

#[test]
fn a_disk_has_ten_seconds_unless_told_otherwise_and_never_less_than_one() {
    let late =
        |text: &str| Config::parse(Path::new("/nowhere"), text).map(|config| config.disk_late);
    assert_eq!(late(GOOD).expect("it is good"), base::Duration::from_secs(10));
    let set = |ms: u32| GOOD.replace("node = 2", &format!("node = 2\ndisk_late_ms = {ms}"));
    assert_eq!(late(&set(1_500)).expect("it is good"), base::Duration::from_millis(1_500));
    assert!(refused(&set(999)).contains("disk_late_ms"));
}

#[test]
fn a_node_has_memory_for_a_few_requests_at_least() {
    let bytes = |text: &str| Config::parse(Path::new("/nowhere"), text);
    let set = |bytes: u32| GOOD.replace("node = 2", &format!("node = 2\nbuffer_bytes = {bytes}"));
    assert_eq!(bytes(GOOD).expect("it is good").buffer_bytes, None);
    assert_eq!(bytes(&set(16 << 20)).expect("it is good").buffer_bytes, Some(16 << 20));
    assert!(refused(&set((16 << 20) - 1)).contains("buffer_bytes"));
}

#[test]
fn a_node_has_one_thread_unless_told_otherwise_and_a_power_of_two() {
    let threads =
        |text: &str| Config::parse(Path::new("/nowhere"), text).map(|config| config.threads);
    assert_eq!(threads(GOOD).expect("it is good"), 1);
    let set = |count: u32| GOOD.replace("node = 2", &format!("node = 2\nthreads = {count}"));
    assert_eq!(threads(&set(4)).expect("it is good"), 4);
    for bad in [0, 3, 16] {
        assert!(refused(&set(bad)).contains("threads"), "{bad}");
    }
}

#[test]
fn a_number_of_threads_that_is_left_to_the_machine_is_half_of_its_cores() {
    let chosen: Vec<u16> = [0, 1, 2, 3, 4, 7, 8, 16, 64, 1 << 20].map(threads_for).into();
    assert_eq!(chosen, [1, 1, 1, 1, 2, 2, 4, 8, 8, 8]);
    let set = GOOD.replace("node = 2", "node = 2\nthreads = \"auto\"");
    let config = Config::parse(Path::new("/nowhere"), &set).expect("it is good");
    let cores = config.threads_chosen_from.expect("nobody set it");
    assert_eq!(config.threads, threads_for(cores));
    let config = Config::parse(Path::new("/nowhere"), GOOD).expect("it is good");
    assert_eq!(config.threads_chosen_from, None);
    assert!(refused(&set.replace("auto", "many")).contains("threads"));
}

#[test]
fn who_has_peers_has_an_identity_in_its_own_directory_unless_told_otherwise() {
    let config = Config::parse(Path::new("/nowhere"), GOOD).expect("it is good");
    let identity = config.identity.expect("there are peers");
    assert_eq!(identity.key, Path::new("/nowhere/key.pem"));
}

#[test]
fn nbd_beyond_this_machine_needs_tls_or_must_be_stated_to_be_insecure() {
    let tls = |text: &str| Config::parse(Path::new("/x"), text).expect("it is good").nbd_tls;
    let wide = GOOD.replace("nbd = \"127.77.0.2", "nbd = \"0.0.0.0");
    assert_eq!(tls(GOOD), nbd::Tls::Offered);
    assert_eq!(tls(&wide), nbd::Tls::Required);
    assert_eq!(tls(&wide.replace("node = 2", "node = 2\ninsecure = true")), nbd::Tls::Offered);
    let asked = GOOD.replace("node = 2", "node = 2\nnbd_tls_required = true");
    assert_eq!(tls(&asked), nbd::Tls::Required);
}

#[test]
fn nvme_beyond_this_machine_must_be_inside_tls_or_stated_to_be_insecure() {
    let read = |lines: &str| {
        let text = GOOD.replace("node = 2", &format!("node = 2\n{lines}"));
        Config::parse(Path::new("/x"), &text).expect("it is good")
    };
    for good in ["", "nvme = \"127.77.0.2:4420\"", "nvme = \"0.0.0.0:4420\"\ninsecure = true"] {
        assert_eq!(check_nvme(&read(good)), Ok(()));
    }
    let mut wide = read("nvme = \"0.0.0.0:4420\"");
    let why = check_nvme(&wide).expect_err("it is neither").0;
    assert!(why.contains("`nvme`") && why.contains("insecure = true"), "{why}");
    let mut with = |table: &str| {
        wide.nvme_hosts = Some(HostTable::parse(table).expect("it is good").into());
        check_nvme(&wide).is_ok()
    };
    let key = nvme::TlsKey::new(&[1; 32], None).expect("32 bytes").to_text();
    let secret = nvme::Secret::new(&[1; 32], None).expect("32 bytes").to_text();
    let sealed = format!("[[hosts]]\nnqn = \"nqn.one\"\ntls_key = \"{key}\"\n");
    assert!(with("") && with(&sealed), "nobody is let in, or inside TLS");
    assert!(!with(&format!("open = [\"web\"]\n{sealed}")));
    assert!(!with(&format!("{sealed}[[hosts]]\nnqn = \"nqn.two\"\nsecret = \"{secret}\"\n")));
}

#[test]
fn a_node_without_a_certificate_serves_nbd_to_its_own_machine_only() {
    let lone = |text: &str| text.split_once("[[peers]]").expect("there are peers").0.to_owned();
    let wide = lone(&GOOD.replace("nbd = \"127.77.0.2", "nbd = \"0.0.0.0"));
    assert!(refused(&wide).contains("insecure"));
    let insecure = wide.replace("node = 2", "node = 2\ninsecure = true");
    let config = Config::parse(Path::new("/x"), &insecure).expect("it says so");
    assert_eq!(config.nbd_tls, nbd::Tls::Absent);
    let asked = lone(GOOD).replace("node = 2", "node = 2\nnbd_tls_required = true");
    assert!(refused(&asked).contains("nbd_tls_required"));
}

#[test]
fn who_is_revoked_is_named_by_number_or_serial() {
    let revoked = |lines: &str| GOOD.replace("node = 2", &format!("node = 2\n{lines}"));
    let text = revoked("revoked_nodes = [3]\nrevoked_serials = [\"0A:ff\", \"8001\"]");
    let config = Config::parse(Path::new("/x"), &text).expect("it is good");
    assert!(config.revoked.nodes.contains(&base::NodeId(3)));
    assert!(config.revoked.serials.contains(&vec![0x0a, 0xff]));
    assert!(config.revoked.serials.contains(&vec![0, 0x80, 0x01]));
    assert!(refused(&revoked("revoked_nodes = [2]")).contains("revoked_nodes"));
    for bad in ["", "abc", "xy", "+1", "é"] {
        assert!(refused(&revoked(&format!("revoked_serials = [\"{bad}\"]"))).contains("serial"));
    }
}

#[test]
fn a_peer_twice_or_with_our_own_number_is_refused() {
    assert!(refused(&GOOD.replace("id = 3", "id = 1")).contains("twice"));
    assert!(refused(&GOOD.replace("id = 3", "id = 2")).contains("this node"));
}

#[test]
fn faults_must_be_allowed_by_name() {
    let faults = format!("{GOOD}[faults]\nwrite_errors_one_in = 7\nvolatile_cache = true\n");
    assert!(refused(&faults).contains("allow_faults"));
    let allowed = faults.replace("node = 2", "node = 2\nallow_faults = true");
    let config = Config::parse(Path::new("/x"), &allowed).expect("it is allowed");
    assert_eq!(config.faults.expect("it is there").write_errors_one_in, 7);
    assert!(refused(&allowed.replace("write_errors", "wright_errors")).contains("wright_errors"));
}

#[test]
fn every_key_is_documented_and_no_other() {
    let error = toml::from_str::<File>("misspelt = 1").expect_err("unknown").to_string();
    let list = error.split("expected one of").nth(1).expect("serde names the keys");
    let keys: Vec<&str> = list.split('`').skip(1).step_by(2).collect();
    assert!(keys.contains(&"disk_late_ms"), "{error}");
    let page = include_str!("../../../../docs/node.md");
    let table = page.split("## Every key").nth(1).expect("the table");
    let rows = table.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
    let told: Vec<&str> = rows
        .flat_map(|row| row.split('`').skip(1).step_by(2))
        .map(|key| key.trim_matches(['[', ']']))
        .collect();
    for key in &keys {
        assert!(told.contains(key), "docs/node.md does not tell of {key}");
    }
    for key in told {
        assert!(keys.contains(&key), "docs/node.md tells of {key}, which is no key");
    }
}

/// `node.toml`, for the fuzzer; a longer run than the one below: `cargo xtask fuzz node-file`.
const NODE_FILE: Target = Target {
    name: "node-file",
    what: "a node's own file",
    valid: |_| GOOD.as_bytes().to_vec(),
    mend: nothing,
    judge: |input| {
        let Ok(text) = std::str::from_utf8(input) else { return outcome(&"no text") };
        match Config::parse(Path::new("/nowhere"), text) {
            Ok(config) => {
                assert!(config.node != NodeId(0) && config.peers.len() <= PEERS_MAX);
                assert!(config.peers.windows(2).all(|pair| pair[0].id < pair[1].id));
                assert!(config.peers.iter().all(|peer| peer.id != config.node));
                assert!(config.threads.is_power_of_two());
                outcome(&(config.peers.len(), config.nbd_tls, config.faults.is_some()))
            }
            // Its last line says what is wrong, and from the first backtick on it may repeat the file.
            Err(error) => {
                let last = error.0.trim_end().lines().last().unwrap_or("");
                outcome(&last.split('`').next())
            }
        }
    },
    words: &[
        "[[peers]]\n",
        "[faults]\n",
        "allow_faults = true\n",
        "threads = 8\n",
        "disk_late_ms = ",
        "= \"\"",
        "= -1",
        "revoked_nodes = [",
        "revoked_serials = [\"0a:ff\"]\n",
        "nbd_tls_required = true\n",
        "certificate = \"a\"\n",
        "\"[::1]:1\"",
        "buffer_bytes = 1e9",
        "0x",
        "ff",
        "é",
        "]",
        "\n",
    ],
};

#[test]
fn no_node_file_does_harm() {
    fuzz::judge_all(&NODE_FILE, 20);
}

#[test]
fn where_the_kernel_does_not_say_which_boot_it_is_each_start_is_one() {
    assert_eq!(super::boot(Some(7)), 7);
    assert_ne!(super::boot(None), super::boot(None), "a power cut would not be noticed");
}
