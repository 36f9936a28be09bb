//! One node's share of a resource: what is decided. Pure, no_std.
