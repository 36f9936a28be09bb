//! Plans of runs without quorum: few nodes that lose each other often, and go on alone.
//!
//! Of what may be on besides (`feature`) it has what changes links, layouts and how disks answer. No cache is lost and no disk: what such a run is to show is that a history which went two ways is noticed
//! and named, that each way is a history of its own, and that nothing is given up in silence.
//!
//! Not here: what must hold (`sides`), how faults are carried out (`fault`).

use crate::plan::{Fault, FaultKind, Plan, Role, When, Wish, draw_by_weight};
use crate::queue::{MILLI, SECOND};
use base::Prng;
use wire::{AfterSplitBrain, Quorum};

/// Kinds of fault, for the draw of how frequent each is.
const KINDS: usize = 9;

impl Plan {
    /// The plan that a seed names for a resource without quorum.
    #[must_use]
    pub fn without_quorum(seed: u64) -> Plan {
        let mut random = Prng::new(seed ^ 0x5eed_0000_0000_0002);
        let mut plan = Plan::plain(random.id());
        plan.seed = seed;
        plan.roles = roles(&mut random);
        let nodes = plan.roles.len();
        plan.drift_ppm = (0..nodes)
            .map(|_| i64::try_from(random.below(18_001)).expect("small") - 9_000)
            .collect();
        // Whoever has a client may have to go on alone.
        plan.clients = (0..nodes).filter(|_| !random.once_in(8)).collect();
        if plan.clients.is_empty() {
            plan.clients.push(0);
        }
        plan.options.quorum = Quorum::Off;
        plan.options.after_split_brain = policy(&mut random);
        plan.stable_disks = true;
        plan.heal_at = SECOND * (6 + random.below(12));
        let each = plan.requests / plan.clients.len() as u64;
        plan.think = 2 * plan.heal_at / each.max(1);
        plan.faults = draw(&plan, &mut random);
        plan
    }
}

fn roles(random: &mut Prng) -> Vec<Role> {
    let mut roles = vec![Role::Replica; 2];
    if random.once_in(5) {
        roles.push(Role::Replica);
    }
    if random.once_in(5) {
        roles.push(Role::Diskless);
    }
    roles
}

fn policy(random: &mut Prng) -> AfterSplitBrain {
    match random.below(8) {
        0 | 1 => AfterSplitBrain::DiscardYounger,
        2 => AfterSplitBrain::DiscardOlder,
        3 => AfterSplitBrain::DiscardNode(1),
        4 => AfterSplitBrain::DiscardNode(2),
        _ => AfterSplitBrain::Disconnect,
    }
}

fn draw(plan: &Plan, random: &mut Prng) -> Vec<Fault> {
    let mut weights = [0_u64; KINDS];
    for weight in &mut weights {
        *weight = [0, 0, 1, 4][usize::try_from(random.below(4)).expect("below 4")];
    }
    // Without a cut there is nothing to see.
    weights[0] += 2;
    let count = 3 + random.below(14);
    draw_by_weight(&weights, count, random, |kind, random| fault(plan, kind, random))
}

fn fault(plan: &Plan, kind: usize, random: &mut Prng) -> Option<Fault> {
    let nodes = plan.roles.len() as u64;
    let any = |random: &mut Prng| usize::try_from(random.below(nodes)).expect("few nodes");
    let (node, other) = (any(random), any(random));
    let disk = plan.roles[node] == Role::Replica;
    let length = match random.below(4) {
        0 => MILLI * (1 + random.below(200)),
        1 => MILLI * (200 + random.below(1_000)),
        _ => MILLI * (1_000 + random.below(6_000)),
    };
    let kind = match kind {
        0 => FaultKind::Block { from: 1 << node, to: !(1 << node), both: true },
        1 => FaultKind::Block { from: 1 << node, to: !(1 << node), both: false },
        2 => FaultKind::Crash { node },
        3 => FaultKind::PowerCut { nodes: 1 << node },
        4 => FaultKind::Pause { node },
        5 if node != other => FaultKind::Break { one: node, other },
        6 if node != other => {
            FaultKind::Slow { one: node, other, extra: MILLI * (1 + random.below(200)) }
        }
        7 if disk => FaultKind::DiskStall { node },
        8 => FaultKind::Operator { node, wish: wish(random) },
        _ => return None,
    };
    let crash = matches!(kind, FaultKind::Crash { .. } | FaultKind::PowerCut { .. });
    let when = if crash && random.once_in(2) {
        When::Output(200 + random.below(plan.requests * 60))
    } else {
        When::At(MILLI * 200 + random.below(plan.heal_at - MILLI * 200))
    };
    Some(Fault { when, length, kind })
}

fn wish(random: &mut Prng) -> Wish {
    match random.below(7) {
        0..=2 => Wish::Promote,
        3 => Wish::Demote,
        4 => Wish::PauseResync,
        5 => Wish::Suspend,
        _ => Wish::Cut,
    }
}
