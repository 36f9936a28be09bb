//! What was asked of a peer that answers with bytes, and how many they are to be.
//!
//! Machines take the bytes of an answer for those of the span that they asked for: they are handed to clients, disks and other
//! peers as such. So an answer is compared with its question before a machine hears of it.
//!
//! Always: a question is answered once; what is answered with has as many bytes as were asked for, or is all zeroes, or an
//! error; what a session has not asked for it is not answered; questions end with their session.
//!
//! Not here: what a peer asks of this node (`places`); payload that a message itself says the length of (`wire`).

use std::collections::VecDeque;

use base::{Op, Span};
use wire::ShardMessage;

/// Questions to one peer by one shard, at most: as many as all clients of a node can have under way, and as many again of
/// other nodes' clients. Those that a peer never answers, of a reign that it knows to be over, are among them until the session ends.
const OPEN_MAX: usize = 1 << 18;

/// Why a session ends that has so many.
pub(super) const TOO_MANY: &str = "more than it ever has to answer is unanswered";

/// What one shard has asked of one peer in the present session.
#[derive(Debug, Default)]
pub(crate) struct Questions {
    /// Their numbers, which ascend, and the bytes of each.
    open: VecDeque<(u64, usize)>,
}

/// How many bytes a span has.
fn bytes(span: Span) -> usize {
    usize::try_from(span.length_bytes()).expect("what is read at once fits in memory")
}

impl Questions {
    /// Whether this is to be answered with bytes.
    pub(super) fn is_one(message: &ShardMessage) -> bool {
        matches!(message, ShardMessage::Read { .. } | ShardMessage::Forward { op: Op::Read, .. })
    }

    /// Whether this may answer such a question.
    pub(super) fn is_answer(message: &ShardMessage) -> bool {
        matches!(message, ShardMessage::Data { .. } | ShardMessage::Forwarded { .. })
    }

    /// This is about to be sent. False: too much is unanswered.
    pub(super) fn note(&mut self, message: &ShardMessage) -> bool {
        let (number, span) = match message {
            ShardMessage::Read { sequence, span, .. } => (*sequence, *span),
            ShardMessage::Forward { id, op: Op::Read, span, .. } => (id.0, *span),
            _ => return true,
        };
        let at = self.open.partition_point(|(other, _)| *other < number);
        self.open.insert(at, (number, bytes(span)));
        self.open.len() <= OPEN_MAX
    }

    /// This has come, with so many bytes beside it; else why it cannot be.
    pub(super) fn judge(
        &mut self,
        message: &ShardMessage,
        payload: Option<usize>,
    ) -> Result<(), &'static str> {
        let (number, is_data, gives) = match message {
            ShardMessage::Data { sequence, ok, zero, .. } => (*sequence, true, *ok && !*zero),
            ShardMessage::Forwarded { id, result, zero, .. } => {
                (id.0, false, *result == Some(Ok(())) && !*zero)
            }
            _ => return Ok(()),
        };
        let at = self.open.binary_search_by_key(&number, |(number, _)| *number);
        match at.ok().and_then(|at| self.open.remove(at)) {
            Some((_, wanted)) if payload != gives.then_some(wanted) => {
                Err("it answers a read with another number of bytes than it was asked for")
            }
            Some(_) => Ok(()),
            None if is_data || payload.is_some() => {
                Err("it answers a read that it was not asked for")
            }
            // Of a write, or a flush.
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use base::{AnswerError, Epoch, HostId, Op, RequestId, Span, VolumeId};
    use wire::ShardMessage;

    use super::Questions;

    fn read(sequence: u64, count: u32) -> ShardMessage {
        let span = Span::new(8, count).expect("it has sectors");
        ShardMessage::Read { epoch: Epoch(1), sequence, volume: VolumeId(0), span }
    }

    fn forward(id: u64, op: Op) -> ShardMessage {
        ShardMessage::Forward {
            id: RequestId(id),
            op,
            volume: VolumeId(0),
            span: Span::new(8, 8).expect("it has sectors"),
            fua: false,
            origin: None,
            asked: Epoch(0),
            first: false,
            history: 0,
            way: None,
            host: HostId(0),
        }
    }

    fn data(sequence: u64, ok: bool, zero: bool) -> ShardMessage {
        ShardMessage::Data { sequence, ok, zero, rotten: false }
    }

    fn forwarded(id: u64, result: Option<Result<(), AnswerError>>, zero: bool) -> ShardMessage {
        ShardMessage::Forwarded { id: RequestId(id), result, zero, asked: Epoch(0), moment: None }
    }

    #[test]
    fn an_answer_has_as_many_bytes_as_were_asked_for() {
        let mut questions = Questions::default();
        for (payload, good) in [(Some(4096), true), (Some(512), false), (Some(8192), false)] {
            assert!(questions.note(&read(5, 8)) && questions.note(&forward(6, Op::Read)));
            assert_eq!(questions.judge(&data(5, true, false), payload).is_ok(), good);
            let answer = forwarded(6, Some(Ok(())), false);
            assert_eq!(questions.judge(&answer, payload).is_ok(), good);
        }
        questions.note(&forward(7, Op::Read));
        let nothing = questions.judge(&forwarded(7, Some(Ok(())), false), None);
        assert!(nothing.is_err(), "it does not say that they are zeroes");
    }

    #[test]
    fn zeroes_and_errors_have_no_bytes() {
        let mut questions = Questions::default();
        for sequence in 1..=4 {
            questions.note(&read(sequence, 8));
        }
        assert_eq!(questions.judge(&data(2, true, true), None), Ok(()));
        assert_eq!(questions.judge(&data(1, false, false), None), Ok(()));
        let answers = [forwarded(3, Some(Err(AnswerError::Io)), false), forwarded(4, None, false)];
        for answer in answers {
            assert_eq!(questions.judge(&answer, None), Ok(()));
        }
        assert!(questions.open.is_empty());
    }

    #[test]
    fn what_was_not_asked_for_or_was_answered_is_no_answer() {
        let mut questions = Questions::default();
        assert!(questions.judge(&data(5, true, false), Some(4096)).is_err());
        questions.note(&read(5, 8));
        assert_eq!(questions.judge(&data(5, true, false), Some(4096)), Ok(()));
        assert!(questions.judge(&data(5, true, true), None).is_err());
        questions.note(&forward(6, Op::Write));
        let done = forwarded(6, Some(Ok(())), false);
        assert!(questions.judge(&done, Some(4096)).is_err(), "a write gives nothing");
        assert_eq!(questions.judge(&done, None), Ok(()));
    }
}
