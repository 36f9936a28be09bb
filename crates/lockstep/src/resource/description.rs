//! A resource described in a TOML file by its operator: `resource create NAME --from FILE.toml`.
//!
//! The keys are those of the resource files that nodes keep (docs/formats/admin.md). What a person need
//! not know may be left out: identity, the list of nodes; nodes may be called by name, and sizes written
//! with a unit.
//!
//! Always: a key that is not known is refused, with its line.
//!
//! Not here: making what is described (`cast`).

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use wire::admin::{
    FileMember, FileNode, FileStore, FileTiming, FileVolume, LOG_EXTENTS_USUAL, ResourceFile, codes,
};
use wire::{MemberKind, Options};

use crate::cli::Shards;
use crate::problem::{FILE, Problem};
use crate::unit::{parse_identity, parse_size};

/// The file as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    shards: ShardCount,
    #[serde(default)]
    options: Options,
    #[serde(default)]
    timing: FileTiming,
    #[serde(default)]
    nodes: Vec<FileNode>,
    members: Vec<Member>,
    volumes: Vec<Volume>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Member {
    node: NodeRef,
    #[serde(default = "replica")]
    kind: MemberKind,
    #[serde(default)]
    in_sync: Option<bool>,
    #[serde(default)]
    stores: Vec<FileStore>,
}

/// A node, by number or by name.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum NodeRef {
    Number(u16),
    Name(String),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Volume {
    #[serde(default)]
    index: u16,
    #[serde(default)]
    size: Option<String>,
    #[serde(default)]
    size_bytes: Option<u64>,
    #[serde(default = "block")]
    block_bytes: u32,
    #[serde(default = "log_extents")]
    log_extents: u32,
}

fn log_extents() -> u32 {
    LOG_EXTENTS_USUAL
}

/// `auto`, or a number.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum ShardCount {
    Count(u16),
    Word(AutoWord),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum AutoWord {
    Auto,
}

impl Default for ShardCount {
    fn default() -> ShardCount {
        ShardCount::Word(AutoWord::Auto)
    }
}

fn replica() -> MemberKind {
    MemberKind::Replica
}

fn block() -> u32 {
    4096
}

/// Reads the description of the resource `name`. `nodes` are those of the cluster, by number.
///
/// `threads` are those that nodes have.
pub(super) fn read(
    path: &Path,
    name: &str,
    nodes: Vec<FileNode>,
    threads: &BTreeMap<u16, u16>,
) -> Result<ResourceFile, Problem> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Problem::new(FILE, format!("{}: {error}", path.display())))?;
    describe(&text, name, nodes, threads).map_err(|why| {
        let message = format!("{}: {}", path.display(), why.trim_end());
        Problem::from_code(&codes::BAD_RESOURCE_FILE, message)
    })
}

/// What a resource is called between nodes; never 0. Nodes with several threads deal resources to them by its lowest bits, so
/// none of these may always be the same.
pub(super) fn new_id() -> u64 {
    sys::random_u64().max(1)
}

fn describe(
    text: &str,
    name: &str,
    nodes: Vec<FileNode>,
    threads: &BTreeMap<u16, u16>,
) -> Result<ResourceFile, String> {
    let read: Description = toml::from_str(text).map_err(|error| error.to_string())?;
    if let Some(other) = read.name.filter(|other| other != name) {
        return Err(format!("`name` is {other:?}, and {name:?} is to be made"));
    }
    let id = match &read.id {
        None => new_id(),
        Some(text) => parse_identity(text).map_err(|why| format!("`id`: {why}"))?,
    };
    let nodes = if read.nodes.is_empty() { nodes } else { read.nodes };
    let mut members = Vec::new();
    for member in read.members {
        members.push(FileMember {
            node: number_of(&nodes, &member.node)?,
            kind: member.kind,
            voter: None,
            incarnation: None,
            in_sync: member.in_sync,
            stores: member.stores,
        });
    }
    let wanted = match read.shards {
        ShardCount::Count(count) => Shards::Count(count),
        ShardCount::Word(AutoWord::Auto) => Shards::Auto,
    };
    let replicas = members.iter().filter(|member| member.kind == MemberKind::Replica);
    let shards = wanted.count(replicas.filter_map(|member| threads.get(&member.node)).copied());
    let volumes = read.volumes.iter().map(volume).collect::<Result<Vec<FileVolume>, String>>()?;
    let file = ResourceFile {
        name: name.to_owned(),
        id,
        shards,
        options: read.options,
        timing: read.timing,
        nodes,
        members,
        volumes,
    };
    file.check().map_err(|error| error.0)?;
    Ok(file)
}

fn number_of(nodes: &[FileNode], wanted: &NodeRef) -> Result<u16, String> {
    let found = match wanted {
        NodeRef::Number(number) => nodes.iter().find(|node| node.id == *number),
        NodeRef::Name(name) => nodes.iter().find(|node| node.name == *name),
    };
    found.map(|node| node.id).ok_or_else(|| {
        let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
        let wanted = match wanted {
            NodeRef::Number(number) => number.to_string(),
            NodeRef::Name(name) => name.clone(),
        };
        format!("`node` {wanted} of a member is none of the nodes: {}", names.join(", "))
    })
}

fn volume(volume: &Volume) -> Result<FileVolume, String> {
    let index = volume.index;
    let size_bytes = match (&volume.size, volume.size_bytes) {
        (Some(text), None) => parse_size(text).map_err(|why| format!("volume {index}: {why}"))?,
        (None, Some(bytes)) => bytes,
        _ => return Err(format!("volume {index}: give `size` or `size_bytes`, one of them")),
    };
    let Volume { block_bytes, log_extents, .. } = *volume;
    Ok(FileVolume { index, size_bytes, block_bytes, log_extents })
}

#[cfg(test)]
mod tests {
    use super::{describe, new_id};
    use wire::admin::{FileNode, ResourceFile};
    use wire::{MemberKind, Protocol};

    const GOOD: &str = r#"
[options]
protocol = "B"

[[members]]
node = "a"
stores = [{ volume = 0, kind = "device", path = "/dev/vg/disk" }]

[[members]]
node = 2
kind = "witness"

[[volumes]]
size = "64MiB"
block_bytes = 512
"#;

    fn read(text: &str) -> Result<ResourceFile, String> {
        let node = |id: u16, name: &str| FileNode { id, name: name.to_owned(), addresses: vec![] };
        let threads = [(1, 2), (2, 4), (3, 1)].into();
        describe(text, "disk", vec![node(1, "a"), node(2, "b"), node(3, "c")], &threads)
    }

    #[test]
    fn resources_are_dealt_to_all_threads_that_there_may_be() {
        let ids: Vec<u64> = (0..200).map(|_| new_id()).collect();
        for bit in [1, 2, 4] {
            let set = ids.iter().filter(|id| *id & bit != 0).count();
            assert!((1..200).contains(&set), "bit {bit} is set in {set} of 200");
        }
    }

    #[test]
    fn what_a_person_need_not_know_may_be_left_out() {
        let file = read(GOOD).expect("it is good");
        // Node 2 has more threads, and no replica.
        assert_eq!((file.name.as_str(), file.nodes.len(), file.shards), ("disk", 3, 2));
        let eight = read(&format!("shards = 8\n{GOOD}")).expect("it is good");
        assert_eq!(eight.shards, 8);
        let auto = read(&format!("shards = \"auto\"\n{GOOD}")).expect("it is good");
        assert_eq!(auto.shards, 2);
        assert_ne!(file.id, 0);
        assert_eq!(file.options.protocol, Protocol::B);
        assert_eq!((file.members[0].node, file.members[1].node), (1, 2));
        assert_eq!(file.members[1].kind, MemberKind::Witness);
        assert_eq!(file.members[0].stores[0].path.as_deref(), Some("/dev/vg/disk"));
        assert_eq!((file.volumes[0].size_bytes, file.volumes[0].block_bytes), (64 << 20, 512));
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line() {
        for (right, wrong) in
            [("protocol", "protokol"), ("kind = \"witness\"", "kidn = \"witness\"")]
        {
            let text = GOOD.replace(right, wrong);
            let key = wrong.split(' ').next().expect("a word");
            let line = text.lines().position(|line| line.contains(key)).expect("there") + 1;
            let why = read(&text).expect_err("the key is unknown");
            assert!(why.contains(key) && why.contains(&format!("line {line}")), "{why}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_name() {
        let refused = |right: &str, wrong: &str| {
            read(&GOOD.replace(right, wrong)).expect_err("it is not possible")
        };
        assert!(refused("\"a\"", "\"nobody\"").contains("nobody"));
        assert!(refused("size = \"64MiB\"", "size = \"64 miles\"").contains("volume 0"));
        assert!(refused("size = \"64MiB\"", "").contains("size_bytes"));
        assert!(refused("[options]", "name = \"tape\"\n[options]").contains("tape"));
        for id in ["0", "+1f", "00000000000000001", ""] {
            let said = refused("[options]", &format!("id = \"{id}\"\n[options]"));
            assert!(said.contains("`id`"), "{said}");
        }
    }
}
