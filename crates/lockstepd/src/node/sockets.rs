//! Unix sockets that this node listens on, and who may connect to them.
//!
//! Not here: who is let in once they have (`clients`, `admin`, `vhost`).

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use sys::{Errno, Listener, SocketAddress};

use super::patience::{is_taken, patiently};

/// Listens on a path, for a while also where the process before this one has it still.
pub(super) fn listen_unix(
    path: &Path,
    listen: impl Fn(&Path) -> Result<Listener, Errno>,
) -> Result<Listener, String> {
    patiently(|| listen(path), is_taken).map_err(|error| {
        format!("cannot listen on {}: {error}", SocketAddress::Unix(path.to_path_buf()))
    })
}

/// Listens on a path that only its owner can connect to, and a group if one is named. With the error: whether the path is taken.
pub(super) fn listen_private(path: &Path, group: Option<&str>) -> Result<Listener, (bool, String)> {
    let place = path.display();
    let wrong = |error: std::io::Error| (false, format!("{place}: {error}"));
    let group = match group {
        Some(name) => {
            let absent = || (false, format!("this host has no group {name}"));
            Some(group_number(name).ok_or_else(absent)?)
        }
        None => None,
    };
    let listener = sys::listen_unix_private(path)
        .map_err(|errno| (is_taken(&errno), format!("cannot listen on {place}: {errno}")))?;
    if group.is_some() {
        chown(path, None, group).map_err(wrong)?;
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o660)).map_err(wrong)?;
    }
    Ok(listener)
}

/// The number of a group, by its name or itself.
fn group_number(name: &str) -> Option<u32> {
    let of = |line: &str| {
        let mut words = line.split(':');
        let number = words.nth(2).filter(|_| line.split(':').next() == Some(name))?;
        number.parse().ok()
    };
    let text = std::fs::read_to_string("/etc/group").unwrap_or_default();
    text.lines().find_map(of).or_else(|| name.parse().ok())
}
