//! What it costs to send each block to two peers over TCP on this machine and to take it there, and nothing else: nobody asks for it, nobody
//! answers, nothing is kept. A write to three replicas that travel so costs that much before a node has done anything.
//!
//! Not here: what nodes make of it (`tables`).

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::fio::{Workload, float};
use crate::machine;
use crate::outcome::Outcome;
use crate::run::Run;
use crate::sample::{Repeats, Sample};
use crate::tables::{Row, Table};

/// The subject's name.
const NAME: &str = "two copies over TCP, and nothing else";

/// What goes before each block, as much as a node says of it.
const HEAD_BYTES: usize = 128;

/// Bytes that are sent at once, if they are several blocks: about as many as come together at depth 64.
const BATCH_BYTES: usize = 32 << 10;

/// Bytes that a peer takes at once.
const TAKE_BYTES: usize = 256 << 10;

const PEERS: u32 = 2;

/// Adds a row for each of these workloads.
pub(crate) fn measure(run: &Run, workloads: &[Workload], table: &mut Table) -> Outcome<()> {
    for workload in workloads {
        let mut repeats = Repeats::default();
        for _ in 0..run.pace.repeats() {
            repeats.samples.push(once(run, workload)?);
        }
        let subject = NAME.to_owned();
        let row = Row {
            workload: *workload,
            subject,
            threads: 1,
            repeats,
            own_ms: None,
            system_calls: None,
        };
        table.rows.push(row);
    }
    Ok(())
}

fn once(run: &Run, workload: &Workload) -> Outcome<Sample> {
    let text = |error: std::io::Error| error.to_string();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(text)?;
    let mut peers = Vec::new();
    let mut takers = Vec::new();
    for _ in 0..PEERS {
        let peer = TcpStream::connect(listener.local_addr().map_err(text)?).map_err(text)?;
        peer.set_nodelay(true).map_err(text)?;
        let (mut taken, _) = listener.accept().map_err(text)?;
        takers.push(thread::spawn(move || {
            let mut place = vec![0; TAKE_BYTES];
            while taken.read(&mut place).is_ok_and(|count| count > 0) {}
        }));
        peers.push(peer);
    }
    let block = (workload.block_kib as usize) << 10;
    let count = (BATCH_BYTES / block).max(1);
    let batch = vec![1; count * (HEAD_BYTES + block)];
    let (own, mut blocks) = ([std::process::id()], 0_usize);
    let (before, begun) = (machine::processor_ms(&own)?, Instant::now());
    let limit = Duration::from_secs_f64(run.pace.seconds());
    while begun.elapsed() < limit {
        for peer in &mut peers {
            peer.write_all(&batch).map_err(text)?;
        }
        blocks += count;
    }
    drop(peers);
    for taker in takers {
        taker.join().map_err(|_| "a thread that took bytes ended badly".to_owned())?;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let used_ms = machine::processor_ms(&own)?.saturating_sub(before);
    let blocks = float(u64::try_from(blocks).map_err(|error| error.to_string())?);
    Ok(Sample {
        iops: blocks / seconds,
        mb_per_second: blocks * float(block as u64) / 1e6 / seconds,
        cpu_ms: float(used_ms) * 1000.0 / blocks,
        ..Sample::default()
    })
}
