//! Clients from before a loss of all caches: what they saw may not be so any more.

use super::world::World;
use base::{AnswerError, Epoch};
use wire::ShardMessage;

/// Node 1 with clients, and nodes 2 and 3 with data, of which node 2 is primary.
fn world() -> World {
    let mut world = World::new(&[1, 2, 3], &[2, 3]);
    world.lead(2);
    world
}

/// A loss of all caches is registered; node 1 does not hear of it.
fn lose_all(world: &mut World) {
    world.disconnect(1, 2);
    world.configuration.lost = Epoch(world.configuration.epoch.0 + 1);
    world.lead(2);
}

#[test]
fn requests_of_those_who_saw_what_is_lost_fail_and_later_ones_do_not() {
    let mut world = world();
    let seen = world.write(1, 10, 4, 7);
    assert_eq!(world.answer(1, seen), Some(Ok(())));
    world.disconnect(1, 2);
    let open = world.write(1, 20, 4, 8);
    lose_all(&mut world);
    world.connect(1, 2);
    world.wait_ms(500);
    assert_eq!(world.answer(1, open), None);
    assert_eq!(world.at(2, 20), 0, "it is not carried out for one who was not told");
    assert!(world.sent(2, 1, |m| matches!(m, ShardMessage::Forwarded { result: None, .. })) > 0);
    world.install_on(1);
    world.ready(2, 1);
    assert_eq!(world.answer(1, open), Some(Err(AnswerError::SessionLost)));
    let anew = world.write(1, 20, 4, 9);
    assert_eq!(world.answer(1, anew), Some(Ok(())));
    assert_eq!((world.at(2, 20), world.buffers_held()), (9, 0));
}

#[test]
fn a_client_that_was_never_answered_saw_nothing_that_could_be_lost() {
    let mut world = world();
    world.disconnect(1, 2);
    let write = world.write(1, 20, 4, 8);
    lose_all(&mut world);
    world.connect(1, 2);
    world.install_on(1);
    world.ready(2, 1);
    world.wait_ms(500);
    assert_eq!(world.answer(1, write), Some(Ok(())));
    assert_eq!(world.at(3, 20), 8);
}
