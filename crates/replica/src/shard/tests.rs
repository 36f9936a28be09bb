//! Tests of the shard, in a small world of them.

extern crate std;
mod bitmaps;
mod early;
mod failures;
mod flows;
mod flushes;
mod grow;
mod log;
mod multipath;
mod once;
mod place;
mod reserve;
mod resync;
mod rot;
mod sessions;
mod world;
