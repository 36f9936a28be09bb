//! Hashes, and what each side computes of the other's challenge.

use super::Names;
use alloc::vec::Vec;
use ring::{digest, hmac};

/// A hash that both sides know. The value is its identifier.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[repr(u8)]
pub enum Hash {
    /// SHA-256.
    Sha256 = 1,
    /// SHA-384.
    Sha384 = 2,
    /// SHA-512.
    Sha512 = 3,
}

impl Hash {
    /// All of them.
    pub(super) const ALL: [Hash; 3] = [Hash::Sha256, Hash::Sha384, Hash::Sha512];

    /// Bytes of what it makes.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Hash::Sha256 => 32,
            Hash::Sha384 => 48,
            Hash::Sha512 => 64,
        }
    }

    pub(super) fn of_id(id: u8) -> Option<Hash> {
        Hash::ALL.into_iter().find(|&hash| hash as u8 == id)
    }

    fn keyed(self, key: &[u8]) -> hmac::Key {
        let algorithm = match self {
            Hash::Sha256 => hmac::HMAC_SHA256,
            Hash::Sha384 => hmac::HMAC_SHA384,
            Hash::Sha512 => hmac::HMAC_SHA512,
        };
        hmac::Key::new(algorithm, key)
    }

    fn of(self, bytes: &[u8]) -> digest::Digest {
        let algorithm = match self {
            Hash::Sha256 => &digest::SHA256,
            Hash::Sha384 => &digest::SHA384,
            Hash::Sha512 => &digest::SHA512,
        };
        digest::digest(algorithm, bytes)
    }
}

/// The keyed hash of what the parts are together.
pub(crate) fn hmac(hash: Hash, key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    hmac::sign(&hash.keyed(key), &parts.concat()).as_ref().to_vec()
}

/// Random bytes, of which further ones follow that nobody can tell who does not know these.
#[derive(Clone)]
pub struct Seed([u8; 32]);

impl core::fmt::Debug for Seed {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        out.write_str("Seed(not shown)")
    }
}

impl Seed {
    /// Of bytes from the machine's own source.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Seed {
        Seed(bytes)
    }

    /// 64 bytes; the seed becomes another.
    pub(super) fn take(&mut self) -> [u8; 64] {
        let taken = hmac(Hash::Sha512, &self.0, &[b"taken"]);
        let next = hmac(Hash::Sha256, &self.0, &[b"next"]);
        self.0 = next.try_into().expect("as long as its hash");
        taken.try_into().expect("as long as its hash")
    }
}

/// Which side proves.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Side {
    Host,
    Controller,
}

/// What a response is of, but for the secret.
pub(super) struct Question<'a> {
    pub(super) hash: Hash,
    pub(super) challenge: &'a [u8],
    /// What both found by the exchange of Diffie-Hellman, if they made one.
    pub(super) shared: Option<&'a [u8]>,
    pub(super) sequence: u32,
    pub(super) transaction: u16,
    pub(super) names: &'a Names,
}

impl Question<'_> {
    fn words(&self, side: Side) -> Vec<u8> {
        let challenge = match self.shared {
            None => self.challenge.to_vec(),
            Some(shared) => hmac(self.hash, self.hash.of(shared).as_ref(), &[self.challenge]),
        };
        let (role, own, other): (&[u8], _, _) = match side {
            Side::Host => (b"HostHost", &self.names.host, &self.names.subsystem),
            Side::Controller => (b"Controller", &self.names.subsystem, &self.names.host),
        };
        let (sequence, transaction) = (self.sequence.to_le_bytes(), self.transaction.to_le_bytes());
        // The zero behind the transaction says that no secure channel follows.
        let parts: [&[u8]; 8] = [
            &challenge,
            &sequence,
            &transaction,
            &[0],
            role,
            own.as_bytes(),
            &[0],
            other.as_bytes(),
        ];
        parts.concat()
    }

    /// The response of who knows `secret`, bound to its name.
    pub(super) fn answer(&self, side: Side, secret: &[u8]) -> Vec<u8> {
        hmac(self.hash, secret, &[&self.words(side)])
    }

    /// Whether `response` is of who knows `secret`; takes as long whatever it is.
    pub(super) fn is_answer(&self, side: Side, secret: &[u8], response: &[u8]) -> bool {
        hmac::verify(&self.hash.keyed(secret), &self.words(side), response).is_ok()
    }
}
