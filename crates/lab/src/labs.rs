//! The list of labs. What each does is in a file of its family.

mod apart;
mod apps;
mod change;
mod disks;
mod endurance;
mod faults;
mod freeze;
mod kill;
mod modes;
mod net;
mod refuse;
mod scale;
mod tools;
mod upgrade;
mod vm;

use std::time::Duration;

use crate::bench::{Bench, Outcome};

/// How long a lab takes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Pace {
    /// Seconds: `make test` runs it.
    Quick,
    /// Up to a few minutes.
    Full,
    /// Only when asked for.
    Long,
}

impl Pace {
    /// For the list.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Pace::Quick => "quick",
            Pace::Full => "full",
            Pace::Long => "long",
        }
    }

    /// After this long it has failed.
    pub(crate) fn limit(self) -> Duration {
        match self {
            Pace::Quick => Duration::from_secs(300),
            Pace::Full => Duration::from_secs(600),
            Pace::Long => Duration::from_secs(3600),
        }
    }
}

/// A lab.
pub(crate) struct Lab {
    /// Its name; the word before the first `-` is its family.
    pub(crate) name: &'static str,
    /// What it shows, in a sentence.
    pub(crate) about: &'static str,
    /// How long it takes.
    pub(crate) pace: Pace,
    /// It.
    pub(crate) run: fn(&Bench) -> Outcome,
}

impl Lab {
    /// Whether packets are dropped in it, which cannot be done in this machine's own network.
    pub(crate) fn cuts_network(&self) -> bool {
        self.name.starts_with("net-") || self.name == "endurance"
    }

    /// Fetches what it needs from elsewhere, for which its own network has no way. Gives the reason if that cannot be had.
    pub(crate) fn prepare(&self) -> Outcome<Option<String>> {
        if self.name.starts_with("vm-") { vm::prepare(self.name) } else { Ok(None) }
    }
}

macro_rules! labs {
    ($($pace:ident $name:literal $run:expr, $about:literal;)*) => {
        &[$(Lab { name: $name, about: $about, pace: Pace::$pace, run: $run }),*]
    };
}

/// All of them, in the order in which they run.
pub(crate) const LABS: &[Lab] = labs! {
    Quick "load-clean" kill::clean, "Clients of three nodes at once, by NBD and NVMe/TCP, see one disk, and the copies are equal.";
    Quick "kill-primary-remote" kill::primary_remote, "The primary's node is killed; clients of the other nodes see no error.";
    Quick "kill-primary-local" kill::primary_local, "The primary's node is killed under its own clients, who go on elsewhere.";
    Quick "kill-replica" kill::replica, "A replica's node is killed; nobody sees an error, and it copies what it missed.";
    Quick "kill-witness" kill::witness, "A witness is killed, then a replica besides it; the volume waits and goes on.";
    Quick "kill-all" kill::everyone, "All nodes are killed at once, four times, and nothing acknowledged is lost.";
    Full  "kill-turns" kill::turns, "Nodes are killed one after the other, again and again, some twice in a row.";
    Full  "kill-rolling" kill::rolling, "Every node is restarted in good order under load; clients of the others see no error.";
    Quick "freeze-1s" freeze::one_second, "The primary's node stands still for a second.";
    Full  "freeze-5s" freeze::five_seconds, "The primary's node stands still for five seconds, and serves nothing stale when it wakes.";
    Full  "freeze-replica" freeze::replica, "A replica's node stands still for five seconds and is left behind.";
    Long  "freeze-60s" freeze::one_minute, "The primary's node stands still for a minute.";
    Quick "tools-nbd" tools::libnbd, "nbdinfo and nbdcopy, there and back, and the list of exports.";
    Quick "tools-qemu" tools::qemu, "qemu-img converts and compares, qemu-io writes patterns and reads them.";
    Quick "tools-fio" tools::fio, "fio writes at random in 4K, 64K and 1M, and verifies by CRC.";
    Quick "tools-filesystem" tools::filesystem, "mkfs.ext4, files and fsck through nbdfuse and a loop device; the primary is killed meanwhile.";
    Full  "tools-filesystem-512" tools::filesystem_512, "The same on a volume with blocks of 512 bytes.";
    Quick "disk-emptied" disks::emptied, "A replica's file is deleted while its node is down; it is recognised and copied anew.";
    Quick "disk-rolled-back" disks::rolled_back, "A replica's file is replaced by an older copy of itself; it is never trusted.";
    Full  "disk-truncated" disks::truncated, "A replica's file is cut short while its node is down; it is not used as it is.";
    Full  "disk-swapped" disks::swapped, "The files of two resources are exchanged on one node; both are refused by name.";
    Quick "disk-verify" disks::verify, "Bytes are flipped below a replica; verify finds and repairs them.";
    Full  "disk-verify-moves" disks::verify_moves, "The primary dies while replicas are compared; the next goes on where it was.";
    Quick "disk-rotten" disks::rotten, "With checksums, bytes flipped below primary and replica are never read, and mended.";
    Quick "faults-errors" faults::errors, "A replica's disk fails, then the primary's; clients see no error.";
    Full  "faults-stalls" faults::stalls, "A replica's disk hangs now and then; it is left behind, and comes back.";
    Quick "faults-hangs" faults::hangs, "A disk hangs without an error, the primary's and a replica's; it is left behind, clients see no error.";
    Quick "faults-power-one" faults::power_one, "Nodes whose disks forget what was not flushed lose their power, one after the other.";
    Quick "faults-power-all" faults::power_all, "All such nodes lose their power at once, under a load: what was flushed, or was to be stable, is there.";
    Quick "refuse-words" refuse::words, "Bad words on the command line end with the right code, name the thing and change nothing.";
    Quick "refuse-stores" refuse::stores, "Stores that are too small, in use, foreign or read-only are refused, and nothing is changed.";
    Quick "refuse-full" refuse::full, "A disk becomes full in use: the copy is left behind, named, and comes back.";
    Quick "refuse-strangers" refuse::strangers, "A node of another cluster, and one with a wrong certificate, are refused by name.";
    Quick "refuse-frames" refuse::frames, "Malformed bytes at every port close that connection and nothing else.";
    Quick "mode-devices" modes::devices, "Block devices as stores, metadata beside them or elsewhere: killed, resynced, compared.";
    Quick "mode-in-place" modes::in_place, "Metadata in files that are memory, written in place: one node after the other is killed, then all at once.";
    Quick "mode-thick" modes::thick, "A new volume on stores full of old bytes reads zeroes everywhere.";
    Quick "mode-odd" modes::odd, "Blocks of 512 bytes, two volumes, sizes that end within an extent.";
    Quick "mode-protocol-b" modes::protocol_b, "Protocol B through a fail-over, and options that change under load.";
    Quick "mode-plain-links" modes::plain_links, "Links without encryption work among themselves, say so, and never with encrypted ones.";
    Quick "mode-threads" modes::threads, "Nodes with one, two and four threads serve one volume; two of them are killed as primary.";
    Quick "mode-witness" modes::witness, "Two copies, a witness and a client's node: each of the first three is killed.";
    Quick "refuse-devices" modes::devices_refused, "Devices that are too small, missing, foreign, in use or of sectors too large are refused, and nothing is changed.";
    Quick "change-size" change::size, "A volume grows and shrinks in use.";
    Quick "change-size-devices" change::size_of_devices, "A volume on block devices shrinks, gets another copy, restarts, and grows back.";
    Quick "change-members" change::members, "A replica is added and one is removed under load.";
    Quick "change-members-unseen" change::members_unseen, "The same, the primary's copy is removed, and clients of those nodes see no error.";
    Quick "change-late" change::late, "Nodes that were away hear that a resource was made, a copy removed, a resource deleted.";
    Full  "change-primary" change::primary, "Every node is made primary in turn under load.";
    Quick "change-invalidate" change::invalidate, "A copy is declared worthless under load and made anew.";
    Quick "change-suspend" change::suspend, "Requests wait while a resource is suspended, and go on.";
    Quick "change-delete" change::delete, "A deleted resource leaves nothing behind, and its name is free again.";
    Quick "scale-one" scale::one, "A resource with one replica serves, and survives a kill.";
    Quick "scale-diskless" scale::diskless, "Clients of a node without a copy lose a replica's node and notice nothing.";
    Quick "vm-nvme-6.1" |bench| vm::nvme(bench, vm::LINUX_6_1), "Linux 6.1 in an emulated machine uses a volume by NVMe/TCP and several paths; the primary's node is killed.";
    Full  "vm-nvme-5.10" |bench| vm::nvme(bench, vm::LINUX_5_10), "The same with Linux 5.10.";
    Full  "vm-nvme-6.12" |bench| vm::nvme(bench, vm::LINUX_6_12), "The same with Linux 6.12.";
    Full  "vm-nvme-newest" |bench| vm::nvme(bench, vm::NEWEST), "The same with the newest kernel of Debian.";
    Full  "vm-frozen-6.12" |bench| vm::frozen(bench, vm::LINUX_6_12), "A node that forwards requests of Linux 6.12 stands still under fio, is given up, and goes on.";
    Full  "vm-frozen-6.1" |bench| vm::frozen(bench, vm::LINUX_6_1), "The same with Linux 6.1.";
    Full  "vm-frozen-5.10" |bench| vm::frozen(bench, vm::LINUX_5_10), "The same with Linux 5.10.";
    Full  "vm-frozen-newest" |bench| vm::frozen(bench, vm::NEWEST), "The same with the newest kernel of Debian.";
    Full  "vm-quorum-6.12" |bench| vm::quorum(bench, vm::LINUX_6_12), "Linux 6.12 uses a volume by NVMe/TCP while two of three nodes are killed, with several paths and without multipath.";
    Full  "vm-quorum-6.1" |bench| vm::quorum(bench, vm::LINUX_6_1), "The same with Linux 6.1.";
    Full  "vm-quorum-5.10" |bench| vm::quorum(bench, vm::LINUX_5_10), "The same with Linux 5.10.";
    Full  "vm-quorum-newest" |bench| vm::quorum(bench, vm::NEWEST), "The same with the newest kernel of Debian.";
    Full  "vm-attach-6.1" |bench| vm::attach(bench, vm::LINUX_6_1, vm::Has::All), "lockstep device makes disks of a volume by NVMe/TCP and NBD in an emulated machine with Linux 6.1; a node dies.";
    Full  "vm-attach-5.10" |bench| vm::attach(bench, vm::LINUX_5_10, vm::Has::None), "The same with Linux 5.10.";
    Full  "vm-attach-6.12" |bench| vm::attach(bench, vm::LINUX_6_12, vm::Has::All), "The same with Linux 6.12.";
    Full  "vm-attach-newest" |bench| vm::attach(bench, vm::NEWEST, vm::Has::All), "The same with the newest kernel of Debian.";
    Full  "vm-doctor-5.10" |bench| vm::doctor(bench, vm::LINUX_5_10, vm::Has::None, vm::Has::None), "lockstep doctor says what an emulated machine with Linux 5.10 has, before drivers are loaded and after.";
    Full  "vm-doctor-6.1" |bench| vm::doctor(bench, vm::LINUX_6_1, vm::Has::None, vm::Has::All), "The same with Linux 6.1.";
    Full  "vm-doctor-6.12" |bench| vm::doctor(bench, vm::LINUX_6_12, vm::Has::Still, vm::Has::All), "The same with Linux 6.12.";
    Full  "vm-doctor-newest" |bench| vm::doctor(bench, vm::NEWEST, vm::Has::All, vm::Has::All), "The same with the newest kernel of Debian.";
    Full  "vm-mapper-6.12" |bench| vm::mapper(bench, vm::LINUX_6_12, vm::By::Ublk), "Nodes in an emulated machine with Linux 6.12 have device mapper below their copies and above the disk; a copy's device stands still, and fails.";
    Full  "vm-mapper-6.1" |bench| vm::mapper(bench, vm::LINUX_6_1, vm::By::Nvme), "The same with Linux 6.1.";
    Full  "vm-mapper-newest" |bench| vm::mapper(bench, vm::NEWEST, vm::By::Ublk), "The same with the newest kernel of Debian.";
    Full  "vm-moved-6.12" |bench| vm::moved(bench, vm::LINUX_6_12), "A machine moves to another host while it works (QEMU's live migration), and the node it left is killed.";
    Full  "vm-moved-5.10" |bench| vm::moved(bench, vm::LINUX_5_10), "The same with Linux 5.10.";
    Full  "vm-moved-6.1" |bench| vm::moved(bench, vm::LINUX_6_1), "The same with Linux 6.1.";
    Full  "vm-moved-newest" |bench| vm::moved(bench, vm::NEWEST), "The same with the newest kernel of Debian.";
    Full  "vm-nodes-5.10" |bench| vm::nodes(bench, vm::LINUX_5_10), "Nodes in an emulated machine with Linux 5.10 serve a volume to their own host by NVMe/TCP; each is killed.";
    Full  "vm-nodes-6.1" |bench| vm::nodes(bench, vm::LINUX_6_1), "The same with Linux 6.1.";
    Full  "vm-nodes-6.12" |bench| vm::nodes(bench, vm::LINUX_6_12), "The same with Linux 6.12.";
    Full  "vm-nodes-newest" |bench| vm::nodes(bench, vm::NEWEST), "The same with the newest kernel of Debian.";
    Full  "vm-pmem-6.12" |bench| vm::pmem(bench, vm::LINUX_6_12, vm::By::Ublk), "Nodes in an emulated machine with Linux 6.12 keep metadata in persistent memory (DAX); the machine loses its power.";
    Full  "vm-pmem-6.1" |bench| vm::pmem(bench, vm::LINUX_6_1, vm::By::Nvme), "The same with Linux 6.1.";
    Full  "vm-pmem-newest" |bench| vm::pmem(bench, vm::NEWEST, vm::By::Ublk), "The same with the newest kernel of Debian.";
    Full  "vm-proof-6.12" |bench| vm::proof(bench, vm::LINUX_6_12, vm::Has::All), "Linux 6.12 proves who it is to nodes, and they to it; its secret is changed while it goes on.";
    Full  "vm-proof-5.10" |bench| vm::proof(bench, vm::LINUX_5_10, vm::Has::None), "Linux 5.10 is built without, and that is said.";
    Full  "vm-proof-6.1" |bench| vm::proof(bench, vm::LINUX_6_1, vm::Has::None), "Linux 6.1 is built without, and that is said.";
    Full  "vm-proof-newest" |bench| vm::proof(bench, vm::NEWEST, vm::Has::All), "The same with the newest kernel of Debian.";
    Full  "vm-reserve-6.12" |bench| vm::reserve(bench, vm::LINUX_6_12), "Two hosts of Linux 6.12 keep each other from a volume by nvme resv-*; the primary's node is killed.";
    Full  "vm-reserve-5.10" |bench| vm::reserve(bench, vm::LINUX_5_10), "The same with Linux 5.10.";
    Full  "vm-reserve-6.1" |bench| vm::reserve(bench, vm::LINUX_6_1), "The same with Linux 6.1.";
    Full  "vm-reserve-newest" |bench| vm::reserve(bench, vm::NEWEST), "The same with the newest kernel of Debian.";
    Full  "vm-systemd-6.12" |bench| vm::systemd(bench, vm::LINUX_6_12, vm::By::Ublk), "systemd starts a machine with Linux 6.12, its node, and file systems on volumes; it is restarted, and loses its power.";
    Full  "vm-systemd-6.1" |bench| vm::systemd(bench, vm::LINUX_6_1, vm::By::Nvme), "The same with Linux 6.1.";
    Full  "vm-systemd-newest" |bench| vm::systemd(bench, vm::NEWEST, vm::By::Ublk), "The same with the newest kernel of Debian.";
    Full  "vm-tls-6.12" |bench| vm::tls(bench, vm::LINUX_6_12, vm::Has::All), "Linux 6.12 speaks TLS with nodes by a key, which is changed while it goes on.";
    Full  "vm-tls-5.10" |bench| vm::tls(bench, vm::LINUX_5_10, vm::Has::None), "Linux 5.10 is built without, and that is said.";
    Full  "vm-tls-6.1" |bench| vm::tls(bench, vm::LINUX_6_1, vm::Has::None), "Linux 6.1 is built without, and that is said.";
    Full  "vm-tls-newest" |bench| vm::tls(bench, vm::NEWEST, vm::Has::All), "The same with the newest kernel of Debian.";
    Full  "vm-ublk-6.12" |bench| vm::ublk(bench, vm::LINUX_6_12, vm::Has::Still), "Nodes in an emulated machine with Linux 6.12 make a disk of a volume; each is killed while it is used.";
    Full  "vm-ublk-5.10" |bench| vm::ublk(bench, vm::LINUX_5_10, vm::Has::None), "A node in an emulated machine with Linux 5.10, which has no ublk, says so.";
    Full  "vm-ublk-6.1" |bench| vm::ublk(bench, vm::LINUX_6_1, vm::Has::None), "A node in an emulated machine with Linux 6.1, which has no ublk, says so.";
    Full  "vm-ublk-newest" |bench| vm::ublk(bench, vm::NEWEST, vm::Has::All), "The same with the newest kernel of Debian.";
    Full  "vm-late-6.12" |bench| vm::late(bench, vm::LINUX_6_12), "A node whose disk is by ublk is killed while what it forwarded lies at a primary that stands still, with Linux 6.12.";
    Full  "vm-late-newest" |bench| vm::late(bench, vm::NEWEST), "The same with the newest kernel of Debian.";
    Full  "vm-vhost-6.12" |bench| vm::vhost(bench, vm::LINUX_6_12), "A machine with Linux 6.12 has a volume by vhost-user; the node that serves it is killed and stopped, and the volume grows.";
    Full  "vm-vhost-5.10" |bench| vm::vhost(bench, vm::LINUX_5_10), "The same with Linux 5.10.";
    Full  "vm-vhost-6.1" |bench| vm::vhost(bench, vm::LINUX_6_1), "The same with Linux 6.1.";
    Full  "vm-vhost-newest" |bench| vm::vhost(bench, vm::NEWEST), "The same with the newest kernel of Debian.";
    Full  "vm-xfs-6.12" |bench| vm::xfs(bench, vm::LINUX_6_12), "xfs of Linux 6.12 on a volume by NVMe/TCP and several paths: all nodes are killed at once under it, twice, and come back.";
    Full  "vm-xfs-6.1" |bench| vm::xfs(bench, vm::LINUX_6_1), "The same with Linux 6.1.";
    Full  "vm-xfs-5.10" |bench| vm::xfs(bench, vm::LINUX_5_10), "The same with Linux 5.10.";
    Full  "vm-xfs-newest" |bench| vm::xfs(bench, vm::NEWEST), "The same with the newest kernel of Debian.";
    Full  "app-ext4" apps::ext4, "Synced files on ext4 survive a killed primary without an error, and a power cut of all nodes.";
    Full  "app-xfs" apps::xfs, "The same on xfs.";
    Full  "app-btrfs" apps::btrfs, "The same on btrfs.";
    Full  "app-mariadb" apps::mariadb, "MariaDB under sysbench: the same, for every committed row.";
    Full  "app-postgresql" apps::postgresql, "PostgreSQL under pgbench: the same.";
    Full  "net-isolated" net::isolated, "The primary is cut off from the others; they go on, and it neither serves nor corrupts.";
    Full  "net-replica" net::replica, "A replica is cut off, and comes back; clients see no error, its own included.";
    Full  "net-moved" net::moved, "An NBD client that moves is cut off from its node with a write on its way, and writes by another.";
    Full  "net-one-way" net::one_way, "Each direction of a link fails by itself, and a link between two that both reach a third.";
    Full  "net-flapping" net::flapping, "Links come and go at random.";
    Full  "net-lossy" net::lossy, "Between nodes packets are lost, and the primary is killed.";
    Full  "net-long" net::long, "Nodes are tens of milliseconds from each other, and the primary is killed.";
    Full  "net-alone" net::without_quorum, "Two copies without quorum are cut apart, go on, meet, and one side is given up.";
    Full  "net-nodes-apart" apart::apart, "Each node has a network of its own and a cable to a switch; cables are pulled, and nodes killed.";
    Quick "scale-huge" scale::huge, "Volumes of 1 PiB: written at both ends, resynced, restarted, in little memory.";
    Full  "scale-scattered" scale::scattered, "Dirty blocks all over a volume of 1 TiB take no more memory than is said, before and after a restart.";
    Quick "scale-requests" scale::requests, "Requests of 32 MiB, many at once, in bounded memory.";
    Quick "scale-forwards" scale::forwards, "Many shards, all nodes primaries, large requests through all nodes, little memory.";
    Full  "scale-eight" scale::eight, "Eight replicas: two are killed at once.";
    Full  "scale-resources" scale::resources, "A hundred resources on three nodes, each with a client of its own at the same time; one node is killed.";
    Full  "scale-connects" scale::connects, "Crowds connect and disconnect at all nodes, some within a request, beside a load; they leave nothing open.";
    Long  "upgrade-rolling" upgrade::rolling, "Nodes of the oldest revision are upgraded one by one under load, and downgraded again.";
    Long  "endurance" endurance::endurance, "Everything at random on long-lived nodes: their memory, files and threads stay flat.";
    Full  "scale-resync" scale::resync, "How fast a whole copy is made, beside a plain copy of a file; asserts nothing.";
};
