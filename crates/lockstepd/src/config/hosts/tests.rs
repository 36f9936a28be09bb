//! What a table of hosts admits, what it is refused for, and that it is told without a secret.

use super::{Admission, HostTable};
use fuzz::{Target, nothing, outcome};
use nvme::TlsNames;
use std::os::unix::fs::PermissionsExt;

const SECRET: &str = "DHHC-1:01:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:";
const KEY: &str = "NVMeTLSkey-1:01:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:";
const OTHER: &str = "DHHC-1:01:EABQE0wLgHjYgjFzZA29pOFnfN2YRwaB8an4jz0YWZ/RnDJK:";
/// The middle of both, in part.
const HIDDEN: [&str; 2] = ["AQIDBAUGBwgJ", "EABQE0wLgHjY"];

fn good() -> String {
    format!(
        "open = [\"scratch\"]\n[[hosts]]\nnqn = \"nqn.one\"\nsecret = \"{SECRET}\"\nold_secret = \"{OTHER}\"\n\
         [[hosts]]\nnqn = \"nqn.two\"\nsecret = \"{SECRET}\"\ncontroller_secret = \"{OTHER}\"\nresources = [\"web\"]\n"
    )
}

#[test]
fn hosts_reach_what_the_table_says() {
    let table = HostTable::parse(&good()).expect("it is good");
    assert_eq!(table.len(), 2);
    let secrets = |host, resource| match table.admits(host, resource) {
        Admission::Proof(credentials) => {
            (credentials.host.len(), usize::from(credentials.controller.is_some()))
        }
        Admission::Open => (0, 0),
        Admission::Sealed => (8, 8),
        Admission::Refused => (9, 9),
    };
    assert_eq!(secrets("nqn.one", "web"), (2, 0));
    assert_eq!(secrets("nqn.one", "db"), (2, 0));
    assert_eq!(secrets("nqn.two", "web"), (1, 1));
    assert_eq!(secrets("nqn.two", "db"), (9, 9));
    assert_eq!(secrets("nqn.three", "web"), (9, 9));
    assert_eq!(secrets("nqn.three", "scratch"), (0, 0));
    let none = HostTable::parse("").expect("it lets nobody in");
    assert_eq!(none.admits("nqn.one", "web"), Admission::Refused);
}

#[test]
fn a_name_that_no_resource_can_have_is_refused_and_not_repeated() {
    for (right, wrong, said) in [
        ("[\"web\"]", "[\"web\", \"Web\"]".to_owned(), "host nqn.two: number 2"),
        ("[\"scratch\"]", "[\"web/0\"]".to_owned(), "`open`: number 1"),
        ("[\"scratch\"]", format!("[\"{SECRET}\"]"), "`open`: number 1"),
    ] {
        let why = HostTable::parse(&good().replace(right, &wrong)).expect_err("it opens nothing");
        assert!(why.contains(said) && !why.contains(HIDDEN[0]), "{why}");
    }
}

#[test]
fn a_key_belongs_to_one_host_and_one_subsystem() {
    let text = format!(
        "[[hosts]]\nnqn = \"nqn.one\"\ntls_key = \"{KEY}\"\nresources = [\"web\"]\n\
         [[hosts]]\nnqn = \"nqn.two\"\nsecret = \"{SECRET}\"\n"
    );
    let table = HostTable::parse(&text).expect("it is good");
    assert!(table.has_keys() && table.seals("nqn.one") && !table.seals("nqn.two"));
    assert_eq!(table.admits("nqn.one", "web"), Admission::Sealed);
    assert_eq!(table.admits("nqn.one", "db"), Admission::Refused);
    let names = |host: &str| TlsNames { host: host.to_owned(), subsystem: "nqn.x:web".to_owned() };
    let identity = "NVMe0R01 nqn.one nqn.x:web";
    assert_eq!(table.psks(&names("nqn.one"), identity).len(), 2, "by both derivations");
    assert!(table.psks(&names("nqn.one"), "NVMe0R01 nqn.one nqn.x:db").is_empty());
    assert!(table.psks(&names("nqn.two"), "NVMe0R01 nqn.two nqn.x:web").is_empty());
    assert!(!table.is_sealed(), "the other host speaks in the clear");
    let old = text.replace("resources", &format!("old_tls_key = \"{KEY}\"\nresources"));
    let table = HostTable::parse(&old).expect("it is good");
    assert_eq!(table.psks(&names("nqn.one"), identity).len(), 4);
    let sealed = text.replace(&format!("secret = \"{SECRET}\""), &format!("tls_key = \"{KEY}\""));
    assert!(HostTable::parse(&sealed).is_ok_and(|table| table.is_sealed()));
    let open = format!("open = [\"scratch\"]\n{sealed}");
    assert!(HostTable::parse(&open).is_ok_and(|table| !table.is_sealed()));
    assert!(format!("{table:?}").contains("not shown") && !format!("{table:?}").contains("3, 4"));
}

#[test]
fn what_is_wrong_is_told_and_no_secret_with_it() {
    let good = good();
    let cases = [
        (good.replace("nqn.one", "one"), "host number 1 is no host's name"),
        (good.replace("nqn.two", SECRET), "host number 2 is no host's name"),
        (good.replace("nqn.two", "nqn.one"), "twice"),
        (good.replacen("secret =", "secrte =", 1), "line 4: unknown field"),
        (good.replacen(&format!("\"{SECRET}\""), SECRET, 1), "line 4"),
        (good.replacen(&format!("\"{SECRET}\""), &format!("\"{SECRET}"), 1), "line 4"),
        (good.replacen("secret = \"", "secret = [\"", 1), "line 5"),
        (good.replace("[\"web\"]", &format!("\"{SECRET}\"")), "line 10: invalid type;"),
        (good.replace("[\"scratch\"]", &format!("\"{SECRET}\"")), "line 1: invalid type;"),
        (good.replacen(&format!("secret = \"{SECRET}\"\n"), "", 1), "no `secret` among them"),
        (good.replacen("old_secret", "old_tls_key", 1), "`old_tls_key` of host nqn.one"),
        (format!("{good}old_tls_key = \"{KEY}\"\n"), "no `tls_key`"),
        (format!("{good}[[hosts]]\nnqn = \"nqn.x\"\n"), "neither `secret` nor `tls_key`"),
        (format!("{good}tls_key = \"{}\"\n", KEY.replacen("AQIDB", "AQIDC", 1)), "damaged"),
        (format!("{good}tls_key = {KEY}\n"), "line 11"),
        (good.replacen("nqn = \"nqn.one\"", &format!("{SECRET} = 1"), 1), "line 3"),
        (good.replacen(":01:", ":02:", 1), "`secret` of host nqn.one is of a wrong length"),
        (good.replacen("AQIDB", "AQIDC", 1), "damaged"),
        (
            good.replacen(&format!("old_secret = \"{OTHER}"), "old_secret = \"x", 1),
            "`old_secret` of host nqn.one",
        ),
        (
            // The same bytes, bound to its name.
            good.replace(
                &format!("controller_secret = \"{OTHER}"),
                &format!("controller_secret = \"{}", SECRET.replacen(":01:", ":00:", 1)),
            ),
            "is the host's own",
        ),
        (
            good.replace(
                &format!("controller_secret = \"{OTHER}"),
                &format!("controller_secret = \"{SECRET}"),
            ),
            "is the host's own",
        ),
    ];
    for (text, expected) in cases {
        let told = HostTable::parse(&text).expect_err(&text);
        assert!(told.contains(expected), "{told}");
        assert!(!HIDDEN.iter().any(|hidden| told.contains(hidden)), "{told}");
    }
    let shown = format!("{:?}", HostTable::parse(&good));
    assert!(!HIDDEN.iter().any(|hidden| shown.contains(hidden)) && shown.contains("not shown"));
}

#[test]
fn a_file_that_others_may_read_or_that_nobody_named_is_refused() {
    let name = format!("lockstep-hosts-{:016x}", sys::random_u64());
    let directory = std::env::temp_dir().join(name);
    std::fs::create_dir(&directory).expect("a directory");
    let path = directory.join("nvme-hosts.toml");
    assert_eq!(HostTable::read(&directory, None), Ok(None));
    let told = HostTable::read(&directory, Some(&path)).expect_err("it is not there");
    assert!(told.0.contains("nvme-hosts.toml"), "{told}");
    std::fs::write(&path, good()).expect("a file");
    let allow = |mode| {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&path, permissions).expect("its modes");
    };
    for mode in [0o644, 0o640, 0o602] {
        allow(mode);
        let told = HostTable::read(&directory, Some(&path)).expect_err("others may read it");
        assert!(told.0.contains("chmod 600"), "{told}");
    }
    allow(0o600);
    assert!(HostTable::read(&directory, Some(&path)).is_ok_and(|table| table.is_some()));
    let told = HostTable::read(&directory, None).expect_err("it was forgotten");
    assert!(told.0.contains("nvme_hosts = "), "{told}");
    std::fs::remove_dir_all(&directory).expect("our own");
}

/// A table of hosts, for the fuzzer; a longer run than the one below: `cargo xtask fuzz host-table`.
const HOST_TABLE: Target = Target {
    name: "host-table",
    what: "a table of NVMe hosts",
    valid: |_| format!("{}tls_key = \"{KEY}\"\n", good()).into_bytes(),
    mend: nothing,
    judge: |input| {
        let Ok(text) = std::str::from_utf8(input) else { return outcome(&"no text") };
        match HostTable::parse(text) {
            Ok(table) => {
                let open = matches!(table.admits("nqn.none", "web"), Admission::Open);
                let two = match table.admits("nqn.two", "web") {
                    Admission::Open => 0,
                    Admission::Sealed => 1,
                    Admission::Refused => 2,
                    Admission::Proof(credentials) => 3 + credentials.host.len().min(2),
                };
                assert!(!table.is_sealed() || !open, "who is sealed lets nobody in");
                outcome(&(table.len().min(3), open, two, table.has_keys(), table.is_sealed()))
            }
            Err(why) => {
                let hides = |text: &str| HIDDEN.iter().any(|hidden| text.contains(hidden));
                // A name is told, whatever stands in it.
                let in_a_name = text.lines().any(|line| line.contains("nqn.") && hides(line));
                assert!(in_a_name || !hides(&why), "a secret is told: {why}");
                let words =
                    why.split(|letter: char| letter.is_ascii_digit() || "`\"".contains(letter));
                outcome(&words.take(3).collect::<String>().chars().take(60).collect::<String>())
            }
        }
    },
    words: &[
        "[[hosts]]\n",
        "open = [",
        "nqn = \"nqn.",
        "secret = ",
        "controller_secret = ",
        "old_tls_key = ",
        "tls_key = ",
        "resources = []\n",
        SECRET,
        KEY,
        "DHHC-1:03:",
        "= \"\"",
        "= 1",
        "é",
        "\"\n",
    ],
};

#[test]
fn no_host_table_does_harm_or_has_a_secret_told() {
    fuzz::judge_all(&HOST_TABLE, 10);
}
