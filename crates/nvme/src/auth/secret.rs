//! Secrets, in the form in which NVMe tools write them: `DHHC-1:0t:BASE64:`.
//!
//! `t` says by which hash the secret is bound to the name of who proves by it (0: not at all). The base64 is of the secret and,
//! behind it, its CRC-32.

use super::proof::{Hash, hmac};
use crate::text::{base64, crc32, from_base64};
use alloc::string::String;
use alloc::vec::Vec;

const PREFIX: &str = "DHHC-1:";

/// What a host, or a controller, proves that it knows. Printing it for a log says nothing of it.
#[derive(Clone, Eq, PartialEq)]
pub struct Secret {
    key: Vec<u8>,
    bound_by: Option<Hash>,
}

/// What is wrong with the text of a secret. Does not contain any of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SecretFault {
    /// It is not of the form.
    Form,
    /// It is bound by a hash that there is not.
    Hash,
    /// Its middle is no base64.
    Base64,
    /// It is not of 32, 48 or 64 bytes, or not of as many as its hash has.
    Length,
    /// Its checksum is another: it is not what was made.
    Checksum,
}

impl core::fmt::Display for SecretFault {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        out.write_str(match self {
            SecretFault::Form => "is not of the form `DHHC-1:0t:BASE64:`, with a colon at its end",
            SecretFault::Hash => "is bound by an unknown hash: after `DHHC-1:` comes 00, 01, 02 or 03",
            SecretFault::Base64 => "is no base64 between its last two colons",
            SecretFault::Length => {
                "is of a wrong length: 32, 48 or 64 bytes, and with 01, 02, 03 as many as that hash has"
            }
            SecretFault::Checksum => "is damaged: its checksum is another. Copy it anew, all of it",
        })
    }
}

impl core::fmt::Debug for Secret {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        out.write_str("Secret(not shown)")
    }
}

impl Secret {
    /// A secret of these bytes.
    ///
    /// # Errors
    /// If they are not as many as secrets have.
    pub fn new(key: &[u8], bound_by: Option<Hash>) -> Result<Secret, SecretFault> {
        let fits =
            bound_by.map_or(matches!(key.len(), 32 | 48 | 64), |hash| hash.bytes() == key.len());
        let fits = fits.then(|| Secret { key: key.to_vec(), bound_by });
        fits.ok_or(SecretFault::Length)
    }

    /// Reads what NVMe tools write.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn parse(text: &str) -> Result<Secret, SecretFault> {
        let rest = text.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(':'));
        let (hash, text) = rest.and_then(|rest| rest.split_once(':')).ok_or(SecretFault::Form)?;
        let bound_by = match hash {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            "03" => Some(Hash::Sha512),
            _ => return Err(SecretFault::Hash),
        };
        let bytes = from_base64(text.as_bytes()).ok_or(SecretFault::Base64)?;
        let (key, sum) = bytes.split_last_chunk::<4>().ok_or(SecretFault::Length)?;
        let secret = Secret::new(key, bound_by)?;
        if crc32(key) != u32::from_le_bytes(*sum) {
            return Err(SecretFault::Checksum);
        }
        Ok(secret)
    }

    /// As NVMe tools read it. For whoever made it, and nobody else.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut bytes = self.key.clone();
        bytes.extend_from_slice(&crc32(&self.key).to_le_bytes());
        let hash = match self.bound_by {
            None => "00",
            Some(Hash::Sha256) => "01",
            Some(Hash::Sha384) => "02",
            Some(Hash::Sha512) => "03",
        };
        alloc::format!("{PREFIX}{hash}:{}:", base64(&bytes))
    }

    /// Whether the other is of the same bytes, however it is bound.
    #[must_use]
    pub fn is_like(&self, other: &Secret) -> bool {
        self.key == other.key
    }

    /// What `name` proves by.
    pub(super) fn bound_to(&self, name: &str) -> Vec<u8> {
        match self.bound_by {
            None => self.key.clone(),
            Some(hash) => hmac(hash, &self.key, &[name.as_bytes(), b"NVMe-over-Fabrics"]),
        }
    }
}
