//! The file that names the sockets for machines that this node has (`vhost.toml`).
//!
//! Always: it is written before a socket is made, and after it is gone.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::node::files::replace_file;

/// The socket of one volume, as the file has it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Listed {
    pub(super) resource: String,
    /// Of the resource.
    pub(super) identity: u64,
    pub(super) volume: u16,
    /// Whose members may connect.
    pub(super) group: Option<String>,
    /// In which boot of this host a machine connected that has not gone since, as far as any process knows.
    pub(super) boot: Option<String>,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct ListedFile {
    #[serde(default)]
    socket: Vec<ListedSocket>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct ListedSocket {
    resource: String,
    /// Hexadecimal.
    identity: String,
    volume: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    group: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    boot: Option<String>,
}

/// The sockets that the file in this directory names; none if there is no file.
pub(super) fn read(directory: &Path) -> Result<Vec<Listed>, String> {
    let path = directory.join("vhost.toml");
    let wrong = |what: String| format!("{}: {what}", path.display());
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(wrong(error.to_string())),
    };
    let file: ListedFile = toml::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    let listed = |socket: ListedSocket| {
        let ListedSocket { resource, identity, volume, group, boot } = socket;
        // It becomes a part of a path.
        if resource.is_empty() || resource.starts_with('.') || resource.contains('/') {
            return Err(wrong(format!("{resource:?} is no resource's name")));
        }
        let identity = u64::from_str_radix(&identity, 16);
        let identity = identity.map_err(|error| wrong(error.to_string()))?;
        Ok(Listed { resource, identity, volume, group, boot })
    };
    file.socket.into_iter().map(listed).collect()
}

/// Makes the file name these.
pub(super) fn write<'a>(
    directory: &Path,
    sockets: impl Iterator<Item = &'a Listed>,
) -> Result<(), String> {
    let path = directory.join("vhost.toml");
    let socket = sockets.map(|listed| ListedSocket {
        resource: listed.resource.clone(),
        identity: format!("{:016x}", listed.identity),
        volume: listed.volume,
        group: listed.group.clone(),
        boot: listed.boot.clone(),
    });
    let file = ListedFile { socket: socket.collect() };
    let text = toml::to_string(&file).map_err(|error| format!("{}: {error}", path.display()))?;
    replace_file(&path, text.as_bytes()).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::{Listed, read, write};

    #[test]
    fn sockets_are_read_as_they_were_written() {
        let name = format!("lockstepd-sockets-{:x}", sys::random_u64());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).expect("a directory for this test");
        assert!(read(&directory).expect("no file is no socket").is_empty());
        let (resource, group) = ("web".to_owned(), Some("kvm".to_owned()));
        let listed =
            Listed { resource, identity: 7, volume: 1, group, boot: Some("1-2".to_owned()) };
        write(&directory, [&listed].into_iter()).expect("written");
        assert_eq!(read(&directory).expect("read"), vec![listed.clone()]);
        let outside = Listed { resource: "../web".to_owned(), ..listed };
        write(&directory, [&outside].into_iter()).expect("written");
        assert!(read(&directory).is_err());
        std::fs::remove_dir_all(&directory).expect("this test's own");
    }
}
