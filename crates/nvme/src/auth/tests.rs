//! Vectors that another program computed (Python's hashlib, hmac and integers; primes and keys compared with OpenSSL's, secrets
//! with nvme-cli's), and the two sides against each other.

use super::group::Group;
use super::message::{FromHost, Reason, failure};
use super::proof::{Hash, Question, Seed, Side};
use super::{Credentials, Examiner, Names, ProofFault, Prover, Secret, SecretFault, Verdict};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use ring::digest::{SHA256, digest};

const SECRETS: [&str; 6] = [
    "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:",
    "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAhIiMkJSYnKCkqKywtLi8wyg3Bcw==:",
    "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAhIiMkJSYnKCkqKywtLi8wMTIzNDU2Nzg5Ojs8PT4/QJn7gCg=:",
    "DHHC-1:01:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:",
    "DHHC-1:02:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAhIiMkJSYnKCkqKywtLi8wyg3Bcw==:",
    "DHHC-1:03:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAhIiMkJSYnKCkqKywtLi8wMTIzNDU2Nzg5Ojs8PT4/QJn7gCg=:",
];

const MADE_BY_NVME_CLI: &str = "DHHC-1:01:EABQE0wLgHjYgjFzZA29pOFnfN2YRwaB8an4jz0YWZ/RnDJK:";

fn names() -> Names {
    Names {
        host: "nqn.2014-08.org.nvmexpress:uuid:1b4e28ba-2fa1-11d2-883f-0016d3cca427".into(),
        subsystem: "nqn.2026-11.invalid.lockstep:00000000000000aa:web".into(),
    }
}

fn secret(number: u8) -> Secret {
    Secret::new(&[number; 32], Some(Hash::Sha256)).unwrap()
}

fn seed(number: u8) -> Seed {
    Seed::new([number; 32])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn secrets_are_read_and_written_as_nvme_cli_does() {
    for text in SECRETS.into_iter().chain([MADE_BY_NVME_CLI]) {
        assert_eq!(Secret::parse(text).unwrap().to_text(), text);
    }
    let key: Vec<u8> = (1..=48).collect();
    assert_eq!(Secret::new(&key, Some(Hash::Sha384)).unwrap().to_text(), SECRETS[4]);
}

#[test]
fn a_secret_that_is_none_is_told_what_is_wrong_with_it() {
    let text = SECRETS[3];
    let cases = [
        (String::new(), SecretFault::Form),
        (text.trim_end_matches(':').into(), SecretFault::Form),
        (text.replace("DHHC-1", "DHHC-2"), SecretFault::Form),
        (text.replace(":01:", ":04:"), SecretFault::Hash),
        (text.replace(":01:", ":1:"), SecretFault::Hash),
        (text.replace(":01:", ":02:"), SecretFault::Length),
        (text.replace("AQID", "AQI*"), SecretFault::Base64),
        (text.replace("AQID", "AQ"), SecretFault::Base64),
        ("DHHC-1:00::".into(), SecretFault::Length),
        ("DHHC-1:00:AQID:".into(), SecretFault::Length),
        (text.replace("AQID", "AQIE"), SecretFault::Checksum),
        // The last two bits of a group that ends early belong to no byte.
        (SECRETS[2].replace("gCg=", "gCh="), SecretFault::Base64),
    ];
    for (text, fault) in cases {
        assert_eq!(Secret::parse(&text), Err(fault), "{text}");
    }
}

#[test]
fn what_is_printed_for_a_log_says_nothing_of_secrets() {
    let credentials = Credentials { host: [secret(7)].into(), controller: Some(secret(8)) };
    let mut examiner = Examiner::new(names(), credentials.clone(), seed(9));
    let prover = Prover::new(names(), secret(7), Some(secret(8)), seed(9));
    examiner.hear(&prover.begin());
    let said = format!("{credentials:?}{examiner:?}{prover:?}{:?}", seed(9));
    assert!(!said.contains("7, 7") && !said.contains("8, 8") && !said.contains("9, 9"), "{said}");
    assert!(!said.contains("exponent") && said.contains("not shown"), "{said}");
}

#[test]
fn a_queue_that_is_there_judges_by_what_is_known_of_its_host_now() {
    let known = |number| Credentials { host: [secret(number)].into(), controller: None };
    let mut examiner = Examiner::new(names(), known(1), seed(9));
    let prove = |examiner: &mut Examiner, number| {
        meet(examiner, &mut Prover::new(names(), secret(number), None, seed(number)))
    };
    assert_eq!(prove(&mut examiner, 1).unwrap(), Verdict::Passed(secret(1)));
    examiner.renew(Credentials { host: [secret(5), secret(1)].into(), controller: None });
    assert_eq!(prove(&mut examiner, 5).unwrap(), Verdict::Passed(secret(5)));
    examiner.renew(known(5));
    assert!(!matches!(prove(&mut examiner, 1), Ok(Verdict::Passed(_))));
}

#[test]
fn responses_are_what_another_program_computes() {
    // Which secret, which hash, and how the host's and the controller's responses begin.
    let rows = [
        (0, Hash::Sha256, "a02b4893242b8915", "ddce954fe942f95b"),
        (0, Hash::Sha384, "dcb3ccc954741c13", "55e39cd602289f5b"),
        (0, Hash::Sha512, "a5b2a82e4d4aa67a", "506515998adc1f72"),
        (3, Hash::Sha256, "cae0585317c79cf0", "391da4e2a9f7ce42"),
        (3, Hash::Sha384, "47f7df0a8764cec5", "80fba97f7c92fa3a"),
        (3, Hash::Sha512, "b5945979d14e7c7d", "77a1bfb6d6491b82"),
        (4, Hash::Sha256, "5cedd5bfb222d59d", "9b6898b4d0bae804"),
        (4, Hash::Sha384, "f86a62f3faadde6c", "33b8bf18bf91404a"),
        (4, Hash::Sha512, "e1c78bd74b26d389", "cbda25e2c112cdfc"),
        (5, Hash::Sha256, "0f215eed6ad2e443", "52702f338edafd07"),
        (5, Hash::Sha384, "762d29d5a6448187", "cf843b2da1bc8e69"),
        (5, Hash::Sha512, "60a35eef2a8b0be1", "e0d7e7a5c4f6d8cd"),
    ];
    let names = names();
    for (number, hash, host, controller) in rows {
        let secret = Secret::parse(SECRETS[number]).unwrap();
        let challenge: Vec<u8> = (0x40..).take(hash.bytes()).collect();
        let question = Question {
            hash,
            challenge: &challenge,
            shared: None,
            sequence: 0x0102_0304,
            transaction: 0x0506,
            names: &names,
        };
        let sides =
            [(Side::Host, &names.host, host), (Side::Controller, &names.subsystem, controller)];
        for (side, name, begins) in sides {
            let response = question.answer(side, &secret.bound_to(name));
            assert_eq!((hex(&response[..8]).as_str(), response.len()), (begins, hash.bytes()));
            assert!(question.is_answer(side, &secret.bound_to(name), &response));
            let other = secret.bound_to("nqn.other");
            assert_eq!(question.is_answer(side, &other, &response), number == 0, "none is bound");
            assert!(!question.is_answer(side, &secret.bound_to(name), &response[1..]));
        }
    }
}

fn exponents() -> ([u8; 64], [u8; 64]) {
    let from = |first: u8| core::array::from_fn(|at| first + at as u8);
    (from(0), from(100))
}

#[test]
fn an_exchange_finds_what_another_program_computes() {
    // SHA-256 of the prime, of what the first side tells, and of what both find.
    let rows = [
        (Group::Ffdhe2048, "9cd3b7f336872f46", "c24a6597df80b71e", "eff1350552a2b690"),
        (Group::Ffdhe3072, "0eaf67db3a839156", "b9c1c6ba1843ff0c", "a01222a9531f8f85"),
        (Group::Ffdhe4096, "4648414224ac881b", "aa4143254660ce58", "0a3af33c935a4aa0"),
        (Group::Ffdhe6144, "227ac9066b3ddd9e", "ccc0c127315888eb", "0d57758488c61f6c"),
        (Group::Ffdhe8192, "770b14efaf6f0499", "af82394e0273911c", "013a100cb26f5eca"),
    ];
    let (one, two) = exponents();
    for (group, prime, told, found) in rows {
        let sum = |bytes: &[u8]| hex(&digest(&SHA256, bytes).as_ref()[..8]);
        let (first, second) = (group.public(&one), group.public(&two));
        let shared = group.shared(&second, &one).unwrap().unwrap();
        assert_eq!([sum(&group.prime()), sum(&first), sum(&shared)], [prime, told, found]);
        assert_eq!(group.shared(&first, &two), Ok(Some(shared)));
    }
}

#[test]
fn a_response_after_an_exchange_is_what_another_program_computes() {
    let (one, two) = exponents();
    let shared = Group::Ffdhe2048.shared(&Group::Ffdhe2048.public(&two), &one).unwrap();
    let (names, challenge) = (names(), (0x40..).take(32).collect::<Vec<u8>>());
    let question = Question {
        hash: Hash::Sha256,
        challenge: &challenge,
        shared: shared.as_deref(),
        sequence: 0x0102_0304,
        transaction: 0x0506,
        names: &names,
    };
    let secret = Secret::parse(SECRETS[3]).unwrap().bound_to(&names.host);
    assert_eq!(
        hex(&question.answer(Side::Host, &secret)),
        "ff5c9693ff54c9991836e5d95d90a198d5a979ba4f7d7f9996c9897b5e2d231e"
    );
}

#[test]
fn what_gives_an_exchange_away_is_refused() {
    let group = Group::Ffdhe2048;
    let (one, _) = exponents();
    let small = |last| {
        let mut told = alloc::vec![0; 256];
        told[255] = last;
        told
    };
    let mut less = group.prime();
    less[255] -= 1;
    for told in
        [small(0), small(1), less, group.prime(), alloc::vec![0xff; 256], small(2)[1..].to_vec()]
    {
        assert_eq!(group.shared(&told, &one), Err(()));
    }
    assert!(group.shared(&small(2), &one).is_ok());
    assert_eq!(Group::Null.shared(&[], &one), Ok(None));
    assert_eq!(Group::Null.shared(&[2], &one), Err(()));
}

fn credentials(host: &[u8], controller: Option<u8>) -> Credentials {
    Credentials {
        host: host.iter().map(|&one| secret(one)).collect(),
        controller: controller.map(secret),
    }
}

/// Both sides, from the first message to the last.
fn meet(examiner: &mut Examiner, prover: &mut Prover) -> Result<Verdict, ProofFault> {
    assert_eq!(examiner.hear(&prover.begin()), None);
    let reply = prover.reply(&examiner.say().0)?;
    assert_eq!(examiner.hear(&reply), None);
    let (success, verdict) = examiner.say();
    match prover.finish(&success)? {
        None => Ok(verdict.expect("nothing more is to be said")),
        Some(last) => {
            assert_eq!(verdict, None, "the host has not said what it thinks");
            assert!(!examiner.has_passed());
            Ok(examiner.hear(&last).expect("everything is said"))
        }
    }
}

#[test]
fn who_knows_the_secret_passes_with_every_hash_and_group() {
    for hash in Hash::ALL {
        for group in [Group::Null, Group::Ffdhe2048, Group::Ffdhe3072] {
            for controller in [None, Some(2)] {
                let mut examiner = Examiner::new(names(), credentials(&[1], controller), seed(1));
                let prover = Prover::new(names(), secret(1), controller.map(secret), seed(2));
                let mut prover = prover.offering(&[hash], &[group]);
                assert_eq!(meet(&mut examiner, &mut prover), Ok(Verdict::Passed(secret(1))));
                assert!(examiner.has_passed());
            }
        }
    }
}

#[test]
fn either_of_two_secrets_will_do_and_it_is_told_which() {
    for own in [1, 2] {
        let mut examiner = Examiner::new(names(), credentials(&[1, 2], None), seed(1));
        let mut prover = Prover::new(names(), secret(own), None, seed(2));
        assert_eq!(meet(&mut examiner, &mut prover), Ok(Verdict::Passed(secret(own))));
    }
}

#[test]
fn who_does_not_know_the_secret_fails_and_is_told() {
    let strangers = [
        Prover::new(names(), secret(3), None, seed(2)),
        // The right secret, of another host, or for another subsystem.
        Prover::new(Names { host: "nqn.other".into(), ..names() }, secret(1), None, seed(2)),
        Prover::new(Names { subsystem: "nqn.other".into(), ..names() }, secret(1), None, seed(2)),
    ];
    for mut prover in strangers {
        let mut examiner = Examiner::new(names(), credentials(&[1], None), seed(1));
        assert_eq!(meet(&mut examiner, &mut prover), Err(ProofFault::Refused(Reason::Failed)));
        assert!(!examiner.has_passed());
    }
}

#[test]
fn a_controller_that_does_not_know_its_secret_is_not_believed() {
    let mut examiner = Examiner::new(names(), credentials(&[1], Some(3)), seed(1));
    let mut prover = Prover::new(names(), secret(1), Some(secret(2)), seed(2));
    assert_eq!(meet(&mut examiner, &mut prover), Err(ProofFault::Refuses(Reason::Failed)));
    let verdict = examiner.hear(&prover.refusal(Reason::Failed));
    assert_eq!(verdict, Some(Verdict::Failed(Reason::Failed)));
    assert!(!examiner.has_passed());
    // One that has none cannot be asked for it.
    let mut examiner = Examiner::new(names(), credentials(&[1], None), seed(1));
    let mut prover = Prover::new(names(), secret(1), Some(secret(2)), seed(2));
    assert_eq!(meet(&mut examiner, &mut prover), Err(ProofFault::Refused(Reason::Failed)));
}

#[test]
fn a_recorded_reply_is_of_no_use() {
    let mut examiner = Examiner::new(names(), credentials(&[1], None), seed(1));
    let mut prover =
        Prover::new(names(), secret(1), None, seed(2)).offering(&Hash::ALL, &[Group::Null]);
    examiner.hear(&prover.begin());
    let recorded = prover.reply(&examiner.say().0).unwrap();
    examiner.hear(&recorded);
    assert_eq!(examiner.say().1, Some(Verdict::Passed(secret(1))));
    // Again on the same queue, where a second authentication begins, and on another.
    for mut examiner in [examiner, Examiner::new(names(), credentials(&[1], None), seed(3))] {
        examiner.hear(&prover.begin());
        examiner.say();
        examiner.hear(&recorded);
        assert_eq!(examiner.say().1, Some(Verdict::Failed(Reason::Failed)));
        assert!(!examiner.has_passed(), "what it had proved before is over");
    }
}

#[test]
fn our_own_challenge_sent_back_is_not_responded_to() {
    let mut examiner = Examiner::new(names(), credentials(&[1], Some(1)), seed(1));
    let mut prover = Prover::new(names(), secret(1), Some(secret(1)), seed(2));
    prover = prover.offering(&[Hash::Sha256], &[Group::Null]);
    examiner.hear(&prover.begin());
    let (challenge, _) = examiner.say();
    let mut reply = prover.reply(&challenge).unwrap();
    reply[16 + 32..16 + 64].copy_from_slice(&challenge[16..48]);
    examiner.hear(&reply);
    assert_eq!(examiner.say().1, Some(Verdict::Failed(Reason::Failed)));
}

/// An examiner that was told `message` at its start, or after its challenge.
fn told(message: &[u8], after_challenge: bool) -> Option<Verdict> {
    let mut examiner = Examiner::new(names(), credentials(&[1], None), seed(1));
    if after_challenge {
        examiner.hear(&offer());
        examiner.say();
    }
    examiner.hear(message).or_else(|| examiner.say().1)
}

fn offer() -> Vec<u8> {
    Prover::new(names(), secret(1), None, seed(2)).offering(&[Hash::Sha256], &[Group::Null]).begin()
}

fn altered(message: &[u8], at: usize, byte: u8) -> Vec<u8> {
    let mut message = message.to_vec();
    message[at] = byte;
    message
}

#[test]
fn an_offer_that_cannot_be_is_refused_for_its_reason() {
    let offer = offer();
    let failed = |reason| Some(Verdict::Failed(reason));
    assert_eq!(told(&offer, false), None);
    assert_eq!(told(&[], false), failed(Reason::Payload));
    assert_eq!(told(&offer[..71], false), failed(Reason::Payload));
    assert_eq!(told(&altered(&offer, 7, 2), false), failed(Reason::Payload));
    assert_eq!(told(&altered(&offer, 10, 31), false), failed(Reason::Payload));
    assert_eq!(told(&altered(&offer, 11, 255), false), failed(Reason::Payload));
    assert_eq!(told(&altered(&offer, 6, 1), false), failed(Reason::Concatenation));
    assert_eq!(told(&altered(&offer, 7, 0), false), failed(Reason::NotUsable));
    assert_eq!(told(&altered(&offer, 8, 2), false), failed(Reason::NotUsable));
    assert_eq!(told(&altered(&offer, 12, 9), false), failed(Reason::NoHash));
    assert_eq!(told(&altered(&offer, 42, 9), false), failed(Reason::NoGroup));
    let large = altered(&offer, 42, Group::Ffdhe8192 as u8);
    assert_eq!(told(&large, false), failed(Reason::NoGroup), "it would cost too much");
    assert_eq!(told(&altered(&offer, 0, 2), false), failed(Reason::Message));
    assert_eq!(told(&altered(&offer, 1, 5), false), failed(Reason::Message));
    assert_eq!(told(&offer, true), failed(Reason::Message), "an answer is due");
    assert_eq!(told(&failure(true, 1, Reason::NoHash), false), failed(Reason::NoHash));
    assert_eq!(told(&failure(true, 1, Reason::NoHash)[..7], false), failed(Reason::Payload));
}

#[test]
fn a_reply_that_cannot_be_is_refused_for_its_reason() {
    let mut examiner = Examiner::new(names(), credentials(&[1], None), seed(1));
    let mut prover =
        Prover::new(names(), secret(1), None, seed(2)).offering(&[Hash::Sha256], &[Group::Null]);
    examiner.hear(&prover.begin());
    let reply = prover.reply(&examiner.say().0).unwrap();
    let failed = |reason| Some(Verdict::Failed(reason));
    assert_eq!(told(&reply, true), Some(Verdict::Passed(secret(1))));
    assert_eq!(told(&reply, false), failed(Reason::Message), "nothing was asked");
    assert_eq!(told(&reply[..79], true), failed(Reason::Payload));
    assert_eq!(told(&reply[..9], true), failed(Reason::Payload));
    assert_eq!(told(&altered(&reply, 4, reply[4] ^ 1), true), failed(Reason::Payload));
    assert_eq!(told(&altered(&reply, 6, 16), true), failed(Reason::Payload), "a shorter response");
    assert_eq!(told(&altered(&reply, 6, 0), true), failed(Reason::Payload));
    assert_eq!(told(&altered(&reply, 10, 1), true), failed(Reason::Payload));
    assert_eq!(told(&altered(&reply, 11, 255), true), failed(Reason::Payload));
    for at in 16..48 {
        assert_eq!(told(&altered(&reply, at, reply[at] ^ 0x80), true), failed(Reason::Failed));
    }
    assert_eq!(told(&altered(&reply, 1, 4), true), failed(Reason::Message), "nothing to believe");
    // A shorter message, in a group where one is exchanged.
    let mut examiner = Examiner::new(names(), credentials(&[1], None), seed(1));
    let mut prover = Prover::new(names(), secret(1), None, seed(2))
        .offering(&[Hash::Sha256], &[Group::Ffdhe2048]);
    examiner.hear(&prover.begin());
    let mut reply = prover.reply(&examiner.say().0).unwrap();
    reply[16 + 64..].fill(0);
    examiner.hear(&reply);
    assert_eq!(examiner.say().1, failed(Reason::Payload), "0 is of no group");
}

#[test]
fn who_asks_before_it_is_its_turn_has_failed() {
    let mut examiner = Examiner::new(names(), credentials(&[1], None), seed(1));
    assert_eq!(examiner.say().1, Some(Verdict::Failed(Reason::Message)));
    let mut examiner = Examiner::new(names(), credentials(&[1], None), seed(1));
    examiner.hear(&offer());
    examiner.say();
    let (message, verdict) = examiner.say();
    assert_eq!(verdict, Some(Verdict::Failed(Reason::Message)));
    assert_eq!(message.len(), 8);
    assert_eq!(message[..2], [0, 0xf1]);
    assert!(!examiner.has_passed());
    // Whatever it says from then on.
    for message in [offer(), alloc::vec![1, 4], Vec::new()] {
        examiner.hear(&message);
        assert!(!examiner.has_passed());
    }
}

#[test]
fn challenges_differ_from_one_to_the_next() {
    let mut seen = Vec::new();
    for number in [1, 2] {
        let mut examiner = Examiner::new(names(), credentials(&[1], None), seed(number));
        for _ in 0..3 {
            let mut prover = Prover::new(names(), secret(1), None, seed(2));
            prover = prover.offering(&[Hash::Sha512], &[Group::Null]);
            examiner.hear(&prover.begin());
            let (challenge, _) = examiner.say();
            assert!(!seen.contains(&challenge[12..].to_vec()));
            seen.push(challenge[12..].to_vec());
            examiner.hear(&prover.reply(&challenge).unwrap());
            examiner.say();
            assert!(examiner.has_passed(), "one that has passed may pass again");
        }
    }
}

#[test]
fn messages_of_all_kinds_are_read_from_any_bytes() {
    let mut random = base::Prng::new(7);
    for _ in 0..20_000 {
        let length = random.below(200) as usize;
        let mut bytes: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
        if let [kind, id, ..] = &mut bytes[..] {
            (*kind, *id) = (random.below(2) as u8, random.below(6) as u8);
        }
        let _ = FromHost::parse(&bytes);
        let _ = super::message::FromController::parse(&bytes);
    }
}
