//! The other end: a host's side of one connection, as small as our own tools need it.
//!
//! It is told what to send and says what came. Which command waits for what is the caller's to know, by the command's id.
//!
//! Not here: what kernels do besides (several paths, timers, queues of their own).

use crate::auth::AUTH_BYTES_MAX;
use crate::bytes::{length_u32, set, set_text, u16_at, u64_at};
use crate::command::Status;
use crate::number::{
    ADMIN_ASYNC_EVENT, ADMIN_GET_FEATURES, ADMIN_GET_LOG_PAGE, ADMIN_IDENTIFY, ADMIN_KEEP_ALIVE,
    ADMIN_SET_FEATURES, COMMAND_BYTES, COMMON_BYTES, CONTROLLER_ANY, DIGEST_BYTES, FABRICS,
    FABRICS_AUTH_RECEIVE, FABRICS_AUTH_SEND, FABRICS_CONNECT, FABRICS_PROPERTY_GET,
    FABRICS_PROPERTY_SET, FLAG_SUCCESS, HEAD_BYTES_MAX, IO_COMPARE, IO_DATASET, IO_FLUSH, IO_READ,
    IO_RESERVATION_REPORT, IO_VERIFY, IO_WRITE, IO_WRITE_ZEROES, NQN_BYTES, PDU_C2H_DATA,
    PDU_C2H_TERM, PDU_IC_RESP, PDU_R2T, PDU_RESPONSE, PROPERTY_CC, SECURITY_PROTOCOL,
};
use crate::pdu::{Common, Digests, is_whole, place, put_command, put_ic_request, put_written};
use alloc::vec::Vec;
use base::{ReservationCommand, ReservationKind, crc32c};

/// Bytes of data in one PDU from a controller that are taken, at most.
const DATA_BYTES_MAX: u32 = 4 << 20;

/// What a controller said.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum HostEvent {
    /// The connection is set up: commands may be sent.
    Ready,
    /// A command has ended.
    Ended {
        /// The command.
        id: u16,
        /// How.
        status: Status,
        /// The first two words of the completion.
        result: u64,
    },
    /// Data that a command reads.
    Data {
        /// The command.
        id: u16,
        /// Where it belongs in what is read.
        offset_bytes: u32,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Data of a command that writes may be sent, by [`Host::send_data`].
    Asked {
        /// The command.
        id: u16,
        /// The controller's name for it.
        tag: u16,
        /// From where on.
        offset_bytes: u32,
        /// How much.
        length_bytes: u32,
    },
    /// The controller ends the connection, for this reason (TCP, "Fatal Error Status").
    Ends {
        /// The status.
        code: u16,
    },
}

/// The controller broke the protocol.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct HostFault(pub &'static str);

/// A host's side of one connection.
#[derive(Debug)]
pub struct Host {
    digests: Digests,
    ready: bool,
    input: Vec<u8>,
    next_id: u16,
    /// Its queues are without flow control.
    unwatched: bool,
    /// What the last PDU said besides.
    more: Option<HostEvent>,
}

impl Host {
    /// Appends the request that sets up the connection.
    #[must_use]
    pub fn new(digests: Digests, send: &mut Vec<u8>) -> Host {
        put_ic_request(digests, send);
        let (input, more) = (Vec::new(), None);
        Host { digests, ready: false, input, next_id: 0, unwatched: false, more }
    }

    /// Asks for queues without flow control from now on: then a read's data say that it has ended, and nothing follows.
    pub fn leave_unwatched(&mut self) {
        self.unwatched = true;
    }

    /// Takes bytes that arrived, all of them.
    pub fn take(&mut self, input: &[u8]) {
        self.input.extend_from_slice(input);
    }

    /// What came next, if it is there whole.
    ///
    /// # Errors
    /// If it is nothing that a controller may send.
    pub fn next_event(&mut self) -> Result<Option<HostEvent>, HostFault> {
        if let Some(more) = self.more.take() {
            return Ok(Some(more));
        }
        if self.input.len() < COMMON_BYTES {
            return Ok(None);
        }
        let digests = if self.ready { self.digests } else { Digests::default() };
        let common = Common::from_controller(&self.input, digests);
        let common = common.map_err(|_| HostFault("a header that no controller sends"))?;
        if common.data_bytes > DATA_BYTES_MAX {
            return Err(HostFault("more data than was asked for"));
        }
        let ends = common.kind == PDU_C2H_TERM;
        let trailer = if digests.data && common.data_bytes > 0 && !ends { DIGEST_BYTES } else { 0 };
        let data_end = common.head_bytes + common.data_bytes as usize;
        if self.input.len() < data_end + trailer {
            return Ok(None);
        }
        let plain = ends || common.kind == PDU_IC_RESP;
        let form = if plain { Digests::default() } else { digests };
        if !is_whole(&self.input, common.header_bytes, form) {
            return Err(HostFault("a damaged header"));
        }
        let data = &self.input[common.head_bytes..data_end];
        let sum = u32::from_le_bytes(
            self.input[data_end..data_end + trailer].try_into().unwrap_or_default(),
        );
        if trailer > 0 && sum != crc32c(data) {
            return Err(HostFault("damaged data"));
        }
        let event = Self::event(common, &self.input, data)?;
        match event {
            HostEvent::Ready => self.ready = true,
            HostEvent::Data { id, .. } if common.flags & FLAG_SUCCESS != 0 => {
                if !self.unwatched {
                    return Err(HostFault("an end that was not agreed on"));
                }
                self.more = Some(HostEvent::Ended { id, status: Status::SUCCESS, result: 0 });
            }
            _ => {}
        }
        self.input.drain(..data_end + trailer);
        Ok(Some(event))
    }

    fn event(common: Common, head: &[u8], data: &[u8]) -> Result<HostEvent, HostFault> {
        const { assert!(HEAD_BYTES_MAX >= COMMAND_BYTES) };
        let (id, tag, offset_bytes, length_bytes) = place(head);
        Ok(match common.kind {
            PDU_IC_RESP => HostEvent::Ready,
            PDU_RESPONSE => HostEvent::Ended {
                id: u16_at(head, 20),
                status: Status::from_field(u16_at(head, 22)),
                result: u64_at(head, 8),
            },
            PDU_C2H_DATA => HostEvent::Data { id, offset_bytes, bytes: data.to_vec() },
            PDU_R2T => HostEvent::Asked { id, tag, offset_bytes, length_bytes },
            _ => HostEvent::Ends { code: u16_at(head, 8) },
        })
    }

    /// Appends a command with data of its own, if there is any; gives its id.
    pub(crate) fn command(
        &mut self,
        opcode: u8,
        inline: &[u8],
        send: &mut Vec<u8>,
        fill: impl FnOnce(&mut [u8]),
    ) -> u16 {
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        let length = length_u32(inline.len());
        put_command(length, (self.digests, 4), send, |command| {
            // The data is where a descriptor says.
            set(command, 0, &[opcode, 1 << 6]);
            set(command, 2, &id.to_le_bytes());
            if length > 0 {
                set(command, 32, &length.to_le_bytes());
                command[39] = 0x01;
            }
            fill(command);
        });
        if !inline.is_empty() {
            send.extend_from_slice(inline);
            if self.digests.data {
                send.extend_from_slice(&crc32c(inline).to_le_bytes());
            }
        }
        id
    }

    /// Asks for a queue. For the administration queue `controller` is `None`.
    pub fn connect(
        &mut self,
        (subsystem, host): (&str, &str),
        (queue, entries): (u16, u16),
        controller: Option<u16>,
        keep_alive_ms: u32,
        send: &mut Vec<u8>,
    ) -> u16 {
        let mut data = [0; 1024];
        // Other names are other hosts.
        data[..16].copy_from_slice(&[7; 16]);
        set(&mut data, 12, &crc32c(host.as_bytes()).to_be_bytes());
        set(&mut data, 16, &controller.unwrap_or(CONTROLLER_ANY).to_le_bytes());
        set_text(&mut data, 256, NQN_BYTES, subsystem, 0);
        set_text(&mut data, 512, NQN_BYTES, host, 0);
        let attributes = u8::from(self.unwatched) << 2;
        self.command(FABRICS, &data, send, |command| {
            command[4] = FABRICS_CONNECT;
            set(command, 42, &queue.to_le_bytes());
            set(command, 44, &(entries - 1).to_le_bytes());
            command[46] = attributes;
            set(command, 48, &keep_alive_ms.to_le_bytes());
        })
    }

    /// Says something of a proof of who the host is.
    pub fn prove(&mut self, message: &[u8], send: &mut Vec<u8>) -> u16 {
        self.command(FABRICS, message, send, |command| {
            command[4] = FABRICS_AUTH_SEND;
            set(command, 41, &SECURITY_PROTOCOL);
            set(command, 44, &length_u32(message.len()).to_le_bytes());
        })
    }

    /// Asks what the controller says of a proof.
    pub fn await_proof(&mut self, send: &mut Vec<u8>) -> u16 {
        self.command(FABRICS, &[], send, |command| {
            command[4] = FABRICS_AUTH_RECEIVE;
            let length = length_u32(AUTH_BYTES_MAX);
            expect(command, length);
            set(command, 41, &SECURITY_PROTOCOL);
            set(command, 44, &length.to_le_bytes());
        })
    }

    /// Asks for a property, of 8 bytes or 4.
    pub fn property(&mut self, offset: u32, long: bool, send: &mut Vec<u8>) -> u16 {
        self.command(FABRICS, &[], send, |command| {
            command[4] = FABRICS_PROPERTY_GET;
            command[40] = u8::from(long);
            set(command, 44, &offset.to_le_bytes());
        })
    }

    /// Sets the controller's configuration: 1 switches it on.
    pub fn configure(&mut self, configuration: u32, send: &mut Vec<u8>) -> u16 {
        self.command(FABRICS, &[], send, |command| {
            command[4] = FABRICS_PROPERTY_SET;
            set(command, 44, &PROPERTY_CC.to_le_bytes());
            set(command, 48, &u64::from(configuration).to_le_bytes());
        })
    }

    /// Asks what something is.
    pub fn identify(&mut self, structure: u8, namespace: u32, send: &mut Vec<u8>) -> u16 {
        self.command(ADMIN_IDENTIFY, &[], send, |command| {
            set(command, 4, &namespace.to_le_bytes());
            expect(command, 4096);
            command[40] = structure;
        })
    }

    /// Asks for the start of a log page; `length` is a multiple of 4.
    pub fn log_page(&mut self, page: u8, length: u32, send: &mut Vec<u8>) -> u16 {
        self.command(ADMIN_GET_LOG_PAGE, &[], send, |command| {
            expect(command, length);
            command[40] = page;
            let words = length / 4 - 1;
            set(command, 42, &words.to_le_bytes());
        })
    }

    /// Sets a feature.
    pub fn set_feature(&mut self, feature: u8, value: u32, send: &mut Vec<u8>) -> u16 {
        self.set_feature_of(0, feature, value, send)
    }

    /// Sets a feature that each namespace has by itself.
    pub fn set_feature_of(
        &mut self,
        namespace: u32,
        feature: u8,
        value: u32,
        send: &mut Vec<u8>,
    ) -> u16 {
        self.command(ADMIN_SET_FEATURES, &[], send, |command| {
            set(command, 4, &namespace.to_le_bytes());
            command[40] = feature;
            set(command, 44, &value.to_le_bytes());
        })
    }

    /// Asks for such a feature's value.
    pub fn feature_of(&mut self, namespace: u32, feature: u8, send: &mut Vec<u8>) -> u16 {
        self.command(ADMIN_GET_FEATURES, &[], send, |command| {
            set(command, 4, &namespace.to_le_bytes());
            command[40] = feature;
        })
    }

    /// Says that the host is there.
    pub fn keep_alive(&mut self, send: &mut Vec<u8>) -> u16 {
        self.command(ADMIN_KEEP_ALIVE, &[], send, |_| {})
    }

    /// Asks to be told of what changes.
    pub fn await_event(&mut self, send: &mut Vec<u8>) -> u16 {
        self.command(ADMIN_ASYNC_EVENT, &[], send, |_| {})
    }

    /// Reads blocks.
    pub fn read(
        &mut self,
        namespace: u32,
        place: (u64, u32),
        block_shift: u8,
        send: &mut Vec<u8>,
    ) -> u16 {
        self.transfer((IO_READ, 0), namespace, place, block_shift, send)
    }

    /// Writes blocks, with the data right behind.
    pub fn write(
        &mut self,
        namespace: u32,
        (first, blocks): (u64, u32),
        fua: bool,
        data: &[u8],
        send: &mut Vec<u8>,
    ) -> u16 {
        self.command(IO_WRITE, data, send, |command| {
            aim(command, namespace, first, blocks);
            command[51] |= u8::from(fua) << 6;
        })
    }

    /// Writes blocks, whose data is sent when it is asked for.
    pub fn write_later(
        &mut self,
        namespace: u32,
        place: (u64, u32),
        block_shift: u8,
        send: &mut Vec<u8>,
    ) -> u16 {
        self.transfer((IO_WRITE, 0), namespace, place, block_shift, send)
    }

    /// Likewise, past all caches (FUA).
    pub fn write_through_later(
        &mut self,
        namespace: u32,
        place: (u64, u32),
        block_shift: u8,
        send: &mut Vec<u8>,
    ) -> u16 {
        self.transfer((IO_WRITE, 1 << 6), namespace, place, block_shift, send)
    }

    /// Compares blocks with data right behind.
    pub fn compare(
        &mut self,
        namespace: u32,
        (first, blocks): (u64, u32),
        data: &[u8],
        send: &mut Vec<u8>,
    ) -> u16 {
        self.command(IO_COMPARE, data, send, |command| aim(command, namespace, first, blocks))
    }

    /// Compares blocks with data that is sent when it is asked for.
    pub fn compare_later(
        &mut self,
        namespace: u32,
        place: (u64, u32),
        block_shift: u8,
        send: &mut Vec<u8>,
    ) -> u16 {
        self.transfer((IO_COMPARE, 0), namespace, place, block_shift, send)
    }

    /// Has blocks read, for nobody.
    pub fn verify(
        &mut self,
        namespace: u32,
        (first, blocks): (u64, u32),
        send: &mut Vec<u8>,
    ) -> u16 {
        self.command(IO_VERIFY, &[], send, |command| aim(command, namespace, first, blocks))
    }

    /// A command on blocks, with these flags in its last byte about them, whose data travels by itself.
    fn transfer(
        &mut self,
        (opcode, flags): (u8, u8),
        namespace: u32,
        (first, blocks): (u64, u32),
        block_shift: u8,
        send: &mut Vec<u8>,
    ) -> u16 {
        self.command(opcode, &[], send, |command| {
            aim(command, namespace, first, blocks);
            expect(command, blocks << block_shift);
            command[51] |= flags;
        })
    }

    /// Appends data of a write that was asked for, in PDUs of at most `most` bytes.
    pub fn send_data(
        &mut self,
        (id, tag): (u16, u16),
        offset_bytes: u32,
        data: &[u8],
        most: u32,
        send: &mut Vec<u8>,
    ) {
        let mut at = 0;
        for part in data.chunks(most as usize) {
            let length = length_u32(part.len());
            at += length;
            let last = at as usize == data.len();
            let place = (offset_bytes + at - length, length);
            put_written((id, tag), place, last, (self.digests, 4), send);
            send.extend_from_slice(part);
            if self.digests.data {
                send.extend_from_slice(&crc32c(part).to_le_bytes());
            }
        }
    }

    /// Makes blocks zero; with `unmap` they may become holes.
    pub fn zero(
        &mut self,
        namespace: u32,
        (first, blocks): (u64, u32),
        unmap: bool,
        send: &mut Vec<u8>,
    ) -> u16 {
        self.command(IO_WRITE_ZEROES, &[], send, |command| {
            aim(command, namespace, first, blocks);
            command[51] |= u8::from(unmap) << 1;
        })
    }

    /// Says that blocks are not needed: up to 256 ranges of first block and number.
    pub fn deallocate(&mut self, namespace: u32, ranges: &[(u64, u32)], send: &mut Vec<u8>) -> u16 {
        let mut data = Vec::new();
        for (first, blocks) in ranges {
            data.extend_from_slice(&[0; 4]);
            data.extend_from_slice(&blocks.to_le_bytes());
            data.extend_from_slice(&first.to_le_bytes());
        }
        self.command(IO_DATASET, &data, send, |command| {
            set(command, 4, &namespace.to_le_bytes());
            command[40] = u8::try_from(ranges.len() - 1).unwrap_or(u8::MAX);
            command[44] = 1 << 2;
        })
    }

    /// Changes who may use a volume.
    ///
    /// # Panics
    /// If it is a report: see [`Host::reservations`].
    pub fn reserve(
        &mut self,
        namespace: u32,
        command: &ReservationCommand,
        send: &mut Vec<u8>,
    ) -> u16 {
        self.ask_right(namespace, crate::reserve::build(command), send)
    }

    /// A command about reservations: opcode, word 10 and data.
    fn ask_right(
        &mut self,
        namespace: u32,
        (opcode, word, keys): (u8, u32, Vec<u8>),
        send: &mut Vec<u8>,
    ) -> u16 {
        self.command(opcode, &keys, send, |command| {
            set(command, 4, &namespace.to_le_bytes());
            set(command, 40, &word.to_le_bytes());
        })
    }

    /// Preempts, and has what the others asked for aborted: keys of this host and of the others, and how it is reserved then.
    pub fn preempt_and_abort(
        &mut self,
        namespace: u32,
        (current, others): (u64, u64),
        kind: ReservationKind,
        send: &mut Vec<u8>,
    ) -> u16 {
        const ABORTS: u32 = 2;
        let preempt = ReservationCommand::Preempt { current, others, kind };
        let (opcode, word, keys) = crate::reserve::build(&preempt);
        self.ask_right(namespace, (opcode, word & !0b111 | ABORTS, keys), send)
    }

    /// Reads who may use a volume: so many bytes, a multiple of 4.
    pub fn reservations(&mut self, namespace: u32, bytes: u32, send: &mut Vec<u8>) -> u16 {
        self.command(IO_RESERVATION_REPORT, &[], send, |command| {
            set(command, 4, &namespace.to_le_bytes());
            expect(command, bytes);
            set(command, 40, &(bytes / 4 - 1).to_le_bytes());
            command[44] = 1;
        })
    }

    /// Makes what was answered durable.
    pub fn flush(&mut self, namespace: u32, send: &mut Vec<u8>) -> u16 {
        self.command(IO_FLUSH, &[], send, |command| set(command, 4, &namespace.to_le_bytes()))
    }
}

/// The command's data, so many bytes, travels by itself.
fn expect(command: &mut [u8], bytes: u32) {
    set(command, 32, &bytes.to_le_bytes());
    command[39] = 0x5a;
}

fn aim(command: &mut [u8], namespace: u32, first: u64, blocks: u32) {
    set(command, 4, &namespace.to_le_bytes());
    set(command, 40, &first.to_le_bytes());
    set(command, 48, &(blocks - 1).to_le_bytes());
}
