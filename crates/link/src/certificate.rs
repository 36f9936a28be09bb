//! Who a certificate speaks for.
//!
//! A Lockstep certificate has exactly one URI of the scheme `lockstep` among its alternative names:
//! `lockstep://CLUSTER/node/ID`, `lockstep://CLUSTER/client/NAME` or `lockstep://CLUSTER/authority`,
//! with the cluster in sixteen hexadecimal digits. DNS names and addresses beside it serve clients
//! that know nothing of Lockstep; nothing here looks at them.
//!
//! Not here: whether a certificate is to be believed (`trust`), making them (`identity`).

use std::fmt;
use std::time::Duration;

use base::{ClusterId, NodeId};
use rustls::pki_types::{CertificateDer, UnixTime};

use crate::Refusal;

/// Bytes in the name of a client at most: it is shown in lists and logs.
pub const CLIENT_NAME_BYTES_MAX: usize = 64;

/// Someone who can hold a certificate of a cluster.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Peer {
    /// A node.
    Node(NodeId),
    /// A client of exports, or an operator, by name.
    Client(String),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Node(node) => write!(f, "node {node}"),
            Peer::Client(name) => write!(f, "client {name}"),
        }
    }
}

/// What a certificate claims. True only once `trust` has verified it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Claims {
    /// The cluster it belongs to.
    pub cluster: ClusterId,
    /// Whose it is.
    pub peer: Peer,
    /// Its serial number: bytes of the DER integer.
    pub serial: Vec<u8>,
}

/// The URI for a peer of `cluster`.
pub(crate) fn uri_of(cluster: ClusterId, peer: &Peer) -> String {
    match peer {
        Peer::Node(node) => format!("lockstep://{:016x}/node/{node}", cluster.0),
        Peer::Client(name) => format!("lockstep://{:016x}/client/{name}", cluster.0),
    }
}

/// The URI for the authority of `cluster`.
pub(crate) fn authority_uri(cluster: ClusterId) -> String {
    format!("lockstep://{:016x}/authority", cluster.0)
}

/// True for names that can stand in a URI, a file name and a log line as they are.
pub(crate) fn is_client_name(name: &str) -> bool {
    (1..=CLIENT_NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte))
}

/// Cluster and rest of a Lockstep URI.
fn split_uri(uri: &str) -> Option<(ClusterId, &str)> {
    let (cluster, rest) = uri.strip_prefix("lockstep://")?.split_once('/')?;
    let digits = cluster.len() == 16 && cluster.bytes().all(|byte| byte.is_ascii_hexdigit());
    let cluster = u64::from_str_radix(cluster, 16).ok().filter(|_| digits)?;
    Some((ClusterId(cluster), rest))
}

fn parse_peer(rest: &str) -> Option<Peer> {
    if let Some(number) = rest.strip_prefix("node/") {
        let node = number.parse::<u16>().ok()?;
        // One spelling only: no sign, no leading zero; and 0 is no node.
        return (node != 0 && node.to_string() == number).then_some(Peer::Node(NodeId(node)));
    }
    let name = rest.strip_prefix("client/")?;
    is_client_name(name).then(|| Peer::Client(name.to_owned()))
}

/// Serial number and the one Lockstep URI of a certificate.
fn only_uri(der: &CertificateDer<'_>) -> Result<(Vec<u8>, String), Refusal> {
    let certificate = webpki::EndEntityCert::try_from(der).map_err(|_| Refusal::Damaged)?;
    let mut uris = certificate.valid_uri_names().filter(|uri| uri.starts_with("lockstep:"));
    match (uris.next(), uris.next()) {
        (Some(uri), None) => Ok((certificate.serial().to_vec(), uri.to_owned())),
        _ => Err(Refusal::NoName),
    }
}

/// Reads what a certificate claims, without believing it.
///
/// # Errors
/// [`Refusal::Damaged`] or [`Refusal::NoName`].
pub fn read_claims(der: &CertificateDer<'_>) -> Result<Claims, Refusal> {
    let (serial, uri) = only_uri(der)?;
    let (cluster, rest) = split_uri(&uri).ok_or(Refusal::NoName)?;
    let peer = parse_peer(rest).ok_or(Refusal::NoName)?;
    Ok(Claims { cluster, peer, serial })
}

/// When a certificate's time is over, in seconds since 1970.
pub(crate) fn read_expiry(der: &CertificateDer<'_>) -> Result<u64, Refusal> {
    let certificate = webpki::EndEntityCert::try_from(der).map_err(|_| Refusal::Damaged)?;
    // The library tells the end of a certificate's time only where it refuses one that is over.
    let end_of_time = UnixTime::since_unix_epoch(Duration::from_secs(u64::MAX >> 8));
    let usage = webpki::KeyUsage::client_auth();
    match certificate.verify_for_usage(&[], &[], &[], end_of_time, usage, None, None) {
        Err(webpki::Error::CertExpired { not_after, .. }) => Ok(not_after.as_secs()),
        _ => Err(Refusal::Damaged),
    }
}

/// The cluster whose authority a certificate claims to be.
pub(crate) fn read_authority(der: &CertificateDer<'_>) -> Result<ClusterId, Refusal> {
    let (_, uri) = only_uri(der)?;
    match split_uri(&uri) {
        Some((cluster, "authority")) => Ok(cluster),
        _ => Err(Refusal::NoName),
    }
}
