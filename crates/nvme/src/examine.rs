//! The commands by which a host proves who it is, on each of its queues.
//!
//! Invariants:
//! - On a queue whose host has to prove who it is and has not, every other command is refused.
//! - A connection whose host has failed is closed once it was told.
//!
//! Not here: the messages and what they prove (`auth`).

use crate::auth::{AUTH_BYTES_MAX, Credentials, Examiner, Verdict};
use crate::command::{Command, Sgl, Status};
use crate::connection::{CloseReason, Connection, Event, Phase, Role};
use crate::controller::Answer;
use crate::number::{FABRICS_AUTH_RECEIVE, FABRICS_AUTH_SEND, GATHER_BYTES_MAX, SECURITY_PROTOCOL};
use alloc::boxed::Box;
use alloc::vec::Vec;

impl Connection {
    /// The host has to prove who it is before anything else: said before the connect command is answered.
    ///
    /// # Panics
    /// If no connect command is open.
    pub fn requires(&mut self, examiner: Examiner) {
        assert!(matches!(self.role, Role::Connecting { .. }), "no connect command is open");
        self.examiner = Some(Box::new(examiner));
    }

    /// What is known of the host is another from now on.
    pub fn renew(&mut self, credentials: &Credentials) {
        if let Some(examiner) = &mut self.examiner {
            examiner.renew(credentials.clone());
        }
    }

    /// Whether the host has to prove who it is, and has not.
    #[must_use]
    pub fn is_to_prove(&self) -> bool {
        self.examiner.as_ref().is_some_and(|examiner| !examiner.has_passed())
    }

    /// Whether a command belongs to a proof that the host has to give.
    pub(crate) fn is_of_proof(&self, command: &Command) -> bool {
        self.examiner.is_some()
            && matches!(self.role, Role::Admin(_) | Role::Io { .. })
            && command.is_fabrics()
            && matches!(command.fabrics_type(), FABRICS_AUTH_SEND | FABRICS_AUTH_RECEIVE)
    }

    /// A command of a proof, and what came with it, are there.
    pub(crate) fn examine(&mut self, command: &Command, send: &mut Vec<u8>) -> Option<Event> {
        let now = self.now;
        if let Role::Admin(controller) = &mut self.role {
            controller.hear(now);
        }
        let data = core::mem::take(&mut self.data);
        let verdict = match self.ask_examiner(command, &data) {
            Err(status) => {
                self.answer_admin(command, Answer::Failed(status), send);
                None
            }
            Ok((answer, verdict)) => {
                self.answer_admin(command, answer, send);
                verdict
            }
        };
        match verdict? {
            Verdict::Passed(secret) => Some(Event::Proved(secret)),
            Verdict::Failed(reason) => {
                self.phase = Phase::Closed;
                Some(Event::Close(CloseReason::Unproved(reason)))
            }
        }
    }

    fn ask_examiner(
        &mut self,
        command: &Command,
        data: &[u8],
    ) -> Result<(Answer, Option<Verdict>), Status> {
        const { assert!(AUTH_BYTES_MAX <= GATHER_BYTES_MAX) };
        let examiner = self.examiner.as_mut().expect("asked only where there is one");
        if [41, 42, 43].map(|at| command.byte(at)) != SECURITY_PROTOCOL {
            return Err(Status::INVALID_FIELD);
        }
        let length = command.word(11);
        if length == 0 {
            return Err(Status::INVALID_FIELD);
        }
        match (command.fabrics_type(), command.sgl()) {
            (FABRICS_AUTH_SEND, Sgl::Inline { offset_bytes: 0, length_bytes }) => {
                if length_bytes != length || data.len() != length as usize {
                    return Err(Status::SGL_LENGTH);
                }
                let verdict = examiner.hear(data);
                Ok((Answer::Done(0), verdict))
            }
            (FABRICS_AUTH_RECEIVE, Sgl::Transport { length_bytes }) => {
                if length_bytes != length || !data.is_empty() {
                    return Err(Status::SGL_LENGTH);
                }
                let (mut message, verdict) = examiner.say();
                // Hosts read as much as they asked for.
                let length = (length as usize).min(AUTH_BYTES_MAX);
                message.resize(message.len().max(length), 0);
                Ok((Answer::Data(message), verdict))
            }
            _ => Err(Status::INVALID_SGL),
        }
    }
}
