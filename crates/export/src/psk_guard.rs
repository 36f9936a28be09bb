//! TLS with a pre-shared key around a host's connection: records in, plain bytes out, and back.
//!
//! Always: nothing is handed out before the host has shown that it knows a key; what TLS keeps of either direction is a few
//! buffers' worth, however much there is to send.
//!
//! Not here: TLS itself (`sys`), which hosts have which keys and how long a stranger may take (the owner), what the plain bytes mean
//! (`nvme_connection`).

use std::ops::Range;
use std::sync::Arc;

use sys::{Buffer, BufferPool, Piece, Psk, PskFault, PskKeys, PskSession, PskTls};

/// How a TLS record begins that opens a handshake; no host begins otherwise like this.
pub(crate) const HANDSHAKE_RECORD: u8 = 0x16;

/// Bytes that are put into records at once: what TLS keeps of them until they are taken from it.
const SEAL_BYTES: usize = 64 << 10;

/// Records of no more bytes are worth no buffer of clients' memory.
const SMALL_BYTES: usize = 4 << 10;

/// What a host that begins with TLS is answered with.
#[derive(Clone)]
pub struct PskOffer {
    /// The machine's TLS.
    pub tls: PskTls,
    /// Says which keys an identity has.
    pub keys: Arc<PskKeys>,
}

/// Where records are made.
#[derive(Clone, Copy)]
pub(crate) struct Pools<'a> {
    /// Of small ones.
    pub(crate) replies: &'a BufferPool,
    /// Of others.
    pub(crate) payload: &'a BufferPool,
}

/// One host's TLS.
pub(crate) struct PskGuard {
    session: PskSession,
    /// Where records are received.
    buffer: Option<Buffer>,
    /// Everything that has arrived is used, but for a record that is not whole.
    drained: bool,
}

impl PskGuard {
    pub(crate) fn new(offer: &PskOffer) -> PskGuard {
        let session = offer.tls.accept(Arc::clone(&offer.keys));
        PskGuard { session, buffer: None, drained: true }
    }

    /// The identity that the host has shown to know a key of, and the key.
    pub(crate) fn shown(&self) -> Option<(&str, &Psk)> {
        self.session.shown()
    }

    /// How much may be received at once.
    pub(crate) fn receive_max(&self) -> usize {
        self.session.receive_max()
    }

    /// Everything that has arrived is used.
    pub(crate) fn is_drained(&self) -> bool {
        self.drained
    }

    /// The buffer for the next records, if it is here.
    pub(crate) fn take_buffer(&mut self) -> Option<Buffer> {
        self.buffer.take()
    }

    /// Records have arrived in this part of `buffer`.
    pub(crate) fn arrived(&mut self, buffer: Buffer, at: Range<usize>) {
        self.session.take(&buffer[at]);
        self.buffer = Some(buffer);
        self.drained = false;
    }

    /// Moves plain bytes into `place`, as far as some have arrived; answers how many. The handshake goes on here as well.
    pub(crate) fn read(&mut self, place: &mut [u8]) -> Result<usize, PskFault> {
        let count = self.session.read(place)?;
        self.drained = count < place.len();
        Ok(count)
    }

    /// Puts `pieces` into records, with whatever TLS itself has to say, and these behind `records`; they are made in buffers of
    /// `pools` if there are some. If it `ends`, the host is told that nothing more comes.
    pub(crate) fn seal(
        &mut self,
        pieces: &[Piece],
        ends: bool,
        pools: Pools<'_>,
        records: &mut Vec<Piece>,
    ) {
        if self.session.is_open() {
            for part in pieces.iter().flat_map(|piece| piece.as_slice().chunks(SEAL_BYTES)) {
                self.session.write(part);
                if self.session.outgoing_bytes() >= SEAL_BYTES {
                    self.move_records(pools, records);
                }
            }
        }
        if ends {
            self.session.close();
        }
        self.move_records(pools, records);
    }

    fn move_records(&mut self, pools: Pools<'_>, records: &mut Vec<Piece>) {
        let length = self.session.outgoing_bytes();
        if length == 0 {
            return;
        }
        let pool = if length > SMALL_BYTES { pools.payload } else { pools.replies };
        let buffer = pool.take(length);
        records.push(match buffer {
            Some(mut buffer) => {
                let place = buffer.as_mut().expect("nobody else has a buffer that was just taken");
                let count = self.session.outgoing(&mut place[..length]);
                Piece::part(&buffer, 0..count)
            }
            None => {
                let mut bytes = vec![0; length];
                let count = self.session.outgoing(&mut bytes);
                bytes.truncate(count);
                Piece::from(bytes)
            }
        });
    }
}
