//! How a volume is served: NBD over TCP and Unix sockets, NVMe over TCP, disks of this host by `ublk`, disks of machines by `vhost-user`.
//!
//! [`NbdConnection`] and [`NvmeConnection`] join the protocol's machine with buffers: it says where the next bytes from the
//! client shall go, cuts requests into pieces that a shard can take, and turn answers into what is to
//! be sent. Payload goes from the socket into the buffer that the disk and the peers get.
//!
//! [`UblkDisk`] has no bytes to take apart: the kernel says what is asked. [`VhostDisk`] takes requests from a machine's memory.
//!
//! A client that asks for TLS gets it (`guard`), if the owner offers it: it has to show a certificate
//! of the cluster, and what is sent and received is copied once more. An NVMe host that begins with TLS gets it (`psk_guard`), if
//! the owner offers it: it has to know a key.
//!
//! Not here: sockets and their operations (`sys`, called by the node), which shard a piece belongs to,
//! and what is done with it.

#![cfg_attr(test, allow(clippy::cast_possible_truncation, reason = "tests count in small numbers"))]

mod guard;
mod nbd_connection;
mod nvme_connection;
mod pieces;
mod psk_guard;
mod served;
mod ublk_disk;
mod vhost_disk;

pub use nbd_connection::{
    Ask, BYTES_OPEN_MAX, Demand, HAGGLE_BYTES_MAX, Inputs, NbdConnection, Tag, UNSENT_BYTES_MAX,
};
pub use nvme_connection::NvmeConnection;
pub use pieces::PIECE_BYTES;
pub use psk_guard::PskOffer;
pub use served::{Over, Served};
pub use ublk_disk::{DiskData, Done, UblkDisk, UblkQueue, ZEROES_BYTES_MAX};
pub use vhost_disk::{VhostDisk, VhostReply, VhostVolume};
