//! TLS around a client's connection: records in, plain bytes out, and back.
//!
//! Always: nothing is handed out before the client's certificate was verified; what was said in the
//! clear leaves before the first record.
//!
//! Not here: who is believed, limits of the handshake (`link`); what the plain bytes mean
//! (`nbd_connection`); how long a stranger may take (the owner).

use std::ops::Range;

use link::{Claims, LinkError, Session};
use sys::{Buffer, BufferPool, Piece};

use crate::pieces::count_bytes;

/// One client's TLS.
pub(crate) struct Guard {
    session: Session,
    /// Records that have arrived.
    buffer: Option<Buffer>,
    at: Range<usize>,
    /// Said before TLS began.
    clear: Vec<Piece>,
}

impl Guard {
    /// Waits for the client's first record. `clear` is sent before anything else; the client has sent `spent` bytes.
    pub(crate) fn new(
        offer: &link::Config,
        pool: &BufferPool,
        clear: Vec<Piece>,
        spent: usize,
    ) -> Result<Guard, LinkError> {
        let session = Session::accept_foreign(offer, pool, spent)?;
        Ok(Guard { session, buffer: None, at: 0..0, clear })
    }

    /// Records are made in buffers of this pool from now on.
    pub(crate) fn set_pool(&mut self, pool: &BufferPool) {
        self.session.set_pool(pool);
    }

    /// Who the client is, once that is proved.
    pub(crate) fn claims(&self) -> Option<&Claims> {
        self.session.claims()
    }

    /// Bytes that it took to prove it.
    pub(crate) fn handshake_bytes(&self) -> usize {
        self.session.handshake_bytes()
    }

    /// How much may be received at once; see [`Session::receive_max`].
    pub(crate) fn receive_max(&self) -> usize {
        self.session.receive_max()
    }

    /// Everything that has arrived is used.
    pub(crate) fn is_drained(&self) -> bool {
        self.at.is_empty()
    }

    /// The buffer for the next records, if it is here.
    pub(crate) fn take_buffer(&mut self) -> Option<Buffer> {
        self.buffer.take()
    }

    /// Records have arrived in this part of `buffer`.
    pub(crate) fn arrived(&mut self, buffer: Buffer, at: Range<usize>) {
        self.buffer = Some(buffer);
        self.at = at;
    }

    /// Moves plain bytes into `place`, as far as some have arrived; answers how many. The handshake
    /// goes on here as well.
    pub(crate) fn read(&mut self, place: &mut [u8]) -> Result<usize, LinkError> {
        let Some(buffer) = &mut self.buffer else {
            return self.session.read(&mut &mut [][..], place);
        };
        let bytes = buffer.as_mut().expect("nobody else has the records");
        let mut input = &mut bytes[self.at.clone()];
        let mut done = 0;
        loop {
            let result = self.session.read(&mut input, &mut place[done..]);
            self.at.start = self.at.end - input.len();
            done += result?;
            // The end of the handshake ends a reading, though more may have arrived.
            if done == place.len() || input.is_empty() {
                return Ok(done);
            }
        }
    }

    /// Puts `pieces` into records, with whatever TLS itself has to say; they go behind `records`, and what was said before TLS
    /// began before them. If it `ends`, the client is told that nothing more comes. Answers how many bytes the records are.
    pub(crate) fn seal(
        &mut self,
        pieces: impl Iterator<Item = Piece>,
        ends: bool,
        records: &mut Vec<Piece>,
    ) -> u64 {
        records.append(&mut self.clear);
        let first = records.len();
        if self.session.is_open() {
            for piece in pieces {
                self.session.write_payload(piece);
            }
        }
        if ends {
            self.session.close();
        }
        records.extend(self.session.outgoing(usize::MAX));
        count_bytes(&records[first..])
    }
}

#[cfg(test)]
mod tests;
