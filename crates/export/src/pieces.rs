//! How requests are cut: no piece crosses a multiple of [`PIECE_BYTES`].

use std::ops::Range;

use sys::{BufferPool, Piece};

/// Pieces of reads and writes never cross a multiple of this: the largest buffer there is.
pub const PIECE_BYTES: u64 = 1 << 20;

/// Room that is made at once for headers of replies: enough for one before each piece of data.
const HEADS_BYTES: usize = 32;

/// The headers that were gathered, to be sent; there is room for the next ones then.
pub(crate) fn cut_heads(heads: &mut Vec<u8>) -> Piece {
    Piece::from(std::mem::replace(heads, Vec::with_capacity(HEADS_BYTES)))
}

/// The pieces of a range of bytes, in order.
pub(crate) fn pieces_of(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let end = (at / PIECE_BYTES + 1).saturating_mul(PIECE_BYTES).min(range.end);
        let piece = at..end;
        at = end;
        (piece.start < piece.end).then_some(piece)
    })
}

/// Bytes of the buffers in which a range is read.
pub(crate) fn cost_bytes(range: Range<u64>) -> usize {
    let costs = pieces_of(range).map(|piece| {
        let length = usize::try_from(piece.end - piece.start).expect("at most a piece");
        BufferPool::cost_bytes(length).expect("a piece fits in a buffer")
    });
    costs.sum()
}
