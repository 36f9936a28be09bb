//! The words of the command line, as types. Help, completions and man pages are made from these.
//!
//! Always: every value that can be judged without a node is judged here, so a slip ends with exit
//! code 2 before anything is asked.
//!
//! Not here: what the words do.

mod device;
mod options;
mod vhost;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use wire::REPLICAS_MAX;
use wire::admin::{LOG_EXTENTS, LOG_EXTENTS_USUAL};

use crate::machines::{Machine, parse_machine};
use crate::unit::{parse_identity, parse_name, parse_size, parse_threads, parse_time};

pub(crate) use device::{Attach, Device, Via};
use options::protocol_parser;
pub(crate) use options::{SetOptions, Shards};
pub(crate) use vhost::Vhost;

/// Nodes of a development cluster, at most: they are named by letters.
pub(crate) const DEV_NODES_MAX: u16 = 26;

const AFTER_HELP: &str = "\
Begin here:
  lockstep dev demo                      see a cluster lose a node and get it back (a minute)
  lockstep dev up --nodes 3 --dir DIR --detach
  export LOCKSTEP_DIR=DIR
  lockstep resource create disk --size 1GiB --replicas 3
  lockstep status

Exit codes: 0 done, 1 refused or failed, 2 usage, 3 not found, 4 timed out";

/// Replicated block storage: resources, nodes, and a whole cluster on one machine.
#[derive(Debug, Parser)]
#[command(name = "lockstep", version, after_help = AFTER_HELP, propagate_version = false)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What holds for every command.
#[derive(Args, Clone, Debug)]
pub(crate) struct Global {
    /// Directory of a development cluster (`lockstep dev up`)
    #[arg(long, global = true, env = "LOCKSTEP_DIR", value_name = "DIR", help_heading = "Global")]
    pub(crate) dir: Option<PathBuf>,
    /// Admin socket of a node; give it once for each node that is to be asked [without it and --dir:
    /// /var/lib/lockstep/admin.sock]
    #[arg(long, global = true, value_name = "SOCKET", help_heading = "Global")]
    pub(crate) admin: Vec<PathBuf>,
    /// Which of several resources of one name: its identity, as `lockstep status` shows it then
    #[arg(long, global = true, value_name = "ID", value_parser = parse_identity, help_heading = "Global")]
    pub(crate) id: Option<u64>,
    /// human or json
    #[arg(
        long,
        hide_possible_values = true,
        global = true,
        value_name = "FORM",
        default_value = "human",
        help_heading = "Global"
    )]
    pub(crate) output: Form,
    /// When to use colour: auto, always or never
    #[arg(
        long,
        hide_possible_values = true,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        help_heading = "Global"
    )]
    pub(crate) color: Colour,
}

/// How answers are written.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Form {
    /// Text for people
    Human,
    /// JSON for programs
    Json,
}

/// When colour is used.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Colour {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// `lockstep cluster`.
#[derive(Debug, Subcommand)]
pub(crate) enum Machines {
    /// Make an authority, and a directory for each node that is to be copied to its machine
    Make {
        /// Where they go; made if it is not there
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        /// Each node, and the address by which the others and NBD clients reach it: a=192.0.2.1
        #[arg(value_name = "NAME=ADDRESS", required = true, value_parser = parse_machine)]
        nodes: Vec<Machine>,
    },
    /// Make the directory of one more node
    AddNode {
        /// What `lockstep cluster make` wrote
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        /// The node, and the address by which it is reached
        #[arg(value_name = "NAME=ADDRESS", value_parser = parse_machine)]
        node: Machine,
    },
    /// Give a node a new certificate and key, which are to be copied to its machine; each ends after 397 days
    Renew {
        /// What `lockstep cluster make` wrote
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        /// Which node
        #[arg(value_name = "NAME")]
        node: String,
    },
}

/// What is to be done.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// A cluster of processes on this machine, to develop and to try
    #[command(subcommand)]
    Dev(Dev),
    /// Make what nodes on machines of their own need: certificates and node.toml
    #[command(subcommand)]
    Cluster(Machines),
    /// Make, change and remove resources
    #[command(subcommand)]
    Resource(Resource),
    /// Volumes as disks of this host
    #[command(subcommand)]
    Device(Device),
    /// Volumes as disks of machines of this host (QEMU's vhost-user-blk)
    #[command(subcommand)]
    Vhost(Vhost),
    /// Show how resources are
    Status {
        /// Only this one
        #[arg(value_name = "NAME")]
        name: Option<String>,
        /// Show it again whenever something changes, until interrupted
        #[arg(long)]
        watch: bool,
    },
    /// Wait until a resource is as wanted
    Wait {
        /// The resource
        name: String,
        /// What to wait for
        #[arg(long = "for", value_name = "STATE")]
        wanted: Wanted,
        /// How long at most: 500ms, 30s, 5m
        #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_time)]
        timeout: Duration,
    },
    /// Tell every change of resources, one a line, until interrupted
    Events {
        /// Only of this one
        #[arg(value_name = "NAME")]
        name: Option<String>,
    },
    /// Say why a resource is as it is, what it waits for, and what can be done
    Explain {
        /// The resource
        #[arg(value_name = "RESOURCE")]
        name: String,
    },
    /// Try what this machine can do: io_uring, ways to use volumes as disks, clock, limits, ports, peers, stores
    Doctor {
        /// A node's directory, or a directory, file or block device for stores; several are possible. If left out: the
        /// development cluster's nodes, or /var/lib/lockstep
        #[arg(value_name = "PATH")]
        paths: Vec<PathBuf>,
    },
    /// Let a node read its certificate, revocations and table of NVMe hosts again, while it goes on serving
    Reload {
        /// Which node; all that can be reached if left out
        #[arg(long, value_name = "NODE")]
        node: Option<String>,
    },
    /// Give a node of the development cluster a new certificate; then reload it
    RenewCertificate {
        /// Which node
        #[arg(long, value_name = "NODE")]
        node: String,
    },
    /// Make a certificate for an NBD client, in the files that libnbd and QEMU look for
    ClientCertificate {
        /// The client's name, as logs show it: letters, digits and - _ . @
        name: String,
        /// Where ca-cert.pem, client-cert.pem and client-key.pem go; made if it is not there
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        /// Directory of the authority; the development cluster's own if left out
        #[arg(long, value_name = "DIR")]
        authority: Option<PathBuf>,
    },
    /// Make secrets for an NVMe host, and the lines that let it in: for nodes' nvme-hosts.toml
    NvmeHost {
        /// The host's name, as its /etc/nvme/hostnqn has it
        nqn: String,
        /// A table to put the lines into; made, readable by its owner only, if it is not there. If left out they are printed
        #[arg(long, value_name = "FILE")]
        table: Option<PathBuf>,
        /// Resources that the host may reach; all if left out
        #[arg(long, value_name = "NAME,NAME", value_delimiter = ',', value_parser = parse_name)]
        resources: Vec<String>,
        /// Nodes are to prove who they are, too
        #[arg(long, conflicts_with = "tls")]
        mutual: bool,
        /// A key for TLS 1.3 instead of secrets: by it both show who they are, and what travels is encrypted
        #[arg(long)]
        tls: bool,
    },
    /// Print shell completions
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the man pages into a directory
    Man {
        /// The directory; made if it is not there
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
}

/// What can be waited for.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Wanted {
    /// Every replica is in sync
    InSync,
    /// A node is primary, and requests do not wait
    Primary,
    /// Every replica is in sync, every witness is there, nothing waits
    Healthy,
}

/// The development cluster.
#[derive(Debug, Subcommand)]
pub(crate) enum Dev {
    /// Make a cluster and start it, or start the nodes of an old one again
    Up {
        /// Number of nodes; 3 if the directory is new
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(DEV_NODES_MAX)))]
        nodes: Option<u16>,
        /// Where replicas are kept unless a resource says otherwise
        #[arg(long, value_name = "KIND")]
        store: Option<Store>,
        /// Threads of each node; 1 if the directory is new
        #[arg(long, value_name = "N", value_parser = parse_threads)]
        threads: Option<u16>,
        /// Return when the nodes answer; without it they stop with Ctrl-C
        #[arg(long)]
        detach: bool,
    },
    /// Stop all nodes in good order; what they hold is kept
    Down,
    /// Show the nodes
    Status,
    /// End a node as a crash would (kill -9)
    Kill {
        /// Its name
        node: String,
    },
    /// Start a node that is not running
    Start {
        /// Its name
        node: String,
    },
    /// Show a cluster losing its primary under load and getting it back, and check every byte
    Demo {
        /// Leave the cluster running afterwards
        #[arg(long)]
        keep: bool,
        /// Size of the volume
        #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_size)]
        size: u64,
        /// How long to write
        #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_time)]
        load: Duration,
    },
}

/// What stores are made of.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Store {
    /// Files in the node's directory
    File,
    /// Memory, which forgets everything at every stop: for tests and benchmarks
    Memory,
}

/// Resources.
#[derive(Debug, Subcommand)]
pub(crate) enum Resource {
    /// Make a resource
    Create(Box<Create>),
    /// List resources
    List,
    /// Show all about a resource
    Show {
        /// Its name
        name: String,
    },
    /// Make a node primary
    Promote(OnNode),
    /// Make the primary step down
    Demote {
        /// The resource
        name: String,
    },
    /// Add a replica
    AddReplica(AddReplica),
    /// Remove a replica or witness, with its data
    RemoveReplica(OnNode),
    /// Let a node use it, which holds no copy; a new one that was not there when it was made
    AddClient(OnNode),
    /// Let a node that holds no copy use it no more, or name it no more if it is lost for good
    RemoveClient(OnNode),
    /// Set the size of a volume
    Resize {
        /// The resource
        name: String,
        /// The new size, as in 2GiB
        #[arg(long, value_name = "SIZE", value_parser = parse_size)]
        size: u64,
        /// Which volume
        #[arg(long, value_name = "INDEX", default_value_t = 0)]
        volume: u16,
        /// Even if it becomes smaller: what lies beyond the new end is lost
        #[arg(long)]
        force: bool,
    },
    /// Change options of a resource; those not named stay
    SetOptions(SetOptions),
    /// Compare all replicas and repair what differs
    Verify(Verify),
    /// Declare a node's copy worthless and copy it anew from the others
    Invalidate(OnNode),
    /// Hold all requests back
    Suspend {
        /// The resource
        name: String,
    },
    /// Let requests go on
    Resume {
        /// The resource
        name: String,
    },
    /// Hold resync back
    PauseResync {
        /// The resource
        name: String,
    },
    /// Let resync go on
    ResumeResync {
        /// The resource
        name: String,
    },
    /// Give requests of a node that wait for missing nodes I/O errors, and new ones too, until those nodes are back
    FailWaiting(OnNode),
    /// End `fail-waiting`: requests of a node wait again for missing nodes
    LetWait(OnNode),
    /// Go on from a node's copy although the rules say to wait: other copies may be newer, and are given up
    Force(Force),
    /// End a split brain: give up the side of one node, whose copy is then made anew from the others
    Resolve {
        /// The resource
        name: String,
        /// A node on the side whose changes are given up; its clients must have left
        #[arg(long, value_name = "NODE")]
        discard: String,
    },
    /// Remove a resource and its data from all nodes
    Delete {
        /// The resource
        name: String,
        /// Even while it is in use, and although nodes that do not answer keep their parts
        #[arg(long)]
        force: bool,
    },
    /// Remove what one node still holds of a resource that the others have deleted, or have taken it out of
    Forget {
        /// The resource
        name: String,
        /// The node whose part goes
        #[arg(long, value_name = "NODE")]
        node: String,
        /// Although nobody answers who knows whether others need it
        #[arg(long)]
        force: bool,
    },
}

/// Comparing all replicas.
#[derive(Args, Debug)]
pub(crate) struct Verify {
    /// The resource
    pub(crate) name: String,
    /// Return when it is done
    #[arg(long)]
    pub(crate) wait: bool,
    /// Begin anew, also where one runs or was stopped
    #[arg(long, conflicts_with = "stop")]
    pub(crate) anew: bool,
    /// Stop the one that runs; the next `verify` goes on with it
    #[arg(long, conflicts_with = "wait")]
    pub(crate) stop: bool,
}

/// `lockstep resource force`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Force {
    #[command(flatten)]
    pub(crate) on: OnNode,
    /// Even if nothing calls for it, or a node that answers holds writes that this one lacks: they are lost
    #[arg(long)]
    pub(crate) discard_newer: bool,
}

/// `lockstep resource add-replica`.
#[derive(Args, Clone, Debug)]
pub(crate) struct AddReplica {
    #[command(flatten)]
    pub(crate) on: OnNode,
    /// A witness, which votes and holds no data
    #[arg(long)]
    pub(crate) witness: bool,
    /// A block device of that node that holds the copy, instead of a file in its directory; of a resource with several
    /// volumes one for each, in their order
    #[arg(long, value_name = "PATH", conflicts_with = "witness", value_parser = parse_device)]
    pub(crate) device: Vec<String>,
    /// Use the store even where something is already
    #[arg(long)]
    pub(crate) force: bool,
}

/// A path on another machine.
fn parse_device(text: &str) -> Result<String, String> {
    let refused =
        || format!("{text:?} is no whole path: write it as that node has it, as in /dev/vdb");
    text.starts_with('/').then(|| text.to_owned()).ok_or_else(refused)
}

/// A resource on a node.
#[derive(Args, Clone, Debug)]
pub(crate) struct OnNode {
    /// The resource
    pub(crate) name: String,
    /// The node
    #[arg(long, value_name = "NODE")]
    pub(crate) node: String,
}

/// A new resource.
#[derive(Args, Clone, Debug)]
pub(crate) struct Create {
    /// Its name: lower-case letters, digits, and `-` `_` `.` inside
    #[arg(value_parser = parse_name)]
    pub(crate) name: String,
    /// Size of each volume, as in 1GiB
    #[arg(long, value_name = "SIZE", value_parser = parse_size, required_unless_present = "from")]
    pub(crate) size: Option<u64>,
    /// Everything about it from a file in TOML instead: see docs/formats/admin.md
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "size", "replicas", "witnesses", "volumes", "nodes", "block_size", "store", "shards", "protocol",
        "durability", "on_no_quorum", "on_io_error", "quorum", "after_split_brain", "read_policy",
        "in_sync_min", "data_checksum", "resync_rate_max", "resync_rate_min", "log_extents",
    ])]
    pub(crate) from: Option<PathBuf>,
    /// Number of full copies; with two, and no witness, requests wait while either node is away
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=REPLICAS_MAX as i64))]
    pub(crate) replicas: u16,
    /// Number of nodes that vote and hold no data
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=8))]
    pub(crate) witnesses: u16,
    /// Number of volumes
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) volumes: u16,
    /// Which nodes: first those with replicas, then witnesses; the rest are clients
    #[arg(long, value_name = "A,B,..", value_delimiter = ',')]
    pub(crate) nodes: Vec<String>,
    /// Smallest unit of a request in bytes
    #[arg(long, value_name = "BYTES", default_value = "4096", value_parser = ["512", "4096"])]
    pub(crate) block_size: String,
    /// Where replicas are kept; the cluster's default if left out
    #[arg(long, value_name = "KIND")]
    pub(crate) store: Option<Store>,
    /// Parts into which the work of the resource is divided, each a thread's, 124 MiB of a volume by turns; `auto`: as many as
    /// the threads of the node with a replica that has most
    #[arg(long, value_name = "N", default_value = "auto", value_parser = options::parse_shards)]
    pub(crate) shards: Shards,
    /// When a write counts as complete: on every in-sync disk (c), or in every in-sync memory and on one disk (b)
    #[arg(long, value_name = "P", default_value = "c", value_parser = protocol_parser())]
    pub(crate) protocol: String,
    /// What makes a write survive a power cut
    #[arg(long, value_name = "D", default_value = "flush", value_parser = ["flush", "write-through"])]
    pub(crate) durability: String,
    /// What requests do without a quorum
    #[arg(long, value_name = "DO", default_value = "suspend-io", value_parser = ["suspend-io", "io-error"])]
    pub(crate) on_no_quorum: String,
    /// What happens when a replica's disk fails
    #[arg(long, value_name = "DO", default_value = "detach", value_parser = ["detach", "pass-on"])]
    pub(crate) on_io_error: String,
    /// Whether changes need a majority of voters; `off`: two nodes that lose each other may both go on
    #[arg(long, value_name = "Q", default_value = "majority", value_parser = ["majority", "off"])]
    pub(crate) quorum: String,
    /// Whose changes are given up when two sides that went on without each other meet again
    /// (without quorum): disconnect, discard-younger, discard-older, discard-least-changes,
    /// discard-zero-changes, discard-node=NODE
    #[arg(long, value_name = "DO", default_value = "disconnect", value_parser = options::parse_after_split_brain)]
    pub(crate) after_split_brain: String,
    /// Which replica serves a read
    #[arg(long, value_name = "POLICY", default_value = "prefer-local",
          value_parser = ["prefer-local", "round-robin", "least-pending", "latency-aware", "striped"])]
    pub(crate) read_policy: String,
    /// Requests wait while fewer replicas are in sync
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8))]
    pub(crate) in_sync_min: u8,
    /// Checksums of blocks on disk
    #[arg(long, value_name = "KIND", default_value = "off", value_parser = ["off", "crc32c"])]
    pub(crate) data_checksum: String,
    /// What resyncs copy at most per second, as in 100MiB, all targets together; `off`: no limit
    #[arg(long, value_name = "SIZE", default_value = "off", value_parser = options::parse_rate)]
    pub(crate) resync_rate_max: u64,
    /// What they keep per second although requests take longer for it; `off`: they yield as far as it helps
    #[arg(long, value_name = "SIZE", default_value = "off", value_parser = options::parse_rate)]
    pub(crate) resync_rate_min: u64,
    /// Extents of 4 MiB in each volume's activity log: more cost a longer comparison after a crash, and save log
    /// writes where much is written here and there
    #[arg(long, value_name = "N", default_value_t = LOG_EXTENTS_USUAL, value_parser = clap::value_parser!(u32).range(i64::from(*LOG_EXTENTS.start())..=i64::from(*LOG_EXTENTS.end())))]
    pub(crate) log_extents: u32,
    /// Use stores even where something is already
    #[arg(long)]
    pub(crate) force: bool,
}

impl Default for Create {
    /// What the command line's defaults are; without name and size.
    fn default() -> Create {
        Create {
            name: String::new(),
            size: None,
            from: None,
            replicas: 2,
            witnesses: 0,
            volumes: 1,
            nodes: Vec::new(),
            block_size: "4096".to_owned(),
            store: None,
            shards: Shards::Auto,
            protocol: "c".to_owned(),
            durability: "flush".to_owned(),
            on_no_quorum: "suspend-io".to_owned(),
            on_io_error: "detach".to_owned(),
            quorum: "majority".to_owned(),
            after_split_brain: "disconnect".to_owned(),
            read_policy: "prefer-local".to_owned(),
            in_sync_min: 1,
            data_checksum: "off".to_owned(),
            resync_rate_max: 0,
            resync_rate_min: 0,
            log_extents: LOG_EXTENTS_USUAL,
            force: false,
        }
    }
}

impl Create {
    /// The node whose side is given up after a split brain, if one is named.
    pub(crate) fn discarded_node(&self) -> Option<&str> {
        options::discarded_node(&self.after_split_brain)
    }

    /// The chosen options, as nodes know them. The words were checked when they were parsed.
    pub(crate) fn options(&self) -> wire::Options {
        wire::Options {
            protocol: options::protocol(&self.protocol),
            durability: options::durability(&self.durability),
            quorum: options::quorum(&self.quorum),
            on_no_quorum: options::on_no_quorum(&self.on_no_quorum),
            on_io_error: options::on_io_error(&self.on_io_error),
            read_policy: options::read_policy(&self.read_policy),
            in_sync_min: self.in_sync_min,
            data_checksum: self.data_checksum == "crc32c",
            after_split_brain: options::after_split_brain(&self.after_split_brain),
            resync_rate_max: self.resync_rate_max,
            resync_rate_min: self.resync_rate_min,
        }
    }

    /// Smallest unit of a request in bytes.
    pub(crate) fn block_bytes(&self) -> u32 {
        if self.block_size == "512" { 512 } else { 4096 }
    }
}
