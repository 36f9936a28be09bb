//! The fuzzer: `cargo xtask fuzz`.
//!
//! Not here: what it does (`command`), and what is judged (the library's other parts).

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    fuzz::command::fuzz(&words)
}
