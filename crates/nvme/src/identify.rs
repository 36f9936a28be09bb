//! What controllers and namespaces say of themselves (base, "Identify command").

use crate::bytes::{set, set_text, zeroes};
use crate::command::Status;
use crate::number::{
    COMMAND_BYTES, DEALLOCATED_BLOCKS, DISCOVERY_NQN, EVENTS_OPEN_MAX, IDENTIFY_BYTES,
    INLINE_BYTES_MAX, MDTS, NAMESPACES_MAX, NOTICE_ANA, NOTICE_DISCOVERY, NOTICE_NAMESPACES,
    NQN_BYTES, NSID_ALL, VERSION,
};
use crate::subsystem::{Namespace, Service};
use alloc::vec::Vec;

/// Asks what a namespace is.
const CNS_NAMESPACE: u8 = 0x00;
/// Asks what the controller is.
const CNS_CONTROLLER: u8 = 0x01;
/// Asks which namespaces there are.
const CNS_LIST: u8 = 0x02;
/// Asks for a namespace's identifiers.
const CNS_DESCRIPTORS: u8 = 0x03;
/// Asks what the controller says of a command set.
const CNS_CONTROLLER_SET: u8 = 0x06;
/// The NVM command set, of which there are questions.
const SET_NVM: u8 = 0x00;

/// The answer to an identify command; `set`: of which command set it asks, if its question has one.
pub(crate) fn identify(
    service: &Service,
    cns: u8,
    nsid: u32,
    controller: u16,
    set: u8,
) -> Result<Vec<u8>, Status> {
    match cns {
        CNS_CONTROLLER => Ok(of_controller(service, controller)),
        CNS_CONTROLLER_SET if set == SET_NVM => Ok(of_command_set()),
        CNS_NAMESPACE if nsid == 0 || nsid == NSID_ALL => Err(Status::INVALID_NAMESPACE),
        // One that is not there is all zeroes.
        CNS_NAMESPACE if nsid <= NAMESPACES_MAX => {
            Ok(service.namespace(nsid).map_or_else(|| zeroes(IDENTIFY_BYTES), of_namespace))
        }
        CNS_LIST if nsid < NSID_ALL - 1 => Ok(list(service.namespaces(), nsid)),
        CNS_DESCRIPTORS => {
            service.namespace(nsid).map(descriptors).ok_or(Status::INVALID_NAMESPACE)
        }
        CNS_NAMESPACE | CNS_LIST => Err(Status::INVALID_NAMESPACE),
        _ => Err(Status::INVALID_FIELD),
    }
}

fn of_controller(service: &Service, controller: u16) -> Vec<u8> {
    let mut page = zeroes(IDENTIFY_BYTES);
    let to = page.as_mut_slice();
    let (nqn, serial) = match service {
        Service::Discovery { .. } => (DISCOVERY_NQN, "discovery"),
        Service::Volumes(subsystem) => (subsystem.nqn.as_str(), subsystem.serial.as_str()),
    };
    set_text(to, 4, 20, serial, b' ');
    set_text(to, 24, 40, "Lockstep", b' ');
    set_text(to, 64, 8, env!("CARGO_PKG_VERSION"), b' ');
    to[77] = MDTS;
    set(to, 78, &controller.to_le_bytes());
    set(to, 80, &VERSION.to_le_bytes());
    // Aborts of 4 commands at once, which are all answered as not done; one more event than counts from 0.
    to[258] = 3;
    to[259] = u8::try_from(EVENTS_OPEN_MAX - 1).expect("there are few");
    // The log pages of commands' effects, and pages longer than 16 KiB read by offset.
    to[261] = 0b110;
    // Keep-alive in steps of 100 ms.
    set(to, 320, &1_u16.to_le_bytes());
    to[512] = 0x66;
    to[513] = 0x44;
    set(to, 514, &crate::number::DEPTH_MAX.to_le_bytes());
    // Data by descriptors, also in the command's PDU at an offset.
    set(to, 536, &(1_u32 | 1 << 20).to_le_bytes());
    set_text(to, 768, NQN_BYTES, nqn, 0);
    let response_bytes: u32 = 16;
    set(to, 1796, &(response_bytes / 16).to_le_bytes());
    to[1803] = 1;
    match service {
        Service::Discovery { .. } => {
            set(to, 92, &NOTICE_DISCOVERY.to_le_bytes());
            to[111] = 2;
        }
        Service::Volumes(_) => of_io_controller(to),
    }
    page
}

/// What a controller says of the NVM command set: how much a dataset management command may name, so that it is done long before
/// a host gives it up. Other sizes have no limit.
fn of_command_set() -> Vec<u8> {
    let mut page = zeroes(IDENTIFY_BYTES);
    // As many ranges as are told at most; each, and all of a command together, of so many blocks.
    page[3] = u8::MAX;
    set(&mut page, 4, &DEALLOCATED_BLOCKS.to_le_bytes());
    set(&mut page, 8, &u64::from(DEALLOCATED_BLOCKS).to_le_bytes());
    page
}

/// What only a controller with namespaces has.
fn of_io_controller(to: &mut [u8]) {
    // Several ports and controllers, and asymmetric access.
    to[76] = 0b1011;
    set(to, 92, &(NOTICE_NAMESPACES | NOTICE_ANA).to_le_bytes());
    to[111] = 1;
    // A change of access takes 10 s at most; states optimized, non-optimized and inaccessible, and the group of a
    // namespace does not change.
    to[342] = 10;
    to[343] = 0b0100_0111;
    set(to, 344, &1_u32.to_le_bytes());
    set(to, 348, &1_u32.to_le_bytes());
    // The largest id there may be, and as many at once: Linux wants both of whoever tells of asymmetric access.
    set(to, 516, &NAMESPACES_MAX.to_le_bytes());
    set(to, 540, &NAMESPACES_MAX.to_le_bytes());
    // Compare, deallocate, write zeroes, reservations, and verify.
    set(to, 520, &(1_u16 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 7).to_le_bytes());
    // What is answered may be in a volatile cache; a flush may name all namespaces.
    to[525] = 0b111;
    let capsule = crate::bytes::length_u32(COMMAND_BYTES) + INLINE_BYTES_MAX;
    set(to, 1792, &(capsule / 16).to_le_bytes());
}

fn of_namespace(namespace: &Namespace) -> Vec<u8> {
    let mut page = zeroes(IDENTIFY_BYTES);
    let to = page.as_mut_slice();
    for at in [0, 8, 16] {
        set(to, at, &namespace.blocks.to_le_bytes());
    }
    // Deallocated blocks count as such, and what is preferred is said from byte 64 on.
    to[24] = 0b1_0101;
    // Several controllers may have it attached.
    to[30] = 1;
    // Reservations of all kinds, which may persist through a loss of power; keys are ignored as since 1.3.
    to[31] = if namespace.reserves { 0xff } else { 0 };
    // Deallocated blocks read as zeroes, and write zeroes may deallocate.
    to[33] = 0b1001;
    // Writes and deallocations are best in units of 4 KiB.
    let unit = (4096_u32 >> namespace.block_shift).max(1) - 1;
    for at in [64, 66, 68, 70] {
        set(to, at, &u16::try_from(unit).expect("at most 7").to_le_bytes());
    }
    set(to, 92, &1_u32.to_le_bytes());
    set(to, 104, &namespace.nguid);
    to[130] = namespace.block_shift;
    page
}

fn list(namespaces: &[Namespace], above: u32) -> Vec<u8> {
    let mut page = zeroes(IDENTIFY_BYTES);
    let ids = namespaces.iter().map(|namespace| namespace.id).filter(|&id| id > above);
    for (id, to) in ids.zip(page.as_chunks_mut().0) {
        *to = id.to_le_bytes();
    }
    page
}

fn descriptors(namespace: &Namespace) -> Vec<u8> {
    let mut page = zeroes(IDENTIFY_BYTES);
    // Of 16 bytes, an NGUID; of one byte, the command set, which is 0.
    set(&mut page, 0, &[2, 16, 0, 0]);
    set(&mut page, 4, &namespace.nguid);
    set(&mut page, 20, &[4, 1, 0, 0, 0]);
    page
}
