//! The words of the simulator's command line.
//!
//! Not here: what they ask for (`main`).

use sim::campaign::STEPS_MAX;
use sim::feature::{Choice, Feature};
use std::collections::BTreeSet;
use std::time::Duration;

pub(crate) const HELP: &str = "\
sim [--runs N] [--from SEED] [--hours H] [--failures N]   many seeds; H may be a fraction. Of the first three that
                                                          fail the faults are named that they need
sim --seed SEED [--until STEP] [--trace] [--shrink]       one seed
    --only NAME,NAME…   exactly these features; `none`: the plain plan
    --with NAME,NAME…   these too, each in one of two seeds
    --without NAME,…    never these
sim --quorum-off ...                                      likewise, of a resource without quorum
    --marks             fail if a rare branch is never taken that a campaign must take
    --twice             each of many seeds twice, to see that both runs are the same; else one in 32
sim scenarios [NAME…]                                     stories one can read: does each come true?
sim alarm [NAME…] [--runs N]                              planted bugs: is each found?
sim alarm --check [NAME…]                                 does each still apply and build?
sim check [NAME…] [--deep]                                every schedule near the plain one
sim check NAME… --trace                                   the plain one
sim marks                                                 rare branches that a campaign need not take, and why
";

pub(crate) struct Arguments {
    pub(crate) runs: u64,
    pub(crate) from: u64,
    pub(crate) seed: Option<u64>,
    pub(crate) until: u64,
    pub(crate) trace: bool,
    pub(crate) shrink: bool,
    pub(crate) deep: bool,
    pub(crate) check: bool,
    pub(crate) failures: usize,
    pub(crate) time: Option<Duration>,
    pub(crate) choice: Choice,
    pub(crate) marks: bool,
    pub(crate) twice: bool,
    pub(crate) words: Vec<String>,
}

/// What the words of the command line ask for; `None`: for help.
///
/// # Errors
/// Which word is no option, or has no value that it could have.
pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Result<Option<Arguments>, String> {
    let mut found = Arguments {
        runs: 1000,
        from: 1,
        seed: None,
        until: STEPS_MAX,
        trace: false,
        shrink: false,
        deep: false,
        check: false,
        failures: 10,
        time: None,
        choice: Choice::default(),
        marks: false,
        twice: false,
        words: Vec::new(),
    };
    while let Some(word) = words.next() {
        if let "--only" | "--with" | "--without" = word.as_str() {
            let names = features(&words.next().unwrap_or_default())?;
            match word.as_str() {
                "--only" => found.choice.only = Some(names),
                "--with" => found.choice.with = names,
                _ => found.choice.without = names,
            }
            continue;
        }
        if word == "--hours" {
            found.time = Some(hours(&words.next().unwrap_or_default())?);
            found.runs = u64::MAX;
            continue;
        }
        let mut number =
            || words.next().as_deref().and_then(number).ok_or(format!("{word}: which?"));
        match word.as_str() {
            "--runs" => found.runs = number()?,
            "--from" => found.from = number()?,
            "--seed" => found.seed = Some(number()?),
            "--until" => found.until = number()?,
            "--failures" => found.failures = usize::try_from(number()?).unwrap_or(usize::MAX),
            "--seconds" => found.time = Some(Duration::from_secs(number()?)),
            "--marks" => found.marks = true,
            "--twice" => found.twice = true,
            "--trace" => found.trace = true,
            "--shrink" => found.shrink = true,
            "--quorum-off" => found.choice.quorum_off = true,
            "--deep" => found.deep = true,
            "--check" => found.check = true,
            "--help" | "-h" => return Ok(None),
            option if option.starts_with('-') => return Err(format!("{option} is no option")),
            _ => found.words.push(word),
        }
    }
    match found.words.first().map(String::as_str) {
        None | Some("alarm" | "check" | "marks" | "scenarios") => Ok(Some(found)),
        Some(word) => Err(format!("{word} is no command")),
    }
}

/// A length of time in hours, of which a part may be asked for.
fn hours(text: &str) -> Result<Duration, String> {
    let asked = text.parse().ok().filter(|hours: &f64| *hours > 0.0);
    asked
        .and_then(|hours| Duration::try_from_secs_f64(hours * 3600.0).ok())
        .ok_or_else(|| format!("--hours: {text:?} is no number of hours above 0"))
}

fn features(text: &str) -> Result<BTreeSet<Feature>, String> {
    let names = text.split(',').filter(|name| !name.is_empty() && *name != "none");
    names
        .map(|name| {
            let known = || Feature::names().collect::<Vec<_>>().join(", ");
            Feature::find(name).ok_or_else(|| format!("{name} is none of {}", known()))
        })
        .collect()
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::parse;
    use std::time::Duration;

    fn asked(words: &str) -> Result<Option<super::Arguments>, String> {
        parse(words.split(' ').map(str::to_owned))
    }

    #[test]
    fn half_an_hour_may_be_asked_for() {
        let found = asked("--hours 0.5").expect("a length").expect("no help");
        assert_eq!(found.time, Some(Duration::from_secs(1800)));
        assert_eq!(found.runs, u64::MAX);
    }

    #[test]
    fn what_is_no_length_of_time_is_refused() {
        for text in ["0", "-1", "NaN", "inf", "1e300", "soon", ""] {
            let refused = asked(&format!("--hours {text}")).err();
            let refused = refused.unwrap_or_else(|| panic!("{text:?} is taken"));
            assert!(refused.contains("no number of hours"), "{refused}");
        }
    }

    #[test]
    fn words_that_nobody_knows_are_refused() {
        assert!(asked("campaigns --runs 1").is_err());
        assert!(asked("--runs many").is_err());
        assert!(asked("--fast").is_err());
        assert!(asked("alarm NAME").is_ok());
        assert!(asked("--help").is_ok_and(|found| found.is_none()));
    }
}
