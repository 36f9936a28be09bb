//! The controller's side: it challenges a host, judges its response, and responds to its challenge.
//!
//! Invariants:
//! - A host has passed only after a response, to a challenge of this examiner that was used for nothing else, that who does not
//!   know one of its secrets cannot give; and if it asked for the controller's proof, after it said that it believes it.
//! - After a failure it has not passed, whatever was before, and the only thing left to do is to tell it.
//!
//! Not here: limits of time, which are the caller's.

use super::group::Group;
use super::message::{Challenge, FromHost, Negotiate, Reason, Reply, failure, success1};
use super::proof::{Question, Seed, Side};
use super::secret::Secret;
use alloc::string::String;
use alloc::vec::Vec;

/// Who proves to whom: responses are of these names, too.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Names {
    /// The host's name.
    pub host: String,
    /// The subsystem's name.
    pub subsystem: String,
}

/// What is known of a host.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Credentials {
    /// It proves that it knows one of these.
    pub host: Vec<Secret>,
    /// By this the controller proves to it, if it asks.
    pub controller: Option<Secret>,
}

/// What has become of an authentication.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// The host has proved that it knows this secret.
    Passed(Secret),
    /// It has not, and was told, or told us: the connection ends.
    Failed(Reason),
}

/// What comes next.
#[derive(Debug)]
enum Step {
    /// Nothing, until the host begins.
    Idle,
    /// The host fetches the challenge.
    Challenges(Challenge),
    /// The host responds to it.
    Waits(Challenge),
    /// The host fetches that it has passed, and the controller's response. It proved by this secret.
    Praises { transaction: u16, secret: Secret, success: Vec<u8>, mutual: bool },
    /// The host says what it thinks of the controller's response.
    Believes { transaction: u16, secret: Secret },
    /// The host fetches that it has failed.
    Fails { transaction: u16, reason: Reason },
}

/// One queue's authentications, one after the other.
pub struct Examiner {
    names: Names,
    credentials: Credentials,
    seed: Seed,
    exponent: [u8; 64],
    sequence: u32,
    step: Step,
    passed: bool,
}

impl core::fmt::Debug for Examiner {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        out.debug_struct("Examiner").field("passed", &self.passed).finish_non_exhaustive()
    }
}

impl Examiner {
    /// `seed` is of the machine's own randomness, for this queue only.
    #[must_use]
    pub fn new(names: Names, credentials: Credentials, mut seed: Seed) -> Examiner {
        let first = seed.take();
        let sequence = u32::from_le_bytes([first[0], first[1], first[2], first[3]]);
        Examiner {
            names,
            credentials,
            seed,
            exponent: [0; 64],
            sequence,
            step: Step::Idle,
            passed: false,
        }
    }

    /// Whether the host has shown who it is.
    #[must_use]
    pub fn has_passed(&self) -> bool {
        self.passed
    }

    /// What is known of the host is another from now on: it may prove again by that, on the queues that it has.
    pub fn renew(&mut self, credentials: Credentials) {
        self.credentials = credentials;
    }

    /// The host says something.
    pub fn hear(&mut self, message: &[u8]) -> Option<Verdict> {
        let step = core::mem::replace(&mut self.step, Step::Idle);
        if let Step::Fails { .. } = step {
            self.step = step;
            return match FromHost::parse(message) {
                Ok(FromHost::Failure2(reason)) => Some(self.fail(reason)),
                _ => None,
            };
        }
        let transaction = step.transaction();
        let went = match FromHost::parse(message) {
            Ok(FromHost::Failure2(reason)) => return Some(self.fail(reason)),
            Ok(FromHost::Negotiate(offer)) if matches!(step, Step::Idle) => self.challenge(&offer),
            Ok(FromHost::Reply(reply)) => match step {
                Step::Waits(challenge) => self.judge(&challenge, &reply),
                _ => Err(Reason::Message),
            },
            Ok(FromHost::Success2 { transaction: of }) => match step {
                Step::Believes { transaction, secret } if of == transaction => {
                    return Some(self.pass(secret));
                }
                Step::Believes { .. } => Err(Reason::Payload),
                _ => Err(Reason::Message),
            },
            Ok(FromHost::Negotiate(_)) => Err(Reason::Message),
            Err(reason) => Err(reason),
        };
        match went {
            Ok(step) => self.step = step,
            Err(reason) => {
                let transaction = transaction.unwrap_or(crate::bytes::u16_at(message, 4));
                self.fail_later(transaction, reason);
            }
        }
        None
    }

    /// The host asks what there is to say. With a verdict of failure the connection ends once that is sent.
    pub fn say(&mut self) -> (Vec<u8>, Option<Verdict>) {
        match core::mem::replace(&mut self.step, Step::Idle) {
            Step::Challenges(challenge) => {
                let message = challenge.to_bytes();
                self.step = Step::Waits(challenge);
                (message, None)
            }
            Step::Praises { transaction, secret, success, mutual: true } => {
                self.step = Step::Believes { transaction, secret };
                (success, None)
            }
            Step::Praises { secret, success, .. } => (success, Some(self.pass(secret))),
            Step::Fails { transaction, reason } => {
                (failure(false, transaction, reason), Some(self.fail(reason)))
            }
            other @ (Step::Idle | Step::Waits(_) | Step::Believes { .. }) => {
                let transaction = other.transaction().unwrap_or(0);
                let verdict = self.fail(Reason::Message);
                (failure(false, transaction, Reason::Message), Some(verdict))
            }
        }
    }

    fn pass(&mut self, secret: Secret) -> Verdict {
        self.passed = true;
        Verdict::Passed(secret)
    }

    fn fail(&mut self, reason: Reason) -> Verdict {
        self.passed = false;
        self.step = Step::Fails { transaction: 0, reason };
        Verdict::Failed(reason)
    }

    fn fail_later(&mut self, transaction: u16, reason: Reason) {
        self.passed = false;
        self.step = Step::Fails { transaction, reason };
    }

    fn challenge(&mut self, offer: &Negotiate) -> Result<Step, Reason> {
        let hash = *offer.hashes.first().ok_or(Reason::NoHash)?;
        let group = *offer.groups.first().ok_or(Reason::NoGroup)?;
        // 0 means that there is no challenge.
        self.sequence = self.sequence.checked_add(1).unwrap_or(1);
        self.exponent = self.seed.take();
        let value = self.seed.take();
        Ok(Step::Challenges(Challenge {
            transaction: offer.transaction,
            hash,
            group,
            sequence: self.sequence,
            value: value[..hash.bytes()].to_vec(),
            public: group.public(&self.exponent),
        }))
    }

    fn judge(&self, asked: &Challenge, reply: &Reply) -> Result<Step, Reason> {
        let Challenge { transaction, hash, group, sequence, ref value, .. } = *asked;
        if reply.transaction != transaction || reply.response.len() != hash.bytes() {
            return Err(Reason::Payload);
        }
        let shared = Group::shared(group, &reply.public, &self.exponent);
        let shared = shared.map_err(|()| Reason::Payload)?;
        let question = Question {
            hash,
            challenge: value,
            shared: shared.as_deref(),
            sequence,
            transaction,
            names: &self.names,
        };
        let right = |secret: &Secret| {
            let secret = secret.bound_to(&self.names.host);
            question.is_answer(Side::Host, &secret, &reply.response)
        };
        let secret = self.credentials.host.iter().find(|secret| right(secret));
        let secret = secret.ok_or(Reason::Failed)?.clone();
        let response = match &reply.challenge {
            None => None,
            // Who sends our own challenge back wants to hear its response from us.
            Some((_, challenge)) if challenge == value => return Err(Reason::Failed),
            Some((sequence, challenge)) => {
                let own = self.credentials.controller.as_ref().ok_or(Reason::Failed)?;
                let question = Question { challenge, sequence: *sequence, ..question };
                let own = own.bound_to(&self.names.subsystem);
                Some(question.answer(Side::Controller, &own))
            }
        };
        let success = success1(transaction, hash, response.as_deref());
        Ok(Step::Praises { transaction, secret, success, mutual: response.is_some() })
    }
}

impl Step {
    fn transaction(&self) -> Option<u16> {
        match self {
            Step::Idle => None,
            Step::Challenges(challenge) | Step::Waits(challenge) => Some(challenge.transaction),
            Step::Praises { transaction, .. }
            | Step::Believes { transaction, .. }
            | Step::Fails { transaction, .. } => Some(*transaction),
        }
    }
}
