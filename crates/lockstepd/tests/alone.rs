//! Two nodes without quorum, as processes: each goes on alone, they meet, and one side is given up.

mod harness;

use harness::{Cluster, content};
use wire::admin::{Command, FileTiming, Operation, ResourceStatus};
use wire::{AfterSplitBrain, Quorum};

const MIB: u64 = 1 << 20;
const KIB: usize = 1 << 10;

/// Nodes 1 and 2 with a copy each.
fn pair(name: &str, after_split_brain: AfterSplitBrain) -> Cluster {
    let mut cluster = Cluster::new(name, 2);
    cluster.start(1);
    cluster.start(2);
    let mut file = cluster.resource("alpha", 64 * MIB, &[1, 2]);
    file.options.quorum = Quorum::Off;
    file.options.after_split_brain = after_split_brain;
    file.timing = FileTiming { heartbeat_ms: 50, lease_ms: 500, peer_late_ms: 500 };
    cluster.create(&file);
    let mut volume = cluster.open(1, "alpha");
    volume.write(0, &content(1, 1024 * KIB)).expect("written");
    volume.flush().expect("flushed");
    cluster.wait_in_sync(1, "alpha", &[1, 2]);
    cluster
}

fn write(cluster: &Cluster, node: u16, offset: u64, seed: u64, length: usize) {
    let mut volume = cluster.open(node, "alpha");
    volume.write(offset, &content(seed, length)).expect("written alone");
    volume.flush().expect("flushed alone");
}

/// Both went on: node 1 wrote 64 KiB while node 2 was dead, then node 2 wrote more than 12 MiB while node 1
/// was. After a kill whole extents count as written.
fn parted(name: &str, after: AfterSplitBrain) -> Cluster {
    let mut cluster = pair(name, after);
    cluster.kill(2);
    write(&cluster, 1, 4 * MIB, 2, 64 * KIB);
    cluster.kill(1);
    cluster.start(2);
    write(&cluster, 2, 8 * MIB, 3, 128 * KIB);
    write(&cluster, 2, 0, 4, 4 * KIB);
    for step in 0..12 {
        write(&cluster, 2, (16 + step) * MIB, 5, 1024 * KIB);
    }
    cluster.start(1);
    cluster
}

/// What nodes 1 and 2 say when each sees that the other went another way.
fn split(cluster: &Cluster) -> [ResourceStatus; 2] {
    let mut seen = Vec::new();
    cluster.wait_for("a split brain", || {
        seen = [1, 2].map(|node| cluster.status(node, "alpha")).into();
        let told = |status: &ResourceStatus| {
            status.split_brain.iter().any(|split| split.theirs_changed_bytes.is_some())
        };
        if seen.iter().all(told) { Ok(()) } else { Err(format!("{seen:?}")) }
    });
    seen.try_into().expect("two")
}

fn resolve(cluster: &Cluster, at: u16, discard: u16) -> Result<(), String> {
    let operation = Operation::Resolve { discard };
    let resource = "alpha".to_owned();
    cluster.ask(at, Command::Operation { resource, operation }).map(drop)
}

/// Both copies are the same, and hold what `node` wrote alone.
fn is_history_of(cluster: &Cluster, node: u16) {
    cluster.wait_in_sync(node, "alpha", &[1, 2]);
    let mut volume = cluster.open(node, "alpha");
    let (one, two) = (node == 1, node == 2);
    let mut holds = |offset: u64, seed: u64, length: usize| {
        let read = volume.read(offset, u32::try_from(length).expect("small")).expect("read");
        read == content(seed, length)
    };
    assert_eq!(holds(4 * MIB, 2, 64 * KIB), one);
    assert_eq!(holds(8 * MIB, 3, 128 * KIB), two);
    assert_eq!(holds(0, 4, 4 * KIB), two);
    drop(volume);
    assert_eq!(cluster.dump(1, "alpha"), cluster.dump(2, "alpha"));
}

#[test]
fn a_node_goes_on_alone_and_the_other_follows_when_it_is_back() {
    let mut cluster = pair("ancestor", AfterSplitBrain::Disconnect);
    let before = cluster.status(1, "alpha").history;
    assert_eq!(before, "", "both decided everything");
    cluster.kill(2);
    write(&cluster, 1, 4 * MIB, 2, 64 * KIB);
    cluster.start(2);
    is_history_of(&cluster, 1);
    let status = cluster.status(1, "alpha");
    assert_eq!((status.fork, status.split_brain), (0, Vec::new()));
    assert_eq!(status.history.len(), 16, "it has a name: {:?}", status.history);
    assert!(cluster.log(1).contains(&format!("fork: history {}", status.history)));
}

#[test]
fn two_that_went_on_name_each_other_and_the_operator_gives_one_side_up() {
    let cluster = parted("by-hand", AfterSplitBrain::Disconnect);
    // What shards of other threads have is shown a moment later.
    cluster.wait_for("both to count alike", || {
        let [one, two] = split(&cluster).map(|status| status.split_brain[0].clone());
        let told = (one.theirs_changed_bytes, two.mine_changed_bytes);
        if told.0 == Some(told.1) { Ok(()) } else { Err(format!("{told:?}")) }
    });
    let [one, two] = split(&cluster);
    let (mine, theirs) = (&one.split_brain[0], &two.split_brain[0]);
    assert_eq!((&mine.mine, &mine.theirs), (&theirs.theirs, &theirs.mine));
    assert_ne!(mine.mine, mine.theirs);
    assert!((64 << 10..=8 * MIB).contains(&mine.mine_changed_bytes), "{mine:?}");
    assert!((12 * MIB..32 * MIB).contains(&theirs.mine_changed_bytes), "{theirs:?}");
    assert_eq!(mine.theirs_changed_bytes, Some(theirs.mine_changed_bytes));
    assert!(mine.mine_since_ms < theirs.mine_since_ms, "node 1 was alone first");
    // Neither is taken from its clients.
    let mut volume = cluster.open(1, "alpha");
    assert_eq!(volume.read(4 * MIB, 4096).expect("read"), content(2, 64 * KIB)[..4096]);
    assert!(resolve(&cluster, 2, 2).expect_err("its own side").starts_with("LS-0049"));
    resolve(&cluster, 2, 1).expect("chosen");
    cluster.wait_for("the loser knows", || {
        let status = cluster.status(1, "alpha");
        let chosen = status.split_brain.iter().any(|split| split.discarded);
        if chosen { Ok(()) } else { Err(format!("{status:?}")) }
    });
    let kept = volume.read(4 * MIB, 4096).expect("its client has not left");
    assert_eq!(kept, content(2, 64 * KIB)[..4096]);
    drop(volume);
    is_history_of(&cluster, 2);
    let status = cluster.status(2, "alpha");
    assert_eq!((status.fork, status.split_brain), (1, Vec::new()));
    assert!(resolve(&cluster, 2, 1).expect_err("it is over").starts_with("LS-0048"));
    // By what either side changed, and hot extents besides; not as a whole.
    let resync = status.replicas[0].last_resync.expect("node 2 drove it");
    let copied = resync.copied_bytes;
    assert!((12 * MIB..48 * MIB).contains(&copied), "{copied} bytes were copied");
    let (said, name) = (cluster.log(1), &mine.mine);
    let bytes = mine.mine_changed_bytes;
    let goes = format!("gives up its side: {bytes} bytes written here on history {name}");
    assert!(said.contains(&goes), "{said}");
    assert!(said.contains("SPLIT BRAIN"), "{said}");
}

#[test]
fn a_policy_ends_a_split_brain_by_itself() {
    for (name, after, wins) in [
        ("younger", AfterSplitBrain::DiscardYounger, 1),
        ("least", AfterSplitBrain::DiscardLeastChanges, 2),
        ("named", AfterSplitBrain::DiscardNode(2), 1),
    ] {
        let cluster = parted(name, after);
        is_history_of(&cluster, wins);
        assert_eq!(cluster.status(wins, "alpha").fork, 1, "{name}");
    }
}

#[test]
fn what_a_side_gave_back_of_a_volume_that_it_made_smaller_is_copied_to_it_again() {
    let mut cluster = pair("gave-back", AfterSplitBrain::Disconnect);
    write(&cluster, 1, 40 * MIB, 6, 64 * KIB);
    // In good order, and with nothing in doubt: no extent is compared for having been hot.
    assert!(cluster.stop(2));
    write(&cluster, 1, 0, 7, 4 * KIB);
    cluster.start(2);
    cluster.wait_in_sync(1, "alpha", &[1, 2]);
    assert!(cluster.stop(2));
    write(&cluster, 1, 4 * MIB, 2, 64 * KIB);
    assert!(cluster.stop(1));
    cluster.start(2);
    write(&cluster, 2, 8 * MIB, 3, 64 * KIB);
    let operation = Operation::Resize { volume: 0, size_bytes: 32 * MIB, allow_shrink: true };
    let resource = "alpha".to_owned();
    cluster.ask(2, Command::Operation { resource, operation }).expect("made smaller");
    cluster.start(1);
    split(&cluster);
    resolve(&cluster, 1, 2).expect("chosen");
    cluster.wait_in_sync(1, "alpha", &[1, 2]);
    let read = cluster.open(1, "alpha").read(40 * MIB, 64 << 10).expect("read");
    assert!(read == content(6, 64 * KIB), "it was never written to on the side that went on");
    assert_eq!(cluster.dump(1, "alpha"), cluster.dump(2, "alpha"));
}
