//! `lockstep device`: volumes as disks of this host.
//!
//! What makes a disk of a volume differs from host to host: the node itself by ublk, the kernel's NVMe/TCP initiator, its NBD
//! client. The first that works is taken, and it is said which and why.
//!
//! Always: what is attached is written down before it is made, and forgotten after it is gone; a disk in use is not taken
//! away unless that is wanted; the link leads to a disk that answers; no disk is waited for with the list locked. Why it is so: `docs/design/0012-attach.md`.
//!
//! Not here: serving volumes (`lockstepd`), what a host can do (`doctor`).

mod attached;
mod genl;
mod host;
mod keep;
mod keys;
mod nbd;
mod nvme;
mod openers;
mod place;
#[cfg(test)]
mod tests;
mod ublk;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::json;

pub(crate) use nbd::keeps_names as nbd_keeps_names;
pub(crate) use place::{Place, Target, parse_place, parse_target};

use attached::{Attached, Disk, State, Way};
use host::{Host, KERNEL_LIMIT};
use keys::Keys;
use nbd::Nbd;
use nvme::Nvme;
use ublk::Ublk;

use crate::cli::{Attach, Device, Form, Global, Via};
use crate::cluster::{Cluster, USUAL};
use crate::output::{Cell, Style, Tone, say, say_json};
use crate::problem::{
    ATTACHED_OTHERWISE, DISK_IN_USE, FILE, Kind, NO_CLUSTER, NO_WAY, NOT_ATTACHED, NVME_KEYS,
    PROTOCOL, Problem, RESOURCE_ABSENT, TIMED_OUT, UNREACHED, USAGE, VOLUME_ABSENT,
};
use crate::view::Views;

/// How often a disk is taken hold of, to take it away, where what goes with it is something else each time.
const TRIES: usize = 5;

/// A disk that was made.
struct Made {
    /// The kernel's name of it.
    disk: String,
    /// What speaks for this way, in words.
    why: String,
    /// Identity of the resource, if it was told.
    id: Option<u64>,
}

/// Why there is no disk, and what the try has left.
#[derive(Debug)]
struct Unmade {
    why: String,
    left: Left,
}

/// What a try that failed has left.
#[derive(Debug)]
enum Left {
    Nothing,
    /// What was not there before, by the kernel's names.
    Added(Vec<String>),
    /// Possibly a disk: nobody answered.
    Unknown,
}

impl From<String> for Unmade {
    fn from(why: String) -> Unmade {
        Unmade { why, left: Left::Nothing }
    }
}

/// What is to be known to take a disk away.
#[derive(Default)]
struct Going {
    /// The kernel's name of it, if it is there.
    name: Option<String>,
    /// Other volumes, which stay.
    others: Vec<Disk>,
    /// What cannot be asked about is forgotten, if it is not there.
    force: bool,
    /// What nobody is to begin to use, until the kernel was told that it goes; then it is let go.
    held: Vec<Held>,
}

/// A disk that nobody has for himself alone but this process, if it can be opened.
struct Held {
    /// The kernel's name of it.
    name: String,
    #[cfg_attr(not(test), expect(dead_code, reason = "it is open as long as this is kept"))]
    open: Option<OwnedFd>,
}

/// The state of a path, or of a disk, that is not there.
const ABSENT: &str = "absent";

/// How far a path is, in the kernel's word for it.
#[derive(Serialize)]
struct PathState {
    address: String,
    state: String,
}

/// What makes disks one way. Errors are sentences for people.
trait Maker {
    /// Makes the disk, or what it lacks.
    fn make(&self, host: &Host, disk: &Disk) -> Result<Made, Unmade>;
    /// Takes away what a try that failed has added, and nothing else: others may have been here before.
    fn undo(&self, host: &Host, disk: &Disk, added: &[String]) -> Result<(), String>;
    /// The kernel's name of the disk, if it is there.
    fn find(&self, host: &Host, disk: &Disk) -> Option<String>;
    /// All disks that go when this one is taken away, but for what `others` need that stay.
    fn going(&self, host: &Host, disk: &Disk, _others: &[Disk]) -> Vec<String> {
        self.find(host, disk).into_iter().collect()
    }
    /// Whether a try that was interrupted may have left something.
    fn may_have_left(&self, host: &Host, disk: &Disk) -> bool {
        let is_there = |path: &PathState| path.state != ABSENT;
        self.find(host, disk).is_some() || self.paths(host, disk).iter().any(is_there)
    }
    /// What the disk is reached by.
    fn paths(&self, host: &Host, disk: &Disk) -> Vec<PathState>;
    /// Whether a disk that is there lacks something that can be had now.
    fn lacks(&self, _host: &Host, _disk: &Disk) -> bool {
        false
    }
    /// Whether requests to a disk that is there come to their end, or why not.
    fn answers(&self, _host: &Host, _disk: &Disk) -> Result<(), String> {
        Ok(())
    }
    /// Gives a disk that is there what requests to it wait for, as they do if it `is_broken`, and may otherwise. The list may change
    /// meanwhile.
    fn mend(&self, _host: &Host, _disk: &Disk, _is_broken: bool) -> Result<(), String> {
        Ok(())
    }
    /// Takes it away, or what is left of it, but for what others need.
    fn unmake(&self, host: &Host, disk: &Disk, going: Going) -> Result<(), String>;
}

/// The host, what makes disks there, and the directory where it is written down.
struct Here {
    host: Host,
    ublk: Box<dyn Maker>,
    nvme: Box<dyn Maker>,
    nbd: Box<dyn Maker>,
    directory: PathBuf,
}

/// What has become of a wish to attach.
#[derive(Debug, Serialize)]
struct Answer {
    version: u16,
    /// The name that stays.
    device: PathBuf,
    /// The kernel's.
    disk: PathBuf,
    via: Way,
    why: String,
    /// It was attached before.
    already: bool,
    /// What was tried first, and why it was not taken.
    tried: Vec<Tried>,
}

#[derive(Debug, Serialize)]
struct Tried {
    via: Way,
    why: String,
}

/// Between two tries to attach, for who waits for that.
const TRY_INTERVAL: Duration = Duration::from_secs(1);

/// What may be otherwise a moment later, as nodes and the network start.
const PASSING: [Kind; 6] = [NO_CLUSTER, NO_WAY, PROTOCOL, RESOURCE_ABSENT, TIMED_OUT, UNREACHED];

/// Does what was asked.
pub(crate) fn run(global: &Global, command: &Device) -> Result<(), Problem> {
    let style = Style::of(global);
    let here = Here::of(global)?;
    match command {
        Device::Attach(wanted) => attach(&here, global, style, wanted),
        Device::Detach { target, force, remember } => {
            let after = if *remember { State::Resting } else { State::Leaving };
            let stays = here.detach(target, *force, after)?;
            say_detached(style, target, stays.as_deref())
        }
        Device::List => list(&here, style),
        Device::LinkOf { disk } => link_of(&here, disk),
        Device::Keep { while_attached } => keep::keep(&here, *while_attached),
    }
}

fn attach(here: &Here, global: &Global, style: Style, wanted: &Attach) -> Result<(), Problem> {
    let Some(target) = &wanted.target else {
        // Those that are there need it, whether others are or not.
        let outcome = attach_all(here, style);
        keep::ensure(here);
        return outcome;
    };
    if let Some(place) = wanted.from.iter().find(|place| !place.is_of(target)) {
        return Err(Problem::new(USAGE, format!("--from: {place} is no place of {target}")));
    }
    let keys = wanted.nvme_keys.as_deref().map(|path| here.keys_at(path)).transpose()?;
    let answer = patiently(wanted.wait, || {
        here.attach(target, wanted.via, || {
            let disk = match wanted.from.as_slice() {
                [] => ask(global, target)?,
                places => disk_at(target, places),
            };
            Ok(Disk { keys: keys.clone(), ..disk })
        })
    })?;
    if answer.via != Way::Ublk {
        keep::ensure(here);
    }
    if style.form == Form::Json {
        return say_json(&answer);
    }
    say(&answer.in_words(target))
}

/// Tries it again for so long, as far as that may help. What it waits for is said once.
fn patiently<T>(
    wait: Duration,
    mut attempt: impl FnMut() -> Result<T, Problem>,
) -> Result<T, Problem> {
    let begun = Instant::now();
    let mut said = false;
    loop {
        match attempt() {
            Err(problem)
                if begun.elapsed() < wait && PASSING.iter().any(|kind| problem.is_kind(*kind)) =>
            {
                if !std::mem::replace(&mut said, true) {
                    eprintln!("{}; trying for {} s", problem.message, wait.as_secs());
                }
                thread::sleep(TRY_INTERVAL.min(wait.saturating_sub(begun.elapsed())));
            }
            done => return done,
        }
    }
}

/// `stays`: the disk, where other volumes need what it is reached by.
fn say_detached(style: Style, target: &Target, stays: Option<&str>) -> Result<(), Problem> {
    let stays = stays.map(|name| format!("/dev/{name}"));
    match (style.form, stays) {
        (Form::Json, stays) => {
            let detached = target.to_string();
            say_json(&json!({ "version": 1, "detached": detached, "stays": stays }))
        }
        (Form::Human, None) => say(&format!("{target}: no disk of this host any more.\n")),
        (Form::Human, Some(name)) => say(&format!(
            "{target}: not attached any more; {name} goes with the last volume of the resource.\n"
        )),
    }
}

/// What is written down is made again; what cannot be does not hinder the rest.
fn attach_all(here: &Here, style: Style) -> Result<(), Problem> {
    let disks = Attached::read(&here.directory)?.disks;
    let (mut answers, mut failed) = (Vec::new(), None);
    for disk in disks {
        let target = disk.target();
        let done = match disk.state {
            State::Leaving => here.leave(&target).map(|()| None),
            State::Attached | State::Making | State::Resting => here.again(&target, disk.state),
        };
        match done {
            Ok(answer) => answers.extend(answer.map(|answer| (target, answer))),
            Err(problem) => {
                // The last is said by who ends this program.
                if let Some(earlier) = failed.replace(problem) {
                    eprintln!("{earlier}");
                }
            }
        }
    }
    if let Some(problem) = failed {
        return Err(problem);
    }
    if style.form == Form::Json {
        let answers: Vec<&Answer> = answers.iter().map(|(_, answer)| answer).collect();
        return say_json(&json!({ "version": 1, "disks": answers }));
    }
    say(&answers.iter().map(|(target, answer)| answer.in_words(target)).collect::<String>())
}

impl Answer {
    fn in_words(&self, target: &Target) -> String {
        let (device, disk, via) = (self.device.display(), self.disk.display(), self.via.name());
        let already = if self.already { "was attached already, and is " } else { "" };
        let mut text = format!("{target}: {already}{device} ({disk}), by {via}: {}\n", self.why);
        for Tried { via, why } in &self.tried {
            text.push_str(&format!("  not by {}: {why}\n", via.name()));
        }
        text
    }
}

/// A volume at places that were named.
fn disk_at(target: &Target, places: &[Place]) -> Disk {
    Disk {
        resource: target.resource.clone(),
        volume: target.volume,
        via: Way::Nvme,
        id: None,
        places: places.iter().map(Place::to_string).collect(),
        keys: None,
        admin: Vec::new(),
        state: State::Attached,
    }
}

/// A volume where nodes say that it is.
fn ask(global: &Global, target: &Target) -> Result<Disk, Problem> {
    let name = &target.resource;
    let cluster = Cluster::open(global)?;
    let (cluster, views) = Views::one(&cluster, name)?;
    let id = views.require(name)?.id.clone();
    let all = views.all_of(name).iter().flat_map(|(_, view)| &view.volumes);
    let volumes: Vec<_> = all.filter(|volume| volume.volume == target.volume).collect();
    if volumes.is_empty() {
        return Err(Problem::new(VOLUME_ABSENT, format!("{name} has no volume {}", target.volume)));
    }
    // Those of the nodes that are asked come first, by NVMe/TCP as by NBD.
    let own = volumes.iter().flat_map(|volume| volume.nvme.iter().chain(&volume.nbd));
    let urls = own.chain(volumes.iter().flat_map(|volume| &volume.elsewhere));
    let mut places: Vec<Place> = Vec::new();
    // What a kernel cannot use, as NBD inside TLS, is left out.
    for place in urls.filter_map(|url| parse_place(url).ok()) {
        if !places.contains(&place) {
            places.push(place);
        }
    }
    let admin = cluster.nodes.iter().map(|node| node.socket.clone()).collect();
    Ok(Disk { id: Some(id), admin, ..disk_at(target, &places) })
}

impl Here {
    fn of(global: &Global) -> Result<Here, Problem> {
        // What only one cluster's directory names goes with that directory.
        let directory = match &global.dir {
            Some(_) if global.admin.is_empty() => Cluster::open_dev(global)?.directory,
            _ => PathBuf::from(USUAL),
        };
        Ok(Here {
            host: Host {
                root: PathBuf::from("/"),
                limit: KERNEL_LIMIT,
                number_of: openers::number_of,
            },
            ublk: Box::new(Ublk::of_the_nodes()),
            nvme: Box::new(Nvme::of_the_kernel()),
            nbd: Box::new(Nbd::default()),
            directory,
        })
    }

    /// A table with this host's secret or key, if it is one.
    fn keys_at(&self, path: &Path) -> Result<PathBuf, Problem> {
        let path = std::path::absolute(path).map_err(|error| Problem::file(path, &error))?;
        let read = nvme::identity(&self.host).and_then(|(nqn, _)| Keys::read(&path, &nqn));
        read.map(|_| path).map_err(|why| Problem::new(NVME_KEYS, why))
    }

    fn maker(&self, way: Way) -> &dyn Maker {
        match way {
            Way::Ublk => self.ublk.as_ref(),
            Way::Nvme => self.nvme.as_ref(),
            Way::Nbd => self.nbd.as_ref(),
        }
    }

    /// Makes a disk of a volume, or completes the one that is written down. `look` says what is known of the volume.
    fn attach(
        &self,
        target: &Target,
        via: Via,
        look: impl FnOnce() -> Result<Disk, Problem>,
    ) -> Result<Answer, Problem> {
        let mut attached = Attached::open(&self.directory)?;
        let wanted = match attached.find(target).cloned() {
            None => look()?,
            // Where the first try was interrupted before it left anything all ways are open.
            Some(old)
                if old.state == State::Making
                    && !self.maker(old.via).may_have_left(&self.host, &old) =>
            {
                look().unwrap_or(old)
            }
            Some(old) => return self.complete(&mut attached, old, via, look),
        };
        let (ways, already) = self.ways_of(&wanted, via)?;
        let mut tried = Vec::new();
        for way in ways {
            let disk = Disk { via: way, state: State::Making, ..wanted.clone() };
            attached.put(&disk)?;
            match self.maker(way).make(&self.host, &disk) {
                Ok(made) => return self.answer(&mut attached, disk, made, tried, already),
                Err(Unmade { why, left: Left::Unknown }) => {
                    let message = format!(
                        "{target}: {}: {why}; whether there is a disk now is not known, so it stays written down: `attach` \
                         completes it, `detach` takes it away",
                        way.name()
                    );
                    return Err(Problem::new(NO_WAY, message));
                }
                Err(Unmade { why, left }) => {
                    tried.push(Tried { via: way, why });
                    self.give_up(&mut attached, &disk, left)?;
                }
            }
        }
        let each = tried.iter().map(|one| format!("{}: {}", one.via.name(), one.why));
        let message = format!("{target}: {}", each.collect::<Vec<_>>().join("; "));
        Err(Problem::new(NO_WAY, message))
    }

    /// The ways to try for a volume that is not written down, and whether its disk is there already: the list may have been lost.
    fn ways_of(&self, wanted: &Disk, via: Via) -> Result<(Vec<Way>, bool), Problem> {
        let (ways, target) = (ways(via), wanted.target());
        let Some(other) = self.host.linked(&target).filter(|disk| self.is_there(disk)) else {
            return Ok((ways, false));
        };
        let is_its = |way: &Way| {
            let disk = Disk { via: *way, ..wanted.clone() };
            way.makes(&other) && self.maker(*way).find(&self.host, &disk).as_ref() == Some(&other)
        };
        if let Some(way) = ways.into_iter().find(is_its) {
            return Ok((vec![way], true));
        }
        let link = self.host.link_of(&target);
        let message = format!("{} leads to /dev/{other} already", link.display());
        Err(Problem::new(ATTACHED_OTHERWISE, message))
    }

    /// The same for what is written down, if it is wanted as it was before; asks no node where it is.
    fn again(&self, target: &Target, state: State) -> Result<Option<Answer>, Problem> {
        let mut attached = Attached::open(&self.directory)?;
        let Some(old) = attached.find(target).filter(|disk| disk.state == state).cloned() else {
            return Ok(None);
        };
        self.complete(&mut attached, old.clone(), Via::Auto, || Ok(old)).map(Some)
    }

    /// What is written down is made whole: after a start of the host, or a crash, or when more nodes are there.
    fn complete(
        &self,
        attached: &mut Attached,
        old: Disk,
        via: Via,
        look: impl FnOnce() -> Result<Disk, Problem>,
    ) -> Result<Answer, Problem> {
        let (target, is_first) = (old.target(), old.state == State::Making);
        if !ways(via).contains(&old.via) {
            let message = format!("{target} is attached by {}", old.via.name());
            return Err(Problem::new(ATTACHED_OTHERWISE, message));
        }
        // Nodes that are not there hinder nothing: where it is, is known.
        let disk = match look() {
            Ok(new) => {
                if let (Some(is), Some(was)) = (&new.id, &old.id)
                    && is != was
                {
                    let message = format!(
                        "{target} is attached, of a resource {was} that had the name before {is}"
                    );
                    return Err(Problem::new(ATTACHED_OTHERWISE, message));
                }
                if let (Some(is), Some(was)) = (new.nvme().first(), old.nvme().first())
                    && is.subsystem != was.subsystem
                {
                    let (is, was) = (&is.subsystem, &was.subsystem);
                    let message = format!("{target} is attached, of {was}, and not of {is}");
                    return Err(Problem::new(ATTACHED_OTHERWISE, message));
                }
                old.with_places_of(&new)
            }
            Err(_) => Disk { state: State::Attached, ..old },
        };
        // One that never was may still be made another way.
        let wanted = if is_first { State::Making } else { State::Attached };
        attached.put(&Disk { state: wanted, ..disk.clone() })?;
        let maker = self.maker(disk.via);
        let was_there = maker.find(&self.host, &disk).is_some();
        match maker.make(&self.host, &disk) {
            Ok(made) => self.answer(attached, disk, made, Vec::new(), was_there),
            Err(unmade) => Err(self.incomplete(&disk, unmade)),
        }
    }

    /// What a try to complete a disk has added is undone, and a link that leads to what is none of its disks goes.
    fn incomplete(&self, disk: &Disk, Unmade { why, left }: Unmade) -> Problem {
        let (target, maker) = (disk.target(), self.maker(disk.via));
        let mut message = format!("{target}: {}: {why}", disk.via.name());
        if let Left::Added(added) = left
            && let Err(why) = maker.undo(&self.host, disk, &added)
        {
            message.push_str(&format!("; {why}"));
        }
        if maker.find(&self.host, disk).is_none()
            && let Err(error) = self.host.unlink(&target)
        {
            message.push_str(&format!("; {}: {error}", self.host.link_of(&target).display()));
        }
        Problem::new(NO_WAY, message)
    }

    fn answer(
        &self,
        attached: &mut Attached,
        disk: Disk,
        made: Made,
        tried: Vec<Tried>,
        already: bool,
    ) -> Result<Answer, Problem> {
        let (target, link, via) = (disk.target(), self.host.link_of(&disk.target()), disk.via);
        // Of places that were named nobody said before whose they are.
        let id = disk.id.clone().or(made.id.map(|id| format!("{id:016x}")));
        attached.put(&Disk { id, state: State::Attached, ..disk })?;
        let linked = self.host.link(&target, &made.disk);
        linked.map_err(|error| Problem::file(&link, &error))?;
        Ok(Answer {
            version: 1,
            device: link,
            disk: self.host.at(format!("dev/{}", made.disk)),
            via,
            why: made.why,
            already,
            tried,
        })
    }

    /// Takes away what a way that failed has left, and forgets it.
    fn give_up(&self, attached: &mut Attached, disk: &Disk, left: Left) -> Result<(), Problem> {
        let target = disk.target();
        if let Left::Added(added) = left {
            let undone = self.maker(disk.via).undo(&self.host, disk, &added);
            undone.map_err(|why| Problem::new(FILE, format!("{target}: {why}")))?;
        }
        attached.forget(&target)
    }

    fn is_there(&self, disk: &str) -> bool {
        self.host.at(format!("sys/block/{disk}")).exists()
    }

    /// Takes hold of every disk that goes with a volume's, if nobody uses it and it answers; what was written to it is sent. To open
    /// one reads where partitions are sought, and so may wait for a new connection, or until somebody takes it away by force: the
    /// list is not locked meanwhile, since both may need it.
    fn hold(&self, target: &Target, only: Option<State>) -> Result<Vec<Held>, Problem> {
        let attached = Attached::read(&self.directory)?;
        let Some(disk) = attached.require(target, only)? else { return Ok(Vec::new()) };
        let maker = self.maker(disk.via);
        let going = maker.going(&self.host, disk, &attached.others(target));
        let Some(first) = going.first() else { return Ok(Vec::new()) };
        let in_use = |user: String| Problem::new(DISK_IN_USE, format!("{target}: {user}"));
        if let Some(user) = going.iter().find_map(|name| self.host.user_of(name)) {
            return Err(in_use(user));
        }
        maker
            .answers(&self.host, disk)
            .map_err(|why| in_use(format!("whether /dev/{first} is in use is not known: {why}")))?;
        if let Some(user) = self.host.kept_open(&going) {
            return Err(in_use(user));
        }
        let hold = |name: String| {
            let open = self.host.hold(&name).map_err(in_use)?;
            Ok(Held { name, open })
        };
        going.into_iter().map(hold).collect()
    }

    /// Takes a disk away; `after` says whether it is forgotten then. The kernel's name of the disk, if it stays: others need it.
    fn detach(
        &self,
        target: &Target,
        force: bool,
        after: State,
    ) -> Result<Option<String>, Problem> {
        self.take_away(target, force, after, None)
    }

    /// Completes what took a disk away and was interrupted, unless the disk is wanted again by now.
    fn leave(&self, target: &Target) -> Result<(), Problem> {
        self.take_away(target, false, State::Leaving, Some(State::Leaving)).map(drop)
    }

    /// `only`: in that state, else nothing is done.
    fn take_away(
        &self,
        target: &Target,
        force: bool,
        after: State,
        only: Option<State>,
    ) -> Result<Option<String>, Problem> {
        for _ in 0..TRIES {
            let held = if force { Vec::new() } else { self.hold(target, only)? };
            let mut attached = Attached::open(&self.directory)?;
            let Some(disk) = attached.require(target, only)?.cloned() else { return Ok(None) };
            let others = attached.others(target);
            let is_held = |name: &String| force || held.iter().any(|one| one.name == *name);
            // From now on nobody mounts them. What goes with the disk may be something else by now: paths come and go.
            if self.maker(disk.via).going(&self.host, &disk, &others).iter().all(is_held) {
                let going = Going { name: None, others, force, held };
                return self.take_held(&mut attached, &disk, going, after);
            }
        }
        let message = format!("{target}: what is attached changed meanwhile: try again");
        Err(Problem::new(DISK_IN_USE, message))
    }

    /// Takes a disk away of which all that goes is held, or is to be taken by force.
    fn take_held(
        &self,
        attached: &mut Attached,
        disk: &Disk,
        going: Going,
        after: State,
    ) -> Result<Option<String>, Problem> {
        let (target, maker) = (&disk.target(), self.maker(disk.via));
        // Also the link tells of a disk.
        let name = maker.find(&self.host, disk);
        attached.put(&Disk { state: after, ..disk.clone() })?;
        let link = self.host.link_of(target);
        self.host.unlink(target).map_err(|error| Problem::file(&link, &error))?;
        let going = Going { name: name.clone(), ..going };
        if let Err(why) = maker.unmake(&self.host, disk, going) {
            if let Some(name) = name.filter(|name| self.is_there(name)) {
                let linked = self.host.link(target, &name);
                linked.map_err(|error| Problem::file(&link, &error))?;
            }
            return Err(Problem::new(FILE, format!("{target}: {why}")));
        }
        if after == State::Leaving {
            attached.forget(target)?;
        }
        Ok(maker.find(&self.host, disk))
    }
}

impl Disk {
    /// The same disk, with the places that are known now besides those that were.
    fn with_places_of(&self, new: &Disk) -> Disk {
        let keys = new.keys.clone().or(self.keys.clone());
        let mut disk = Disk { state: State::Attached, keys, ..self.clone() };
        disk.places.extend(new.places.iter().filter(|place| !self.places.contains(place)).cloned());
        disk.admin.extend(new.admin.iter().filter(|path| !self.admin.contains(path)).cloned());
        disk
    }
}

/// The ways to try, in order.
fn ways(via: Via) -> Vec<Way> {
    match via {
        Via::Auto => Way::ALL.to_vec(),
        Via::Ublk => vec![Way::Ublk],
        Via::Nvme => vec![Way::Nvme],
        Via::Nbd => vec![Way::Nbd],
    }
}

/// Asked for each disk that comes or changes, while it does.
fn link_of(here: &Here, name: &str) -> Result<(), Problem> {
    let Some(target) = here.whose(name)? else {
        return Err(Problem::new(NOT_ATTACHED, format!("no volume is attached as {name}")));
    };
    say(&format!("lockstep/by-res/{target}\n"))
}

/// A line of the list.
#[derive(Serialize)]
struct ListJson {
    resource: String,
    volume: u16,
    via: Way,
    device: PathBuf,
    /// The kernel's name; null: it is not there.
    disk: Option<PathBuf>,
    /// attached, absent, making, resting or leaving
    state: &'static str,
    paths: Vec<PathState>,
}

fn list(here: &Here, style: Style) -> Result<(), Problem> {
    let attached = Attached::read(&here.directory)?;
    let rows: Vec<ListJson> = attached.disks.iter().map(|disk| here.row(disk)).collect();
    if style.form == Form::Json {
        return say_json(&json!({ "version": 1, "disks": rows }));
    }
    if rows.is_empty() {
        return say("No volume is attached to this host.\n");
    }
    let cells = rows.iter().map(|row| {
        let tone = if row.state == "attached" { Tone::Good } else { Tone::Bad };
        let disk = row.disk.as_ref().map_or("-".to_owned(), |disk| disk.display().to_string());
        let paths = row.paths.iter().map(|path| format!("{} {}", path.address, path.state));
        vec![
            Cell(format!("{}/{}", row.resource, row.volume), Tone::Strong),
            Cell::plain(row.via.name()),
            Cell(row.state.to_owned(), tone),
            Cell::plain(disk),
            Cell::plain(paths.collect::<Vec<_>>().join(", ")),
        ]
    });
    let cells: Vec<Vec<Cell>> = cells.collect();
    say(&style.table(&["VOLUME", "BY", "STATE", "DISK", "PATHS"], &cells))
}

impl Here {
    /// The volume that is attached as this disk. Only what makes disks of such names is asked: others may take long to answer.
    fn whose(&self, name: &str) -> Result<Option<Target>, Problem> {
        let disks = Attached::read(&self.directory)?.disks;
        let is_it = |disk: &&Disk| {
            disk.is_wanted()
                && disk.via.makes(name)
                && self.maker(disk.via).find(&self.host, disk).as_deref() == Some(name)
        };
        Ok(disks.iter().find(is_it).map(Disk::target))
    }

    fn row(&self, disk: &Disk) -> ListJson {
        let maker = self.maker(disk.via);
        let found = maker.find(&self.host, disk);
        ListJson {
            resource: disk.resource.clone(),
            volume: disk.volume,
            via: disk.via,
            device: self.host.link_of(&disk.target()),
            state: match (&found, disk.state) {
                (_, State::Leaving) => "leaving",
                (_, State::Making) => "making",
                // It may be there all the same, for another volume of the resource.
                (_, State::Resting) => "resting",
                (Some(_), State::Attached) => "attached",
                (None, State::Attached) => ABSENT,
            },
            disk: found.map(|name| self.host.at(format!("dev/{name}"))),
            paths: maker.paths(&self.host, disk),
        }
    }
}
