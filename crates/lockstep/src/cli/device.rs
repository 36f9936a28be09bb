//! The words of `lockstep device`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use crate::device::{Place, Target, parse_place, parse_target};
use crate::unit::parse_time;

/// Volumes as disks of this host.
#[derive(Debug, Subcommand)]
pub(crate) enum Device {
    /// Make a volume a disk of this host: /dev/lockstep/by-res/NAME/VOL
    Attach(Attach),
    /// Take the disk of a volume away from this host
    Detach {
        /// The resource, and the number of the volume if it is not 0
        #[arg(value_name = "NAME[/VOL]", value_parser = parse_target)]
        target: Target,
        /// Even while it is in use: whoever uses it gets I/O errors
        #[arg(long)]
        force: bool,
        /// Only until the next `attach --all`, as at a stop of this host: it stays written down
        #[arg(long)]
        remember: bool,
    },
    /// List the volumes that are attached to this host
    List,
    /// Print the name that a disk has below /dev, if a volume is attached as that disk: for udev
    LinkOf {
        /// The kernel's name of the disk, as in nvme0n1
        disk: String,
    },
    /// Look after the disks of this host until interrupted: new connections for those that broke, paths to nodes that came back
    Keep {
        /// End when nothing is attached any more
        #[arg(long)]
        while_attached: bool,
    },
}

/// `lockstep device attach`.
#[derive(Args, Debug)]
pub(crate) struct Attach {
    /// The resource, and the number of the volume if it is not 0
    #[arg(value_name = "NAME[/VOL]", value_parser = parse_target, required_unless_present = "all")]
    pub(crate) target: Option<Target>,
    /// Everything that is written down as attached, as after a start of this host; asks no node
    #[arg(long, conflicts_with_all = ["target", "via", "from", "nvme_keys"])]
    pub(crate) all: bool,
    /// What makes the disk: auto (the first that works of the others), ublk, nvme or nbd
    #[arg(long, hide_possible_values = true, value_name = "WAY", default_value = "auto")]
    pub(crate) via: Via,
    /// Where the volume is, as `lockstep resource show` prints it; several are possible. Then no node is asked
    #[arg(long, value_name = "URL", value_delimiter = ',', value_parser = parse_place)]
    pub(crate) from: Vec<Place>,
    /// Table with this host's secret, or key for TLS, where nodes ask for one by NVMe/TCP (`lockstep nvme-host --table`)
    #[arg(long, value_name = "FILE")]
    pub(crate) nvme_keys: Option<PathBuf>,
    /// Try again for so long where no node answers or no way works yet, as while a host starts: 500ms, 30s, 5m
    #[arg(long, value_name = "TIME", default_value = "0s", hide_default_value = true, value_parser = parse_time, conflicts_with = "all")]
    pub(crate) wait: Duration,
}

/// What may make a disk.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Via {
    /// The first that works
    Auto,
    /// The kernel hands requests to the node of this host
    Ublk,
    /// The kernel's NVMe/TCP initiator, with a path to every node
    Nvme,
    /// The kernel's NBD client
    Nbd,
}
