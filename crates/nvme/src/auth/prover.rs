//! The host's side, as our own tools need it: it proves to a controller, and if it has a secret for that has the controller prove.

use super::Names;
use super::group::Group;
use super::message::{Challenge, FromController, Negotiate, Reason, Reply, failure, success2};
use super::proof::{Hash, Question, Seed, Side};
use super::secret::Secret;
use alloc::vec::Vec;

/// Why a proof came to nothing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ProofFault {
    /// The controller refused, for this reason.
    Refused(Reason),
    /// We refuse the controller, for this reason; tell it, with [`Prover::refusal`].
    Refuses(Reason),
}

/// Our challenge.
struct Asked {
    hash: Hash,
    challenge: Vec<u8>,
    sequence: u32,
    shared: Option<Vec<u8>>,
}

/// One authentication.
pub struct Prover {
    names: Names,
    host: Secret,
    controller: Option<Secret>,
    seed: Seed,
    hashes: Vec<Hash>,
    groups: Vec<Group>,
    transaction: u16,
    /// What the controller has to respond to.
    asked: Option<Asked>,
}

impl core::fmt::Debug for Prover {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        out.debug_struct("Prover").field("names", &self.names).finish_non_exhaustive()
    }
}

impl Prover {
    /// Proves with `host`, and believes a controller only that knows `controller`, if there is such a secret.
    #[must_use]
    pub fn new(names: Names, host: Secret, controller: Option<Secret>, mut seed: Seed) -> Prover {
        let first = seed.take();
        Prover {
            names,
            host,
            controller,
            seed,
            hashes: Hash::ALL.to_vec(),
            groups: Group::ALL.to_vec(),
            transaction: u16::from_le_bytes([first[0], first[1]]),
            asked: None,
        }
    }

    /// Offers only these.
    #[must_use]
    pub fn offering(self, hashes: &[Hash], groups: &[Group]) -> Prover {
        Prover { hashes: hashes.to_vec(), groups: groups.to_vec(), ..self }
    }

    /// The first message.
    #[must_use]
    pub fn begin(&self) -> Vec<u8> {
        let (hashes, groups) = (self.hashes.clone(), self.groups.clone());
        Negotiate { transaction: self.transaction, hashes, groups }.to_bytes()
    }

    /// The message that we do not believe the controller.
    #[must_use]
    pub fn refusal(&self, reason: Reason) -> Vec<u8> {
        failure(true, self.transaction, reason)
    }

    /// What the controller said to our first message; gives the second.
    ///
    /// # Errors
    /// If it refused, or is to be refused.
    pub fn reply(&mut self, message: &[u8]) -> Result<Vec<u8>, ProofFault> {
        let challenge = match FromController::parse(message).map_err(ProofFault::Refuses)? {
            FromController::Challenge(challenge) => challenge,
            FromController::Failure1(reason) => return Err(ProofFault::Refused(reason)),
            FromController::Success1 { .. } => return Err(ProofFault::Refuses(Reason::Message)),
        };
        let Challenge { transaction, hash, group, sequence, value, public } = challenge;
        if transaction != self.transaction {
            return Err(ProofFault::Refuses(Reason::Payload));
        }
        let (exponent, own) = (self.seed.take(), self.seed.take());
        let shared = group.shared(&public, &exponent);
        let shared = shared.map_err(|()| ProofFault::Refuses(Reason::Payload))?;
        let names = &self.names;
        let question = Question {
            hash,
            challenge: &value,
            shared: shared.as_deref(),
            sequence,
            transaction,
            names,
        };
        let response = question.answer(Side::Host, &self.host.bound_to(&names.host));
        // 0 means that there is no challenge.
        let (sequence, own) = (u32::from(transaction) + 1, own[..hash.bytes()].to_vec());
        let challenge = self.controller.is_some().then(|| (sequence, own.clone()));
        self.asked =
            challenge.is_some().then_some(Asked { hash, challenge: own, sequence, shared });
        let public = group.public(&exponent);
        Ok(Reply { transaction, response, challenge, public }.to_bytes())
    }

    /// What the controller said to the second; gives the third, if there is to be one.
    ///
    /// # Errors
    /// If it refused, or is to be refused.
    pub fn finish(&mut self, message: &[u8]) -> Result<Option<Vec<u8>>, ProofFault> {
        let (transaction, response) =
            match FromController::parse(message).map_err(ProofFault::Refuses)? {
                FromController::Success1 { transaction, response } => (transaction, response),
                FromController::Failure1(reason) => return Err(ProofFault::Refused(reason)),
                FromController::Challenge(_) => return Err(ProofFault::Refuses(Reason::Message)),
            };
        if transaction != self.transaction {
            return Err(ProofFault::Refuses(Reason::Payload));
        }
        let Some(Asked { hash, challenge, sequence, shared }) = self.asked.take() else {
            return Ok(None);
        };
        let question = Question {
            hash,
            challenge: &challenge,
            shared: shared.as_deref(),
            sequence,
            transaction,
            names: &self.names,
        };
        let secret = self.controller.as_ref().expect("it was asked for because there is one");
        let secret = secret.bound_to(&self.names.subsystem);
        let response = response.ok_or(ProofFault::Refuses(Reason::Failed))?;
        if !question.is_answer(Side::Controller, &secret, &response) {
            return Err(ProofFault::Refuses(Reason::Failed));
        }
        Ok(Some(success2(transaction)))
    }
}
