//! Who makes way for whom, and what becomes of requests if that one cannot be primary.

use super::serving;

#[test]
fn a_primary_that_nobody_uses_goes_on_for_a_client_that_reaches_too_few_voters_to_be_primary() {
    let mut world = serving(31, 2, 1, 1);
    world.block(2, 4);
    world.block(3, 4);
    world.set_clients(1, 0);
    world.set_clients(4, 1);
    world.wait(10);
    assert_eq!(world.primary(), Some(1), "{}", world.show());
    assert!(world.answers(1), "{}", world.show());
}

#[test]
fn a_primary_that_has_lost_its_majority_is_not_waited_for_by_a_client_that_reaches_one() {
    let mut world = serving(31, 2, 1, 1);
    world.set_clients(1, 0);
    world.block(1, 2);
    world.block(1, 3);
    world.set_clients(4, 1);
    world.wait(20);
    assert!(world.answers(4), "{}", world.show());
}
