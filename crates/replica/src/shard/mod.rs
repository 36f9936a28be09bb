//! Writes, reads, activity log, bitmaps, resync of one shard.
