//! Certificates in files and out of them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use base::NodeId;

use super::*;
use crate::{IdentityError, Peer};

/// A directory that goes with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("link-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn an_identity_is_read_as_it_was_written_and_its_key_is_private() {
    let scratch = Scratch::new("identity");
    let identity = identity(&authority(), 300);
    identity.save(&scratch.0).unwrap();
    identity.save(&scratch.0).unwrap();
    let read = Identity::load(&scratch.0).unwrap();
    assert_eq!(read.claims(), identity.claims());
    assert_eq!((read.cluster(), read.peer()), (CLUSTER, &Peer::Node(NodeId(300))));
    let mode = fs::metadata(scratch.0.join("key.pem")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 3, "nothing is left over");
}

#[test]
fn an_authority_read_from_files_issues_what_the_first_one_trusts() {
    let scratch = Scratch::new("authority");
    let first = authority();
    first.save(&scratch.0).unwrap();
    let mode = fs::metadata(scratch.0.join("authority-key.pem")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let second = Authority::load(&scratch.0).unwrap();
    assert_eq!(second.cluster(), CLUSTER);
    let one = config(&identity(&first, 1), LinkMode::Encrypted);
    let two = config(&identity(&second, 2), LinkMode::Encrypted);
    let (mut a, mut b) = ends(&one, &two);
    pump(&mut a, &mut b, 1000, &mut Prng::new(1));
    assert!(a.ready && b.ready, "{:?} {:?}", a.error, b.error);
}

#[test]
fn a_key_of_another_certificate_is_found_when_it_is_read() {
    let authority = authority();
    let (one, two) = (identity(&authority, 1), identity(&authority, 1));
    let mixed = Identity::from_pem(
        one.certificate_pem().to_owned(),
        two.key_pem().to_owned(),
        one.authority_pem().to_owned(),
    );
    assert!(matches!(mixed, Err(IdentityError::Damaged(_))));
}

#[test]
fn texts_that_are_no_certificates_are_refused() {
    let identity = identity(&authority(), 1);
    let texts = [String::new(), "garbage".to_owned(), identity.certificate_pem().replace('M', "N")];
    for text in texts {
        let key = identity.key_pem().to_owned();
        let read = Identity::from_pem(text, key, identity.authority_pem().to_owned());
        assert!(read.is_err());
    }
}

#[test]
fn an_authority_is_no_node() {
    let authority = authority();
    let scratch = Scratch::new("no-node");
    authority.save(&scratch.0).unwrap();
    let key = fs::read_to_string(scratch.0.join("authority-key.pem")).unwrap();
    let pem = authority.certificate_pem().to_owned();
    assert!(matches!(
        Identity::from_pem(pem.clone(), key, pem),
        Err(IdentityError::Certificate(_))
    ));
}

#[test]
fn names_that_could_break_out_of_a_certificate_are_refused() {
    let authority = authority();
    for name in ["", "a/b", "a b", "node/7", "é", &"x".repeat(65)] {
        assert!(matches!(authority.issue_client(name, NOW), Err(IdentityError::Name(_))), "{name}");
        assert!(authority.issue(NodeId(1), name, &[], NOW).is_err(), "{name}");
    }
}

#[test]
fn an_identity_tells_when_it_has_to_be_renewed() {
    let identity = identity(&authority(), 1);
    assert_eq!(identity.expires_unix(), NOW + crate::CERTIFICATE_DAYS * 24 * 3600);
}

#[test]
fn keys_do_not_show_in_debug_output() {
    let identity = identity(&authority(), 1);
    assert_eq!(format!("{identity:?}"), "Identity(node 1 of 123456789abcdef0)");
}
