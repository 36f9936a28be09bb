//! What a comparison teaches, and what is left of a write that failed.

use super::*;

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
    assert_eq!(hot.check(first, &bytes), Check::Good);
    assert_eq!(hot.check(first, &[8; BLOCK_BYTES]), Check::Rotten);
}

#[test]
fn after_a_write_that_failed_nothing_is_known_of_its_blocks_and_the_others_are_checked_as_before() {
    let span = |first| Span::new(first, 8).expect("a block");
    let (old, new) = ([7; BLOCK_BYTES], [8; BLOCK_BYTES]);
    let mut sums = Sums::default();
    sums.loaded(0, [&[0; 4096], &[0; 4096]]);
    sums.write(span(0), &old);
    sums.write(span(8), &old);
    let before = sums.version(0);
    sums.write(span(0), &new);
    sums.forget(span(0));
    for bytes in [&old, &new] {
        assert_eq!(sums.check(span(0), bytes), Check::Good, "either may be there");
    }
    assert_eq!(sums.check(span(8), &new), Check::Rotten);
    assert!(sums.version(0) > before && sums.seal(0).is_some(), "the disk has it from before");
    sums.write(span(0), &old);
    assert_eq!(sums.check(span(0), &new), Check::Rotten);
}
