//! What happens in a search, in words.
//!
//! Not here: what it does (`world`).

use super::super::rules::short;
use super::{BEGIN, Event, Item, Plain, World};
use wire::MemberMessage;

impl World {
    /// What `event` is, in words, before it happens.
    pub(in crate::check) fn tell(&self, event: Event) -> String {
        let at = self.age();
        match event {
            Event::Plain(plain) => format!("{at:>6}  {}", self.tell_plain(plain)),
            Event::Die { node, plain, outputs, durable, how, long } => format!(
                "{at:>6}  ** {how:?} of node {} ends{} after {outputs} of what follows from [{}]; a record on its way is {}",
                node,
                if long { " for long" } else { "" },
                self.tell_plain(plain),
                if durable { "durable" } else { "lost" },
            ),
            Event::Cut { a, b, long } => {
                let long = if long { " for long" } else { "" };
                format!("{at:>6}  ** the session of {a} and {b} ends{long}")
            }
            Event::Hold { thing, long } => {
                let long = if long { "for long" } else { "until all else is at rest" };
                format!("{at:>6}  ** {thing:?} stands still {long}")
            }
        }
    }

    fn tell_plain(&self, plain: Plain) -> String {
        match plain {
            Plain::Deliver(at) => {
                let packet = &self.queue[at];
                let what = match &*packet.item {
                    Item::Up(session) => format!("session {} begins", session.0),
                    Item::Down(session) => format!("session {} ends", session.0),
                    Item::Frame(_, message) => tell_message(message),
                };
                format!("{} -> {}  {what}", packet.from, packet.to)
            }
            Plain::Wish(at) => format!("wish: {:?}", self.scenario.wishes[at].1),
            Plain::Stored(node) => format!("node {node}: its record is durable"),
            Plain::Wake(node) => format!("node {node}: its timer rings"),
            Plain::Restart(node) => format!("node {node} starts"),
            Plain::Connect(a, b) => format!("{a} and {b} meet"),
            Plain::Write(node) => format!("node {node} acknowledges write {}", self.writes),
            Plain::Release => "what stood still goes on".to_owned(),
            Plain::Advance => format!("time goes on to {}", self.next_time() - BEGIN),
        }
    }
}

fn tell_message(message: &MemberMessage) -> String {
    match message {
        MemberMessage::Accept { ballot, configuration } => {
            format!("Accept {ballot} {}", short(configuration))
        }
        MemberMessage::Learn { ballot, configuration } => {
            format!("Learn {ballot} {}", short(configuration))
        }
        MemberMessage::Promise { ballot, accepted, .. } => {
            let accepted = accepted.as_ref().map(|(at, value)| format!("{at} {}", short(value)));
            format!("Promise {ballot} accepted {accepted:?}")
        }
        MemberMessage::Hello { known, voter, incarnation, .. } => {
            let known = known.as_ref().map(|(at, value)| format!("{at} {}", short(value)));
            format!("Hello voter {} incarnation {} knows {known:?}", voter.0, incarnation.0)
        }
        MemberMessage::Heartbeat { ballot, epoch, sent, .. } => {
            format!("Heartbeat {ballot} epoch {epoch} sent {}", sent.0)
        }
        other => crate::machine::brief(other),
    }
}
