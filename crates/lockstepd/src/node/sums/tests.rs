//! What a comparison teaches.

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
