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

#[test]
fn a_disk_that_is_listed_counts_as_a_client_unless_the_host_cannot_have_one() {
    if Path::new("/dev/ublk-control").exists() {
        println!("NOT RUN: this host has the driver");
        return;
    }
    let mut cluster = Cluster::new("ublk-listed", 1);
    cluster.start(1);
    let file = cluster.resource("alpha", 16 * MIB, &[1]);
    cluster.create(&file);
    assert!(cluster.stop(1));
    let listed = |identity: u64| {
        format!(
            "[[disk]]\nnumber = 0\nmark = \"00000000000000a1\"\nidentity = \"{identity:016x}\"\n\
             resource = \"alpha\"\nvolume = 0\nlost = 0\n"
        )
    };
    std::fs::write(cluster.home(1).join("ublk.toml"), listed(file.id)).unwrap();
    cluster.start(1);
    // Its kernel has no such driver: there are no users to wait for.
    cluster.wait_for("it has no clients", || match cluster.status(1, "alpha").clients {
        0 => Ok(()),
        count => Err(format!("{count} clients")),
    });
    match cluster.ask(1, Command::UblkList {}) {
        Ok(Answer::HostDisks { disks, .. }) => {
            assert_eq!(disks.iter().map(|disk| disk.ready).collect::<Vec<bool>>(), [false]);
        }
        other => panic!("no list: {other:?}"),
    }
    let other = Command::UblkDetach { resource: "alpha".to_owned(), volume: 0 };
    assert!(cluster.ask_of(1, Some(file.id + 1), other.clone()).unwrap_err().contains("LS-0081"));
    cluster.ask_of(1, Some(file.id), other).unwrap();
    let delete =
        Command::ResourceDelete { resource: "alpha".to_owned(), force: false, unused: false };
    cluster.ask(1, delete).unwrap();
}
