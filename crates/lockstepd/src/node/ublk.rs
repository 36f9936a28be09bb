//! Volumes as disks of this host: `/dev/ublkbN`, made by the kernel's ublk driver and served by this process.
//!
//! Always:
//! - A disk is in the file (`ublk/listed`) from before it is made until after it is gone, with a mark that the kernel keeps
//!   too: the next process takes back what is this node's, and nothing else.
//! - A disk outlives its process. What its users ask meanwhile waits in the kernel; what the dead process had is asked of
//!   the next one again. Nothing that it had comes after that: its stores are locked until what it gave to the kernel has
//!   ended, and its sessions with peers ended with it.
//! - A disk belongs to one identity of a resource, and to what its users were shown of it: after a loss of all caches that
//!   it has not heard of it gives errors, also if nobody served it then.
//! - One command about a disk is with the driver at a time.
//! - A disk counts as a client of its resource from when that begins to run here until it is gone, whether it is served or not: its
//!   users wait in the kernel. A side of a split brain is not given up under them, nor a resource deleted. Where the host has
//!   no driver it has no users.
//! - A node that stops begins nothing with a disk.
//!
//! Not here: their queues, on every thread (`queues`), what becomes of a request (`export::UblkDisk`), the driver's interface (`sys`), links and who uses a disk (the
//! command line).

mod judged;
mod listed;
mod queues;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use base::{Duration, Epoch, Instant, VolumeId};
use export::ZEROES_BYTES_MAX;
use sys::{Errno, UblkCommand, UblkDevice, UblkEvent, UblkInfo, UblkLack, UblkRing, UblkShape};
use wire::admin::{Answer, HostDisk, codes};

use self::judged::{Deleted, Seen};
use self::listed::Listed;
pub(super) use self::queues::Offer;
use self::queues::Queues;
use super::Node;
use super::admin::{Asker, no_resource};
use super::clients::CLIENTS_MAX;
use super::resource::Resource;
use super::threads::Parcel;
use crate::backing::Refused;
use crate::log::{error, info, warning};
use crate::slab::Key;

/// Disks of one node, at most: as many as the ring has room for completions of.
const DISKS_MAX: usize = 32;

/// Numbers that are tried for a new disk before it is given up.
const NUMBERS_MAX: u32 = 256;

/// Between two tries where something has not ended yet: the process that had it, a resource that is not there.
const TRY_EVERY: Duration = Duration::from_millis(50);

/// The same where the driver is missing, or what it says of a disk tells nothing.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// How far a disk has come.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    /// Listed; it is not known whether the kernel has it.
    Listed,
    /// The driver is asked how it is.
    Looking,
    Adding,
    Shaping,
    Starting,
    /// Its last process has to be gone.
    Recovering,
    /// Its file has to be free.
    Opening,
    Resuming,
    /// Its users are served.
    Live,
    Stopping,
    /// What was fetched comes back.
    Draining,
    Deleting,
    /// The same by a driver that waits for all who have it open.
    Closing,
}

/// One disk.
struct Disk {
    listed: Listed,
    phase: Phase,
    /// How many queues it has, and how many of them have not ended.
    queues: u16,
    open: u16,
    /// Who waits for it to be there.
    attaching: Vec<Asker>,
    /// Who waits for it to be gone; it is to go.
    detaching: Vec<Asker>,
    goes: bool,
    /// It was there before: when it is made anew nobody waits for it.
    try_at: Option<Instant>,
    /// It is to be told this size.
    grown: Option<u64>,
    /// It counts among its resource's clients.
    counts: bool,
    /// It was made by this process: nobody has seen more of it than this process told.
    is_new: bool,
    /// What the driver answered last that tells nothing of it, which was said.
    doubt: Option<Errno>,
}

impl Disk {
    fn new(listed: Listed) -> Disk {
        Disk {
            listed,
            phase: Phase::Listed,
            queues: 0,
            open: 0,
            attaching: Vec::new(),
            detaching: Vec::new(),
            goes: false,
            try_at: None,
            grown: None,
            counts: true,
            is_new: false,
            doubt: None,
        }
    }

    fn is_of(&self, resource: &str, volume: VolumeId) -> bool {
        self.listed.resource == resource && self.listed.volume == volume.0
    }
}

/// The disks of this host that this node serves.
#[derive(Default)]
pub(crate) struct Ublk {
    ring: Option<UblkRing>,
    disks: BTreeMap<u32, Disk>,
    queues: Queues,
    events: Vec<UblkEvent>,
    /// The node stops: what is open is left to the next process.
    is_shut: bool,
    /// The driver is missing, and that was said.
    lacks: bool,
}

impl Ublk {
    /// When to try again what could not be done.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        self.disks.values().filter_map(|disk| disk.try_at).min()
    }
}

impl Node {
    /// Takes up the disks that this node had.
    pub(super) fn load_disks(&mut self) -> Result<(), String> {
        let now = self.hands.now();
        for (number, listed) in listed::read(&self.config.directory)? {
            info!("{}: it is disk {number} of this host, and is taken up", listed.resource);
            let disk = Disk { try_at: Some(now), ..Disk::new(listed) };
            self.ublk.disks.insert(number, disk);
        }
        Ok(())
    }

    /// The node stops: what the kernel has of its disks is left to the next process.
    pub(super) fn shut_disks(&mut self) {
        self.ublk.is_shut = true;
    }

    fn save_disks(&self) -> Result<(), Refused> {
        let all = self.ublk.disks.iter().map(|(number, disk)| (*number, &disk.listed));
        listed::write(&self.config.directory, all)
            .map_err(|why| Refused::new(&codes::STORE_FAILED, why))
    }

    /// `UblkAttach`: the volume becomes a disk.
    pub(super) fn attach_disk(&mut self, asker: Asker, resource: &str, volume: u16) {
        if let Err(refused) = self.begin_attach(asker, resource, VolumeId(volume)) {
            self.answer(asker, Err(refused));
        }
    }

    fn begin_attach(
        &mut self,
        asker: Asker,
        resource: &str,
        volume: VolumeId,
    ) -> Result<(), Refused> {
        let known = self.known.get(resource).ok_or_else(|| no_resource(resource))?;
        let identity = known.file.id;
        let there = self
            .ublk
            .disks
            .iter_mut()
            .find(|(_, disk)| disk.is_of(resource, volume) && disk.listed.identity == identity);
        if let Some((&number, disk)) = there {
            let gone =
                disk.phase == Phase::Live && !self.ublk.queues.is_served(number, &mut self.clients);
            if disk.goes || gone {
                let message = format!(
                    "{resource}: its disk /dev/ublkb{number} gives errors only: what its users were shown is gone, or it is \
                     being taken away; detach it and attach it anew"
                );
                return Err(Refused::new(&codes::BUSY, message));
            }
            disk.attaching.push(asker);
            if disk.phase == Phase::Live {
                self.answer_attached(number);
            }
            return Ok(());
        }
        let entry = known.running.and_then(|key| self.resources.get(key)).ok_or_else(|| {
            let message = format!("{resource} is defined here, and not created");
            Refused::new(&codes::NOT_CREATED, message)
        })?;
        if entry.volume(volume).is_none() {
            let message = format!("{resource} has no volume {volume}");
            return Err(Refused::new(&codes::NO_RESOURCE, message));
        }
        if self.ublk.disks.len() >= DISKS_MAX || self.clients.len() >= CLIENTS_MAX {
            let message = format!("{resource}: there are {DISKS_MAX} disks, or too many clients");
            return Err(Refused::new(&codes::BUSY, message));
        }
        self.open_ublk()
            .map_err(|why| Refused::new(&codes::NO_UBLK, format!("{resource}: {why}")))?;
        let listed = Listed {
            mark: sys::random_u64(),
            resource: resource.to_owned(),
            identity,
            volume: volume.0,
            lost: 0,
        };
        let disk = Disk { attaching: vec![asker], ..Disk::new(listed) };
        self.add_disk(disk, 0)?;
        self.count_disks(resource, true);
        Ok(())
    }

    fn open_ublk(&mut self) -> Result<(), sys::UblkLack> {
        if self.ublk.ring.is_none() {
            self.ublk.ring = Some(UblkRing::open(&self.hands.waker())?);
            self.ublk.lacks = false;
        }
        Ok(())
    }

    /// Makes a disk under the first free number from `first` on, then from 0.
    fn add_disk(&mut self, mut disk: Disk, first: u32) -> Result<(), Refused> {
        let free = |number: &u32| {
            let there = Path::new("/sys/class/ublk-char").join(format!("ublkc{number}"));
            !self.ublk.disks.contains_key(number) && !there.exists()
        };
        let number = (first..NUMBERS_MAX).chain(0..first).find(free).ok_or_else(|| {
            let message = format!("{}: no number is free", disk.listed.resource);
            Refused::new(&codes::BUSY, message)
        })?;
        disk.phase = Phase::Adding;
        self.ublk.disks.insert(number, disk);
        self.make_disk(number).inspect_err(|_| {
            self.ublk.disks.remove(&number);
        })
    }

    /// Has the kernel make a listed disk that it does not have: its users will know of all that was lost before.
    fn make_disk(&mut self, number: u32) -> Result<(), Refused> {
        let Some(disk) = self.ublk.disks.get(&number) else { return Ok(()) };
        let entry = self.resource_of_disk(disk).flatten().and_then(|key| self.resources.get(key));
        let lost = entry.map(Resource::latest_loss);
        let Some(disk) = self.ublk.disks.get_mut(&number) else { return Ok(()) };
        let mark = disk.listed.mark;
        disk.is_new = true;
        disk.listed.lost = lost.map_or(disk.listed.lost, |lost| lost.0);
        self.save_disks()?;
        let queues = self.threads.count();
        self.command_disk(number, Phase::Adding, UblkCommand::Add { mark, queues });
        Ok(())
    }

    /// As many clients as a resource that begins to run here has by its disks.
    pub(super) fn disks_counted(&self, resource: &str, identity: u64) -> u32 {
        let is_its = |disk: &&Disk| {
            disk.counts && disk.listed.resource == resource && disk.listed.identity == identity
        };
        let count = self.ublk.disks.values().filter(is_its).count();
        u32::try_from(count).expect("few disks")
    }

    /// A disk of this resource comes, or goes.
    fn count_disks(&mut self, resource: &str, comes: bool) {
        if let Some(key) = self.known.get(resource).and_then(|known| known.running) {
            self.count_client(key, comes);
        }
    }

    /// Whether a disk counts as a client: where the driver is missing it has no users.
    fn let_disk_count(&mut self, number: u32, counts: bool) {
        let Some(disk) = self.ublk.disks.get_mut(&number) else { return };
        if std::mem::replace(&mut disk.counts, counts) == counts {
            return;
        }
        let (name, disk) = (disk.listed.resource.clone(), &self.ublk.disks[&number]);
        if self.resource_of_disk(disk).is_some() {
            self.count_disks(&name, counts);
        }
    }

    /// `UblkDetach`: users get errors, and the disk goes. It may be of a resource that was deleted; with `identity` of no other.
    pub(super) fn detach_disk(
        &mut self,
        asker: Asker,
        resource: &str,
        volume: u16,
        identity: Option<u64>,
    ) {
        let volume = VolumeId(volume);
        let there = self.ublk.disks.iter_mut().find(|(_, disk)| {
            let is_meant = identity.is_none_or(|identity| disk.listed.identity == identity);
            disk.is_of(resource, volume) && is_meant
        });
        let Some((&number, disk)) = there else {
            let message = format!("{resource}: volume {volume} is no disk that this node serves");
            return self.answer(asker, Err(Refused::new(&codes::NO_DISK, message)));
        };
        disk.detaching.push(asker);
        if !disk.goes {
            disk.goes = true;
            match disk.phase {
                Phase::Live | Phase::Opening => self.remove_disk(number),
                // It is looked first whether what has its number is this node's.
                Phase::Listed => self.retry_disk(number),
                _ => {}
            }
        }
    }

    /// `UblkList`.
    pub(super) fn host_disks(&mut self) -> Vec<HostDisk> {
        let (clients, queues) = (&mut self.clients, &self.ublk.queues);
        let told = |(number, disk): (&u32, &Disk)| HostDisk {
            number: *number,
            resource: disk.listed.resource.clone(),
            volume: disk.listed.volume,
            ready: disk.phase == Phase::Live && !disk.goes && queues.is_served(*number, clients),
        };
        self.ublk.disks.iter().map(told).collect()
    }

    fn answer_attached(&mut self, number: u32) {
        let Some(disk) = self.ublk.disks.get_mut(&number) else { return };
        let asked = std::mem::take(&mut disk.attaching);
        let told = HostDisk {
            number,
            resource: disk.listed.resource.clone(),
            volume: disk.listed.volume,
            ready: true,
        };
        for asker in asked {
            self.answer(asker, Ok(Answer::HostDisk(told.clone())));
        }
    }

    fn command_disk(&mut self, number: u32, phase: Phase, command: UblkCommand) {
        if let (Some(ring), Some(disk)) =
            (self.ublk.ring.as_mut(), self.ublk.disks.get_mut(&number))
        {
            disk.phase = phase;
            disk.try_at = None;
            ring.command(number, command);
        }
    }

    /// What the driver has said since the last turn, and what is to be tried again.
    pub(super) fn hear_disks(&mut self) {
        if self.ublk.disks.is_empty() && self.ublk.ring.is_none() {
            return;
        }
        let mut events = std::mem::take(&mut self.ublk.events);
        if let Some(ring) = self.ublk.ring.as_mut() {
            ring.collect(&mut events);
        }
        for event in events.drain(..) {
            match event {
                UblkEvent::Request { device, queue, tag, result } => {
                    self.on_fetched((device, queue), tag, result);
                }
                UblkEvent::Command { device, result, info } => {
                    self.on_disk_told(device, result, info);
                }
            }
        }
        self.ublk.events = events;
        let now = self.hands.now();
        let due =
            self.ublk.disks.iter().filter(|(_, disk)| disk.try_at.is_some_and(|at| at <= now));
        for number in due.map(|(number, _)| *number).collect::<Vec<u32>>() {
            self.retry_disk(number);
        }
    }

    /// Hands to the driver what is to be done.
    pub(super) fn tell_disks(&mut self) {
        if let Some(ring) = self.ublk.ring.as_mut()
            && let Err(errno) = ring.submit()
        {
            error!("the disks of this host are not served any more: {errno}");
            self.ublk.ring = None;
        }
    }

    fn retry_disk(&mut self, number: u32) {
        let again = self.hands.now() + TRY_EVERY;
        let later = self.hands.now() + LOOK_EVERY;
        if self.ublk.is_shut {
            if let Some(disk) = self.ublk.disks.get_mut(&number) {
                disk.try_at = None;
            }
            return;
        }
        let opened = self.open_ublk();
        let is_absent = opened.as_ref().is_err_and(|why| is_absent(number, why));
        self.let_disk_count(number, !is_absent);
        let Some(disk) = self.ublk.disks.get_mut(&number) else { return };
        disk.try_at = Some(again);
        match (disk.phase, opened) {
            (Phase::Listed, Err(_)) if disk.goes && is_absent => self.forget_disk(number),
            (Phase::Listed, Err(why)) => {
                disk.try_at = Some(later);
                if !std::mem::replace(&mut self.ublk.lacks, true) {
                    warning!("the disks of this host are not there: {why}");
                }
                self.refuse_askers(number, &why.to_string());
            }
            (Phase::Stopping, _) => {
                self.command_disk(number, Phase::Stopping, UblkCommand::Stop);
            }
            (Phase::Listed, Ok(())) => self.look_at_disk(number),
            (Phase::Recovering, _) => {
                self.command_disk(number, Phase::Recovering, UblkCommand::Recover);
            }
            (Phase::Opening, _) => self.open_disk(number, true),
            (Phase::Resuming, _) => {
                self.command_disk(number, Phase::Resuming, UblkCommand::Resume);
            }
            _ => disk.try_at = None,
        }
    }

    /// The resource of a disk, if it runs and its volume is known. The outer `None`: it is not here any more.
    fn resource_of_disk(&self, disk: &Disk) -> Option<Option<Key>> {
        if self.is_unreadable(&disk.listed.resource) {
            return Some(None);
        }
        let known = self.known.get(&disk.listed.resource)?;
        if known.file.id != disk.listed.identity {
            return None;
        }
        let ready = known.running.filter(|&key| {
            let entry = self.resources.get(key);
            entry.is_some_and(|entry| entry.volume(VolumeId(disk.listed.volume)).is_some())
        });
        Some(ready)
    }

    fn look_at_disk(&mut self, number: u32) {
        let Some(disk) = self.ublk.disks.get(&number) else { return };
        match self.resource_of_disk(disk) {
            None => {
                warning!("{}: it is gone, and so is its disk {number}", disk.listed.resource);
                if let Some(disk) = self.ublk.disks.get_mut(&number) {
                    disk.goes = true;
                }
            }
            // Not yet.
            Some(None) if !disk.goes => return,
            Some(_) => {}
        }
        self.command_disk(number, Phase::Looking, UblkCommand::Info);
    }

    /// A command has ended.
    fn on_disk_told(&mut self, number: u32, result: Result<(), Errno>, info: Option<UblkInfo>) {
        let Some(disk) = self.ublk.disks.get_mut(&number) else { return };
        let (phase, goes) = (disk.phase, disk.goes);
        match (phase, result) {
            (Phase::Looking, _) => self.on_disk_seen(number, result, info),
            (
                Phase::Adding
                | Phase::Shaping
                | Phase::Starting
                | Phase::Recovering
                | Phase::Resuming,
                Err(errno),
            ) => self.on_disk_refused(number, errno),
            (
                Phase::Adding
                | Phase::Shaping
                | Phase::Starting
                | Phase::Recovering
                | Phase::Resuming,
                Ok(()),
            ) if goes => self.remove_disk(number),
            (Phase::Adding, Ok(())) => {
                // From now on the kernel has it.
                disk.phase = Phase::Shaping;
                disk.queues = info.map_or(1, |info| info.queues);
                match self.shape_of(number) {
                    Some(shape) => {
                        self.command_disk(number, Phase::Shaping, UblkCommand::Shape(shape));
                    }
                    None => self.give_disk_up(number, Errno::NO_DEVICE),
                }
            }
            (Phase::Shaping, Ok(())) => self.open_disk(number, false),
            (Phase::Recovering, Ok(())) => self.open_disk(number, true),
            (Phase::Starting | Phase::Resuming, Ok(())) => {
                (disk.phase, disk.doubt) = (Phase::Live, None);
                info!("{}: it is the disk /dev/ublkb{number} of this host", disk.listed.resource);
                self.answer_attached(number);
                self.check_size(number);
                self.tell_size(number);
            }
            (Phase::Live, result) => {
                if let Err(errno) = result {
                    warning!("/dev/ublkb{number} was not told its new size: {errno}");
                }
                if goes {
                    self.remove_disk(number);
                } else {
                    self.tell_size(number);
                }
            }
            (Phase::Stopping, result) => self.on_disk_stopped(number, result),
            (Phase::Deleting, Err(errno)) if errno != Errno::NO_DEVICE => {
                self.command_disk(number, Phase::Closing, UblkCommand::DeleteAndWait);
            }
            (Phase::Deleting | Phase::Closing, result) => self.on_disk_deleted(number, result),
            (Phase::Listed | Phase::Opening | Phase::Draining, _) => {}
        }
    }

    /// A command that was to make or take back a disk has failed.
    fn on_disk_refused(&mut self, number: u32, errno: Errno) {
        let again = self.hands.now() + TRY_EVERY;
        let Some(disk) = self.ublk.disks.get_mut(&number) else { return };
        let is_passing = errno.is_passing();
        match disk.phase {
            Phase::Adding if errno == Errno::EXISTS => self.renumber_disk(number),
            // Made once more, without anybody who waits: it is looked what there is of it.
            Phase::Adding | Phase::Shaping
                if is_passing && disk.attaching.is_empty() && !disk.goes =>
            {
                self.ask_disk_again(number, errno);
            }
            Phase::Recovering if errno == Errno::BUSY => disk.try_at = Some(again),
            Phase::Recovering | Phase::Resuming if is_passing => disk.try_at = Some(again),
            _ => self.give_disk_up(number, errno),
        }
    }

    /// The driver gives back what was fetched; or has not heard that it is to.
    fn on_disk_stopped(&mut self, number: u32, result: Result<(), Errno>) {
        let later = self.hands.now() + LOOK_EVERY;
        let Some(disk) = self.ublk.disks.get_mut(&number) else { return };
        match result {
            Err(errno) if errno != Errno::NO_DEVICE && disk.open > 0 => {
                disk.try_at = Some(later);
                self.doubt_disk(number, errno);
            }
            _ => {
                disk.phase = Phase::Draining;
                self.drain_disk(number);
            }
        }
    }

    /// The driver has said how a listed disk is.
    fn on_disk_seen(&mut self, number: u32, result: Result<(), Errno>, info: Option<UblkInfo>) {
        let Some(disk) = self.ublk.disks.get_mut(&number) else { return };
        match judged::seen(result, info, disk.listed.mark, disk.goes) {
            Seen::Ours { queues } => {
                disk.queues = queues;
                self.command_disk(number, Phase::Recovering, UblkCommand::Recover);
            }
            Seen::Half => self.command_disk(number, Phase::Deleting, UblkCommand::Delete),
            Seen::Unwanted => self.remove_disk(number),
            Seen::Gone => self.forget_disk(number),
            Seen::Absent => self.make_disk_again(number),
            Seen::Others => self.renumber_disk(number),
            Seen::Unknown(errno) => self.ask_disk_again(number, errno),
        }
    }

    /// What the driver said tells nothing of a disk: it stays listed, and is looked at later.
    fn ask_disk_again(&mut self, number: u32, errno: Errno) {
        let later = self.hands.now() + LOOK_EVERY;
        if let Some(disk) = self.ublk.disks.get_mut(&number) {
            (disk.phase, disk.try_at) = (Phase::Listed, Some(later));
        }
        self.doubt_disk(number, errno);
    }

    /// The same is said, once, and to who waits for the disk.
    fn doubt_disk(&mut self, number: u32, errno: Errno) {
        let Some(disk) = self.ublk.disks.get_mut(&number) else { return };
        if disk.doubt.replace(errno) != Some(errno) {
            let (name, goes) = (&disk.listed.resource, disk.goes);
            let what = if goes { "is not removed yet" } else { "is not known" };
            warning!("{name}: how its disk {number} is {what}, and is tried again: {errno}");
        }
        self.refuse_askers(number, &errno.to_string());
    }

    /// Who waits for a disk hears why it is neither there nor gone yet.
    fn refuse_askers(&mut self, number: u32, why: &str) {
        let Some(disk) = self.ublk.disks.get_mut(&number) else { return };
        let message = format!(
            "{}: the ublk driver does not do it now with disk {number}, and is asked again: {why}",
            disk.listed.resource
        );
        let mut asked = std::mem::take(&mut disk.attaching);
        asked.append(&mut disk.detaching);
        for asker in asked {
            self.answer(asker, Err(Refused::new(&codes::NO_UBLK, message.clone())));
        }
    }

    /// A listed disk that the kernel does not have is made.
    fn make_disk_again(&mut self, number: u32) {
        if let Err(refused) = self.make_disk(number)
            && let Some(disk) = self.ublk.disks.get_mut(&number)
        {
            warning!("{}: its disk {number} is not made yet: {refused}", disk.listed.resource);
            (disk.phase, disk.try_at) = (Phase::Listed, Some(self.hands.now() + LOOK_EVERY));
        }
    }

    /// Somebody else has its number.
    fn renumber_disk(&mut self, number: u32) {
        let Some(disk) = self.ublk.disks.remove(&number) else { return };
        let (name, waiting) = (disk.listed.resource.clone(), disk.attaching.clone());
        let (leaving, counts) = (disk.detaching.clone(), disk.counts);
        if let Err(refused) = self.add_disk(disk, number + 1) {
            warning!("{name}: it is no disk of this host: {refused}");
            if counts {
                self.count_disks(&name, false);
            }
            if let Err(refused) = self.save_disks() {
                warning!("the list of disks says more than there are: {refused}");
            }
            for asker in leaving {
                self.answer_done(asker, Ok(()));
            }
            for asker in waiting {
                let refused = Refused::new(refused.code, refused.message.clone());
                self.answer(asker, Err(refused));
            }
        }
    }

    fn shape_of(&self, number: u32) -> Option<UblkShape> {
        let disk = self.ublk.disks.get(&number)?;
        let key = self.resource_of_disk(disk)??;
        let entry = self.resources.get(key)?.volume(VolumeId(disk.listed.volume))?;
        let zero_sectors = u32::try_from(ZEROES_BYTES_MAX >> 9).expect("64 MiB");
        Some(UblkShape { sectors: entry.sectors, block_bytes: entry.block_bytes, zero_sectors })
    }

    /// Opens the file of a disk, and fetches its requests.
    fn open_disk(&mut self, number: u32, again: bool) {
        // What the kernel has of a disk that is being taken back is the next process's.
        if self.ublk.is_shut {
            return;
        }
        let next = self.hands.now() + TRY_EVERY;
        let Some(disk) = self.ublk.disks.get(&number) else { return };
        let (queues, volume) = (disk.queues, VolumeId(disk.listed.volume));
        let (seen, is_new) = (Epoch(disk.listed.lost), disk.is_new);
        let key = self.resource_of_disk(disk).flatten();
        let device = match UblkDevice::open(number, queues) {
            Ok(device) => Arc::new(device),
            Err(errno) if again && is_not_yet(errno) => {
                if let Some(disk) = self.ublk.disks.get_mut(&number) {
                    (disk.phase, disk.try_at) = (Phase::Opening, Some(next));
                }
                return;
            }
            Err(errno) => return self.give_disk_up(number, errno),
        };
        let life = key.and_then(|key| self.resources.get(key)).map(|entry| entry.life);
        for queue in 0..queues {
            let name = (number, queue);
            let offer = Offer { name, device: device.clone(), life, volume, seen, is_new };
            self.tell(queue % self.threads.count(), Parcel::Queue(Box::new(offer)));
        }
        if let Some(disk) = self.ublk.disks.get_mut(&number) {
            disk.open = queues;
        }
        let (phase, command) = match again {
            true => (Phase::Resuming, UblkCommand::Resume),
            false => (Phase::Starting, UblkCommand::Start),
        };
        self.command_disk(number, phase, command);
    }

    /// All caches were lost after this epoch: who has seen what was there before gets errors. Nobody has seen anything of a
    /// disk that was just made, as all are when a whole cluster starts anew, unless some client was `told` something.
    pub(super) fn lose_disks(&mut self, resource: Key, lost: Epoch, told: bool) {
        let mut is_raised = false;
        for (number, disk) in &mut self.ublk.disks {
            let client = self.ublk.queues.first_client(*number);
            let client = client.and_then(|client| self.clients.get(client));
            let is_its =
                client.is_some_and(|client| client.opened.is_some_and(|(of, _)| of == resource));
            if is_its && disk.is_new && !told && Epoch(disk.listed.lost) < lost {
                disk.listed.lost = lost.0;
                is_raised = true;
            }
        }
        self.lose_queues(resource, lost, told);
        if is_raised && let Err(refused) = self.save_disks() {
            warning!("the next process will call its disks lost: {refused}");
        }
        self.tell_machines_of_loss(resource, lost);
    }

    /// The volume of a disk may have another size since the disk was made.
    fn check_size(&mut self, number: u32) {
        let Some(disk) = self.ublk.disks.get(&number) else { return };
        let volume = VolumeId(disk.listed.volume);
        let Some(key) = self.resource_of_disk(disk).flatten() else { return };
        let entry = self.resources.get(key).and_then(|resource| resource.volume(volume));
        if let Some(sectors) = entry.map(|entry| entry.sectors) {
            self.resize_disks(key, volume, sectors);
        }
    }

    /// A volume has a new size: its disk is told, if the driver can.
    pub(super) fn resize_disks(&mut self, resource: Key, volume: VolumeId, sectors: u64) {
        for (number, disk) in &mut self.ublk.disks {
            let client = self.ublk.queues.first_client(*number);
            let client = client.and_then(|client| self.clients.get(client));
            let is_its = client.is_some_and(|client| client.opened == Some((resource, volume)));
            if is_its && size_of_disk(*number) != Some(sectors) {
                let can = self.ublk.ring.as_ref().is_some_and(|ring| ring.features().can_resize());
                if can {
                    disk.grown = Some(sectors);
                } else {
                    warning!(
                        "/dev/ublkb{number} keeps its old size: this kernel's ublk driver cannot tell it another (Linux \
                         6.16 can); detach it and attach it again"
                    );
                }
            }
        }
        for number in self.ublk.disks.keys().copied().collect::<Vec<u32>>() {
            self.tell_size(number);
        }
    }

    fn tell_size(&mut self, number: u32) {
        let Some(disk) = self.ublk.disks.get_mut(&number) else { return };
        let Some(ring) = self.ublk.ring.as_mut().filter(|ring| ring.is_free(number)) else {
            return;
        };
        if disk.phase == Phase::Live
            && let Some(sectors) = disk.grown.take()
        {
            ring.command(number, UblkCommand::Resize(sectors));
        }
    }

    /// Something about a disk failed that cannot be mended: it goes.
    fn give_disk_up(&mut self, number: u32, errno: Errno) {
        let Some(disk) = self.ublk.disks.get_mut(&number) else { return };
        let (phase, name) = (disk.phase, disk.listed.resource.clone());
        warning!("{name}: the kernel refuses its disk {number} ({phase:?}): {errno}");
        disk.goes = true;
        for asker in std::mem::take(&mut disk.attaching) {
            let message = format!("{name}: the ublk driver refuses it ({phase:?}): {errno}");
            self.answer(asker, Err(Refused::new(&codes::NO_UBLK, message)));
        }
        match phase {
            Phase::Adding => self.forget_disk(number),
            _ => self.remove_disk(number),
        }
    }

    /// Begins to take a disk away: its users get errors.
    fn remove_disk(&mut self, number: u32) {
        let Some(disk) = self.ublk.disks.get_mut(&number) else { return };
        disk.goes = true;
        // Without a driver there is no disk.
        let Some(ring) = &self.ublk.ring else { return self.forget_disk(number) };
        if !ring.is_free(number) {
            // Its new size is being told; then it goes.
            return;
        }
        self.end_queues(number);
        self.tell_others(|| Parcel::EndQueues { disk: number });
        self.command_disk(number, Phase::Stopping, UblkCommand::Stop);
    }

    /// A queue of a disk has ended, on whatever thread.
    pub(super) fn on_queue_ended(&mut self, number: u32) {
        if let Some(disk) = self.ublk.disks.get_mut(&number) {
            disk.open -= 1;
            self.drain_disk(number);
        }
    }

    /// The kernel gives a queue no more requests, though somebody serves it.
    pub(super) fn on_queue_stopped(&mut self, number: u32) {
        let disk = self.ublk.disks.get(&number);
        if disk.is_some_and(|disk| disk.phase == Phase::Live) {
            warning!("/dev/ublkb{number} was stopped by another program");
            self.remove_disk(number);
        }
    }

    /// Deletes a disk once all its queues have ended.
    fn drain_disk(&mut self, number: u32) {
        let disk = self.ublk.disks.get(&number).filter(|disk| disk.open == 0);
        match disk.map(|disk| disk.phase) {
            Some(Phase::Draining) => {
                self.command_disk(number, Phase::Deleting, UblkCommand::Delete);
            }
            Some(Phase::Live) => self.on_queue_stopped(number),
            _ => {}
        }
    }

    fn on_disk_deleted(&mut self, number: u32, result: Result<(), Errno>) {
        let Some(disk) = self.ublk.disks.get(&number) else { return };
        match judged::deleted(result, disk.goes) {
            Deleted::Gone => self.forget_disk(number),
            // Half made by the last process.
            Deleted::Absent => self.make_disk_again(number),
            Deleted::Unknown(errno) => self.ask_disk_again(number, errno),
        }
    }

    /// A disk is gone.
    fn forget_disk(&mut self, number: u32) {
        self.let_disk_count(number, false);
        let Some(disk) = self.ublk.disks.remove(&number) else { return };
        info!("{}: it is no disk of this host any more", disk.listed.resource);
        let saved = self.save_disks();
        if let Err(refused) = &saved {
            warning!("the list of disks says more than there are: {refused}");
        }
        for asker in disk.detaching {
            self.answer_done(asker, saved.clone());
        }
        for asker in disk.attaching {
            let message = format!("{}: it was detached meanwhile", disk.listed.resource);
            self.answer(asker, Err(Refused::new(&codes::BUSY, message)));
        }
    }
}

/// Sectors of a disk, as the kernel shows it.
fn size_of_disk(number: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/sys/block/ublkb{number}/size")).ok()?;
    text.trim_end().parse().ok()
}

/// Whether the file of a disk that is taken back may be there, or to be had, in a moment.
fn is_not_yet(errno: Errno) -> bool {
    matches!(errno, Errno::BUSY | Errno::NOT_FOUND) || errno.is_passing()
}

/// Whether a listed disk is surely not there, where there is no way to the driver.
fn is_absent(number: u32, why: &UblkLack) -> bool {
    let all = Path::new("/sys/class");
    let is_there = || all.join(format!("ublk-char/ublkc{number}")).exists();
    why.is_without_devices() || (all.exists() && !is_there())
}
