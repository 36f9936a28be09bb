//! See Cargo.toml.
fn main() {}
