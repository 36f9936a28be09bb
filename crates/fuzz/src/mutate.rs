//! Ways in which bytes go wrong.
//!
//! Always: the same random numbers make the same change; the result is never longer than
//! [`INPUT_BYTES_MAX`].
//!
//! Not here: what the bytes mean; checksums are put right again by the target (`Target::mend`).

use base::Prng;

/// Longest input that is tried, in bytes: more than any single thing that a parser takes whole.
pub const INPUT_BYTES_MAX: usize = 48 << 10;

/// Numbers at which limits are broken.
const EDGES: [u64; 24] = [
    0,
    1,
    2,
    7,
    16,
    0x7f,
    0x80,
    0xff,
    0x100,
    511,
    512,
    4095,
    4096,
    0x7fff,
    0x8000,
    0xffff,
    0x1_0000,
    1 << 20,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX,
];

/// Changes `bytes` in one to four ways; `other` is another input, of which pieces may be taken, and `words`
/// are pieces that mean something to the parser.
pub fn mutate(bytes: &mut Vec<u8>, other: &[u8], words: &[&str], random: &mut Prng) {
    for _ in 0..=random.below(4) {
        once(bytes, other, words, random);
        bytes.truncate(INPUT_BYTES_MAX);
    }
}

fn once(bytes: &mut Vec<u8>, other: &[u8], words: &[&str], random: &mut Prng) {
    if bytes.is_empty() {
        bytes.push(low(random.next_u64()));
        return;
    }
    let at = index(bytes.len(), random);
    let end = (at + 1 + index(64, random)).min(bytes.len());
    match random.below(13) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = low(random.next_u64()),
        2 => bytes.truncate(at),
        3 => {
            bytes.drain(at..end);
        }
        4 => {
            let again = bytes[at..end].to_vec();
            bytes.splice(at..at, again);
        }
        5 => bytes[at..end].fill(if random.once_in(2) { 0 } else { 0xff }),
        6 => {
            let noise: Vec<u8> = (0..=random.below(32)).map(|_| low(random.next_u64())).collect();
            bytes.splice(at..at, noise);
        }
        7 | 8 => number(bytes, at, random),
        9 if !other.is_empty() => {
            let from = index(other.len(), random);
            let piece = &other[from..(from + 1 + index(256, random)).min(other.len())];
            let replaced = if random.once_in(2) { at } else { (at + piece.len()).min(bytes.len()) };
            bytes.splice(at..replaced, piece.iter().copied());
        }
        10 if !other.is_empty() => {
            bytes.truncate(at);
            bytes.extend_from_slice(&other[index(other.len(), random)..]);
        }
        11 if !words.is_empty() => {
            let word = words[index(words.len(), random)].as_bytes();
            let replaced = if random.once_in(2) { at } else { end };
            bytes.splice(at..replaced, word.iter().copied());
        }
        _ => digits(bytes, at, random),
    }
}

/// A number of 1, 2, 4 or 8 bytes in either order becomes one at an edge, or a little more or less.
fn number(bytes: &mut [u8], at: usize, random: &mut Prng) {
    let width = (1 << random.below(4)).min(bytes.len() - at);
    let field = &mut bytes[at..at + width];
    let big = random.once_in(2);
    if big {
        field.reverse();
    }
    let mut old = [0; 8];
    old[..width].copy_from_slice(field);
    let old = u64::from_le_bytes(old);
    let new = match random.below(3) {
        0 => EDGES[index(EDGES.len(), random)],
        1 => old.wrapping_add(1 + random.below(16)),
        _ => old.wrapping_sub(1 + random.below(16)),
    };
    field.copy_from_slice(&new.to_le_bytes()[..width]);
    if big {
        field.reverse();
    }
}

/// The digits at or behind `at` become a number at an edge, in digits.
fn digits(bytes: &mut Vec<u8>, at: usize, random: &mut Prng) {
    let Some(first) = bytes[at..].iter().position(u8::is_ascii_digit) else { return };
    let first = at + first;
    let count = bytes[first..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let edge = EDGES[index(EDGES.len(), random)];
    let text = match random.below(4) {
        0 => format!("-{edge}"),
        1 => format!("{edge}{edge}"),
        2 => format!("{edge:x}"),
        _ => edge.to_string(),
    };
    bytes.splice(first..first + count, text.into_bytes());
}

/// A place in something of `length`, which is not 0.
pub(crate) fn index(length: usize, random: &mut Prng) -> usize {
    let bound = u64::try_from(length).expect("a length fits in 64 bits");
    usize::try_from(random.below(bound)).expect("less than a usize")
}

/// The lowest byte of a number.
pub(crate) fn low(number: u64) -> u8 {
    number.to_le_bytes()[0]
}
