//! Who is not let in, and what each end says about it.

use std::collections::BTreeSet;

use base::{ClusterId, NodeId, Prng};

use super::*;
use crate::CERTIFICATE_DAYS;
use crate::{Peer, Refusal};

/// Lets two ends try; answers why each gave up.
fn meet(dialler: &Config, acceptor: &Config) -> (Option<LinkError>, Option<LinkError>) {
    let (mut a, mut b) = ends(dialler, acceptor);
    pump(&mut a, &mut b, 300, &mut Prng::new(5));
    assert!(!a.ready && !b.ready, "nobody is let in");
    (a.error, b.error)
}

fn node(authority: &Authority, number: u16) -> Config {
    config(&identity(authority, number), LinkMode::Encrypted)
}

fn issued_at(authority: &Authority, number: u16, time: u64) -> Config {
    let identity = authority.issue(NodeId(number), "some-node", &[], time).unwrap();
    config(&identity, LinkMode::Encrypted)
}

#[test]
fn another_authority_of_the_same_cluster_is_unknown() {
    let (ours, other) = (authority(), authority());
    let refusal = Refusal::UnknownAuthority;
    let (a, b) = meet(&node(&ours, 1), &node(&other, 2));
    assert_eq!(a, Some(LinkError::Refused(refusal.clone())));
    assert_eq!(b, Some(LinkError::RefusedByPeer(Some(refusal))));
}

#[test]
fn another_cluster_is_named() {
    let (ours, other) = (authority(), Authority::create(ClusterId(7), NOW).unwrap());
    let refusal = Refusal::OtherCluster { local: CLUSTER, remote: ClusterId(7) };
    let (a, b) = meet(&node(&ours, 1), &node(&other, 2));
    assert_eq!(a, Some(LinkError::Refused(refusal)));
    assert_eq!(b, Some(LinkError::RefusedByPeer(None)));
}

#[test]
fn an_expired_acceptor_is_refused_by_the_dialler() {
    let authority = authority();
    let expired = issued_at(&authority, 2, NOW - (CERTIFICATE_DAYS + 1) * 24 * 3600);
    let (a, b) = meet(&node(&authority, 1), &expired);
    assert_eq!(a, Some(LinkError::Refused(Refusal::Expired)));
    assert_eq!(b, Some(LinkError::RefusedByPeer(Some(Refusal::Expired))));
}

#[test]
fn an_expired_dialler_is_refused_by_the_acceptor_and_learns_it() {
    let authority = authority();
    let expired = issued_at(&authority, 1, NOW - (CERTIFICATE_DAYS + 1) * 24 * 3600);
    let (a, b) = meet(&expired, &node(&authority, 2));
    assert_eq!(a, Some(LinkError::RefusedByPeer(Some(Refusal::Expired))));
    assert_eq!(b, Some(LinkError::Refused(Refusal::Expired)));
}

#[test]
fn a_certificate_of_the_future_is_refused() {
    let authority = authority();
    let early = issued_at(&authority, 1, NOW + 3 * 24 * 3600);
    let (_, b) = meet(&early, &node(&authority, 2));
    assert_eq!(b, Some(LinkError::Refused(Refusal::NotYetValid)));
}

#[test]
fn the_wrong_node_behind_an_address_is_named() {
    let authority = authority();
    let (mut a, mut b) = ends(&node(&authority, 1), &node(&authority, 3));
    pump(&mut a, &mut b, 300, &mut Prng::new(5));
    let found = Peer::Node(NodeId(3));
    assert_eq!(a.error, Some(LinkError::OtherPeer { expected: NodeId(2), found }));
}

#[test]
fn a_client_certificate_serves_nobody_and_is_no_node() {
    let authority = authority();
    let client = authority.issue_client("backup", NOW).unwrap();
    let client = config(&client, LinkMode::Encrypted);
    let (a, _) = meet(&node(&authority, 1), &client);
    assert_eq!(a, Some(LinkError::Refused(Refusal::WrongPurpose)));
    let (_, b) = meet(&client, &node(&authority, 2));
    let Some(LinkError::Hello(crate::HelloError::OtherNode { certified, .. })) = b else {
        panic!("{b:?}")
    };
    assert_eq!(certified, Peer::Client("backup".to_owned()));
}

#[test]
fn revoked_serials_and_nodes_are_refused_and_live_sessions_are_found() {
    let authority = authority();
    let (one, two) = (identity(&authority, 1), identity(&authority, 2));
    let serial = Revocations {
        serials: BTreeSet::from([one.claims().serial.clone()]),
        ..Revocations::default()
    };
    let number = Revocations { nodes: BTreeSet::from([NodeId(1)]), ..Revocations::default() };
    for list in [serial, number] {
        let strict = config_refusing(&two, LinkMode::Encrypted, list.clone());
        let (a, b) = meet(&config(&one, LinkMode::Encrypted), &strict);
        assert_eq!(a, Some(LinkError::RefusedByPeer(Some(Refusal::Revoked))));
        assert_eq!(b, Some(LinkError::Refused(Refusal::Revoked)));

        let lenient = config(&two, LinkMode::Encrypted);
        let (mut a, mut b) = ends(&config(&one, LinkMode::Encrypted), &lenient);
        pump(&mut a, &mut b, 300, &mut Prng::new(5));
        assert!(b.ready);
        assert!(b.link.is_revoked(&list), "node 1 is on the list");
        assert!(!a.link.is_revoked(&list), "node 2 is not");
    }
}

#[test]
fn a_renewed_certificate_is_let_in_where_the_old_serial_is_revoked() {
    let authority = authority();
    let (old, new) = (identity(&authority, 1), identity(&authority, 1));
    let serials = BTreeSet::from([old.claims().serial.clone()]);
    let list = Revocations { serials, ..Revocations::default() };
    let two = config_refusing(&identity(&authority, 2), LinkMode::Encrypted, list);
    let (mut a, mut b) = ends(&config(&new, LinkMode::Encrypted), &two);
    pump(&mut a, &mut b, 300, &mut Prng::new(5));
    assert!(a.ready && b.ready);
}

#[test]
fn two_authorities_are_trusted_while_one_replaces_the_other() {
    let (old, new) = (authority(), authority());
    let both = [old.certificate_pem(), new.certificate_pem()].concat();
    let with_both = |identity: Identity| {
        let certificate = identity.certificate_pem().to_owned();
        let key = identity.key_pem().to_owned();
        config(&Identity::from_pem(certificate, key, both.clone()).unwrap(), LinkMode::Encrypted)
    };
    let (mut a, mut b) = ends(&with_both(identity(&old, 1)), &with_both(identity(&new, 2)));
    pump(&mut a, &mut b, 300, &mut Prng::new(5));
    assert!(a.ready && b.ready, "{:?} {:?}", a.error, b.error);
}

#[test]
fn ends_that_disagree_about_encryption_both_name_both_settings() {
    let authority = authority();
    for (local, remote) in
        [(LinkMode::Encrypted, LinkMode::Plain), (LinkMode::Plain, LinkMode::Encrypted)]
    {
        let one = config(&identity(&authority, 1), local);
        let two = config(&identity(&authority, 2), remote);
        let (a, b) = meet(&one, &two);
        assert_eq!(a, Some(LinkError::ModeMismatch { local, remote }));
        assert_eq!(b, Some(LinkError::ModeMismatch { local: remote, remote: local }));
        let text = a.unwrap().to_string();
        assert!(text.contains("on") && text.contains("off"), "{text}");
    }
}
