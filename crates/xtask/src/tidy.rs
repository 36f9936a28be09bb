//! Style as a test: what the compiler and clippy cannot say about this tree.
//!
//! Every rule is a pure function from facts (crates, dependency trees, texts of files) to findings.
//! All findings are printed, each with file, line, rule and remedy; one is enough to fail.
//!
//! Invariants:
//! - A rule never stops at its first finding.
//! - An exception stands in `crates/xtask/tidy.toml` with a reason, and that list only shrinks.
//!
//! Not here: formatting and lints (rustfmt, clippy).

mod crates;
mod files;
mod links;
mod scan;
mod sizes;
mod sources;

#[cfg(test)]
mod tests;

use crate::project::Project;
use std::fmt;

/// One thing to mend.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Finding {
    /// The file, relative to the workspace's root.
    file: String,
    /// The line, counted from one; 0 if the finding is about the whole file.
    line: usize,
    /// The rule's short name.
    rule: &'static str,
    /// What is wrong.
    problem: String,
    /// What to do about it.
    remedy: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.file)?;
        if self.line > 0 {
            write!(out, ":{}", self.line)?;
        }
        write!(out, ": [{}] {}; {}", self.rule, self.problem, self.remedy)
    }
}

/// Checks the tree and prints what it found. Returns whether it found nothing.
pub(crate) fn run(project: &Project) -> bool {
    let mut findings = match check(project) {
        Ok(findings) => findings,
        Err(problem) => {
            eprintln!("tidy: cannot check: {problem}");
            return false;
        }
    };
    findings.sort_by(|a, b| (&a.file, a.line, a.rule).cmp(&(&b.file, b.line, b.rule)));
    for finding in &findings {
        eprintln!("{finding}");
    }
    match findings.len() {
        0 => println!("tidy: nothing to mend in {} crates", project.crates.len()),
        count => eprintln!("tidy: {count} to mend"),
    }
    findings.is_empty()
}

/// Runs every rule over the tree.
fn check(project: &Project) -> Result<Vec<Finding>, String> {
    let sources = files::read(&project.root)?;
    let ratchet = sizes::Ratchet::parse(&files::ratchet(&project.root)?)?;

    let mut findings = crates::floors(&project.crates);
    findings.extend(crates::descriptions(&project.crates));
    findings.extend(crates::pure_dependencies(&project.crates));
    for budget in crates::BUDGETS.iter().filter(|budget| project.has(budget.package)) {
        let tree = project.tree(budget.package)?;
        findings.extend(crates::package_budget(budget, &tree));
        findings.extend(crates::absent_packages(budget, &tree));
    }
    findings.extend(sources::pure_crates(&sources));
    for source in &sources {
        findings.extend(sources::unsafe_code(source));
        findings.extend(sources::clocks(source));
        findings.extend(sources::macros(source));
        findings.extend(sources::ignored_tests(source));
        findings.extend(sources::foreign_paths(source));
        findings.extend(links::resolve(source, &|path| project.root.join(path).exists()));
    }
    findings.extend(sizes::check(&sources, &ratchet));
    Ok(findings)
}
