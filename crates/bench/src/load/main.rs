//! A load by NBD or NVMe, the same loop for both: so that what differs is the protocol, not who speaks it.
//!
//! One connection, so many requests open at once, random places, all in one thread that waits in the kernel only. What it
//! prints is one line of JSON.
//!
//! Always: latency runs from the moment in which a request is put into the bytes to send until its answer is taken apart.
//!
//! Not here: who starts it and why (`bench`).

mod protocol;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use base::Prng;
use clap::{Parser, ValueEnum};
use client::{ANSWER_LIMIT, NvmeVolume, Volume};
use serde_json::json;

use protocol::{Nbd, Nvme, Protocol};

/// Bytes received at once.
const RECEIVE_BYTES: usize = 256 << 10;

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Pattern {
    Randread,
    Randwrite,
}

/// The command line.
#[derive(Debug, Parser)]
#[command(name = "load", about = "Puts a load on a volume, by NBD or NVMe over TCP")]
struct Arguments {
    /// `nbd://ADDRESS:PORT/NAME` or `nvme+tcp://ADDRESS:PORT/SUBSYSTEM/NAMESPACE`
    url: String,
    #[arg(long)]
    pattern: Pattern,
    #[arg(long)]
    block_kib: u32,
    /// Requests open at once
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    depth: u16,
    /// Of the volume
    #[arg(long)]
    size_mib: u64,
    /// How long
    #[arg(long)]
    seconds: f64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("load: {}: {why}", arguments.url);
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<String, String> {
    let text = |error: std::io::Error| error.to_string();
    let parts = |url: &str| {
        let (address, name) = url.split_once('/').ok_or("a URL names what it is of")?;
        let address: SocketAddr = address.parse().map_err(|_| "a URL has an address and a port")?;
        Ok::<_, String>((address, name.to_owned()))
    };
    if let Some(url) = arguments.url.strip_prefix("nbd://") {
        let (address, name) = parts(url)?;
        let volume = Volume::open(address, &name, ANSWER_LIMIT).map_err(text)?;
        let stream = volume.stream().map_err(text)?;
        return drive(arguments, stream, Nbd::new());
    }
    if let Some(url) = arguments.url.strip_prefix("nvme+tcp://") {
        let (address, name) = parts(url)?;
        let (nqn, namespace) = name.rsplit_once('/').ok_or("a URL names a namespace")?;
        let namespace = namespace.parse().map_err(|_| "a namespace is a number")?;
        let volume = NvmeVolume::open(address, nqn, namespace, false, ANSWER_LIMIT);
        let queue = volume.map_err(text)?.into_queue();
        let stream = queue.stream.try_clone().map_err(text)?;
        return drive(arguments, stream, Nvme::new(queue));
    }
    Err("begins neither with nbd:// nor with nvme+tcp://".to_owned())
}

/// What is open, by its number.
struct Open {
    began: Vec<Instant>,
    latencies_ns: Vec<u64>,
}

fn drive(
    arguments: &Arguments,
    mut stream: TcpStream,
    mut protocol: impl Protocol,
) -> Result<String, String> {
    let block = u64::from(arguments.block_kib) << 10;
    let places = (arguments.size_mib << 20) / block.max(1);
    if places == 0 || block > u64::from(protocol.bytes_max()) {
        return Err(format!("blocks of {block} bytes do not go there"));
    }
    let is_write = arguments.pattern == Pattern::Randwrite;
    let length = u32::try_from(block).map_err(|error| error.to_string())?;
    let begun = Instant::now();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut random = Prng::new(u64::from(now.subsec_nanos()) ^ now.as_secs() << 30);
    let mut open = Open { began: vec![begun; 1 << 16], latencies_ns: Vec::new() };
    let words = std::iter::repeat_with(|| random.next_u64().to_le_bytes());
    let data: Vec<u8> = words.flatten().take(length as usize).collect();
    let until = begun + Duration::from_secs_f64(arguments.seconds);
    let (mut send, mut ended, mut input) = (Vec::new(), Vec::new(), vec![0; RECEIVE_BYTES]);
    let (mut in_flight, mut held) = (0, 0);
    let mut wanted = arguments.depth;
    loop {
        let now = Instant::now();
        if now < until {
            for _ in in_flight..wanted {
                let place = random.below(places) * block;
                let id = protocol.ask(is_write.then_some(&data[..]), (place, length), &mut send);
                open.began[usize::from(id)] = now;
            }
            in_flight = wanted;
        } else {
            wanted = 0;
            if in_flight == 0 {
                break;
            }
        }
        let text = |error: std::io::Error| error.to_string();
        stream.write_all(&send).map_err(text)?;
        send.clear();
        let count = stream.read(&mut input[held..]).map_err(text)?;
        if count == 0 {
            return Err("the node ended the connection".to_owned());
        }
        held += count;
        let used = protocol.take(&input[..held], &data, &mut ended, &mut send)?;
        input.copy_within(used..held, 0);
        held -= used;
        let now = Instant::now();
        for id in ended.drain(..) {
            let latency = now - open.began[usize::from(id)];
            open.latencies_ns.push(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
            in_flight -= 1;
        }
    }
    Ok(report(&mut open.latencies_ns, begun.elapsed(), block))
}

fn report(latencies_ns: &mut [u64], time: Duration, block: u64) -> String {
    latencies_ns.sort_unstable();
    let count = latencies_ns.len();
    let of = |per_mille: usize| latencies_ns.get(count * per_mille / 1000).copied().unwrap_or(0);
    let sum: u128 = latencies_ns.iter().map(|&one| u128::from(one)).sum();
    json!({
        "requests": count,
        "nanoseconds": u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
        "block_bytes": block,
        "mean_ns": u64::try_from(sum / (count.max(1) as u128)).unwrap_or(u64::MAX),
        "p50_ns": of(500),
        "p99_ns": of(990),
        "p999_ns": of(999),
        "max_ns": latencies_ns.last().copied().unwrap_or(0),
    })
    .to_string()
}
