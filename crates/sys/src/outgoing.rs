//! What one connection says, and the data that goes between, until they are sent.
//!
//! Whoever speaks a protocol appends to bytes, and puts data where it belongs. Once in a turn both become pieces:
//! all bytes in one buffer of a pool, which is there again when they have left.
//!
//! Always: the order of what is sent is that in which it was said and put; where a pool has nothing, nobody waits.
//!
//! Not here: sends (`streams`), limits of what may wait to be sent (whoever says it).

use crate::buffer::Piece;
use crate::pool::BufferPool;

/// Room for bytes that is kept from turn to turn, at most, unless told otherwise. What a turn says beyond is rare: a list of exports.
const KEPT_BYTES_MAX: usize = 64 << 10;

/// Bytes and data to be sent.
#[derive(Debug)]
pub struct Outgoing {
    bytes: Vec<u8>,
    kept_bytes_max: usize,
    /// Data, and how many of the bytes go before it.
    data: Vec<(usize, Piece)>,
}

impl Default for Outgoing {
    fn default() -> Outgoing {
        Outgoing::new()
    }
}

impl Outgoing {
    /// Nothing.
    #[must_use]
    pub fn new() -> Outgoing {
        Outgoing::keeping(KEPT_BYTES_MAX)
    }

    /// Nothing; room for so many bytes is kept from turn to turn.
    #[must_use]
    pub fn keeping(kept_bytes_max: usize) -> Outgoing {
        Outgoing { bytes: Vec::new(), kept_bytes_max, data: Vec::new() }
    }

    /// Where to append what is said next.
    pub fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// How many were said since they were taken last, without data.
    #[must_use]
    pub fn said_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Data goes behind what was said and put so far.
    pub fn put(&mut self, data: Piece) {
        self.data.push((self.bytes.len(), data));
    }

    /// Nothing is to be sent.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.data.clear();
    }

    /// Moves everything behind `pieces`, and answers how many bytes were said. These lie in a buffer of `pool` then, or, if it
    /// has none, in memory of their own.
    pub fn take(&mut self, pool: &BufferPool, pieces: &mut Vec<Piece>) -> usize {
        let Outgoing { bytes, kept_bytes_max, data } = self;
        let count = bytes.len();
        let mut buffer = pool.take(count);
        if let Some(buffer) = &mut buffer {
            let place = buffer.as_mut().expect("nobody else has a buffer that was just taken");
            place.copy_from_slice(bytes);
        }
        let mut at = 0;
        let mut say = |until: usize, pieces: &mut Vec<Piece>| {
            let range = std::mem::replace(&mut at, until)..until;
            if range.is_empty() {
                return;
            }
            let whole = if range.len() == count { buffer.take() } else { None };
            pieces.push(match (whole, &buffer) {
                (Some(buffer), _) => Piece::first(buffer, count),
                (None, Some(buffer)) => Piece::part(buffer, range),
                (None, None) => Piece::from(bytes[range].to_vec()),
            });
        };
        for (until, data) in data.drain(..) {
            say(until, pieces);
            pieces.push(data);
        }
        say(count, pieces);
        bytes.clear();
        if bytes.capacity() > *kept_bytes_max {
            *bytes = Vec::new();
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::Outgoing;
    use crate::{BufferPool, Counted, Piece};

    /// Two answers with data, and one without.
    fn say(outgoing: &mut Outgoing, data: &BufferPool) {
        for _ in 0..2 {
            outgoing.bytes().extend_from_slice(b"head");
            let mut buffer = data.take(2).expect("room");
            buffer.as_mut().expect("nobody else has it").copy_from_slice(b"xy");
            outgoing.put(Piece::from(buffer));
        }
        outgoing.bytes().extend_from_slice(b"end");
    }

    fn together(pieces: &[Piece]) -> Vec<u8> {
        pieces.iter().flat_map(|piece| piece.as_slice().to_vec()).collect()
    }

    #[test]
    fn what_is_said_and_put_is_sent_in_that_order_whether_there_are_buffers_or_not() {
        for bytes in [0, 1 << 20] {
            let (pool, data) = (BufferPool::new(bytes), BufferPool::new(1 << 20));
            let (mut outgoing, mut pieces) = (Outgoing::new(), Vec::new());
            for round in 1..3 {
                say(&mut outgoing, &data);
                assert_eq!(outgoing.take(&pool, &mut pieces), 11);
                assert_eq!(pieces.len(), round * 5);
            }
            assert_eq!(outgoing.take(&pool, &mut pieces), 0);
            assert_eq!(together(&pieces), b"headxyheadxyendheadxyheadxyend");
            assert_eq!(pool.used_bytes(), bytes.min(2 * 4096));
            pieces.clear();
            assert_eq!((pool.used_bytes(), data.used_bytes()), (0, 0));
        }
    }

    #[test]
    fn a_turn_like_one_before_it_allocates_nothing() {
        let (pool, data) = (BufferPool::new(1 << 20), BufferPool::new(1 << 20));
        let (mut outgoing, mut pieces) = (Outgoing::new(), Vec::new());
        let mut turn = || {
            say(&mut outgoing, &data);
            outgoing.take(&pool, &mut pieces);
            pieces.clear();
        };
        let first = Counted::calls(&mut turn).1;
        let second = Counted::calls(&mut turn).1;
        assert!(first > 0, "memory is counted in this program");
        assert_eq!(second, 0);
    }

    #[test]
    fn room_for_a_long_list_is_given_back() {
        let (pool, mut outgoing) = (BufferPool::new(1 << 20), Outgoing::new());
        outgoing.bytes().resize(100 << 10, 7);
        outgoing.take(&pool, &mut Vec::new());
        assert_eq!(outgoing.bytes().capacity(), 0);
    }
}
