//! The checksum that guards every frame and every metadata page.

/// CRC-32C (Castagnoli) of `bytes`, as in iSCSI and NVMe/TCP digests.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    // The library gives every CRC width as a `u64`; 32-bit ones fill its low half.
    u32::try_from(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes))
        .expect("a 32-bit CRC fits in 32 bits")
}

/// The same checksum of bytes that come in parts.
#[derive(Clone, Debug)]
pub struct Crc32c {
    digest: crc_fast::Digest,
}

impl Crc32c {
    /// Of nothing yet.
    #[must_use]
    pub fn new() -> Crc32c {
        Crc32c { digest: crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi) }
    }

    /// More bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.digest.update(bytes);
    }

    /// The checksum of all bytes so far.
    #[must_use]
    pub fn finish(&self) -> u32 {
        u32::try_from(self.digest.finalize()).expect("a 32-bit CRC fits in 32 bits")
    }
}

impl Default for Crc32c {
    fn default() -> Crc32c {
        Crc32c::new()
    }
}
