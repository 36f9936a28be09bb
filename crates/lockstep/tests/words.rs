//! What is made from the command line's own words: completions that a shell can use, and a man page for
//! each command. What commands there are is read from `--help`.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// Runs the program.
fn lockstep(words: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_lockstep");
    Command::new(program).args(words).env_remove("LOCKSTEP_DIR").output().unwrap()
}

#[track_caller]
fn said(words: &[&str]) -> String {
    let output = lockstep(words);
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Commands below these words, as `--help` lists them.
fn listed(words: &[String]) -> Vec<String> {
    let mut ask: Vec<&str> = words.iter().map(String::as_str).collect();
    ask.push("--help");
    let help = said(&ask);
    let all = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = all.take_while(|line| !line.is_empty());
    let names = names.filter_map(|line| line.split_whitespace().next().map(str::to_owned));
    names.filter(|name| name != "help").collect()
}

/// Every command, with all its words.
fn commands(words: &[String]) -> Vec<Vec<String>> {
    let mut all = vec![words.to_vec()];
    for name in listed(words) {
        all.extend(commands(&[words, &[name]].concat()));
    }
    all
}

/// A directory that goes when the test ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let name = format!("ls-words-{name}-{}", std::process::id());
        let scratch = Scratch(std::env::temp_dir().join(name));
        fs::create_dir_all(&scratch.0).unwrap();
        scratch
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// Whether a program is installed; says so if it is not.
fn is_there(program: &str) -> bool {
    let tried = Command::new(program).arg("--version").stdout(Stdio::null()).status();
    let there = tried.is_ok_and(|status| status.success());
    if !there {
        println!("NOT RUN: {program} is not installed");
    }
    there
}

#[test]
fn bash_completes_commands_options_and_values() {
    if !is_there("bash") {
        return;
    }
    let scratch = Scratch::new("bash");
    let file = scratch.0.join("completions");
    fs::write(&file, said(&["completions", "bash"])).unwrap();
    let completed = |line: &[&str]| -> Vec<String> {
        // As bash asks: the function that `complete -p` names, with the words and where the cursor is.
        let script = r#"
            source "$1"; shift
            function=$(complete -p lockstep | sed 's/.*-F \([^ ]*\) .*/\1/')
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
            "$function" lockstep "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
            printf '%s\n' "${COMPREPLY[@]}"
        "#;
        let output =
            Command::new("bash").args(["-euc", script, "bash"]).arg(&file).args(line).output();
        let output = output.unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{line:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
    };
    let no_options = |words: Vec<String>| words.into_iter().filter(|word| !word.starts_with('-'));
    for below in [vec![], vec!["resource".to_owned()], vec!["dev".to_owned()]] {
        let mut line = vec!["lockstep"];
        line.extend(below.iter().map(String::as_str));
        line.push("");
        let offered: Vec<String> =
            no_options(completed(&line)).filter(|word| word != "help").collect();
        assert_eq!(offered, listed(&below), "{line:?}");
    }
    assert_eq!(completed(&["lockstep", "resource", "pau"]), ["pause-resync"]);
    assert_eq!(completed(&["lockstep", "wait", "disk", "--for", "in"]), ["in-sync"]);
    let options = completed(&["lockstep", "resource", "create", "disk", "--wi"]);
    assert_eq!(options, ["--witnesses"]);
}

#[test]
fn every_shell_has_completions_that_it_can_read() {
    let scratch = Scratch::new("shells");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let text = said(&["completions", shell]);
        assert!(text.contains("pause-resync") && !text.contains("become-node"), "{shell}");
        let file = scratch.0.join(shell);
        fs::write(&file, text).unwrap();
        // These two read a script without running it.
        if ["zsh", "fish"].contains(&shell) && is_there(shell) {
            let read = Command::new(shell).arg("-n").arg(&file).output().unwrap();
            assert!(read.status.success() && read.stderr.is_empty(), "{shell}: {read:?}");
        }
    }
    assert_eq!(lockstep(&["completions", "cmd"]).status.code(), Some(2));
}

#[test]
fn every_command_has_a_man_page_and_it_can_be_shown() {
    let scratch = Scratch::new("man");
    let directory = scratch.0.join("new").join("man1");
    said(&["man", directory.to_str().unwrap()]);
    let mut pages: Vec<String> = fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    pages.sort();
    let page_of = |words: &[String]| [&["lockstep".to_owned()], words].concat().join("-") + ".1";
    let all = commands(&[]);
    let mut wanted: Vec<String> = all.iter().map(|words| page_of(words)).collect();
    wanted.sort();
    assert_eq!(pages, wanted);
    if !is_there("groff") {
        return;
    }
    for words in all {
        let page = page_of(&words);
        let shown = Command::new("groff")
            .args(["-man", "-ww", "-Tascii", "-P-cbou"])
            .arg(directory.join(&page))
            .output()
            .unwrap();
        assert!(shown.status.success() && shown.stderr.is_empty(), "{page}: {shown:?}");
        let text = String::from_utf8_lossy(&shown.stdout).into_owned();
        let ask: Vec<&str> = words.iter().map(String::as_str).chain(["-h"]).collect();
        let help = said(&ask);
        let about = help.lines().next().unwrap();
        // Lines are broken elsewhere.
        let plain = |text: &str| text.split_whitespace().collect::<String>().replace('-', "");
        assert!(plain(&text).contains(&plain(about)), "{page} does not say {about:?}:\n{text}");
    }
}

#[test]
fn the_help_of_create_names_every_sign_that_a_name_may_have() {
    let help = said(&["resource", "create", "--help"]);
    assert!(help.contains("`-` `_` `.`"), "{help}");
}

#[test]
fn what_is_no_name_of_a_resource_is_refused_before_anything_is_asked() {
    for name in ["", ".", "..", "a/b", "Disk", "\u{7f}", "a\u{301}", &"n".repeat(49)] {
        for words in [
            &["--admin", "/nowhere", "resource", "create", "--size", "4MiB", "--", name][..],
            &["nvme-host", "nqn.host", "--resources", name],
            &["device", "detach", name],
        ] {
            let output = lockstep(words);
            assert_eq!(output.status.code(), Some(2), "{words:?}: {output:?}");
        }
    }
}

#[test]
fn words_that_are_no_text_are_refused_as_other_slips_are() {
    use std::os::unix::ffi::OsStrExt;
    let odd = std::ffi::OsStr::from_bytes(b"\xff");
    let run = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
        command.args(words).arg(odd).env_remove("LOCKSTEP_DIR").output().unwrap()
    };
    let plain = run(&["resource", "list"]);
    let said = String::from_utf8_lossy(&plain.stderr).into_owned();
    assert_eq!(plain.status.code(), Some(2), "{said}");
    assert!(said.contains("LS-0900"), "{said}");
    let json = run(&["--output", "json", "status", "disk"]);
    assert_eq!(json.status.code(), Some(2), "{json:?}");
    assert!(String::from_utf8_lossy(&json.stdout).contains("LS-0900"), "{json:?}");
}

#[test]
fn a_table_names_an_nvme_host_once_though_several_programs_add_it() {
    let scratch = Scratch::new("table");
    let program = env!("CARGO_BIN_EXE_lockstep");
    for round in 0..20 {
        let table = scratch.0.join(format!("{round}.toml"));
        let start = |_| {
            let mut command = Command::new(program);
            command.args(["nvme-host", "nqn.host", "--table"]).arg(&table);
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        };
        let running: Vec<std::process::Child> = (0..6).map(start).collect();
        let ended: Vec<bool> =
            running.into_iter().map(|mut child| child.wait().unwrap().success()).collect();
        assert_eq!(ended.iter().filter(|success| **success).count(), 1);
        assert_eq!(fs::read_to_string(&table).unwrap().matches("[[hosts]]").count(), 1);
    }
}
