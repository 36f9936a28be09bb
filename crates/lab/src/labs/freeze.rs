//! Nodes that stand still for a while (SIGSTOP) and wake up in a world that went on.
//!
//! Among the clients are some that only look, seldom, and wait as long as it takes: what they asked
//! the sleeping node while others wrote is answered when it wakes, and must not be stale.

use std::time::Duration;

use super::kill::{DISK, by_nvme, load, settle, staying, three};
use crate::bench::{Bench, Outcome, passed};
use crate::cluster::Cluster;
use crate::load::{ClientPlan, addresses};

/// Clients that look at each node.
const LOOKING: usize = 6;

/// A second: less than a lease.
pub(super) fn one_second(bench: &Bench) -> Outcome {
    freeze(bench, Duration::from_secs(1))
}

/// More than a lease: another node takes over.
pub(super) fn five_seconds(bench: &Bench) -> Outcome {
    freeze(bench, Duration::from_secs(5))
}

/// Everybody has long forgotten it.
pub(super) fn one_minute(bench: &Bench) -> Outcome {
    freeze(bench, Duration::from_secs(60))
}

fn freeze(bench: &Bench, time: Duration) -> Outcome {
    let cluster = three(bench)?;
    cluster.ok(&["resource", "promote", DISK, "--node", "a"])?;
    let load = load(bench, clients(&cluster, time)?);
    load.progress(200)?;
    for round in 0..2 {
        let primary = cluster.primary(DISK)?;
        cluster.freeze(&primary)?;
        bench.tell(format_args!("{primary} stands still"));
        if time > Duration::from_secs(4) {
            // Longer than lease and take-over: the others go on without it.
            load.progress(100)?;
        }
        crate::bench::let_run(time);
        cluster.thaw(&primary)?;
        bench.tell(format_args!("{primary} wakes (round {round})"));
        load.progress(200)?;
    }
    passed(settle(bench, &cluster, load, &["a", "b", "c"])?)
}

/// Writers at every node, some with several requests open, some by NVMe/TCP, and those who only look. None of them gives up on a node that is silent.
fn clients(cluster: &Cluster, time: Duration) -> Outcome<Vec<ClientPlan>> {
    let limit = time + Duration::from_secs(60);
    let pause = time + Duration::from_secs(1);
    let nodes = addresses(cluster, &["a", "b", "c"])?;
    let staying = nodes.iter().map(|&node| ClientPlan { limit, ..ClientPlan::pinned(node) });
    let looking = nodes.iter().map(|&node| ClientPlan::looking(node, pause, limit));
    let mut clients: Vec<ClientPlan> = looking
        .flat_map(|plan| vec![plan; LOOKING])
        .chain(staying.clone())
        .chain(staying.map(ClientPlan::deep))
        .collect();
    // A node that stood still ends the connections of hosts of NVMe/TCP: these go elsewhere then.
    let mut hosts = Vec::new();
    for names in [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]] {
        let host = ClientPlan::roaming(&addresses(cluster, &names)?);
        hosts.push(ClientPlan { limit, ..host });
    }
    // And some that lose patience and go elsewhere, so that open writes are left behind.
    let limit = Duration::from_secs(2);
    let impatient = ClientPlan { limit, ..ClientPlan::roaming(&nodes) };
    hosts.push(impatient.clone());
    clients.extend([impatient.clone(), impatient.deep()]);
    clients.extend(by_nvme(cluster, hosts)?);
    Ok(clients)
}

/// One that only has a copy.
pub(super) fn replica(bench: &Bench) -> Outcome {
    let cluster = three(bench)?;
    cluster.ok(&["resource", "promote", DISK, "--node", "a"])?;
    let load = load(bench, staying(&cluster, &["a", "b"], 4)?);
    load.progress(200)?;
    cluster.freeze("c")?;
    bench.tell("c stands still");
    load.progress(200)?;
    crate::bench::let_run(Duration::from_secs(5));
    cluster.thaw("c")?;
    load.progress(200)?;
    passed(settle(bench, &cluster, load, &["a", "b", "c"])?)
}
