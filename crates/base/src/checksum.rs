//! The checksum that guards every frame and every metadata page.

/// CRC-32C (Castagnoli) of `bytes`, as in iSCSI and NVMe/TCP digests.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    // The library gives every CRC width as a `u64`; 32-bit ones fill its low half.
    u32::try_from(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes))
        .expect("a 32-bit CRC fits in 32 bits")
}
