//! The handshake.

use super::{
    CLIENT_FLAGS, DISK_BYTES, Host, asked, goal, greeted, info, option, option_replies, talk,
};
use crate::number::*;
use crate::{Client, ClientEvent, CloseReason, Event, Goal, Ready, Refusal, Server, Tls, Want};
use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

/// The data of `INFO` and `GO`.
fn info_data(name: &str, kinds: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&(kinds.len() as u16).to_be_bytes());
    kinds.iter().for_each(|kind| data.extend_from_slice(&kind.to_be_bytes()));
    data
}

/// The data of the metadata context options.
fn meta_data(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&(queries.len() as u32).to_be_bytes());
    for query in queries {
        data.extend_from_slice(&(query.len() as u32).to_be_bytes());
        data.extend_from_slice(query.as_bytes());
    }
    data
}

#[test]
fn greeting_is_the_published_one() {
    let mut send = Vec::new();
    let server = Server::new(Tls::Absent, &mut send);
    assert_eq!(send, b"NBDMAGICIHAVEOPT\x00\x03");
    assert_eq!(server.wants(), Want::Header { bytes: 4 });
}

#[test]
fn client_uses_an_export_with_everything_it_wished_for_at_any_step() {
    for step in [1, 2, 3, 7, 19, 20, 21, usize::MAX] {
        let mut host = Host::new(Tls::Absent, vec![info("other"), info("disk")]);
        host.step = step;
        let mut client = Client::new(goal("disk", true, true), false);
        let expected = Ready {
            size_bytes: DISK_BYTES as u64,
            flags: FLAG_HAS_FLAGS
                | FLAG_SEND_FLUSH
                | FLAG_SEND_FUA
                | FLAG_SEND_TRIM
                | FLAG_SEND_WRITE_ZEROES
                | FLAG_SEND_DF
                | FLAG_CAN_MULTI_CONN,
            block_bytes_min: 512,
            block_bytes_preferred: 4096,
            payload_bytes_max: 32 << 20,
            name: String::from("disk"),
            description: String::from("a disk for tests"),
            structured: true,
            allocation: Some(1),
        };
        assert_eq!(talk(&mut client, &mut host), [ClientEvent::Ready(expected)]);
        let enters: Vec<bool> = host
            .events
            .iter()
            .map(|event| matches!(event, Event::Lookup { enters: true, .. }))
            .collect();
        assert_eq!(enters, [false, true], "one lookup for the context, one that enters");
    }
}

#[test]
fn client_without_wishes_gets_simple_replies_and_no_flag_that_needs_more() {
    let mut host = Host::new(Tls::Absent, vec![info("disk")]);
    let mut client = Client::new(goal("disk", false, false), false);
    let events = talk(&mut client, &mut host);
    let [ClientEvent::Ready(ready)] = &events[..] else { panic!("{events:?}") };
    assert!(!ready.structured && ready.allocation.is_none());
    assert_eq!(ready.flags & FLAG_SEND_DF, 0);
    let zeroes = ready.flags ^ ready.flags_without_zeroes();
    assert_eq!(zeroes, FLAG_SEND_WRITE_ZEROES, "that one, and no other");
}

#[test]
fn read_only_export_offers_nothing_that_writes() {
    let mut export = info("disk");
    (export.read_only, export.fast_zero, export.rotational) = (true, true, true);
    let mut host = Host::new(Tls::Absent, vec![export]);
    let mut client = Client::new(goal("disk", false, false), false);
    let events = talk(&mut client, &mut host);
    let [ClientEvent::Ready(ready)] = &events[..] else { panic!("{events:?}") };
    assert_eq!(ready.flags & (FLAG_READ_ONLY | FLAG_ROTATIONAL), FLAG_READ_ONLY | FLAG_ROTATIONAL);
    let writing = FLAG_SEND_TRIM | FLAG_SEND_WRITE_ZEROES | FLAG_SEND_FAST_ZERO;
    assert_eq!(ready.flags & writing, 0);
}

#[test]
fn client_lists_every_export_with_its_description() {
    for step in [1, usize::MAX] {
        let mut host = Host::new(Tls::Absent, vec![info("disk"), info("übung")]);
        host.step = step;
        let mut client = Client::new(Goal::List, false);
        let entry = |name: &str| ClientEvent::Export {
            name: name.to_owned(),
            description: String::from("a disk for tests"),
        };
        let events = talk(&mut client, &mut host);
        assert_eq!(events, [entry("disk"), entry("übung"), ClientEvent::Listed]);
        assert_eq!(host.closed, Some(CloseReason::ClientDone));
    }
}

#[test]
fn list_that_would_fill_memory_is_refused_as_too_big() {
    let mut host = greeted(Tls::Absent);
    let fed = host.server.feed(&option(OPT_LIST, &[]), &mut host.send);
    assert!(fed.consumed == 16 && fed.event.is_none() || fed.event == Some(Event::List));
    let name = "n".repeat(4096);
    host.server.exports((0..1000).map(|_| (name.as_str(), "")), &mut host.send);
    assert!(host.send.len() < LIST_BYTES_MAX + 10_000);
    let replies = option_replies(&host.sent());
    assert_eq!(replies.last().unwrap().1, REP_ERR_TOO_BIG);
    assert_eq!(asked(&mut host, OPT_STRUCTURED_REPLY, &[]), REP_ACK, "haggling goes on");
}

#[test]
fn unknown_export_is_refused_with_words_and_haggling_goes_on() {
    let mut host = Host::new(Tls::Absent, vec![info("disk")]);
    let mut client = Client::new(goal("nothing", true, false), false);
    let message = String::from("no such disk");
    let events = talk(&mut client, &mut host);
    assert_eq!(events, [ClientEvent::Refused { reply: REP_ERR_UNKNOWN, message }]);
    assert_eq!(asked(&mut host, OPT_GO, &info_data("disk", &[])), REP_ACK);
    assert!(host.server.transmits());
}

#[test]
fn each_refusal_has_its_reply_and_a_long_message_is_cut_between_characters() {
    let cases = [
        (Refusal::Unknown, REP_ERR_UNKNOWN),
        (Refusal::Policy, REP_ERR_POLICY),
        (Refusal::TlsRequired, REP_ERR_TLS_REQD),
        (Refusal::ShuttingDown, REP_ERR_SHUTDOWN),
    ];
    for (refusal, expected) in cases {
        let mut send = Vec::new();
        let mut server = Server::new(Tls::Offered, &mut send);
        let mut bytes = CLIENT_FLAGS.to_vec();
        bytes.extend_from_slice(&option(OPT_GO, &info_data("disk", &[])));
        let mut used = 0;
        while server.wants() != Want::Answer {
            used += server.feed(&bytes[used..], &mut send).consumed;
        }
        assert_eq!(server.feed(b"more", &mut send).consumed, 0, "an answer is due first");
        send.clear();
        let message = "ö".repeat(1000);
        assert_eq!(server.refuse(refusal, &message, &mut send), None);
        let replies = option_replies(&send);
        assert_eq!((replies[0].0, replies[0].1), (OPT_GO, expected));
        assert_eq!(replies[0].2, "ö".repeat(256).as_bytes());
    }
}

#[test]
fn export_name_enters_with_and_without_zeroes_and_ends_the_connection_when_refused() {
    for (flags, length) in [([0, 0, 0, 0], 10 + 124), ([0, 0, 0, 1], 10 + 124), ([0, 0, 0, 3], 10)]
    {
        let mut host = Host::new(Tls::Absent, vec![info("disk")]);
        host.send.clear();
        host.receive(&flags);
        host.receive(&option(OPT_EXPORT_NAME, b"disk"));
        let sent = host.sent();
        assert_eq!(sent.len(), length);
        assert_eq!(sent[..8], (DISK_BYTES as u64).to_be_bytes());
        assert!(host.server.transmits());
    }
    let long = vec![b'x'; NAME_BYTES_MAX + 1];
    for name in [&b"nothing"[..], b"nul\0", b"\xff\xfe", b"", &long] {
        let mut host = greeted(Tls::Absent);
        host.receive(&option(OPT_EXPORT_NAME, name));
        assert_eq!(host.closed, Some(CloseReason::ExportRefused));
        assert_eq!(host.sent(), [], "there is no way to say no");
        assert_eq!(host.server.wants(), Want::Nothing);
    }
}

#[test]
fn info_tells_what_was_asked_for_and_does_not_enter() {
    let mut host = greeted(Tls::Absent);
    host.receive(&option(OPT_INFO, &info_data("disk", &[INFO_NAME, INFO_DESCRIPTION, 77])));
    let replies = option_replies(&host.sent());
    let kinds: Vec<u16> = replies
        .iter()
        .filter(|reply| reply.1 == REP_INFO)
        .map(|reply| u16::from(reply.2[1]))
        .collect();
    assert_eq!(kinds, [INFO_EXPORT, INFO_BLOCK_SIZE, INFO_NAME, INFO_DESCRIPTION]);
    assert_eq!(replies.last().unwrap().1, REP_ACK);
    host.receive(&option(OPT_INFO, &info_data("disk", &[])));
    assert_eq!(option_replies(&host.sent()).len(), 3, "export, sizes, end");
    assert!(!host.server.transmits());
}

#[test]
fn longest_name_of_the_protocol_fits() {
    let name = "n".repeat(NAME_BYTES_MAX);
    let mut host = greeted(Tls::Absent);
    host.exports.push(info(&name));
    assert_eq!(asked(&mut host, OPT_INFO, &info_data(&name, &[INFO_NAME; 8])), REP_ACK);
    let longer = "n".repeat(NAME_BYTES_MAX + 1);
    assert_eq!(asked(&mut host, OPT_INFO, &info_data(&longer, &[])), REP_ERR_INVALID);
}

#[test]
fn malformed_info_and_context_requests_are_invalid_and_haggling_goes_on() {
    let mut host = greeted(Tls::Absent);
    assert_eq!(asked(&mut host, OPT_STRUCTURED_REPLY, &[]), REP_ACK);
    let good = info_data("disk", &[INFO_NAME]);
    let mut more = good.clone();
    more.push(0);
    let name_too_long = [&u32::MAX.to_be_bytes()[..], b"disk\0\0"].concat();
    let count_too_large = [&4_u32.to_be_bytes()[..], b"disk\0\x09"].concat();
    let not_text = [&1_u32.to_be_bytes()[..], b"\xff\0\0"].concat();
    for data in [&good[..good.len() - 1], &more, &name_too_long, &count_too_large, &not_text, &[]] {
        assert_eq!(asked(&mut host, OPT_GO, data), REP_ERR_INVALID, "{data:?}");
        assert_eq!(asked(&mut host, OPT_INFO, data), REP_ERR_INVALID, "{data:?}");
    }
    let with_nul = info_data("di\0k", &[]);
    assert_eq!(asked(&mut host, OPT_GO, &with_nul), REP_ERR_INVALID, "no string holds NUL");
    let good = meta_data("disk", &["base:allocation"]);
    let mut more = good.clone();
    more.push(0);
    let many = [&4_u32.to_be_bytes()[..], b"disk\xff\xff\xff\xff"].concat();
    for data in [&good[..good.len() - 1], &more, &many, &[]] {
        assert_eq!(asked(&mut host, OPT_SET_META_CONTEXT, data), REP_ERR_INVALID, "{data:?}");
        assert_eq!(asked(&mut host, OPT_LIST_META_CONTEXT, data), REP_ERR_INVALID, "{data:?}");
    }
    assert_eq!(asked(&mut host, OPT_GO, &info_data("disk", &[])), REP_ACK);
}

#[test]
fn contexts_need_structured_replies_and_follow_the_query_rules() {
    let mut host = greeted(Tls::Absent);
    let all = meta_data("disk", &["base:allocation"]);
    assert_eq!(asked(&mut host, OPT_LIST_META_CONTEXT, &all), REP_ERR_INVALID);
    assert_eq!(asked(&mut host, OPT_SET_META_CONTEXT, &all), REP_ERR_INVALID);
    assert_eq!(asked(&mut host, OPT_STRUCTURED_REPLY, &[]), REP_ACK);
    // Queries, and whether they find the context when listing, and when selecting.
    let cases: [(&[&str], bool, bool); 6] = [
        (&[], true, false),
        (&["base:"], true, false),
        (&["base:allocation"], true, true),
        (&["x-other:thing", "base:allocation"], true, true),
        (&["base:other", "qemu:"], false, false),
        (&["nocolon"], false, false),
    ];
    for (queries, listed, selected) in cases {
        for (number, found) in [(OPT_LIST_META_CONTEXT, listed), (OPT_SET_META_CONTEXT, selected)] {
            host.receive(&option(number, &meta_data("disk", queries)));
            let replies = option_replies(&host.sent());
            assert_eq!(replies.len(), 1 + usize::from(found), "{queries:?}");
            if found {
                assert_eq!(replies[0].1, REP_META_CONTEXT);
                assert_eq!(&replies[0].2[4..], b"base:allocation");
            }
            assert_eq!(replies.last().unwrap().1, REP_ACK);
        }
    }
    let unknown = meta_data("nothing", &["base:allocation"]);
    assert_eq!(asked(&mut host, OPT_SET_META_CONTEXT, &unknown), REP_ERR_UNKNOWN);
    host.exports[0].allocation = false;
    host.receive(&option(OPT_LIST_META_CONTEXT, &all));
    assert_eq!(option_replies(&host.sent()).len(), 1, "an export without it does not list it");
}

#[test]
fn context_counts_only_for_the_export_it_was_selected_for_and_only_the_last_selection() {
    let select = |host: &mut Host, name: &str| {
        assert_eq!(
            asked(host, OPT_SET_META_CONTEXT, &meta_data(name, &["base:allocation"])),
            REP_ACK
        );
    };
    let enters_with_allocation = |prepare: &dyn Fn(&mut Host)| {
        let mut host = greeted(Tls::Offered);
        assert_eq!(asked(&mut host, OPT_STRUCTURED_REPLY, &[]), REP_ACK);
        prepare(&mut host);
        assert_eq!(asked(&mut host, OPT_GO, &info_data("disk", &[])), REP_ACK);
        host.server.served.allocation
    };
    assert!(enters_with_allocation(&|host| select(host, "disk")));
    assert!(!enters_with_allocation(&|host| select(host, "other")));
    assert!(!enters_with_allocation(&|host| {
        select(host, "disk");
        host.exports[0].allocation = false;
    }));
    assert!(!enters_with_allocation(&|host| {
        select(host, "disk");
        asked(host, OPT_SET_META_CONTEXT, b"rubbish");
    }));
    assert!(!enters_with_allocation(&|host| {
        select(host, "disk");
        asked(host, OPT_SET_META_CONTEXT, &vec![0; OPTION_BYTES_MAX as usize + 1]);
    }));
    assert!(!enters_with_allocation(&|host| {
        select(host, "disk");
        assert_eq!(asked(host, OPT_STARTTLS, &[]), REP_ACK);
        host.server.tls_started();
    }));
}

#[test]
fn tls_is_agreed_on_and_forgets_what_was_agreed_in_the_clear() {
    for (tls, step) in [(Tls::Offered, 1), (Tls::Required, usize::MAX)] {
        let mut host = Host::new(tls, vec![info("disk")]);
        host.step = step;
        let mut client = Client::new(goal("disk", true, true), true);
        let events = talk(&mut client, &mut host);
        assert_eq!(events[0], ClientEvent::StartTls);
        assert!(matches!(&events[1], ClientEvent::Ready(ready) if ready.structured));
    }
    let mut host = greeted(Tls::Offered);
    assert_eq!(asked(&mut host, OPT_STRUCTURED_REPLY, &[]), REP_ACK);
    assert_eq!(asked(&mut host, OPT_STARTTLS, &[]), REP_ACK);
    host.server.tls_started();
    assert!(!host.server.structured());
    assert_eq!(asked(&mut host, OPT_STARTTLS, &[]), REP_ERR_INVALID, "TLS runs already");
}

#[test]
fn bytes_behind_starttls_are_left_for_tls() {
    let mut host = greeted(Tls::Offered);
    let mut bytes = option(OPT_STARTTLS, &[]);
    bytes.extend_from_slice(&option(OPT_GO, &info_data("disk", &[])));
    host.receive(&bytes);
    assert_eq!(host.events, [Event::StartTls]);
    assert_eq!(host.inbox.len(), bytes.len() - 16, "nothing in the clear is taken after it");
    assert_eq!(host.server.wants(), Want::Tls);
    assert_eq!(host.server.feed(&bytes, &mut host.send).consumed, 0);
}

#[test]
fn server_that_requires_tls_refuses_every_other_option_until_then() {
    let mut host = greeted(Tls::Required);
    for number in [OPT_LIST, OPT_INFO, OPT_GO, OPT_STRUCTURED_REPLY, 9, 10, 11, 4_000_000] {
        let data = info_data("disk", &[]);
        assert_eq!(asked(&mut host, number, &data), REP_ERR_TLS_REQD, "option {number}");
    }
    assert_eq!(asked(&mut host, OPT_STARTTLS, b"x"), REP_ERR_INVALID);
    assert_eq!(host.events, [], "nothing was looked up");
    host.receive(&option(OPT_EXPORT_NAME, b"disk"));
    assert_eq!(host.closed, Some(CloseReason::ExportRefused));

    let mut host = greeted(Tls::Required);
    assert_eq!(asked(&mut host, OPT_ABORT, &[]), REP_ACK);
    assert_eq!(host.closed, Some(CloseReason::ClientDone));
}

#[test]
fn server_without_tls_says_so() {
    let mut host = Host::new(Tls::Absent, vec![info("disk")]);
    let mut client = Client::new(goal("disk", false, false), true);
    let events = talk(&mut client, &mut host);
    assert!(
        matches!(&events[..], [ClientEvent::Refused { reply: REP_ERR_POLICY, message }] if !message.is_empty())
    );
}

#[test]
fn unknown_options_and_options_with_data_they_do_not_have_are_refused_after_the_data() {
    let mut host = greeted(Tls::Offered);
    host.receive(&option(4, b"data")[..18]);
    assert_eq!(host.sent(), [], "the data comes first");
    assert_eq!(host.server.wants(), Want::Header { bytes: 2 });
    host.receive(b"ta");
    assert_eq!(option_replies(&host.sent())[0].1, REP_ERR_UNSUP);
    assert_eq!(asked(&mut host, 11, &[]), REP_ERR_UNSUP, "extended headers");
    assert_eq!(asked(&mut host, u32::MAX, &vec![0; 1 << 20]), REP_ERR_UNSUP);
    for number in [OPT_LIST, OPT_STARTTLS, OPT_STRUCTURED_REPLY] {
        assert_eq!(asked(&mut host, number, b"x"), REP_ERR_INVALID);
    }
    let large = vec![0; OPTION_BYTES_MAX as usize + 1];
    assert_eq!(asked(&mut host, OPT_GO, &large), REP_ERR_TOO_BIG);
    assert_eq!(asked(&mut host, OPT_ABORT, b"ignored"), REP_ACK);
    assert_eq!(host.closed, Some(CloseReason::ClientDone));
}

#[test]
fn client_that_breaks_the_handshake_is_dropped_with_the_reason() {
    let dropped = |bytes: &[u8]| {
        let mut host = Host::new(Tls::Absent, vec![info("disk")]);
        host.receive(bytes);
        assert_eq!(host.server.wants(), Want::Nothing);
        assert_eq!(host.server.feed(b"more", &mut Vec::new()).consumed, 0);
        host.closed.unwrap()
    };
    assert_eq!(dropped(&[0, 0, 0, 4]), CloseReason::UnknownClientFlags);
    assert_eq!(dropped(&[0x80, 0, 0, 3]), CloseReason::UnknownClientFlags);
    assert_eq!(dropped(&[&CLIENT_FLAGS[..], &[7; 16]].concat()), CloseReason::BadOptionMagic);
    let list = option(OPT_LIST, &[]);
    assert_eq!(dropped(&[&[0, 0, 0, 2][..], &list].concat()), CloseReason::NotFixedNewstyle);
    let mut huge = option(4, &[]);
    huge[12..].copy_from_slice(&(OPTION_SKIP_BYTES_MAX + 1).to_be_bytes());
    assert_eq!(dropped(&[&CLIENT_FLAGS[..], &huge].concat()), CloseReason::OptionTooLarge);
    let mut many = CLIENT_FLAGS.to_vec();
    (0..=OPTIONS_MAX).for_each(|_| many.extend_from_slice(&list));
    assert_eq!(dropped(&many), CloseReason::TooManyOptions);
}

#[test]
fn stopping_server_refuses_options_but_lets_the_client_leave() {
    let mut host = greeted(Tls::Offered);
    host.server.shut_down();
    assert_eq!(asked(&mut host, OPT_GO, &info_data("disk", &[])), REP_ERR_SHUTDOWN);
    assert_eq!(asked(&mut host, OPT_LIST, &[]), REP_ERR_SHUTDOWN);
    assert_eq!(asked(&mut host, OPT_ABORT, &[]), REP_ACK);
}

#[test]
#[should_panic(expected = "minimum block size")]
fn export_whose_block_size_breaks_the_protocol_is_our_bug() {
    let mut export = info("disk");
    export.block_bytes_min = 1000;
    let mut host = Host::new(Tls::Absent, vec![export]);
    let mut client = Client::new(goal("disk", false, false), false);
    talk(&mut client, &mut host);
}
