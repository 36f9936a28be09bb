//! How often a link asks for memory.

use base::{Epoch, ResourceId, Span, VolumeId};
use sys::{Counted, Piece};
use wire::{ShardMessage, WriteFlags};

use super::*;

const BLOCK_BYTES: usize = 4096;

/// What one end has to say reaches the other, through memory that is there already.
fn carry(from: &mut Link, to: &mut Link, wire: &mut Vec<u8>, place: &mut [u8]) {
    wire.clear();
    for piece in from.outgoing(usize::MAX) {
        wire.extend_from_slice(piece.as_slice());
    }
    let mut input = wire.as_mut_slice();
    loop {
        match to.want() {
            LinkWant::Payload { .. } => assert!(to.payload(&mut input, place).unwrap()),
            LinkWant::Frames if to.next(&mut input).unwrap().is_none() => return,
            LinkWant::Frames => {}
        }
    }
}

/// How often both ends together ask for memory for the writes of a turn and their answers, after a few turns like it.
fn asks(mode: LinkMode, writes: u64) -> u64 {
    let (mut a, mut b) = ready_ends(mode);
    let (mut wire, mut place) = (Vec::new(), vec![0; BLOCK_BYTES]);
    let payload = pool().take_zeroed(BLOCK_BYTES).unwrap();
    let mut turn = || {
        for sequence in 0..writes {
            let message = ShardMessage::Write {
                epoch: Epoch(3),
                sequence,
                cut: 0,
                volume: VolumeId(0),
                span: Span::new(sequence * 8, 8).unwrap(),
                flags: WriteFlags::default(),
                origin: None,
            };
            let payload = Piece::part(&payload, 0..BLOCK_BYTES);
            a.link.send_shard(ResourceId(9), 3, &message, Some(payload));
        }
        carry(&mut a.link, &mut b.link, &mut wire, &mut place);
        for sequence in 0..writes {
            let message = ShardMessage::Written { sequence, ok: true, in_place: true };
            b.link.send_shard(ResourceId(9), 3, &message, None);
        }
        carry(&mut b.link, &mut a.link, &mut wire, &mut place);
    };
    (0..3).for_each(|_| turn());
    Counted::calls(turn).1
}

#[test]
fn writes_and_their_answers_ask_for_no_memory_in_the_clear() {
    for writes in [1, 64] {
        assert_eq!(asks(LinkMode::Plain, writes), 0, "{writes} writes");
    }
}

#[test]
fn enciphered_nothing_but_rustls_asks_for_memory_once_for_each_record_at_each_end() {
    // What 64 writes are fills 17 records; answers one more.
    for (writes, records) in [(1, 2), (64, 19)] {
        let asked = asks(LinkMode::Encrypted, writes);
        assert!(asked <= 2 * records, "{writes} writes: {asked}");
    }
}
