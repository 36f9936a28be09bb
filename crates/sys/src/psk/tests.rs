//! Two sides in one process: what comes through, and who does not.

use super::{PSK_HANDSHAKE_BYTES_MAX, Psk, PskFault, PskSession, PskTls};
use std::sync::Arc;

fn key(number: u8, bytes: usize) -> Psk {
    Psk::new(vec![number; bytes]).expect("a right length")
}

/// The library, or `None` and a word that nothing was tried.
fn tls() -> Option<PskTls> {
    PskTls::new().map_err(|why| println!("NOT RUN: {why}")).ok()
}

fn accepting(tls: &PskTls, keys: &[(&str, Psk)]) -> PskSession {
    let keys: Vec<(String, Psk)> =
        keys.iter().map(|(name, key)| ((*name).to_owned(), key.clone())).collect();
    tls.accept(Arc::new(move |identity: &str| {
        keys.iter().filter(|(name, _)| name == identity).map(|(_, key)| key.clone()).collect()
    }))
}

fn outgoing(session: &mut PskSession) -> Vec<u8> {
    let mut bytes = vec![0; session.outgoing_bytes()];
    let count = session.outgoing(&mut bytes);
    assert_eq!(count, bytes.len());
    bytes
}

/// Lets both speak until neither has more to say; `step` bytes at a time.
fn meet(
    one: &mut PskSession,
    other: &mut PskSession,
    step: usize,
) -> (Result<usize, PskFault>, Result<usize, PskFault>) {
    let mut results = (one.read(&mut []), other.read(&mut []));
    loop {
        let (there, back) = (outgoing(one), outgoing(other));
        if there.is_empty() && back.is_empty() {
            return results;
        }
        for part in there.chunks(step) {
            other.take(part);
            results.1 = other.read(&mut []);
        }
        for part in back.chunks(step) {
            one.take(part);
            results.0 = one.read(&mut []);
        }
    }
}

/// What `from` writes, as `to` reads it.
fn carry(from: &mut PskSession, to: &mut PskSession, bytes: &[u8]) -> Vec<u8> {
    from.write(bytes);
    to.take(&outgoing(from));
    let mut place = vec![0; bytes.len() + 1];
    let count = to.read(&mut place).expect("they have met");
    place.truncate(count);
    place
}

#[test]
fn sides_with_one_key_understand_each_other_by_both_suites() {
    let Some(tls) = tls() else { return };
    for (length, step) in [(32, usize::MAX), (48, usize::MAX), (32, 1), (48, 7)] {
        let mut server = accepting(&tls, &[("one", key(1, length)), ("two", key(2, length))]);
        let mut client = tls.connect("two", key(2, length));
        let met = meet(&mut client, &mut server, step);
        assert_eq!(met, (Ok(0), Ok(0)));
        assert!(client.is_open() && server.is_open());
        assert_eq!(server.shown(), Some(("two", &key(2, length))));
        let bytes: Vec<u8> = (0..100_000_u32).map(|at| at.to_le_bytes()[0]).collect();
        assert!(carry(&mut client, &mut server, &bytes) == bytes);
        assert!(carry(&mut server, &mut client, &bytes) == bytes);
        server.close();
        client.take(&outgoing(&mut server));
        assert_eq!(client.read(&mut [0; 9]), Err(PskFault::Closed));
    }
}

#[test]
fn of_several_keys_under_one_identity_each_will_do() {
    let Some(tls) = tls() else { return };
    let keys = [("one", key(1, 32)), ("one", key(2, 48)), ("one", key(3, 32)), ("one", key(4, 48))];
    for (_, own) in keys.clone() {
        let mut server = accepting(&tls, &keys);
        let mut client = tls.connect("one", own);
        assert_eq!(meet(&mut client, &mut server, usize::MAX), (Ok(0), Ok(0)));
        assert_eq!(carry(&mut client, &mut server, b"said"), b"said");
    }
}

#[test]
fn who_has_no_key_or_a_wrong_one_is_told_nothing_but_that() {
    let Some(tls) = tls() else { return };
    for length in [32, 48] {
        let mut server = accepting(&tls, &[("one", key(1, length)), ("one", key(2, length))]);
        let mut client = tls.connect("one", key(9, length));
        let (told, found) = meet(&mut client, &mut server, usize::MAX);
        assert_eq!(found, Err(PskFault::WrongKey("one".to_owned())));
        assert!(matches!(told, Err(PskFault::Broken(_))), "{told:?}");
        assert!(!server.is_open() && !client.is_open() && server.shown().is_none());
        let mut server = accepting(&tls, &[("one", key(1, length))]);
        let mut client = tls.connect("other", key(1, length));
        let (told, found) = meet(&mut client, &mut server, usize::MAX);
        assert_eq!(found, Err(PskFault::Unknown("other".to_owned())));
        assert!(matches!(told, Err(PskFault::Broken(_))), "{told:?}");
    }
    // The right bytes, for the other suite.
    let mut server = accepting(&tls, &[("one", key(1, 48))]);
    let mut client = tls.connect("one", key(1, 32));
    let (_, found) = meet(&mut client, &mut server, usize::MAX);
    assert_eq!(found, Err(PskFault::WrongKey("one".to_owned())));
}

#[test]
fn what_is_no_handshake_ends_it_and_nobody_may_say_too_much() {
    let Some(tls) = tls() else { return };
    let keys = [("one", key(1, 32))];
    for garbage in
        [&[0; 64][..], &[0xff; 64], b"GET / HTTP/1.1\r\n\r\n", &[0x16, 3, 1, 0, 4, 1, 0, 0, 0]]
    {
        let mut server = accepting(&tls, &keys);
        server.take(garbage);
        assert!(matches!(server.read(&mut []), Err(PskFault::Broken(_))), "{garbage:?}");
    }
    // The start of a record that never ends.
    let mut server = accepting(&tls, &keys);
    server.take(&[0x16, 3, 1, 0x40, 0]);
    assert_eq!(server.read(&mut []), Ok(0));
    assert_eq!(server.receive_max(), PSK_HANDSHAKE_BYTES_MAX - 5);
    server.take(&vec![1; PSK_HANDSHAKE_BYTES_MAX]);
    assert_eq!(server.read(&mut []), Err(PskFault::TooMuch));
    assert_eq!(server.outgoing_bytes(), 0);
}

#[test]
fn every_byte_of_a_handshake_that_is_changed_or_missing_keeps_it_closed() {
    let Some(tls) = tls() else { return };
    let hello = outgoing_of(&tls);
    for at in 0..hello.len() {
        let mut server = accepting(&tls, &[("one", key(1, 32))]);
        let mut changed = hello.clone();
        changed[at] ^= 0x41;
        server.take(&changed);
        let _ = server.read(&mut []);
        assert!(!server.is_open());
        let mut server = accepting(&tls, &[("one", key(1, 32))]);
        server.take(&hello[..at]);
        assert_eq!(server.read(&mut []), Ok(0), "{at} bytes of {}", hello.len());
        assert_eq!(server.outgoing_bytes(), 0, "and nothing is said");
    }
    // The same first words again: they open nothing, for their speaker has to go on.
    let mut server = accepting(&tls, &[("one", key(1, 32))]);
    server.take(&hello);
    assert_eq!(server.read(&mut []), Ok(0));
    assert!(!server.is_open());
}

fn outgoing_of(tls: &PskTls) -> Vec<u8> {
    let mut client = tls.connect("one", key(1, 32));
    client.read(&mut []).expect("it only speaks");
    outgoing(&mut client)
}

#[test]
fn a_record_that_was_changed_on_its_way_ends_the_session() {
    let Some(tls) = tls() else { return };
    let mut server = accepting(&tls, &[("one", key(1, 32))]);
    let mut client = tls.connect("one", key(1, 32));
    assert_eq!(meet(&mut client, &mut server, usize::MAX), (Ok(0), Ok(0)));
    client.write(b"some words");
    let mut record = outgoing(&mut client);
    let last = record.len() - 1;
    record[last] ^= 1;
    server.take(&record);
    let mut place = [0; 64];
    assert!(matches!(server.read(&mut place), Err(PskFault::Broken(_))));
    assert_eq!(place, [0; 64]);
    assert!(!format!("{:?} {:?}", key(7, 32), server.read(&mut [])).contains("7, 7"));
}
