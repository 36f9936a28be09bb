//! What things are: ids, spans, time, requests, checksums, random numbers. Pure, no_std.
