//! Recognises what else a disk may hold, so that nothing precious is overwritten.
//!
//! Facts: magic numbers and their places as published by each format (kernel headers under
//! `include/uapi/linux`, the UEFI specification, the formats' own descriptions). Recognising too
//! much costs a `force`; recognising too little costs data: where in doubt, recognise.
//!
//! Not here: whether a disk is in use.

use sys::Errno;

/// Bytes of a disk's start that are looked at: ZFS's first label.
pub const FIRST_BYTES: usize = 256 << 10;

/// Bytes of its end: the oldest md superblock lies 64 to 128 KiB before it.
pub const LAST_BYTES: usize = 128 << 10;

/// What our own metadata areas begin with.
pub const OUR_MAGIC: &[u8; 8] = b"LOCKSTEP";

/// Plain magic bytes at fixed places from the start.
const AT_START: &[(usize, &[u8], &str)] = &[
    (0, OUR_MAGIC, "Lockstep metadata"),
    (0, b"XFSB", "an XFS file system"),
    (0, b"LUKS\xba\xbe", "a LUKS encrypted volume"),
    (0x4000, b"SKUL\xba\xbe", "a LUKS encrypted volume"),
    (0, b"bluestore block device", "a Ceph OSD"),
    (0x10040, b"_BHRfS_M", "a btrfs file system"),
    (3, b"NTFS    ", "an NTFS file system"),
    (3, b"EXFAT   ", "an exFAT file system"),
    (0x36, b"FAT1", "a FAT file system"),
    (0x52, b"FAT32   ", "a FAT file system"),
    (
        0x1018,
        b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81",
        "a bcache device",
    ),
    (
        0x1018,
        b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef",
        "a bcachefs file system",
    ),
    (0x10034, b"ReIsEr", "a ReiserFS file system"),
    (0x2034, b"ReIsEr", "a ReiserFS file system"),
    (0x10000, b"ReIsEr4", "a Reiser4 file system"),
    (0x8000, b"JFS1", "a JFS file system"),
    (0x10000, b"\x01\x16\x19\x70", "a GFS2 file system"),
    // Revision 2, and the magic number of 16 bits behind it.
    (0x400, b"\x02\0\0\0\0\0\x34\x34", "a NILFS2 file system"),
    (0x400, b"H+\0\x04", "an HFS+ file system"),
    (0x400, b"HX\0\x05", "an HFS+ file system"),
    (32, b"NXSB", "an APFS file system"),
    (3, b"-FVE-FS-", "a BitLocker volume"),
    (0, b"integrt\0", "a dm-integrity volume"),
    (0, b"dmvdo001", "a VDO volume"),
    (32, b"ORCLDISK", "an Oracle ASM disk"),
    (0x400, b"\x10\x20\xf5\xf2", "an F2FS file system"),
    (0x400, b"\xe2\xe1\xf5\xe0", "an EROFS file system"),
    (0x8001, b"CD001", "an ISO 9660 file system"),
    (0, b"hsqs", "a squashfs file system"),
    (0x200, b"EFI PART", "a GPT partition table"),
    (0x1000, b"EFI PART", "a GPT partition table"),
    (0, b"\xfc\x4e\x2b\xa9", "an md RAID member"),
    (0x1000, b"\xfc\x4e\x2b\xa9", "an md RAID member"),
    (60, b"\x83\x74\x02\x6a", "DRBD metadata"),
    (60, b"\x83\x74\x02\x6b", "DRBD metadata"),
    (60, b"\x83\x74\x02\x6c", "DRBD metadata"),
    (60, b"\x83\x74\x02\x6d", "DRBD metadata"),
];

/// Plain magic bytes at fixed places before the end of the last whole 4 KiB block.
const BEFORE_END: &[(usize, &[u8], &str)] = &[
    // DRBD: the last page; its magic follows seven 64-bit words and the flags. One number for each
    // format since 0.7, the last two digits counting up.
    (4096 - 60, b"\x83\x74\x02\x6a", "DRBD metadata"),
    (4096 - 60, b"\x83\x74\x02\x6b", "DRBD metadata"),
    (4096 - 60, b"\x83\x74\x02\x6c", "DRBD metadata"),
    (4096 - 60, b"\x83\x74\x02\x6d", "DRBD metadata"),
    // md 1.0: 8 to 12 KiB before the end, on a 4 KiB boundary.
    (8192, b"\xfc\x4e\x2b\xa9", "an md RAID member"),
    (12288, b"\xfc\x4e\x2b\xa9", "an md RAID member"),
    // The spare GPT header in the last block, of either size.
    (512, b"EFI PART", "a GPT partition table"),
    (4096, b"EFI PART", "a GPT partition table"),
    // Metadata of firmware RAID: the last sector but one, and the last, of either size.
    (1024, b"Intel Raid ISM Cfg Sig. ", "an Intel RAID member"),
    (8192, b"Intel Raid ISM Cfg Sig. ", "an Intel RAID member"),
    (512, b"\xde\x11\xde\x11", "a DDF RAID member"),
    (4096, b"\xde\x11\xde\x11", "a DDF RAID member"),
];

/// What stands where swap space has its signature while it holds the state of a machine that sleeps.
const SLEEPERS: [&[u8]; 4] = [b"S1SUSPEND", b"S2SUSPEND", b"ULSUSPEND", b"LINHIB0001"];

/// Says what a disk holds, from its first [`FIRST_BYTES`] and last [`LAST_BYTES`] (fewer if it is
/// smaller; `last` must end where the disk ends). `None`: nothing that is known here.
#[must_use]
pub fn foreign_signature(first: &[u8], last: &[u8]) -> Option<&'static str> {
    let plain = AT_START.iter().find(|(at, magic, _)| has(first, *at, magic)).map(|found| found.2);
    plain
        .or_else(|| ext(first))
        .or_else(|| lvm(first))
        .or_else(|| ocfs2(first))
        .or_else(|| swap(first))
        .or_else(|| zfs(first))
        .or_else(|| at_end(last))
        // Last, as boot sectors of file systems look like partition tables.
        .or_else(|| mbr(first))
}

/// Reads both ends of a disk; what it does not have stays cut off.
pub(crate) fn read_ends(
    size_bytes: u64,
    first: &mut Vec<u8>,
    last: &mut Vec<u8>,
    mut read: impl FnMut(&mut [u8], u64) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let limit = usize::try_from(size_bytes).unwrap_or(usize::MAX);
    first.truncate(limit);
    last.truncate(limit);
    read(first, 0)?;
    let length = u64::try_from(last.len()).expect("at most 128 KiB");
    read(last, size_bytes - length)
}

fn has(bytes: &[u8], at: usize, magic: &[u8]) -> bool {
    bytes.get(at..at + magic.len()) == Some(magic)
}

/// Superblock at 1 KiB: magic at 56, features at 92 (bit 2: journal) and 96 (bit 6: extents).
fn ext(first: &[u8]) -> Option<&'static str> {
    if !has(first, 0x438, b"\x53\xef") {
        return None;
    }
    let byte = |at: usize| first.get(at).copied().unwrap_or(0);
    let (journal, extents) = (byte(0x400 + 92) & 4 != 0, byte(0x400 + 96) & 0x40 != 0);
    Some(match (extents, journal) {
        (true, _) => "an ext4 file system",
        (false, true) => "an ext3 file system",
        (false, false) => "an ext2 file system",
    })
}

/// The label is in one of the first four sectors.
fn lvm(first: &[u8]) -> Option<&'static str> {
    (0..4).any(|sector| has(first, sector * 512, b"LABELONE")).then_some("an LVM physical volume")
}

/// The superblock is the third block, whose size may be one of four.
fn ocfs2(first: &[u8]) -> Option<&'static str> {
    let found = [512, 1024, 2048, 4096].iter().any(|block| has(first, 2 * block, b"OCFSV2"));
    found.then_some("an OCFS2 file system")
}

/// The signature ends the first page, whose size depends on the machine that made it.
fn swap(first: &[u8]) -> Option<&'static str> {
    let ends_with = |signatures: &[&[u8]]| {
        let mut places = [4096, 8192, 16384, 65536].iter().map(|page| page - 10);
        places.any(|at| signatures.iter().any(|signature| has(first, at, signature)))
    };
    if ends_with(&SLEEPERS) {
        return Some("swap space with the state of a machine that sleeps");
    }
    ends_with(&[b"SWAPSPACE2", b"SWAP-SPACE"]).then_some("swap space")
}

/// Uberblocks fill the second half of the label, one each KiB at least, in either byte order.
fn zfs(first: &[u8]) -> Option<&'static str> {
    let magic = 0x00ba_b10c_u64;
    let found = (128..256)
        .map(|kib| kib << 10)
        .any(|at| has(first, at, &magic.to_le_bytes()) || has(first, at, &magic.to_be_bytes()));
    found.then_some("a ZFS pool member")
}

fn at_end(last: &[u8]) -> Option<&'static str> {
    for (before, magic, what) in BEFORE_END {
        // The end of a disk of odd size is rounded down by some formats and not by others; where
        // they differ both are looked at.
        for odd in [0, 512, 1024, 1536, 2048, 2560, 3072, 3584] {
            let at = last.len().checked_sub(before + odd);
            if at.is_some_and(|at| has(last, at, magic)) {
                return Some(what);
            }
        }
    }
    // md 0.90: on a 64 KiB boundary, 64 to 128 KiB before the end.
    let old_md = (0..last.len() / 512)
        .map(|sector| last.len() - (sector + 1) * 512)
        .any(|at| last.len() - at >= 65536 && has(last, at, b"\xfc\x4e\x2b\xa9"));
    old_md.then_some("an md RAID member")
}

/// A table has the boot mark and four entries that could be partitions, one of them real.
fn mbr(first: &[u8]) -> Option<&'static str> {
    if !has(first, 510, b"\x55\xaa") {
        return None;
    }
    let entries = first.get(446..510)?.chunks_exact(16);
    let mut real = false;
    for entry in entries {
        if entry[0] & 0x7f != 0 {
            return None;
        }
        real |= entry[4] != 0;
    }
    real.then_some("a partition table")
}
