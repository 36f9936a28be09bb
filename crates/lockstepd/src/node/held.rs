//! Requests that waited here before machines were handed them: while those are exchanged, or have not begun on a thread.
//!
//! Machines count a request as taken from its client when they get it, and judge by that whether something newer can have come by
//! another way of a client that has several. What waited before was taken earlier: its client may have given this way up meanwhile, and
//! its node have heard since of what came by another.
//!
//! Always: a write that waited is handed to machines only while its client surely has not asked another way; else it is told
//! that this way failed, and asks anew.
//!
//! Not here: where they wait (`recast`, `homes`), and what machines make of it (`replica`).

use base::{AnswerError, Duration, Instant, Op, Request, Way};
use export::Ask;

use super::Node;
use crate::slab::Key;

/// A piece of a request of a client, and when it came.
pub(super) struct Held {
    pub(super) client: Key,
    pub(super) ask: Ask,
    pub(super) came: Instant,
}

/// By which way what has waited so long counts as taken now. `None`: its client may have asked by another since.
fn way_after(way: Way, waited: Duration) -> Option<Way> {
    let left = way.stays.0.checked_sub(waited.0).filter(|left| *left > 0)?;
    Some(Way { stays: Duration(left), ..way })
}

/// The same of a request: it may go to its machines now.
pub(super) fn after(request: Request, waited: Duration) -> Option<Request> {
    match (request.op, request.way) {
        (Op::Write | Op::Zero { .. }, Some(way)) if waited > Duration(0) => {
            let way = Some(way_after(way, waited)?);
            Some(Request { way, ..request })
        }
        _ => Some(request),
    }
}

/// The same of one that came from another thread, which counts where a client surely stays for a while: that began when its own
/// thread took it. Of others nothing newer was heard here on its way, for what other threads left is looked at first.
pub(super) fn after_its_way(request: Request, waited: Duration) -> Option<Request> {
    match request.way {
        Some(way) if way.stays > Duration(0) => after(request, waited),
        _ => Some(request),
    }
}

impl Node {
    /// What was held goes on.
    pub(super) fn let_go(&mut self, held: Vec<Held>) {
        for Held { client, ask, came } in held {
            self.on_ask(client, ask, came);
        }
    }

    /// A write of a client that has several ways waited for too long.
    pub(super) fn tell_late(&mut self, client: Key, ask: &Ask) {
        self.tell_undone(client, ask.tag, AnswerError::Path);
    }
}

#[cfg(test)]
mod tests {
    use base::{Duration, HostId, Op, Request, Span, VolumeId, Way};

    use super::{after, after_its_way};

    fn request(op: Op, way: Option<Way>) -> Request {
        let span = Span::new(0, 8).expect("it has sectors");
        let (volume, host) = (VolumeId(0), HostId(0));
        Request { op, volume, span, buffer: None, fua: false, way, host }
    }

    #[test]
    fn what_a_thread_was_late_to_take_counts_where_a_client_surely_stays() {
        let way = |stays| Some(Way { number: 7, stays: Duration(stays) });
        let left = |stays, waited| {
            after_its_way(request(Op::Write, way(stays)), Duration(waited)).map(|it| it.way)
        };
        assert_eq!([left(10, 4), left(10, 10)], [Some(way(6)), None]);
        assert_eq!(left(0, 1 << 40), Some(way(0)), "by its number it is told how old it is");
    }

    #[test]
    fn what_waited_goes_on_while_its_client_surely_asks_no_other_way() {
        let way = |stays| Some(Way { number: 7, stays: Duration(stays) });
        for op in [Op::Write, Op::Zero { unmap: true }] {
            let left = |stays, waited| {
                let request = after(request(op, way(stays)), Duration(waited));
                request.map(|request| request.way)
            };
            assert_eq!(left(10, 4), Some(way(6)));
            assert_eq!([left(10, 10), left(10, 11), left(0, 1)], [None; 3]);
            assert_eq!(left(0, 0), Some(way(0)), "it did not wait");
            let only = request(op, None);
            assert_eq!(after(only, Duration(1 << 40)), Some(only), "it has no other way");
        }
        for op in [Op::Read, Op::Flush] {
            let any = request(op, way(0));
            assert_eq!(after(any, Duration(1 << 40)), Some(any), "it changes nothing");
        }
    }
}
