//! Temporary.
use base::Instant;
use base::{BufferId, Op, RequestId};
use replica::door::*;
use std::collections::BTreeMap;
pub(crate) struct Member;
impl Member {
    pub(crate) fn step(
        &mut self,
        _now: Instant,
        _input: MemberInput,
        _out: &mut Vec<MemberOutput>,
    ) {
    }
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        None
    }
}
#[derive(Default)]
pub(crate) struct Shard {
    next: u64,
    open: BTreeMap<u64, (RequestId, Option<BufferId>)>,
}
impl Shard {
    pub(crate) fn step(&mut self, _now: Instant, input: ShardInput, out: &mut Vec<ShardOutput>) {
        match input {
            ShardInput::Request { id, request } => {
                let op = self.next;
                self.next += 1;
                self.open.insert(op, (id, request.buffer));
                let volume = request.volume;
                let span = request.span;
                let request = match request.op {
                    Op::Read => DiskRequest::Read { volume, span },
                    Op::Write => DiskRequest::Write {
                        volume,
                        span,
                        buffer: request.buffer.expect("b"),
                        durable: request.fua,
                    },
                    Op::Zero { unmap } => {
                        DiskRequest::Zero { volume, span, unmap, durable: request.fua }
                    }
                    Op::Flush => DiskRequest::Flush,
                };
                out.push(ShardOutput::Disk { op: DiskOp(op), request });
            }
            ShardInput::Disk { op, answer } => {
                let (id, buffer) = self.open.remove(&op.0).expect("open");
                let (result, data) = match answer {
                    DiskAnswer::Failed => (Err(base::AnswerError::Io), None),
                    DiskAnswer::Data(b) => (Ok(()), b),
                    _ => (Ok(()), None),
                };
                out.push(ShardOutput::Answer { id, result, buffer: data });
                for b in buffer.into_iter().chain(data) {
                    out.push(ShardOutput::Release { buffer: b });
                }
            }
            _ => {}
        }
    }
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        None
    }
}
