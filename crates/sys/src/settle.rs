//! What a completion of the kernel means for the operation it belongs to: a further step, or an
//! event for the caller.
//!
//! What always holds: an operation leaves its slot together with its last event, and only when the
//! kernel is done with its memory.

use crate::descriptor::{Descriptor, Socket};
use crate::errno::Errno;
use crate::hands::{Engine, Event, Hands, Payload};
use crate::operation::{Completion, Operation};

/// How often a step on a file is begun again that the kernel gave up before it began: at once, and then with every look at what
/// takes long, four times a second. Sooner than anybody takes a disk for one that hangs.
pub(crate) const TRIES: u32 = 8;

/// What a call that moves bytes into or out of a given range came to.
enum Moved {
    /// All bytes are moved.
    All,
    /// Some are missing: take another step.
    Some,
    /// The source ended.
    End,
    Failed(Errno),
}

/// Adds what a step moved to what was moved before.
fn moved(result: i32, done: &mut usize, length: usize) -> Moved {
    match usize::try_from(result) {
        Err(_) if result == -libc::EINTR => Moved::Some,
        Err(_) => Moved::Failed(Errno(-result)),
        Ok(0) => Moved::End,
        Ok(count) => {
            *done += count;
            assert!(*done <= length, "the kernel moves no more than it was asked to");
            if *done == length { Moved::All } else { Moved::Some }
        }
    }
}

fn counted(bytes: usize) -> Result<u32, Errno> {
    Ok(u32::try_from(bytes).unwrap_or(u32::MAX))
}

fn plain(result: i32) -> Result<u32, Errno> {
    u32::try_from(result).map_err(|_| Errno(-result))
}

impl Hands {
    /// Carries an operation on after one of its steps completed.
    pub(crate) fn settle(&mut self, completion: Completion, events: &mut Vec<Event>) {
        let Completion { slot, result, more } = completion;
        let cancelled = self.slots[slot].cancelled;
        if result == -libc::ECANCELED && self.begins_again(slot) {
            return;
        }
        let operation = self.slots[slot].operation.as_mut().expect("only taken slots complete");
        let event = match operation {
            Operation::Accept { .. } => return self.settle_accept(completion, events),
            Operation::Send { .. } => return self.settle_send(slot, result, events),
            Operation::Signals { token, record, .. } => {
                if result >= 0 {
                    events.push(Event::plain(*token, Ok(record.ssi_signo)));
                }
                let again = result >= 0 || result == -libc::EINTR || result == -libc::EAGAIN;
                match (cancelled, again) {
                    (true, _) => Some(Err(Errno::CANCELED)),
                    (false, true) => None,
                    (false, false) => Some(plain(result)),
                }
            }
            Operation::Watch { .. } if cancelled => Some(Err(Errno::CANCELED)),
            Operation::Watch { .. } => Some(plain(result)),
            // A signal came first: the disk has said nothing.
            Operation::Sync { .. } if result == -libc::EINTR && !cancelled => None,
            Operation::Connect { .. } | Operation::Sync { .. } => {
                assert!(!more, "one step, one completion");
                let closed = cancelled && result < 0;
                Some(if closed { Err(Errno::CANCELED) } else { plain(result) })
            }
            Operation::Receive { at, end, done, full, .. } => {
                match moved(result, done, *end - *at) {
                    // A close shuts the socket down first, which looks like the stream's end.
                    Moved::End | Moved::Failed(_) if cancelled => Some(Err(Errno::CANCELED)),
                    Moved::All | Moved::End => Some(counted(*done)),
                    Moved::Some if *done > 0 && !*full => Some(counted(*done)),
                    Moved::Some if cancelled => Some(Err(Errno::CANCELED)),
                    Moved::Some => None,
                    Moved::Failed(errno) => Some(Err(errno)),
                }
            }
            Operation::Read { length, done, .. } => match moved(result, done, *length) {
                Moved::All => Some(counted(*done)),
                Moved::Some => None,
                Moved::End => Some(Err(Errno::NO_DATA)),
                Moved::Failed(errno) => Some(Err(errno)),
            },
            Operation::Write { piece, done, .. } => match moved(result, done, piece.len()) {
                Moved::All => Some(counted(*done)),
                Moved::Some => None,
                Moved::End => Some(Err(Errno::IO)),
                Moved::Failed(errno) => Some(Err(errno)),
            },
            Operation::Zero(zeroing) => zeroing.advance(result).map(plain),
        };
        match event {
            None => self.proceed(slot),
            Some(result) => self.finish(slot, result, events),
        }
    }

    /// What of a file blocks, a flush always, the kernel gives to threads of its own. Where it can make none (no memory, no more
    /// processes) it gives the step up, which nobody asked for: the disk has not heard of it. It is begun again, unless that was in
    /// vain too often.
    fn begins_again(&mut self, slot: usize) -> bool {
        let entry = &mut self.slots[slot];
        let is_on_file = entry.operation.as_ref().is_some_and(Operation::is_on_file);
        let by_kernel = matches!(self.engine, Engine::Uring(_)) && !entry.cancelled;
        if !is_on_file || !by_kernel || entry.given_up == TRIES {
            return false;
        }
        entry.given_up += 1;
        match entry.given_up {
            1 => self.proceed(slot),
            _ => self.put_off.push(slot),
        }
        true
    }

    /// Frees the slot and tells the caller.
    fn finish(&mut self, slot: usize, result: Result<u32, Errno>, events: &mut Vec<Event>) {
        let operation = self.vacate(slot);
        events.push(match operation {
            Operation::Receive { token, socket, buffer, .. } => {
                self.streams[socket.0.index()].receiving = false;
                Event::with_buffer(token, result, buffer)
            }
            Operation::Read { token, buffer, .. } => Event::with_buffer(token, result, buffer),
            Operation::Zero(zeroing) => Event::plain(zeroing.token, result),
            Operation::Accept { token, .. }
            | Operation::Connect { token, .. }
            | Operation::Signals { token, .. }
            | Operation::Watch { token, .. }
            | Operation::Write { token, .. }
            | Operation::Sync { token, .. } => Event::plain(token, result),
            Operation::Send { .. } => unreachable!("sends end in settle_send"),
        });
    }

    pub(crate) fn vacate(&mut self, slot: usize) -> Operation {
        self.free.push(slot);
        let operation = self.slots[slot].operation.take().expect("only taken slots complete");
        self.on_files -= usize::from(operation.is_on_file());
        operation
    }

    fn settle_accept(&mut self, completion: Completion, events: &mut Vec<Event>) {
        let Completion { slot, result, more } = completion;
        let cancelled = self.slots[slot].cancelled;
        let Some(Operation::Accept { token, again, .. }) = &mut self.slots[slot].operation else {
            unreachable!("called for accepts")
        };
        let older = result == -libc::EINVAL
            && !std::mem::replace(again, true)
            && self.engine.accept_plainly();
        if result >= 0 {
            let socket = Socket(Descriptor::adopt(result));
            socket.prepare_tcp();
            let payload = Payload::Socket(socket);
            events.push(Event { token: *token, result: Ok(0), payload });
        }
        if more {
            return;
        }
        // The peer may be gone again before it was accepted; that is no reason to stop.
        let passing = [libc::ECONNABORTED, libc::EINTR, libc::EAGAIN, libc::EPROTO];
        let again = result >= 0 || passing.contains(&-result) || older;
        match (cancelled, again) {
            (false, true) => self.proceed(slot),
            (true, true) => self.finish(slot, Err(Errno::CANCELED), events),
            (_, false) => self.finish(slot, Err(Errno(-result)), events),
        }
    }

    fn settle_send(&mut self, slot: usize, result: i32, events: &mut Vec<Event>) {
        let cancelled = self.slots[slot].cancelled;
        let Operation::Send { socket, batch, patient } = self.vacate(slot) else {
            unreachable!("called for sends")
        };
        let at_once = batch.at_once(patient);
        self.batches.push(batch);
        let index = socket.0.index();
        let stream = &mut self.streams[index];
        stream.sending = false;
        stream.full = at_once.is_some_and(|bytes| result < bytes);
        let queued = &mut self.sends_queued;
        let failure = match usize::try_from(result) {
            Ok(count) => {
                stream.queue.sent(count, |token, total| {
                    *queued -= 1;
                    events.push(Event::plain(token, counted(total)));
                });
                cancelled.then_some(Errno::CANCELED)
            }
            Err(_) if cancelled => Some(Errno::CANCELED),
            Err(_) if result == -libc::EINTR => None,
            Err(_) if at_once.is_some() && result == -libc::EAGAIN => None,
            Err(_) => Some(Errno(-result)),
        };
        // A stream that lost bytes carries none after them.
        if let Some(errno) = failure {
            stream.queue.fail(|token| {
                *queued -= 1;
                events.push(Event::plain(token, Err(errno)));
            });
        }
        if stream.queue.is_empty() {
            stream.socket = None;
        } else {
            self.unsent.push(index);
        }
    }
}
