//! The simulator: the replica code on a simulated clock, network and disk.
//!
//! A seed names a `plan`: a cluster, its clients, and what will go wrong. A `world` carries it out, one
//! event at a time, while an `oracle` watches and a `history` is written down that must be explained
//! by one register per sector. A `campaign` makes many runs and shrinks what fails.
//!
//! Always: the code under test is the code of the node, through the same doors and the same start;
//! no clock, thread or random number but the seed's is seen by a run.
//!
//! Not here: sockets, io_uring, NBD: those are tested with real processes.

pub mod alarm;
mod alone;
pub mod buffer;
pub mod campaign;
pub mod check;
pub mod checkers;
mod client;
mod damage;
pub mod disk;
mod excuses;
mod fault;
pub mod feature;
mod fork;
pub mod history;
mod inspect;
mod lacks;
mod machine;
pub mod marks;
mod network;
mod oracle;
mod paths;
pub mod plan;
pub mod queue;
mod reservations;
pub mod scenario;
mod sides;
mod start;
mod stop;
pub mod world;

#[cfg(test)]
mod tests;
