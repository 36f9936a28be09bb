//! Rules about crates: floors, what a program must not hold, how many packages it may hold.

use super::Finding;
use crate::project::{Crate, DependencyKind};

/// The floor of every crate. A crate uses strictly lower floors only.
const FLOORS: &[(u32, &[&str])] = &[
    (0, &["base"]),
    (1, &["wire", "nbd", "nvme", "vhost"]),
    (2, &["replica"]),
    (3, &["sys", "tools"]),
    (4, &["store", "link", "client"]),
    (5, &["export"]),
    (6, &["lockstepd", "lockstep"]),
    (7, &["sim", "bench", "fuzz", "xtask"]),
    // Judged by the history of the simulator.
    (8, &["lab"]),
];

/// What a program may hold.
pub(super) struct Budget {
    /// The program's package.
    pub(super) package: &'static str,
    /// The most packages in its tree, itself included.
    pub(super) packages: usize,
    /// Packages that may never be in its tree.
    pub(super) absent: &'static [&'static str],
}

/// The data plane changes least and holds least; the command line may hold more.
pub(super) const BUDGETS: &[Budget] = &[
    Budget {
        package: "lockstepd",
        packages: 90,
        absent: &["tokio", "async-std", "hyper", "reqwest", "kube"],
    },
    Budget { package: "lockstep", packages: 350, absent: &[] },
];

/// The only direct dependencies of the crates that decide and of what they stand on.
const PURE: &[(&str, &[&str])] = &[
    ("replica", &["base", "wire"]),
    ("wire", &["base", "serde", "serde_json"]),
    ("nbd", &["base"]),
    ("vhost", &[]),
    // Hashes and big numbers, which are functions of their arguments.
    ("nvme", &["base", "ring", "crypto-bigint"]),
];

fn floor(name: &str) -> Option<u32> {
    FLOORS.iter().find(|(_, members)| members.contains(&name)).map(|&(floor, _)| floor)
}

/// A crate has a floor, and depends on lower floors only. Test dependencies are free.
pub(super) fn floors(crates: &[Crate]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for member in crates {
        let Some(own) = floor(&member.name) else {
            findings.push(about(
                member,
                "floors",
                format!("crate {} has no floor", member.name),
                "give it one in crates/xtask/src/tidy/crates.rs and a sentence in ARCHITECTURE.md",
            ));
            continue;
        };
        for dependency in shipped(member) {
            let inside = crates.iter().any(|other| other.name == dependency);
            let Some(other) = floor(dependency).filter(|_| inside) else { continue };
            if other >= own {
                findings.push(about(
                    member,
                    "floors",
                    format!(
                        "{} (floor {own}) depends on {dependency} (floor {other})",
                        member.name
                    ),
                    "depend on lower floors only: move what is shared down, or pass it in from above",
                ));
            }
        }
    }
    findings
}

/// Every crate says in its manifest what it is for.
pub(super) fn descriptions(crates: &[Crate]) -> Vec<Finding> {
    let silent = |member: &&Crate| {
        member.description.as_deref().is_none_or(|description| description.trim().is_empty())
    };
    let finding = |member: &Crate| {
        about(
            member,
            "description",
            format!("crate {} has no description", member.name),
            "add `description` with one sentence on what it is for",
        )
    };
    crates.iter().filter(silent).map(finding).collect()
}

/// The crates that decide stand on named crates only, so nothing impure comes in below them.
pub(super) fn pure_dependencies(crates: &[Crate]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, allowed) in PURE {
        for member in crates.iter().filter(|member| member.name == *name) {
            for dependency in shipped(member).filter(|dependency| !allowed.contains(dependency)) {
                findings.push(about(
                    member,
                    "pure",
                    format!("{name} depends on {dependency}"),
                    &format!(
                        "it may use {} only: take what it needs from there",
                        allowed.join(", ")
                    ),
                ));
            }
        }
    }
    findings
}

/// A program's tree (`Project::tree`) is no larger than its budget.
pub(super) fn package_budget(budget: &Budget, tree: &[String]) -> Vec<Finding> {
    if tree.len() <= budget.packages {
        return Vec::new();
    }
    vec![Finding {
        file: manifest(budget),
        line: 0,
        rule: "budget",
        problem: format!(
            "{} is made of {} packages, its budget is {}",
            budget.package,
            tree.len(),
            budget.packages
        ),
        remedy: "write the small helper yourself, or turn off features (see `cargo tree`)".into(),
    }]
}

/// None of the packages that must be absent is in a program's tree.
pub(super) fn absent_packages(budget: &Budget, tree: &[String]) -> Vec<Finding> {
    let forbidden = tree.iter().filter(|package| {
        let name = package.split(' ').next().unwrap_or(package);
        budget.absent.contains(&name)
    });
    forbidden
        .map(|package| Finding {
            file: manifest(budget),
            line: 0,
            rule: "absences",
            problem: format!("{} holds {package}", budget.package),
            remedy: "find who brings it with `cargo tree --invert` and do without".into(),
        })
        .collect()
}

/// What goes into `member` or its build script.
fn shipped(member: &Crate) -> impl Iterator<Item = &str> {
    member
        .dependencies
        .iter()
        .filter(|dependency| dependency.kind != DependencyKind::Development)
        .map(|dependency| dependency.name.as_str())
}

fn manifest(budget: &Budget) -> String {
    format!("crates/{}/Cargo.toml", budget.package)
}

fn about(member: &Crate, rule: &'static str, problem: String, remedy: &str) -> Finding {
    Finding { file: member.manifest.clone(), line: 0, rule, problem, remedy: remedy.to_owned() }
}
