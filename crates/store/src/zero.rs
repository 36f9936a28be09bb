//! Whether bytes are all zero.

/// Bytes looked at before deciding to go on: large enough for wide loads, small enough to stop
/// early in ordinary data.
const STRIDE: usize = 256;

/// True if every byte is zero (also if there are none). Ordinary data is told from zeroes within
/// its first bytes.
#[must_use]
pub fn is_zero(bytes: &[u8]) -> bool {
    let (strides, rest) = bytes.as_chunks::<STRIDE>();
    strides.iter().all(stride_is_zero) && rest.iter().all(|&byte| byte == 0)
}

/// Without a branch inside, so that it becomes wide loads.
fn stride_is_zero(stride: &[u8; STRIDE]) -> bool {
    stride.iter().fold(0, |seen, byte| seen | byte) == 0
}
