//! Random 64-bit identities in files and JSON: hexadecimal text, because JSON's numbers end at 2^53
//! and TOML's at 2^63.

use alloc::format;
use alloc::string::String;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

pub(super) fn parse(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let value = u64::from_str_radix(text, 16).ok()?;
    (digits && text.len() <= 16 && value != 0).then_some(value)
}

pub(super) fn serialize<S: Serializer>(value: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&format!("{value:016x}"))
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let text = String::deserialize(from)?;
    parse(&text).ok_or_else(|| {
        D::Error::custom("an identity is 1 to 16 hexadecimal digits in quotes, and not 0")
    })
}

/// The same for an identity that may be left out.
pub(super) mod option {
    use alloc::string::String;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(in crate::admin) fn serialize<S: Serializer>(
        value: &Option<u64>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => super::serialize(value, to),
            None => to.serialize_none(),
        }
    }

    pub(in crate::admin) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<u64>, D::Error> {
        let Some(text) = Option::<String>::deserialize(from)? else { return Ok(None) };
        super::parse(&text).map(Some).ok_or_else(|| {
            D::Error::custom("an identity is 1 to 16 hexadecimal digits in quotes, and not 0")
        })
    }
}
