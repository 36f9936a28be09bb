//! The units and rules that come with the disks of a host: the service manager understands them, and this program their words.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const LOCKSTEP: &str = env!("CARGO_BIN_EXE_lockstep");

fn packaging(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(name)
}

fn words_of(name: &str) -> String {
    fs::read_to_string(packaging(name)).expect("it is there")
}

/// Commands of this program in a unit or in rules.
fn commands(text: &str) -> Vec<Vec<String>> {
    let ends = |c: char| c == '"' || c == '\n';
    let pieces = text.match_indices("/usr/bin/lockstep ").map(|(at, _)| {
        let line = text[at..].split(ends).next().unwrap_or_default();
        let line = line.replace("%I", "web/0").replace("%k", "nvme0n1");
        line.split(' ').skip(1).map(str::to_owned).collect()
    });
    pieces.collect()
}

#[test]
fn every_command_of_the_units_and_rules_is_one_that_this_program_knows() {
    for (name, count) in [
        ("systemd/lockstep-attach@.service", 2),
        ("systemd/lockstep-keep.service", 1),
        ("udev/65-lockstep.rules", 1),
    ] {
        let commands = commands(&words_of(name));
        assert_eq!(commands.len(), count, "{name}");
        for command in commands {
            // Help is shown for words that are known only; whatever stands behind them is left out.
            let words: Vec<&String> = command.iter().take(2).collect();
            let options = command.iter().filter(|word| word.starts_with("--"));
            let shown = Command::new(LOCKSTEP).args(words).arg("--help").output().expect("run");
            let help = String::from_utf8_lossy(&shown.stdout).into_owned();
            assert!(shown.status.success(), "{command:?}");
            for option in options {
                assert!(help.contains(option.as_str()), "{option} of {command:?}");
            }
        }
    }
}

#[test]
fn the_units_are_such_as_systemd_understands() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        return;
    }
    let directory = std::env::temp_dir().join(format!("lockstep-units-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("made");
    for (name, copy) in [
        ("systemd/lockstep-attach@.service", "lockstep-attach@web-0.service"),
        ("systemd/lockstep-keep.service", "lockstep-keep.service"),
    ] {
        // The program must be where the unit says.
        let words = words_of(name).replace("/usr/bin/lockstep", LOCKSTEP);
        fs::write(directory.join(copy), words).expect("written");
    }
    for unit in ["lockstep-attach@web-0.service", "lockstep-keep.service"] {
        let path = directory.join(unit);
        let mut verify = Command::new("systemd-analyze");
        let verified = verify.args(["verify", "--man=no"]).arg(&path).output();
        let verified = verified.expect("it is installed");
        let said = String::from_utf8_lossy(&verified.stderr);
        assert!(verified.status.success() && !said.contains("lockstep-"), "{said}");
    }
    fs::remove_dir_all(&directory).ok();
}
