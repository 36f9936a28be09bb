//! Bytes that change on a disk by themselves, with real processes: with checksums nobody reads them.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod harness;

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use harness::{Cluster, content};

const MIB: u64 = 1 << 20;

#[test]
fn a_read_of_part_of_a_block_that_rotted_gives_what_was_written() {
    read_parts_of_rotten_blocks("rot", 1);
}

#[test]
fn a_thread_beside_the_first_reads_whole_blocks_too() {
    read_parts_of_rotten_blocks("rot-threads", 2);
}

fn read_parts_of_rotten_blocks(name: &str, threads: u16) {
    let mut cluster = Cluster::new(name, 2);
    for node in 1..=2 {
        cluster.add_settings(node, &format!("threads = {threads}"));
        cluster.start(node);
    }
    let mut file = cluster.resource("alpha", 8 * MIB, &[1, 2]);
    file.options.data_checksum = true;
    file.volumes[0].block_bytes = 512;
    cluster.create(&file);
    let blocks = content(7, 64 << 10);
    let mut volume = cluster.open(1, "alpha");
    volume.write(MIB, &blocks).unwrap();
    volume.flush().unwrap();
    for (at, node) in [(0, 1), (8, 2)] {
        let image = cluster.home(node).join("volumes").join("alpha-0.img");
        let image = OpenOptions::new().write(true).open(image).unwrap();
        image.write_all_at(&[0x5a; 16], MIB + at * 4096 + 1536).unwrap();
        image.sync_all().unwrap();
    }
    for node in [1, 2] {
        let mut volume = cluster.open(node, "alpha");
        for (offset, length) in [(1536, 512), (0, 512), (8 * 4096 + 1536, 512), (512, 60 << 10)] {
            let found = volume.read(MIB + offset, length).unwrap();
            let from = usize::try_from(offset).unwrap();
            let expected = &blocks[from..from + length as usize];
            assert!(found == expected, "node {node}, {length} bytes at {offset}");
        }
    }
}
