//! What a front end says about its machine's disk, message by message, and what it is answered.
//!
//! Always: a message is looked at once it is there whole, and after everything that came before it is done; so a front end
//! that asks where a ring stands hears it when nothing of that ring is open, and is listened to no sooner.

use std::sync::Arc;

use sys::{Errno, HANDLES_MAX, Handle, SharedMemory, Socket};
use vhost::{
    CONFIG_CHANGED, Fault, HEADER_BYTES, Header, Inflight, InflightShape, Kicks, MESSAGE_BYTES_MAX,
    Message, OFFERED_FEATURES, OFFERED_PROTOCOL, PROTOCOL_FEATURES_BIT, QUEUES_MAX, Region,
    Regions, Ring, Seen, reply,
};

use super::{Table, VhostDisk};

/// An answer, and what goes with it.
pub type VhostReply = (Vec<u8>, Option<Handle>);

/// The way to the front end.
#[derive(Default)]
pub(super) struct Session {
    /// What has come of a message.
    input: Vec<u8>,
    handles: Vec<Handle>,
    replies: Vec<VhostReply>,
    /// By which the front end hears what changed.
    backend: Option<Socket>,
    /// The front end has the record of this process.
    made: bool,
    /// The queue that is to stand still, by which kind of message.
    stopping: Option<u16>,
    /// Signals to wait for from now on.
    fresh: Vec<(u16, Handle)>,
    /// Signals not to wait for any more.
    stale: Vec<Handle>,
    /// A ring is served from now on, in which something may lie of which its machine gives no further signal.
    enabled: bool,
}

impl Session {
    /// Tells the front end that its disk has changed, if it wants to hear of it.
    pub(super) fn tell_of_change(&self) {
        if let Some(backend) = &self.backend {
            // Who does not take it looks at the next start.
            backend.send_now(&CONFIG_CHANGED, None).ok();
        }
    }
}

const GET_RING_BASE: u32 = 11;

impl VhostDisk {
    /// How many bytes are to be received next; none while nothing is.
    #[must_use]
    pub fn wanted(&self) -> usize {
        if self.fault.is_some() || self.session.stopping.is_some() {
            return 0;
        }
        let input = &self.session.input;
        match input.first_chunk::<HEADER_BYTES>().map(Header::parse) {
            None => HEADER_BYTES - input.len(),
            Some(Ok(header)) => HEADER_BYTES + header.bytes - input.len(),
            Some(Err(_)) => 0,
        }
    }

    /// These bytes came, no more than [`VhostDisk::wanted`], and these descriptors.
    pub fn received(&mut self, bytes: &[u8], handles: Vec<Handle>) {
        assert!(bytes.len() <= self.wanted(), "as many as are wanted");
        self.session.input.extend_from_slice(bytes);
        if self.session.handles.len() + handles.len() > HANDLES_MAX {
            // Some with each byte of a message would be all that this process may have.
            let header = self.session.input.first_chunk::<HEADER_BYTES>().map(Header::parse);
            let kind = header.and_then(Result::ok).map_or(0, |header| header.kind);
            self.session.handles.clear();
            self.fault = Some(Fault::Descriptors(kind));
            return;
        }
        self.session.handles.extend(handles);
        if let Err(fault) = self.take_message() {
            self.fault = Some(fault);
        }
    }

    /// What is to be sent, in order.
    pub fn take_replies(&mut self) -> Vec<VhostReply> {
        std::mem::take(&mut self.session.replies)
    }

    /// Signals that are to be waited for from now on, and those that are not any more.
    pub fn take_signals(&mut self) -> (Vec<(u16, Handle)>, Vec<Handle>) {
        (std::mem::take(&mut self.session.fresh), std::mem::take(&mut self.session.stale))
    }

    /// Whether a ring is served since this was asked last: there may be requests already, though nobody signals.
    pub fn take_enabled(&mut self) -> bool {
        std::mem::take(&mut self.session.enabled)
    }

    /// All signals that it waits for.
    pub fn signals(&self) -> impl Iterator<Item = &Handle> {
        self.queues.iter().filter_map(|queue| queue.kick.as_ref())
    }

    /// The front end does not take its answers.
    pub fn deaf(&mut self) {
        self.fault.get_or_insert(Fault::Deaf);
    }

    fn take_message(&mut self) -> Result<(), Fault> {
        let Some(header) = self.session.input.first_chunk::<HEADER_BYTES>() else { return Ok(()) };
        let header = Header::parse(header)?;
        assert!(header.bytes <= MESSAGE_BYTES_MAX, "checked by its header");
        if self.session.input.len() < HEADER_BYTES + header.bytes {
            return Ok(());
        }
        let input = std::mem::take(&mut self.session.input);
        let handles = std::mem::take(&mut self.session.handles);
        let message = Message::parse(header, &input[HEADER_BYTES..], handles.len())?;
        let answers_itself = self.on_message(header, message, handles)?;
        if header.needs_reply && !answers_itself {
            self.reply(header.kind, &0_u64.to_le_bytes());
        }
        Ok(())
    }

    fn reply(&mut self, kind: u32, body: &[u8]) {
        self.session.replies.push((reply(kind, body), None));
    }

    /// Does what a message says; whether it has an answer of its own.
    fn on_message(
        &mut self,
        header: Header,
        message: Message,
        mut handles: Vec<Handle>,
    ) -> Result<bool, Fault> {
        let kind = header.kind;
        let mut answer = |body: &[u8]| {
            self.session.replies.push((reply(kind, body), None));
            Ok(true)
        };
        match message {
            Message::GetFeatures => return answer(&OFFERED_FEATURES.to_le_bytes()),
            Message::GetProtocolFeatures => return answer(&OFFERED_PROTOCOL.to_le_bytes()),
            Message::GetQueueCount => return answer(&u64::from(QUEUES_MAX).to_le_bytes()),
            // It can be read only.
            Message::SetConfig => return answer(&1_u64.to_le_bytes()),
            Message::GetConfig { offset, bytes, flags } => {
                let body = self.config_bytes(offset, bytes, flags);
                self.reply(kind, &body);
                return Ok(true);
            }
            Message::GetRingBase(queue) => {
                self.session.stopping = Some(queue);
                self.go_on_stopping(queue);
                return Ok(true);
            }
            Message::GetInflight(shape) => {
                self.make_record(kind, shape)?;
                return Ok(true);
            }
            Message::SetOwner => {}
            Message::SetFeatures(features) => self.set_features(features)?,
            Message::SetProtocolFeatures(features) => {
                if features & !OFFERED_PROTOCOL != 0 {
                    return Err(Fault::Features);
                }
            }
            Message::SetRegions(regions) => self.set_regions(regions, &handles)?,
            Message::SetSignal { queue, kind: signal, .. } => {
                self.set_signal(kind, queue, signal, handles.pop())?;
            }
            Message::SetBackendSocket => {
                let socket = handles.pop().and_then(|handle| handle.as_socket());
                self.session.backend = Some(socket.ok_or(Fault::Kind(kind))?);
            }
            Message::SetInflight(shape) => self.set_record(shape, &handles)?,
            ring => self.on_ring_message(&ring)?,
        }
        Ok(false)
    }

    /// What a message says about one ring.
    fn on_ring_message(&mut self, message: &Message) -> Result<(), Fault> {
        match *message {
            Message::SetRingSize { queue, size } => {
                let queue = &mut self.queues[usize::from(queue)];
                if queue.kick.is_some() {
                    return Err(Fault::RingSize(u32::from(size)));
                }
                queue.size = size;
            }
            Message::SetRingAddresses { queue, addresses } => {
                self.queues[usize::from(queue)].addresses = Some(addresses);
                if self.queues[usize::from(queue)].kick.is_some() {
                    self.find_ring(queue)?;
                }
            }
            Message::SetRingBase { queue, base } => {
                let queue = &mut self.queues[usize::from(queue)];
                if queue.kick.is_none() {
                    queue.taken = base;
                }
            }
            Message::EnableRing { queue, on } => {
                let queue = &mut self.queues[usize::from(queue)];
                (queue.enabled, queue.look) = (on, true);
                self.session.enabled |= on;
            }
            _ => {}
        }
        Ok(())
    }

    fn config_bytes(&self, offset: u32, count: u32, flags: u32) -> Vec<u8> {
        let all = self.configuration().to_bytes();
        let mut body = Vec::new();
        for word in [offset, count, flags] {
            body.extend_from_slice(&word.to_le_bytes());
        }
        // What is beyond it belongs to what was not offered.
        body.extend((offset..offset + count).map(|at| {
            let at = usize::try_from(at).unwrap_or(usize::MAX);
            all.get(at).copied().unwrap_or(0)
        }));
        body
    }

    fn set_features(&mut self, features: u64) -> Result<(), Fault> {
        if features & !OFFERED_FEATURES != 0 {
            return Err(Fault::Features);
        }
        self.features = features;
        if features & PROTOCOL_FEATURES_BIT == 0 {
            // Such a front end does not say it.
            for queue in &mut self.queues {
                queue.enabled = true;
            }
        }
        Ok(())
    }

    fn set_regions(&mut self, regions: Regions, handles: &[Handle]) -> Result<(), Fault> {
        let map = |(region, handle): (&Region, &Handle)| {
            SharedMemory::map(handle, region.offset, region.bytes).map_err(unmapped)
        };
        let mappings = regions.all().iter().zip(handles).map(map).collect::<Result<_, Fault>>()?;
        self.table = Arc::new(Table { regions, mappings });
        let running = |&queue: &u16| self.queues[usize::from(queue)].kick.is_some();
        for queue in (0..QUEUES_MAX).filter(running).collect::<Vec<u16>>() {
            self.find_ring(queue)?;
        }
        Ok(())
    }

    fn find_ring(&mut self, number: u16) -> Result<Ring, Fault> {
        let queue = &mut self.queues[usize::from(number)];
        let addresses = queue.addresses.ok_or(Fault::Queue(u32::from(number)))?;
        let ring = Ring::new(queue.size, &addresses, &self.table.regions)?;
        queue.ring = Some(ring);
        Ok(ring)
    }

    fn set_signal(
        &mut self,
        message: u32,
        number: u16,
        kind: Kicks,
        handle: Option<Handle>,
    ) -> Result<(), Fault> {
        if handle.as_ref().is_some_and(|handle| !handle.becomes_event()) {
            return Err(Fault::Kind(message));
        }
        let queue = &mut self.queues[usize::from(number)];
        match kind {
            Kicks::Kick => {
                // A queue without one would have to be looked at all the time.
                let handle = handle.ok_or(Fault::Kind(message))?;
                let old = queue.kick.replace(handle.clone());
                self.session.fresh.push((number, handle));
                match old {
                    Some(old) => self.session.stale.push(old),
                    None => self.start_ring(number)?,
                }
                self.queues[usize::from(number)].look = true;
            }
            Kicks::Call => {
                // Its machine may wait for what an earlier process answered.
                if let Some(handle) = &handle {
                    handle.signal();
                }
                queue.call = handle;
            }
            Kicks::Error => {}
        }
        Ok(())
    }

    /// A ring begins, or goes on where it was when its last process ended.
    fn start_ring(&mut self, number: u16) -> Result<(), Fault> {
        let ring = self.find_ring(number)?;
        let queue = &mut self.queues[usize::from(number)];
        queue.answered = ring.answered(&*self.table)?;
        queue.again.clear();
        let Some((shape, memory)) = &self.record else { return Ok(()) };
        let inflight = Inflight::of(shape, number).filter(|known| known.size() >= ring.size());
        let open = inflight.ok_or(Fault::Inflight)?.open(memory, queue.answered)?;
        if open.iter().any(|(_, head)| *head >= ring.size()) {
            return Err(Fault::Inflight);
        }
        let count = u16::try_from(open.len()).expect("at most the ring's size");
        queue.taken = queue.answered.wrapping_add(count);
        self.count = open.iter().map(|(count, _)| *count).fold(self.count, u64::max);
        queue.again = open.into_iter().map(|(_, head)| head).collect();
        Ok(())
    }

    /// Answers where a ring stands, once nothing of it is open.
    pub(super) fn go_on_stopping(&mut self, number: u16) {
        let queue = &mut self.queues[usize::from(number)];
        if self.session.stopping != Some(number) {
            return;
        }
        // Nothing more is taken from it.
        self.session.stale.extend(queue.kick.take());
        if queue.open > 0 {
            return;
        }
        self.session.stopping = None;
        queue.ring = None;
        let mut body = u32::from(number).to_le_bytes().to_vec();
        body.extend_from_slice(&u32::from(queue.taken).to_le_bytes());
        self.reply(GET_RING_BASE, &body);
    }

    /// Makes a record of open requests, which the front end keeps.
    fn make_record(&mut self, kind: u32, asked: InflightShape) -> Result<(), Fault> {
        let shape = InflightShape { bytes: asked.bytes_needed(), offset: 0, ..asked };
        let (memory, handle) = SharedMemory::create(shape.bytes).map_err(|_| Fault::Mapping)?;
        let table = Table { mappings: vec![memory], ..Table::default() };
        for queue in 0..shape.queues {
            Inflight::of(&shape, queue).expect("one of its queues").clear(&table)?;
        }
        self.seen().write(&table, &shape)?;
        self.session.made = true;
        self.session.replies.push((reply(kind, &shape.to_bytes()), Some(handle)));
        Ok(())
    }

    fn seen(&self) -> Seen {
        let (identity, volume) = (self.volume.identity, self.volume.volume);
        Seen { identity, volume, lost: self.seen }
    }

    /// Writes behind the record what the machine has seen.
    pub(super) fn remember_seen(&mut self) {
        let seen = self.seen();
        if let Some((shape, table)) = &self.record
            && let Err(fault) = seen.write(table, shape)
        {
            self.fault = Some(fault);
        }
    }

    /// Goes on with a record, which this process made or one before it.
    fn set_record(&mut self, shape: InflightShape, handles: &[Handle]) -> Result<(), Fault> {
        if self.queues.iter().any(|queue| queue.kick.is_some())
            || shape.bytes < shape.bytes_needed()
        {
            return Err(Fault::Inflight);
        }
        let handle = handles.first().ok_or(Fault::Inflight)?;
        let memory = SharedMemory::map(handle, shape.offset, shape.bytes);
        let table = Table { mappings: vec![memory.map_err(unmapped)?], ..Table::default() };
        let seen = Seen::read(&table, &shape)?;
        if (seen.identity, seen.volume) != (self.volume.identity, self.volume.volume) {
            return Err(Fault::Inflight);
        }
        // What an earlier process told its machine is not known.
        self.told |= !self.session.made;
        self.seen = seen.lost;
        self.record = Some((shape, table));
        self.know_lost(self.volume.lost);
        Ok(())
    }
}

/// Why a region of its memory is not to be had.
fn unmapped(errno: Errno) -> Fault {
    if errno == Errno::NOT_SUPPORTED { Fault::NoMemory } else { Fault::Mapping }
}
