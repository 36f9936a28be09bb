//! Hosts that have to prove who they are, on each of their queues.

use super::{HOST, NQN, Pair, all_digests, subsystem};
use crate::connection::CloseReason;
use crate::host::Host;
use crate::number::AUTH_REQUIRED;
use crate::pdu::Digests;
use crate::subsystem::Service;
use crate::{
    Credentials, Examiner, Group, Hash, Names, ProofFault, Prover, Reason, Secret, Seed, Status,
};
use alloc::vec::Vec;

fn secret(number: u8) -> Secret {
    Secret::new(&[number; 32], None).unwrap()
}

fn names() -> Names {
    Names { host: HOST.into(), subsystem: NQN.into() }
}

/// A queue whose host has to prove that it knows secret 1.
fn queue(seed: u64, digests: Digests, queue: u16) -> Pair {
    let mut pair = Pair::new(seed, digests, Service::Volumes(subsystem()));
    let credentials = Credentials { host: [secret(1)].into(), controller: Some(secret(2)) };
    pair.examiner = Some(Examiner::new(names(), credentials, Seed::new([3; 32])));
    assert_eq!(pair.connect(queue), (Status::SUCCESS, 0x101 | AUTH_REQUIRED));
    assert!(!pair.connection.is_connected(), "not before it has proved");
    pair
}

fn prover(number: u8, controller: Option<u8>) -> Prover {
    let prover = Prover::new(names(), secret(number), controller.map(secret), Seed::new([4; 32]));
    prover.offering(&[Hash::Sha256], &[Group::Null])
}

impl Pair {
    fn say(&mut self, message: &[u8]) {
        let (status, ..) = self.ask(|host, send| host.prove(message, send));
        assert_eq!(status, Status::SUCCESS);
    }

    fn hear(&mut self) -> Vec<u8> {
        let (status, _, message) = self.ask(Host::await_proof);
        assert_eq!(status, Status::SUCCESS);
        message
    }

    fn prove(&mut self, mut prover: Prover) -> Result<(), ProofFault> {
        self.say(&prover.begin());
        let reply = prover.reply(&self.hear())?;
        self.say(&reply);
        if let Some(last) = prover.finish(&self.hear())? {
            self.say(&last);
        }
        Ok(())
    }
}

#[test]
fn a_host_that_proves_who_it_is_is_served() {
    for (seed, digests) in all_digests().enumerate() {
        for controller in [None, Some(2)] {
            let mut pair = queue(seed as u64, digests, 0);
            assert_eq!(pair.prove(prover(1, controller)), Ok(()));
            assert!(pair.connection.is_connected() && pair.proved == [secret(1)]);
            let (status, ..) = pair.ask(|host, send| host.configure(0x46_0001, send));
            assert!(status == Status::SUCCESS && pair.switched);
            let mut pair = queue(seed as u64, digests, 1);
            assert_eq!(pair.prove(prover(1, controller)), Ok(()));
            let (status, ..) =
                pair.ask(|host, send| host.write(1, (0, 8), false, &[7; 4096], send));
            assert_eq!(status, Status::SUCCESS);
        }
    }
}

#[test]
fn nothing_else_is_done_for_a_host_that_has_not() {
    let mut pair = queue(1, Digests { header: true, data: true }, 0);
    let refused = (Status::AUTH_REQUIRED, 0, Vec::new());
    assert_eq!(pair.ask(|host, send| host.property(0, true, send)), refused);
    assert_eq!(pair.ask(|host, send| host.configure(0x46_0001, send)), refused);
    assert_eq!(pair.ask(|host, send| host.identify(1, 0, send)), refused);
    assert_eq!(pair.ask(Host::keep_alive), refused);
    assert_eq!(pair.ask(Host::await_event), refused);
    assert!(!pair.switched);
    assert_eq!(pair.prove(prover(1, None)), Ok(()), "it may still");
    let mut pair = queue(2, Digests { header: true, data: true }, 1);
    assert_eq!(pair.ask(|host, send| host.write(1, (0, 8), false, &[7; 4096], send)), refused);
    assert_eq!(pair.ask(|host, send| host.write_later(1, (0, 8), 9, send)), refused);
    assert_eq!(pair.ask(|host, send| host.read(1, (0, 8), 9, send)), refused);
    assert_eq!(pair.ask(|host, send| host.flush(1, send)), refused);
    assert_eq!(pair.ask(|host, send| host.deallocate(1, &[(0, 8)], send)), refused);
    assert!(pair.requests.is_empty() && pair.connection.open_count() == 0);
    assert!(pair.volumes[&1].iter().all(|&byte| byte == 0));
}

#[test]
fn a_host_that_fails_is_told_why_and_the_connection_ends() {
    for (number, controller, fault) in [
        (5, None, ProofFault::Refused(Reason::Failed)),
        (5, Some(2), ProofFault::Refused(Reason::Failed)),
    ] {
        let mut pair = queue(1, Digests::default(), 1);
        assert_eq!(pair.prove(prover(number, controller)), Err(fault));
        assert_eq!(pair.closed, Some(CloseReason::Unproved(Reason::Failed)));
        assert!(pair.proved.is_empty() && !pair.connection.is_connected());
    }
    // It does not believe the controller, and says so.
    let mut pair = queue(1, Digests::default(), 0);
    let stranger = prover(1, Some(5));
    let refusal = stranger.refusal(Reason::Failed);
    assert_eq!(pair.prove(stranger), Err(ProofFault::Refuses(Reason::Failed)));
    pair.say(&refusal);
    assert_eq!(pair.closed, Some(CloseReason::Unproved(Reason::Failed)));
    // It asks before it has offered anything.
    let mut pair = queue(1, Digests::default(), 0);
    assert_eq!(pair.hear()[..2], [0, 0xf1]);
    assert_eq!(pair.closed, Some(CloseReason::Unproved(Reason::Message)));
}

#[test]
fn a_host_may_prove_again_and_is_not_served_if_it_fails_then() {
    let mut pair = queue(1, Digests::default(), 1);
    assert_eq!(pair.prove(prover(1, None)), Ok(()));
    assert_eq!(pair.prove(prover(1, Some(2))), Ok(()));
    assert_eq!(pair.ask(|host, send| host.flush(1, send)).0, Status::SUCCESS);
    let mut stranger = prover(5, None);
    pair.say(&stranger.begin());
    assert_eq!(pair.ask(|host, send| host.flush(1, send)).0, Status::SUCCESS, "meanwhile");
    let challenge = pair.hear();
    pair.say(&stranger.reply(&challenge).unwrap());
    assert_eq!(pair.ask(|host, send| host.flush(1, send)).0, Status::AUTH_REQUIRED);
    pair.hear();
    assert_eq!(pair.closed, Some(CloseReason::Unproved(Reason::Failed)));
}

#[test]
fn commands_of_a_proof_that_cannot_be_are_refused_and_change_nothing() {
    let mut pair = queue(1, Digests::default(), 0);
    let offer = prover(1, None).begin();
    type Spoil = fn(&mut [u8]);
    let spoils: [(Spoil, Status); 5] = [
        // Of the command in its PDU, which begins with 8 bytes of its own.
        (|pdu| pdu[8 + 43] = 0xea, Status::INVALID_FIELD),
        (|pdu| pdu[8 + 41] = 0, Status::INVALID_FIELD),
        (|pdu| pdu[8 + 44] = 0, Status::INVALID_FIELD),
        (|pdu| pdu[8 + 44] += 1, Status::SGL_LENGTH),
        (|pdu| pdu[8 + 24] = 1, Status::INVALID_SGL),
    ];
    for (spoil, expected) in spoils {
        let (status, ..) = pair.ask(|host, send| {
            let (from, id) = (send.len(), host.prove(&offer, send));
            spoil(&mut send[from..]);
            id
        });
        assert_eq!(status, expected);
    }
    let (status, ..) = pair.ask(|host, send| {
        let (from, id) = (send.len(), host.await_proof(send));
        send[from + 8 + 39] = 0x01;
        id
    });
    assert_eq!(status, Status::INVALID_SGL);
    assert_eq!(pair.prove(prover(1, None)), Ok(()));
}

#[test]
fn where_no_proof_is_required_there_is_nobody_to_hear_one() {
    let mut pair = super::admin(1, Digests::default());
    let offer = prover(1, None).begin();
    let (status, ..) = pair.ask(|host, send| host.prove(&offer, send));
    assert_eq!(status, Status::INVALID_OPCODE);
    let mut pair = super::io(1, Digests::default());
    assert_eq!(pair.ask(Host::await_proof).0, Status::INVALID_OPCODE);
}
