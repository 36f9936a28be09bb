//! Nodes whose kernel refuses io_uring, all of a cluster: whatever they do goes by epoll and threads.
//!
//! A filter answers the system calls as container runtimes do, so nothing can go the other way unnoticed.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod harness;

use std::path::{Path, PathBuf};
use std::process::Command as Program;

use client::{NvmeIdentity, NvmeTls, NvmeVolume};
use harness::nvme::{MIB, ONE, address, open, read, write_table};
use harness::refusing::Refusing;
use harness::{Cluster, Secret, Volume, content, unix_now};
use nvme::{Derivation, Hash, TlsKey};
use wire::admin::{FileStore, StoreKind};

const NODE: &str = env!("CARGO_BIN_EXE_lockstepd");

/// A cluster, and what starts its nodes.
struct Refused {
    cluster: Cluster,
    refusing: Refusing,
}

impl Refused {
    /// Nodes that are to serve NVMe, the last of them by two threads; none is started. `None` where no filter can be set.
    fn new(name: &str, nodes: u16) -> Option<Refused> {
        let cluster = Cluster::new(name, nodes);
        let refusing = Refusing::build(&cluster.home(1))?;
        for node in 1..=nodes {
            cluster.add_settings(node, &format!("nvme = \"{}\"", address(&cluster, node)));
        }
        cluster.add_settings(nodes, "threads = 2");
        Some(Refused { cluster, refusing })
    }

    fn start(&mut self, node: u16) {
        let mut command = self.refusing.command("io_uring", 1, NODE);
        command.env_remove("LOCKSTEP_IO");
        self.cluster.start_by(node, command);
        let log = self.cluster.log(node);
        assert!(log.contains("io_uring cannot be had"), "it is refused: {log}");
    }

    /// Without a connection of a client that keeps the resource in use.
    fn assert_equal(&self) {
        let dumps: Vec<String> = (1..=3).map(|node| self.cluster.dump(node, "alpha")).collect();
        assert!(dumps.windows(2).all(|pair| pair[0] == pair[1]), "copies differ: {dumps:?}");
    }
}

#[test]
fn nvme_hosts_are_served_and_copies_are_kept_equal_by_epoll_alone() {
    let Some(mut own) = Refused::new("epoll-nvme", 3) else { return };
    (1..=3).for_each(|node| own.start(node));
    own.cluster.create(&own.cluster.resource("alpha", 16 * MIB, &[1, 2, 3]));
    let who = NvmeIdentity::default();
    // The second has digests.
    let mut paths = [1, 2, 3].map(|node| open(&own.cluster, node, "alpha", &who).unwrap());
    let (short, long) = (content(1, 4096), content(2, 1 << 20));
    for (number, at) in (0..).zip([MIB, 4 * MIB, 7 * MIB]) {
        // What comes with its command, and what is asked for.
        let path: &mut NvmeVolume = &mut paths[number];
        path.write(at, &short).unwrap();
        path.write(at + MIB, &long).unwrap();
        path.flush().unwrap();
        assert!(path.compare(at + MIB, &long).unwrap());
    }
    for path in &mut paths {
        for at in [MIB, 4 * MIB, 7 * MIB] {
            assert!(read(path, at, 4096) == short && read(path, at + MIB, 1 << 20) == long);
        }
        path.verify(0, 16 << 20).unwrap();
    }
    paths[1].deallocate(5 * MIB, 1 << 19).unwrap();
    assert!(read(&mut paths[0], 5 * MIB, 1 << 19).iter().all(|&byte| byte == 0));
    let mut by_nbd = own.cluster.open(3, "alpha");
    assert!(by_nbd.read(8 * MIB, 1 << 20).unwrap() == long, "NBD sees the same");
    drop(by_nbd);

    // A copy that lacks something gets it.
    own.cluster.kill(3);
    let missed = content(3, 3 << 20);
    let [one, two, _] = &mut paths;
    for (part, at) in missed.chunks(1 << 20).zip([10 * MIB, 11 * MIB, 12 * MIB]) {
        one.write(at, part).unwrap();
    }
    one.flush().unwrap();
    own.start(3);
    own.cluster.wait_in_sync(1, "alpha", &[1, 2, 3]);

    // So does that of the primary; its host goes on by another path.
    own.cluster.kill(1);
    assert!(read(two, 10 * MIB, 1 << 20) == missed[..1 << 20]);
    two.write(13 * MIB, &short).unwrap();
    own.start(1);
    own.cluster.wait_in_sync(2, "alpha", &[1, 2, 3]);
    let mut third = open(&own.cluster, 3, "alpha", &who).unwrap();
    assert!(read(&mut third, 12 * MIB, 1 << 20) == missed[2 << 20..]);
    assert!(read(&mut third, 13 * MIB, 4096) == short);
    drop((paths, third));
    own.assert_equal();
}

#[test]
fn clients_inside_tls_are_served_by_epoll_alone() {
    let Some(mut own) = Refused::new("epoll-tls", 3) else { return };
    let has_psk = sys::PskTls::new().inspect_err(|why| println!("NOT RUN: {why}")).is_ok();
    let key = TlsKey::new(&[1; 32], Some(Hash::Sha256)).unwrap();
    for node in 1..=3 {
        own.cluster.add_settings(node, "nbd_tls_required = true\nnvme_hosts = \"nvme-hosts.toml\"");
        let table = format!("[[hosts]]\nnqn = \"{ONE}\"\ntls_key = \"{}\"\n", key.to_text());
        write_table(&own.cluster, node, &table);
        own.start(node);
    }
    own.cluster.create(&own.cluster.resource("alpha", 16 * MIB, &[1, 2, 3]));
    let authority = own.cluster.authority();
    let secret = Secret {
        authority_pem: authority.certificate_pem().to_owned(),
        identity: Some(authority.issue_client("guest", unix_now()).unwrap()),
    };
    let by_nbd = |node, secret| {
        Volume::try_open(&format!("{}:10809", own.cluster.address(node)), "alpha", secret)
    };
    assert!(by_nbd(1, None).is_err(), "in the clear");
    let bytes = content(4, 3 << 20);
    for node in [1, 3] {
        let mut volume = by_nbd(node, Some(&secret)).unwrap();
        volume.write(MIB, &bytes).unwrap();
        volume.flush().unwrap();
        assert!(volume.read(MIB, 3 << 20).unwrap() == bytes);
    }
    if has_psk {
        let clear = NvmeIdentity { nqn: ONE.to_owned(), ..NvmeIdentity::default() };
        let tls = NvmeTls { key, version: 1, derivation: Derivation::Labelled };
        let who = NvmeIdentity { tls: Some(tls), ..clear.clone() };
        for node in [2, 3] {
            assert!(open(&own.cluster, node, "alpha", &clear).is_err(), "in the clear");
            let mut volume = open(&own.cluster, node, "alpha", &who).unwrap();
            assert!(read(&mut volume, MIB, 1 << 20) == bytes[..1 << 20]);
            volume.write(5 * MIB, &bytes[..1 << 20]).unwrap();
            volume.write(6 * MIB, &bytes[..4096]).unwrap();
            volume.flush().unwrap();
            assert!(read(&mut volume, 5 * MIB, 1 << 20) == bytes[..1 << 20]);
        }
    }
    own.assert_equal();
}

/// A loop device over a file, detached at its end.
struct Loop(PathBuf);

impl Loop {
    /// `None`, and a word, where none can be had.
    fn new(file: &Path, bytes: u64) -> Option<Loop> {
        std::fs::File::create(file).unwrap().set_len(bytes).unwrap();
        let made = Program::new("losetup").args(["--find", "--show"]).arg(file).output();
        match made {
            Ok(output) if output.status.success() => {
                Some(Loop(String::from_utf8_lossy(&output.stdout).trim().into()))
            }
            other => {
                println!("NOT RUN: no loop device: {other:?}");
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        Program::new("losetup").arg("--detach").arg(&self.0).status().ok();
    }
}

#[test]
fn a_volume_on_block_devices_is_kept_by_epoll_alone() {
    let Some(mut own) = Refused::new("epoll-device", 3) else { return };
    let image = |node| own.cluster.home(node).join("device.img");
    let devices: Option<Vec<Loop>> =
        (1..=3).map(|node| Loop::new(&image(node), 64 * MIB)).collect();
    let Some(devices) = devices else { return };
    (1..=3).for_each(|node| own.start(node));
    let mut file = own.cluster.resource("alpha", 16 * MIB, &[1, 2, 3]);
    for (member, device) in file.members.iter_mut().zip(&devices) {
        member.stores = vec![FileStore {
            volume: 0,
            kind: StoreKind::Device,
            path: Some(device.0.to_str().unwrap().to_owned()),
            metadata_path: None,
            keep: false,
        }];
    }
    own.cluster.create(&file);
    for node in 1..=3 {
        let replicas = own.cluster.status(node, "alpha").replicas;
        let store = replicas.into_iter().find(|replica| replica.node_id == node).unwrap().store;
        assert_eq!(store.as_deref(), Some("device"));
    }
    let mut volume = open(&own.cluster, 1, "alpha", &NvmeIdentity::default()).unwrap();
    let (first, second) = (content(5, 1 << 20), content(6, 1 << 20));
    volume.write(MIB, &first).unwrap();
    volume.flush().unwrap();
    own.cluster.kill(2);
    volume.write(2 * MIB, &second).unwrap();
    volume.deallocate(MIB, 1 << 19).unwrap();
    volume.flush().unwrap();
    own.start(2);
    own.cluster.wait_in_sync(1, "alpha", &[1, 2, 3]);
    drop(volume);
    own.assert_equal();
    // All of it is there after all nodes were killed.
    (1..=3).for_each(|node| own.cluster.kill(node));
    (1..=3).for_each(|node| own.start(node));
    let mut volume = own.cluster.open(2, "alpha");
    assert!(volume.read(MIB + (1 << 19), 1 << 19).unwrap() == first[1 << 19..]);
    assert!(volume.read(2 * MIB, 1 << 20).unwrap() == second);
    assert!(volume.read(MIB, 1 << 19).unwrap().iter().all(|&byte| byte == 0));
}
