//! Commands that bring data for the machine itself, which travel by themselves.

use super::{Pair, all_digests, io};
use crate::host::HostEvent;
use crate::number::{IO_DATASET, IO_RESERVATION_REGISTER};
use crate::request::{Op, Request};
use crate::{Status, bytes::length_u32};
use alloc::boxed::Box;
use alloc::vec::Vec;
use base::ReservationCommand;

/// Sends a command whose data travels by itself, when it is asked for, in two PDUs.
fn ask_with_later(
    pair: &mut Pair,
    (opcode, data): (u8, &[u8]),
    fill: impl FnOnce(&mut [u8]),
    damage: bool,
) -> Status {
    let id = pair.host.command(opcode, &[], &mut pair.to_controller, |command| {
        command[4] = 1;
        command[32..36].copy_from_slice(&length_u32(data.len()).to_le_bytes());
        command[39] = 0x5a;
        fill(command);
    });
    let asked = pair.carry();
    let tag = match asked[..] {
        [HostEvent::Asked { id: of, tag, offset_bytes: 0, length_bytes }] => {
            assert_eq!((of, length_bytes as usize), (id, data.len()));
            tag
        }
        [HostEvent::Ended { id: of, status, .. }] if of == id => return status,
        _ => panic!("{asked:?}"),
    };
    // Others are carried out meanwhile.
    assert_eq!(pair.ask(|host, send| host.flush(1, send)).0, Status::SUCCESS);
    let most = length_u32(data.len()) / 8 * 4;
    pair.host.send_data((id, tag), 0, data, most, &mut pair.to_controller);
    if damage {
        *pair.to_controller.last_mut().unwrap() ^= 1;
    }
    let ended = pair.carry();
    let [HostEvent::Ended { id: of, status, .. }] = ended[..] else { panic!("{ended:?}") };
    assert_eq!((of, pair.connection.open_count()), (id, 0));
    status
}

#[test]
fn ranges_and_keys_may_travel_by_themselves() {
    let register = ReservationCommand::Register { key: 7, persists: None };
    let keys: Vec<u8> = [0_u64, 7].iter().flat_map(|key| key.to_le_bytes()).collect();
    let ranges: Vec<u8> = (0..256_u64)
        .flat_map(|first| [&[0, 0, 0, 0, 1, 0, 0, 0][..], &first.to_le_bytes()].concat())
        .collect();
    let dataset = |command: &mut [u8]| (command[40], command[44]) = (0xff, 1 << 2);
    for (seed, digests) in all_digests().enumerate() {
        let mut pair = io(seed as u64, digests);
        let (status, ..) = pair.ask(|host, send| host.write(1, (0, 8), false, &[3; 4096], send));
        assert_eq!(status, Status::SUCCESS);
        let status = ask_with_later(&mut pair, (IO_DATASET, &ranges), dataset, false);
        assert_eq!(status, Status::SUCCESS);
        assert!(pair.volumes[&1][..4096].iter().all(|&byte| byte == 0));
        let status = ask_with_later(&mut pair, (IO_RESERVATION_REGISTER, &keys), |_| {}, false);
        assert_eq!(status, Status::SUCCESS);
        assert_eq!(pair.requests.last().unwrap().op, Op::Reserve(Box::new(register)));
        let asked = pair.requests.len();
        let wrong = [
            (&ranges[..4080], Status::SGL_LENGTH),
            (&[0; 4112], Status::SGL_LENGTH),
            (&[], Status::SGL_LENGTH),
        ];
        for (data, expected) in wrong {
            let status = ask_with_later(&mut pair, (IO_DATASET, data), dataset, false);
            assert_eq!(status, expected, "{}", data.len());
        }
        if digests.data {
            let status = ask_with_later(&mut pair, (IO_DATASET, &ranges), dataset, true);
            assert_eq!(status, Status::TRANSPORT);
        }
        let others = |request: &&Request| request.op != Op::Flush;
        assert_eq!(pair.requests[asked..].iter().find(others), None);
    }
}
