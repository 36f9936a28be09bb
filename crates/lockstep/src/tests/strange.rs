//! Strange words on the command line: none does harm, and what is taken says the same when it is printed and read again.
//!
//! Not here: which words there are, which is clap's to know.

use fuzz::{Target, nothing, outcome};

use crate::device::{parse_place, parse_target};
use crate::machines::parse_machine;
use crate::unit::{parse_identity, parse_size, parse_threads, parse_time, show_size};

/// Words that are right, of every kind.
const GOOD: [&str; 10] = [
    "10GiB",
    "4096",
    "500ms",
    "6b1f0c9a2e77d431",
    "disk/1",
    "a=192.0.2.1:7789",
    "b=[2001:db8::1]:7789",
    "nvme+tcp://10.0.0.1:4420/nqn.2026-11.invalid.lockstep:web/1",
    "nbd://127.0.0.1:10809/disk/1",
    "nbd+unix:///disk?socket=/run/nbd",
];

/// A longer run than the one below: `cargo xtask fuzz command-words`.
const COMMAND_WORDS: Target = Target {
    name: "command-words",
    what: "sizes, times, volumes, nodes and places on the command line",
    valid: |random| {
        let count = u64::try_from(GOOD.len()).unwrap();
        GOOD[usize::try_from(random.below(count)).unwrap()].as_bytes().to_vec()
    },
    mend: nothing,
    judge: |input| match std::str::from_utf8(input) {
        Ok(text) => judge(text),
        Err(_) => outcome(&"no text"),
    },
    words: &[
        "0",
        "KiB",
        "PiB",
        "18446744073709551615",
        "ms",
        "h",
        "/",
        "=",
        ":",
        "[::1]",
        "0.0.0.0",
        "://",
        "nbd",
        "nbd+unix",
        "nvme+tcp",
        "?socket=",
        "/nqn.",
        "..",
        "%2f",
        "\u{301}",
        "-",
        "+",
    ],
};

/// Reads a word as everything that a word can be.
fn judge(text: &str) -> u64 {
    let size = parse_size(text);
    if let Ok(bytes) = size {
        let shown = show_size(bytes);
        assert!(shown.contains('.') || parse_size(&shown) == Ok(bytes), "{shown}");
    }
    let place = parse_place(text);
    if let Ok(place) = &place {
        assert_eq!(parse_place(&place.to_string()).as_ref(), Ok(place), "printed, it is the same");
    }
    let target = parse_target(text);
    if let Ok(target) = &target {
        assert_eq!(parse_target(&target.to_string()).as_ref(), Ok(target));
        assert!(!target.resource.contains('/') && !target.resource.starts_with('.'));
    }
    let machine = parse_machine(text);
    outcome(&(
        size.map_err(|why| first_words(&why, text)),
        parse_time(text).is_ok(),
        parse_identity(text).is_ok(),
        parse_threads(text).is_ok(),
        (
            target.is_ok(),
            place.map(|place| place.to_string().split(':').next().map(str::to_owned)).ok(),
        ),
        machine.map(|_| ()).map_err(|why| first_words(&why, text)),
    ))
}

/// What is said of a word, without the word.
fn first_words(why: &str, text: &str) -> String {
    let text = format!("{text:?}");
    why.replace(text.trim_matches('"'), "")
        .chars()
        .filter(char::is_ascii_lowercase)
        .take(24)
        .collect()
}

#[test]
fn no_command_words_do_harm() {
    fuzz::judge_all(&COMMAND_WORDS, 20);
}
