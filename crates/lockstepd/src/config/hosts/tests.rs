//! What a table of hosts admits, what it is refused for, and that it is told without a secret.

use super::{Admission, HostTable};
use std::os::unix::fs::PermissionsExt;

const SECRET: &str = "DHHC-1:01:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:";
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
        (good.replacen(&format!("secret = \"{SECRET}\"\n"), "", 1), "missing field"),
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
