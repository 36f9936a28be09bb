//! Sizes and lengths of time as people write and read them.
//!
//! Always: what is printed with a unit is exact or rounded to one digit, and never panics.

use std::time::Duration;

use wire::admin::{VOLUME_BYTES_MAX, check_name};

/// Longest time that may be asked for, in seconds: a year. More is a slip of the hand.
const SECONDS_MAX: u64 = 366 * 24 * 3600;

const UNITS: &[(&str, u64)] = &[
    ("PiB", 1 << 50),
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

/// A number of threads: a power of two.
pub(crate) fn parse_threads(text: &str) -> Result<u16, String> {
    let count = whole(text).and_then(|count| u16::try_from(count).ok());
    let count = count.filter(|count| matches!(count, 1 | 2 | 4 | 8));
    count.ok_or_else(|| "a node has 1, 2, 4 or 8 threads".to_owned())
}

/// A whole number in digits: nobody who writes `+5GiB` means a size of 5 GiB.
fn whole(digits: &str) -> Option<u64> {
    digits.parse().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()))
}

/// A size in bytes: a whole number, with or without one of the units.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = text[digits.len()..].trim();
    let count = whole(digits).ok_or_else(|| {
        format!(
            "{text:?} is no size: write a whole number with KiB, MiB, GiB, TiB or PiB, as in 10GiB"
        )
    })?;
    let factor = if unit.is_empty() {
        1
    } else {
        UNITS.iter().find(|(name, _)| *name == unit).map(|&(_, factor)| factor).ok_or_else(|| {
            format!("{unit:?} is no unit of size here: use KiB, MiB, GiB, TiB or PiB (powers of 1024)")
        })?
    };
    let bytes = count.checked_mul(factor).filter(|&bytes| bytes <= VOLUME_BYTES_MAX);
    let bytes = bytes.ok_or_else(|| format!("{text} is more than 1PiB, the largest volume"))?;
    if bytes == 0 {
        return Err("a volume of size 0 holds nothing: give it a size".to_owned());
    }
    Ok(bytes)
}

/// A length of time: a whole number with ms, s, m or h; without a unit seconds.
pub(crate) fn parse_time(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let wrong = || format!("{text:?} is no length of time: write 500ms, 30s, 5m or 1h");
    let count = whole(digits).ok_or_else(wrong)?;
    let time = match &text[digits.len()..] {
        "ms" => Some(Duration::from_millis(count)),
        "" | "s" => Some(Duration::from_secs(count)),
        "m" => count.checked_mul(60).map(Duration::from_secs),
        "h" => count.checked_mul(3600).map(Duration::from_secs),
        _ => return Err(wrong()),
    };
    time.filter(|time| time.as_secs() <= SECONDS_MAX).ok_or_else(|| format!("{text} is too long"))
}

/// The name of a resource.
pub(crate) fn parse_name(text: &str) -> Result<String, String> {
    check_name("the resource", text).map(|()| text.to_owned()).map_err(|error| error.0)
}

/// The identity of a resource: `6b1f0c9a2e77d431`.
pub(crate) fn parse_identity(text: &str) -> Result<u64, String> {
    let digits = text.len() <= 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let identity = u64::from_str_radix(text, 16).ok().filter(|identity| digits && *identity != 0);
    identity.ok_or_else(|| format!("{text:?} is no identity: 1 to 16 hexadecimal digits"))
}

/// A size with the largest unit that leaves a number of 1 or more: `1GiB`, `1.5MiB`, `512B`.
pub(crate) fn show_size(bytes: u64) -> String {
    let fit = UNITS.iter().find(|&&(_, factor)| bytes >= factor);
    let Some(&(unit, factor)) = fit else { return "0B".to_owned() };
    if bytes.is_multiple_of(factor) {
        return format!("{}{unit}", bytes / factor);
    }
    let tenths = u128::from(bytes) * 10 / u128::from(factor);
    format!("{}.{}{unit}", tenths / 10, tenths % 10)
}

/// A length of time in at most two units: `4s`, `2m 05s`, `3h 20m`.
pub(crate) fn show_seconds(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m {:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h {:02}m", seconds / 3600, seconds % 3600 / 60),
    }
}

/// How much of `total` is `part`, in whole per cent and never above 100; 100 of nothing.
pub(crate) fn per_cent(part: u64, total: u64) -> u64 {
    if total == 0 {
        return 100;
    }
    u64::try_from(u128::from(part.min(total)) * 100 / u128::from(total)).unwrap_or(100)
}
