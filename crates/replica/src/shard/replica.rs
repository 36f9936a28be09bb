//! The replica's part: doing what the primary says, and remembering what that leaves open.
//!
//! Always:
//! - only the primary of the configuration known here is obeyed, and only in its reign;
//! - a write is un-retired here from its arrival until the primary retires it, or in doubt once
//!   another primary reigns;
//! - each write is dirty here for every replica outside the in-sync set, this node aside.

use super::local::{Action, PeerAsk, Purpose};
use super::op::{Client, Origin};
use super::{Out, Shard};
use crate::door::{DiskAnswer, ReadFailure, ShardOutput};
use crate::memory;
use alloc::vec::Vec;
use base::{BufferId, Epoch, NodeId, Request, SessionId, Span, VolumeId, Way};
use wire::{ShardMessage, WriteFlags, WriteOrigin};

impl Shard {
    pub(super) fn on_frame(
        &mut self,
        node: NodeId,
        session: SessionId,
        message: ShardMessage,
        buffer: Option<BufferId>,
        out: &mut Out,
    ) {
        if self.peers.get(&node).is_none_or(|peer| peer.session != Some(session)) {
            self.release(buffer, out);
            return;
        }
        match message {
            ShardMessage::Forward {
                id,
                op,
                volume,
                span,
                fua,
                origin,
                asked,
                first,
                history,
                way,
                host,
            } => {
                let way_of = way.map(|(way, _)| Way::of(way));
                let request = Request { op, volume, span, buffer, fua, way: way_of, host };
                let (write, origin) = (origin, Origin::Peer { node, session, id });
                let before = if first { Epoch(0) } else { asked };
                let client = Client::of_peer(origin, request, self.now, (write, before, way));
                let in_time = asked <= self.reign() && (!first || asked == self.reign());
                self.on_forward(client, in_time, history, out);
            }
            ShardMessage::Forwarded { id, result, zero: _, asked, moment } => {
                self.learn_moment(node, moment);
                self.on_forwarded(node, id, result, asked, buffer, out);
            }
            ShardMessage::Data { sequence, ok, zero, rotten } => {
                let failure = if rotten { ReadFailure::Rotten } else { ReadFailure::Disk };
                let result =
                    if ok && (zero || buffer.is_some()) { Ok(buffer) } else { Err(failure) };
                if result.is_err() {
                    self.release(buffer, out);
                }
                self.on_data(node, sequence, result, out);
            }
            ShardMessage::Write { epoch, sequence, volume, span, flags, origin, .. }
                if self.is_cut_off(node, epoch, volume, span) =>
            {
                self.release(buffer, out);
                // Done, for good: the volume may be as large again when it is asked for once more.
                self.note_effect_here(origin, flags.undone, volume, span);
                let message = ShardMessage::Written { sequence, ok: true, in_place: true };
                self.send(node, message, None, out);
            }
            ShardMessage::Write { epoch, sequence, volume, span, flags, origin, cut: _ } => {
                if self.obeys(node, epoch, out) {
                    let write = (volume, span, flags, origin);
                    self.on_write(node, session, sequence, write, buffer, out);
                } else {
                    self.release(buffer, out);
                }
            }
            other => {
                self.release(buffer, out);
                self.on_small_frame(node, session, other, out);
            }
        }
    }

    fn on_small_frame(
        &mut self,
        node: NodeId,
        session: SessionId,
        message: ShardMessage,
        out: &mut Out,
    ) {
        match message {
            ShardMessage::Retire { epoch, upto, ahead } => {
                if self.obeys(node, epoch, out) && self.epoch() >= epoch {
                    self.on_retire(upto, &ahead);
                    self.make_room(out);
                }
            }
            ShardMessage::Settled { epoch, volume, span } => {
                if self.obeys(node, epoch, out) {
                    self.on_settled(epoch, volume, span);
                    self.make_room(out);
                }
            }
            ShardMessage::Clean { epoch, target, volume, runs } => {
                if self.obeys(node, epoch, out) && self.bitmaps.are_of(target, epoch) {
                    for (first, end) in runs {
                        self.clear_bits(target, volume, first, end);
                    }
                }
            }
            ShardMessage::Flush { epoch, sequence } => {
                if self.obeys(node, epoch, out) {
                    let kind = PeerAsk::Flush;
                    self.local_flush(Purpose::Peer { node, session, sequence, kind }, out);
                }
            }
            look @ (ShardMessage::Read { .. } | ShardMessage::Compare { .. }) => {
                self.on_look(node, session, look, out);
            }
            ShardMessage::Gather { epoch, sequence, bits_of } => {
                if self.obeys(node, epoch, out) {
                    self.answer_gather(node, sequence, bits_of, out);
                }
            }
            ShardMessage::Remember { epoch, first, memory } => {
                if self.obeys(node, epoch, out) {
                    self.on_remember(first, &memory);
                }
            }
            ShardMessage::Stale { .. } => {
                out.push(ShardOutput::Mark("told that a newer reign began"));
                // A question that it did not answer stays open for ever, if it comes to this side only now.
                self.stop_sync(node, out);
            }
            other => self.on_answer(node, other, out),
        }
    }

    /// The primary asks for bytes, or for their hash.
    fn on_look(&mut self, node: NodeId, session: SessionId, message: ShardMessage, out: &mut Out) {
        match message {
            ShardMessage::Read { epoch, sequence, volume, span }
                if self.is_cut_off(node, epoch, volume, span) =>
            {
                let message = ShardMessage::Data { sequence, ok: true, zero: true, rotten: false };
                self.send(node, message, None, out);
            }
            ShardMessage::Read { epoch, sequence, volume, span } => {
                if self.obeys(node, epoch, out) {
                    let kind = PeerAsk::Read;
                    self.serve(node, session, sequence, kind, volume, span, Action::Read, out);
                }
            }
            ShardMessage::Compare { epoch, sequence, volume, span, .. }
                if self.is_cut_off(node, epoch, volume, span) =>
            {
                self.send(node, ShardMessage::Hash { sequence, hash: Some(0) }, None, out);
            }
            ShardMessage::Compare { epoch, sequence, volume, span, resync } => {
                if self.obeys(node, epoch, out) {
                    if resync && self.was_place(volume, span) {
                        self.mark_for_outsiders(volume, span);
                    }
                    let kind = PeerAsk::Hash;
                    self.serve(node, session, sequence, kind, volume, span, Action::Hash, out);
                }
            }
            other => unreachable!("taken by the caller: {other:?}"),
        }
    }

    /// A replica's answer to this primary.
    fn on_answer(&mut self, node: NodeId, message: ShardMessage, out: &mut Out) {
        match message {
            ShardMessage::Received { sequence } => self.on_received(node, sequence, out),
            ShardMessage::Written { sequence, ok, in_place } => {
                self.on_written(node, sequence, ok, in_place, out);
            }
            ShardMessage::Flushed { sequence, ok } => self.on_flushed(node, sequence, ok, out),
            ShardMessage::Hash { sequence, hash } => self.on_hash(node, sequence, hash, out),
            ShardMessage::Remembers { sequence, memory } => {
                self.on_remembers(node, sequence, &memory);
            }
            ShardMessage::Doubt { sequence, runs, last } => {
                self.on_doubt(node, sequence, &runs, last, out);
            }
            other => unreachable!("taken by the callers: {other:?}"),
        }
    }

    /// Whether the volume shrank and left the whole span outside: the primary did not know yet when it asked, or
    /// goes on with what it began before. Nothing is there any more that anybody may be told of, and what is added
    /// there later begins as zeroes. A span across the new end is carried out whole: what is inside counts. Who
    /// speaks under a configuration not known here has not changed the size since this node said what it knows:
    /// else it would have waited.
    fn is_cut_off(&self, node: NodeId, epoch: Epoch, volume: VolumeId, span: Span) -> bool {
        let Some(known) = &self.configuration else { return false };
        known.primary == Some(node)
            && epoch >= known.reign
            && known.volume(volume).is_some_and(|entry| span.first() >= entry.kept_sectors())
    }

    /// As much of the span, from its beginning on, as this process knows that the volume ever had room for. It may have
    /// begun after the volume shrank, and then does not know of more: what is beyond is nobody's.
    fn with_room(&self, volume: VolumeId, span: Span) -> Span {
        let room = self.local.rooms.get(&volume).copied().unwrap_or(0);
        let inside = room.checked_sub(span.first()).and_then(|left| u32::try_from(left).ok());
        let inside = inside.filter(|&left| left < span.count());
        inside.and_then(|left| Span::new(span.first(), left)).unwrap_or(span)
    }

    /// Whether `node` is the primary known here and speaks in its reign.
    fn obeys(&mut self, node: NodeId, epoch: Epoch, out: &mut Out) -> bool {
        let obeys = self
            .configuration
            .as_ref()
            .is_some_and(|known| known.primary == Some(node) && epoch >= known.reign);
        if !obeys {
            out.push(ShardOutput::Mark("refused another reign"));
            self.send(node, ShardMessage::Stale { epoch: self.epoch() }, None, out);
        }
        obeys
    }

    fn on_write(
        &mut self,
        node: NodeId,
        session: SessionId,
        sequence: u64,
        (volume, span, flags, origin): (VolumeId, Span, WriteFlags, Option<WriteOrigin>),
        buffer: Option<BufferId>,
        out: &mut Out,
    ) {
        let span = self.with_room(volume, span);
        let fits = self.was_place(volume, span) && (flags.zero || buffer.is_some());
        if !fits || !self.has_disk {
            self.release(buffer, out);
            let message = ShardMessage::Written { sequence, ok: false, in_place: false };
            self.send(node, message, None, out);
            return;
        }
        let again = !flags.resync && self.is_done_or_begun(sequence, volume, span);
        if !flags.resync {
            self.note_unretired(sequence, volume, span);
            self.note_effect_here(origin, flags.undone, volume, span);
        }
        self.mark_for_outsiders(volume, span);
        if flags.early && self.memory_counts() {
            self.send(node, ShardMessage::Received { sequence }, None, out);
        }
        if again {
            self.release(buffer, out);
            return self.answer_again((node, session), sequence, (volume, span), out);
        }
        if !flags.resync && self.local.failed_here.remove(&sequence) {
            // What came after it, and overlaps it, will come again.
            let later = self.unretired.iter().filter(|(other, (of, at))| {
                **other > sequence && *of == volume && at.overlaps(span)
            });
            let later: Vec<u64> = later.map(|(&other, _)| other).collect();
            self.local.failed_here.extend(later);
        }
        let durable = flags.fua;
        let action = match buffer.filter(|_| !flags.zero) {
            Some(buffer) => Action::Write { buffer, durable, release: true },
            None => {
                self.release(buffer, out);
                Action::Zero { unmap: flags.unmap, durable }
            }
        };
        let kind = PeerAsk::Write;
        self.local(Purpose::Peer { node, session, sequence, kind }, volume, span, action, out);
    }

    /// Whether a write came before, in an earlier session with the primary of this reign, and was not failed since. It is not
    /// carried out again: what came after it, and overlaps it, may be in its place already, and may not come again.
    fn is_done_or_begun(&self, sequence: u64, volume: VolumeId, span: Span) -> bool {
        self.unretired.get(&sequence) == Some(&(volume, span))
            && !self.local.failed_here.contains(&sequence)
    }

    /// A write that is not carried out again is answered when it is in its place.
    fn answer_again(
        &mut self,
        (node, session): (NodeId, SessionId),
        sequence: u64,
        place: (VolumeId, Span),
        out: &mut Out,
    ) {
        out.push(ShardOutput::Mark("a write that comes again is not carried out again"));
        if !self.answer_peer_write_in((node, session), sequence, place) {
            let message = ShardMessage::Written { sequence, ok: true, in_place: true };
            self.send(node, message, None, out);
        }
    }

    /// Whether others may count on this process, which its record says then. A primary that has not heard yet that they may
    /// no more sends early writes all the same, and they may come after `Written` was said.
    fn memory_counts(&self) -> bool {
        self.configuration.as_ref().is_some_and(|known| memory::counts(known, self.node))
    }

    /// A write is un-retired from now on. It may come twice, in two sessions.
    fn note_unretired(&mut self, sequence: u64, volume: VolumeId, span: Span) {
        let extent = self.extent_of(volume, span);
        match self.unretired.insert(sequence, (volume, span)) {
            Some(same) if same == (volume, span) => {}
            Some((other_volume, other)) => {
                // Never of a primary that keeps to the rules; the older write is not forgotten for it.
                self.doubt.add(other_volume, other.first(), other.end(), false);
                self.log.hold(extent);
                self.log.unhold(self.extent_of(other_volume, other));
            }
            None => self.log.hold(extent),
        }
    }

    pub(super) fn mark_for_outsiders(&mut self, volume: VolumeId, span: Span) {
        let Some(known) = &self.configuration else { return };
        for node in known.replicas().filter(|&node| node != self.node && !known.is_in_sync(node)) {
            self.bitmaps.set(node, volume, span.first(), span.end(), true);
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one message and its session")]
    fn serve(
        &mut self,
        node: NodeId,
        session: SessionId,
        sequence: u64,
        kind: PeerAsk,
        volume: VolumeId,
        span: Span,
        action: Action,
        out: &mut Out,
    ) {
        let purpose = Purpose::Peer { node, session, sequence, kind };
        if self.was_place(volume, span) {
            self.local(purpose, volume, span, action, out);
        } else {
            self.on_local(purpose, DiskAnswer::Failed, out);
        }
    }

    /// The disk's answer to what the primary asked for.
    pub(super) fn on_peer_disk(
        &mut self,
        node: NodeId,
        session: SessionId,
        sequence: u64,
        kind: PeerAsk,
        answer: DiskAnswer,
        out: &mut Out,
    ) {
        let buffer = if let DiskAnswer::Data(buffer) = answer { buffer } else { None };
        let rotten = answer == DiskAnswer::Rotten;
        let here = self.peers.get(&node).is_some_and(|peer| peer.session == Some(session));
        // The primary's flush counts on this copy as on its own: not once the disk failed something.
        let lost = kind == PeerAsk::Flush && (self.has_lost_some() || self.owes_word());
        let ok = answer != DiskAnswer::Failed && !rotten && !lost;
        if here {
            let message = match kind {
                PeerAsk::Write => {
                    let in_place = ok && answer != DiskAnswer::Durable;
                    if in_place {
                        self.note_written_since(node, sequence);
                    }
                    ShardMessage::Written { sequence, ok, in_place }
                }
                PeerAsk::Flush => {
                    if !ok {
                        self.told_primary(node, session);
                    }
                    ShardMessage::Flushed { sequence, ok }
                }
                PeerAsk::Read => {
                    let zero = ok && buffer.is_none();
                    ShardMessage::Data { sequence, ok, zero, rotten }
                }
                PeerAsk::Hash => ShardMessage::Hash { sequence, hash: self.hash_in(answer) },
            };
            self.send(node, message, buffer, out);
        }
        self.release(buffer, out);
    }

    /// The range is the same at every member of the primary's configuration. While that is not known here yet, a
    /// member of the one known here may be outside it: the range stays in doubt until it is known who is.
    fn on_settled(&mut self, epoch: Epoch, volume: VolumeId, span: Span) {
        if self.epoch() < epoch && self.doubt.overlaps(volume, span.first(), span.end()) {
            self.doubt.remove_later(epoch, volume, span);
            return;
        }
        self.doubt.remove(volume, span);
        self.settle_own_changes(volume, span.first(), span.end());
    }

    /// The configuration `new` is about to take the place of the one known here: what was settled ahead of it is in
    /// doubt no more, and dirty for whoever it leaves out.
    pub(super) fn settle_ahead(&mut self, new: Epoch) -> Vec<(VolumeId, u64, u64)> {
        let settled = self.doubt.remove_ahead(new);
        for &(volume, first, end) in &settled {
            self.settle_own_changes(volume, first, end);
        }
        settled
    }

    /// A copy that was given up holds nothing of its own there any more.
    fn settle_own_changes(&mut self, volume: VolumeId, first: u64, end: u64) {
        let Some(known) = self.configuration.clone() else { return };
        if !known.is_in_sync(self.node) && known.may_have_parted() {
            for node in known.in_sync() {
                self.clear_bits(node, volume, first, end);
            }
        }
    }

    fn on_retire(&mut self, upto: u64, ahead: &[(u64, u64)]) {
        let below = (0, upto.saturating_add(1));
        for (first, end) in core::iter::once(below).chain(ahead.iter().copied()) {
            let mut from = first;
            while let Some(sequence) = self.unretired.next_key(from).filter(|&found| found < end) {
                self.local.failed_here.remove(&sequence);
                if let Some((volume, span)) = self.unretired.remove(&sequence) {
                    let extent = self.extent_of(volume, span);
                    self.log.unhold(extent);
                    self.note_retired(sequence);
                }
                from = sequence + 1;
            }
        }
    }
}
