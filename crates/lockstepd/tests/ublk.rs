//! Disks of the host by ublk, as far as a host without that driver shows; with it: lab `vm-ublk-6.12`.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod harness;

use std::path::Path;

use harness::Cluster;
use wire::admin::{Answer, Command};

const MIB: u64 = 1 << 20;

#[test]
fn a_host_without_the_driver_is_told_so_and_nothing_is_listed() {
    if Path::new("/dev/ublk-control").exists() {
        println!("NOT RUN: this host has the driver");
        return;
    }
    let mut cluster = Cluster::new("ublk", 1);
    cluster.start(1);
    let file = cluster.resource("alpha", 16 * MIB, &[1]);
    cluster.create(&file);
    let attach =
        |resource: &str, volume| Command::UblkAttach { resource: resource.to_owned(), volume };
    let refused = |command| cluster.ask(1, command).unwrap_err();
    assert!(refused(attach("alpha", 0)).contains("LS-0080"));
    assert!(refused(attach("alpha", 0)).contains("modprobe ublk_drv"));
    assert!(refused(attach("beta", 0)).contains("LS-0010"));
    assert!(refused(attach("alpha", 1)).contains("LS-0010"));
    let detach = Command::UblkDetach { resource: "alpha".to_owned(), volume: 0 };
    assert!(refused(detach).contains("LS-0081"));
    match cluster.ask(1, Command::UblkList {}) {
        Ok(Answer::HostDisks { host, disks }) => {
            let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
            assert_eq!((host.as_str(), disks), (boot.trim_end(), Vec::new()));
        }
        other => panic!("no list: {other:?}"),
    }
}
