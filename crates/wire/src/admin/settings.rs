//! The text of `node.toml`, as all who read it understand it.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// `link-encryption = off` is what people write, and no TOML: the word gets its quotes here. No line is added.
#[must_use]
pub fn with_quotes(text: &str) -> String {
    let quoted = |line: &str| {
        let (key, value) = line.split_once('=')?;
        let named = matches!(key.trim(), "link-encryption" | "link_encryption");
        let word = value.split('#').next().unwrap_or_default().trim();
        let bare = matches!(word, "on" | "off");
        (named && bare).then(|| format!("{key}= \"{word}\""))
    };
    let lines = text.lines().map(|line| quoted(line).unwrap_or_else(|| line.to_owned()));
    lines.collect::<Vec<_>>().join("\n")
}
