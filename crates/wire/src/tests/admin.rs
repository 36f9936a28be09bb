//! The admin socket's lines, descriptions of resources, and the table of errors.

extern crate std;

use crate::admin::*;
use crate::*;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use base::{NodeId, Prng};
use std::path::PathBuf;

fn file() -> ResourceFile {
    let node = |id: u16, name: &str| FileNode {
        id,
        name: name.to_string(),
        addresses: vec![format!("10.0.0.{id}:7000")],
    };
    let member = |node, kind| FileMember {
        node,
        kind,
        voter: None,
        incarnation: None,
        in_sync: None,
        stores: Vec::new(),
    };
    ResourceFile {
        name: "orders-db".to_string(),
        id: 0xfeed_0000_0000_0001,
        shards: 1,
        options: Options::default(),
        timing: FileTiming::default(),
        nodes: vec![node(3, "carol"), node(1, "alice"), node(2, "bob"), node(4, "dave")],
        members: vec![
            member(2, MemberKind::Replica),
            member(1, MemberKind::Replica),
            member(3, MemberKind::Witness),
        ],
        volumes: vec![FileVolume {
            index: 0,
            size_bytes: 1 << 30,
            block_bytes: 4096,
            log_extents: 1237,
        }],
    }
}

fn commands() -> Vec<Command> {
    let resource = || "r".to_string();
    let mut commands = vec![
        Command::Ping {},
        Command::NodeStatus {},
        Command::ResourceReserve { resource: resource() },
        Command::ResourceDefine { file: file().into() },
        Command::ResourceCreate { resource: resource(), force: true },
        Command::ResourceDelete { resource: resource(), force: false, unused: true },
        Command::ResourceForget { resource: resource(), stores: true },
        Command::Status { resource: None },
        Command::Events { resource: Some(resource()) },
        Command::Stop { graceful: true },
        Command::Reload {},
        Command::Dump { resource: resource() },
        Command::UblkAttach { resource: resource(), volume: 1 },
        Command::UblkDetach { resource: resource(), volume: 0 },
        Command::UblkList {},
        Command::VhostAdd { resource: resource(), volume: 1, group: Some("kvm".to_string()) },
        Command::VhostRemove { resource: resource(), volume: 0 },
        Command::VhostList {},
        Command::StatusPage { after: "orders-db".into() },
        Command::ResourceFile { resource: resource() },
        Command::ResourceAdmit { resource: resource(), node: file().nodes[0].clone() },
        Command::ResourceDismiss { resource: resource(), node: 4 },
    ];
    let options = OptionsChange { protocol: Some(Protocol::B), ..OptionsChange::default() };
    let operations = vec![
        Operation::Promote {},
        Operation::Demote {},
        Operation::AddReplica {
            member: file().members[0].clone().into(),
            node: Some(file().nodes[0].clone()),
        },
        Operation::RemoveReplica { node: 2 },
        Operation::Resize { volume: 0, size_bytes: 4096, allow_shrink: true },
        Operation::Invalidate {},
        Operation::Suspend {},
        Operation::Resume {},
        Operation::PauseResync {},
        Operation::FailWaiting {},
        Operation::LetWait {},
        Operation::ResumeResync {},
        Operation::Verify { anew: true },
        Operation::StopVerify {},
        Operation::Force {},
        Operation::SetOptions { options },
        Operation::Cut {},
    ];
    commands.extend(
        operations
            .into_iter()
            .map(|operation| Command::Operation { resource: resource(), operation }),
    );
    commands
}

fn status() -> Status {
    let resync =
        Resync { done_bytes: 10, total_bytes: 40, rate_bytes_per_second: 5, eta_seconds: Some(6) };
    let text = r#"{"version":1,"resources":[{"name":"r","epoch":4,"primary":"alice","quorum":true,
        "suspended":null,"replicas":[{"node":"alice","state":"in-sync","in_sync":true,"resync":null},
        {"node":"bob","state":"syncing","in_sync":false,"resync":null}]}]}"#;
    let mut status: Status = decode_line(text.as_bytes()).unwrap();
    status.resources[0].replicas[1].resync = Some(resync);
    status
}

#[test]
fn every_request_comes_back_as_it_was() {
    for (id, command) in commands().into_iter().enumerate() {
        let about = command.acts_on().is_some().then_some(0xbeef);
        let request = Request::new(id as u64, command).about(Some(0xbeef));
        assert_eq!(request.identity, about, "{:?}", request.command);
        let mut line = Vec::new();
        encode_line(&request, &mut line).unwrap();
        assert_eq!(line.iter().filter(|&&byte| byte == b'\n').count(), 1);
        assert_eq!(Request::decode(&line), Ok(request), "{}", String::from_utf8_lossy(&line));
    }
}

fn host_disk() -> HostDisk {
    HostDisk { number: 3, resource: "r".to_string(), volume: 1, ready: true }
}

#[test]
fn every_reply_comes_back_as_it_was() {
    let answers = [
        Answer::Pong { program: "0.1.0".to_string(), node: "alice".to_string() },
        Answer::Done {},
        Answer::Status(status()),
        Answer::Event(alloc::boxed::Box::new(Event {
            number: 1,
            at_ms: 2,
            resource: "r".to_string(),
            status: Some(status().resources.remove(0)),
        })),
        Answer::File(alloc::boxed::Box::new(file())),
        Answer::Dump(Dump {
            resource: "r".to_string(),
            node: "alice".to_string(),
            volumes: vec![DumpVolume { volume: 0, size_bytes: 5, hash: "aa".to_string() }],
        }),
        Answer::HostDisk(host_disk()),
        Answer::HostDisks { host: "1b4e28ba".to_string(), disks: vec![host_disk()] },
        Answer::Node(NodeStatus {
            node: "alice".to_string(),
            node_id: 1,
            cluster: "1".to_string(),
            program: "0.1.0".to_string(),
            uptime_seconds: 5,
            threads: 2,
            resources: 1,
            peers: Vec::new(),
            warnings: Vec::new(),
            faults: Faults { peers: 1, nbd: 2, admin: 3 },
            outsiders: 4,
        }),
    ];
    let mut replies: Vec<Reply> =
        answers.into_iter().map(|answer| Reply::result(9, answer)).collect();
    replies.push(Reply::error(9, &codes::NO_QUORUM, "2 of 3 voters are gone"));
    for reply in replies {
        let mut line = Vec::new();
        encode_line(&reply, &mut line).unwrap();
        assert_eq!(decode_line::<Reply>(&line), Ok(reply), "{}", String::from_utf8_lossy(&line));
    }
}

#[test]
fn the_lines_of_version_1_are_understood_for_ever() {
    let line = br#"{"version":1,"id":7,"command":{"verb":"operation","resource":"r","operation":{"do":"set-options","options":{"on_no_quorum":"io-error","read_policy":"latency-aware"}}}}"#;
    let options = OptionsChange {
        on_no_quorum: Some(OnNoQuorum::IoError),
        read_policy: Some(ReadPolicy::LatencyAware),
        ..OptionsChange::default()
    };
    let operation = Operation::SetOptions { options };
    let command = Command::Operation { resource: "r".to_string(), operation };
    assert_eq!(Request::decode(line), Ok(Request::new(7, command)));

    let reply = Reply::error(7, &codes::NO_RESOURCE, "no x");
    let mut line = Vec::new();
    encode_line(&reply, &mut line).unwrap();
    let text = String::from_utf8(line).unwrap();
    let start = r#"{"version":1,"id":7,"error":{"code":"LS-0010","message":"no x","cause":""#;
    assert!(text.starts_with(start), "{text}");
    assert!(text.ends_with("\"exit\":3}}\n"), "{text}");
}

#[test]
fn the_status_keeps_the_form_that_programs_read() {
    let mut line = Vec::new();
    encode_line(&status(), &mut line).unwrap();
    let text = String::from_utf8(line).unwrap();
    for part in [
        r#"{"version":1,"resources":[{"name":"r","epoch":4,"primary":"alice","quorum":true,"suspended":null,"replicas":["#,
        r#"{"node":"alice","state":"in-sync","in_sync":true,"resync":null"#,
        r#""resync":{"done_bytes":10,"total_bytes":40,"rate_bytes_per_second":5,"eta_seconds":6}"#,
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

#[test]
fn a_misspelt_field_is_refused_with_the_request_s_id() {
    let lines: [&[u8]; 5] = [
        br#"{"version":1,"id":3,"command":{"verb":"stop","gracefull":true}}"#,
        br#"{"version":1,"id":3,"command":{"verb":"ping","x":1}}"#,
        br#"{"version":1,"id":3,"command":{"verb":"pong"}}"#,
        br#"{"version":1,"id":3,"command":{"verb":"ping"},"x":1}"#,
        br#"{"version":1,"id":3,"command":{"verb":"operation","resource":"r","operation":{"do":"cut","x":1}}}"#,
    ];
    for line in lines {
        let reply = Request::decode(line).expect_err(&String::from_utf8_lossy(line));
        let Outcome::Error(failure) = reply.outcome else { panic!("not an error") };
        assert_eq!((reply.id, failure.code.as_str()), (3, "LS-0001"));
    }
    let reply = Request::decode(br#"{"version":2,"id":3,"command":{"verb":"ping"}}"#).unwrap_err();
    let Outcome::Error(failure) = reply.outcome else { panic!("not an error") };
    assert_eq!(failure.code, "LS-0002");
    assert!(Request::decode(b"\xff{").is_err());
}

#[test]
fn lines_are_cut_wherever_their_bytes_arrive_and_have_a_longest() {
    let mut lines = Lines::default();
    let mut found = Vec::new();
    for piece in b"one\ntwo\n\nfour\nrest".chunks(3) {
        lines.push(piece).unwrap();
        found.extend(core::iter::from_fn(|| lines.next_line()));
    }
    assert_eq!(found, [b"one".to_vec(), b"two".to_vec(), Vec::new(), b"four".to_vec()]);
    assert_eq!(lines.push(&vec![b'x'; LINE_BYTES_MAX]), Err(LineError::TooLong));
    let mut out = vec![1];
    assert_eq!(encode_line(&"x".repeat(LINE_BYTES_MAX), &mut out), Err(LineError::TooLong));
    assert_eq!(out, [1]);
}

#[test]
fn changed_lines_never_panic() {
    let mut random = Prng::new(1);
    let lines: Vec<Vec<u8>> = commands()
        .into_iter()
        .map(|command| {
            let mut line = Vec::new();
            encode_line(&Request::new(1, command), &mut line).unwrap();
            line
        })
        .collect();
    for _ in 0..5_000 {
        let mut line = lines[random.below(lines.len() as u64) as usize].clone();
        let at = random.below(line.len() as u64) as usize;
        line[at] = random.next_u64() as u8;
        if let Ok(Request { command: Command::ResourceDefine { file }, .. }) =
            Request::decode(&line)
        {
            let _ = file.configuration();
        }
    }
}

#[test]
fn a_description_gives_every_node_the_same_first_configuration() {
    let configuration = file().configuration().unwrap();
    let mut shuffled = file();
    shuffled.members.reverse();
    assert_eq!(shuffled.configuration().unwrap(), configuration);
    assert_eq!(configuration.in_sync().collect::<Vec<_>>(), [NodeId(1), NodeId(2)]);
    assert_eq!((configuration.epoch.0, configuration.primary), (1, None));
    assert_eq!(configuration.volumes[0].sectors, 2 << 20);
    let mut identities: Vec<u64> = configuration.members.iter().map(|m| m.voter.0).collect();
    identities.dedup();
    assert_eq!(identities.len(), 3);
    assert!(!identities.contains(&0));
}

#[test]
fn a_wrong_description_is_refused() {
    let breaks: [fn(&mut ResourceFile); 22] = [
        |f| f.name = "../etc".to_string(),
        |f| f.name = String::new(),
        |f| f.nodes[0].id = 0,
        |f| f.nodes[0].id = 1,
        |f| f.nodes[0].name = "bob".to_string(),
        |f| f.nodes[0].addresses[0] = "nowhere".to_string(),
        |f| f.members[0].node = 9,
        |f| f.members[0].node = 1,
        |f| f.members.iter_mut().for_each(|m| m.in_sync = Some(false)),
        |f| f.members[2].in_sync = Some(true),
        |f| f.volumes.clear(),
        |f| f.volumes[0].size_bytes = 100,
        |f| f.volumes[0].size_bytes = 512,
        |f| f.volumes[0].size_bytes = VOLUME_BYTES_MAX + 4096,
        |f| f.volumes[0].block_bytes = 0,
        |f| f.volumes[0].log_extents = 63,
        |f| f.volumes[0].log_extents = 16_385,
        |f| f.options.in_sync_min = 9,
        |f| f.options.in_sync_min = 4,
        |f| f.timing.lease_ms = 300,
        |f| f.shards = 0,
        |f| f.shards = SHARDS_MAX + 1,
    ];
    for (index, broken) in breaks.iter().enumerate() {
        let mut file = file();
        broken(&mut file);
        assert!(file.check().is_err(), "break {index} went unseen");
    }
    assert_eq!(file().check(), Ok(()));
}

/// `docs/errors.md` as the table says it.
fn page() -> String {
    let mut page = String::from(
        "# Errors\n\nWritten from the table in `crates/wire/src/admin/codes.rs`; a test compares the \
         two.\nThe command line ends with 1 where it was refused or failed, 2 for a request that \
         makes no sense,\n3 where there is no such thing, 4 where it was not done in time. Codes from \
         LS-0900 on are the command line's own:\nsee [cli](cli.md).\n",
    );
    for code in codes::CODES {
        page.push_str(&format!(
            "\n## {}: {}\n\n- Cause: {}\n- Remedy: {}\n- Exit: {}\n",
            code.code, code.title, code.cause, code.remedy, code.exit
        ));
    }
    page
}

#[test]
fn the_page_of_errors_says_what_the_table_says() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors.md");
    if std::env::var("WIRE_FIXTURES").as_deref() == Ok("write") {
        std::fs::write(&path, page()).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap();
    assert_eq!(written, page(), "write it anew: WIRE_FIXTURES=write cargo test -p wire");
}

#[test]
fn codes_ascend_and_are_whole() {
    assert!(codes::CODES.is_sorted_by(|a, b| a.code < b.code));
    for code in codes::CODES {
        assert!(code.code.len() == 7 && code.code.starts_with("LS-"), "{}", code.code);
        assert!(code.cause.ends_with('.') && code.remedy.ends_with('.'), "{}", code.code);
        assert!((1..=4).contains(&code.exit), "{}", code.code);
        assert_eq!(codes::find(code.code), Some(code));
    }
}
