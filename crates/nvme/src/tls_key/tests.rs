//! Keys as tools write them, and what follows from them: numbers made by another program (Python's hashes), and by nvme-cli 2.13
//! with libnvme 1.13 where it tells them (the digests of `Bare`).

use super::{Derivation, TlsKey, TlsKeyFault, TlsNames};
use crate::auth::Hash;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:1b4e28ba-2fa1-11d2-883f-0016d3cca427";
const SUBSYSTEM: &str = "nqn.2026-11.invalid.lockstep:00000000000000aa:web";
/// Of the bytes 1, 2, ... 32, and of 1 to 48.
const SHORT: &str = "NVMeTLSkey-1:01:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:";
const LONG: &str =
    "NVMeTLSkey-1:02:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAhIiMkJSYnKCkqKywtLi8wyg3Bcw==:";

fn names() -> TlsNames {
    TlsNames { host: HOST.into(), subsystem: SUBSYSTEM.into() }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Text of a key, derivation, digest in its identity of version 1, TLS's key by version 0 and 1.
type Known = (&'static str, Derivation, &'static str, &'static str, &'static str);

#[test]
fn keys_become_what_others_make_of_them() {
    let none = SHORT.replace(":01:", ":00:");
    let cases: [Known; 5] = [
        (
            SHORT,
            Derivation::Labelled,
            "tSyN2TUYXNqpwUb4E/o6XcXHIlzUcmWtzqFjEyrIRH0=",
            "2b51584c19f551891acf15052b08d55438039b979ebdae53d873b6a69c792ec2",
            "492fae089486570dfb32becb5fe897e1dfff708775df8eedc9892bc0d43ec64c",
        ),
        (
            SHORT,
            Derivation::Bare,
            "jOKB6wY3ScQc+Y4DlXLbVRknFsF8FcVIktjWK5syEIg=",
            "c9e6590f008295afa03708f81da05e4a021700a53110b849025922ada1b9966d",
            "b9ae43c783dbde3eb8ffcc63e79f38114cd404a40441037c67288af040399a09",
        ),
        (
            LONG,
            Derivation::Labelled,
            "hapHaNLmIw53WMRHlWdx2j5kyxDNwY017w2VdVjYakxrfPdrH8yuM0WUnUdw0g9N",
            "e29cbe651c33e839bcaf0a6fc80d4ef213003286c0486bf55d0e7fa2ae699e8e5baf9d7ad0faf992f1522fbd4bce814f",
            "1a5d26822f1835a0d5aa879f3381ed05840ecb98a2bf17199e451942c73288eb1898c03d53b6404b8370d73372e79377",
        ),
        (
            LONG,
            Derivation::Bare,
            "7kGTbNMdRwX5XK8ETumzgvQAvTr93KVQjqrfKNjUFnmicWFIvB4HFgB0+KzL99LJ",
            "31ffef40dff47abc2a61a9e07db0b4dbfac2c5b25f4f741226755c7b95fce91935da534cfb22ab9b236b4d03d4ce2056",
            "a82a616395b20f68e18475d01616e3799ac65208e080f36543f76f843c167930dc28655cf8c3e932acf487feeeaba3f3",
        ),
        (
            none.leak(),
            Derivation::Labelled,
            "XT2tiA2Y75pdzuSCFWxfaHBuo5QQ08aHjjoQ3Ryx6dA=",
            "152c93b8ac0a80336dd2783e9ba815e7cfa1804a2bccdaa4f8b1bfaba001ba6f",
            "a26a7a30b2a1283dde4fa0b62805a19d98bf96ccfcfef6d79cee4d2becb46aab",
        ),
    ];
    for (text, derivation, digest, by_0, by_1) in cases {
        let key = TlsKey::parse(text).unwrap();
        assert_eq!(key.to_text(), text);
        let number = if text.contains(":02:") { "02" } else { "01" };
        let zero = key.psk(&names(), 0, derivation).unwrap();
        assert_eq!(zero.identity, format!("NVMe0R{number} {HOST} {SUBSYSTEM}"));
        assert_eq!(hex(&zero.key), by_0);
        let one = key.psk(&names(), 1, derivation).unwrap();
        assert_eq!(one.identity, format!("NVMe1R{number} {HOST} {SUBSYSTEM} {digest}"));
        assert_eq!(hex(&one.key), by_1);
        for psk in [zero, one] {
            assert_eq!(TlsNames::parse(&psk.identity), Some(names()));
            assert!(key.psks(&names()).any(|made| made == psk));
            assert!(
                !format!("{psk:?}{key:?}").contains(&format!("{}, {}", psk.key[0], psk.key[1]))
            );
        }
        assert_eq!(key.psk(&names(), 2, derivation), None);
    }
}

#[test]
fn what_is_no_key_is_told_and_none_of_it() {
    let cases = [
        ("", TlsKeyFault::Form),
        ("NVMeTLSkey-1:", TlsKeyFault::Form),
        (&SHORT[..SHORT.len() - 1], TlsKeyFault::Form),
        (&SHORT.replace(":01:", ":03:"), TlsKeyFault::Hash),
        (&SHORT.replace(":01:", ":1:"), TlsKeyFault::Hash),
        (&SHORT.replace(":01:", ":02:"), TlsKeyFault::Length),
        (&LONG.replace(":02:", ":01:"), TlsKeyFault::Length),
        (&SHORT.replace("AQID", "AQ*D"), TlsKeyFault::Base64),
        (&SHORT.replace("AQID", "AQIE"), TlsKeyFault::Checksum),
        ("NVMeTLSkey-1:01:AQID:", TlsKeyFault::Length),
        ("NVMeTLSkey-1:01::", TlsKeyFault::Length),
        (&SHORT.replace("NVMeTLSkey", "DHHC"), TlsKeyFault::Form),
    ];
    for (text, fault) in cases {
        assert_eq!(TlsKey::parse(text), Err(fault), "{text}");
        assert!(!format!("{fault}").contains("AQID"));
    }
    assert_eq!(TlsKey::new(&[1; 64], Some(Hash::Sha512)), Err(TlsKeyFault::Hash));
    assert_eq!(TlsKey::new(&[1; 33], None), Err(TlsKeyFault::Length));
}

#[test]
fn identities_of_strangers_are_read_or_not() {
    for text in [
        "",
        " ",
        "NVMe0R01",
        "NVMe0R01 a",
        "NVMe0R01 a b c",
        "NVMe1R01 a b",
        "NVMe1R01 a b c d",
        "NVMe0R03 a b",
        "NVMe2R01 a b c",
        "NVMe0G01 a b",
        "nvme0R01 a b",
    ] {
        assert_eq!(TlsNames::parse(text), None, "{text}");
    }
    // Names of more than 255 bytes together have no identity of version 0, and no panic.
    let long = "n".repeat(223);
    let names = TlsNames { host: long.clone(), subsystem: long };
    let key = TlsKey::parse(SHORT).unwrap();
    assert_eq!(key.psk(&names, 0, Derivation::Labelled), None);
    let left: Vec<_> = key.psks(&names).map(|psk| psk.identity).collect();
    assert_eq!(left.len(), 3);
}
