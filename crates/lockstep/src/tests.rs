//! Words, sizes, what is shown and what is explained; no node takes part.

pub(crate) mod fake;
mod strange;

use clap::{CommandFactory, Parser};
use wire::admin::{
    Event, ReplicaState, ResourceStatus, Status, VerifyProgress, Verifying, decode_line,
};

use crate::cli::{Cli, Colour, Command, Form, Resource, Shards, Wanted};
use crate::cluster::{Cluster, DevCluster, NodeEntry};
use crate::output::{Style, bar};
use crate::problem::KINDS;
use crate::unit::{parse_size, parse_time, per_cent, show_seconds, show_size};
use crate::view::{Views, event_line, human, reached};

const PLAIN: Style = Style { form: Form::Human, colour: false, terminal: false };

/// Three replicas as node a, the primary, tells of them: b is copied to, c is lost.
const STATUS: &str = r#"{"version":1,"resources":[{"name":"disk","epoch":5,"primary":"a","quorum":true,
"suspended":null,"replicas":[
{"node":"a","state":"in-sync","in_sync":true,"resync":null,"node_id":1,"connected":true,"store":"file"},
{"node":"b","state":"syncing","in_sync":false,"resync":{"done_bytes":1048576,"total_bytes":4194304,
"rate_bytes_per_second":1048576,"eta_seconds":3},"node_id":2,"connected":true,"store":null},
{"node":"c","state":"absent","in_sync":false,"resync":null,"node_id":3,"connected":false,"store":null}],
"volumes":[{"volume":0,"size_bytes":1073741824,"block_bytes":4096,"nbd":[]}]}]}"#;

pub(crate) fn resource() -> ResourceStatus {
    let status: Status = decode_line(STATUS.as_bytes()).unwrap();
    status.resources.into_iter().next().unwrap()
}

fn views(of: &[(&str, ResourceStatus)]) -> Views {
    let mut views = Views::default();
    for (node, view) in of {
        views.insert(node, view.clone());
    }
    views
}

fn cluster(names: &[&str]) -> Cluster {
    let node = |name: &&str| crate::admin::Node {
        name: (*name).to_owned(),
        socket: std::path::PathBuf::from("/nowhere"),
        identity: None,
    };
    Cluster { dev: None, nodes: names.iter().map(node).collect(), identity: None }
}

#[test]
fn sizes_are_whole_numbers_with_a_binary_unit() {
    assert_eq!(parse_size("1GiB"), Ok(1 << 30));
    assert_eq!(parse_size("4096"), Ok(4096));
    assert_eq!(parse_size("3 MiB"), Ok(3 << 20));
    assert_eq!(parse_size("1PiB"), Ok(1 << 50));
}

#[test]
fn impossible_sizes_are_refused_with_the_reason() {
    assert!(parse_size("0").unwrap_err().contains("size 0"));
    assert!(parse_size("2PiB").unwrap_err().contains("largest"));
    assert!(parse_size("99999999999TiB").unwrap_err().contains("largest"));
    assert!(parse_size("1GB").unwrap_err().contains("GiB"));
    for text in ["", "GiB", "-1GiB", "+5GiB", "+5", "1.5GiB", "1 GiB x", "\u{661}GiB"] {
        assert!(parse_size(text).is_err(), "{text:?}");
    }
}

#[test]
fn times_are_whole_numbers_with_a_unit() {
    assert_eq!(parse_time("30s").unwrap().as_secs(), 30);
    assert_eq!(parse_time("500ms").unwrap().as_millis(), 500);
    assert_eq!(parse_time("2m").unwrap().as_secs(), 120);
    assert_eq!(parse_time("7").unwrap().as_secs(), 7);
    for text in ["", "s", "1d", "-1s", "+1s", "18446744073709551615h", "99999h"] {
        assert!(parse_time(text).is_err(), "{text:?}");
    }
}

#[test]
fn sizes_and_times_are_shown_short_and_true() {
    assert_eq!(show_size(0), "0B");
    assert_eq!(show_size(1 << 30), "1GiB");
    assert_eq!(show_size((1 << 20) + (1 << 19)), "1.5MiB");
    assert_eq!(show_size(u64::MAX), "16383.9PiB");
    assert_eq!(show_seconds(59), "59s");
    assert_eq!(show_seconds(125), "2m 05s");
    assert_eq!(show_seconds(3600), "1h 00m");
    assert_eq!((per_cent(1, 3), per_cent(5, 3), per_cent(0, 0)), (33, 100, 100));
    assert_eq!(per_cent(u64::MAX, u64::MAX), 100);
}

#[test]
fn the_words_fit_together() {
    Cli::command().debug_assert();
}

#[test]
fn every_example_of_the_help_is_understood() {
    for line in [
        "lockstep dev up --nodes 3 --dir /tmp/x --store memory --detach --output json",
        "lockstep dev kill b",
        "lockstep resource create db --size 1GiB --replicas 3 --witnesses 1 --volumes 2 --nodes a,b,c,d",
        "lockstep resource promote db --node a",
        "lockstep resource add-replica db --node d",
        "lockstep resource verify db --wait",
        "lockstep wait db --for healthy --timeout 30s",
        "lockstep status db --output json",
        "lockstep --admin /run/a --admin /run/b status --watch",
        "lockstep completions zsh",
    ] {
        assert!(Cli::try_parse_from(line.split(' ')).is_ok(), "{line}");
    }
}

#[test]
fn slips_on_the_command_line_are_usage_errors() {
    for line in [
        "lockstep",
        "lockstep frobnicate",
        "lockstep dev up --nodes 0 --dir /tmp/x",
        "lockstep dev up --nodes 27 --dir /tmp/x",
        "lockstep resource create db",
        "lockstep resource create db --size 0",
        "lockstep resource create db --size 1GiB --replicas 9",
        "lockstep resource create db --size 1GiB --replicas 0",
        "lockstep resource create db --size 1GiB --protocol d",
        "lockstep resource create db --size 1GiB --block-size 1024",
        "lockstep resource create db --size 1GiB --resync-rate-max 63KiB",
        "lockstep resource create db --size 1GiB --log-extents 16385",
        "lockstep resource create db --size 1GiB --shards 9",
        "lockstep resource create db --size 1GiB --shards few",
        "lockstep resource set-options db --resync-rate-min 2TiB",
        "lockstep wait db --for ever",
        "lockstep wait db --for primary --timeout soon",
        "lockstep status --output xml",
    ] {
        let error = Cli::try_parse_from(line.split(' ')).expect_err(line);
        assert_eq!(error.exit_code(), 2, "{line}");
    }
}

#[test]
fn the_defaults_of_create_are_those_of_the_command_line() {
    let line = "lockstep resource create x --size 1MiB";
    let Command::Resource(Resource::Create(parsed)) =
        Cli::try_parse_from(line.split(' ')).unwrap().command
    else {
        unreachable!("it says create")
    };
    let default = crate::cli::Create::default();
    assert_eq!(parsed.options(), default.options());
    assert_eq!(parsed.options(), wire::Options::default());
    assert_eq!((parsed.replicas, parsed.shards, parsed.volumes), (2, Shards::Auto, 1));
    assert_eq!((default.replicas, default.shards, default.volumes), (2, Shards::Auto, 1));
    assert_eq!(parsed.block_bytes(), default.block_bytes());
}

#[test]
fn options_become_what_nodes_know() {
    let line = "lockstep resource create x --size 1MiB --protocol B --durability write-through \
                --on-no-quorum io-error --on-io-error pass-on --quorum off --read-policy striped \
                --after-split-brain discard-older \
                --in-sync-min 2 --data-checksum crc32c --resync-rate-max 100MiB/s --resync-rate-min 64KiB";
    let Command::Resource(Resource::Create(create)) =
        Cli::try_parse_from(line.split_whitespace()).unwrap().command
    else {
        unreachable!("it says create")
    };
    let options = create.options();
    assert_eq!(options.protocol, wire::Protocol::B);
    assert_eq!(options.durability, wire::Durability::WriteThrough);
    assert_eq!(options.on_no_quorum, wire::OnNoQuorum::IoError);
    assert_eq!(options.on_io_error, wire::OnIoError::PassOn);
    assert_eq!(options.quorum, wire::Quorum::Off);
    assert_eq!(options.after_split_brain, wire::AfterSplitBrain::DiscardOlder);
    assert_eq!(options.read_policy, wire::ReadPolicy::Striped);
    assert_eq!((options.in_sync_min, options.data_checksum), (2, true));
    assert_eq!((options.resync_rate_max, options.resync_rate_min), (100 << 20, 64 << 10));
}

#[test]
fn a_status_is_shown_as_a_table_without_colour_off_a_terminal() {
    let text = human(PLAIN, &views(&[("a", resource())]));
    assert_eq!(
        text,
        "disk  1GiB  primary a  epoch 5\n\
         \x20 NODE  STATE    ROLE     RESYNC\n\
         \x20 a     in-sync  primary\n\
         \x20 b     syncing  replica  [######------------------]  25%  1MiB of 4MiB  1MiB/s  3s left\n\
         \x20 c     absent   replica\n"
    );
}

#[test]
fn how_far_a_verify_is_and_who_a_fork_left_out_are_shown() {
    let mut view = resource();
    let mut verify = Verifying {
        state: VerifyProgress::Running,
        done_bytes: 256 << 20,
        total_bytes: 1 << 30,
        repaired_bytes: 8192,
        partial: false,
        at_ms: 0,
    };
    view.verify = Some(verify);
    view.fork = 1;
    view.left_out = vec!["c".to_owned(), "d".to_owned()];
    let mut other = resource();
    other.fork = 1;
    other.left_out = vec!["b".to_owned(), "e".to_owned()];
    let all = views(&[("a", view.clone()), ("b", other)]);
    let text = human(PLAIN, &all);
    assert!(
        text.contains(
            "\n  verify: compared 25% of 1GiB, some blocks in 8KiB differed and were repaired\n"
        ),
        "{text}"
    );
    // What any node remembers counts, but who is a member again is not missed.
    assert!(text.contains("left out when it was forced: d, e (lockstep explain disk"), "{text}");
    for (state, repaired_bytes, line) in [
        (VerifyProgress::Stopped, 0, Some("verify: stopped at 25% of 1GiB\n")),
        (
            VerifyProgress::Done,
            4096,
            Some("verify: done, some blocks in 4KiB differed and were repaired\n"),
        ),
        (VerifyProgress::Done, 0, None),
    ] {
        (verify.state, verify.repaired_bytes) = (state, repaired_bytes);
        view.verify = Some(verify);
        let text = human(PLAIN, &views(&[("a", view.clone())]));
        assert_eq!(text.contains("verify"), line.is_some(), "{text}");
        assert!(line.is_none_or(|line| text.contains(line)), "{text}");
    }
}

#[test]
fn colour_is_used_where_it_is_wanted() {
    let style = Style { colour: true, ..PLAIN };
    assert!(human(style, &views(&[("a", resource())])).contains("\x1b[31mabsent\x1b[0m"));
}

#[test]
fn requests_that_fail_for_want_of_quorum_are_not_said_to_wait() {
    let mut view = resource();
    view.quorum = false;
    view.suspended = Some("two voters are missing".to_owned());
    view.requests_fail = true;
    let found = crate::explain::explain(&view, &[], &[]);
    let text = human(PLAIN, &views(&[("a", view)]));
    assert!(text.contains("I/O errors (on-no-quorum = io-error): two voters"), "{text}");
    assert!(!text.contains("requests wait"), "{text}");
    assert!(found.iter().any(|finding| finding.what.contains("get I/O errors")), "{found:?}");
    assert!(found.iter().all(|finding| !finding.what.starts_with("Requests wait")), "{found:?}");
}

#[test]
fn requests_that_fail_because_an_operator_wants_it_are_told_by_that() {
    let mut view = resource();
    view.quorum = false;
    view.suspended = Some("two voters are missing".to_owned());
    let offered = crate::explain::explain(&view, &[], &[]);
    let remedy = "lockstep resource fail-waiting disk --node NODE";
    assert!(offered.iter().any(|finding| finding.remedy.contains(remedy)), "{offered:?}");
    (view.requests_fail, view.failed_by_operator) = (true, true);
    let event =
        Event { number: 1, at_ms: 0, resource: "alpha".to_owned(), status: Some(view.clone()) };
    let line = crate::view::event_line(&event, None);
    assert!(line.contains("requests get I/O errors (as an operator wants): two"), "{line}");
    let found = crate::explain::explain(&view, &[], &[]);
    assert!(found.iter().any(|finding| finding.what.contains("as an operator wants")), "{found:?}");
}

#[test]
fn trouble_is_named_in_the_table() {
    let mut view = resource();
    view.quorum = false;
    view.suspended = Some("two voters are missing".to_owned());
    view.fork = 1;
    view.warnings = vec!["links are not encrypted".to_owned()];
    let mut all = views(&[("a", view)]);
    all.silent.push(("c".to_owned(), "refused".to_owned()));
    let text = human(PLAIN, &all);
    for words in [
        "NO QUORUM",
        "requests wait: two voters are missing",
        "FORK 1",
        "note: a: links are not encrypted",
        "do not answer: c",
    ] {
        assert!(text.contains(words), "{words} is not in\n{text}");
    }
}

#[test]
fn why_a_copy_is_not_used_is_told_by_its_own_node_wherever_the_primary_is() {
    const WHY: &str = "its disk failed: No space left on device; make room on it";
    let (mut best, mut own) = (resource(), resource());
    best.replicas[2].state = ReplicaState::Detached;
    own.epoch = 4;
    own.replicas[2].state = ReplicaState::Detached;
    own.replicas[2].reason = Some(WHY.to_owned());
    let all = views(&[("a", best), ("c", own)]);
    let text = human(PLAIN, &all);
    assert_eq!(text.matches(&format!("note: c: {WHY}")).count(), 1, "{text}");
    let found = crate::explain::explain(&all.whole("disk").unwrap(), &[], &[]);
    assert!(found.iter().any(|finding| finding.what.contains(WHY) && finding.serious), "{found:?}");
}

#[test]
fn two_copies_that_are_not_used_for_the_same_reason_are_both_told_of() {
    const WHY: &str = "its disk went back in time";
    let mut both = resource();
    for replica in &mut both.replicas[1..3] {
        replica.state = ReplicaState::Behind;
        replica.reason = Some(WHY.to_owned());
    }
    let text = human(PLAIN, &views(&[("a", both)]));
    for node in ["b", "c"] {
        assert!(text.contains(&format!("note: {node}: {WHY}")), "{text}");
    }
}

#[test]
fn votes_on_disks_that_are_not_used_may_come_back_and_force_is_not_all_that_is_left() {
    let mut view = resource();
    view.quorum = false;
    for replica in &mut view.replicas[1..3] {
        replica.state = ReplicaState::Detached;
        (replica.connected, replica.vote_lost) = (true, true);
    }
    let text = format!("{:?}", crate::explain::explain(&view, &[], &[]));
    assert!(text.contains("bring the disks of b, c back"), "{text}");
    assert!(!text.contains("do not come back") && !text.contains("only `force`"), "{text}");
}

#[test]
fn a_primary_that_lives_and_has_no_copy_is_ended_before_another_node_is_forced() {
    let mut view = resource();
    view.quorum = false;
    view.primary = Some("b".to_owned());
    let text = format!("{:?}", crate::explain::explain(&view, &[], &[]));
    assert!(!text.contains("resource demote"), "{text}");
    view.replicas[1].state = ReplicaState::Diskless;
    view.replicas[1].resync = None;
    let text = format!("{:?}", crate::explain::explain(&view, &[], &[]));
    assert!(text.contains("lockstep resource demote disk   (first: b has no copy"), "{text}");
}

#[test]
fn the_newest_view_is_believed_and_the_primary_s_among_equals() {
    let mut old = resource();
    old.epoch = 4;
    old.primary = Some("c".to_owned());
    let mut other = resource();
    other.replicas[1].resync = None;
    let all = views(&[("c", old), ("b", other), ("a", resource())]);
    let best = all.best("disk").unwrap();
    assert_eq!(best.epoch, 5);
    assert!(best.replicas[1].resync.is_some(), "the primary knows how far the resync is");
    assert!(all.best("nothing").is_none());
}

#[test]
fn a_look_at_a_node_that_stands_still_takes_no_longer_than_is_left() {
    use crate::view::look_limit;
    let ms = std::time::Duration::from_millis;
    assert_eq!(look_limit(ms(2000)), ms(2000));
    assert_eq!(look_limit(ms(60_000)), ms(5000));
    assert_eq!(look_limit(ms(0)), ms(100), "one look is taken in any case");
}

#[test]
fn views_of_two_resources_of_one_name_are_kept_apart() {
    let (mut old, mut new) = (resource(), resource());
    (old.id, old.epoch) = ("000000000000000a".to_owned(), 9);
    (new.id, new.epoch) = ("000000000000000b".to_owned(), 2);
    let all = views(&[("a", new.clone()), ("b", new.clone()), ("c", old)]);
    assert_eq!(all.merged().resources.len(), 2);
    let refused = all.refuse_ambiguous("disk").unwrap_err();
    assert!(refused.message.contains("b (known to a, b)"), "{}", refused.message);
    let text = human(PLAIN, &all);
    assert!(text.contains("disk (id 000000000000000a)  1GiB"), "{text}");
    let own = all.only(&("disk".to_owned(), new.id.clone()));
    assert_eq!((own.best("disk"), own.all_of("disk").len()), (Some(&new), 2));
    assert!(own.refuse_ambiguous("disk").is_ok());
}

#[test]
fn waiting_for_in_sync_names_the_copy_that_is_missing() {
    let nodes = cluster(&["a", "b", "c"]);
    let all = views(&[("a", resource())]);
    let missing = reached(&all, &nodes, "disk", Wanted::InSync).unwrap_err();
    assert!(missing.contains("on b"), "{missing}");
    let mut view = resource();
    for replica in &mut view.replicas {
        (replica.state, replica.in_sync, replica.connected) = (ReplicaState::InSync, true, true);
    }
    for wanted in [Wanted::InSync, Wanted::Primary, Wanted::Healthy] {
        assert_eq!(reached(&views(&[("a", view.clone())]), &nodes, "disk", wanted), Ok(()));
    }
}

#[test]
fn a_primary_that_does_not_answer_is_none() {
    let nodes = cluster(&["a", "b", "c"]);
    let heard_of = views(&[("b", resource())]);
    let missing = reached(&heard_of, &nodes, "disk", Wanted::Primary).unwrap_err();
    assert!(missing.contains("primary a does not answer"), "{missing}");
    assert_eq!(reached(&views(&[("a", resource())]), &nodes, "disk", Wanted::Primary), Ok(()));
}

#[test]
fn requests_that_wait_are_not_healthy() {
    let nodes = cluster(&["a"]);
    let mut view = resource();
    view.replicas.truncate(1);
    view.suspended = Some("an operator holds requests back".to_owned());
    let all = views(&[("a", view)]);
    assert!(reached(&all, &nodes, "disk", Wanted::Healthy).is_err());
    assert!(reached(&all, &nodes, "disk", Wanted::Primary).is_err());
    assert_eq!(reached(&all, &nodes, "disk", Wanted::InSync), Ok(()));
}

#[test]
fn an_explanation_says_what_is_missing_and_what_to_do() {
    let silent = [("c".to_owned(), "refused".to_owned())];
    let findings = crate::explain::explain(&resource(), &silent, &[]);
    let of = |words: &str| findings.iter().find(|finding| finding.what.contains(words));
    assert!(of("a is primary").is_some_and(|finding| !finding.serious));
    assert!(of("25%").is_some_and(|finding| finding.waits_for.contains("3s")));
    let away = of("c does not answer").expect("it is said");
    for remedy in ["dev start c", "lockstep resource remove-replica disk --node c"] {
        assert!(away.remedy.contains(remedy), "{away:?}");
    }
    // Nobody asked it: only who answered is known to run.
    let said = |answering: &[String]| -> String {
        let findings = crate::explain::explain(&resource(), &[], answering);
        findings.iter().map(|finding| format!("{}\n", finding.what)).collect()
    };
    assert!(said(&[]).contains("c cannot be reached by the others"), "{}", said(&[]));
    let all = said(&["c".to_owned()]);
    assert!(all.contains("c runs, but the others"), "{all}");
    assert!(of("Only one reachable copy").is_some_and(|finding| finding.serious));
}

#[test]
fn of_a_split_brain_each_side_can_be_saved_by_the_way_to_it_that_needs_least() {
    let (tls, unix, plain) =
        ("nbds://192.0.2.2:10809/disk", "nbd+unix:///disk?socket=/b.sock", "nbd://192.0.2.2/disk");
    let cases = [
        (vec![tls, unix, plain], plain.to_owned(), "first saves what b has"),
        (vec![tls, unix], unix.to_owned(), "first saves what b has; on the machine of b"),
        (
            vec![tls],
            format!("{tls}?tls-certificates=DIR"),
            "first saves what b has; DIR: of `lockstep client-certificate`",
        ),
        (vec![], "nbd://ADDRESS/disk".to_owned(), "first saves what b has"),
    ];
    let split = wire::admin::SplitBrain {
        node: "b".to_owned(),
        node_id: 2,
        mine: "1".to_owned(),
        theirs: "2".to_owned(),
        mine_since_ms: None,
        theirs_since_ms: None,
        mine_changed_bytes: 0,
        theirs_changed_bytes: None,
        discarded: false,
    };
    for (urls, url, effect) in cases {
        let mut view = resource();
        view.volumes.truncate(1);
        view.volumes[0].nbd = urls.into_iter().map(str::to_owned).collect();
        let all = views(&[("a", resource()), ("b", view)]);
        let words = crate::view::split::words(&all, "disk", "a", &split);
        let saves = (format!("nbdcopy '{url}' disk-on-b.img"), effect.to_owned());
        assert_eq!(words.commands[0], saves);
    }
}

#[test]
fn a_node_that_was_just_killed_is_not_counted_on_though_the_others_have_not_missed_it() {
    let mut view = resource();
    for replica in &mut view.replicas {
        (replica.state, replica.in_sync, replica.connected) = (ReplicaState::InSync, true, true);
        replica.heard_ms_ago = (replica.node != "a").then_some(700);
    }
    let said = |silent: &[(String, String)]| -> String {
        let findings = crate::explain::explain(&view, silent, &[]);
        findings.iter().map(|finding| format!("{}\n", finding.what)).collect()
    };
    let all = said(&[]);
    assert!(all.contains("3 reachable copies (each heard in the last 700 ms)"), "{all}");
    let silent = [("c".to_owned(), "refused".to_owned())];
    let without = said(&silent);
    assert!(without.contains("c does not answer this program"), "{without}");
    assert!(without.contains("heard it 700 ms ago"), "{without}");
    assert!(
        without.contains("2 reachable copies") && !without.contains("3 reachable"),
        "{without}"
    );
    let mut views = views(&[("a", view.clone())]);
    views.silent = silent.to_vec();
    let nodes = cluster(&["a", "b", "c"]);
    let missing = reached(&views, &nodes, "disk", Wanted::InSync).unwrap_err();
    assert!(missing.contains("c does not answer"), "{missing}");
}

#[test]
fn an_event_tells_only_the_nodes_that_changed() {
    let mut before = resource();
    before.replicas[1].resync = None;
    let event = Event {
        number: 1,
        at_ms: 3_661_500,
        resource: "disk".to_owned(),
        status: Some(resource()),
    };
    let line = event_line(&event, Some(&before));
    assert_eq!(line, "01:01:01.500  disk  epoch 5  primary a  b syncing 25%\n");
    let gone = Event { status: None, ..event };
    assert_eq!(event_line(&gone, None), "01:01:01.500  disk  is gone\n");
}

#[test]
fn a_bar_never_runs_over() {
    assert_eq!(bar(9, 3, 0, None), "[########################] 100%  9B of 3B");
    assert_eq!(bar(0, 0, 0, None), "[########################] 100%  0B of 0B");
}

#[test]
fn codes_of_the_command_line_ascend_and_clash_with_no_node_s() {
    assert!(KINDS.is_sorted_by(|a, b| a.code() < b.code()));
    let page = include_str!("../../../docs/cli.md");
    for kind in KINDS {
        assert!(kind.code().starts_with("LS-09"), "{}", kind.code());
        assert!(wire::admin::codes::find(kind.code()).is_none(), "{}", kind.code());
        assert!(page.contains(&kind.row()), "docs/cli.md lacks this row:\n{}", kind.row());
    }
}

#[test]
fn the_file_of_a_node_names_all_its_peers_and_its_own_address() {
    let node = |id: u16, name: &str| {
        let address = std::net::IpAddr::from([127, 77, 0, u8::try_from(id).unwrap()]);
        let listen = std::net::SocketAddr::new(address, 7789);
        let nbd = std::net::SocketAddr::new(address, 10809);
        NodeEntry { id, name: name.to_owned(), address, listen, nbd }
    };
    let nodes = vec![node(1, "a"), node(2, "b")];
    let file = DevCluster::new_file(0xbeef, crate::cli::Store::Memory, nodes.clone());
    let text = crate::dev::up::settings(&file, &nodes[0]);
    for line in [
        "cluster = \"000000000000beef\"",
        "name = \"a\"",
        "listen = \"127.77.0.1:7789\"",
        "nbd = \"127.77.0.1:10809\"",
        "allow_memory_store = true",
        "addresses = [\"127.77.0.2:7789\"]",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    assert_eq!(text.matches("[[peers]]").count(), 1);
}

#[test]
fn colour_words_are_known() {
    let cli = Cli::try_parse_from(["lockstep", "--color", "never", "status"]).unwrap();
    assert_eq!(cli.global.color, Colour::Never);
    assert!(!Style::of(&cli.global).colour);
}
