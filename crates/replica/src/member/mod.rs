//! The configuration register, the lease, the in-sync set and who is primary.
