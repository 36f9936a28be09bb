//! Reading and writing the protocol's fields, which are all big-endian.

use alloc::vec::Vec;

/// What is left to read of a message. Every read gives `None` where the message is too short.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Starts at the first byte of `bytes`.
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    /// The next `count` bytes.
    pub(crate) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(head)
    }

    /// The next 2 bytes.
    pub(crate) fn u16(&mut self) -> Option<u16> {
        let (head, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(u16::from_be_bytes(*head))
    }

    /// The next 4 bytes.
    pub(crate) fn u32(&mut self) -> Option<u32> {
        let (head, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(u32::from_be_bytes(*head))
    }

    /// The next 8 bytes.
    pub(crate) fn u64(&mut self) -> Option<u64> {
        let (head, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(u64::from_be_bytes(*head))
    }

    /// All bytes not read yet.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

/// Appends 2 bytes.
pub(crate) fn put_u16(to: &mut Vec<u8>, value: u16) {
    to.extend_from_slice(&value.to_be_bytes());
}

/// Appends 4 bytes.
pub(crate) fn put_u32(to: &mut Vec<u8>, value: u32) {
    to.extend_from_slice(&value.to_be_bytes());
}

/// Appends 8 bytes.
pub(crate) fn put_u64(to: &mut Vec<u8>, value: u64) {
    to.extend_from_slice(&value.to_be_bytes());
}

/// Appends the length of `text` in 4 bytes, and `text`. It has passed a limit of far less than 4 GiB.
pub(crate) fn put_text(to: &mut Vec<u8>, text: &str) {
    put_u32(to, length_u32(text.len()));
    to.extend_from_slice(text.as_bytes());
}

/// A length as the protocol's 32 bits, for what a limit of ours keeps far below 4 GiB.
pub(crate) fn length_u32(length: usize) -> u32 {
    u32::try_from(length).expect("our limits keep every message below 4 GiB")
}

/// The protocol's strings: valid UTF-8 without NUL and not longer than `bytes_max`.
pub(crate) fn text(bytes: &[u8], bytes_max: usize) -> Option<&str> {
    if bytes.len() > bytes_max || bytes.contains(&0) {
        return None;
    }
    core::str::from_utf8(bytes).ok()
}

/// The longest start of `text` that is no longer than `bytes_max` and ends between characters.
pub(crate) fn cut(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Bytes of one message's fixed part, gathered from pieces of any size. `N` is the longest such part.
#[derive(Debug)]
pub(crate) struct Head<const N: usize> {
    bytes: [u8; N],
    filled: usize,
}

impl<const N: usize> Head<N> {
    /// Holds nothing yet.
    pub(crate) const fn new() -> Head<N> {
        Head { bytes: [0; N], filled: 0 }
    }

    /// Number of bytes held.
    pub(crate) fn filled(&self) -> usize {
        self.filled
    }

    /// Takes from `input` what is missing to `need` bytes, and says how many that were.
    pub(crate) fn gather(&mut self, input: &[u8], need: usize) -> usize {
        let taken = need.saturating_sub(self.filled).min(input.len());
        self.bytes[self.filled..self.filled + taken].copy_from_slice(&input[..taken]);
        self.filled += taken;
        taken
    }

    /// The bytes held, as a copy; the gathering starts anew.
    pub(crate) fn finish(&mut self) -> [u8; N] {
        self.filled = 0;
        self.bytes
    }

    /// The bytes held.
    pub(crate) fn held(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }
}
