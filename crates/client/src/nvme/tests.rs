//! Nodes that are made up.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use ::nvme::Secret;

use super::{NvmeIdentity, NvmeVolume};
use crate::ANSWER_LIMIT;

/// Lets a host connect without a proof: the answers to setup and connect, as the NVMe/TCP transport lays them out.
fn let_in(mut stream: TcpStream) {
    let (mut setup, mut connect) = ([0; 128], [0; 72 + 1024]);
    stream.read_exact(&mut setup).unwrap();
    let mut ready = [0; 128];
    (ready[0], ready[2], ready[4]) = (1, 128, 128);
    stream.write_all(&ready).unwrap();
    stream.read_exact(&mut connect).unwrap();
    let mut done = [0; 24];
    (done[0], done[2], done[4], done[8]) = (5, 24, 24, 1);
    done[20..22].copy_from_slice(&connect[10..12]);
    stream.write_all(&done).unwrap();
}

#[test]
fn a_node_that_is_to_prove_itself_and_asks_for_no_proof_is_not_believed() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let node = thread::spawn(move || let_in(listener.accept().unwrap().0));
    let secret = Secret::parse("DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:");
    let who = NvmeIdentity { controller_secret: Some(secret.unwrap()), ..NvmeIdentity::default() };
    let opened = NvmeVolume::open_as(&who, address, ("nqn.x", 1), false, ANSWER_LIMIT);
    assert_eq!(opened.err().unwrap().kind(), ErrorKind::PermissionDenied);
    node.join().unwrap();
}
