//! Changes in which several nodes take part: making a resource, adding and removing a replica. The command line
//! coordinates; there is no controller.
//!
//! Always: a resource is made on all of its nodes or on none. What was done before somebody refused, or an operator
//! interrupted it, is undone, and it is said if that failed too. What an earlier `create` has left half-made is taken
//! away first if it is certain that nobody ever used it. All nodes that answer keep the name for who makes it, so that
//! what is half-made then is nobody's any more.
//!
//! Not here: removing a resource (`removal`).

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use base::NodeId;
use serde::Serialize;
use wire::admin::{
    Code, Command, FileMember, FileNode, FileStore, FileTiming, FileVolume, NodeStatus, Operation,
    ReplicaState, ReplicaStatus, ResourceFile, ResourceStatus, StoreKind, codes,
};
use wire::{AfterSplitBrain, MemberKind, Quorum};

use super::removal::absent_is_fine;
use super::{at_primary, check_blocks, clients, description, doer, done, file_of, removal};
use crate::admin::{Node, Reserved};
use crate::cli::{AddReplica, Create, Form, OnNode, Store};
use crate::cluster::{Cluster, node_status};
use crate::dev::StopOnce;
use crate::output::{LiveLine, Style, say, say_json};
use crate::problem::{
    ALREADY_MEMBER, INTERRUPTED, NO_MEMBER, NODE_DOWN, Problem, RESOURCE_EXISTS, TOO_FEW_NODES,
    USAGE,
};
use crate::unit::show_size;
use crate::view::{Views, is_unjoined, unmade};

/// How long a node may take to end its part once it is no member and is not busy any more.
const CLEAR_LIMIT: Duration = Duration::from_secs(20);
/// How long nodes that have just started, or have just been told of a resource, may take to meet.
const MEET_LIMIT: Duration = Duration::from_secs(5);
/// Between two looks whether it has.
const LOOK_EVERY: Duration = Duration::from_millis(50);

#[derive(Serialize)]
struct CreatedJson<'a> {
    version: u16,
    resource: &'a str,
    id: String,
    replicas: Vec<&'a str>,
    witnesses: Vec<&'a str>,
    nbd: Vec<String>,
}

/// Nodes of a new resource, by their part in it.
pub(crate) struct Cast<'a> {
    replicas: Vec<&'a Node>,
    witnesses: Vec<&'a Node>,
    /// Everyone who answers and is no member.
    clients: Vec<&'a Node>,
    /// All nodes of the cluster, as its members know them.
    nodes: BTreeMap<u16, String>,
    ids: BTreeMap<String, u16>,
    /// Threads of the nodes that answer, by number.
    threads: BTreeMap<u16, u16>,
    /// The name is kept as long as this is.
    _reserved: Vec<Reserved>,
}

impl Cast<'_> {
    fn members(&self) -> impl Iterator<Item = &Node> {
        self.replicas.iter().chain(&self.witnesses).copied()
    }

    fn everyone(&self) -> impl Iterator<Item = &Node> {
        self.members().chain(self.clients.iter().copied())
    }
}

/// Makes a resource; says who takes part and what it is.
pub(crate) fn make_new<'a>(
    cluster: &'a Cluster,
    style: Style,
    wanted: &Create,
) -> Result<(Cast<'a>, ResourceFile), Problem> {
    if let Some(path) = &wanted.from {
        return make_described(cluster, style, wanted, path);
    }
    check_blocks(wanted.size.unwrap_or_default(), wanted.block_bytes())?;
    if wanted.options().quorum == Quorum::Off && wanted.witnesses > 0 {
        let message = format!("{}: {}", wanted.name, codes::WITNESS_WITHOUT_QUORUM);
        return Err(Problem::from_code(&codes::UNSUPPORTED, message));
    }
    let cast = choose(cluster, wanted)?;
    free_name(cluster, &wanted.name)?;
    let store = wanted.store.or(cluster.dev.as_ref().map(|dev| dev.store())).unwrap_or(Store::File);
    let mut file = describe(wanted, &cast, store);
    if let Some(node) = wanted.discarded_node() {
        let id = cast.ids.get(node).copied().ok_or_else(|| {
            Problem::new(NO_MEMBER, format!("{node} holds no copy of {}", wanted.name))
        })?;
        file.options.after_split_brain = AfterSplitBrain::DiscardNode(id);
    }
    file.check().map_err(|error| Problem::new(USAGE, error.0))?;
    make(&cast, style, &file, wanted.force)?;
    Ok((cast, file))
}

/// Has the name kept by all nodes that answer. They are asked in one order by everybody, so that of those who want it at
/// the same time one gets it.
fn reserve(answers: &[(&Node, NodeStatus)], name: &str) -> Result<Vec<Reserved>, Problem> {
    let mut nodes: Vec<_> = answers.iter().map(|(node, status)| (status.node_id, *node)).collect();
    nodes.sort_by_key(|(id, _)| *id);
    let keep = |(_, node): (u16, &Node)| {
        node.reserve(name).map_err(|problem| match problem.is(&codes::BUSY) {
            true => under_way(name, &node.name),
            false => problem,
        })
    };
    nodes.into_iter().map(keep).collect()
}

fn under_way(name: &str, node: &str) -> Problem {
    let message =
        format!("another `create` of {name:?} is under way, as {node} says; nothing was changed");
    let mut problem = Problem::new(RESOURCE_EXISTS, message);
    problem.remedy = "Wait until that one is done, or choose another name.".to_owned();
    problem
}

/// Refuses a name that a resource has, unless an interrupted `create` has left it: that is taken away.
fn free_name(cluster: &Cluster, name: &str) -> Result<(), Problem> {
    let views = Views::gather(cluster, Some(name))?;
    let Some(view) = views.best(name) else { return Ok(()) };
    let mut message = format!("there is a resource {name:?} already");
    let all = views.all_of(name);
    let unmade = unmade(&views.answering, view, all);
    if unmade.is_empty() || views.names_several(name) {
        return Err(Problem::new(RESOURCE_EXISTS, message));
    }
    // A part that is there and not in use may hold anything; a node that is silent, too.
    let certain = |(node, view): &(String, ResourceStatus)| {
        let own = view.replicas.iter().find(|row| row.node == *node);
        let client = own.is_none_or(|own| own.state == ReplicaState::Diskless);
        view.uncreated || client || own.is_some_and(|own| USABLE.contains(&own.state))
    };
    if !views.unheard(name).is_empty() || !all.iter().all(certain) {
        let nodes = unmade.join(", ");
        message.push_str(&format!(
            ", which is not made yet on {nodes}; whether it was ever used is not known"
        ));
        return Err(Problem::new(RESOURCE_EXISTS, message));
    }
    let (cluster, views) = views.about(cluster, name)?;
    removal::remove_unused(&cluster, &views, name)
}

/// States of a node's own part that works.
const USABLE: [ReplicaState; 2] = [ReplicaState::InSync, ReplicaState::Witness];

/// What all nodes that answer say of themselves; they must be of one cluster.
fn ask_nodes(cluster: &Cluster) -> Result<Vec<(&Node, NodeStatus)>, Problem> {
    let answers = cluster.ask_all(node_status)?;
    let said = answers.iter().map(|(node, said)| (node.name.as_str(), said.cluster.as_str()));
    cluster.refuse_mixed(said)?;
    Ok(answers)
}

/// Makes what a file describes.
fn make_described<'a>(
    cluster: &'a Cluster,
    style: Style,
    wanted: &Create,
    path: &Path,
) -> Result<(Cast<'a>, ResourceFile), Problem> {
    let answers = ask_nodes(cluster)?;
    let (mut nodes, mut ids) = (BTreeMap::new(), BTreeMap::new());
    let threads: BTreeMap<u16, u16> =
        answers.iter().map(|(_, status)| (status.node_id, status.threads)).collect();
    for (node, status) in &answers {
        ids.insert(node.name.clone(), status.node_id);
        know(&mut nodes, status);
    }
    let known = nodes
        .iter()
        .map(|(&id, name)| FileNode { id, name: name.clone(), addresses: Vec::new() })
        .collect();
    let file = description::read(path, &wanted.name, known, &threads)?;
    let _reserved = reserve(&answers, &wanted.name)?;
    free_name(cluster, &wanted.name)?;
    let answers_as = |id: u16| answers.iter().find(|(_, status)| status.node_id == id);
    let (mut replicas, mut witnesses) = (Vec::new(), Vec::new());
    for member in &file.members {
        let Some((node, _)) = answers_as(member.node) else {
            let name = file.node_name(NodeId(member.node)).unwrap_or("?");
            return Err(Problem::new(NODE_DOWN, format!("node {name} does not answer")));
        };
        match member.kind {
            MemberKind::Witness => witnesses.push(*node),
            _ => replicas.push(*node),
        }
    }
    let listed = |status: &NodeStatus| file.nodes.iter().any(|node| node.id == status.node_id);
    let member = |status: &NodeStatus| file.members.iter().any(|one| one.node == status.node_id);
    let clients = answers
        .iter()
        .filter(|(_, status)| listed(status) && !member(status))
        .map(|(node, _)| *node)
        .collect();
    let cast = Cast { replicas, witnesses, clients, nodes, ids, threads, _reserved };
    make(&cast, style, &file, wanted.force)?;
    Ok((cast, file))
}

/// `lockstep resource create`.
pub(super) fn create(cluster: &Cluster, style: Style, wanted: &Create) -> Result<(), Problem> {
    let (cast, file) = make_new(cluster, style, wanted)?;
    await_meeting(cluster, &wanted.name);
    let nbd = urls(&cast, &wanted.name);
    if style.form == Form::Json {
        return say_json(&CreatedJson {
            version: 1,
            resource: &wanted.name,
            id: format!("{:016x}", file.id),
            replicas: names(&cast.replicas),
            witnesses: names(&cast.witnesses),
            nbd,
        });
    }
    let mut text = format!("Made {}:", wanted.name);
    if let [volume] = file.volumes.as_slice() {
        text.push_str(&format!(" {}", show_size(volume.size_bytes)));
    } else {
        let sizes = file.volumes.iter().map(|volume| show_size(volume.size_bytes));
        let sizes: Vec<String> = sizes.collect();
        text.push_str(&format!(" {} volumes ({})", sizes.len(), sizes.join(", ")));
    }
    text.push_str(&format!(" on {}", names(&cast.replicas).join(", ")));
    if !cast.witnesses.is_empty() {
        text.push_str(&format!(", witness {}", names(&cast.witnesses).join(", ")));
    }
    text.push_str(". Use it from any node:\n");
    for url in nbd {
        text.push_str(&format!("  {url}\n"));
    }
    if let Some(note) = fragile(&file) {
        text.push_str(&note);
    }
    say(&text)
}

/// What to say of a resource that stands still as soon as any of its voters is away.
fn fragile(file: &ResourceFile) -> Option<String> {
    let waits = file.members.len() == 2 && file.options.quorum == Quorum::Majority;
    let note = || {
        format!(
            "Note: of two voters both are a majority, so requests wait while either node is away. A third vote, which needs no \
             room, helps: lockstep resource add-replica {} --node NODE --witness\n",
            file.name
        )
    };
    waits.then(note)
}

/// Waits a moment until the members have met, so that none is shown as absent that is only just on its way. It is made
/// all the same if they do not.
fn await_meeting(cluster: &Cluster, name: &str) {
    let deadline = Instant::now() + MEET_LIMIT;
    let is_absent = |row: &ReplicaStatus| row.state == ReplicaState::Absent;
    while let Ok(views) = Views::gather_within(cluster, Some(name), MEET_LIMIT) {
        let parted = |(_, view): &(String, ResourceStatus)| view.replicas.iter().any(is_absent);
        if !views.all_of(name).iter().any(parted) || Instant::now() >= deadline {
            return;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn names<'a>(nodes: &[&'a Node]) -> Vec<&'a str> {
    nodes.iter().map(|node| node.name.as_str()).collect()
}

/// Who takes part. Only nodes that answer can be members.
fn choose<'a>(cluster: &'a Cluster, wanted: &Create) -> Result<Cast<'a>, Problem> {
    let answers = ask_nodes(cluster)?;
    let (mut nodes, mut ids) = (BTreeMap::new(), BTreeMap::new());
    let threads: BTreeMap<u16, u16> =
        answers.iter().map(|(_, status)| (status.node_id, status.threads)).collect();
    for (node, status) in &answers {
        ids.insert(node.name.clone(), status.node_id);
        know(&mut nodes, status);
    }
    let mut pool: Vec<&Node> = Vec::new();
    if wanted.nodes.is_empty() {
        pool.extend(answers.iter().map(|(node, _)| *node));
    }
    for name in &wanted.nodes {
        let node = cluster.node(name)?;
        if !ids.contains_key(name) {
            let message = format!("node {name} does not answer");
            return Err(Problem::new(NODE_DOWN, message));
        }
        if pool.iter().any(|other| other.name == *name) {
            return Err(Problem::new(USAGE, format!("node {name} is named twice")));
        }
        pool.push(node);
    }
    let (replicas, witnesses) = (usize::from(wanted.replicas), usize::from(wanted.witnesses));
    if pool.len() < replicas + witnesses {
        let silent = cluster.nodes.iter().filter(|node| !ids.contains_key(&node.name));
        let silent: Vec<&str> = silent.map(|node| node.name.as_str()).collect();
        let wanted_nodes = replicas + witnesses;
        let mut message = format!(
            "{replicas} replicas and {witnesses} witnesses need {wanted_nodes} nodes; there are {}",
            pool.len()
        );
        if wanted.nodes.is_empty() && pool.len() + silent.len() >= wanted_nodes {
            message.push_str(&format!(" that answer; not answering: {}", silent.join(", ")));
            return Err(Problem::new(NODE_DOWN, message));
        }
        return Err(Problem::new(TOO_FEW_NODES, message));
    }
    let witnesses = pool[replicas..replicas + witnesses].to_vec();
    let replicas = pool[..replicas].to_vec();
    let member =
        |node: &Node| replicas.iter().chain(&witnesses).any(|member| member.name == node.name);
    let clients = answers.iter().map(|(node, _)| *node).filter(|node| !member(node)).collect();
    let _reserved = reserve(&answers, &wanted.name)?;
    Ok(Cast { replicas, witnesses, clients, nodes, ids, threads, _reserved })
}

/// Adds a node and the peers it knows.
fn know(nodes: &mut BTreeMap<u16, String>, status: &NodeStatus) {
    nodes.insert(status.node_id, status.node.clone());
    for peer in &status.peers {
        nodes.insert(peer.node_id, peer.node.clone());
    }
}

fn describe(wanted: &Create, cast: &Cast<'_>, store: Store) -> ResourceFile {
    let stores = |kind: MemberKind| match (kind, store) {
        (MemberKind::Replica, Store::Memory) => (0..wanted.volumes).map(memory).collect(),
        _ => Vec::new(),
    };
    let member = |node: &Node, kind: MemberKind| FileMember {
        node: cast.ids.get(&node.name).copied().unwrap_or_default(),
        kind,
        voter: None,
        incarnation: None,
        in_sync: None,
        stores: stores(kind),
    };
    let replicas = cast.replicas.iter().map(|node| member(node, MemberKind::Replica));
    let witnesses = cast.witnesses.iter().map(|node| member(node, MemberKind::Witness));
    ResourceFile {
        name: wanted.name.clone(),
        id: description::new_id(),
        shards: wanted.shards.count(
            cast.replicas
                .iter()
                .filter_map(|node| cast.threads.get(cast.ids.get(&node.name)?))
                .copied(),
        ),
        options: wanted.options(),
        timing: FileTiming::default(),
        nodes: cast
            .nodes
            .iter()
            .map(|(&id, name)| FileNode { id, name: name.clone(), addresses: Vec::new() })
            .collect(),
        members: replicas.chain(witnesses).collect(),
        volumes: (0..wanted.volumes)
            .map(|index| FileVolume {
                index,
                size_bytes: wanted.size.unwrap_or_default(),
                block_bytes: wanted.block_bytes(),
                log_extents: wanted.log_extents,
            })
            .collect(),
    }
}

fn memory(volume: u16) -> FileStore {
    FileStore { volume, kind: StoreKind::Memory, path: None, metadata_path: None, keep: false }
}

/// Makes it everywhere, or nowhere.
fn make(cast: &Cast<'_>, style: Style, file: &ResourceFile, force: bool) -> Result<(), Problem> {
    let stop = StopOnce::listen()?;
    let go_on = || match stop.is_told() {
        true => Err(Problem::new(INTERRUPTED, format!("{}: interrupted", file.name))),
        false => Ok(()),
    };
    let mut defined: Vec<&Node> = Vec::new();
    let mut created: Vec<&Node> = Vec::new();
    let mut line = LiveLine::new(style);
    let mut attempt = || -> Result<(), Problem> {
        for node in cast.everyone() {
            go_on()?;
            defined.push(node);
            node.change(Command::ResourceDefine { file: Box::new(file.clone()) })?;
        }
        for node in cast.members() {
            go_on()?;
            if style.form == Form::Human {
                line.show(&format!("waiting: {} makes its store", node.name))?;
            }
            let command = Command::ResourceCreate { resource: file.name.clone(), force };
            node.about(file.id).change_unless(command, &|| stop.is_told())?;
            created.push(node);
        }
        go_on()
    };
    let attempted = attempt();
    line.end().ok();
    let Err(mut problem) = attempted else { return Ok(()) };
    let mut left = Vec::new();
    for node in &defined {
        let mine = created.iter().any(|other| other.name == node.name);
        if let Err(kept) = undo(&node.about(file.id), &file.name, mine) {
            left.push(format!("{} ({})", node.name, kept.message));
        }
    }
    match left.is_empty() {
        true => problem.message.push_str("; nothing was changed"),
        false => problem.message.push_str(&format!(
            "; undoing failed on some nodes, where parts of it are left: {}; what to do: lockstep explain {}",
            left.join(", "),
            file.name
        )),
    }
    Err(problem)
}

/// Removes a node's part, and its store only if that was made just now: without force a node touches
/// no store that it does not use.
fn undo(node: &Node, name: &str, created: bool) -> Result<(), Problem> {
    let resource = name.to_owned();
    // A majority that was made may have served already: what it was told is not undone.
    absent_is_fine(node.change(Command::ResourceDelete { resource, force: created, unused: true }))
}

/// Where NBD clients find it: as the nodes say, replicas first.
fn urls(cast: &Cast<'_>, name: &str) -> Vec<String> {
    let of = |node: &Node| {
        let status = node.status(Some(name)).ok()?;
        let resource: ResourceStatus = status.resources.into_iter().next()?;
        Some(resource.volumes.into_iter().flat_map(|volume| volume.nbd).collect::<Vec<_>>())
    };
    let tcp = |url: &String| url.starts_with("nbd://") || url.starts_with("nbds://");
    cast.everyone().filter_map(of).flatten().filter(tcp).collect()
}

/// `lockstep resource add-replica`.
pub(crate) fn add_replica(
    cluster: &Cluster,
    style: Style,
    wanted: &AddReplica,
) -> Result<(), Problem> {
    let AddReplica { on: OnNode { name, node: on }, witness, force, .. } = wanted;
    let node = cluster.node(on)?;
    let _kept = keep_part(node, name)?;
    let (ref cluster, views) = Views::one(cluster, name)?;
    let view = views.require(name)?;
    let old = view.replicas.iter().find(|replica| replica.node == *on);
    if old.is_some_and(|replica| replica.state != ReplicaState::Diskless) {
        return Err(Problem::new(ALREADY_MEMBER, format!("{on} is a member of {name} already")));
    }
    require_quorum(cluster, name)?;
    let status = node_status(node)?;
    let mut file = file_of(doer(cluster, &views, name)?, name)?;
    let entry = FileNode { id: status.node_id, name: on.to_owned(), addresses: Vec::new() };
    let stores = stores_of_new(cluster, &file, wanted)?;
    if !file.nodes.iter().any(|node| node.id == status.node_id) {
        clients::admit(cluster, &views, name, &entry)?;
        file.nodes.push(entry.clone());
    }
    if views.of(name, on).is_some() {
        // A copy that a fork has left out is still there; what it holds is given up here and now, if there is
        // somebody to copy from.
        if !view.quorum && views.left_out(name).iter().any(|left| left == on) {
            let message = format!("{name}: too few voters answer; nothing was changed");
            return Err(Problem::from_code(&codes::NO_QUORUM, message));
        }
        clear(cluster, node, name, status.node_id)?;
    }
    let kind = if *witness { MemberKind::Witness } else { MemberKind::Replica };
    let member = FileMember {
        node: status.node_id,
        kind,
        voter: Some(sys::random_u64() | 1),
        incarnation: (kind == MemberKind::Replica).then(|| sys::random_u64() | 1),
        in_sync: Some(false),
        stores,
    };
    file.members.retain(|member| member.node != status.node_id);
    file.members.push(member.clone());
    node.change(Command::ResourceDefine { file: Box::new(file.clone()) })?;
    let operation = Operation::AddReplica { member: Box::new(member), node: Some(entry) };
    let create = Command::ResourceCreate { resource: name.clone(), force: *force };
    let made = node.about(file.id).change(create);
    let joined = made.clone().and_then(|()| at_primary(cluster, name, &operation));
    if let Err(problem) = joined {
        let asked = made.is_ok();
        if !asked || !has_joined(cluster, (name, node), status.node_id, &problem)? {
            file.members.retain(|member| member.node != status.node_id);
            return Err(not_joined(node, file, problem));
        }
    }
    let words =
        if *witness { "votes as witness" } else { "holds a replica and is being copied to" };
    done(style, name, &format!("{on} {words}"))
}

/// What a copy that is added is kept in; a file in its node's directory where nothing is said.
fn stores_of_new(
    cluster: &Cluster,
    file: &ResourceFile,
    wanted: &AddReplica,
) -> Result<Vec<FileStore>, Problem> {
    let store = cluster.dev.as_ref().map_or(Store::File, |dev| dev.store());
    let mut volumes: Vec<u16> = file.volumes.iter().map(|volume| volume.index).collect();
    volumes.sort_unstable();
    if wanted.device.is_empty() {
        let in_memory = store == Store::Memory && !wanted.witness;
        return Ok(volumes.into_iter().filter(|_| in_memory).map(memory).collect());
    }
    if wanted.device.len() != volumes.len() {
        let message = format!(
            "{}: {} devices for {} volumes; give one for each, in their order",
            file.name,
            wanted.device.len(),
            volumes.len()
        );
        return Err(Problem::new(USAGE, message));
    }
    let of = |(volume, path): (u16, &String)| FileStore {
        kind: StoreKind::Device,
        path: Some(path.clone()),
        ..memory(volume)
    };
    Ok(volumes.into_iter().zip(&wanted.device).map(of).collect())
}

/// Has the name kept by a node, so that one program at a time changes its part. A node that does not answer keeps nothing.
fn keep_part(node: &Node, name: &str) -> Result<Option<Reserved>, Problem> {
    match node.reserve(name) {
        Ok(kept) => Ok(Some(kept)),
        Err(problem) if problem.is(&codes::BUSY) => {
            let message = format!(
                "{name}: somebody else is changing the part of {}; nothing was changed",
                node.name
            );
            Err(Problem::from_code(&codes::BUSY, message))
        }
        Err(_) => Ok(None),
    }
}

/// Whether a node was added although that failed, as `problem` says: somebody else came before, or the answer did not
/// come. Where that is not known its part stays: it would be missed.
fn has_joined(
    cluster: &Cluster,
    (name, node): (&str, &Node),
    id: u16,
    problem: &Problem,
) -> Result<bool, Problem> {
    let told = || {
        let (ref cluster, views) = Views::one(cluster, name)?;
        let doer = doer(cluster, &views, name)?;
        // What the node itself says is what it was told here.
        let other = doer.name != node.name;
        Ok::<_, Problem>(Some(file_of(doer, name)?).filter(|_| other))
    };
    let is_named = |file: ResourceFile| file.members.iter().any(|member| member.node == id);
    if told().ok().flatten().is_some_and(is_named) {
        return Ok(true);
    }
    // Codes from LS-0900 on say that no node has answered.
    let undecided = UNDECIDED.iter().any(|code| problem.is(code));
    if problem.code.as_str() < "LS-0900" && !undecided {
        return Ok(false);
    }
    let mut problem = problem.clone();
    problem
        .message
        .push_str(&format!("; {} may be added all the same: lockstep status {name}", node.name));
    Err(problem)
}

/// What a node says of a change that it may have begun.
const UNDECIDED: [&Code; 6] = [
    &codes::NO_QUORUM,
    &codes::NO_COPY,
    &codes::NO_PRIMARY,
    &codes::OTHER_PRIMARY,
    &codes::TIMEOUT,
    &codes::STOPPING,
];

/// Takes back the part of a node that was not added.
fn not_joined(node: &Node, without: ResourceFile, mut problem: Problem) -> Problem {
    if node.change(Command::ResourceDefine { file: Box::new(without) }).is_ok() {
        problem.message.push_str("; nothing was changed");
    }
    problem
}

/// Refuses, before anything is changed, what only a majority can decide. Nodes that have just started are given time to
/// meet.
fn require_quorum(cluster: &Cluster, name: &str) -> Result<(), Problem> {
    let deadline = Instant::now() + MEET_LIMIT;
    loop {
        let views = Views::gather_within(cluster, Some(name), MEET_LIMIT)?;
        if views.require(name)?.quorum {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let message = format!("{name}: too few voters answer; nothing was changed");
            return Err(Problem::from_code(&codes::NO_QUORUM, message));
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// `lockstep resource remove-replica`.
pub(crate) fn remove_replica(cluster: &Cluster, style: Style, on: &OnNode) -> Result<(), Problem> {
    let name = &on.name;
    let _kept = cluster.node(&on.node).map_or(Ok(None), |node| keep_part(node, name))?;
    let (ref cluster, views) = Views::one(cluster, name)?;
    let view = views.require(name)?;
    let is_member =
        |row: &&ReplicaStatus| row.node == on.node && row.state != ReplicaState::Diskless;
    let Some(member) = view.replicas.iter().find(is_member) else {
        if views.of(name, &on.node).is_some_and(|own| is_unjoined(view, &on.node, own)) {
            let node = cluster.node(&on.node)?;
            clear(cluster, node, name, node_status(node)?.node_id)?;
            return done(style, name, &format!("{} was no member yet, and holds nothing", on.node));
        }
        return Err(Problem::new(NO_MEMBER, format!("{} is no member of {name}", on.node)));
    };
    require_quorum(cluster, name)?;
    let id = match member.node_id {
        0 => file_of(doer(cluster, &views, name)?, name)?
            .nodes
            .iter()
            .find(|node| node.name == on.node)
            .map_or(0, |node| node.id),
        id => id,
    };
    let mut line = LiveLine::new(style);
    line.show(&format!("waiting: the others agree to go on without {}", on.node))?;
    let removed = at_primary(cluster, name, &Operation::RemoveReplica { node: id });
    line.end()?;
    removed?;
    let Ok(node) = cluster.node(&on.node) else {
        return done(style, name, &format!("{} holds no replica any more", on.node));
    };
    if let Some((_, why)) = views.silent.iter().find(|(silent, _)| *silent == on.node) {
        return done(style, name, &left_there(on, why));
    }
    line.show(&format!("waiting: {} removes what it stored", on.node))?;
    let cleared = clear(cluster, node, name, id);
    line.end()?;
    if let Err(problem) = cleared {
        return done(style, name, &left_there(on, &problem.message));
    }
    done(style, name, &format!("{} holds no replica any more", on.node))
}

/// What becomes of a former member's store that it did not remove now.
fn left_there(on: &OnNode, why: &str) -> String {
    let (node, name) = (&on.node, &on.name);
    format!(
        "{node} is no member any more; what it stored is still there ({why}). It removes that by itself when it hears \
         of it; if it does not: `lockstep resource forget {name} --node {node}`"
    )
}

/// Waits until a former member has removed its store and goes on as a client. It does so by itself as
/// soon as it hears that it is no member.
fn clear(cluster: &Cluster, node: &Node, name: &str, id: u16) -> Result<(), Problem> {
    let (ref cluster, views) = Views::one(cluster, name)?;
    let mut file = file_of(doer(cluster, &views, name)?, name)?;
    file.members.retain(|member| member.node != id);
    let command = Command::ResourceDefine { file: Box::new(file) };
    node.ask_within(command, CLEAR_LIMIT).map(|_| ())
}
