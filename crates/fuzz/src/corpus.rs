//! Inputs that are kept in the tree: `crates/fuzz/corpus/TARGET.hex`.
//!
//! One input is a line beginning with `#`, which says what it is, and lines of hexadecimal digits behind it. A line `HEX x COUNT` is
//! these bytes so many times: most of a page of metadata is zeroes.
//! What is committed is what each run begins with: inputs of many outcomes, and those that failed once.
//!
//! Not here: inputs that fail now (`run`, which names the file it writes).

use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Inputs of one target that `write` takes, and characters of the longest: files that people can still look through.
const WRITTEN_MAX: usize = 24;
const WRITTEN_CHARACTERS_MAX: usize = 2200;

/// Equal bytes in a row that get a line of their own.
const RUN_BYTES_MIN: usize = 16;

/// Bytes of an input that a text may describe: more than any target takes.
const INPUT_BYTES_MAX: usize = 1 << 20;

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

/// Makes the corpus of a target anew from `inputs`, evenly chosen among those that are short as text; says where it is. Without such
/// a one it stays as it was.
///
/// # Errors
/// The file cannot be written.
pub fn write(name: &str, inputs: &[Vec<u8>]) -> std::io::Result<PathBuf> {
    let short: Vec<String> = inputs
        .iter()
        .filter(|input| !input.is_empty())
        .map(|input| described(input))
        .filter(|text| text.len() <= WRITTEN_CHARACTERS_MAX)
        .collect();
    let step = short.len().div_ceil(WRITTEN_MAX).max(1);
    let text: String = short.into_iter().step_by(step).collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(format!("{name}.hex"));
    if !text.is_empty() {
        std::fs::write(&path, text)?;
    }
    Ok(path)
}

/// One input as text.
fn described(input: &[u8]) -> String {
    let mut text = format!("# {} bytes\n", input.len());
    let mut plain: Vec<u8> = Vec::new();
    for run in input.chunk_by(|one, next| one == next) {
        if run.len() < RUN_BYTES_MIN {
            plain.extend(run);
            continue;
        }
        write_plain(&mut text, &plain);
        plain.clear();
        let _ = writeln!(text, "{:02x} x {}", run[0], run.len());
    }
    write_plain(&mut text, &plain);
    text
}

fn write_plain(text: &mut String, bytes: &[u8]) {
    for line in bytes.chunks(60) {
        line.iter().for_each(|byte| {
            let _ = write!(text, "{byte:02x}");
        });
        text.push('\n');
    }
}

fn inputs_of(path: &Path) -> Vec<Vec<u8>> {
    std::fs::read_to_string(path).map_or(Vec::new(), |text| parse(&text))
}

/// The inputs of a text.
fn parse(text: &str) -> Vec<Vec<u8>> {
    let mut inputs = Vec::new();
    let mut bytes = Vec::new();
    for line in text.lines().chain(["#"]) {
        if !line.starts_with('#') {
            let (digits, count) = line.split_once(" x ").unwrap_or((line, "1"));
            let piece = bytes_of(digits.trim());
            let room = (INPUT_BYTES_MAX - bytes.len()) / piece.len().max(1);
            bytes.extend(piece.repeat(count.trim().parse().unwrap_or(1).min(room)));
        } else if !bytes.is_empty() {
            inputs.push(std::mem::take(&mut bytes));
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

#[cfg(test)]
mod tests {
    use super::{described, parse};

    #[test]
    fn what_is_described_is_read_again_and_zeroes_take_a_line() {
        let mut page = vec![0; 4096];
        page[7..100].iter_mut().zip(1..).for_each(|(byte, value)| *byte = value);
        page[4000..4015].fill(9);
        let inputs = [page, vec![5; 300], vec![1, 2, 3]];
        let text: String = inputs.iter().map(|input| described(input)).collect();
        assert_eq!(parse(&text), inputs);
        assert!(text.len() < 600, "{text}");
    }

    #[test]
    fn several_bytes_are_repeated_too_and_nothing_without_end() {
        assert_eq!(parse("# a\n0102 x 3\n03\n# b\n"), [[1, 2, 1, 2, 1, 2, 3]]);
        assert!(parse("# a\n00 x 99999999999\n")[0].len() <= super::INPUT_BYTES_MAX);
    }
}
