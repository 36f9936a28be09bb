//! The simulator: the replica code on a simulated clock, network and disk.
