//! What operators write, and what they say to a node: resource files, admin lines, certificates and keys.

use super::peers;
use crate::{Target, nothing, outcome};
use base::Prng;
use serde_json::Value;
use wire::Configuration;
use wire::admin::{
    Answer, Command, LineError, Lines, Operation, OptionsChange, Outcome, Reply, Request,
    ResourceFile, decode_line, encode_line,
};

/// The admin socket, both ends.
pub(super) const ADMIN: Target = Target {
    name: "admin",
    what: "lines on the admin socket",
    valid: admin_lines,
    mend: nothing,
    judge: admin,
    words: &[
        "\"version\":1",
        "\"id\":",
        "null",
        "true",
        "-1",
        "1e400",
        "{",
        "[",
        "}",
        "]",
        "\\ud800",
        "\n",
        "\u{feff}",
        "18446744073709551616",
        "\"resource\":",
        "\"name\":",
        "\"command\":",
        "\"operation\":",
    ],
};

/// A resource as its operator describes it.
pub(super) const RESOURCE: Target = Target {
    name: "resource-file",
    what: "a resource's file",
    valid: |_| RESOURCE_FILE.as_bytes().to_vec(),
    mend: nothing,
    judge: resource,
    words: &[
        "[[nodes]]",
        "[[members]]",
        "[[volumes]]",
        "[options]",
        "[timing]",
        "= \"\"",
        "= -1",
        "= 1.5",
        "= true",
        "\"witness\"",
        "\"replica\"",
        "in_sync_min = ",
        "shards = ",
        "size_bytes = ",
        "block_bytes = ",
        "\n",
    ],
};

/// Who a node is.
pub(super) const IDENTITY: Target = Target {
    name: "identity",
    what: "certificate, key and authority of a node",
    valid: |random| peers::identity_pem(random).join(SEPARATOR).into_bytes(),
    mend: nothing,
    judge: |input| {
        let text = String::from_utf8_lossy(input);
        let mut parts = text.splitn(3, SEPARATOR);
        let mut part = || parts.next().unwrap_or("").to_owned();
        match link::Identity::from_pem(part(), part(), part()) {
            Ok(identity) => outcome(&identity.peer()),
            // Its words differ with every byte; only which kind counts.
            Err(error) => outcome(&std::mem::discriminant(&error)),
        }
    },
    words: &["-----BEGIN CERTIFICATE-----\n", "-----END CERTIFICATE-----\n", "\u{c}", "=="],
};

/// Between the three files of an identity; it stands in none of them.
const SEPARATOR: &str = "\u{c}";

const RESOURCE_FILE: &str = r#"
name = "orders-db"
id = "00000000c0ffee01"
shards = 2
[options]
protocol = "C"
in_sync_min = 1
[timing]
lease_ms = 2000
[[nodes]]
id = 1
name = "alice"
addresses = ["10.0.0.1:7000"]
[[nodes]]
id = 2
name = "bob"
[[members]]
node = 1
voter = "0000000000000011"
stores = [{ volume = 0, kind = "file", path = "/srv/a", metadata_path = "/srv/b" }]
[[members]]
node = 2
kind = "witness"
in_sync = false
[[volumes]]
index = 0
size_bytes = 1048576
block_bytes = 4096
"#;

/// What `RESOURCE_FILE` describes.
fn file() -> ResourceFile {
    toml::from_str(RESOURCE_FILE).expect("a good file")
}

/// A right value of the register.
pub(super) fn configuration() -> Configuration {
    file().configuration().expect("a good file")
}

/// A request or a reply, or two of them.
fn admin_lines(random: &mut Prng) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..=random.below(2) {
        let encoded = match random.below(10) {
            0 => encode_line(&Request::new(7, Command::Ping {}), &mut bytes),
            1 => {
                let command = Command::ResourceDefine { file: file().into() };
                encode_line(&Request::new(8, command), &mut bytes)
            }
            2 => {
                let resource = Some("orders-db".to_owned());
                encode_line(
                    &Request::new(random.next_u64(), Command::Events { resource }),
                    &mut bytes,
                )
            }
            3 => encode_line(&Reply::result(7, Answer::Done {}), &mut bytes),
            4 => encode_line(&Reply::result(7, Answer::File(file().into())), &mut bytes),
            5 => {
                let code = wire::admin::codes::MALFORMED_REQUEST;
                encode_line(&Reply::error(7, &code, "what was that?"), &mut bytes)
            }
            at => {
                let volume = 0;
                let (size_bytes, allow_shrink) = (random.below(1 << 50), random.once_in(2));
                let member = || Box::new(file().members[0].clone());
                let operation = match at {
                    6 => Operation::Resize { volume, size_bytes, allow_shrink },
                    7 => Operation::AddReplica { member: member(), node: None },
                    8 => Operation::RemoveReplica { node: 2 },
                    _ => Operation::SetOptions { options: OptionsChange::default() },
                };
                let resource = "orders-db".to_owned();
                encode_line(
                    &Request::new(9, Command::Operation { resource, operation }),
                    &mut bytes,
                )
            }
        };
        encoded.expect("a short line");
    }
    bytes
}

fn admin(input: &[u8]) -> u64 {
    let mut lines = Lines::default();
    let mut seen = Vec::new();
    for piece in input.chunks(1 + input.len() % 97) {
        if let Err(error) = lines.push(piece) {
            assert_eq!(error, LineError::TooLong);
            return outcome(&error);
        }
        while let Some(line) = lines.next_line() {
            assert!(!line.contains(&b'\n'), "a line has one end");
            seen.push((request(&line), reply(&line)));
        }
    }
    // What is left is no line yet; as one it must do no harm either.
    seen.push((request(input), reply(input)));
    outcome(&seen.last())
}

fn request(line: &[u8]) -> u64 {
    match Request::decode(line) {
        Ok(request) => {
            let mut bytes = Vec::new();
            encode_line(&request, &mut bytes).expect("it was a line");
            assert_eq!(
                Request::decode(&bytes),
                Ok(request.clone()),
                "said again, it says the same"
            );
            shape(&request.command)
        }
        Err(reply) => {
            let mut bytes = Vec::new();
            encode_line(&reply, &mut bytes).expect("a refusal fits in a line");
            let Outcome::Error(failure) = &reply.outcome else { panic!("a refusal is an error") };
            outcome(&first_words(&failure.message))
        }
    }
}

fn reply(line: &[u8]) -> Option<u64> {
    let reply: Reply = decode_line(line).ok()?;
    let mut bytes = Vec::new();
    encode_line(&reply, &mut bytes).expect("it was a line");
    assert_eq!(decode_line::<Reply>(&bytes), Ok(reply.clone()), "said again, it says the same");
    Some(match &reply.outcome {
        Outcome::Result(answer) => shape(answer),
        Outcome::Error(failure) => outcome(&failure.code),
    })
}

/// Which variant something is, by its first key.
fn shape(value: &impl serde::Serialize) -> u64 {
    match serde_json::to_value(value) {
        Ok(Value::Object(fields)) => {
            outcome(&(fields.get("verb"), fields.get("kind"), fields.len()))
        }
        Ok(Value::String(word)) => outcome(&word),
        other => outcome(&other.is_ok()),
    }
}

fn resource(input: &[u8]) -> u64 {
    let Ok(text) = std::str::from_utf8(input) else { return outcome(&"no text") };
    let file: ResourceFile = match toml::from_str(text) {
        Ok(file) => file,
        Err(error) => return outcome(&first_words(error.message())),
    };
    let checked = file.check();
    match file.configuration() {
        Ok(configuration) => {
            assert_eq!(checked, Ok(()), "what was refused is not made");
            let mut bytes = Vec::new();
            wire::encode_configuration(&configuration, &mut bytes);
            assert_eq!(wire::decode_configuration(&bytes), Ok(configuration));
            let text = toml::to_string_pretty(&file).expect("what was read can be written");
            assert_eq!(toml::from_str(&text), Ok(file), "written again, it says the same");
            outcome(&"good")
        }
        Err(error) => outcome(&first_words(&error.0)),
    }
}

/// What an error says before it repeats the input.
fn first_words(message: &str) -> &str {
    message
        .split(|letter: char| letter.is_ascii_digit() || "`\"".contains(letter))
        .next()
        .unwrap_or("")
}
