//! The client's end, against servers that are not ours.

use super::goal;
use crate::number::*;
use crate::{Client, ErrorCode, Replies, Reply, ServerMisbehaved};
use alloc::string::String;
use alloc::vec::Vec;

const GREETING: &[u8] = b"NBDMAGICIHAVEOPT\x00\x03";

/// A client that has asked for an export without wishes.
fn going() -> Client {
    let mut client = Client::new(goal("disk", false, false), false);
    assert_eq!(client.feed(GREETING, &mut Vec::new()), Ok((18, None)));
    client
}

fn option_reply(option: u32, reply: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
    for field in [option, reply, data.len() as u32] {
        bytes.extend_from_slice(&field.to_be_bytes());
    }
    bytes.extend_from_slice(data);
    bytes
}

fn chunk(flags: u16, kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = STRUCTURED_REPLY_MAGIC.to_be_bytes().to_vec();
    bytes.extend_from_slice(&flags.to_be_bytes());
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&5_u64.to_be_bytes());
    bytes.extend_from_slice(&(payload.len() as u32).to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// What the client makes of a server's words; header and data of a reply take a call each.
fn outcome(client: &mut Client, bytes: &[u8]) -> Result<(), ServerMisbehaved> {
    let mut at = 0;
    while at < bytes.len() {
        let (taken, _) = client.feed(&bytes[at..], &mut Vec::new())?;
        assert!(taken > 0);
        at += taken;
    }
    Ok(())
}

#[test]
fn client_speaks_only_with_fixed_newstyle() {
    for greeting in
        [&b"NBDMAGICIHAVEOPT\x00\x02"[..], b"NBDMAGIC\x00\x00B\x02\x81\x86\x12S\x00\x03", &[0; 18]]
    {
        let mut client = Client::new(goal("disk", false, false), false);
        assert_eq!(client.feed(greeting, &mut Vec::new()), Err(ServerMisbehaved::BadGreeting));
    }
}

#[test]
fn server_that_breaks_the_handshake_is_found_out() {
    let cases = [
        ([0; 20].to_vec(), ServerMisbehaved::BadMagic),
        (option_reply(OPT_LIST, REP_ACK, &[]), ServerMisbehaved::Unexpected),
        (option_reply(OPT_GO, REP_SERVER, &[]), ServerMisbehaved::Unexpected),
        (option_reply(OPT_GO, REP_ACK, &[]), ServerMisbehaved::Malformed),
        (option_reply(OPT_GO, REP_INFO, &[0, 0, 1]), ServerMisbehaved::Malformed),
        (option_reply(OPT_GO, REP_INFO, &[0; 13]), ServerMisbehaved::Malformed),
        (option_reply(OPT_GO, REP_INFO, &[0, 1, 0xff]), ServerMisbehaved::Malformed),
        (
            option_reply(OPT_GO, REP_INFO, &[0; REPLY_DATA_BYTES_MAX as usize + 1]),
            ServerMisbehaved::TooLarge,
        ),
    ];
    for (bytes, expected) in cases {
        assert_eq!(outcome(&mut going(), &bytes), Err(expected), "{:?}", &bytes[..20]);
    }
    assert_eq!(outcome(&mut going(), &option_reply(OPT_GO, REP_INFO, &[0, 99, 1, 2])), Ok(()));
}

#[test]
fn server_without_structured_replies_is_used_without() {
    let mut client = Client::new(goal("disk", true, true), false);
    let mut send = Vec::new();
    assert!(client.feed(GREETING, &mut send).is_ok());
    send.clear();
    let no = option_reply(OPT_STRUCTURED_REPLY, REP_ERR_UNSUP, &[]);
    assert!(client.feed(&no, &mut send).is_ok());
    assert_eq!(send[8..12], OPT_GO.to_be_bytes());
}

#[test]
fn every_kind_of_reply_is_understood_at_any_step() {
    let mut stream = Vec::new();
    let mut expected = Vec::new();
    let (cookie, code) = (5, ErrorCode::NoSpace);
    let mut add = |bytes: &[u8], reply: Reply| {
        stream.extend_from_slice(bytes);
        expected.push(reply);
    };
    add(
        b"\x67\x44\x66\x98\0\0\0\x1c\0\0\0\0\0\0\0\x05",
        Reply::Simple { cookie, error: Some(code) },
    );
    add(b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0\x05", Reply::Simple { cookie, error: None });
    add(&chunk(1, REPLY_TYPE_NONE, &[]), Reply::Done { cookie });
    let hole = [0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 4, 0];
    let (offset_bytes, length_bytes) = (512, 1024);
    add(
        &chunk(0, REPLY_TYPE_OFFSET_HOLE, &hole),
        Reply::Hole { cookie, done: false, offset_bytes, length_bytes },
    );
    let message = String::from("why");
    add(
        &chunk(1, REPLY_TYPE_ERROR, b"\0\0\0\x1c\0\x03why"),
        Reply::Error { cookie, done: true, code, message: message.clone() },
    );
    add(
        &chunk(0, REPLY_TYPE_ERROR + 1, b"\0\0\0\x1c\0\x03why\0\0\0\0\0\0\0\0"),
        Reply::Error { cookie, done: false, code, message },
    );
    add(
        &chunk(1, REPLY_TYPE_ERROR_BIT + 99, b"\0\0\0\x1c\0\0"),
        Reply::Error { cookie, done: true, code, message: String::new() },
    );
    for step in [1, 3, 4, 5, 16, 20, 1000] {
        let (mut reader, mut found, mut at) = (Replies::new(), Vec::new(), 0);
        while at < stream.len() {
            let end = stream.len().min(at + step);
            let (taken, reply) = reader.feed(&stream[at..end]).unwrap();
            at += taken;
            found.extend(reply);
        }
        assert_eq!(found, expected, "step {step}");
    }
}

#[test]
fn server_that_breaks_a_reply_is_found_out() {
    use ServerMisbehaved::{BadMagic, Malformed, TooLarge, Unexpected};
    let mut long = chunk(1, REPLY_TYPE_OFFSET_DATA, &[]);
    long[16..].copy_from_slice(&(PAYLOAD_BYTES_MAX + 9).to_be_bytes());
    let mut wordy = chunk(1, REPLY_TYPE_ERROR, &[]);
    wordy[16..].copy_from_slice(&100_000_u32.to_be_bytes());
    let mut status = chunk(1, REPLY_TYPE_BLOCK_STATUS, &[]);
    status[16..].copy_from_slice(&(4 + 8 * ((1 << 20) + 1_u32)).to_be_bytes());
    let cases = [
        (b"rubbish".to_vec(), BadMagic),
        (chunk(0, REPLY_TYPE_NONE, &[]), Malformed),
        (chunk(1, REPLY_TYPE_NONE, &[0]), Malformed),
        (chunk(1, REPLY_TYPE_OFFSET_DATA, &[0; 8]), Malformed),
        (chunk(1, REPLY_TYPE_OFFSET_HOLE, &[0; 12]), Malformed),
        (chunk(1, REPLY_TYPE_OFFSET_HOLE, &[0; 13]), Malformed),
        (chunk(1, REPLY_TYPE_BLOCK_STATUS, &[0; 4]), Malformed),
        (chunk(1, REPLY_TYPE_BLOCK_STATUS, &[0; 11]), Malformed),
        (chunk(1, REPLY_TYPE_ERROR, &[0; 5]), Malformed),
        (chunk(1, REPLY_TYPE_ERROR, &[0; 6]), Malformed),
        (chunk(1, REPLY_TYPE_ERROR, b"\0\0\0\x05\0\x09short"), Malformed),
        (chunk(1, 77, &[]), Unexpected),
        (long, TooLarge),
        (wordy, TooLarge),
        (status, TooLarge),
    ];
    for (bytes, expected) in cases {
        assert_eq!(Replies::new().feed(&bytes), Err(expected), "{bytes:?}");
    }
}
