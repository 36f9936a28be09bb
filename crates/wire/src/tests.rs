//! Tests that bytes and values are each other's mirror, and that no bytes do harm.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test may panic, and its random numbers are cut to size on purpose"
)]

mod admin;
mod fixtures;
mod frame;
mod hello;
mod register;
mod sample;
mod voucher;
