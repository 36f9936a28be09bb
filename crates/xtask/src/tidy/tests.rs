//! Tests of the rules on small inputs: each with one that breaks it.

use super::crates::{
    BUDGETS, absent_packages, descriptions, floors, package_budget, pure_dependencies,
};
use super::files::Source;
use super::scan::{Function, blank, functions};
use super::sizes::{Ratchet, check};
use super::sources::{clocks, foreign_paths, ignored_tests, macros, pure_crates, unsafe_code};
use super::{Finding, links};
use crate::project::{Crate, Dependency, DependencyKind, Project, parse_tree};

fn member(name: &str, dependencies: &[(&str, DependencyKind)]) -> Crate {
    let dependency =
        |&(name, kind): &(&str, DependencyKind)| Dependency { name: name.to_owned(), kind };
    Crate {
        name: name.to_owned(),
        manifest: format!("crates/{name}/Cargo.toml"),
        description: Some("Something.".to_owned()),
        dependencies: dependencies.iter().map(dependency).collect(),
    }
}

fn one(findings: &[Finding]) -> String {
    assert_eq!(findings.len(), 1, "{findings:?}");
    findings[0].to_string()
}

fn body(lines: usize) -> String {
    format!("fn long() {{\n{}}}\n", "    work();\n".repeat(lines - 2))
}

#[test]
fn finding_names_file_line_rule_and_remedy() {
    let source = Source::new("crates/link/src/lib.rs", "fn a() {}\nfn b() { dbg!(1); }\n");
    let text = one(&macros(&source));
    assert_eq!(text, "crates/link/src/lib.rs:2: [leftover] dbg! in code; finish it");
}

#[test]
fn metadata_gives_crates_with_their_dependencies_and_kinds() {
    let text = r#"{"workspace_root": "/p", "target_directory": "/t", "packages": [{
        "name": "wire", "manifest_path": "/p/crates/wire/Cargo.toml", "description": null,
        "dependencies": [{"name": "base", "kind": null}, {"name": "sim", "kind": "dev"}]}]}"#;
    let project = Project::parse(text).expect("the text above is well formed");
    let wire = &project.crates[0];
    assert_eq!(wire.manifest, "crates/wire/Cargo.toml");
    assert_eq!(wire.description, None);
    assert_eq!(wire.dependencies[0].kind, DependencyKind::Normal);
    assert_eq!(wire.dependencies[1].kind, DependencyKind::Development);
}

#[test]
fn metadata_with_an_unknown_dependency_kind_is_refused() {
    let text = r#"{"workspace_root": "/p", "target_directory": "/t", "packages": [{
        "name": "wire", "manifest_path": "/p/Cargo.toml", "dependencies": [{"name": "base",
        "kind": "odd"}]}]}"#;
    assert!(Project::parse(text).expect_err("the kind is unknown").contains("odd"));
}

#[test]
fn tree_counts_a_package_once_however_often_it_is_printed() {
    let text = "base v0.1.0 (/p/base)\nring v0.17.1\nbase v0.1.0 (/p/base) (*)\nring v0.16.0\n";
    assert_eq!(parse_tree(text), ["base v0.1.0", "ring v0.16.0", "ring v0.17.1"]);
}

#[test]
fn floors_allow_an_edge_downwards_and_any_edge_in_tests() {
    let crates = [
        member("base", &[]),
        member("sys", &[("libc", DependencyKind::Normal)]),
        member("store", &[("base", DependencyKind::Normal), ("sys", DependencyKind::Normal)]),
        member("replica", &[("sim", DependencyKind::Development)]),
        member("sim", &[("replica", DependencyKind::Normal)]),
    ];
    assert_eq!(floors(&crates), []);
}

#[test]
fn floors_refuse_an_edge_upwards() {
    let crates = [member("sys", &[("store", DependencyKind::Build)]), member("store", &[])];
    assert!(one(&floors(&crates)).contains("sys (floor 3) depends on store (floor 4)"));
}

#[test]
fn floors_refuse_an_edge_sideways() {
    let crates = [member("link", &[("store", DependencyKind::Normal)]), member("store", &[])];
    assert!(one(&floors(&crates)).contains("link (floor 4) depends on store (floor 4)"));
}

#[test]
fn floors_refuse_a_crate_they_do_not_know() {
    assert!(one(&floors(&[member("common", &[])])).contains("crate common has no floor"));
}

#[test]
fn crate_without_description_is_found() {
    let mut silent = member("base", &[]);
    silent.description = Some(" ".to_owned());
    assert!(one(&descriptions(&[silent, member("wire", &[])])).contains("base has no description"));
}

#[test]
fn pure_crate_may_use_only_what_is_named_for_it() {
    let crates = [member(
        "replica",
        &[
            ("base", DependencyKind::Normal),
            ("wire", DependencyKind::Normal),
            ("serde", DependencyKind::Normal),
            ("sim", DependencyKind::Development),
        ],
    )];
    assert!(one(&pure_dependencies(&crates)).contains("replica depends on serde"));
}

#[test]
fn budget_is_broken_by_one_package_more() {
    let budget = &BUDGETS[0];
    let mut tree: Vec<String> =
        (0..budget.packages).map(|number| format!("p{number} v1")).collect();
    assert_eq!(package_budget(budget, &tree), []);
    tree.push("last v1".to_owned());
    assert!(one(&package_budget(budget, &tree)).contains("[budget]"));
}

#[test]
fn data_plane_may_not_hold_an_async_runtime_but_may_hold_a_longer_name() {
    let tree = ["tokio v1.0.0".to_owned(), "tokio-like v1.0.0".to_owned()];
    assert!(one(&absent_packages(&BUDGETS[0], &tree)).contains("lockstepd holds tokio v1.0.0"));
}

#[test]
fn blank_keeps_lines_and_code_and_hides_text() {
    let source =
        "a /* x /* y */\nz */ b // dbg!\n\"q\\\" {\" 'c' '\\'' 'é' &'a T r#\"\"{\"# b\"{\" r\"\\\"";
    let code = blank(source);
    assert_eq!(code.len(), source.len());
    assert_eq!(code.lines().count(), source.lines().count());
    let words: Vec<&str> = code.split_whitespace().collect();
    let expected = ["a", "b", "\"", "\"", "'", "'", "'", "'", "'", "'", "&'a", "T"];
    assert_eq!(words[..12], expected);
    assert!(!code.contains('{') && !code.contains("dbg"));
}

#[test]
fn blank_takes_a_raw_identifier_for_code() {
    assert_eq!(blank("r#fn + for\"{\" + bar"), "r#fn + for\" \" + bar");
}

#[test]
fn blank_copes_with_texts_that_end_early() {
    for source in ["\"a", "\"", "/* a", "// a", "r#\"a", "r\"", "'", "'a", "'\\", "\"\\", "b'"] {
        assert_eq!(blank(source).len(), source.len(), "{source}");
    }
}

#[test]
fn function_is_measured_from_its_name_to_its_closing_brace() {
    let code = blank(
        "trait T { fn none(&self); }\nconst F: fn(u8) -> u8 = g;\nfn g(\n    x: [u8; { 3 }],\n) \
         where u8: Copy {\n    if x { '}' } else { \"}\" }\n    fn inner() {}\n}\n",
    );
    let expected = [("g", 3, 6), ("inner", 7, 1)];
    let expected = expected.map(|(name, line, lines)| Function { name: name.into(), line, lines });
    assert_eq!(functions(&code), expected);
}

#[test]
fn unsafe_code_is_found_outside_sys_only() {
    let text = "// unsafe\nlet a = \"unsafe\"; let unsafe_code = 1;\nunsafe { b() }\n";
    assert!(one(&unsafe_code(&Source::new("crates/link/src/a.rs", text))).contains("a.rs:3"));
    assert_eq!(unsafe_code(&Source::new("crates/sys/src/a.rs", text)), []);
}

#[test]
fn clock_is_found_in_the_simulator_but_not_in_the_hands() {
    let text = "let now = std::time::Instant::now();\n";
    assert!(one(&clocks(&Source::new("crates/sim/src/a.rs", text))).contains("[clock]"));
    assert_eq!(clocks(&Source::new("crates/sys/src/a.rs", text)), []);
    let text = "let now = SystemTime::now();\n";
    assert!(one(&clocks(&Source::new("crates/store/src/a.rs", text))).contains("[clock]"));
}

#[test]
fn leftover_macros_are_found_in_code_and_not_in_text() {
    let text = "// todo!()\nlet a = \"dbg!(1)\"; my_todo!();\ntodo!()\nunimplemented!(\"x\")\n";
    let lines: Vec<usize> = macros(&Source::new("crates/a/src/a.rs", text))
        .iter()
        .map(|finding| finding.line)
        .collect();
    assert_eq!(lines, [3, 4]);
}

#[test]
fn ignored_test_without_reason_is_found() {
    let text = "#[ignore = \"needs a kernel module\"]\n#[test]\nfn a() {}\n#[ignore]\nfn b() {}\n";
    assert!(one(&ignored_tests(&Source::new("crates/a/src/a.rs", text))).contains("a.rs:4"));
}

#[test]
fn path_of_one_machine_is_found_in_any_text() {
    for path in [concat!("/wor", "k/main"), concat!("../sha", "red/x")] {
        let text = format!("# see\n{path}\n");
        assert!(one(&foreign_paths(&Source::new("Makefile", &text))).contains("Makefile:2"));
    }
    assert_eq!(foreign_paths(&Source::new("Makefile", "a/work b\n")), []);
}

#[test]
fn pure_crate_without_no_std_is_found() {
    let sources = [
        Source::new("crates/base/src/lib.rs", "#![no_std]\n"),
        Source::new("crates/wire/src/lib.rs", "// #![no_std]\n"),
    ];
    assert!(one(&pure_crates(&sources)).contains("wire does not say"));
}

#[test]
fn link_that_leads_nowhere_is_found() {
    let text = "[a](glossary.md#words) [b](../README.md) [c](https://x.invalid) `[d](no.md)`\n\
                ```\n[e](no.md)\n```\n[f](gone.md)\n[g](../../out.md) [h](#here)\n";
    let source = Source::new("docs/index.md", text);
    let exists = |path: &str| ["docs/glossary.md", "README.md"].contains(&path);
    let lines: Vec<usize> =
        links::resolve(&source, &exists).iter().map(|finding| finding.line).collect();
    assert_eq!(lines, [5, 6]);
}

#[test]
fn function_and_file_beyond_their_limits_are_found() {
    let ratchet = Ratchet::parse("").expect("an empty list is a list");
    let fits = Source::new("a.rs", &body(70));
    assert_eq!(check(&[fits], &ratchet), []);
    let long = Source::new("a.rs", &body(71));
    assert!(one(&check(&[long], &ratchet)).contains("function long has 71 lines"));
    let long = Source::new("a.rs", &"use a;\n".repeat(1001));
    assert!(one(&check(&[long], &ratchet)).contains("this file has 1001 lines"));
}

#[test]
fn listed_function_may_stay_but_neither_grow_nor_shrink_unnoticed() {
    let list = "[[function]]\nfile = 'a.rs'\nname = 'long'\nlines = 80\nreason = 'a table'\n";
    let ratchet = Ratchet::parse(list).expect("the list above is well formed");
    assert_eq!(check(&[Source::new("a.rs", &body(80))], &ratchet), []);
    let grown = check(&[Source::new("a.rs", &body(81))], &ratchet);
    assert!(one(&grown).contains("function long has 81 lines"));
    let shrunk = check(&[Source::new("a.rs", &body(75))], &ratchet);
    assert!(one(&shrunk).contains("write lines = 75"));
    let mended = check(&[Source::new("a.rs", &body(70))], &ratchet);
    assert!(one(&mended).contains("no longer needed"));
    assert!(one(&check(&[], &ratchet)).contains("no longer needed"));
}

#[test]
fn listed_file_is_held_to_its_length() {
    let list = "[[file]]\nfile = 'a.rs'\nlines = 1100\nreason = 'one table'\n";
    let ratchet = Ratchet::parse(list).expect("the list above is well formed");
    let file = |lines| [Source::new("a.rs", &"use a;\n".repeat(lines))];
    assert_eq!(check(&file(1100), &ratchet), []);
    assert!(one(&check(&file(1101), &ratchet)).contains("allows 1100"));
}

#[test]
fn list_entry_without_a_reason_or_listed_twice_is_refused() {
    let list = "[[file]]\nfile = 'a.rs'\nlines = 1100\n";
    assert!(Ratchet::parse(list).expect_err("no reason").contains("reason"));
    let list = format!("{list}reason = 'x'\n").repeat(2);
    assert!(Ratchet::parse(&list).expect_err("twice").contains("twice"));
    assert!(Ratchet::parse("[[rom]]\nfile='a'\nlines=1\nreason='x'").is_err());
}
