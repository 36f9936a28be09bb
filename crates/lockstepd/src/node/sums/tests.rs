//! What a comparison teaches, and what is left of a write that failed.

use super::*;

/// A look at whole blocks that were asked for.
fn check(sums: &Sums, span: Span, bytes: &[u8]) -> Check {
    sums.check(span, span, [0; 2], bytes)
}

#[test]
fn a_comparison_teaches_what_is_unknown_only_where_the_extent_is_to_be_saved_anyway() {
    let (first, bytes) = (Span::new(0, 8).expect("a block"), [7; BLOCK_BYTES]);
    let page = [0; 4096];
    let mut saved = Sums::default();
    saved.loaded(0, [&page, &page]);
    saved.learn(first, &bytes);
    assert!(saved.seal(0).is_none(), "it would stay in memory for ever");
    let mut hot = Sums::default();
    hot.distrust([0].into_iter());
    hot.learn(first, &bytes);
    assert!(hot.seal(0).is_some());
    assert_eq!(check(&hot, first, &bytes), Check::Good);
    assert_eq!(check(&hot, first, &[8; BLOCK_BYTES]), Check::Rotten);
}

#[test]
fn after_a_write_that_failed_nothing_is_known_of_its_blocks_and_the_others_are_checked_as_before() {
    let span = |first| Span::new(first, 8).expect("a block");
    let (old, new) = ([7; BLOCK_BYTES], [8; BLOCK_BYTES]);
    let mut sums = Sums::default();
    sums.loaded(0, [&[0; 4096], &[0; 4096]]);
    sums.write(span(0), &old);
    sums.write(span(8), &old);
    let before = sums.seal(0).expect("new").1;
    sums.write(span(0), &new);
    sums.forget(span(0));
    for bytes in [&old, &new] {
        assert_eq!(check(&sums, span(0), bytes), Check::Good, "either may be there");
    }
    assert_eq!(check(&sums, span(8), &new), Check::Rotten);
    assert!(sums.seal(0).expect("the disk has it from before").1 > before);
    sums.write(span(0), &old);
    assert_eq!(check(&sums, span(0), &new), Check::Rotten);
}

#[test]
fn what_is_written_elsewhere_in_an_extent_keeps_no_rotten_block_from_being_found() {
    let span = |first, count| Span::new(first, count).expect("some sectors");
    let mut sums = Sums::default();
    sums.loaded(0, [&[0; 4096], &[0; 4096]]);
    sums.write(span(0, 24), &[7; 3 * BLOCK_BYTES]);
    let mut bytes = [7; 3 * BLOCK_BYTES];
    // Of the second block and a part of those beside it.
    let (read, asked) = (span(0, 24), span(4, 16));
    let ends = sums.ends(read);
    bytes[BLOCK_BYTES] = 8;
    sums.write(span(800, 8), &[1; BLOCK_BYTES]);
    assert_eq!(sums.check(read, asked, ends, &bytes), Check::Rotten);
    let (mut first, mut last) = ([7; 3 * BLOCK_BYTES], [7; 3 * BLOCK_BYTES]);
    (first[0], last[3 * BLOCK_BYTES - 1]) = (8, 8);
    for bytes in [&first, &last] {
        sums.write(span(800, 8), &[2; BLOCK_BYTES]);
        assert_eq!(sums.check(read, asked, ends, bytes), Check::Rotten, "at an end it is, too");
    }
    // Beside what was asked for newer bytes are written, and a comparison learns their checksum.
    sums.write(span(0, 4), &[9; BLOCK_BYTES / 2]);
    assert_eq!(sums.check(read, asked, ends, &first), Check::Good, "unknown");
    sums.learn(span(0, 8), &[9; BLOCK_BYTES]);
    assert_eq!(sums.check(read, asked, ends, &first), Check::Newer);
    assert_eq!(sums.check(read, asked, sums.ends(read), &first), Check::Rotten, "read again");
    bytes[0] = 8;
    assert_eq!(sums.check(read, asked, ends, &bytes), Check::Rotten, "the second is in any case");
}
