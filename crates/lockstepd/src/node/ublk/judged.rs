//! What the driver's answers about a listed disk mean.
//!
//! Always: a disk is this node's until the driver says that there is none under its number, or that what is there is
//! another's. Any other answer (no memory, a signal, something that is not known here) says nothing of it: it stays
//! listed, and is asked about again.
//!
//! Not here: what is done then (`ublk`).

use sys::{Errno, UblkInfo};

/// How a listed disk is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Seen {
    /// It is there, and waits for its next server.
    Ours { queues: u16 },
    /// Its making was interrupted: nobody has used it.
    Half,
    /// It is there, and to be taken away.
    Unwanted,
    /// It was to be taken away, and is not there.
    Gone,
    /// It is not there: the host has started anew.
    Absent,
    /// Somebody else has its number.
    Others,
    /// Nobody knows.
    Unknown(Errno),
}

/// What follows from the answer to `Info`. `goes`: the disk is to be taken away.
pub(super) fn seen(
    result: Result<(), Errno>,
    info: Option<UblkInfo>,
    mark: u64,
    goes: bool,
) -> Seen {
    let absent = if goes { Seen::Gone } else { Seen::Absent };
    let others = if goes { Seen::Gone } else { Seen::Others };
    match (result, info) {
        (Ok(()), Some(info)) if info.mark != mark => others,
        (Ok(()), Some(_)) if goes => Seen::Unwanted,
        (Ok(()), Some(info)) if info.dead => Seen::Half,
        (Ok(()), Some(info)) => Seen::Ours { queues: info.queues },
        (Ok(()), None) => Seen::Unknown(Errno::NO_DATA),
        (Err(Errno::NO_DEVICE), _) => absent,
        // The driver tells of a device that was made by who is not root, which ours never is, only to who names its file.
        (Err(Errno::INVALID), _) => others,
        (Err(errno), _) => Seen::Unknown(errno),
    }
}

/// What has become of a disk that was to be removed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Deleted {
    /// It is not there any more, and is not to be.
    Gone,
    /// It is not there any more, and is to be made anew.
    Absent,
    /// Nobody knows.
    Unknown(Errno),
}

/// What follows from the answer to the last command that removes a disk.
pub(super) fn deleted(result: Result<(), Errno>, goes: bool) -> Deleted {
    match result {
        Ok(()) | Err(Errno::NO_DEVICE) if goes => Deleted::Gone,
        Ok(()) | Err(Errno::NO_DEVICE) => Deleted::Absent,
        Err(errno) => Deleted::Unknown(errno),
    }
}

#[cfg(test)]
mod tests {
    use sys::{Errno, UblkInfo};

    use super::{Deleted, Seen, deleted, seen};

    const MARK: u64 = 0xfeed;

    fn told(mark: u64, dead: bool) -> Option<UblkInfo> {
        Some(UblkInfo { mark, dead, waits: !dead, queues: 2 })
    }

    fn of(result: Result<(), Errno>, info: Option<UblkInfo>) -> [Seen; 2] {
        [false, true].map(|goes| seen(result, info, MARK, goes))
    }

    #[test]
    fn a_disk_with_our_mark_is_taken_back_or_away() {
        assert_eq!(of(Ok(()), told(MARK, false)), [Seen::Ours { queues: 2 }, Seen::Unwanted]);
        assert_eq!(of(Ok(()), told(MARK, true)), [Seen::Half, Seen::Unwanted]);
    }

    #[test]
    fn only_a_disk_that_is_not_there_is_made_anew_and_another_number_is_taken_only_beside_anothers()
    {
        assert_eq!(of(Err(Errno::NO_DEVICE), None), [Seen::Absent, Seen::Gone]);
        assert_eq!(of(Ok(()), told(MARK + 1, false)), [Seen::Others, Seen::Gone]);
        assert_eq!(of(Ok(()), told(MARK + 1, true)), [Seen::Others, Seen::Gone]);
        assert_eq!(of(Err(Errno::INVALID), None), [Seen::Others, Seen::Gone]);
    }

    #[test]
    fn an_answer_that_tells_nothing_of_a_disk_neither_makes_a_second_nor_forgets_it() {
        let odd = [
            Errno::NO_MEMORY,
            Errno::INTERRUPTED,
            Errno::AGAIN,
            Errno::CANCELED,
            Errno::DENIED,
            Errno::IO,
            Errno(4711),
        ];
        for errno in odd {
            assert_eq!(of(Err(errno), None), [Seen::Unknown(errno); 2], "{errno}");
            assert_eq!(deleted(Err(errno), true), Deleted::Unknown(errno), "{errno}");
            assert_eq!(deleted(Err(errno), false), Deleted::Unknown(errno), "{errno}");
        }
        assert_eq!(of(Ok(()), None), [Seen::Unknown(Errno::NO_DATA); 2]);
    }

    #[test]
    fn a_disk_that_was_removed_is_forgotten_or_made_anew() {
        for result in [Ok(()), Err(Errno::NO_DEVICE)] {
            assert_eq!(deleted(result, true), Deleted::Gone);
            assert_eq!(deleted(result, false), Deleted::Absent);
        }
    }
}
