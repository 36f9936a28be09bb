//! One host's controller: what it set, what it asked to be told of, its answers to administration.
//!
//! Invariants:
//! - An event is told once, and not again before the host has read the log page that it names. What changed before the host asked
//!   to be told is told then.
//! - A host that is silent for longer than it said is given up, whatever it sent meanwhile that was not looked at yet:
//!   by then it may have tried elsewhere.
//!
//! Not here: connections and their data (`connection`).

use crate::command::{Command, Status};
use crate::identify::identify;
use crate::log_page::{access_page, log_page};
use crate::notice::{Notice, Notices};
use crate::number::{
    ADMIN_ABORT, ADMIN_ASYNC_EVENT, ADMIN_GET_FEATURES, ADMIN_GET_LOG_PAGE, ADMIN_IDENTIFY,
    ADMIN_KEEP_ALIVE, ADMIN_SET_FEATURES, DEPTH_MAX, EVENTS_OPEN_MAX, FABRICS_CONNECT,
    FABRICS_PROPERTY_GET, FABRICS_PROPERTY_SET, FEATURE_ASYNC_EVENTS, FEATURE_HOST_ID,
    FEATURE_KEEP_ALIVE, FEATURE_QUEUES, FEATURE_RESERVATION_MASK, FEATURE_RESERVATION_PERSISTS,
    FEATURE_VOLATILE_CACHE, FEATURES, IO_QUEUES_MAX, LOG_ANA, LOG_CHANGED_NAMESPACES,
    LOG_DISCOVERY, LOG_RESERVATION, NOTICE_ANA, NOTICE_DISCOVERY, NOTICE_NAMESPACES,
    NOTICE_RESERVATION, NSID_ALL, PROPERTY_CAP, PROPERTY_CC, PROPERTY_CSTS, PROPERTY_VS, SAVE,
    VERSION,
};
use crate::subsystem::Service;
use alloc::vec::Vec;
use base::{Duration, Instant};

/// Bytes of a log page that are told at once, at most.
const LOG_BYTES_MAX: u64 = 64 << 10;
/// Bits of the feature that says of which notices a host does not want to hear.
const RESERVATION_MASKS: u32 = 0b1110;
/// `CC.EN`.
const ENABLE: u32 = 1;
/// `CC.SHN`: the host is about to leave.
const SHUTDOWN: u32 = 0b11 << 14;
/// `CSTS.RDY`.
const READY: u32 = 1;
/// `CSTS.SHST`: what was open is done.
const SHUTDOWN_COMPLETE: u32 = 0b10 << 2;

/// What becomes of an administration command.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Answer {
    /// Done, with the first two words of the completion.
    Done(u64),
    /// Done, with data for the host.
    Data(Vec<u8>),
    /// Refused.
    Failed(Status),
    /// Answered when there is something to tell.
    Later,
}

/// One host's controller.
#[derive(Debug)]
pub struct Controller {
    id: u16,
    service: Service,
    /// Who the host is, as it said.
    host: [u8; 16],
    /// Queues for I/O that the host may have.
    queues: u16,
    configuration: u32,
    keep_alive: Duration,
    heard: Instant,
    /// Kinds of events that the host wants to be told of.
    wanted: u32,
    /// Kinds that there is something to tell of.
    due: u32,
    /// Kinds that were told, and whose log page was not read since.
    told: u32,
    /// Commands that wait for an event.
    waiting: Vec<u16>,
    /// Volumes that changed since the log page was read.
    changed: Vec<u32>,
    /// Changes of what the path is worth, the first value among them.
    access_changes: u64,
    /// What others did to its registrations.
    notices: Notices,
}

impl Controller {
    /// A host connected at `now`, and will be heard of every `keep_alive`; zero: never given up.
    #[must_use]
    pub fn new(id: u16, service: Service, keep_alive: Duration, now: Instant) -> Controller {
        Controller {
            id,
            service,
            host: [0; 16],
            queues: IO_QUEUES_MAX,
            configuration: 0,
            keep_alive,
            heard: now,
            wanted: 0,
            due: 0,
            told: 0,
            waiting: Vec::new(),
            changed: Vec::new(),
            access_changes: 1,
            notices: Notices::default(),
        }
    }

    /// The host gets so many queues for I/O at most: 1 to [`IO_QUEUES_MAX`], which is what it gets without this.
    #[must_use]
    pub fn with_queues(mut self, most: u16) -> Controller {
        self.queues = most.clamp(1, IO_QUEUES_MAX);
        self
    }

    /// The host said that this is its identity (`Connect::host_id`), and can ask what it said.
    #[must_use]
    pub fn with_host(mut self, host: [u8; 16]) -> Controller {
        self.host = host;
        self
    }

    /// Queues for I/O that the host may have. They have the numbers from 1 on.
    #[must_use]
    pub fn queues(&self) -> u16 {
        self.queues
    }

    /// How often the host said that it will be heard of; zero: never given up.
    #[must_use]
    pub fn keep_alive(&self) -> Duration {
        self.keep_alive
    }

    /// Its number, among those of its subsystem.
    #[must_use]
    pub fn id(&self) -> u16 {
        self.id
    }

    /// What it stands for.
    #[must_use]
    pub fn service(&self) -> &Service {
        &self.service
    }

    /// Whether the host has switched it on: only then may it connect queues for I/O.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.configuration & (ENABLE | SHUTDOWN) == ENABLE
    }

    /// When the host is given up if it stays silent.
    #[must_use]
    pub fn expires_at(&self) -> Option<Instant> {
        // Room for the host's own timer and the way.
        let grace = Duration(self.keep_alive.0 / 2);
        (self.keep_alive != Duration(0)).then(|| self.heard + self.keep_alive + grace)
    }

    /// A command came.
    pub(crate) fn hear(&mut self, now: Instant) {
        self.heard = self.heard.max(now);
    }

    /// The resource is not what it was: the host is told what it wants to know.
    pub(crate) fn change(&mut self, service: Service) {
        let mut due = 0;
        match (&self.service, &service) {
            (Service::Volumes(old), Service::Volumes(new)) => {
                let gone = old.namespaces.iter().filter(|one| !new.namespaces.contains(one));
                let come = new.namespaces.iter().filter(|one| !old.namespaces.contains(one));
                let mut ids: Vec<u32> = gone.chain(come).map(|namespace| namespace.id).collect();
                if !ids.is_empty() {
                    due |= NOTICE_NAMESPACES;
                    self.changed.append(&mut ids);
                    self.changed.sort_unstable();
                    self.changed.dedup();
                }
                if old.access != new.access {
                    due |= NOTICE_ANA;
                    self.access_changes += 1;
                }
            }
            (Service::Discovery { generation: old, .. }, Service::Discovery { generation, .. })
                if old != generation =>
            {
                due |= NOTICE_DISCOVERY;
            }
            _ => {}
        }
        self.service = service;
        // A host may have looked before, and ask to be told later.
        self.due |= due;
    }

    /// Another host did something to this one's registration.
    pub(crate) fn notify(&mut self, namespace: u32, notice: Notice) {
        if self.notices.add(namespace, notice) {
            self.due |= NOTICE_RESERVATION;
        }
    }

    /// A command that waited, and what it is answered with, if there is something to tell.
    pub(crate) fn take_event(&mut self) -> Option<(u16, u64)> {
        let open = self.due & (self.wanted | NOTICE_RESERVATION) & !self.told;
        if open == 0 || self.waiting.is_empty() {
            return None;
        }
        let kind = 1 << open.trailing_zeros();
        const NOTICE: u64 = 2;
        const OF_COMMAND_SET: u64 = 6;
        let (is_about, information, page): (u64, u64, u8) = match kind {
            NOTICE_NAMESPACES => (NOTICE, 0x00, LOG_CHANGED_NAMESPACES),
            NOTICE_ANA => (NOTICE, 0x03, LOG_ANA),
            NOTICE_RESERVATION => (OF_COMMAND_SET, 0x00, LOG_RESERVATION),
            _ => (NOTICE, 0xf0, LOG_DISCOVERY),
        };
        self.due &= !kind;
        self.told |= kind;
        let result = is_about | information << 8 | u64::from(page) << 16;
        Some((self.waiting.remove(0), result))
    }

    /// An administration command.
    pub(crate) fn administer(&mut self, command: &Command) -> Answer {
        if self.waiting.contains(&command.id()) {
            return Answer::Failed(Status::ID_CONFLICT);
        }
        if command.is_fabrics() {
            return self.property(command);
        }
        if !self.is_enabled() && command.opcode() != ADMIN_KEEP_ALIVE {
            return Answer::Failed(Status::SEQUENCE_ERROR);
        }
        match command.opcode() {
            ADMIN_IDENTIFY => {
                let (cns, nsid) = (command.byte(40), command.namespace());
                let set = command.byte(47);
                identify(&self.service, cns, nsid, self.id, set)
                    .map_or_else(Answer::Failed, Answer::Data)
            }
            ADMIN_GET_LOG_PAGE => self.log_page(command),
            ADMIN_KEEP_ALIVE => Answer::Done(0),
            // It may be done already; it is not looked for.
            ADMIN_ABORT => Answer::Done(1),
            ADMIN_ASYNC_EVENT if self.waiting.len() >= EVENTS_OPEN_MAX => {
                Answer::Failed(Status::TOO_MANY_EVENTS)
            }
            ADMIN_ASYNC_EVENT => {
                self.waiting.push(command.id());
                Answer::Later
            }
            ADMIN_SET_FEATURES => self.set_feature(command),
            ADMIN_GET_FEATURES => self.feature(command),
            _ => Answer::Failed(Status::INVALID_OPCODE),
        }
    }

    fn property(&mut self, command: &Command) -> Answer {
        let (offset, long) = (command.word(11), command.byte(40) & 0b111 == 1);
        match command.fabrics_type() {
            FABRICS_PROPERTY_GET => {
                let value = match (offset, long) {
                    (PROPERTY_CAP, true) => Self::capabilities(),
                    (PROPERTY_VS, false) => u64::from(VERSION),
                    (PROPERTY_CC, false) => u64::from(self.configuration),
                    (PROPERTY_CSTS, false) => u64::from(self.state()),
                    _ => return Answer::Failed(Status::INVALID_FIELD),
                };
                Answer::Done(value)
            }
            FABRICS_PROPERTY_SET if offset == PROPERTY_CC && !long => {
                self.configuration = command.word(12);
                Answer::Done(0)
            }
            FABRICS_PROPERTY_SET => Answer::Failed(Status::INVALID_FIELD),
            // The queue is connected.
            FABRICS_CONNECT => Answer::Failed(Status::SEQUENCE_ERROR),
            _ => Answer::Failed(Status::INVALID_OPCODE),
        }
    }

    /// Queues of [`DEPTH_MAX`] entries, contiguous; ready within 5 s; the NVM command set.
    fn capabilities() -> u64 {
        u64::from(DEPTH_MAX - 1) | 1 << 16 | 10 << 24 | 1 << 37
    }

    fn state(&self) -> u32 {
        let ready = if self.configuration & ENABLE != 0 { READY } else { 0 };
        let down = if self.configuration & SHUTDOWN != 0 { SHUTDOWN_COMPLETE } else { 0 };
        ready | down
    }

    fn log_page(&mut self, command: &Command) -> Answer {
        let (number, specific) = (command.byte(40), command.byte(41) & 0x7f);
        let keeps = command.byte(41) & 0x80 != 0;
        let words = u64::from(command.short(42)) | u64::from(command.short(44)) << 16;
        let (bytes, offset) = ((words + 1) * 4, command.long(12));
        let groups_only = specific & 1 != 0;
        let page = match (number, &self.service) {
            (LOG_ANA, Service::Volumes(subsystem)) => {
                Some(access_page(subsystem, groups_only, self.access_changes))
            }
            (LOG_RESERVATION, Service::Volumes(_)) => Some(self.notices.page()),
            _ => log_page(&self.service, number, &self.changed),
        };
        let Some(page) = page else { return Answer::Failed(Status::INVALID_LOG_PAGE) };
        let within = usize::try_from(offset).ok().filter(|&at| at <= page.len());
        let (Some(offset), true) = (within, bytes <= LOG_BYTES_MAX) else {
            return Answer::Failed(Status::INVALID_FIELD);
        };
        if !keeps {
            let read = match number {
                LOG_CHANGED_NAMESPACES => NOTICE_NAMESPACES,
                LOG_ANA => NOTICE_ANA,
                LOG_DISCOVERY => NOTICE_DISCOVERY,
                LOG_RESERVATION => NOTICE_RESERVATION,
                _ => 0,
            };
            self.told &= !read;
            if read == NOTICE_RESERVATION && self.notices.pop() {
                self.due |= NOTICE_RESERVATION;
            }
            if read == NOTICE_NAMESPACES {
                self.changed.clear();
            }
        }
        let mut data = page[offset..].to_vec();
        data.resize(usize::try_from(bytes).unwrap_or(0), 0);
        Answer::Data(data)
    }

    /// Whether a host of this service may not be silent for so many milliseconds; 0: for ever.
    fn is_to_be_heard_within(&self, milliseconds: u32) -> bool {
        let wanted = Duration::from_millis(u64::from(milliseconds));
        matches!(self.service, Service::Discovery { .. })
            && self.keep_alive != Duration(0)
            && (wanted == Duration(0) || wanted > self.keep_alive)
    }

    fn set_feature(&mut self, command: &Command) -> Answer {
        let value = command.word(11);
        match command.byte(40) {
            // Whoever connects anew says it anew.
            feature if command.word(10) & SAVE != 0 && FEATURES.contains(&feature) => {
                Answer::Failed(Status::FEATURE_NOT_SAVEABLE)
            }
            FEATURE_QUEUES => Answer::Done(self.granted(value)),
            FEATURE_ASYNC_EVENTS => {
                self.wanted = value & (NOTICE_NAMESPACES | NOTICE_ANA | NOTICE_DISCOVERY);
                Answer::Done(0)
            }
            // Whoever reaches the port can ask the discovery service, and stays no longer unheard of than it was let in for.
            FEATURE_KEEP_ALIVE if self.is_to_be_heard_within(value) => {
                Answer::Failed(Status::INVALID_FIELD)
            }
            FEATURE_KEEP_ALIVE => {
                self.keep_alive = Duration::from_millis(u64::from(value));
                Answer::Done(0)
            }
            FEATURE_VOLATILE_CACHE if value & 1 == 1 => Answer::Done(0),
            FEATURE_VOLATILE_CACHE => Answer::Failed(Status::FEATURE_FIXED),
            FEATURE_RESERVATION_MASK => {
                let of = match command.namespace() {
                    NSID_ALL => self.service.namespaces(),
                    id => self.service.namespace(id).map_or(&[][..], core::slice::from_ref),
                };
                if of.is_empty() {
                    return Answer::Failed(Status::INVALID_NAMESPACE);
                }
                self.notices.set_mask(of.iter().map(|one| one.id), value & RESERVATION_MASKS);
                Answer::Done(0)
            }
            // A host says it as it registers.
            FEATURE_RESERVATION_PERSISTS => Answer::Failed(Status::FEATURE_FIXED),
            // It was told when the host connected.
            FEATURE_HOST_ID => Answer::Failed(Status::SEQUENCE_ERROR),
            _ => Answer::Failed(Status::INVALID_FIELD),
        }
    }

    /// Queues that the host gets of those that it asks for: both numbers counted from 0.
    fn granted(&self, asked: u32) -> u64 {
        let most = u32::from(self.queues - 1);
        let (submission, completion) = ((asked & 0xffff).min(most), (asked >> 16).min(most));
        u64::from(submission | completion << 16)
    }

    fn feature(&self, command: &Command) -> Answer {
        match command.byte(40) {
            FEATURE_QUEUES => Answer::Done(self.granted(u32::MAX)),
            FEATURE_ASYNC_EVENTS => Answer::Done(u64::from(self.wanted)),
            FEATURE_KEEP_ALIVE => Answer::Done(self.keep_alive.as_millis()),
            FEATURE_VOLATILE_CACHE => Answer::Done(1),
            // Over a network it has 16 bytes, which a host has to ask for.
            FEATURE_HOST_ID if command.word(11) & 1 == 1 => Answer::Data(self.host.to_vec()),
            FEATURE_RESERVATION_MASK | FEATURE_RESERVATION_PERSISTS => {
                let Some(one) = self.service.namespace(command.namespace()) else {
                    return Answer::Failed(Status::INVALID_NAMESPACE);
                };
                Answer::Done(u64::from(if command.byte(40) == FEATURE_RESERVATION_MASK {
                    self.notices.mask(one.id)
                } else {
                    u32::from(self.service.persists(one.id))
                }))
            }
            _ => Answer::Failed(Status::INVALID_FIELD),
        }
    }
}
