//! From a request to an operation: bounds, role, and its place in the order.

use super::copy::Purpose as CopyPurpose;
use super::op::{Client, Content, FlushFor, Kind, Op, Origin, Own, Read, Write, changes};
use super::seats::NodeSet;
use super::{Out, Shard};
use crate::door::{FromShard, ShardOutput};
use crate::reservation;
use alloc::vec::Vec;
use base::{AnswerError, BufferId, Epoch, Op as Ask, RequestId, SECTOR_BYTES, Span, VolumeId};
use wire::{Durability, OnNoQuorum, Protocol, ShardMessage};

impl Shard {
    pub(super) fn on_request(&mut self, client: Client, out: &mut Out) {
        if self.may_start() && !self.is_far_ahead(&client) {
            self.admit(client, out);
        } else if self.is_primary() || !self.forward(client, out) {
            self.waiting_since.get_or_insert(self.now);
            self.waiting.push_back(client);
            self.want_primary(out);
        }
    }

    /// Whether requests may start here, as primary.
    pub(super) fn may_start(&self) -> bool {
        self.is_primary()
            && self.serving == Some(self.reign())
            && self.draining.is_none()
            && !self.suspended
    }

    /// Tries every request that waits anew.
    pub(super) fn retry_waiting(&mut self, out: &mut Out) {
        if self.waiting.is_empty() {
            return;
        }
        if self.is_primary() && !self.may_start() {
            return;
        }
        for client in core::mem::take(&mut self.waiting) {
            self.on_request(client, out);
        }
        if self.waiting.is_empty() {
            self.waiting_since = None;
        }
    }

    /// Says, not too often, that requests wait for a primary: this node's, or, where nobody may have answered for long as
    /// the primary that this node is by name, what that one left open, though nobody waits for it any more.
    pub(super) fn want_primary(&mut self, out: &mut Out) {
        if self.suspended || (self.is_primary() && !self.is_left_with_open_writes()) {
            return;
        }
        let due = self.last_wants.is_none_or(|last| self.now.since(last) >= self.timing.retry);
        if due {
            self.last_wants = Some(self.now);
            out.push(ShardOutput::Member(FromShard::Wants));
        }
    }

    /// Whether nobody may have answered for long as the primary that this node is by name, while that one's operations are open.
    /// Never without quorum: a side that was given up waits there for its clients, and must not ask to lead meanwhile.
    fn is_left_with_open_writes(&self) -> bool {
        let known = self.configuration.as_ref();
        known.is_some_and(|known| known.options.quorum == wire::Quorum::Majority)
            && self.now >= self.lease_until + self.timing.lease
            && !self.ops.is_empty()
    }

    /// Whether the request lies where it may.
    fn check_request(&self, client: &Client) -> Result<(), AnswerError> {
        let request = &client.request;
        if matches!(client.origin, Origin::Peer { .. })
            && (request.op == Ask::Write) != request.buffer.is_some()
        {
            return Err(AnswerError::OutOfRange);
        }
        if request.op == Ask::Flush {
            return Ok(());
        }
        let known = self.configuration.as_ref().and_then(|known| known.volume(request.volume));
        let inside = known.is_some_and(|entry| request.span.end() <= entry.sectors);
        if inside && self.is_place(request.volume, request.span) {
            Ok(())
        } else {
            Err(AnswerError::OutOfRange)
        }
    }

    /// Whether the span lies on the volume or on what is being added to it, on whole blocks, in one extent,
    /// and that extent here.
    pub(super) fn is_place(&self, volume: VolumeId, span: Span) -> bool {
        self.lies_below(self.kept_sectors(volume), volume, span)
    }

    /// The same of the largest size that this process knew the volume at: for a primary that began before a
    /// volume shrank. What it cuts is given back, but not taken by anything else.
    pub(super) fn was_place(&self, volume: VolumeId, span: Span) -> bool {
        self.lies_below(self.local.rooms.get(&volume).copied().unwrap_or(0), volume, span)
    }

    fn lies_below(&self, sectors: u64, volume: VolumeId, span: Span) -> bool {
        let Some(known) = &self.configuration else { return false };
        let Some(entry) = known.volume(volume) else { return false };
        let block = u64::from(entry.block_bytes) / SECTOR_BYTES;
        let extent = span.first() / self.geometry.extent_sectors;
        block > 0
            && span.end() <= sectors
            && span.first().is_multiple_of(block)
            && span.end().is_multiple_of(block)
            && (span.end() - 1) / self.geometry.extent_sectors == extent
            && Shard::owner(&self.geometry, self.shards, extent) == self.index
    }

    fn admit(&mut self, mut client: Client, out: &mut Out) {
        // What waits, perhaps for a resync, is not slow for its copies.
        self.pace.request_comes(self.now);
        if let Err(error) = self.check_request(&client) {
            self.answer(&client, Err(error), None, out);
            self.release(client.request.buffer, out);
            return;
        }
        let known = self.configuration.as_ref();
        let reservations = known.and_then(|known| known.reservations_of(client.request.volume));
        if !reservation::allows(reservations, client.request.host, client.request.op) {
            out.push(ShardOutput::Mark("a reservation keeps a host from a request"));
            self.answer(&client, Err(AnswerError::Reserved), None, out);
            self.release(client.request.buffer, out);
            return;
        }
        self.while_it_stays(&mut client);
        if !self.lets_in(&client) {
            return self.answer_late(&client, out);
        }
        let (volume, span) = (client.request.volume, client.request.span);
        let kind = match client.request.op {
            Ask::Flush => {
                self.start_flush(Some(client), FlushFor::Client, out);
                return;
            }
            Ask::Read => Kind::Read(Read {
                locked: false,
                tried: Vec::new(),
                source: None,
                sequence: 0,
                data: None,
                failed: false,
            }),
            Ask::Write => {
                let buffer = client.request.buffer.expect("checked: a write has a buffer");
                self.new_write(Content::Bytes(buffer), client.request.fua, None)
            }
            Ask::Zero { unmap } => {
                self.new_write(Content::Zero { unmap }, client.request.fua, None)
            }
        };
        self.reconcile_for(volume, span, out);
        let exclusive = changes(client.request.op);
        let id = self.insert_op(Some(client), volume, span, kind);
        if self.locks.acquire(id, volume, span, exclusive) {
            self.start(id, out);
        } else {
            out.push(ShardOutput::Mark("request waits for an overlapping one"));
        }
    }

    pub(super) fn new_write(&self, content: Content, fua: bool, copy: Option<u64>) -> Kind {
        let options = self.configuration.as_ref().map(|known| &known.options);
        let through = options.is_some_and(|o| o.durability == Durability::WriteThrough);
        let durable = fua || through;
        let early =
            copy.is_none() && !durable && options.is_some_and(|o| o.protocol == Protocol::B);
        Kind::Write(Write {
            content,
            durable,
            copy,
            sequence: 0,
            own: Own::None,
            memory: NodeSet::default(),
            disk: NodeSet::default(),
            syncing: NodeSet::default(),
            durable_at: NodeSet::default(),
            sent: NodeSet::default(),
            early,
            complete: false,
            answered: false,
            retired: false,
            holds: false,
            origin: None,
            undone: false,
            was_in_effect: false,
        })
    }

    /// The operation has its lock.
    pub(super) fn start(&mut self, id: u64, out: &mut Out) {
        let now = self.now;
        let Some(op) = self.ops.get_mut(&id) else { return };
        op.since = now;
        match &mut op.kind {
            Kind::Write(_) => {
                if !self.is_not_to_be_issued(id, out) {
                    self.issue_write(id, out);
                }
            }
            Kind::Read(read) => {
                read.locked = true;
                self.start_read(id, out);
            }
            Kind::Copy(_) => self.start_copy(id, out),
            Kind::Flush(_) => unreachable!("a flush takes no lock"),
        }
    }

    /// Gives the operation's lock back and starts those that waited for it.
    pub(super) fn unlock(&mut self, id: u64, out: &mut Out) {
        let Some(op) = self.ops.get(&id) else { return };
        let volume = op.volume;
        let span = if let Kind::Copy(copy) = &op.kind { copy.lock } else { op.span };
        let mut granted = Vec::new();
        self.locks.release(id, volume, span, &mut granted);
        for next in granted {
            self.start(next, out);
        }
    }

    /// Tells whoever asked.
    pub(super) fn answer(
        &mut self,
        client: &Client,
        result: Result<(), AnswerError>,
        buffer: Option<BufferId>,
        out: &mut Out,
    ) {
        self.was_answered(client);
        match client.origin {
            Origin::Local(id) => {
                self.withdrawn.remove(&id);
                self.told |= result.is_ok();
                out.push(ShardOutput::Answer { id, result, buffer });
            }
            Origin::Peer { node, session, id } => {
                let zero = client.request.op == Ask::Read && result.is_ok() && buffer.is_none();
                let (result, asked) = (Some(result), Epoch(0));
                let moment = client.way.map(|_| self.moment());
                let message = ShardMessage::Forwarded { id, result, zero, asked, moment };
                out.push(ShardOutput::Send { peer: node, session, message, buffer });
            }
        }
    }

    /// Answers that waited for the lease or a cut.
    pub(super) fn answer_held(&mut self, out: &mut Out) {
        if !self.may_answer() {
            return;
        }
        for id in core::mem::take(&mut self.held) {
            self.finish_op(id, out);
        }
    }

    /// A complete operation: answered if it may be, else held.
    pub(super) fn finish_op(&mut self, id: u64, out: &mut Out) {
        let Some(op) = self.ops.get(&id) else { return };
        // A read that waits for its answer keeps others, a resync too, from its range: that must not wait
        // until enough replicas are in sync. What changes something does.
        let held_back = self.suspended && !matches!(op.kind, Kind::Read(_));
        if op.client.is_some_and(|client| !self.may_hear(&client)) {
            out.push(ShardOutput::Mark("answer waits until its node has heard of a change"));
            self.held.insert(id);
            return;
        }
        if op.client.is_some() && !self.is_held_to() {
            out.push(ShardOutput::Mark("answer waits until a copy has heard of a change"));
            self.held.insert(id);
            return;
        }
        if op.client.is_some() && (held_back || !(self.may_answer() && self.cut_allows(op))) {
            out.push(ShardOutput::Mark("answer waits for lease or cut"));
            self.held.insert(id);
            return;
        }
        if let (Some(client), Kind::Write(_) | Kind::Read(_)) = (&op.client, &op.kind) {
            self.pace.request_ends(self.now, client.since);
        }
        match op.kind {
            Kind::Write(_) => self.write_answered(id, out),
            Kind::Read(_) => self.read_answered(id, out),
            Kind::Flush(_) => self.flush_answered(id, out),
            Kind::Copy(_) => {}
        }
    }

    /// Every operation ends without an answer: this node orders no writes any more. Local requests wait
    /// for the next primary; those of other nodes go back to them.
    pub(super) fn abandon(&mut self, out: &mut Out) {
        self.take_back_effects();
        self.cancel_queued(out);
        for (_, op) in self.ops.drain() {
            let mut answered = false;
            match op.kind {
                Kind::Write(write) => {
                    self.abandon_write(op.volume, op.span, &write);
                    answered = write.answered;
                    if (write.answered || write.copy.is_some())
                        && let Content::Bytes(buffer) = write.content
                    {
                        self.release(Some(buffer), out);
                    }
                }
                Kind::Read(read) => self.release(read.data.flatten(), out),
                Kind::Copy(copy) => self.release(copy.data.flatten(), out),
                Kind::Flush(_) => {}
            }
            if let Some(client) = op.client.filter(|_| !answered) {
                self.give_back(client, out);
            }
        }
        self.end_settlement();
        self.locks.clear();
        self.asked.clear();
        self.held.clear();
        self.unretired_own.clear();
        self.only_disk.failed.clear();
        self.retired_count = 0;
        self.own_reads.open = 0;
        self.copies = 0;
        self.pace.no_copies();
        self.verify = None;
        self.growths.clear();
        self.reconciling.clear();
        self.reconcile = super::Doubt::default();
        self.serving = None;
        self.gathered = None;
        self.reconciled = None;
        self.draining = None;
        for peer in self.peers.values_mut() {
            peer.sync = None;
            peer.required = None;
            peer.gathered = false;
            peer.gathering = None;
            peer.complained = None;
            peer.retired_told = 0;
            peer.reads.open = 0;
        }
        let waiting = core::mem::take(&mut self.waiting);
        for client in waiting {
            self.give_back(client, out);
        }
    }

    /// A write that may be missing somewhere is in doubt here, and dirty for replicas being resynced.
    fn abandon_write(&mut self, volume: base::VolumeId, span: base::Span, write: &Write) {
        if write.holds {
            let extent = self.extent_of(volume, span);
            self.log.unhold(extent);
            if !write.retired {
                self.doubt.add(volume, span.first(), span.end(), false);
            }
        }
        let nodes: Vec<base::NodeId> = self.peers.keys().copied().collect();
        for node in nodes {
            if self.seats.find(node).is_some_and(|seat| write.syncing.has(seat)) {
                self.bitmaps.set(node, volume, span.first(), span.end(), true);
            }
        }
    }

    pub(super) fn give_back(&mut self, client: Client, out: &mut Out) {
        match client.origin {
            Origin::Local(id) if self.withdrawn.contains(&id) => self.answer_gone(&client, out),
            Origin::Local(_) => {
                self.waiting_since.get_or_insert(self.now);
                self.waiting.push_back(client);
            }
            Origin::Peer { node, session, id } => {
                let asked = client.asked;
                let (result, zero, moment) = (None, false, None);
                let message = ShardMessage::Forwarded { id, result, zero, asked, moment };
                out.push(ShardOutput::Send { peer: node, session, message, buffer: None });
                self.release(client.request.buffer, out);
            }
        }
    }

    /// The client of a request is gone. What waits is not carried out; what was begun goes on, and is not begun again.
    pub(super) fn withdraw(&mut self, id: RequestId, out: &mut Out) {
        let of = |client: &Client| client.origin == Origin::Local(id);
        if let Some(at) = self.waiting.iter().position(of) {
            let client = self.waiting.remove(at).expect("it was found there");
            return self.answer_gone(&client, out);
        }
        let forwarded = self.forwards.values().any(|forward| of(&forward.client));
        let answered = |op: &Op| matches!(&op.kind, Kind::Write(write) if write.answered);
        let open = |op: &Op| op.client.as_ref().is_some_and(of) && !answered(op);
        if forwarded || self.ops.values().any(open) {
            self.withdrawn.insert(id);
        }
    }

    fn answer_gone(&mut self, client: &Client, out: &mut Out) {
        out.push(ShardOutput::Mark("a request of a client that is gone is not carried out"));
        self.answer(client, Err(AnswerError::Gone), None, out);
        self.release(client.request.buffer, out);
    }

    /// With `on-no-quorum = io-error`: requests that waited for longer than a lease fail. Where an operator wants that,
    /// all fail at once, those as well that a primary before this node's time handed on.
    pub(super) fn fail_without_quorum(&mut self, out: &mut Out) {
        let now = self.now;
        if self.fails_waiting {
            return self.fail_requests(true, &|_| true, out);
        }
        let Some(known) = &self.configuration else { return };
        if known.options.on_no_quorum != OnNoQuorum::IoError {
            return;
        }
        let limit = self.timing.lease;
        if self.is_primary() && self.now < self.lease_until + limit && self.waiting.is_empty() {
            return;
        }
        let lapsed = !self.is_primary() || self.now >= self.lease_until + limit;
        self.fail_requests(lapsed, &|client| now.since(client.since) > limit, out);
    }

    /// Fails those requests, if this node cannot answer them.
    fn fail_requests(&mut self, lapsed: bool, which: &dyn Fn(&Client) -> bool, out: &mut Out) {
        let (fail, keep): (Vec<Client>, Vec<Client>) =
            self.waiting.iter().partition(|client| lapsed && which(client));
        self.waiting = keep.into();
        for client in fail {
            out.push(ShardOutput::Mark("request failed without quorum"));
            self.answer(&client, Err(AnswerError::NoQuorum), None, out);
            self.release(client.request.buffer, out);
        }
        if !lapsed || !self.is_primary() {
            return;
        }
        let stuck: Vec<u64> = self
            .ops
            .iter()
            .filter(|(_, op)| op.client.as_ref().is_some_and(which))
            .map(|(&id, _)| id)
            .collect();
        for id in stuck {
            self.fail_op(id, AnswerError::NoQuorum, out);
        }
    }

    /// Answers an operation with an error, though parts of it go on.
    pub(super) fn fail_op(&mut self, id: u64, error: AnswerError, out: &mut Out) {
        let Some(op) = self.ops.get_mut(&id) else { return };
        let Some(client) = op.client else { return };
        match &mut op.kind {
            Kind::Write(write) if !write.answered && write.sequence > 0 => {
                write.answered = true;
                self.held.remove(&id);
                self.answer(&client, Err(error), None, out);
                self.settle_write(id, out);
            }
            Kind::Flush(flush) => {
                let sequence = flush.sequence;
                self.asked.remove(&sequence);
                self.held.remove(&id);
                self.answer(&client, Err(error), None, out);
                self.release(client.request.buffer, out);
                self.ops.remove(&id);
            }
            Kind::Write(write) if write.answered => {}
            Kind::Write(_) | Kind::Read(_) => {
                self.held.remove(&id);
                self.answer(&client, Err(error), None, out);
                self.drop_request(id, out);
            }
            Kind::Copy(_) => {}
        }
    }

    /// A read, or a write that was not issued, is no more. Whoever waited for its lock goes on.
    pub(super) fn drop_request(&mut self, id: u64, out: &mut Out) {
        self.forget_question(id);
        self.unlock(id, out);
        let Some(op) = self.ops.remove(&id) else { return };
        match op.kind {
            Kind::Read(read) => self.release(read.data.flatten(), out),
            Kind::Write(_) => {
                self.release(op.client.and_then(|client| client.request.buffer), out);
            }
            Kind::Flush(_) | Kind::Copy(_) => {}
        }
    }

    /// Whether reconciliation and resync may run: this node is primary and knows every doubt.
    pub(super) fn may_copy(&self, purpose: &CopyPurpose) -> bool {
        let reign: Option<Epoch> = Some(self.reign());
        self.is_primary()
            && self.gathered == reign
            && match purpose {
                CopyPurpose::Reconcile => true,
                CopyPurpose::Sync { .. } | CopyPurpose::Verify | CopyPurpose::Grow { .. } => {
                    self.serving == reign
                }
            }
    }
}
