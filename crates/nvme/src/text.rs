//! How keys and secrets are written: base64, with a checksum behind them.

use alloc::string::String;
use alloc::vec::Vec;

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// CRC-32 as of Ethernet and ZIP, bit by bit: secrets are short.
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    let step = |sum: u32, _| (sum >> 1) ^ if sum & 1 == 1 { 0xedb8_8320 } else { 0 };
    let add = |sum: u32, &byte: &u8| (0..8).fold(sum ^ u32::from(byte), step);
    !bytes.iter().fold(!0, add)
}

/// With its padding.
pub(crate) fn base64(bytes: &[u8]) -> String {
    let mut text = String::new();
    for part in bytes.chunks(3) {
        let mut group = [0; 4];
        group[1..=part.len()].copy_from_slice(part);
        let word = u32::from_be_bytes(group);
        for digit in 0..4 {
            let value = (word >> (18 - 6 * digit)) & 63;
            let there = digit <= part.len();
            text.push(if there { char::from(DIGITS[value as usize]) } else { '=' });
        }
    }
    text
}

/// Nothing but what [`base64`] writes.
pub(crate) fn from_base64(text: &[u8]) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let filled = text.len() - text.iter().rev().take(2).take_while(|&&digit| digit == b'=').count();
    let mut bytes = Vec::new();
    for group in text[..filled].chunks(4) {
        let mut word = 0;
        for digit in group {
            let value = DIGITS.iter().position(|one| one == digit)?;
            word = word << 6 | u32::try_from(value).ok()?;
        }
        word <<= 6 * (4 - group.len());
        bytes.extend_from_slice(&word.to_be_bytes()[1..group.len()]);
        // Bits that no byte has are zeroes, so that a secret has one form only.
        if word.to_be_bytes()[group.len()..].iter().any(|&left| left != 0) {
            return None;
        }
    }
    Some(bytes)
}
