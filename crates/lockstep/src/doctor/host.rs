//! The kernel and what it was told: io_uring, the ways by which hosts use volumes, clock, limits, memory.
//!
//! Not here: what depends on a node's settings (`network`) or on a store (`places`).

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

use sys::{EngineChoice, Errno, Hands, HandsConfig, HandsError, UblkLack, UblkRing};

use super::{Finding, Verdict};
use crate::device::nbd_keeps_names;
use crate::unit::show_size;

/// Open files that a node with many clients and volumes comes to.
const OPEN_FILES: u64 = 4096;

/// Memory below which a node with the usual settings gets into trouble, in bytes.
const MEMORY_BYTES: u64 = 512 << 20;

/// Locked memory for the rings of a node with many threads, in bytes: 132 KiB each.
const LOCKED_BYTES: u64 = 8 << 20;

/// What a host without the kernel's initiator does without.
const NO_TCP: &str = "no disk of a volume by the kernel's NVMe/TCP initiator";

/// A look at the clock that takes longer than this is a system call, or worse.
const CLOCK_SLOW: Duration = Duration::from_micros(1);

/// Looks at the machine whose file system begins at `root`.
pub(super) fn look(root: &Path) -> Vec<Finding> {
    let mut findings = vec![io_uring(root)];
    findings.extend(ways(root));
    findings.extend([clock(root), open_files(root), locked_memory(root), memory(root)]);
    findings
}

/// The text of a small file, without its end of line.
fn text(root: &Path, path: &str) -> Option<String> {
    fs::read_to_string(root.join(path)).ok().map(|text| text.trim_end().to_owned())
}

fn io_uring(root: &Path) -> Finding {
    let what = "io_uring";
    let config = HandsConfig { engine: EngineChoice::Uring, operations_max: 64 };
    let costs = "nodes use epoll and threads instead: the same, with more system calls and CPU time for each request";
    let refused = match Hands::new(config) {
        Ok(hands) if hands.describe().contains("io_uring") => {
            return Finding::ok(what, hands.describe());
        }
        Ok(_) => {
            let remedy = "LOCKSTEP_IO=epoll is set: take it away";
            return Finding::degraded(what, "not wanted", costs, remedy);
        }
        Err(HandsError::Unavailable(errno)) => errno,
        Err(error) => return Finding::degraded(what, error.to_string(), costs, "mend LOCKSTEP_IO"),
    };
    let is_off = text(root, "proc/sys/kernel/io_uring_disabled").is_some_and(|text| text != "0");
    let lacks = sys::io_uring_lacks().unwrap_or_default();
    Finding::degraded(what, without_ring(refused, &lacks), costs, ring_remedy(refused, is_off))
}

/// Why there is no ring: what the kernel lacks is named.
fn without_ring(refused: Errno, lacks: &[&str]) -> String {
    if lacks.is_empty() { refused.to_string() } else { format!("lacks {}", lacks.join(", ")) }
}

fn ring_remedy(refused: Errno, is_off: bool) -> &'static str {
    match refused {
        _ if is_off => "sysctl -w kernel.io_uring_disabled=0",
        Errno::NOT_SUPPORTED => "a newer kernel: this one lacks some of the operations",
        // Kernels before 5.12 count rings.
        Errno::NO_MEMORY => "what `locked memory` below says, or more memory",
        _ => {
            "in a container: a seccomp profile that allows io_uring_setup, io_uring_enter and \
             io_uring_register"
        }
    }
}

/// How far a driver is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Driver {
    /// It is there.
    Ready,
    /// It can be loaded.
    Loadable,
    /// This kernel has none.
    Absent,
}

/// A driver that makes `file` when it is there.
fn driver(root: &Path, module: &str, file: &str) -> Driver {
    if root.join(file).exists() {
        return Driver::Ready;
    }
    let release = text(root, "proc/sys/kernel/osrelease").unwrap_or_default();
    let lists = ["modules.dep", "modules.builtin"]
        .map(|list| text(root, &format!("lib/modules/{release}/{list}")).unwrap_or_default());
    // As in `kernel/drivers/nvme/host/nvme-tcp.ko.xz: …`; - and _ are the same.
    let is_it = |line: &str| {
        let path = line.split(':').next().unwrap_or_default();
        let name = path.rsplit('/').next().and_then(|name| name.split('.').next());
        name.is_some_and(|name| name.replace('-', "_") == module)
    };
    let is_listed = lists.iter().flat_map(|list| list.lines()).any(is_it);
    if is_listed { Driver::Loadable } else { Driver::Absent }
}

/// How hosts of this machine can use volumes as disks.
fn ways(root: &Path) -> Vec<Finding> {
    let one = |what: &str, module: &str, file: &str, costs: &str, lack: &str| match driver(
        root, module, file,
    ) {
        Driver::Ready => Finding::ok(what, format!("/{file} is there")),
        Driver::Loadable => {
            let remedy = format!(
                "modprobe {module}; at every start: echo {module} >/etc/modules-load.d/lockstep.conf"
            );
            Finding::degraded(what, "not loaded", costs, remedy)
        }
        Driver::Absent => Finding::missing(what, "this kernel has no such driver", costs, lack),
    };
    let lack = "a kernel with it, or programs that speak NBD themselves (QEMU, libnbd, nbdfuse)";
    let tcp = one("nvme-tcp", "nvme_tcp", "sys/module/nvme_tcp", NO_TCP, lack);
    let tcp = if tcp.verdict == Verdict::Ok { tcp_can(root) } else { tcp };
    let costs = "no disk of a volume that the node of this host serves without a network between";
    let ublk = one("ublk", "ublk_drv", "dev/ublk-control", costs, lack);
    let ublk = if ublk.verdict == Verdict::Ok { ublk_can(costs) } else { ublk };
    let nbd = one("nbd", "nbd", "sys/module/nbd", "no disk of a volume by NBD", lack);
    let nbd = if nbd.verdict == Verdict::Ok { nbd_can(nbd_keeps_names()) } else { nbd };
    vec![tcp, multipath(root), ublk, nbd]
}

/// Whether the driver that is there takes orders: a container has its module, and may not have its device.
fn tcp_can(root: &Path) -> Finding {
    let what = "nvme-tcp";
    let device = root.join("dev/nvme-fabrics");
    let opened = fs::OpenOptions::new().read(true).write(true).open(&device);
    let Err(error) = opened else {
        return Finding::ok(what, "/dev/nvme-fabrics can be opened");
    };
    let remedy = match error.kind() {
        ErrorKind::NotFound => {
            "modprobe nvme_tcp; in a container: give it that device, or attach outside of it"
        }
        ErrorKind::PermissionDenied => "ask again as root; in a container: let it use that device",
        _ => "what the kernel's log (dmesg) says of it",
    };
    let found = format!("the module is there, but not /dev/nvme-fabrics: {error}");
    Finding::missing(what, found, NO_TCP, remedy)
}

/// What the driver that is there can do, as it says itself.
fn ublk_can(costs: &str) -> Finding {
    let what = "ublk";
    let config = HandsConfig { engine: EngineChoice::Epoll, operations_max: 64 };
    let hands = match Hands::new(config) {
        Ok(hands) => hands,
        Err(error) => return Finding::missing(what, error.to_string(), costs, "ask again"),
    };
    match UblkRing::open(&hands.waker()) {
        Ok(ring) if ring.features().can_resize() => {
            Finding::ok(what, "disks outlive their node, and can grow while they are used")
        }
        Ok(_) => Finding::ok(
            what,
            "disks outlive their node; they keep their size until attached anew (Linux 6.16 can change it)",
        ),
        Err(lack) => {
            let remedy = match lack {
                UblkLack::Driver => "modprobe ublk_drv",
                UblkLack::Permission(_) => "ask again as root; lockstepd has to run as root, too",
                UblkLack::Ring(_) => "what `io_uring` above says",
                UblkLack::Old => "Linux 6.5 or later",
            };
            Finding::missing(what, lack.to_string(), costs, remedy)
        }
    }
}

/// What the client that is there can do: its disks are found again by the names that it keeps with them.
fn nbd_can(keeps_names: Result<bool, Errno>) -> Finding {
    let what = "nbd";
    let costs =
        "`lockstep device attach` makes no disk by NBD; one by nbd-client goes when its node does";
    match keeps_names {
        Ok(true) => Finding::ok(what, "disks keep a name, and get another connection"),
        Ok(false) => {
            Finding::degraded(what, "keeps no name with its disks", costs, "Linux 5.14 or later")
        }
        Err(errno) => {
            let found = format!("the kernel's client has no netlink: {errno}");
            Finding::degraded(what, found, costs, "ask again outside of a container")
        }
    }
}

fn multipath(root: &Path) -> Finding {
    let what = "NVMe multipath";
    let costs = "a host sees each node of a volume as a disk of its own, and an error when one of them fails";
    let remedy = "nvme_core.multipath=Y on the kernel's command line";
    match text(root, "sys/module/nvme_core/parameters/multipath").as_deref() {
        Some("Y") => Finding::ok(what, "native"),
        Some(_) => Finding::degraded(what, "turned off", costs, remedy),
        None if root.join("sys/module/nvme_core").exists() => {
            Finding::missing(what, "built without", costs, "a kernel with CONFIG_NVME_MULTIPATH")
        }
        None => Finding::missing(
            what,
            "no NVMe driver is loaded that could tell",
            costs,
            "modprobe nvme_tcp, then ask again",
        ),
    }
}

/// Every request looks at it.
fn clock(root: &Path) -> Finding {
    let what = "clock";
    let source = text(root, "sys/devices/system/clocksource/clocksource0/current_clocksource");
    let source = source.unwrap_or_else(|| "a source that is not told".to_owned());
    let batch = || {
        let begun = Instant::now();
        for _ in 0..1000 {
            std::hint::black_box(sys::clock());
        }
        begun.elapsed() / 1000
    };
    let each = (0..5).map(|_| batch()).min().unwrap_or_default();
    let found = format!("{source}, {} ns a look", each.as_nanos());
    if each <= CLOCK_SLOW {
        return Finding::ok(what, found);
    }
    let remedy = "choose tsc, or what your hypervisor offers (kvm-clock), as clock source";
    Finding::degraded(what, found, "every request looks at the clock several times", remedy)
}

/// The numbers of a line of this process's limits: what it has, and what it may give itself. `None`: the line is not there;
/// no limit is the greatest number.
fn limit(root: &Path, name: &str) -> Option<[u64; 2]> {
    let limits = text(root, "proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    let number = |word: &str| if word == "unlimited" { Some(u64::MAX) } else { word.parse().ok() };
    let mut words = line.split_whitespace();
    Some([number(words.next()?)?, number(words.next()?)?])
}

fn open_files(root: &Path) -> Finding {
    let what = "open files";
    match limit(root, "Max open files") {
        None => Finding::ok(what, "no limit is told"),
        Some([_, u64::MAX]) => Finding::ok(what, "no limit"),
        Some([_, hard]) if hard >= OPEN_FILES => Finding::ok(what, format!("{hard} at most")),
        Some([_, hard]) => Finding::degraded(
            what,
            format!("{hard} at most"),
            "a node with many clients or volumes turns some away",
            format!("LimitNOFILE={OPEN_FILES} or more in the unit, or ulimit -Hn"),
        ),
    }
}

/// Kernels before 5.12 count rings against it, unless their owner may lock what he likes.
fn locked_memory(root: &Path) -> Finding {
    let what = "locked memory";
    match limit(root, "Max locked memory") {
        None => Finding::ok(what, "no limit is told"),
        Some([u64::MAX, _]) => Finding::ok(what, "no limit"),
        Some([soft, _]) if soft >= LOCKED_BYTES => {
            Finding::ok(what, format!("{} at most", show_size(soft)))
        }
        Some([soft, _]) => Finding::degraded(
            what,
            format!("{} at most", show_size(soft)),
            "before Linux 5.12 io_uring's rings count: threads of a node that is not root's get none, and use epoll (more CPU \
             time for each request)",
            "LimitMEMLOCK=infinity in the unit, or ulimit -l unlimited; in a container: --ulimit memlock=-1",
        ),
    }
}

/// What may be used: the machine's, or that of the control group if it is less.
fn memory(root: &Path) -> Finding {
    let what = "memory";
    let meminfo = text(root, "proc/meminfo").unwrap_or_default();
    let available = meminfo.lines().find_map(|line| {
        let rest = line.strip_prefix("MemAvailable:")?;
        rest.split_whitespace().next()?.parse::<u64>().ok()
    });
    let group = text(root, "sys/fs/cgroup/memory.max").and_then(|text| text.parse::<u64>().ok());
    let Some(bytes) = [available.map(|kib| kib << 10), group].into_iter().flatten().min() else {
        return Finding::ok(what, "not told");
    };
    let found = format!("{} can be had", show_size(bytes));
    if bytes >= MEMORY_BYTES {
        return Finding::ok(what, found);
    }
    let remedy = "more memory, or a smaller buffer_bytes in node.toml, which makes many large requests wait for each other";
    Finding::degraded(
        what,
        found,
        "a node takes up to 192 MiB for payload, besides what volumes and clients need",
        remedy,
    )
}

#[cfg(test)]
mod tests {
    use super::{
        Driver, driver, locked_memory, memory, multipath, nbd_can, open_files, ring_remedy, ways,
        without_ring,
    };
    use crate::doctor::Verdict;
    use std::fs;
    use std::path::{Path, PathBuf};
    use sys::Errno;

    /// A file system of a test, which goes with it.
    struct Root(PathBuf);

    impl Root {
        fn of(name: &str, files: &[(&str, &str)]) -> Root {
            let root =
                std::env::temp_dir().join(format!("lockstep-doctor-{}-{name}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).unwrap();
                fs::write(path, text).unwrap();
            }
            fs::create_dir_all(&root).unwrap();
            Root(root)
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).ok();
        }
    }

    #[test]
    fn a_driver_is_there_can_be_loaded_or_is_absent() {
        let root = Root::of(
            "drivers",
            &[
                ("proc/sys/kernel/osrelease", "6.1.0-amd64\n"),
                (
                    "lib/modules/6.1.0-amd64/modules.dep",
                    "kernel/drivers/nvme/host/nvme-tcp.ko.xz: kernel/drivers/nvme/host/nvme-core.ko.xz\n",
                ),
                ("lib/modules/6.1.0-amd64/modules.builtin", "kernel/drivers/block/ublk_drv.ko\n"),
                ("sys/module/nbd/refcnt", "0\n"),
            ],
        );
        assert_eq!(driver(&root.0, "nvme_tcp", "sys/module/nvme_tcp"), Driver::Loadable);
        assert_eq!(driver(&root.0, "ublk_drv", "dev/ublk-control"), Driver::Loadable);
        assert_eq!(driver(&root.0, "nbd", "sys/module/nbd"), Driver::Ready);
        // What another module needs is none that can be loaded by that line.
        assert_eq!(driver(&root.0, "nvme_core", "sys/module/nvme_core"), Driver::Absent);
    }

    #[test]
    fn an_initiator_whose_module_is_there_and_its_device_is_not_makes_no_disk() {
        let module = ("sys/module/nvme_tcp/refcnt", "0\n");
        let of = |files: &[(&str, &str)]| {
            let root = Root::of("fabrics", files);
            let found = ways(&root.0).remove(0);
            assert_eq!(found.what, "nvme-tcp");
            found
        };
        let lacks = of(&[module]);
        assert_eq!(lacks.verdict, Verdict::Missing);
        assert!(lacks.found.contains("/dev/nvme-fabrics") && lacks.remedy.contains("container"));
        assert_eq!(of(&[module, ("dev/nvme-fabrics", "")]).verdict, Verdict::Ok);
        // Something that cannot be opened is in its place.
        assert_eq!(of(&[module, ("dev/nvme-fabrics/x", "")]).verdict, Verdict::Missing);
    }

    #[test]
    fn what_a_kernel_lacks_of_io_uring_is_named() {
        let lacks = ["IORING_FEAT_NODROP", "IORING_OP_FALLOCATE"];
        assert_eq!(
            without_ring(Errno::NOT_SUPPORTED, &lacks),
            "lacks IORING_FEAT_NODROP, IORING_OP_FALLOCATE"
        );
        assert!(ring_remedy(Errno::NOT_SUPPORTED, false).contains("newer kernel"));
        assert_eq!(without_ring(Errno::DENIED, &[]), Errno::DENIED.to_string());
        assert!(ring_remedy(Errno::DENIED, true).contains("sysctl"));
        assert!(ring_remedy(Errno::NO_MEMORY, false).contains("locked memory"));
    }

    #[test]
    fn multipath_that_is_turned_off_is_told_apart_from_none() {
        let path = "sys/module/nvme_core/parameters/multipath";
        for (files, verdict) in [
            (vec![(path, "Y\n")], Verdict::Ok),
            (vec![(path, "N\n")], Verdict::Degraded),
            (vec![("sys/module/nvme_core/refcnt", "0\n")], Verdict::Missing),
            (vec![], Verdict::Missing),
        ] {
            let root = Root::of("multipath", &files);
            assert_eq!(multipath(&root.0).verdict, verdict, "{files:?}");
        }
    }

    #[test]
    fn an_nbd_client_that_keeps_no_names_is_not_as_good_as_one_that_does() {
        for (keeps, verdict) in [
            (Ok(true), Verdict::Ok),
            (Ok(false), Verdict::Degraded),
            (Err(sys::Errno::NOT_FOUND), Verdict::Degraded),
        ] {
            assert_eq!(nbd_can(keeps).verdict, verdict, "{keeps:?}");
        }
    }

    #[test]
    fn limits_are_those_that_bind() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
            Max locked memory         65536                unlimited            bytes\n\
            Max open files            1024                 2048                 files\n";
        let root = Root::of(
            "limits",
            &[
                ("proc/self/limits", limits),
                ("proc/meminfo", "MemTotal: 9000000 kB\nMemAvailable:    8000000 kB\n"),
                ("sys/fs/cgroup/memory.max", "104857600\n"),
            ],
        );
        let files = open_files(&root.0);
        assert_eq!((files.verdict, files.found.as_str()), (Verdict::Degraded, "2048 at most"));
        let locked = locked_memory(&root.0);
        assert_eq!((locked.verdict, locked.found.as_str()), (Verdict::Degraded, "64KiB at most"));
        assert!(locked.costs.contains("epoll") && locked.remedy.contains("LimitMEMLOCK"));
        for (soft, found) in [("8388608", "8MiB at most"), ("unlimited", "no limit")] {
            let line = format!("Max locked memory         {soft}    unlimited    bytes\n");
            let root = Root::of("locked", &[("proc/self/limits", &line)]);
            let locked = locked_memory(&root.0);
            assert_eq!((locked.verdict, locked.found.as_str()), (Verdict::Ok, found));
        }
        let memory = memory(&root.0);
        assert_eq!(
            (memory.verdict, memory.found.as_str()),
            (Verdict::Degraded, "100MiB can be had")
        );
    }
}
