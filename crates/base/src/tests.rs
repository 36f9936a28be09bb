//! Tests of the small things that everything stands on.

use crate::{Prng, RangeSet, Span, crc32c};
use alloc::vec::Vec;

#[test]
fn crc32c_gives_the_published_check_value() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
}

#[test]
fn span_refuses_to_be_empty_or_to_end_beyond_what_bytes_can_count() {
    assert!(Span::new(0, 0).is_none());
    assert!(Span::new(u64::MAX / 512, 1).is_none());
    assert!(Span::new(u64::MAX / 512 - 1, 1).is_some());
}

fn at(sector: u64) -> usize {
    usize::try_from(sector).expect("far below 2^32")
}

#[test]
fn range_set_agrees_with_a_plain_array_of_flags() {
    let mut random = Prng::new(7);
    for _ in 0..200 {
        let mut set = RangeSet::new();
        let mut flags = [false; 64];
        for _ in 0..40 {
            let first = random.below(64);
            let end = first + random.below(65 - first);
            let value = random.once_in(2);
            if value {
                set.insert(first, end);
            } else {
                set.remove(first, end);
            }
            for flag in &mut flags[at(first)..at(end)] {
                *flag = value;
            }
            let (a, b) = (random.below(64), random.below(65));
            let (a, b) = (a.min(b), a.max(b));
            let part = &flags[at(a)..at(b)];
            assert_eq!(set.overlaps(a, b), part.iter().any(|&flag| flag));
            assert_eq!(set.contains(a, b), part.iter().all(|&flag| flag));
            let within: u64 = set.within(a, b).map(|(first, end)| end - first).sum();
            assert_eq!(within, part.iter().filter(|&&flag| flag).count() as u64);
            let runs: Vec<_> = set.iter().collect();
            assert!(runs.windows(2).all(|pair| pair[0].1 < pair[1].0), "runs touch: {runs:?}");
            assert_eq!(set.sectors(), flags.iter().filter(|&&flag| flag).count() as u64);
        }
    }
}
