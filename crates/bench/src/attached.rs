//! A volume as a disk of this host, which the kernel makes: by ublk, or by its NVMe/TCP initiator.
//!
//! Always: the disk is taken away when the value goes, also when the run fails; so its cluster has to outlive it.
//!
//! Not here: the same in emulated machines (`drbd`).

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::cluster::{Cluster, Programs};
use crate::fio::{Target, fill};
use crate::machine::{self, run_still};
use crate::outcome::{Outcome, complain, not_run};
use crate::run::{Run, Subject};

/// Which part of the kernel makes it.
#[derive(Clone, Copy, Debug)]
enum Way {
    Ublk,
    Nvme,
}

impl Way {
    /// As the command line has it.
    fn word(self) -> &'static str {
        match self {
            Way::Ublk => "ublk",
            Way::Nvme => "nvme",
        }
    }

    fn subject(self) -> &'static str {
        match self {
            Way::Ublk => "3 replicas, by ublk",
            Way::Nvme => "3 replicas, by the kernel's NVMe/TCP",
        }
    }
}

/// Those that the kernel may not be able to make here: what makes them is not there, or not yet.
pub(crate) fn doubtful() -> Vec<&'static str> {
    let ways = [(Way::Ublk, "/dev/ublk-control"), (Way::Nvme, "/dev/nvme-fabrics")];
    let doubtful = ways.into_iter().filter(|(_, path)| !Path::new(path).exists());
    doubtful.map(|(way, _)| way.subject()).collect()
}

/// A disk.
pub(crate) struct Attached {
    device: PathBuf,
    detach: Command,
}

/// A volume of its own on each of these nodes by each way that this host has, as further subjects; for the others it says why not.
pub(crate) fn attach(
    run: &Run,
    (programs, cluster): (&Programs, &Cluster),
    nodes: &[&str],
    size_mib: u64,
    subjects: &mut Vec<Subject>,
) -> Outcome<Vec<Attached>> {
    let mut disks = Vec::new();
    for way in [Way::Ublk, Way::Nvme] {
        // Of no other cluster on this host.
        let name = format!("bench{}-{}", std::process::id(), subjects.len());
        cluster.create(&name, size_mib, nodes)?;
        let disk = match Attached::new(cluster, &name, way)? {
            Ok(disk) => disk,
            Err(why) => {
                not_run(format!("{}: {why}", way.subject()));
                cluster.ok(&["resource", "delete", &name])?;
                continue;
            }
        };
        let target = Target::File(disk.device.clone());
        fill(&target, size_mib)?;
        subjects.push(Subject {
            name: format!("{}{}", way.subject(), run.suffix(programs)),
            target,
            pids: cluster.pids()?,
            size_mib,
            copies: u32::try_from(nodes.len()).unwrap_or(1),
            cached: None,
        });
        disks.push(disk);
    }
    Ok(disks)
}

impl Attached {
    /// Makes one, or tells why this host cannot.
    fn new(cluster: &Cluster, name: &str, way: Way) -> Outcome<Result<Attached, String>> {
        let words = ["device", "attach", name, "--via", way.word(), "--output", "json"];
        let mut attach = cluster.command(&words);
        let detach = cluster.command(&["device", "detach", name, "--force"]);
        let output = machine::output(&mut attach)?;
        let said = String::from_utf8_lossy(&output.stdout);
        match answer(&said) {
            Ok(device) => Ok(Ok(Attached { device, detach })),
            Err(why) => {
                let mut undo = detach;
                // Mostly nothing was made, which is what it says then.
                let _ = run_still(&mut undo);
                let said = String::from_utf8_lossy(&output.stderr);
                Ok(Err(why.unwrap_or_else(|| format!("{}: {}", output.status, said.trim()))))
            }
        }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if let Err(why) = run_still(&mut self.detach) {
            complain(&why);
        }
    }
}

/// Where the disk is, as `device attach` says in JSON; or why there is none, if it says that.
fn answer(said: &str) -> Result<PathBuf, Option<String>> {
    let value: Value = serde_json::from_str(said).unwrap_or_default();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    text(&value["device"]).map(PathBuf::from).ok_or_else(|| text(&value["error"]["message"]))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::answer;

    #[test]
    fn an_answer_names_the_disk_or_the_reason() {
        let device = r#"{"version":1,"device":"/dev/lockstep/by-res/v/0","via":"ublk"}"#;
        assert_eq!(answer(device), Ok(PathBuf::from("/dev/lockstep/by-res/v/0")));
        let problem = r#"{"version":1,"error":{"code":"LS-1","message":"v/0: ublk: no driver"}}"#;
        assert_eq!(answer(problem), Err(Some("v/0: ublk: no driver".to_owned())));
        assert_eq!(answer("killed"), Err(None));
    }
}
