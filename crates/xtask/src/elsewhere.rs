//! Programs of another revision of this repository, built beside the target folder.
//!
//! Always: a program lies in its place whole, or not at all.
//!
//! Not here: which revision, and what is done with its programs (`oldest`, `steps`).

use crate::project::{Project, cargo, output};
use std::path::PathBuf;
use std::process::Command;

/// Programs of a revision, and where they come to be.
pub(crate) struct Elsewhere<'a> {
    /// As git understands it.
    pub(crate) revision: &'a str,
    /// Where its files are laid out.
    pub(crate) source: PathBuf,
    /// Where cargo builds them.
    pub(crate) target: PathBuf,
    /// Whether they are to be fast; else they are built soonest.
    pub(crate) release: bool,
    /// Packages, each with one program of its name.
    pub(crate) programs: &'a [&'a str],
    /// The folder in which these lie in the end.
    pub(crate) place: PathBuf,
}

/// Why there are no programs.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Missing {
    /// The revision is not in this copy of the repository.
    Absent(String),
    /// It could not be built.
    Broken(String),
}

impl Elsewhere<'_> {
    /// Lays out the revision's files, builds its programs and puts them in their place.
    pub(crate) fn build(&self, project: &Project) -> Result<(), Missing> {
        self.unpack(project).map_err(Missing::Absent)?;
        self.compile().map_err(Missing::Broken)?;
        self.put_in_place().map_err(|error| Missing::Broken(error.to_string()))
    }

    fn unpack(&self, project: &Project) -> Result<(), String> {
        let archive = self.source.with_extension("tar");
        std::fs::create_dir_all(&self.source).map_err(|error| error.to_string())?;
        let mut pack = Command::new("git");
        pack.current_dir(&project.root).args(["archive", "--output"]);
        pack.arg(&archive).arg(self.revision);
        output(&mut pack).map_err(|why| format!("{} (is the copy shallow?)", why.trim()))?;
        let mut unpack = Command::new("tar");
        output(unpack.arg("-C").arg(&self.source).arg("-xf").arg(&archive)).map(drop)
    }

    fn compile(&self) -> Result<(), String> {
        let packages = self.programs.iter().flat_map(|program| ["--package", program]);
        let mut words = vec!["build", "--locked"];
        words.extend(self.release.then_some("--release"));
        words.extend(packages);
        let mut command = cargo(&self.source, &words);
        let built = command.env("CARGO_TARGET_DIR", &self.target).status();
        match built.map_err(|error| error.to_string())? {
            status if status.success() => Ok(()),
            status => Err(format!("cargo build: {status}")),
        }
    }

    fn put_in_place(&self) -> std::io::Result<()> {
        let built = self.target.join(if self.release { "release" } else { "debug" });
        std::fs::create_dir_all(&self.place)?;
        for name in self.programs {
            let program = self.place.join(name);
            let new = program.with_extension("new");
            std::fs::copy(built.join(name), &new)?;
            std::fs::rename(&new, &program)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Elsewhere, Missing};
    use crate::project::Project;

    #[test]
    fn a_revision_that_is_not_in_the_history_is_absent_and_none_of_its_programs_is_there() {
        let folder = std::env::temp_dir().join(format!("xtask-elsewhere-{}", std::process::id()));
        let project = Project { root: folder.clone(), target: folder.clone(), crates: Vec::new() };
        let elsewhere = Elsewhere {
            revision: "0123456789abcdef0123456789abcdef01234567",
            source: folder.join("source"),
            target: folder.join("target"),
            release: false,
            programs: &["lockstepd"],
            place: folder.join("place"),
        };
        let outcome = elsewhere.build(&project);
        assert!(matches!(outcome, Err(Missing::Absent(_))), "{outcome:?}");
        assert!(!elsewhere.place.exists());
        std::fs::remove_dir_all(&folder).expect("this test's own");
    }
}
