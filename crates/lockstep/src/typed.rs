//! Commands as they can be typed where this program was started: this program's own name, paths quoted.

use std::path::Path;

/// What a shell leaves as it is; everything else is quoted.
const PLAIN: &str = "/._-+:@%,=";

/// This program: by its name if the search path leads to it, else by the shortest path from here.
pub(crate) fn program() -> String {
    let Ok(program) = std::env::current_exe() else { return "lockstep".to_owned() };
    let searched = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&searched).any(|place| place.join("lockstep") == program);
    if on_path {
        return "lockstep".to_owned();
    }
    path(&from(&std::env::current_dir().unwrap_or_default(), &program))
}

/// The shortest way to a program from `here`. A bare name would be looked for elsewhere.
fn from(here: &Path, program: &Path) -> std::path::PathBuf {
    match program.strip_prefix(here) {
        Ok(below) if below.components().count() == 1 => Path::new(".").join(below),
        Ok(below) => below.to_path_buf(),
        Err(_) => program.to_path_buf(),
    }
}

/// A path as one word of a shell.
pub(crate) fn path(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_alphanumeric() || PLAIN.contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::{from, path};
    use std::path::Path;

    #[test]
    fn what_a_shell_would_take_apart_is_quoted() {
        assert_eq!(path(Path::new("/tmp/lockstep-1.2_3")), "/tmp/lockstep-1.2_3");
        assert_eq!(path(Path::new("/tmp/it's kept")), r"'/tmp/it'\''s kept'");
        assert_eq!(path(Path::new("$HOME")), "'$HOME'");
    }

    #[test]
    fn a_program_is_named_by_the_shortest_path_that_a_shell_follows() {
        let program = Path::new("/src/target/debug/lockstep");
        let named = |here: &str| from(Path::new(here), program).display().to_string();
        assert_eq!(named("/src"), "target/debug/lockstep");
        assert_eq!(named("/src/target/debug"), "./lockstep");
        assert_eq!(named("/elsewhere"), "/src/target/debug/lockstep");
    }
}
