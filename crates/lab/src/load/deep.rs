//! A client that has several requests open at one connection, by NBD: they may be carried out, and are answered, in any order.
//!
//! Always: what is open when the connection breaks is in the history as never answered.
//!
//! Not here: what is asked, and what is remembered of it (`load`).

use std::io;
use std::time::Instant;

use super::{BLOCK, Client, Kind, Time, Value, Wanted, Way};
use client::Volume;
use nbd::Op;

/// A request that is open.
pub(super) struct Open {
    wanted: Wanted,
    first: u64,
    length: usize,
    value: Value,
    asked: Time,
    begun: Instant,
}

impl Client {
    /// Asks until as many requests are open as the plan says, and takes one answer.
    pub(super) fn keep_open(&mut self, volume: &mut Volume) -> io::Result<()> {
        while self.open.len() < self.plan.depth {
            self.begin(volume)?;
        }
        self.take_one(volume)
    }

    /// Takes what is still to be answered, if there is a connection, before it is left.
    pub(super) fn take_all(&mut self, volume: Option<Way>) {
        if let Some(Way::Nbd(mut volume)) = volume {
            while !self.open.is_empty() && self.take_one(&mut volume).is_ok() {}
        }
        self.give_up();
    }

    /// Nothing that is open is answered any more.
    pub(super) fn give_up(&mut self) {
        for (_, Open { wanted, first, length, value, asked, .. }) in std::mem::take(&mut self.open)
        {
            if let Wanted::Write(kind) = wanted {
                self.has_written((first, length), kind, (value, asked), false);
            }
        }
    }

    fn begin(&mut self, volume: &mut Volume) -> io::Result<()> {
        let (wanted, first) = self.wanted();
        let (value, asked) = match wanted {
            Wanted::Write(kind) => self.is_about_to_write(first, kind),
            Wanted::Read | Wanted::Flush => (0, self.shared.now()),
        };
        let op = match wanted {
            Wanted::Read => Op::Read { whole: false },
            Wanted::Flush => Op::Flush,
            Wanted::Write(Kind::Plain | Kind::Stable) => Op::Write,
            Wanted::Write(Kind::Zeroing) => Op::Zero { no_hole: false, fast: false },
            Wanted::Write(Kind::Discard) => Op::Trim,
        };
        let length = self.bytes.len();
        let short = u32::try_from(length).map_err(|_| io::ErrorKind::InvalidInput)?;
        let span = if wanted == Wanted::Flush { (0, 0) } else { (first * BLOCK, short) };
        let payload = if op == Op::Write { &self.bytes[..] } else { &[] };
        let stable = wanted == Wanted::Write(Kind::Stable);
        let begun = Instant::now();
        let name = volume.begin(op, span, payload, stable);
        let open = Open { wanted, first, length, value, asked, begun };
        // Also what could not be sent whole: a name that no answer has, for it is the last.
        self.open.insert(*name.as_ref().unwrap_or(&u64::MAX), open);
        name.map(drop)
    }

    fn take_one(&mut self, volume: &mut Volume) -> io::Result<()> {
        let name = volume.answer()?;
        let Open { wanted, first, length, value, asked, begun } =
            self.open.remove(&name).ok_or_else(|| io::Error::other("an answer to nothing"))?;
        match wanted {
            Wanted::Read => {
                self.bytes.resize(length, 0);
                volume.take(&mut self.bytes)?;
                self.has_read(first, asked);
            }
            Wanted::Flush => self.has_flushed(asked),
            Wanted::Write(kind) => self.has_written((first, length), kind, (value, asked), true),
        }
        self.memory.longest_request = begun.elapsed().max(self.memory.longest_request);
        Ok(())
    }
}
