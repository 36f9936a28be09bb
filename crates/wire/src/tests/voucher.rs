//! What a member says of a resource's nodes.

use super::sample;
use crate::*;
use base::{NodeId, Prng};

#[test]
fn a_voucher_that_was_written_is_read_again_and_cut_short_it_is_none() {
    for seed in 0..200 {
        let voucher = sample::voucher(&mut Prng::new(seed));
        let bytes = encode_voucher(&voucher);
        assert_eq!(decode_voucher(&bytes), Ok(voucher.clone()));
        for length in 0..bytes.len() {
            if let Ok(other) = decode_voucher(&bytes[..length]) {
                assert_eq!(encode_voucher(&other), bytes[..length], "one form");
                assert!(other.standings.len() < voucher.standings.len());
            }
        }
    }
}

#[test]
fn the_largest_voucher_fits_its_limit() {
    let mut voucher = sample::voucher(&mut Prng::new(1));
    voucher.members = (1..=MEMBERS_MAX as u16).map(NodeId).collect();
    let standing = |node| Standing { node: NodeId(node), number: 9, admitted: true };
    voucher.standings = (1..=STANDINGS_MAX as u16).map(standing).collect();
    let bytes = encode_voucher(&voucher);
    assert!(bytes.len() <= STATEMENT_BYTES_MAX / 2, "{} bytes", bytes.len());
    assert_eq!(decode_voucher(&bytes), Ok(voucher));
}

#[test]
fn a_voucher_that_cannot_be_is_refused_and_one_of_a_newer_form_is_named_so() {
    let voucher = sample::voucher(&mut Prng::new(1));
    let good = encode_voucher(&voucher);
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        decode_voucher(&bytes)
    };
    assert_eq!(with(0, b'x'), Err(DecodeError::Damaged("no voucher")));
    assert_eq!(with(16, 2), Err(DecodeError::Schema(2)));
    assert_eq!(with(16, 0), Err(DecodeError::Damaged("a voucher of no form")));
    // The last standing: its node, its number, and which of both it is.
    let last = good.len() - 11;
    let mut zero = good.clone();
    zero[last..last + 2].fill(0);
    assert_eq!(
        decode_voucher(&zero),
        Err(DecodeError::Damaged("nodes of a voucher do not ascend"))
    );
    let mut uncounted = good.clone();
    uncounted[last + 2..last + 10].fill(0);
    let found = decode_voucher(&uncounted);
    assert_eq!(found, Err(DecodeError::Damaged("changes are counted from 1")));
    assert!(with(good.len() - 1, 2).is_err(), "neither admitted nor dismissed");
}
