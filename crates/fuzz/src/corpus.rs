//! Inputs that are kept in the tree: `crates/fuzz/corpus/TARGET.hex`.
//!
//! One input is a line beginning with `#`, which says what it is, and lines of hexadecimal digits behind it.
//! What is committed is what each run begins with: inputs of many outcomes, and those that failed once.
//!
//! Not here: inputs that fail now (`run`, which names the file it writes).

use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Inputs of one target that `write` takes, and bytes of the longest: files that people can still look through.
const WRITTEN_MAX: usize = 24;
const WRITTEN_BYTES_MAX: usize = 1024;

/// The corpus of a target; nothing if it has none, or where the sources are not at hand.
pub(crate) fn read(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut inputs = inputs_of(&folder.join(format!("{name}.hex")));
    // Frames and configurations of every kind are there already, as examples of their formats.
    let prefix = match name {
        "frames" | "frames-early" => "frame-",
        "configuration" => "configuration-",
        _ => return inputs,
    };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire/fixtures/v1");
    let Ok(entries) = std::fs::read_dir(folder) else { return inputs };
    let mut paths: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "hex"))
        .filter(|path| path.to_string_lossy().contains(prefix))
        .collect();
    paths.sort();
    inputs.extend(paths.iter().flat_map(|path| inputs_of(path)));
    inputs
}

/// Makes the corpus of a target anew from `inputs`, evenly chosen among the short ones; says where it is. Without a short one it
/// stays as it was: pages of metadata are made anew in each run.
///
/// # Errors
/// The file cannot be written.
pub fn write(name: &str, inputs: &[Vec<u8>]) -> std::io::Result<PathBuf> {
    let short: Vec<&Vec<u8>> =
        inputs.iter().filter(|input| (1..=WRITTEN_BYTES_MAX).contains(&input.len())).collect();
    let mut text = String::new();
    for input in short.iter().step_by(short.len().div_ceil(WRITTEN_MAX).max(1)) {
        let _ = writeln!(text, "# {} bytes", input.len());
        for line in input.chunks(60) {
            line.iter().for_each(|byte| {
                let _ = write!(text, "{byte:02x}");
            });
            text.push('\n');
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(format!("{name}.hex"));
    if !text.is_empty() {
        std::fs::write(&path, text)?;
    }
    Ok(path)
}

fn inputs_of(path: &Path) -> Vec<Vec<u8>> {
    std::fs::read_to_string(path).map_or(Vec::new(), |text| parse(&text))
}

/// The inputs of a text.
fn parse(text: &str) -> Vec<Vec<u8>> {
    let mut inputs = Vec::new();
    let mut digits = String::new();
    for line in text.lines().chain(["#"]) {
        if !line.starts_with('#') {
            digits.push_str(line.trim());
        } else if !digits.is_empty() {
            inputs.push(bytes_of(&digits));
            digits.clear();
        }
    }
    inputs
}

fn bytes_of(digits: &str) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    digits
        .as_bytes()
        .chunks_exact(2)
        .filter_map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?))
        .collect()
}
