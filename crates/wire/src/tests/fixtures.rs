//! Bytes of version 1, kept in files, and beside them what they say: whoever speaks version 1 reads
//! and writes them so for ever.
//!
//! `WIRE_FIXTURES=write cargo test -p wire` makes the ones that are missing, from random values, and
//! no others: a change to bytes that were ever released is a break of the protocol. What they say may
//! get new words where a type gets a new field.

extern crate std;

use super::{frame, sample};
use crate::*;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use base::{Prng, ResourceId};
use core::fmt::Debug;
use std::path::PathBuf;

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/v1").join(name)
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for line in bytes.chunks(32) {
        text.extend(line.iter().map(|byte| format!("{byte:02x}")));
        text.push('\n');
    }
    text
}

fn bytes(text: &str) -> Vec<u8> {
    let digits: Vec<char> = text.chars().filter(|c| !c.is_whitespace()).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(&String::from_iter(pair), 16).unwrap()).collect()
}

fn keep(name: &str, made: &str) {
    let path = path(name);
    if !path.exists() && std::env::var("WIRE_FIXTURES").as_deref() == Ok("write") {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, made).unwrap();
    }
}

fn kept(name: &str) -> String {
    let path = path(name);
    std::fs::read_to_string(&path).unwrap_or_else(|_| panic!("{} is missing", path.display()))
}

/// Checks the fixture `name`; `made` and what it says become one if there is none.
fn check<T: Debug>(
    name: &str,
    made: &[u8],
    decode: impl Fn(&[u8]) -> T,
    encode: impl Fn(&T) -> Vec<u8>,
) {
    let (hex_name, text_name) = (format!("{name}.hex"), format!("{name}.txt"));
    keep(&hex_name, &hex(made));
    let kept_bytes = bytes(&kept(&hex_name));
    let value = decode(&kept_bytes);
    let says = format!("{value:#?}\n");
    keep(&text_name, &says);
    assert_eq!(says, kept(&text_name), "{name} says something else");
    assert_eq!(encode(&value), kept_bytes, "{name} is written differently");
}

#[test]
fn frames_of_version_1_are_read_and_written_for_ever() {
    for kind in 0..frame::KINDS {
        let (_, _, made) = frame::frame(kind, &mut Prng::new(1_000 + kind));
        let decode = |bytes: &[u8]| {
            let mut decoder = Decoder::new();
            decoder.open(Guard::Cipher);
            let (taken, frame) = decoder.receive(bytes).unwrap();
            assert_eq!(taken, bytes.len());
            frame.unwrap()
        };
        check(&format!("frame-{:02x}{:02x}", made[7], made[6]), &made, decode, frame::again);
    }
}

#[test]
fn an_answer_that_a_write_is_durable_and_not_in_its_place_is_read_and_written_for_ever() {
    let message = ShardMessage::Written { sequence: 9, ok: true, in_place: false };
    let mut made = Vec::new();
    encode_shard(&mut made, ResourceId(1), 2, 0, &message, Payload::NONE);
    let decode = |bytes: &[u8]| {
        let mut decoder = Decoder::new();
        decoder.open(Guard::Cipher);
        decoder.receive(bytes).unwrap().1.unwrap()
    };
    check("frame-0303-durable", &made, decode, frame::again);
}

#[test]
fn configurations_of_version_1_are_read_and_written_for_ever() {
    for seed in 0..10 {
        let encode = |configuration: &Configuration| {
            let mut bytes = Vec::new();
            encode_configuration(configuration, &mut bytes);
            bytes
        };
        let made = encode(&sample::configuration(&mut Prng::new(2_000 + seed)));
        let decode = |bytes: &[u8]| decode_configuration(bytes).unwrap();
        check(&format!("configuration-{seed}"), &made, decode, encode);
    }
}
