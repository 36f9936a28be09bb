//! NBD over TLS, and certificates that are renewed and revoked, with real processes.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod harness;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command as Process;
use std::sync::atomic::{AtomicBool, Ordering};

use harness::{Cluster, Secret, Volume, find_program, run, unix_now};
use wire::admin::{Answer, Command, PeerStatus};

const MIB: u64 = 1 << 20;

fn content(seed: u64, length: usize) -> Vec<u8> {
    let mut prng = base::Prng::new(seed);
    (0..length).map(|_| prng.next_u64().to_le_bytes()[0]).collect()
}

/// One node that serves `alpha`, with further settings.
fn served(name: &str, settings: &str) -> Cluster {
    let mut cluster = Cluster::new(name, 1);
    cluster.add_settings(1, settings);
    cluster.start(1);
    cluster.create(&cluster.resource("alpha", 16 * MIB, &[1]));
    cluster
}

fn nbd_address(cluster: &Cluster) -> String {
    format!("{}:10809", cluster.address(1))
}

/// What a client of the cluster has.
fn secret(cluster: &Cluster, name: &str) -> Secret {
    let authority = cluster.authority();
    Secret {
        authority_pem: authority.certificate_pem().to_owned(),
        identity: Some(authority.issue_client(name, unix_now()).unwrap()),
    }
}

fn try_open(cluster: &Cluster, secret: Option<&Secret>) -> Result<Volume, String> {
    let mut volume = Volume::try_open(&nbd_address(cluster), "alpha", secret)?;
    // With TLS 1.3 a client learns only after its own handshake whether it is let in.
    volume.read(0, 4096).map(|_| volume)
}

fn refused_count(cluster: &Cluster) -> u64 {
    let warnings = cluster.warnings(1);
    let line = warnings.iter().find(|line| line.contains("NBD clients were sent away"));
    line.map_or(0, |line| line.split(' ').next().unwrap().parse().unwrap())
}

#[test]
fn where_tls_is_required_a_certificate_of_the_cluster_opens_and_nothing_else_does() {
    let cluster = served("required", "nbd_tls_required = true");
    let mut good = try_open(&cluster, Some(&secret(&cluster, "guest-1"))).expect("let in");
    good.write(MIB / 2, &content(1, 3 << 20)).expect("written");
    good.flush().expect("flushed");
    assert_eq!(good.read(MIB / 2, 3 << 20).expect("read"), content(1, 3 << 20));
    assert!(try_open(&cluster, None).is_err(), "in the clear");
    assert_eq!(refused_count(&cluster), 0, "who does not even begin TLS is told so by NBD");

    let nobody = Secret { identity: None, ..secret(&cluster, "guest-1") };
    assert!(try_open(&cluster, Some(&nobody)).is_err(), "without a certificate");
    assert_eq!(refused_count(&cluster), 1);

    let own = cluster.authority().cluster();
    let forger = link::Authority::create(own, unix_now()).unwrap();
    let forged = Some(forger.issue_client("guest-1", unix_now()).unwrap());
    let forged = Secret { identity: forged, ..secret(&cluster, "guest-1") };
    assert!(try_open(&cluster, Some(&forged)).is_err(), "of another authority");
    assert_eq!(refused_count(&cluster), 2);

    let stranger = Secret {
        authority_pem: forger.certificate_pem().to_owned(),
        ..secret(&cluster, "guest-1")
    };
    let why = try_open(&cluster, Some(&stranger)).err().expect("the server is not believed");
    assert!(why.contains("certificate"), "{why}");

    let old = Some(cluster.authority().issue_client("guest-1", 1_000_000_000).unwrap());
    let old = Secret { identity: old, ..secret(&cluster, "guest-1") };
    assert!(try_open(&cluster, Some(&old)).is_err(), "expired");

    let node = Some(cluster.authority().issue(base::NodeId(9), "n9", &[], unix_now()).unwrap());
    let node = Secret { identity: node, ..secret(&cluster, "guest-1") };
    try_open(&cluster, Some(&node)).expect("nodes may as well");
    assert_eq!(good.read(MIB / 2, 3 << 20).expect("goes on"), content(1, 3 << 20));
}

#[test]
fn on_loopback_tls_is_offered_and_nobody_is_made_to_take_it() {
    let cluster = served("offered", "");
    let mut plain = try_open(&cluster, None).expect("in the clear");
    let mut inside = try_open(&cluster, Some(&secret(&cluster, "guest"))).expect("inside TLS");
    inside.write(0, &content(1, 5000)).expect_err("no whole blocks");
    inside.write(8192, &content(2, 65_536)).expect("written");
    assert_eq!(plain.read(8192, 65_536).expect("read"), content(2, 65_536));
    assert!(inside.read(8 * MIB, 1 << 20).expect("read").iter().all(|&byte| byte == 0));
}

#[test]
fn a_listener_that_other_machines_reach_wants_a_certificate_from_everybody() {
    let mut cluster = Cluster::new("beyond", 1);
    // Above the ports that the system gives to clients, and another for each process.
    let port = 61_000 + std::process::id() % 4000;
    let path = cluster.home(1).join("node.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let own = format!("nbd = \"{}:10809\"", cluster.address(1));
    assert!(text.contains(&own));
    std::fs::write(&path, text.replace(&own, &format!("nbd = \"0.0.0.0:{port}\""))).unwrap();
    cluster.start(1);
    cluster.create(&cluster.resource("alpha", 16 * MIB, &[1]));
    let address = format!("{}:{port}", cluster.address(1));
    assert!(Volume::try_open(&address, "alpha", None).is_err(), "in the clear");
    let guest = secret(&cluster, "guest");
    let mut volume = Volume::try_open(&address, "alpha", Some(&guest)).expect("let in");
    volume.write(0, &content(3, 4096)).expect("written");
    let status = cluster.status(1, "alpha");
    let shown = format!("nbds://{address}/alpha");
    assert_eq!(status.volumes[0].nbd[0], shown, "an address that clients can use");
    assert!(cluster.stop(1));
    cluster.add_settings(1, "insecure = true");
    cluster.start(1);
    assert!(cluster.warnings(1).iter().any(|line| line.contains("insecure")));
    let mut volume = Volume::try_open(&address, "alpha", None).expect("the operator said so");
    assert_eq!(volume.read(0, 4096).expect("read"), content(3, 4096));
}

#[test]
fn strangers_are_few_say_little_and_do_not_stay() {
    let cluster = served("strangers", "nbd_tls_required = true");
    let guest = secret(&cluster, "guest");
    let mut good = try_open(&cluster, Some(&guest)).expect("let in");
    // An option of 2000 bytes again and again: each is refused, the third is one too many.
    let mut talker = TcpStream::connect(nbd_address(&cluster)).unwrap();
    let mut option = b"IHAVEOPT".to_vec();
    option.extend(6_u32.to_be_bytes());
    option.extend(2000_u32.to_be_bytes());
    option.extend([b'x'; 2000]);
    talker.write_all(&1_u32.to_be_bytes()).unwrap();
    for _ in 0..30 {
        // The node may have closed already.
        talker.write_all(&option).ok();
    }
    talker.read_to_end(&mut Vec::new()).ok();
    cluster.wait_for("the talker to be counted as one that broke the protocol", || {
        let warnings = cluster.warnings(1);
        let is_counted =
            |line: &String| line.contains("1 connections were closed for faults of NBD");
        if warnings.iter().any(is_counted) { Ok(()) } else { Err(format!("{warnings:?}")) }
    });
    assert_eq!(refused_count(&cluster), 0, "it never spoke of certificates");
    let silent: Vec<TcpStream> =
        (0..400).map(|_| TcpStream::connect(nbd_address(&cluster)).unwrap()).collect();
    assert_eq!(good.read(0, 4096).expect("goes on").len(), 4096);
    for mut socket in silent {
        // Closed by the node, at once or when its time is over; the client does nothing.
        socket.set_read_timeout(Some(harness::PATIENCE)).unwrap();
        match socket.read_to_end(&mut Vec::new()) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
        }
    }
    try_open(&cluster, Some(&guest)).expect("there is room again");
    let log = cluster.log(1);
    assert!(log.contains("are not known yet"), "400 at once are too many");
    assert!(log.contains("opened nothing in time"), "and those that were let wait have to go");
}

#[test]
fn real_nbd_clients_are_served_over_tls() {
    let cluster = served("clients", "nbd_tls_required = true");
    let place = cluster.home(1).join("guest");
    std::fs::create_dir_all(&place).unwrap();
    let guest = secret(&cluster, "guest").identity.unwrap();
    guest.save_for_client(&place).unwrap();
    let place = place.display().to_string();
    let address = nbd_address(&cluster);
    let image = cluster.home(1).join("image").display().to_string();
    std::fs::write(&image, content(5, 16 << 20)).unwrap();
    let uri = format!("nbds://{address}/alpha?tls-certificates={place}");
    if find_program("nbdinfo") {
        assert_eq!(run("nbdinfo", &["--size", &uri]).trim(), (16 * MIB).to_string());
        let plain = format!("nbd://{address}/alpha");
        assert!(!Process::new("nbdinfo").arg(&plain).output().unwrap().status.success());
    }
    if find_program("nbdcopy") {
        run("nbdcopy", &[&image, &uri]);
        let back = format!("{image}.back");
        run("nbdcopy", &[&uri, &back]);
        assert!(std::fs::read(&back).unwrap() == content(5, 16 << 20), "it came back otherwise");
    }
    if find_program("qemu-img") {
        let (host, port) = address.rsplit_once(':').unwrap();
        let credentials = format!("tls-creds-x509,id=tls0,endpoint=client,dir={place}");
        let target = format!(
            "driver=raw,file.driver=nbd,file.server.type=inet,file.server.host={host},\
             file.server.port={port},file.export=alpha,file.tls-creds=tls0"
        );
        let convert = [
            "convert",
            "-n",
            "-f",
            "raw",
            "--object",
            &credentials,
            "--target-image-opts",
            &image,
            &target,
        ];
        run("qemu-img", &convert);
        let raw = format!("driver=raw,file.filename={image}");
        let compare = ["compare", "--object", &credentials, "--image-opts", &raw, &target];
        assert!(run("qemu-img", &compare).contains("identical"));
    }
    // What docs/security.md says of how much they send before they are known.
    for line in cluster.log(1).lines().filter(|line| line.contains("proved with")) {
        println!("{line}");
    }
}

fn peers(cluster: &Cluster, node: u16) -> Vec<PeerStatus> {
    match cluster.ask(node, Command::NodeStatus {}) {
        Ok(Answer::Node(status)) => status.peers,
        other => panic!("no status: {other:?}"),
    }
}

/// Writes and reads until told to stop; how often. Any error is the test's.
fn load(mut volume: Volume, stop: &AtomicBool) -> u64 {
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) || count == 0 {
        let at = count % 512 * 8192;
        volume.write(at, &content(count, 8192)).expect("no error during the change");
        assert_eq!(volume.read(at, 8192).expect("no error"), content(count, 8192));
        count += 1;
    }
    count
}

/// Three nodes, a load on the first and inside TLS on the second, and `change` meanwhile.
fn under_load(cluster: &Cluster, guest: &Secret, change: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    let address = format!("{}:10809", cluster.address(2));
    let open = || Volume::try_open(&address, "beta", Some(guest)).expect("let in");
    let (plain, inside) = (cluster.open(1, "alpha"), open());
    std::thread::scope(|scope| {
        let loads = [plain, inside].map(|volume| scope.spawn(|| load(volume, &stop)));
        let changed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(change));
        stop.store(true, Ordering::Relaxed);
        for load in loads {
            assert!(load.join().expect("the load saw no error") > 0);
        }
        changed.expect("the change did what it should");
    });
}

fn three(name: &str) -> Cluster {
    let mut cluster = Cluster::new(name, 3);
    for node in 1..=3 {
        cluster.start(node);
    }
    for (id, name) in [(1, "alpha"), (2, "beta")] {
        let mut file = cluster.resource(name, 16 * MIB, &[1, 2, 3]);
        file.id = id;
        cluster.create(&file);
    }
    cluster
}

fn reload(cluster: &Cluster, node: u16) -> Result<(), String> {
    cluster.ask(node, Command::Reload {}).map(drop)
}

#[test]
fn a_certificate_is_renewed_under_load_and_new_sessions_show_it() {
    let mut cluster = three("renewed");
    let guest = secret(&cluster, "guest");
    under_load(&cluster, &guest, || {
        let old = std::fs::read(cluster.home(2).join("certificate.pem")).unwrap();
        let renewed = cluster.renew(2);
        assert_ne!(old, renewed.certificate_pem().as_bytes());
        reload(&cluster, 2).expect("reloaded");
        for node in [1, 3] {
            assert!(peers(&cluster, node).iter().all(|peer| peer.connected), "a session ended");
        }
    });
    // The old certificate alone is revoked: who still showed it would not be let in.
    let before = cluster.renew(2);
    let serial: String = before.claims().serial.iter().map(|b| format!("{b:02x}")).collect();
    reload(&cluster, 2).expect("reloaded");
    cluster.renew(2);
    for node in [1, 3] {
        cluster.add_settings(node, &format!("revoked_serials = [\"{serial}\"]"));
        reload(&cluster, node).expect("reloaded");
    }
    // A session that began under the revoked one is not kept; by a signal the new one is shown.
    let hang_up = ["-HUP".to_owned(), cluster.process(2).to_string()];
    assert!(Process::new("kill").args(hang_up).status().unwrap().success());
    cluster.kill(3);
    cluster.start(3);
    cluster.wait_in_sync(1, "alpha", &[1, 2, 3]);
    cluster.wait_in_sync(3, "beta", &[1, 2, 3]);
    // What is broken changes nothing.
    std::fs::write(cluster.home(2).join("key.pem"), "no key").unwrap();
    assert!(reload(&cluster, 2).expect_err("no key").starts_with("LS-0047"));
    cluster.kill(3);
    cluster.start(3);
    cluster.wait_in_sync(3, "beta", &[1, 2, 3]);
}

#[test]
fn a_certificate_that_ends_soon_is_a_warning_until_it_is_renewed() {
    let mut cluster = Cluster::new("ending", 1);
    cluster.renew_at(1, unix_now() - (link::CERTIFICATE_DAYS - 10) * 24 * 3600);
    cluster.start(1);
    let warns = || match cluster.ask(1, Command::NodeStatus {}) {
        Ok(Answer::Node(status)) => status.warnings.iter().any(|one| one.contains("10 days")),
        other => panic!("no status: {other:?}"),
    };
    assert!(warns());
    cluster.renew(1);
    reload(&cluster, 1).expect("reloaded");
    assert!(!warns());
}

#[test]
fn who_is_revoked_is_sent_away_and_stays_away_while_others_go_on() {
    let mut cluster = three("revoked");
    let (guest, thief) = (secret(&cluster, "guest"), secret(&cluster, "thief"));
    let address = format!("{}:10809", cluster.address(2));
    let mut stolen = Volume::try_open(&address, "beta", Some(&thief)).expect("let in so far");
    stolen.write(8 * MIB, &content(1, 4096)).expect("written");
    let third_is = |connected: bool| {
        cluster.wait_for("the third node's connections", || {
            let seen = [1, 2].map(|node| {
                peers(&cluster, node).into_iter().find(|peer| peer.node_id == 3).unwrap()
            });
            let done = seen.iter().all(|peer| peer.connected == connected);
            if done { Ok(()) } else { Err(format!("{seen:?}")) }
        });
    };
    third_is(true);
    let serial: String = thief
        .identity
        .as_ref()
        .unwrap()
        .claims()
        .serial
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    under_load(&cluster, &guest, || {
        for node in [1, 2] {
            let lines = format!("revoked_nodes = [3]\nrevoked_serials = [\"{serial}\"]");
            cluster.add_settings(node, &lines);
            reload(&cluster, node).expect("reloaded");
        }
        third_is(false);
        assert!(stolen.read(8 * MIB, 4096).is_err(), "its session has ended");
        let again = Volume::try_open(&address, "beta", Some(&thief));
        assert!(again.and_then(|mut volume| volume.read(0, 4096)).is_err(), "nor a new one");
        cluster.wait_for("a refusal of the third node by name", || {
            let reasons: Vec<_> = [1, 2].iter().flat_map(|&node| peers(&cluster, node)).collect();
            let refused = reasons.iter().filter(|peer| {
                peer.reason
                    .as_ref()
                    .is_some_and(|why| why.contains("refused: its certificate is revoked"))
            });
            if refused.count() == 2 { Ok(()) } else { Err(format!("{reasons:?}")) }
        });
    });
    cluster.kill(3);
    cluster.start(3);
    let tried = |cluster: &Cluster| peers(cluster, 3).iter().any(|peer| peer.connected);
    assert!(!tried(&cluster));
    let mut volume = cluster.open(1, "alpha");
    volume.write(0, &content(9, 4096)).expect("the others go on");
    assert!(!tried(&cluster), "it came back");
}
