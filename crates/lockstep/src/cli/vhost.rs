//! The words of `lockstep vhost`.

use clap::Subcommand;

use crate::device::{Target, parse_target};

/// Volumes as disks of machines (QEMU's vhost-user-blk).
#[derive(Debug, Subcommand)]
pub(crate) enum Vhost {
    /// Have the node of this host listen on a socket, by which one machine has a volume as its disk
    Add {
        /// The resource, and the number of the volume if it is not 0
        #[arg(value_name = "NAME[/VOL]", value_parser = parse_target)]
        target: Target,
        /// Which node, where several are of this host
        #[arg(long, value_name = "NODE")]
        node: Option<String>,
        /// A group of this host whose members may connect, too, as QEMU's user; root is let in always
        #[arg(long, value_name = "GROUP")]
        group: Option<String>,
    },
    /// Remove such a socket; its machine's requests wait from then on
    Remove {
        /// The resource, and the number of the volume if it is not 0
        #[arg(value_name = "NAME[/VOL]", value_parser = parse_target)]
        target: Target,
        /// Which node, where several have one
        #[arg(long, value_name = "NODE")]
        node: Option<String>,
    },
    /// List the sockets that nodes of this host have
    List,
}
