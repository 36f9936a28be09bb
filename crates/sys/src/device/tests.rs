#![expect(clippy::unwrap_used, reason = "tests stop at the first surprise")]

use std::os::unix::fs::MetadataExt;

use super::*;
use crate::tests::mounted::Mounted;
use crate::{Access, OpenOptions};

#[test]
fn the_block_size_of_a_file_is_known_also_where_the_kernel_tells_that_of_the_disk_only() {
    for (sector_bytes, is_partition) in [(4096, false), (4096, true), (512, true)] {
        let Some(mounted) = Mounted::new(sector_bytes, is_partition) else { continue };
        let path = mounted.place().join("file");
        let options =
            OpenOptions { create_new: true, access: Access::ReadWrite, ..OpenOptions::default() };
        let file = File::open(&path, options).unwrap();
        let told = std::fs::metadata(&path).unwrap().dev();
        assert_eq!(block_of(told), Some(sector_bytes), "{is_partition}");
        assert_eq!(file.facts().unwrap().logical_block_bytes, sector_bytes);
        if let Some(known) = file.direct_alignment() {
            assert_eq!(known, sector_bytes, "what newer kernels tell is the same");
        }
    }
    assert_eq!(block_of(0), None, "no disk");
}
