//! The node of the oldest revision that today's must get along with: `compat/oldest` names it.
//!
//! Always: it is built from the history of this repository, once, beside the target folder. Where the history does not
//! have it, that is said, and is no failure.
//!
//! Not here: building another revision (`elsewhere`), what is done with it (`lab`).

use crate::elsewhere::{Elsewhere, Missing};
use crate::project::Project;
use std::path::PathBuf;

/// Where the program of the oldest revision is, or why there is none.
pub(crate) enum Oldest {
    /// It was built.
    Program(PathBuf),
    /// The revision is not in this copy of the repository.
    Absent(String),
    /// It could not be built.
    Broken(String),
}

/// Whether words for the lab ask for what needs it.
pub(crate) fn is_asked_for(words: &[String]) -> bool {
    let long = words.iter().any(|word| word == "--long");
    let upgrade = |word: &String| word == "upgrade" || word.starts_with("upgrade-");
    words.iter().any(upgrade) || long && !words.iter().any(|word| word == "--quick")
}

/// The revision that a file names: the first line that is no comment.
fn revision_in(text: &str) -> Option<&str> {
    let mut lines = text.lines().map(str::trim);
    let line = lines.find(|line| !line.is_empty() && !line.starts_with('#'))?;
    let whole = line.len() == 40 && line.bytes().all(|byte| byte.is_ascii_hexdigit());
    whole.then_some(line)
}

/// Builds it, unless it is there.
pub(crate) fn build(project: &Project) -> Oldest {
    let path = project.root.join("compat/oldest");
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let Some(revision) = revision_in(&text) else {
        return Oldest::Broken(format!("{}: it names no revision", path.display()));
    };
    let place = project.target.join("compat").join(revision);
    let program = place.join("lockstepd");
    if program.is_file() {
        return Oldest::Program(program);
    }
    let elsewhere = Elsewhere {
        revision,
        source: place.join("source"),
        target: place.join("target"),
        // What it says counts, not how fast.
        release: false,
        programs: &["lockstepd"],
        place,
    };
    match elsewhere.build(project) {
        Ok(()) => Oldest::Program(program),
        Err(Missing::Absent(why)) => {
            Oldest::Absent(format!("revision {revision} cannot be had here: {why}"))
        }
        Err(Missing::Broken(why)) => Oldest::Broken(format!("revision {revision}: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::{is_asked_for, revision_in};

    #[test]
    fn the_oldest_revision_is_named_by_the_first_line_that_is_no_comment() {
        let name = "0123456789abcdef0123456789abcdef01234567";
        assert_eq!(revision_in(&format!("# why\n\n{name}\nmore\n")), Some(name));
        for bad in ["", "# only why\n", "main\n", &name[1..]] {
            assert_eq!(revision_in(bad), None, "{bad}");
        }
        assert!(revision_in(include_str!("../../../compat/oldest")).is_some());
    }

    #[test]
    fn it_is_built_only_for_labs_that_need_it() {
        let asks = |words: &[&str]| {
            is_asked_for(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
        };
        assert!(asks(&["upgrade"]) && asks(&["--long"]) && asks(&["kill", "upgrade-rolling"]));
        assert!(!asks(&[]) && !asks(&["--quick"]) && !asks(&["kill"]));
    }
}
