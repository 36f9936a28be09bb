//! Just enough of Rust's grammar to tell code from text, and to measure functions.
//!
//! `blank` writes spaces over comments and over the inside of literals, byte for byte, so that
//! offsets and lines in its result are those of the source. Everything else looks at its result.
//!
//! Not here: macros' meaning. A function written inside a macro call is measured like any other.

/// A function with a body.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Function {
    /// Its name.
    pub(super) name: String,
    /// The line of its `fn`, counted from one.
    pub(super) line: usize,
    /// Lines from its `fn` to its closing brace, both included.
    pub(super) lines: usize,
}

/// `source` with spaces for every byte of a comment and of the inside of a string or character.
pub(super) fn blank(source: &str) -> String {
    let mut scanner = Scanner { source, bytes: source.as_bytes(), at: 0, out: Vec::new() };
    while scanner.at < scanner.bytes.len() {
        scanner.step();
    }
    String::from_utf8(scanner.out).expect("whole characters are either copied or blanked")
}

/// Where `word` stands in blanked code as a whole word, as byte offsets.
pub(super) fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let bytes = code.as_bytes();
    code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let before = at.checked_sub(1).and_then(|before| bytes.get(before));
        !before.is_some_and(|&byte| is_word(byte))
            && !bytes.get(at + word.len()).is_some_and(|&byte| is_word(byte))
    })
}

/// The line, counted from one, of the byte at `offset`.
pub(super) fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset].iter().filter(|&&byte| byte == b'\n').count() + 1
}

/// Every function with a body in blanked code, in the order of their `fn`.
pub(super) fn functions(code: &str) -> Vec<Function> {
    words(code, "fn").filter_map(|at| function_at(code, at)).collect()
}

/// The function whose `fn` is at `at`, or `None` if it has no name (a pointer type) or no body.
fn function_at(code: &str, at: usize) -> Option<Function> {
    let rest = code[at + 2..].trim_start();
    let name: String = rest.chars().take_while(|&c| c == '_' || c.is_alphanumeric()).collect();
    if name.is_empty() {
        return None;
    }
    let end = body_end(code, at)?;
    let line = line_of(code, at);
    Some(Function { name, line, lines: line_of(code, end) - line + 1 })
}

/// Offset of the brace that ends the body of the function whose `fn` is at `at`.
fn body_end(code: &str, at: usize) -> Option<usize> {
    let mut brackets = 0_i32;
    let mut braces = 0_i32;
    for (offset, byte) in code.bytes().enumerate().skip(at) {
        match byte {
            b'(' | b'[' if braces == 0 => brackets += 1,
            b')' | b']' if braces == 0 => brackets -= 1,
            b';' if braces == 0 && brackets == 0 => return None,
            b'{' if brackets == 0 => braces += 1,
            b'}' if brackets == 0 => {
                braces -= 1;
                if braces <= 0 {
                    return (braces == 0).then_some(offset);
                }
            }
            _ => {}
        }
    }
    None
}

fn is_word(byte: u8) -> bool {
    byte == b'_' || byte.is_ascii_alphanumeric() || !byte.is_ascii()
}

/// Walks a source once. `out` is as long as what was walked.
struct Scanner<'a> {
    source: &'a str,
    bytes: &'a [u8],
    at: usize,
    out: Vec<u8>,
}

impl Scanner<'_> {
    /// Walks over one comment, one literal, or one byte of code.
    fn step(&mut self) {
        let rest = &self.bytes[self.at..];
        if rest.starts_with(b"//") {
            let end = rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
            self.blank(end);
        } else if rest.starts_with(b"/*") {
            let end = block_comment(rest);
            self.blank(end);
        } else if let Some(hashes) = self.raw_string() {
            self.raw(hashes);
        } else if rest[0] == b'"' {
            let end = string(rest);
            self.literal(1, end);
        } else if let Some(end) = self.character() {
            self.literal(1, end);
        } else {
            self.copy(1);
        }
    }

    fn copy(&mut self, count: usize) {
        self.out.extend_from_slice(&self.bytes[self.at..self.at + count]);
        self.at += count;
    }

    fn blank(&mut self, count: usize) {
        let bytes = &self.bytes[self.at..self.at + count];
        self.out.extend(bytes.iter().map(|&byte| if byte == b'\n' { b'\n' } else { b' ' }));
        self.at += count;
    }

    /// Copies a literal's `edge` bytes at both ends and blanks what is between.
    fn literal(&mut self, edge: usize, count: usize) {
        if count < 2 * edge {
            self.blank(count);
            return;
        }
        self.copy(edge);
        self.blank(count - 2 * edge);
        self.copy(edge);
    }

    /// If a raw string starts here (at its `r`), the number of its hashes.
    fn raw_string(&self) -> Option<usize> {
        if self.bytes[self.at] != b'r' {
            return None;
        }
        let before = &self.bytes[..self.at];
        let before = before.strip_suffix(b"b").or(before.strip_suffix(b"c")).unwrap_or(before);
        if before.last().is_some_and(|&byte| is_word(byte)) {
            return None;
        }
        let rest = &self.bytes[self.at + 1..];
        let hashes = rest.iter().take_while(|&&byte| byte == b'#').count();
        (rest.get(hashes) == Some(&b'"')).then_some(hashes)
    }

    /// Walks over the raw string that starts here.
    fn raw(&mut self, hashes: usize) {
        self.copy(1 + hashes);
        let rest = &self.source[self.at + 1..];
        let end = format!("\"{}", "#".repeat(hashes));
        let inside = rest.find(&end).unwrap_or(rest.len());
        let count = (1 + inside + 1).min(self.bytes.len() - self.at);
        self.literal(1, count);
    }

    /// If a character literal starts here (and not a lifetime), its length.
    fn character(&self) -> Option<usize> {
        let rest = self.bytes[self.at..].strip_prefix(b"'")?;
        if rest.first() == Some(&b'\\') {
            let end = rest.iter().skip(2).position(|&byte| byte == b'\'')?;
            return Some(1 + 2 + end + 1);
        }
        let width = self.source[self.at + 1..].chars().next()?.len_utf8();
        (rest.get(width) == Some(&b'\'')).then_some(1 + width + 1)
    }
}

/// Length of the block comment that `bytes` starts with; they nest.
fn block_comment(bytes: &[u8]) -> usize {
    let (mut at, mut depth) = (0, 0);
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    bytes.len()
}

/// Length of the string literal that `bytes` starts with, quotes included.
fn string(bytes: &[u8]) -> usize {
    let mut at = 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}
