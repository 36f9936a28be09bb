//! Backing stores that a node has in use, wherever its resources' descriptions say that they are.
//!
//! Always: a node that answers is asked; of one that does not its files are read. Nothing is written.
//!
//! Not here: what a place can do (`places`).

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use toml::Table;
use wire::MemberKind;
use wire::admin::{Answer, Command, ResourceFile, ResourceStatus, StoreKind};

use super::{Finding, places};
use crate::admin::{Node, unexpected};
use crate::problem::Problem;

/// How many stores are named that lie in one place.
const NAMED_MAX: usize = 3;

/// A store, or its metadata.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Store {
    /// What it has, as in `web/0`.
    what: String,
    path: PathBuf,
}

/// Looks at the stores of the node with this directory and these settings.
pub(super) fn look(directory: &Path, settings: &Table) -> Result<Vec<Finding>, Problem> {
    let text = |key: &str| settings.get(key).and_then(|value| value.as_str());
    let name = text("name").unwrap_or("?").to_owned();
    let socket = directory.join(text("admin_socket").unwrap_or("admin.sock"));
    let number = settings.get("node").and_then(|number| number.as_integer());
    let (files, mut findings) = match told(&Node { name, socket, identity: None }) {
        Ok(files) => (files, Vec::new()),
        Err(_) => read(directory),
    };
    let number = number.and_then(|number| u16::try_from(number).ok()).unwrap_or(0);
    let stores = files.iter().flat_map(|file| stores_of(directory, number, file)).collect();
    findings.extend(look_at(directory, stores)?);
    Ok(findings)
}

/// What a node that runs says that its resources are, of which it has made its part.
fn told(node: &Node) -> Result<Vec<ResourceFile>, Problem> {
    let file = |one: &ResourceStatus| {
        let node = node.about(u64::from_str_radix(&one.id, 16).unwrap_or(0));
        match node.ask(Command::ResourceFile { resource: one.name.clone() })? {
            Answer::File(file) => Ok(*file),
            other => Err(unexpected(&node, &other)),
        }
    };
    let resources = node.status(None)?.resources;
    resources.iter().filter(|one| !one.uncreated).map(file).collect()
}

/// The same by its files; and of those that cannot be read why not.
fn read(directory: &Path) -> (Vec<ResourceFile>, Vec<Finding>) {
    let directory = directory.join("resources");
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.retain(|path| {
        let is_one = path.extension().is_some_and(|extension| extension == "toml");
        is_one && !path.with_extension("uncreated").exists()
    });
    paths.sort();
    let (mut files, mut findings) = (Vec::new(), Vec::new());
    for path in paths {
        let text = fs::read_to_string(&path).map_err(|error| error.to_string());
        let file =
            text.and_then(|text| toml::from_str(&text).map_err(|error| error.message().to_owned()));
        match file {
            Ok(file) => files.push(file),
            Err(error) => findings.push(Finding::degraded(
                format!("description {}", path.display()),
                error,
                "the node does not serve that resource, and its stores were not looked at",
                "mend the file, or put it back from another node (`lockstep resource show`)",
            )),
        }
    }
    (files, findings)
}

/// Where a resource's volumes are on the node with this number, as the node understands it (`lockstepd`, `backing::plans`). A witness
/// has its record in the node's directory.
fn stores_of(directory: &Path, node: u16, file: &ResourceFile) -> Vec<Store> {
    let member = file.members.iter().find(|member| member.node == node);
    let Some(member) = member.filter(|member| member.kind != MemberKind::Witness) else {
        return Vec::new();
    };
    let mut stores = Vec::new();
    for volume in &file.volumes {
        let what = format!("{}/{}", file.name, volume.index);
        let store = member.stores.iter().find(|store| store.volume == volume.index);
        if store.is_some_and(|store| store.kind == StoreKind::Memory) {
            continue;
        }
        let path = store.and_then(|store| store.path.as_ref()).map_or_else(
            || directory.join(format!("volumes/{}-{}.img", file.name, volume.index)),
            |path| directory.join(path),
        );
        stores.push(Store { what: what.clone(), path });
        if let Some(path) = store.and_then(|store| store.metadata_path.as_ref()) {
            stores.push(Store { what: format!("metadata of {what}"), path: directory.join(path) });
        }
    }
    stores
}

/// Looks at each place once: a device, or the directory of files.
fn look_at(directory: &Path, stores: Vec<Store>) -> Result<Vec<Finding>, Problem> {
    let mut findings = Vec::new();
    let mut places: BTreeMap<PathBuf, Vec<String>> = BTreeMap::new();
    for Store { what, path } in stores {
        match fs::metadata(&path) {
            Ok(metadata) if metadata.file_type().is_block_device() => {
                places.entry(path).or_default().push(what);
            }
            Ok(_) => {
                let parent = path.parent().unwrap_or(directory).to_owned();
                places.entry(parent).or_default().push(what);
            }
            Err(error) => findings.push(
                Finding::missing(
                    format!("store of {what}"),
                    format!("{}: {error}", path.display()),
                    "this copy is not used: the resource has one less",
                    "put the file or device back, or take the replica out and add it anew",
                )
                .needed(),
            ),
        }
    }
    for (place, mut names) in places {
        if let more @ 1.. = names.len().saturating_sub(NAMED_MAX) {
            names.truncate(NAMED_MAX);
            names.push(format!("{more} more"));
        }
        let names = names.join(", ");
        findings.extend(places::look(&place)?.into_iter().map(|finding| {
            let found = format!("{}; in use: {names}", finding.found);
            Finding { found, ..finding }
        }));
    }
    Ok(findings)
}
