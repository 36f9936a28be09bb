//! Disks by the kernel's ublk driver: the node of this host makes them and serves them itself.
//!
//! Always: only a node that runs under this very kernel is asked, for its disk is this host's: an admin socket may lead to
//! another machine. A disk is found also while its node is away, by the link that leads to it; it is then not said to be gone.
//! A node that does not answer may have made one, or make it at its next start: where one may have been asked before, nobody else is
//! asked for a second.

use std::path::Path;
use std::thread;

use wire::admin::{Answer, Command, HostDisk, codes};

use super::attached::{Disk, State};
use super::host::Host;
use super::{Going, Held, Left, Made, Maker, PathState, Unmade};
use crate::admin::{Node, unexpected};
use crate::problem::{PROTOCOL, Problem, TIMED_OUT, UNREACHED};

/// Where the kernel names itself, anew at each of its starts.
const BOOT: &str = "proc/sys/kernel/random/boot_id";

/// The kernel's driver, and the nodes that speak to it.
pub(super) struct Ublk {
    /// Asks the node with this admin socket.
    pub(super) ask: fn(&Node, Command) -> Result<Answer, Problem>,
}

/// A node of this host, and the disks that it makes.
struct Local {
    node: Node,
    disks: Vec<HostDisk>,
}

/// What came of asking all that may be asked.
#[derive(Default)]
struct Asked {
    locals: Vec<Local>,
    /// Why not of the others: a sentence for each.
    others: Vec<String>,
    /// One of them has not answered.
    is_silent: bool,
}

impl Local {
    fn disk_of(&self, disk: &Disk) -> Option<&HostDisk> {
        self.disks.iter().find(|one| one.resource == disk.resource && one.volume == disk.volume)
    }
}

impl Ublk {
    pub(super) fn of_the_nodes() -> Ublk {
        Ublk { ask: |node, command| node.ask(command) }
    }

    /// The nodes of this host among those that may be asked; of the others why not.
    fn locals(&self, host: &Host, disk: &Disk) -> Asked {
        let boot: String = host.text(BOOT).unwrap_or_default();
        let Asked { mut locals, mut others, mut is_silent } = Asked::default();
        for socket in &disk.admin {
            let node = node_at(socket, disk);
            match (self.ask)(&node, Command::UblkList {}) {
                Ok(Answer::HostDisks { host, disks }) if host == boot => {
                    locals.push(Local { node, disks });
                }
                Ok(Answer::HostDisks { .. }) => {
                    others.push(format!("{}: a node of another host", socket.display()));
                }
                Ok(other) => others.push(unexpected(&node, &other).message),
                Err(problem) => {
                    is_silent = true;
                    others.push(problem.message);
                }
            }
        }
        // Who has it already is asked first.
        locals.sort_by_key(|local| local.disk_of(disk).is_none());
        Asked { locals, others, is_silent }
    }

    /// Has a node take the disk away. Drivers before Linux 6.9 wait at last for whoever has it open: it is let go as soon as nobody
    /// else can find it.
    fn end(
        &self,
        host: &Host,
        local: &Local,
        disk: &Disk,
        held: Vec<Held>,
    ) -> Result<Answer, Problem> {
        let name = local.disk_of(disk).map(name_of).unwrap_or_default();
        let (resource, volume) = (disk.resource.clone(), disk.volume);
        thread::scope(|scope| {
            let ask = move || (self.ask)(&local.node, Command::UblkDetach { resource, volume });
            let asked = scope.spawn(ask);
            host.wait_for(|| (asked.is_finished() || !is_there(host, &name)).then_some(()));
            drop(held);
            asked.join().expect("it does not panic")
        })
    }
}

impl Maker for Ublk {
    fn make(&self, host: &Host, disk: &Disk) -> Result<Made, Unmade> {
        let Asked { locals, others: mut refused, is_silent } = self.locals(host, disk);
        let is_made = locals.iter().any(|local| local.disk_of(disk).is_some());
        // Of one that is made for the first time at most a link tells, where the list was lost.
        let maybe_made = disk.state != State::Making || self.find(host, disk).is_some();
        if is_silent && !is_made && maybe_made {
            let why = "whether a node has the disk is not known";
            return Err(Unmade {
                why: format!("{why}: {}", refused.join("; ")),
                left: Left::Unknown,
            });
        }
        if locals.is_empty() {
            refused.insert(0, "no node of this host was asked, which would serve it".to_owned());
            return Err(refused.join("; ").into());
        }
        host.load("ublk_drv", "dev/ublk-control")?;
        for local in &locals {
            let (resource, volume) = (disk.resource.clone(), disk.volume);
            match (self.ask)(&local.node, Command::UblkAttach { resource, volume }) {
                Ok(Answer::HostDisk(made)) => {
                    let name = name_of(&made);
                    let there = || host.at(format!("dev/{name}")).exists().then_some(());
                    if host.wait_for(there).is_none() {
                        let had = local.disk_of(disk).is_some();
                        let left =
                            if had { Left::Nothing } else { Left::Added(vec![name.clone()]) };
                        return Err(Unmade { why: format!("there is no /dev/{name}"), left });
                    }
                    let why = format!("the node of {} serves it", local.node.socket.display());
                    return Ok(Made { disk: name, why, id: None });
                }
                Ok(other) => refused.push(unexpected(&local.node, &other).message),
                Err(problem) if is_refusal(&problem) => refused.push(problem.message),
                Err(problem) => {
                    return Err(Unmade { why: problem.message, left: Left::Unknown });
                }
            }
        }
        Err(refused.join("; ").into())
    }

    fn undo(&self, host: &Host, disk: &Disk, _: &[String]) -> Result<(), String> {
        self.unmake(host, disk, Going::default())
    }

    fn find(&self, host: &Host, disk: &Disk) -> Option<String> {
        self.going(host, disk, &[]).into_iter().next()
    }

    fn going(&self, host: &Host, disk: &Disk, _: &[Disk]) -> Vec<String> {
        let Asked { locals, is_silent, .. } = self.locals(host, disk);
        // More than one has it where a node was away when another was asked.
        let told = locals.iter().filter_map(|local| local.disk_of(disk)).map(name_of);
        let mut names: Vec<String> = told.collect();
        // While its node is away the link tells; if all say that they have none it is left over from another's disk.
        if names.is_empty() && is_silent {
            names.extend(host.linked(&disk.target()).filter(|name| name.starts_with("ublkb")));
        }
        names.retain(|name| is_there(host, name));
        names
    }

    fn may_have_left(&self, host: &Host, disk: &Disk) -> bool {
        let Asked { locals, is_silent, .. } = self.locals(host, disk);
        is_silent || locals.iter().any(|local| local.disk_of(disk).is_some())
    }

    fn paths(&self, host: &Host, disk: &Disk) -> Vec<PathState> {
        let locals = self.locals(host, disk).locals;
        let state = |local: &Local| {
            let state = if local.disk_of(disk)?.ready { "live" } else { "waiting" };
            Some(PathState {
                address: local.node.socket.display().to_string(),
                state: state.to_owned(),
            })
        };
        locals.iter().filter_map(state).collect()
    }

    fn answers(&self, host: &Host, disk: &Disk) -> Result<(), String> {
        let Asked { locals, others, .. } = self.locals(host, disk);
        let having: Vec<_> = locals.iter().filter_map(|local| local.disk_of(disk)).collect();
        match having.first() {
            Some(_) if having.iter().all(|one| one.ready) => Ok(()),
            Some(_) => Err("its node does not serve it now".to_owned()),
            None => Err(format!("its node does not say that it has it: {}", others.join("; "))),
        }
    }

    fn unmake(&self, host: &Host, disk: &Disk, mut going: Going) -> Result<(), String> {
        let Asked { locals, others, is_silent } = self.locals(host, disk);
        let mut having = locals.iter().filter(|local| local.disk_of(disk).is_some()).peekable();
        if having.peek().is_none() {
            let others = others.join("; ");
            if let Some(name) = going.name.as_ref().filter(|name| is_there(host, name)) {
                return Err(format!("/dev/{name}: its node does not say that it has it: {others}"));
            }
            if is_silent && !going.force {
                let why = format!("whether a node makes the disk is not known: {others}");
                return Err(format!("{why} (to forget it all the same: --force)"));
            }
        }
        for local in having {
            let name = local.disk_of(disk).map(name_of);
            let is_its = |one: &mut Held| Some(&one.name) == name.as_ref();
            let held = going.held.extract_if(.., is_its).collect();
            match self.end(host, local, disk, held) {
                Ok(Answer::Done {}) => {}
                Ok(other) => return Err(unexpected(&local.node, &other).message),
                // Somebody was faster.
                Err(problem) if problem.code == codes::NO_DISK.code => {}
                Err(problem) => return Err(problem.message),
            }
        }
        Ok(())
    }
}

/// The node with this admin socket, asked about the disk's resource only.
fn node_at(socket: &Path, disk: &Disk) -> Node {
    let identity = disk.id.as_deref().and_then(|id| u64::from_str_radix(id, 16).ok());
    Node { name: socket.display().to_string(), socket: socket.to_owned(), identity }
}

/// Whether the node said no. Else it may have done what it was asked.
fn is_refusal(problem: &Problem) -> bool {
    ![UNREACHED, PROTOCOL, TIMED_OUT].iter().any(|kind| problem.is_kind(*kind))
}

fn is_there(host: &Host, name: &str) -> bool {
    host.at(format!("sys/block/{name}")).exists()
}

fn name_of(disk: &HostDisk) -> String {
    format!("ublkb{}", disk.number)
}
