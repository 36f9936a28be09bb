//! Reading and writing the protocol's fields, which are all little-endian.

use alloc::vec::Vec;

/// The 2 bytes at `at`.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |part| u16::from_le_bytes(*part))
}

/// The 4 bytes at `at`.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |part| u32::from_le_bytes(*part))
}

/// The 8 bytes at `at`.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |part| u64::from_le_bytes(*part))
}

/// A field of text: ends at a NUL or with the field, and is UTF-8.
pub(crate) fn text_at(bytes: &[u8], at: usize, length: usize) -> Option<&str> {
    let field = bytes.get(at..at + length)?;
    let end = field.iter().position(|&byte| byte == 0).unwrap_or(length);
    core::str::from_utf8(&field[..end]).ok()
}

/// Writes `value` over the bytes at `at`.
pub(crate) fn set(to: &mut [u8], at: usize, value: &[u8]) {
    to[at..at + value.len()].copy_from_slice(value);
}

/// Writes `text` over a field of `length` bytes, cut at its end and followed by `fill`.
pub(crate) fn set_text(to: &mut [u8], at: usize, length: usize, text: &str, fill: u8) {
    let field = &mut to[at..at + length];
    field.fill(fill);
    let used = text.len().min(length);
    field[..used].copy_from_slice(&text.as_bytes()[..used]);
}

/// `count` bytes of zero.
pub(crate) fn zeroes(count: usize) -> Vec<u8> {
    alloc::vec![0; count]
}

/// A length as the protocol's 32 bits, for what a limit of ours keeps far below 4 GiB.
pub(crate) fn length_u32(length: usize) -> u32 {
    u32::try_from(length).expect("our limits keep every message below 4 GiB")
}
