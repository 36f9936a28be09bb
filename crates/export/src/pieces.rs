//! How requests are cut, and go on piece by piece: no piece crosses a multiple of [`PIECE_BYTES`].

use std::ops::Range;

use sys::{BufferPool, Piece, Room};

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

/// How far a request has come whose pieces are begun one after the other, each once there is memory for it.
///
/// Always: what a piece has of memory is let go when it is answered, whatever becomes of the others. So a request can be as
/// large as it likes, and none waits for what another has while it waits.
#[derive(Debug, Default)]
pub(crate) struct Course {
    /// Bytes of the volume that it is about.
    range: Range<u64>,
    /// The first of them that is not begun.
    next: u64,
    /// Pieces that were begun.
    begun: u16,
    /// And not answered.
    open: u16,
    /// For what those give, if it reads.
    room: Option<Room>,
}

impl Course {
    /// Of these bytes, and nothing is begun.
    pub(crate) fn over(range: Range<u64>) -> Course {
        Course { next: range.start, range, ..Course::default() }
    }

    /// What is begun at once, in so many parts, and is about no bytes.
    pub(crate) fn at_once(parts: u16) -> Course {
        Course { begun: parts, open: parts, ..Course::default() }
    }

    /// The piece that is to be begun next, and how many bytes of the request lie before it.
    pub(crate) fn next(&self) -> Option<(Range<u64>, u64)> {
        let piece = pieces_of(self.next..self.range.end).next()?;
        let before = piece.start - self.range.start;
        Some((piece, before))
    }

    /// Keeps room for what this piece will give; false if there is none now.
    pub(crate) fn make_room(&mut self, pool: &BufferPool, piece: &Range<u64>) -> bool {
        let bytes = cost_bytes(piece.clone());
        if let Some(room) = &mut self.room {
            return room.grow(bytes);
        }
        self.room = pool.reserve(bytes);
        self.room.is_some()
    }

    /// For what its pieces give that are begun.
    pub(crate) fn room(&mut self) -> Option<&mut Room> {
        self.room.as_mut()
    }

    /// The next piece is begun: its number.
    pub(crate) fn begin(&mut self, piece: &Range<u64>) -> u16 {
        let number = self.begun;
        (self.next, self.begun, self.open) = (piece.end, self.begun + 1, self.open + 1);
        number
    }

    /// A piece is answered: which bytes it was about, and how many of the request lie before it.
    ///
    /// # Panics
    /// If none is open.
    pub(crate) fn end(&mut self, number: u16) -> (Range<u64>, u64) {
        assert!(self.open > 0, "a piece is answered once");
        self.open -= 1;
        let piece = pieces_of(self.range.clone()).nth(usize::from(number)).unwrap_or(0..0);
        if let Some(room) = &mut self.room {
            drop(room.split(cost_bytes(piece.clone())));
        }
        let before = piece.start - self.range.start;
        (piece, before)
    }

    /// It goes no further.
    pub(crate) fn cut(&mut self) {
        self.next = self.range.end;
    }

    /// Whether nothing of it is open or to be begun.
    pub(crate) fn is_over(&self) -> bool {
        self.open == 0 && self.next == self.range.end
    }
}

#[cfg(test)]
mod tests {
    use sys::BufferPool;

    use super::{Course, PIECE_BYTES};

    const MIB: usize = 1 << 20;

    #[test]
    fn pieces_are_begun_in_order_and_what_they_have_is_let_go_with_each() {
        let pool = BufferPool::new(2 * MIB);
        let mut course = Course::over(PIECE_BYTES / 2..3 * PIECE_BYTES + 4096);
        let mut begun = Vec::new();
        while let Some((piece, before)) = course.next()
            && course.make_room(&pool, &piece)
        {
            begun.push((course.begin(&piece), before));
        }
        let half = PIECE_BYTES / 2;
        assert_eq!(begun, [(0, 0), (1, half)], "there is no room for the third");
        assert_eq!(pool.used_bytes(), 3 * MIB / 2);
        assert_eq!(course.end(1), (PIECE_BYTES..2 * PIECE_BYTES, half));
        assert_eq!(pool.used_bytes(), MIB / 2);
        let (third, _) = course.next().expect("two are left");
        assert!(course.make_room(&pool, &third));
        assert_eq!(course.begin(&third), 2);
        course.cut();
        assert!(course.next().is_none() && !course.is_over());
        course.end(0);
        course.end(2);
        assert!(course.is_over() && pool.used_bytes() == 0);
    }

    #[test]
    fn what_is_about_no_bytes_is_over_when_all_its_parts_are() {
        let mut course = Course::at_once(2);
        assert!(course.next().is_none() && !course.is_over());
        assert_eq!([course.end(1), course.end(0)], [(0..0, 0), (0..0, 0)]);
        assert!(course.is_over());
    }
}
