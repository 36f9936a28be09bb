//! A connection by whichever protocol, for owners to whom it is the same.

use std::ops::Range;

use base::{AnswerError, Instant};
use link::{Claims, LinkError};
use sys::{Buffer, BufferPool, Piece, PskFault, Room};

use crate::nbd_connection::{Demand, Inputs, NbdConnection, Tag};
use crate::nvme_connection::NvmeConnection;
use crate::ublk_disk::UblkDisk;
use crate::vhost_disk::VhostDisk;

/// One client.
pub enum Served {
    /// By NBD.
    Nbd(Box<NbdConnection>),
    /// By NVMe: one queue of a host.
    Nvme(Box<NvmeConnection>),
    /// By the kernel: a disk of this host.
    Ublk(Box<UblkDisk>),
    /// By QEMU: a disk of a machine.
    Vhost(Box<VhostDisk>),
    /// By another thread of its owner's: what it is, for a log.
    Elsewhere(&'static str),
}

/// Why nothing more is taken from a client.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Over {
    /// In words.
    pub why: String,
    /// It broke the protocol.
    pub fault: bool,
    /// It has not proved who it is.
    pub unproved: bool,
}

impl Served {
    /// What it is, for a log.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Served::Nbd(_) => "an NBD client",
            Served::Nvme(_) => "an NVMe host",
            Served::Ublk(_) => "a disk of this host",
            Served::Vhost(_) => "a machine's disk",
            Served::Elsewhere(kind) => kind,
        }
    }

    /// What it is by NBD.
    pub fn nbd(&mut self) -> Option<&mut NbdConnection> {
        match self {
            Served::Nbd(connection) => Some(connection),
            Served::Nvme(_) | Served::Ublk(_) | Served::Vhost(_) | Served::Elsewhere(_) => None,
        }
    }

    /// What it is by NVMe.
    pub fn nvme(&mut self) -> Option<&mut NvmeConnection> {
        match self {
            Served::Nvme(connection) => Some(connection),
            Served::Nbd(_) | Served::Ublk(_) | Served::Vhost(_) | Served::Elsewhere(_) => None,
        }
    }

    /// What it is to the kernel.
    pub fn ublk(&mut self) -> Option<&mut UblkDisk> {
        match self {
            Served::Ublk(disk) => Some(disk),
            Served::Nbd(_) | Served::Nvme(_) | Served::Vhost(_) | Served::Elsewhere(_) => None,
        }
    }

    /// What it is to QEMU.
    pub fn vhost(&mut self) -> Option<&mut VhostDisk> {
        match self {
            Served::Vhost(disk) => Some(disk),
            Served::Nbd(_) | Served::Nvme(_) | Served::Ublk(_) | Served::Elsewhere(_) => None,
        }
    }

    /// See [`NbdConnection::receive_into`].
    pub fn receive_into(&mut self) -> Option<(Buffer, Range<usize>)> {
        match self {
            Served::Nbd(connection) => connection.receive_into(),
            Served::Nvme(connection) => connection.receive_into(),
            Served::Ublk(_) | Served::Vhost(_) | Served::Elsewhere(_) => None,
        }
    }

    /// See [`NbdConnection::received`].
    ///
    /// # Panics
    /// If the buffer did not come from [`Served::receive_into`].
    pub fn received(
        &mut self,
        now: Instant,
        buffer: Buffer,
        count: usize,
        demands: &mut Vec<Demand>,
    ) {
        match self {
            Served::Nbd(connection) => connection.received(now, buffer, count, demands),
            Served::Nvme(connection) => connection.received(now, buffer, count, demands),
            Served::Ublk(_) | Served::Vhost(_) | Served::Elsewhere(_) => {
                unreachable!("it has no bytes to take")
            }
        }
    }

    /// Goes on with what has arrived, as far as limits allow.
    pub fn proceed(&mut self, now: Instant, demands: &mut Vec<Demand>) {
        match self {
            Served::Nbd(connection) => connection.proceed(now, demands),
            Served::Nvme(connection) => connection.proceed(now, demands),
            Served::Ublk(disk) => disk.proceed(demands),
            Served::Vhost(disk) => disk.proceed(demands),
            Served::Elsewhere(_) => {}
        }
    }

    /// See [`NbdConnection::answer`].
    ///
    /// # Panics
    /// If the piece is not open.
    pub fn answer(&mut self, tag: Tag, result: Result<(), AnswerError>, buffer: Option<Buffer>) {
        match self {
            Served::Nbd(connection) => connection.answer(tag, result, buffer),
            Served::Nvme(connection) => connection.answer(tag, result, buffer),
            Served::Ublk(disk) => disk.answer(tag, result, buffer.as_ref()),
            Served::Vhost(disk) => disk.answer(tag, result, buffer.as_ref()),
            Served::Elsewhere(_) => unreachable!("it asks for nothing here"),
        }
    }

    /// A part of the room for what a read will give, this much at most: the piece goes on, and nobody waits for it.
    pub fn take_room(&mut self, tag: Tag, bytes: usize) -> Option<Room> {
        let room = match self {
            Served::Nbd(connection) => connection.room_of(tag.slot),
            Served::Nvme(connection) => connection.room_of(tag.slot),
            Served::Ublk(disk) => disk.room_of(tag.slot),
            Served::Vhost(disk) => disk.room_of(tag.slot),
            Served::Elsewhere(_) => None,
        };
        room.map(|room| room.split(bytes))
    }

    /// What is to be sent now, in order, is put behind `pieces`.
    pub fn take_send(&mut self, pieces: &mut Vec<Piece>) {
        match self {
            Served::Nbd(connection) => connection.take_send(pieces),
            Served::Nvme(connection) => connection.take_send(pieces),
            Served::Ublk(_) | Served::Vhost(_) | Served::Elsewhere(_) => {}
        }
    }

    /// So many bytes have left.
    pub fn sent(&mut self, bytes: u64) {
        match self {
            Served::Nbd(connection) => connection.sent(bytes),
            Served::Nvme(connection) => connection.sent(bytes),
            Served::Ublk(_) | Served::Vhost(_) | Served::Elsewhere(_) => {}
        }
    }

    /// Whether it waits for a buffer.
    #[must_use]
    pub fn starved(&self) -> bool {
        match self {
            Served::Nbd(connection) => connection.starved(),
            Served::Nvme(connection) => connection.starved(),
            Served::Ublk(disk) => disk.starved(),
            Served::Vhost(disk) => disk.starved(),
            Served::Elsewhere(_) => false,
        }
    }

    /// Whether it holds memory that only its client can free.
    #[must_use]
    pub fn waits_for_client(&self) -> bool {
        match self {
            Served::Nbd(connection) => connection.waits_for_client(),
            Served::Nvme(connection) => connection.waits_for_client(),
            Served::Ublk(_) | Served::Vhost(_) | Served::Elsewhere(_) => false,
        }
    }

    /// From now on what its requests carry is taken from this pool.
    pub fn draw_from(&mut self, payload: BufferPool) {
        match self {
            Served::Nbd(connection) => connection.draw_from(payload),
            Served::Nvme(connection) => connection.draw_from(payload),
            Served::Ublk(disk) => disk.draw_from(payload),
            Served::Vhost(disk) => disk.draw_from(payload),
            Served::Elsewhere(_) => {}
        }
    }

    /// Another thread serves it from now on: by these buffers, and this pool. Nothing of it may be open.
    pub fn moves_to(&mut self, inputs: Inputs, payload: BufferPool) {
        match self {
            Served::Nbd(connection) => connection.receive_in(inputs),
            Served::Nvme(connection) => connection.receive_in(inputs),
            Served::Ublk(_) | Served::Vhost(_) | Served::Elsewhere(_) => {}
        }
        self.draw_from(payload);
    }

    /// Whether requests that came over its socket wait for an answer.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        match self {
            Served::Nbd(connection) => connection.open_count() > 0,
            Served::Nvme(connection) => connection.open_count() > 0,
            Served::Ublk(_) | Served::Vhost(_) | Served::Elsewhere(_) => false,
        }
    }

    /// Why nothing more is taken from the client, once everything open is answered and taken to send.
    #[must_use]
    pub fn over(&self) -> Option<Over> {
        match self {
            Served::Nbd(connection) if connection.is_sent_off() => Some(Over {
                why: "what it asked for came too late by this way; it is to ask anew".to_owned(),
                fault: false,
                unproved: false,
            }),
            Served::Nbd(connection) => connection.finished().map(|reason| Over {
                why: format!("{reason:?}"),
                fault: reason.is_fault(),
                unproved: false,
            }),
            Served::Nvme(connection) => match connection.broken() {
                Some(broken) => Some(over_by_tls(broken)),
                None => connection.finished().map(|reason| Over {
                    why: format!("{reason:?}"),
                    fault: matches!(reason, nvme::CloseReason::Fault(_)),
                    unproved: matches!(reason, nvme::CloseReason::Unproved(_)),
                }),
            },
            Served::Ublk(_) | Served::Elsewhere(_) => None,
            Served::Vhost(disk) => disk.fault().map(|fault| Over {
                why: fault.to_string(),
                fault: true,
                unproved: false,
            }),
        }
    }

    /// Who the client is, once its certificate is verified.
    #[must_use]
    pub fn claims(&self) -> Option<&Claims> {
        match self {
            Served::Nbd(connection) => connection.claims(),
            Served::Nvme(_) | Served::Ublk(_) | Served::Vhost(_) | Served::Elsewhere(_) => None,
        }
    }

    /// See [`NbdConnection::handshake_bytes`].
    #[must_use]
    pub fn handshake_bytes(&self) -> usize {
        match self {
            Served::Nbd(connection) => connection.handshake_bytes(),
            Served::Nvme(_) | Served::Ublk(_) | Served::Vhost(_) | Served::Elsewhere(_) => 0,
        }
    }

    /// See [`NbdConnection::broken`].
    #[must_use]
    pub fn broken(&self) -> Option<&LinkError> {
        match self {
            Served::Nbd(connection) => connection.broken(),
            Served::Nvme(_) | Served::Ublk(_) | Served::Vhost(_) | Served::Elsewhere(_) => None,
        }
    }

    /// What this client has seen is not so any more.
    pub fn lose(&mut self) {
        match self {
            Served::Nbd(connection) => connection.lose(),
            Served::Nvme(connection) => connection.lose(),
            Served::Ublk(disk) => disk.lose(),
            Served::Vhost(disk) => disk.lose(),
            Served::Elsewhere(_) => {}
        }
    }

    /// No further request is taken: the resource goes away, or the node stops. An NVMe host is told that by what its path is
    /// worth; a disk keeps what is asked of it for the next process.
    pub fn shut_down(&mut self) {
        match self {
            Served::Nbd(connection) => connection.shut_down(),
            Served::Nvme(_) | Served::Elsewhere(_) => {}
            Served::Ublk(disk) => disk.shut_down(),
            Served::Vhost(disk) => disk.shut_down(),
        }
    }
}

fn over_by_tls(broken: &PskFault) -> Over {
    Over {
        why: broken.to_string(),
        fault: matches!(broken, PskFault::TooMuch | PskFault::Broken(_)),
        unproved: matches!(broken, PskFault::Unknown(_) | PskFault::WrongKey(_)),
    }
}
