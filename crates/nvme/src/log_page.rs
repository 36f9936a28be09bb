//! Log pages (base, "Get Log Page command").

use crate::bytes::{set, set_text, zeroes};
use crate::number::{
    CONTROLLER_ANY, IO_COMPARE, IO_DATASET, IO_FLUSH, IO_READ, IO_RESERVATION_ACQUIRE,
    IO_RESERVATION_REGISTER, IO_RESERVATION_RELEASE, IO_RESERVATION_REPORT, IO_VERIFY, IO_WRITE,
    IO_WRITE_ZEROES, LOG_CHANGED_NAMESPACES, LOG_DISCOVERY, LOG_EFFECTS, LOG_ERRORS, LOG_FIRMWARE,
    LOG_HEALTH, NQN_BYTES, NSID_ALL,
};
use crate::subsystem::{Entry, Service, Subsystem};
use alloc::format;
use alloc::vec::Vec;

/// Bytes of an entry of the discovery log, and of what stands before the first.
const ENTRY_BYTES: usize = 1024;
/// Queue entries of the admin queue, as discovery proposes them.
const ADMIN_DEPTH: u16 = 32;

/// A log page, whole; `None` if there is none of this number, or it is that of asymmetric access. `changed`: namespaces that
/// changed since that page was read.
pub(crate) fn log_page(service: &Service, number: u8, changed: &[u32]) -> Option<Vec<u8>> {
    match (number, service) {
        (LOG_ERRORS, _) => Some(zeroes(64)),
        (LOG_HEALTH, Service::Volumes(_)) => Some(health()),
        (LOG_FIRMWARE, Service::Volumes(_)) => Some(firmware()),
        (LOG_CHANGED_NAMESPACES, Service::Volumes(_)) => Some(changed_page(changed)),
        (LOG_EFFECTS, Service::Volumes(_)) => Some(effects()),
        (LOG_DISCOVERY, Service::Discovery { entries, generation }) => {
            Some(discovery(entries, *generation))
        }
        _ => None,
    }
}

/// Nothing is wrong; 20 °C, for hosts that take 0 for a fault.
fn health() -> Vec<u8> {
    let mut page = zeroes(512);
    set(&mut page, 1, &293_u16.to_le_bytes());
    page[3] = 100;
    page[4] = 10;
    page
}

fn firmware() -> Vec<u8> {
    let mut page = zeroes(512);
    page[0] = 1;
    set_text(&mut page, 8, 8, env!("CARGO_PKG_VERSION"), b' ');
    page
}

fn changed_page(changed: &[u32]) -> Vec<u8> {
    let mut page = zeroes(4096);
    if changed.len() > page.len() / 4 {
        set(&mut page, 0, &NSID_ALL.to_le_bytes());
        return page;
    }
    for (id, to) in changed.iter().zip(page.as_chunks_mut().0) {
        *to = id.to_le_bytes();
    }
    page
}

/// Which commands there are, and which of them change what is stored.
fn effects() -> Vec<u8> {
    const SUPPORTED: u32 = 1;
    const WRITES: u32 = 1 << 1;
    let mut page = zeroes(4096);
    for opcode in [0x02, 0x06, 0x08, 0x09, 0x0a, 0x0c, 0x18] {
        set(&mut page, 4 * opcode, &SUPPORTED.to_le_bytes());
    }
    let reservations = [
        IO_RESERVATION_REGISTER,
        IO_RESERVATION_REPORT,
        IO_RESERVATION_ACQUIRE,
        IO_RESERVATION_RELEASE,
    ];
    for opcode in [IO_FLUSH, IO_READ, IO_COMPARE, IO_VERIFY].into_iter().chain(reservations) {
        set(&mut page, 1024 + 4 * usize::from(opcode), &SUPPORTED.to_le_bytes());
    }
    for opcode in [IO_WRITE, IO_WRITE_ZEROES, IO_DATASET] {
        let effect = SUPPORTED | WRITES;
        set(&mut page, 1024 + 4 * usize::from(opcode), &effect.to_le_bytes());
    }
    page
}

/// What the path is worth, which has changed so many times. `groups_only`: without the namespaces.
pub(crate) fn access_page(subsystem: &Subsystem, groups_only: bool, changes: u64) -> Vec<u8> {
    let mut page = zeroes(16 + 32);
    set(&mut page, 0, &changes.to_le_bytes());
    set(&mut page, 8, &1_u16.to_le_bytes());
    set(&mut page, 16, &1_u32.to_le_bytes());
    set(&mut page, 24, &changes.to_le_bytes());
    page[32] = subsystem.access.value();
    if !groups_only {
        let count = crate::bytes::length_u32(subsystem.namespaces.len());
        set(&mut page, 20, &count.to_le_bytes());
        for namespace in &subsystem.namespaces {
            page.extend_from_slice(&namespace.id.to_le_bytes());
        }
    }
    page
}

fn discovery(entries: &[Entry], generation: u64) -> Vec<u8> {
    let mut page = zeroes(ENTRY_BYTES * (entries.len() + 1));
    set(&mut page, 0, &generation.to_le_bytes());
    let count = u64::from(crate::bytes::length_u32(entries.len()));
    set(&mut page, 8, &count.to_le_bytes());
    for (entry, to) in entries.iter().zip(page[ENTRY_BYTES..].chunks_mut(ENTRY_BYTES)) {
        // TCP; a subsystem with volumes; flow control of submission queues may be left out.
        to[0] = 3;
        to[1] = if entry.ipv6 { 2 } else { 1 };
        to[2] = 2;
        // Whether a secure channel is required (TREQ), which is TLS 1.3 (TSAS.SECTYPE).
        to[3] = 1 << 2 | u8::from(entry.tls);
        set(to, 4, &entry.node.to_le_bytes());
        set(to, 6, &CONTROLLER_ANY.to_le_bytes());
        set(to, 8, &ADMIN_DEPTH.to_le_bytes());
        set_text(to, 32, 32, &format!("{}", entry.port), 0);
        set_text(to, 256, NQN_BYTES, &entry.nqn, 0);
        set_text(to, 512, 256, &entry.address, 0);
        to[768] = if entry.tls { 2 } else { 0 };
    }
    page
}
