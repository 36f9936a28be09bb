//! Waiting for what an earlier process of this node still holds.
//!
//! When a process is killed, the kernel ends its operations after it is gone, and keeps sockets and
//! files open as long. So a node that starts again at once may find its own addresses and stores in
//! use, and waits until they are not: then nothing of the old process is in flight any more.
//!
//! Not here: anything while the node serves; this blocks.

use base::Duration;

/// How long that may take before someone else is to blame.
const LIMIT: Duration = Duration::from_secs(10);
/// The same where someone else is likely to be to blame, and an operator waits to be told so: a process that was killed holds its
/// files until the last of its threads has ended.
const SHORT_LIMIT: Duration = Duration::from_secs(2);
/// Between two tries.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(20);

/// Tries until it works, fails for another reason than `in_use`, or has taken too long.
pub(super) fn patiently<T, E>(
    attempt: impl FnMut() -> Result<T, E>,
    in_use: impl Fn(&E) -> bool,
) -> Result<T, E> {
    within(LIMIT, attempt, in_use)
}

/// Likewise, not for so long.
pub(super) fn briefly<T, E>(
    attempt: impl FnMut() -> Result<T, E>,
    in_use: impl Fn(&E) -> bool,
) -> Result<T, E> {
    within(SHORT_LIMIT, attempt, in_use)
}

fn within<T, E>(
    limit: Duration,
    mut attempt: impl FnMut() -> Result<T, E>,
    in_use: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let deadline = sys::clock() + limit;
    loop {
        match attempt() {
            Err(error) if in_use(&error) && sys::clock() < deadline => std::thread::sleep(PAUSE),
            other => return other,
        }
    }
}

/// Whether an address is taken.
pub(super) fn is_taken(errno: &sys::Errno) -> bool {
    // EADDRINUSE of errno(3), the same on every Linux that io_uring runs on.
    errno.0 == 98
}

#[cfg(test)]
mod tests {
    use super::patiently;

    #[test]
    fn what_is_in_use_is_tried_again_and_what_is_wrong_is_not() {
        let mut tries = 0;
        let mut attempt = |ends: Result<u8, &'static str>| {
            tries += 1;
            if tries < 3 { Err("in use") } else { ends }
        };
        assert_eq!(patiently(|| attempt(Ok(7)), |error| *error == "in use"), Ok(7));
        assert_eq!(tries, 3);
        assert_eq!(patiently(|| Err::<u8, _>("wrong"), |error| *error == "in use"), Err("wrong"));
    }
}
