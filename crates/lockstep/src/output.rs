//! How answers look: colour, tables, JSON, a bar that grows.
//!
//! Always: colour only where it was asked for, or on a terminal that wants it; JSON is one value in
//! one line; a closed pipe ends the program quietly instead of with a panic.
//!
//! Not here: what the answers say.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use crate::cli::{Colour, Form, Global};
use crate::problem::{FILE, Problem, READER_GONE};
use crate::unit::{per_cent, show_seconds, show_size};

/// Colours, by what they say.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Tone {
    Plain,
    Good,
    Doubtful,
    Bad,
    Faint,
    Strong,
}

/// A piece of text with its colour.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Cell(pub(crate) String, pub(crate) Tone);

impl Cell {
    pub(crate) fn plain(text: impl Into<String>) -> Cell {
        Cell(text.into(), Tone::Plain)
    }
}

/// How to write.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Style {
    pub(crate) form: Form,
    pub(crate) colour: bool,
    /// Standard output is a terminal.
    pub(crate) terminal: bool,
}

impl Style {
    /// As the command line and the surroundings say.
    pub(crate) fn of(global: &Global) -> Style {
        let terminal = io::stdout().is_terminal();
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        let colour = match global.color {
            Colour::Always => true,
            Colour::Never => false,
            Colour::Auto => terminal && !unwanted,
        };
        Style { form: global.output, colour, terminal }
    }

    /// Text in a tone.
    pub(crate) fn paint(self, tone: Tone, text: &str) -> String {
        let number = match tone {
            Tone::Good => "32",
            Tone::Doubtful => "33",
            Tone::Bad => "31",
            Tone::Faint => "2",
            Tone::Strong => "1",
            Tone::Plain => return text.to_owned(),
        };
        if self.colour { format!("\x1b[{number}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// Columns below their titles, two spaces apart.
    pub(crate) fn table(self, titles: &[&str], rows: &[Vec<Cell>]) -> String {
        let width = |column: usize| {
            let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| &cell.0);
            cells.map(|text| text.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..titles.len())
            .map(|column| width(column).max(titles[column].chars().count()))
            .collect();
        let titles: Vec<Cell> =
            titles.iter().map(|title| Cell((*title).to_owned(), Tone::Faint)).collect();
        let mut text = String::new();
        for row in std::iter::once(&titles).chain(rows) {
            for (column, cell) in row.iter().enumerate() {
                let last = column + 1 == row.len();
                let wide = widths.get(column).copied().unwrap_or(0);
                let gap = if last { 0 } else { wide + 2 - cell.0.chars().count().min(wide) };
                text.push_str(&self.paint(cell.1, &cell.0));
                text.push_str(&" ".repeat(gap));
            }
            text.push('\n');
        }
        text
    }
}

/// Writes text as it is.
pub(crate) fn say(text: &str) -> Result<(), Problem> {
    let mut out = io::stdout().lock();
    finish(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Writes one JSON value as a line.
pub(crate) fn say_json(value: &impl Serialize) -> Result<(), Problem> {
    let mut text = serde_json::to_string(value)
        .map_err(|error| Problem::new(FILE, format!("the answer is no JSON: {error}")))?;
    text.push('\n');
    say(&text)
}

fn finish(written: io::Result<()>) -> Result<(), Problem> {
    written.map_err(|error| {
        let kind = if error.kind() == io::ErrorKind::BrokenPipe { READER_GONE } else { FILE };
        Problem::new(kind, format!("standard output: {error}"))
    })
}

/// Width of a bar in characters.
const BAR_WIDTH: u64 = 24;

/// `[#####-----] 50%  512MiB of 1GiB  300MiB/s  2s left`
pub(crate) fn bar(done: u64, total: u64, rate: u64, left_seconds: Option<u64>) -> String {
    let filled = per_cent(done, total) * BAR_WIDTH / 100;
    let mut text = String::from("[");
    for place in 0..BAR_WIDTH {
        text.push(if place < filled { '#' } else { '-' });
    }
    text.push_str(&format!(
        "] {:>3}%  {} of {}",
        per_cent(done, total),
        show_size(done),
        show_size(total)
    ));
    if rate > 0 {
        text.push_str(&format!("  {}/s", show_size(rate)));
    }
    if let Some(seconds) = left_seconds {
        text.push_str(&format!("  {} left", show_seconds(seconds)));
    }
    text
}

/// A line that is written over itself on a terminal, and nothing elsewhere.
pub(crate) struct LiveLine {
    terminal: bool,
    shown: bool,
}

impl LiveLine {
    pub(crate) fn new(style: Style) -> LiveLine {
        LiveLine { terminal: style.terminal, shown: false }
    }

    /// Shows `text` instead of what was there.
    pub(crate) fn show(&mut self, text: &str) -> Result<(), Problem> {
        if !self.terminal {
            return Ok(());
        }
        self.shown = true;
        say(&format!("\r\x1b[K{text}"))
    }

    /// Ends the line: what stands there stays.
    pub(crate) fn end(&mut self) -> Result<(), Problem> {
        if std::mem::take(&mut self.shown) { say("\n") } else { Ok(()) }
    }
}
