//! Rules about what a text may say: unsafe code, clocks, left-overs, paths of one machine.

use super::Finding;
use super::files::Source;
use super::scan;

/// The one crate that may hold unsafe code.
const UNSAFE_CRATE: &str = "sys";

/// Crates that decide or translate: without `std` there is no clock, socket, file or thread.
const PURE_CRATES: &[&str] = &["base", "wire", "nbd", "nvme", "vhost", "replica"];

/// Crates that may read a clock: the hands, the command line, and what is never shipped but for
/// the simulator, whose time is an input like any other.
const CLOCK_CRATES: &[&str] = &["sys", "tools", "lockstep", "xtask", "lab", "bench", "fuzz"];

/// Macros that mark something unfinished.
const MACROS: &[&str] = &["todo!", "unimplemented!", "dbg!"];

/// Paths of one machine. Written in two parts, so that this file does not hold them.
const FOREIGN_PATHS: &[&str] = &[concat!("/wor", "k/"), concat!("../sha", "red")];

/// `unsafe` stands in one crate only.
pub(super) fn unsafe_code(source: &Source) -> Vec<Finding> {
    if source.member() == Some(UNSAFE_CRATE) {
        return Vec::new();
    }
    each_word(source, "unsafe", "unsafe", "move it to crates/sys, behind a safe function")
}

/// Files of other crates that may: they time a campaign and a search, not the simulated world.
const CLOCK_FILES: &[&str] = &[
    "crates/sim/src/campaign.rs",
    "crates/sim/src/check/every.rs",
    "crates/sim/src/check/search.rs",
];

/// Nobody reads a clock but who may, and tests of whole processes, which wait for real ones.
pub(super) fn clocks(source: &Source) -> Vec<Finding> {
    let is_process_test = source.path.starts_with("crates/") && source.path.contains("/tests/");
    let waits = is_process_test && !source.path.contains("/src/");
    if waits || CLOCK_FILES.contains(&source.path.as_str()) {
        return Vec::new();
    }
    if source.member().is_some_and(|member| CLOCK_CRATES.contains(&member)) {
        return Vec::new();
    }
    ["Instant::now", "SystemTime::now"]
        .into_iter()
        .flat_map(|call| {
            each_word(source, call, "clock", "take the time as an argument; sys reads the clocks")
        })
        .collect()
}

/// Nothing unfinished is left in code.
pub(super) fn macros(source: &Source) -> Vec<Finding> {
    let call = |name: &&str| {
        let code = source.code.as_deref().unwrap_or_default();
        let word = name.trim_end_matches('!');
        scan::words(code, word)
            .filter(|at| code[at + word.len()..].starts_with('!'))
            .map(|at| finding(source, at, "leftover", format!("{name} in code"), "finish it"))
            .collect::<Vec<_>>()
    };
    MACROS.iter().flat_map(call).collect()
}

/// A test that is not run says why.
pub(super) fn ignored_tests(source: &Source) -> Vec<Finding> {
    let code = source.code.as_deref().unwrap_or_default();
    scan::words(code, "ignore")
        .filter(|&at| {
            let attribute = code[..at].trim_end().ends_with("#[");
            attribute && code[at + "ignore".len()..].trim_start().starts_with(']')
        })
        .map(|at| {
            let remedy = "say why: #[ignore = \"needs ...\"]";
            finding(source, at, "ignore", "a test is ignored without a reason".into(), remedy)
        })
        .collect()
}

/// No text names a path that exists on one machine only.
pub(super) fn foreign_paths(source: &Source) -> Vec<Finding> {
    let find = |path: &&str| {
        source
            .text
            .match_indices(*path)
            .map(|(at, _)| {
                let problem = format!("the path {path} exists on one machine only");
                finding(
                    source,
                    at,
                    "path",
                    problem,
                    "name what is in this tree, or explain it here",
                )
            })
            .collect::<Vec<_>>()
    };
    FOREIGN_PATHS.iter().flat_map(find).collect()
}

/// The pure crates do without the standard library, in tests too.
pub(super) fn pure_crates(sources: &[Source]) -> Vec<Finding> {
    let unmarked = |name: &&str| {
        let path = format!("crates/{name}/src/lib.rs");
        let source = sources.iter().find(|source| source.path == path)?;
        let code = source.code.as_deref().unwrap_or_default();
        let problem = format!("{name} does not say #![no_std]");
        let remedy = "add #![no_std] below the module's text, and use core and alloc";
        (!code.contains("#![no_std]")).then(|| Finding {
            file: path,
            line: 1,
            rule: "pure",
            problem,
            remedy: remedy.into(),
        })
    };
    PURE_CRATES.iter().filter_map(unmarked).collect()
}

/// A finding for every place where code, not text, says `word`.
fn each_word(source: &Source, word: &str, rule: &'static str, remedy: &str) -> Vec<Finding> {
    let code = source.code.as_deref().unwrap_or_default();
    scan::words(code, word)
        .map(|at| finding(source, at, rule, format!("`{word}` in code"), remedy))
        .collect()
}

fn finding(
    source: &Source,
    at: usize,
    rule: &'static str,
    problem: String,
    remedy: &str,
) -> Finding {
    let line = scan::line_of(&source.text, at);
    Finding { file: source.path.clone(), line, rule, problem, remedy: remedy.to_owned() }
}
