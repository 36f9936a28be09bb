//! How requests are cut: no piece crosses a multiple of [`PIECE_BYTES`].

use std::ops::Range;

use sys::{BufferPool, Piece};

/// Pieces of reads and writes never cross a multiple of this: the largest buffer there is.
pub const PIECE_BYTES: u64 = 1 << 20;

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

/// How many bytes all these are.
pub(crate) fn count_bytes(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| u64::try_from(piece.len()).expect("memory is smaller")).sum()
}
