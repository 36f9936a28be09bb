//! A run of sectors inside one volume.

/// The unit of every address in the project, whatever a volume's block size.
pub const SECTOR_BYTES: u64 = 512;

/// A non-empty run of sectors inside one volume.
///
/// Its end in bytes fits in a `u64`, so no method below can fail or overflow.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Span {
    first: u64,
    count: u32,
}

impl Span {
    /// Returns the span, or `None` if it is empty or its end in bytes does not fit in a `u64`.
    #[must_use]
    pub fn new(first: u64, count: u32) -> Option<Span> {
        let end = first.checked_add(u64::from(count))?;
        (count > 0 && end <= u64::MAX / SECTOR_BYTES).then_some(Span { first, count })
    }

    /// The first sector.
    #[must_use]
    pub fn first(self) -> u64 {
        self.first
    }

    /// Number of sectors, at least 1.
    #[must_use]
    pub fn count(self) -> u32 {
        self.count
    }

    /// The sector after the last.
    #[must_use]
    pub fn end(self) -> u64 {
        self.first + u64::from(self.count)
    }

    /// Where it starts, in bytes.
    #[must_use]
    pub fn offset_bytes(self) -> u64 {
        self.first * SECTOR_BYTES
    }

    /// Its length in bytes.
    #[must_use]
    pub fn length_bytes(self) -> u64 {
        u64::from(self.count) * SECTOR_BYTES
    }

    /// Whether the two share a sector.
    #[must_use]
    pub fn overlaps(self, other: Span) -> bool {
        self.first < other.end() && other.first < self.end()
    }

    /// Whether every sector of `other` lies in this span.
    #[must_use]
    pub fn contains(self, other: Span) -> bool {
        self.first <= other.first && other.end() <= self.end()
    }
}
