//! `lockstep resource`: changing resources without a controller.
//!
//! Always: a change goes to the one node that must do it (the primary, or the node whose copy it
//! concerns); what is refused names the node that refused.
//!
//! Not here: making and growing, where several nodes take part (`cast`), deleting (`removal`), which nodes may use it
//! (`clients`).

mod cast;
mod clients;
mod description;
mod removal;
mod verify;

use serde::Serialize;
use wire::admin::{
    Answer, Command, Operation, OptionsChange, ReplicaState, ReplicaStatus, ResourceFile,
    ResourceStatus, codes,
};

use crate::admin::{Node, unexpected};
use crate::cli::{Force, Form, Global, OnNode, Resource, SetOptions, Wanted};
use crate::cluster::Cluster;
use crate::output::{Cell, Style, Tone, say, say_json};
use crate::problem::{
    COPY_IS_OLDER, NEEDLESS, NO_MEMBER, Problem, TIMED_OUT, USAGE, VOLUME_ABSENT,
};
use crate::unit::show_size;
use crate::view::{Views, Watching, is_remnant, label, reached, silent_line, size_of};

pub(crate) use cast::make_new;

/// How often a change is sent again because the primary moved meanwhile.
const MOVES_MAX: u32 = 5;

/// What a change answers in JSON.
#[derive(Serialize)]
struct DoneJson<'a> {
    version: u16,
    resource: &'a str,
    done: &'a str,
}

/// Does what was asked.
pub(crate) fn run(global: &Global, command: &Resource) -> Result<(), Problem> {
    let style = Style::of(global);
    let cluster = Cluster::open(global)?;
    match command {
        Resource::Create(wanted) => cast::create(&cluster, style, wanted),
        Resource::List => list(&cluster, style),
        Resource::Show { name } => show(&cluster, style, name),
        Resource::Promote(on) => promote(&cluster, style, on),
        Resource::Demote { name } => demote(&cluster, style, name),
        Resource::AddReplica(wanted) => cast::add_replica(&cluster, style, wanted),
        Resource::RemoveReplica(on) => cast::remove_replica(&cluster, style, on),
        Resource::AddClient(on) => clients::add(&cluster, style, on),
        Resource::RemoveClient(on) => clients::remove(&cluster, style, on),
        Resource::Resize { name, size, volume, force } => {
            let operation =
                Operation::Resize { volume: *volume, size_bytes: *size, allow_shrink: *force };
            resize(&cluster, style, name, *volume, operation)
        }
        Resource::SetOptions(wanted) => set_options(&cluster, style, wanted),
        Resource::Verify(wanted) => verify::verify(&cluster, style, wanted),
        Resource::Invalidate(on) => invalidate(&cluster, style, on),
        Resource::Suspend { name } => {
            change(&cluster, style, name, Operation::Suspend {}, "requests wait now")
        }
        Resource::Resume { name } => {
            change(&cluster, style, name, Operation::Resume {}, "requests go on")
        }
        Resource::PauseResync { name } => {
            change(&cluster, style, name, Operation::PauseResync {}, "resync waits now")
        }
        Resource::ResumeResync { name } => {
            change(&cluster, style, name, Operation::ResumeResync {}, "resync goes on")
        }
        Resource::FailWaiting(on) => {
            let words = format!(
                "requests of {} that wait for missing nodes get I/O errors, and so do new ones, until those nodes are back or \
                 `lockstep resource let-wait {} --node {}`",
                on.node, on.name, on.node
            );
            on_node(&cluster, style, on, Operation::FailWaiting {}, &words)
        }
        Resource::LetWait(on) => {
            let words = format!("requests of {} wait for missing nodes", on.node);
            on_node(&cluster, style, on, Operation::LetWait {}, &words)
        }
        Resource::Force(wanted) => force(&cluster, style, wanted),
        Resource::Resolve { name, discard } => resolve(&cluster, style, name, discard),
        Resource::Delete { name, force } => removal::delete(&cluster, style, name, *force),
        Resource::Forget { name, node, force } => {
            removal::forget(&cluster, style, name, node, *force)
        }
    }
}

/// Says that a change is made.
pub(crate) fn done(style: Style, resource: &str, done: &str) -> Result<(), Problem> {
    match style.form {
        Form::Json => say_json(&DoneJson { version: 1, resource, done }),
        Form::Human => say(&format!("{resource}: {done}.\n")),
    }
}

/// Makes a change where it must be made: at the primary, else at a node with a good copy.
pub(crate) fn at_primary(
    cluster: &Cluster,
    name: &str,
    operation: &Operation,
) -> Result<(), Problem> {
    let (ref cluster, mut views) = Views::one(cluster, name)?;
    let mut last = None;
    for _ in 0..MOVES_MAX {
        let node = doer(cluster, &views, name)?;
        match node.operate(name, operation.clone()) {
            // The primary moved between the look and the change.
            Err(problem) if problem.is(&codes::OTHER_PRIMARY) => last = Some(problem),
            outcome => return outcome,
        }
        (_, views) = Views::one(cluster, name)?;
    }
    Err(last
        .unwrap_or_else(|| Problem::new(TIMED_OUT, format!("{name}: the primary keeps moving"))))
}

/// The node to ask for a change.
pub(crate) fn doer<'a>(
    cluster: &'a Cluster,
    views: &Views,
    name: &str,
) -> Result<&'a Node, Problem> {
    let view = views.require(name)?;
    let answers = |node: &&Node| views.of(name, &node.name).is_some();
    let primary = view.primary.as_deref();
    let good = |node: &&Node| {
        view.replicas.iter().any(|replica| {
            replica.node == node.name && replica.in_sync && replica.state == ReplicaState::InSync
        })
    };
    let reachable = || cluster.nodes.iter().filter(answers);
    reachable()
        .find(|node| Some(node.name.as_str()) == primary)
        .or_else(|| reachable().find(good))
        .or_else(|| reachable().next())
        .ok_or_else(|| crate::view::absent(name, &views.silent))
}

fn change(
    cluster: &Cluster,
    style: Style,
    name: &str,
    operation: Operation,
    words: &str,
) -> Result<(), Problem> {
    at_primary(cluster, name, &operation)?;
    done(style, name, words)
}

fn set_options(cluster: &Cluster, style: Style, wanted: &SetOptions) -> Result<(), Problem> {
    let mut options = wanted.change();
    if options == OptionsChange::default() {
        return Err(Problem::new(USAGE, "no option to change is named"));
    }
    let (ref cluster, views) = Views::one(cluster, &wanted.name)?;
    if let Some(node) = wanted.discarded_node() {
        let id = member_id(&views, &wanted.name, node)?;
        options.after_split_brain = Some(wire::AfterSplitBrain::DiscardNode(id));
    }
    let operation = Operation::SetOptions { options };
    change(cluster, style, &wanted.name, operation, "the options are changed")
}

/// Number of a node that the resource knows.
fn member_id(views: &Views, name: &str, node: &str) -> Result<u16, Problem> {
    let view = views.require(name)?;
    let member = view.replicas.iter().find(|replica| replica.node == node);
    let absent = || Problem::new(NO_MEMBER, format!("node {node} is no member of {name}"));
    member.map(|member| member.node_id).ok_or_else(absent)
}

/// Makes a change at the node that is named, to the resource that all nodes know by the name.
fn at_node(cluster: &Cluster, on: &OnNode, operation: Operation) -> Result<(), Problem> {
    cluster.node(&on.node)?.greet()?;
    let (ref cluster, views) = Views::one(cluster, &on.name)?;
    views.require(&on.name)?;
    cluster.node(&on.node)?.operate(&on.name, operation)
}

fn on_node(
    cluster: &Cluster,
    style: Style,
    on: &OnNode,
    operation: Operation,
    words: &str,
) -> Result<(), Problem> {
    at_node(cluster, on, operation)?;
    done(style, &on.name, words)
}

fn promote(cluster: &Cluster, style: Style, on: &OnNode) -> Result<(), Problem> {
    match at_node(cluster, on, Operation::Promote {}) {
        Err(problem) if problem.is(&codes::ALREADY) => {}
        outcome => outcome?,
    }
    done(style, &on.name, &format!("{} is primary", on.node))
}

fn demote(cluster: &Cluster, style: Style, name: &str) -> Result<(), Problem> {
    let (ref cluster, views) = Views::one(cluster, name)?;
    let Some(primary) = views.require(name)?.primary.clone() else {
        return done(style, name, "no node was primary");
    };
    match cluster.node(&primary)?.operate(name, Operation::Demote {}) {
        // Its reign ended in between.
        Err(problem) if problem.is(&codes::ALREADY) => {}
        outcome => outcome?,
    }
    done(style, name, &format!("{primary} is primary no more"))
}

fn invalidate(cluster: &Cluster, style: Style, on: &OnNode) -> Result<(), Problem> {
    let anew = |mut problem: Problem| {
        if problem.is(&codes::NO_REPLICA) {
            let (name, node) = (&on.name, &on.node);
            problem.remedy = format!(
                "If {node} is a member whose disk cannot be used: lockstep resource remove-replica {name} --node {node}, then \
                 lockstep resource add-replica {name} --node {node} --force. Else ask a node that has a copy."
            );
        }
        problem
    };
    at_node(cluster, on, Operation::Invalidate {}).map_err(anew)?;
    done(style, &on.name, &format!("the copy on {} is made anew from the others", on.node))
}

fn force(cluster: &Cluster, style: Style, wanted: &Force) -> Result<(), Problem> {
    let on = &wanted.on;
    cluster.node(&on.node)?;
    let (ref cluster, views) = Views::gather(cluster, Some(&on.name))?.about(cluster, &on.name)?;
    let view = views.whole(&on.name)?;
    if !wanted.discard_newer {
        refuse_needless(cluster, &views, &view)?;
        refuse_older(&views, &view, &on.node)?;
    }
    at_node(cluster, on, Operation::Force {})?;
    let words = format!(
        "goes on from the copy on {}; other copies are given up{}. `lockstep explain {}` says how to take them \
         again",
        on.node,
        given_up(&view, &on.node),
        on.name
    );
    done(style, &on.name, &words)
}

/// Nothing is forced that goes on by itself, or that the others have deleted.
fn refuse_needless(cluster: &Cluster, views: &Views, view: &ResourceStatus) -> Result<(), Problem> {
    let name = &view.name;
    if is_remnant(view) {
        let message = format!(
            "{name} was deleted on other nodes: a part of it is left over; nothing was changed"
        );
        let mut problem = Problem::new(NEEDLESS, message);
        problem.remedy = format!(
            "`lockstep explain {name}` says how to remove that part. To bring {name} back with what it holds: --discard-newer"
        );
        return Err(problem);
    }
    if reached(views, cluster, name, Wanted::Healthy).is_ok() {
        let message =
            format!("{name} has all of its copies, and nothing waits; nothing was changed");
        return Err(Problem::new(NEEDLESS, message));
    }
    Ok(())
}

/// A copy that lacks writes is not forced while a node answers whose copy has them all.
fn refuse_older(views: &Views, view: &ResourceStatus, node: &str) -> Result<(), Problem> {
    let own = view.replicas.iter().find(|replica| replica.node == node);
    let Some(own) = own.filter(|own| own.state != ReplicaState::InSync) else { return Ok(()) };
    let answers = |replica: &&ReplicaStatus| {
        replica.state == ReplicaState::InSync && views.of(&view.name, &replica.node).is_some()
    };
    let Some(better) = view.replicas.iter().find(answers) else { return Ok(()) };
    let why = own.reason.as_deref().unwrap_or("it lacks writes");
    let message = format!(
        "{}: the copy on {node} is older ({why}), and that on {}, which answers, holds every acknowledged write; \
         nothing was changed",
        view.name, better.node
    );
    let mut problem = Problem::new(COPY_IS_OLDER, message);
    problem.remedy = format!(
        "lockstep resource force {} --node {}. To lose what {node} lacks all the same: --discard-newer",
        view.name, better.node
    );
    Err(problem)
}

/// What is known of the copies that are not taken.
fn given_up(view: &ResourceStatus, node: &str) -> String {
    let others = view.replicas.iter().filter(|replica| {
        replica.node != node
            && !matches!(replica.state, ReplicaState::Witness | ReplicaState::Diskless)
    });
    let words: Vec<String> = others
        .map(|replica| {
            let known = match replica.state {
                ReplicaState::InSync => "held every acknowledged write",
                ReplicaState::Absent => "not reached: it may be newer",
                ReplicaState::Detached => "not used",
                _ => "older",
            };
            format!("{} ({known})", replica.node)
        })
        .collect();
    if words.is_empty() { String::new() } else { format!(": {}", words.join(", ")) }
}

/// What is lost with the side of a node, in words.
fn goes_with(views: &Views, name: &str, discard: &str) -> String {
    let split = views.of(name, discard).and_then(|view| view.split_brain.first());
    split.map_or(String::new(), |split| {
        format!(
            " with up to {} written on history {}",
            show_size(split.mine_changed_bytes),
            split.mine
        )
    })
}

/// The other side is asked: the first of its nodes that knows of the split brain does it.
fn resolve(cluster: &Cluster, style: Style, name: &str, discard: &str) -> Result<(), Problem> {
    let (ref cluster, views) = Views::one(cluster, name)?;
    let operation = Operation::Resolve { discard: member_id(&views, name, discard)? };
    let goes = goes_with(&views, name, discard);
    let mut last = None;
    for node in cluster.nodes.iter().filter(|node| node.name != discard) {
        if views.of(name, &node.name).is_none() {
            continue;
        }
        match node.operate(name, operation.clone()) {
            Ok(()) => {
                let words =
                    format!("{} goes on; the side of {discard} is given up{goes}", node.name);
                return done(style, name, &words);
            }
            Err(problem) if last.is_none() || !problem.is(&codes::NO_SPLIT_BRAIN) => {
                last = Some(problem);
            }
            Err(_) => {}
        }
    }
    Err(last.unwrap_or_else(|| crate::view::absent(name, &views.silent)))
}

fn resize(
    cluster: &Cluster,
    style: Style,
    name: &str,
    index: u16,
    operation: Operation,
) -> Result<(), Problem> {
    let Operation::Resize { size_bytes, .. } = operation else { return Ok(()) };
    let (ref cluster, views) = Views::one(cluster, name)?;
    let volume = views.require(name)?.volumes.iter().find(|volume| volume.volume == index);
    let absent = || Problem::new(VOLUME_ABSENT, format!("{name} has no volume {index}"));
    check_blocks(size_bytes, volume.ok_or_else(absent)?.block_bytes)?;
    let watching = Watching::begin(cluster, style, name, "made zero", move |view| {
        let growth = view.volumes.iter().find(|volume| volume.volume == index)?.growth?;
        Some((growth.done_bytes, growth.total_bytes))
    });
    let result = at_primary(cluster, name, &operation);
    watching.end();
    result?;
    done(style, name, &format!("volume {index} has {} now", show_size(size_bytes)))
}

/// A size must be made of whole blocks.
pub(crate) fn check_blocks(size_bytes: u64, block_bytes: u32) -> Result<(), Problem> {
    if size_bytes.is_multiple_of(u64::from(block_bytes.max(1))) {
        return Ok(());
    }
    let message =
        format!("a size of {size_bytes} bytes is not made of whole blocks of {block_bytes}");
    Err(Problem::new(USAGE, message))
}

fn list(cluster: &Cluster, style: Style) -> Result<(), Problem> {
    let views = Views::gather(cluster, None)?;
    let status = views.merged();
    if style.form == Form::Json {
        return say_json(&status);
    }
    if status.resources.is_empty() {
        return say("There are no resources.\n");
    }
    let rows = status.resources.iter().map(|resource| list_row(&views, cluster, resource));
    let rows: Vec<Vec<Cell>> = rows.collect();
    let mut text = style.table(&["RESOURCE", "SIZE", "PRIMARY", "IN SYNC", "STATE"], &rows);
    text.push_str(&silent_line(style, &views));
    say(&text)
}

/// A copy counts here if it holds everything and its node is there; healthy is what `lockstep wait` calls so.
fn list_row(views: &Views, cluster: &Cluster, resource: &ResourceStatus) -> Vec<Cell> {
    let data = |state| !matches!(state, ReplicaState::Witness | ReplicaState::Diskless);
    let copies = resource.replicas.iter().filter(|replica| data(replica.state)).count();
    let is_silent = |node: &str| views.silent.iter().any(|(silent, _)| silent == node);
    let holds = |row: &&ReplicaStatus| {
        row.in_sync && row.state == ReplicaState::InSync && !is_silent(&row.node)
    };
    let good = resource.replicas.iter().filter(holds).count();
    let own = views.only(&(resource.name.clone(), resource.id.clone()));
    let healthy = reached(&own, cluster, &resource.name, Wanted::Healthy).is_ok();
    let state = if resource.uncreated {
        Cell("not made".to_owned(), Tone::Bad)
    } else if is_remnant(resource) {
        Cell("left over".to_owned(), Tone::Bad)
    } else if !resource.quorum {
        Cell("no quorum".to_owned(), Tone::Bad)
    } else if resource.suspended.is_some() {
        Cell("requests wait".to_owned(), Tone::Bad)
    } else if !healthy {
        Cell("degraded".to_owned(), Tone::Doubtful)
    } else {
        Cell("healthy".to_owned(), Tone::Good)
    };
    vec![
        Cell(label(views, resource), Tone::Strong),
        Cell::plain(size_of(resource)),
        Cell::plain(resource.primary.clone().unwrap_or("-".to_owned())),
        Cell::plain(format!("{good} of {copies}")),
        state,
    ]
}

/// What a node knows a resource to be.
pub(crate) fn file_of(node: &Node, name: &str) -> Result<ResourceFile, Problem> {
    match node.ask(Command::ResourceFile { resource: name.to_owned() })? {
        Answer::File(file) => Ok(*file),
        other => Err(unexpected(node, &other)),
    }
}

fn show(cluster: &Cluster, style: Style, name: &str) -> Result<(), Problem> {
    let (ref cluster, views) = Views::one(cluster, name)?;
    let view = views.require(name)?;
    let file = file_of(doer(cluster, &views, name)?, name)?;
    if style.form == Form::Json {
        return say_json(&serde_json::json!({ "version": 1, "resource": file, "status": view }));
    }
    let mut text = crate::view::human(style, &views);
    text.push_str(&format!("\n  id            {:016x}\n", file.id));
    text.push_str(&format!("  epoch, reign  {}, {}\n", view.epoch, view.reign));
    text.push_str(&format!("  shards        {}\n", file.shards));
    let logs: Vec<String> =
        file.volumes.iter().map(|volume| volume.log_extents.to_string()).collect();
    text.push_str(&format!("  log-extents   {}\n", logs.join(", ")));
    let encryption = if view.link_encryption { "on" } else { "OFF (stated in node.toml)" };
    text.push_str(&format!("  encryption    {encryption}\n"));
    for option in option_lines(&file) {
        text.push_str(&format!("  {option}\n"));
    }
    for (node, own) in views.all_of(name) {
        for url in own.volumes.iter().flat_map(|volume| &volume.nbd) {
            text.push_str(&format!("  nbd on {node:<6} {url}\n"));
        }
        for url in own.volumes.iter().flat_map(|volume| &volume.nvme) {
            text.push_str(&format!("  nvme on {node:<5} {url}\n"));
        }
    }
    say(&text)
}

/// The options as JSON names them, one a line.
fn option_lines(file: &ResourceFile) -> Vec<String> {
    let options = serde_json::to_value(&file.options).unwrap_or_default();
    let Some(options) = options.as_object() else { return Vec::new() };
    let plain = |value: &serde_json::Value| value.as_str().map_or(value.to_string(), str::to_owned);
    let shown = |key: &str, value: &serde_json::Value| match value.as_u64() {
        Some(rate) if key.starts_with("resync_rate") => format!("{}/s", show_size(rate)),
        _ => plain(value),
    };
    options
        .iter()
        .map(|(key, value)| format!("{:<13} {}", key.replace('_', "-"), shown(key, value)))
        .collect()
}
