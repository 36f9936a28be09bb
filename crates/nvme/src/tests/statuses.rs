//! What breaks a rule gets the status that the specification names for it.

use super::{HOST, NQN, Pair, admin, all_digests, assert_waits, changed, io, subsystem};
use crate::connection::CloseReason;
use crate::host::{Host, HostEvent};
use crate::number::{FABRICS, FABRICS_CONNECT, H2C_BYTES_MAX};
use crate::pdu::{Digests, Fatal};
use crate::subsystem::Service;
use crate::{DEPTH_MAX, Status, bytes::u32_at};
use alloc::vec::Vec;

/// A command, appended.
type Make<'a> = &'a dyn Fn(&mut Host, &mut Vec<u8>) -> u16;

/// PSDT, and FUSE.
fn flagged(flags: u8) -> impl Fn(&mut [u8]) {
    move |command| command[1] = flags
}

#[test]
fn a_command_without_a_descriptor_of_its_data_is_refused() {
    for psdt in [0b00, 0b10, 0b11] {
        let mut pair = io(1, Digests::default());
        let makes: [Make; 3] = [
            &|host, send| host.write(1, (0, 8), false, &[7; 4096], send),
            &|host, send| host.read(1, (0, 8), 9, send),
            &|host, send| host.flush(1, send),
        ];
        for make in makes {
            let (status, ..) = pair.ask(|host, send| changed(host, send, make, flagged(psdt << 6)));
            assert_eq!(status, Status::INVALID_FIELD, "{psdt:#b}");
        }
        assert!(pair.requests.is_empty());
        let mut pair = admin(1, Digests::default());
        let makes: [Make; 2] = [&Host::keep_alive, &|host, send| host.identify(1, 0, send)];
        for make in makes {
            let (status, ..) = pair.ask(|host, send| changed(host, send, make, flagged(psdt << 6)));
            assert_eq!(status, Status::INVALID_FIELD, "{psdt:#b}");
        }
    }
}

#[test]
fn what_is_asked_of_another_command_set_than_is_served_is_refused() {
    let mut pair = admin(1, Digests::default());
    for (set, expected) in [(0, Status::SUCCESS), (1, Status::INVALID_FIELD)] {
        let ask: Make = &|host, send| host.identify(6, 0, send);
        let (status, ..) = pair.ask(|host, send| changed(host, send, ask, |of| of[47] = set));
        assert_eq!(status, expected, "{set}");
    }
}

#[test]
fn a_feature_that_is_to_last_is_not_set_for_none_does() {
    let mut pair = admin(1, Digests::default());
    let (before, ..) = pair.ask(|host, send| host.set_feature(0x0b, 0, send));
    assert_eq!(before, Status::SUCCESS);
    let saved = |value: u32| -> _ {
        move |host: &mut Host, send: &mut Vec<u8>| {
            changed(
                host,
                send,
                |host, send| host.set_feature(0x0b, value, send),
                |of| of[43] = 0x80,
            )
        }
    };
    assert_eq!(pair.ask(saved(1 << 8)).0, Status::FEATURE_NOT_SAVEABLE);
    let (_, wanted, _) = pair.ask(|host, send| host.feature_of(0, 0x0b, send));
    assert_eq!(wanted, 0, "nothing is done of it");
    let unknown: Make = &|host, send| host.set_feature(0x7f, 0, send);
    let (status, ..) = pair.ask(|host, send| changed(host, send, unknown, |of| of[43] = 0x80));
    assert_eq!(status, Status::INVALID_FIELD, "there is no such feature");
}

/// The specification has 00b there without data and 10b with it; Linux says 01b.
#[test]
fn a_fabrics_command_says_of_its_data_what_hosts_or_the_specification_do() {
    let property: Make = &|host, send| host.property(0x14, false, send);
    let refused = [(0b00, false), (0b01, false), (0b10, false), (0b11, true)];
    for (psdt, refused) in refused {
        let mut pair = Pair::new(1, Digests::default(), Service::Volumes(subsystem()));
        assert_eq!(pair.carry(), [HostEvent::Ready]);
        let connect: Make = &|host, send| host.connect((NQN, HOST), (0, 32), None, 0, send);
        let flags = flagged(psdt << 6);
        let (status, result, _) = pair.ask(|host, send| changed(host, send, connect, &flags));
        let expected =
            if refused { (Status::CONNECT_INVALID, 1) } else { (Status::SUCCESS, 0x101) };
        assert_eq!((status, result), expected, "{psdt:#b}");
        let mut pair = admin(1, Digests::default());
        let (status, ..) = pair.ask(|host, send| changed(host, send, property, &flags));
        assert_eq!(status == Status::INVALID_FIELD, refused, "{psdt:#b}: {status:?}");
    }
}

/// Of the connect command in its PDU, which begins with 8 bytes of its own, and of its data.
const SQE: usize = 8;
const DATA: usize = 72;
/// In the first word of the completion: the field that is to blame is one of the data.
const IN_DATA: u64 = 1 << 16;

#[test]
fn a_connect_that_fails_says_why_and_the_host_may_try_again() {
    type Spoil = fn(&mut [u8]);
    let spoils: [(Spoil, Status, u64); 14] = [
        (|pdu| pdu[SQE + 1] |= 0b01, Status::CONNECT_INVALID, 1),
        (|pdu| pdu[SQE + 1] |= 0b10, Status::CONNECT_INVALID, 1),
        (|pdu| pdu[SQE + 40] = 1, Status::CONNECT_FORMAT, 0),
        // No queue has one entry, nor so many.
        (|pdu| pdu[SQE + 44..][..2].fill(0), Status::CONNECT_INVALID, 44),
        (|pdu| pdu[SQE + 44] = DEPTH_MAX as u8, Status::CONNECT_INVALID, 44),
        // A controller that is asked for by its number; a queue for I/O of any.
        (|pdu| pdu[DATA + 16] = 0xfe, Status::CONNECT_INVALID, IN_DATA | 16),
        (|pdu| pdu[SQE + 42] = 1, Status::CONNECT_INVALID, IN_DATA | 16),
        (|pdu| pdu[DATA + 256] = 0, Status::CONNECT_INVALID, IN_DATA | 256),
        (|pdu| pdu[DATA + 256..][..224].fill(b'n'), Status::CONNECT_INVALID, IN_DATA | 256),
        (|pdu| pdu[DATA + 512] = 0, Status::CONNECT_INVALID, IN_DATA | 512),
        (|pdu| pdu[DATA + 520] = 0xff, Status::CONNECT_INVALID, IN_DATA | 512),
        (|pdu| pdu[SQE + 24] = 4, Status::INVALID_OFFSET, 0),
        (|pdu| pdu[SQE + 32] = 8, Status::SGL_LENGTH, 0),
        (|pdu| pdu[SQE + 39] = 0x5a, Status::INVALID_SGL, 0),
    ];
    let mut pair = Pair::new(1, Digests::default(), Service::Volumes(subsystem()));
    assert_eq!(pair.carry(), [HostEvent::Ready]);
    let connect =
        |host: &mut Host, send: &mut Vec<u8>| host.connect((NQN, HOST), (0, 32), None, 0, send);
    for (number, (spoil, expected, at)) in spoils.into_iter().enumerate() {
        let (status, result, _) = pair.ask(|host, send| {
            let (from, id) = (send.len(), connect(host, send));
            spoil(&mut send[from..]);
            id
        });
        assert_eq!((status, result), (expected, at), "{number}");
    }
    assert_eq!(pair.ask(connect).0, Status::SUCCESS);
}

#[test]
fn a_connect_with_other_data_than_its_own_is_told_that_their_length_is_wrong() {
    for digests in all_digests() {
        let mut pair = Pair::new(1, digests, Service::Volumes(subsystem()));
        assert_eq!(pair.carry(), [HostEvent::Ready]);
        for length in [4, 1020, 1028, 4096, 4100, 8192] {
            let data = alloc::vec![b'n'; length];
            let (status, result, _) = pair.ask(|host, send| {
                host.command(FABRICS, &data, send, |command| command[4] = FABRICS_CONNECT)
            });
            assert_eq!((status, result), (Status::SGL_LENGTH, 0), "{length}");
        }
        let (status, ..) = pair.ask(|host, send| host.property(0, true, send));
        assert_eq!(status, Status::SEQUENCE_ERROR, "it is not connected");
    }
}

#[test]
fn a_queue_that_is_connected_is_not_connected_again() {
    for mut pair in [admin(1, Digests::default()), io(1, Digests::default())] {
        for queue in [0, 1] {
            let (status, ..) = pair.ask(|host, send| {
                let controller = (queue > 0).then_some(0x101);
                host.connect((NQN, HOST), (queue, 32), controller, 0, send)
            });
            assert_eq!(status, Status::SEQUENCE_ERROR);
        }
        assert_eq!(pair.closed, None);
    }
}

#[test]
fn a_number_by_which_a_host_waits_to_be_told_is_not_free() {
    let mut pair = admin(2, Digests::default());
    let _ = pair.ask(|host, send| host.set_feature(0x0b, 0x800, send));
    let waiting = pair.host.await_event(&mut pair.to_controller);
    assert_eq!(pair.carry(), []);
    let makes: [Make; 3] =
        [&Host::await_event, &Host::keep_alive, &|host, send| host.property(0, true, send)];
    for make in makes {
        changed(&mut pair.host, &mut pair.to_controller, make, |command| {
            command[2..4].copy_from_slice(&waiting.to_le_bytes());
        });
        let refused = HostEvent::Ended { id: waiting, status: Status::ID_CONFLICT, result: 0 };
        assert_eq!(pair.carry(), [refused]);
    }
    assert_waits(&mut pair, waiting);
}

#[test]
fn a_header_that_cannot_be_is_blamed_at_the_first_byte_that_is_wrong() {
    let flush: Make = &|host, send| host.flush(1, send);
    let write: Make = &|host, send| host.write(1, (0, 1), false, &[7; 512], send);
    type Spoil = fn(&mut [u8]);
    let cases: [(Make, Spoil, Fatal); 4] = [
        (flush, |pdu| pdu[4] = 71, Fatal::Field(4)),
        (write, |pdu| pdu[3] = 68, Fatal::Field(3)),
        // Data begin at a multiple of 4.
        (write, |pdu| pdu[3] = 73, Fatal::Field(3)),
        (write, |pdu| pdu[3] = 74, Fatal::Field(3)),
    ];
    for (make, spoil, why) in cases {
        let mut pair = io(1, Digests::default());
        make(&mut pair.host, &mut pair.to_controller);
        spoil(&mut pair.to_controller);
        assert_ended(&mut pair, why);
    }
}

/// The connection has ended for this reason, and its host was told so.
fn assert_ended(pair: &mut Pair, why: Fatal) {
    while !pair.to_controller.is_empty() {
        pair.carry_some();
    }
    assert_eq!(pair.closed, Some(CloseReason::Fault(why)));
    let (code, at) = match why {
        Fatal::Field(at) => (1, u32::from(at)),
        Fatal::Sequence => (2, 0),
        Fatal::DataOutOfRange => (4, 0),
        _ => (5, 0),
    };
    let end = &pair.to_host;
    assert_eq!((end[0], end[8], u32_at(end, 10)), (3, code, at));
}

#[test]
fn data_that_were_asked_for_come_in_order_in_fours_and_not_too_many_at_once() {
    type Spoil = fn(&mut [u8]);
    let none: Spoil = |_| ();
    let short = |at: u32, length: usize| (at, length, none);
    let cases = [
        // Inside what was asked for, but not next.
        (short(4096, 4096), Fatal::Sequence),
        (short(8192, 4096), Fatal::DataOutOfRange),
        (short(1 << 31, 4096), Fatal::DataOutOfRange),
        (short(2, 4096), Fatal::Field(12)),
        (short(0, 4094), Fatal::Field(16)),
        (short(0, H2C_BYTES_MAX as usize + 4), Fatal::TooMuch),
        // It says another length than it has.
        ((0, 4096, (|pdu| pdu[17] = 8) as Spoil), Fatal::Field(16)),
    ];
    for ((offset, length, spoil), why) in cases {
        let mut pair = io(11, Digests::default());
        let id = pair.host.write_later(1, (0, 16), 9, &mut pair.to_controller);
        let events = pair.carry();
        let HostEvent::Asked { tag, .. } = events[0] else { panic!("{events:?}") };
        let (data, send) = (alloc::vec![1; length], &mut pair.to_controller);
        pair.host.send_data((id, tag), offset, &data, u32::MAX, send);
        spoil(&mut pair.to_controller);
        assert_ended(&mut pair, why);
    }
}
