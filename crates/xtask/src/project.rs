//! What is known of the workspace: where it lies, its crates, and how to run cargo in it.
//!
//! All facts come from `cargo metadata` and `cargo tree`; nothing is guessed from file names.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// When a dependency is used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum DependencyKind {
    /// In the crate itself.
    Normal,
    /// In its build script.
    Build,
    /// In its tests only.
    Development,
}

/// One line of a crate's dependency tables.
#[derive(Clone, Debug)]
pub(crate) struct Dependency {
    /// The package's name.
    pub(crate) name: String,
    /// When it is used.
    pub(crate) kind: DependencyKind,
}

/// One crate of the workspace.
#[derive(Clone, Debug)]
pub(crate) struct Crate {
    /// Its package name.
    pub(crate) name: String,
    /// Its `Cargo.toml`, relative to the workspace's root.
    pub(crate) manifest: String,
    /// The description in its `Cargo.toml`.
    pub(crate) description: Option<String>,
    /// What it depends on directly.
    pub(crate) dependencies: Vec<Dependency>,
}

/// The workspace this command was called in.
#[derive(Clone, Debug)]
pub(crate) struct Project {
    /// Its root folder.
    pub(crate) root: PathBuf,
    /// Where cargo puts what it builds.
    pub(crate) target: PathBuf,
    /// Its crates, in cargo's order.
    pub(crate) crates: Vec<Crate>,
}

impl Project {
    /// Asks cargo about the workspace that holds the current folder.
    pub(crate) fn read() -> Result<Project, String> {
        let arguments = ["metadata", "--no-deps", "--format-version", "1"];
        let text = output(&mut cargo(Path::new("."), &arguments))?;
        Project::parse(&text)
    }

    /// Reads what `cargo metadata --no-deps` printed.
    pub(crate) fn parse(text: &str) -> Result<Project, String> {
        let value: Value =
            serde_json::from_str(text).map_err(|error| format!("cargo metadata: {error}"))?;
        let root = PathBuf::from(text_of(&value, "workspace_root")?);
        let target = PathBuf::from(text_of(&value, "target_directory")?);
        let packages = value["packages"].as_array().ok_or("cargo metadata names no packages")?;
        let crates =
            packages.iter().map(|package| parse_crate(package, &root)).collect::<Result<_, _>>()?;
        Ok(Project { root, target, crates })
    }

    /// Whether the workspace has a crate of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.crates.iter().any(|member| member.name == name)
    }

    /// A cargo command in the workspace's root.
    pub(crate) fn cargo(&self, arguments: &[&str]) -> Command {
        cargo(&self.root, arguments)
    }

    /// Names and versions of all packages that go into `package`, itself included, each once.
    pub(crate) fn tree(&self, package: &str) -> Result<Vec<String>, String> {
        let arguments =
            ["tree", "--edges", "normal", "--package", package, "--prefix", "none", "--quiet"];
        output(&mut self.cargo(&arguments)).map(|text| parse_tree(&text))
    }
}

/// Reads what `cargo tree --prefix none` printed: "name v1.2.3" of each package, once, sorted.
pub(crate) fn parse_tree(text: &str) -> Vec<String> {
    let mut packages: Vec<String> = text
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            Some(format!("{} {}", words.next()?, words.next()?))
        })
        .collect();
    packages.sort();
    packages.dedup();
    packages
}

fn parse_crate(package: &Value, root: &Path) -> Result<Crate, String> {
    let manifest = PathBuf::from(text_of(package, "manifest_path")?);
    let manifest = manifest.strip_prefix(root).unwrap_or(&manifest).display().to_string();
    let none = Vec::new();
    let dependencies = package["dependencies"].as_array().unwrap_or(&none);
    Ok(Crate {
        name: text_of(package, "name")?,
        manifest,
        description: package["description"].as_str().map(str::to_owned),
        dependencies: dependencies.iter().map(parse_dependency).collect::<Result<_, _>>()?,
    })
}

fn parse_dependency(value: &Value) -> Result<Dependency, String> {
    let kind = match value["kind"].as_str() {
        None => DependencyKind::Normal,
        Some("build") => DependencyKind::Build,
        Some("dev") => DependencyKind::Development,
        Some(other) => return Err(format!("cargo metadata: unknown dependency kind {other:?}")),
    };
    Ok(Dependency { name: text_of(value, "name")?, kind })
}

fn text_of(value: &Value, key: &str) -> Result<String, String> {
    let text = value[key].as_str().ok_or_else(|| format!("cargo metadata gives no {key}"))?;
    Ok(text.to_owned())
}

/// A cargo command in `folder`, without the variables that `cargo run` set for this program: build
/// scripts that watch them would run again at every change between `cargo xtask` and `cargo`.
pub(crate) fn cargo(folder: &Path, arguments: &[&str]) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.current_dir(folder).args(arguments);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(name);
        }
    }
    command
}

/// Runs `command` to its end and returns what it printed, or why it failed.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let result = command.output().map_err(|error| format!("{}: {error}", shown(command)))?;
    if !result.status.success() {
        let complaint = String::from_utf8_lossy(&result.stderr);
        return Err(format!("{}: {}\n{}", shown(command), result.status, complaint.trim_end()));
    }
    String::from_utf8(result.stdout).map_err(|_| format!("{}: printed no UTF-8", shown(command)))
}

/// The words of `command`, without what it does to the environment.
pub(crate) fn shown(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy()];
    words.extend(command.get_args().map(|word| word.to_string_lossy()));
    words.join(" ")
}
