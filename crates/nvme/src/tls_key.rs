//! Keys that a host and the nodes have in common for TLS 1.3, in the form in which NVMe tools write them:
//! `NVMeTLSkey-1:0t:BASE64:`, and what follows from them for one host and one subsystem.
//!
//! `t` says by which hash the key is bound to the host's name (0: not at all). The base64 is of the key and, behind it, its CRC-32.
//! A key of 32 bytes is for `TLS_AES_128_GCM_SHA256`, one of 48 for `TLS_AES_256_GCM_SHA384`.
//!
//! Source of fact: the NVMe/TCP Transport Specification 1.0d and TP 8018, "PSK Interchange Format", "Retained PSK", "PSK Identity" and
//! "TLS PSK". HKDF-Expand-Label is RFC 8446's. Of that, tools had another form for years, without the lengths of label and context and
//! with the key's length in little-endian: [`Derivation::Bare`].
//!
//! Always: printing a key for a log says nothing of it; an identity belongs to one host, one subsystem and one key.
//!
//! Not here: TLS itself (`sys`), which host has which key (`lockstepd`).

use crate::auth::{Hash, hmac};
use crate::text::{base64, crc32, from_base64};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

const PREFIX: &str = "NVMeTLSkey-1:";

/// What a host and the nodes know, to make TLS with. Printing it for a log says nothing of it.
#[derive(Clone, Eq, PartialEq)]
pub struct TlsKey {
    key: Vec<u8>,
    bound_by: Option<Hash>,
}

/// What is wrong with the text of a key. Does not contain any of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TlsKeyFault {
    /// It is not of the form.
    Form,
    /// It is bound by a hash that there is not.
    Hash,
    /// Its middle is no base64.
    Base64,
    /// It is not of 32 or 48 bytes, or not of as many as its hash has.
    Length,
    /// Its checksum is another: it is not what was made.
    Checksum,
}

impl core::fmt::Display for TlsKeyFault {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        out.write_str(match self {
            TlsKeyFault::Form => {
                "is not of the form `NVMeTLSkey-1:0t:BASE64:`, with a colon at its end"
            }
            TlsKeyFault::Hash => {
                "is bound by an unknown hash: after `NVMeTLSkey-1:` comes 00, 01 or 02"
            }
            TlsKeyFault::Base64 => "is no base64 between its last two colons",
            TlsKeyFault::Length => {
                "is of a wrong length: 32 or 48 bytes, and with 01 and 02 as many as that hash has"
            }
            TlsKeyFault::Checksum => "is damaged: its checksum is another. Copy it anew, all of it",
        })
    }
}

impl core::fmt::Debug for TlsKey {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        out.write_str("TlsKey(not shown)")
    }
}

/// By which reading of the specification a key becomes what TLS gets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Derivation {
    /// HKDF-Expand-Label as RFC 8446 has it.
    Labelled,
    /// As tools made it before: nothing says how long label and context are.
    Bare,
}

/// What TLS gets: how the key is called, and its bytes.
#[derive(Clone, Eq, PartialEq)]
pub struct TlsPsk {
    /// What the host says for it, in the clear.
    pub identity: String,
    /// Its bytes: 32 or 48.
    pub key: Vec<u8>,
}

impl core::fmt::Debug for TlsPsk {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(out, "TlsPsk({:?}, not shown)", self.identity)
    }
}

/// Whose key an identity says that it is of.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TlsNames {
    /// The host's name.
    pub host: String,
    /// The subsystem's name.
    pub subsystem: String,
}

impl TlsNames {
    /// Reads an identity, whoever says it; `None`: it is of no form that a host would say.
    #[must_use]
    pub fn parse(identity: &str) -> Option<TlsNames> {
        let mut words = identity.split(' ');
        let (version, host, subsystem) = (words.next()?, words.next()?, words.next()?);
        let digest = words.next();
        let known = match version {
            "NVMe0R01" | "NVMe0R02" => digest.is_none(),
            "NVMe1R01" | "NVMe1R02" => digest.is_some(),
            _ => false,
        };
        let (host, subsystem) = (String::from(host), String::from(subsystem));
        (known && words.next().is_none()).then_some(TlsNames { host, subsystem })
    }
}

impl TlsKey {
    /// A key of these bytes.
    ///
    /// # Errors
    /// If they are not as many as keys have.
    pub fn new(key: &[u8], bound_by: Option<Hash>) -> Result<TlsKey, TlsKeyFault> {
        let fits = match bound_by {
            None => matches!(key.len(), 32 | 48),
            Some(Hash::Sha512) => return Err(TlsKeyFault::Hash),
            Some(hash) => hash.bytes() == key.len(),
        };
        fits.then(|| TlsKey { key: key.to_vec(), bound_by }).ok_or(TlsKeyFault::Length)
    }

    /// Reads what NVMe tools write.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn parse(text: &str) -> Result<TlsKey, TlsKeyFault> {
        let rest = text.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(':'));
        let (hash, text) = rest.and_then(|rest| rest.split_once(':')).ok_or(TlsKeyFault::Form)?;
        let bound_by = match hash {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            _ => return Err(TlsKeyFault::Hash),
        };
        let bytes = from_base64(text.as_bytes()).ok_or(TlsKeyFault::Base64)?;
        let (key, sum) = bytes.split_last_chunk::<4>().ok_or(TlsKeyFault::Length)?;
        let parsed = TlsKey::new(key, bound_by)?;
        if crc32(key) != u32::from_le_bytes(*sum) {
            return Err(TlsKeyFault::Checksum);
        }
        Ok(parsed)
    }

    /// As NVMe tools read it. For whoever made it, and nobody else.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut bytes = self.key.clone();
        bytes.extend_from_slice(&crc32(&self.key).to_le_bytes());
        let hash = match self.bound_by {
            None => "00",
            Some(Hash::Sha256) => "01",
            Some(Hash::Sha384 | Hash::Sha512) => "02",
        };
        format!("{PREFIX}{hash}:{}:", base64(&bytes))
    }

    /// The hash of the cipher suite that it is for.
    fn hash(&self) -> Hash {
        if self.key.len() == Hash::Sha256.bytes() { Hash::Sha256 } else { Hash::Sha384 }
    }

    /// What TLS gets, by this version of the identity (0 or 1) and this derivation. `None`: the names are too long for it.
    #[must_use]
    pub fn psk(&self, names: &TlsNames, version: u8, derivation: Derivation) -> Option<TlsPsk> {
        let TlsNames { host, subsystem } = names;
        let hash = self.hash();
        let retained = match self.bound_by {
            None => self.key.clone(),
            Some(by) => expand(by, &self.key, "tls13 HostNQN", host, derivation)?,
        };
        let digest = || {
            let said = format!("{host} {subsystem} NVMe-over-Fabrics");
            base64(&hmac(hash, &retained, &[said.as_bytes()]))
        };
        let number = hash as u8;
        let (identity, context) = match version {
            0 => {
                let identity = format!("NVMe0R{number:02} {host} {subsystem}");
                (identity.clone(), identity)
            }
            1 => {
                let digest = digest();
                let identity = format!("NVMe1R{number:02} {host} {subsystem} {digest}");
                (identity, format!("{number:02} {digest}"))
            }
            _ => return None,
        };
        let key = expand(hash, &retained, "tls13 nvme-tls-psk", &context, derivation)?;
        Some(TlsPsk { identity, key })
    }

    /// All that a host may make of it for these names.
    pub fn psks(&self, names: &TlsNames) -> impl Iterator<Item = TlsPsk> {
        let forms = [
            (1, Derivation::Labelled),
            (0, Derivation::Labelled),
            (1, Derivation::Bare),
            (0, Derivation::Bare),
        ];
        forms.into_iter().filter_map(|(version, derivation)| self.psk(names, version, derivation))
    }
}

/// HKDF-Extract without salt, then as many bytes as the key has, which are never more than the hash's: one block.
fn expand(
    hash: Hash,
    key: &[u8],
    label: &str,
    context: &str,
    derivation: Derivation,
) -> Option<Vec<u8>> {
    let length = u16::try_from(key.len()).ok()?;
    let mut info = Vec::new();
    match derivation {
        Derivation::Labelled => {
            info.extend_from_slice(&length.to_be_bytes());
            for part in [label, context] {
                info.push(u8::try_from(part.len()).ok()?);
                info.extend_from_slice(part.as_bytes());
            }
        }
        Derivation::Bare => {
            info.extend_from_slice(&length.to_le_bytes());
            info.extend_from_slice(label.as_bytes());
            info.extend_from_slice(context.as_bytes());
        }
    }
    let zeroes = [0; 64];
    let extracted = hmac(hash, &zeroes[..hash.bytes()], &[key]);
    let mut made = hmac(hash, &extracted, &[&info, &[1]]);
    made.truncate(key.len());
    Some(made)
}

#[cfg(test)]
mod tests;
