//! What a member of a resource says, over its signature, of the nodes that the resource has.
//!
//! A node that was away learns by it whom to let in, also from the very node that asks to be let in. A voucher
//! holds everything that its signer knows: the members of the newest configuration, and for each node that was
//! ever admitted or dismissed which of both came last, by a number that each such change raises.
//!
//! Always: a voucher has one encoding, and it begins with words that nothing else that a node signs begins with;
//! who signed it, with what, and whether that is to be believed is not looked at here.
//!
//! Not here: signatures (`link`), whose word counts (`lockstepd`). Bytes are described in
//! `docs/formats/voucher.md`.

use crate::codec::{DecodeError, Put, Reader};
use crate::configuration::MEMBERS_MAX;
use alloc::vec::Vec;
use base::{ClusterId, Epoch, NodeId, ResourceId};

/// Nodes whose last change one voucher tells: as many as a resource has, and as many that went.
pub const STANDINGS_MAX: usize = 128;
/// What is signed, in bytes; the largest voucher takes half of it.
pub const STATEMENT_BYTES_MAX: usize = 4096;
/// A signer's certificate in bytes; one with sixteen addresses takes a quarter of it.
pub const VOUCHER_CERTIFICATE_BYTES_MAX: usize = 4096;
/// A signature in bytes: those of P-256 take 72, of the longest RSA key 1,024.
pub const SIGNATURE_BYTES_MAX: usize = 1024;

/// The words that a statement begins with.
const HEAD: &[u8; 16] = b"lockstep voucher";
/// The newest form that is known here.
const FORM: u16 = 1;

/// The last change of a node's part in a resource.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Standing {
    /// Whose.
    pub node: NodeId,
    /// Which change of the resource's nodes it was, from 1: of two the greater one counts, and of two with the
    /// same number the one that dismisses.
    pub number: u64,
    /// Admitted; or else dismissed.
    pub admitted: bool,
}

/// What a member says of a resource's nodes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Voucher {
    /// Its cluster.
    pub cluster: ClusterId,
    /// Which resource.
    pub resource: ResourceId,
    /// Who says it.
    pub signer: NodeId,
    /// Counts what this signer has said of this resource: the newest takes the place of the others.
    pub revision: u64,
    /// Fork and epoch of the newest configuration that the signer knows.
    pub fork: u64,
    /// See `fork`.
    pub epoch: Epoch,
    /// The members that it names, ascending, `MEMBERS_MAX` at most.
    pub members: Vec<NodeId>,
    /// Ascending by node, `STANDINGS_MAX` at most.
    pub standings: Vec<Standing>,
}

/// A voucher as it travels and is kept: what was signed, and the proof.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SignedVoucher {
    /// Which resource it is about, as the statement says too.
    pub resource: ResourceId,
    /// A `Voucher` in bytes, `STATEMENT_BYTES_MAX` at most.
    pub statement: Vec<u8>,
    /// How it is signed: a signature scheme of TLS 1.3.
    pub scheme: u16,
    /// The signer's certificate, `VOUCHER_CERTIFICATE_BYTES_MAX` at most.
    pub certificate: Vec<u8>,
    /// `SIGNATURE_BYTES_MAX` at most.
    pub signature: Vec<u8>,
}

/// The bytes of a voucher, to be signed.
///
/// # Panics
/// If a limit is broken.
#[must_use]
pub fn encode_voucher(voucher: &Voucher) -> Vec<u8> {
    if let Err(what) = check(voucher) {
        panic!("an impossible voucher was built: {what}: {voucher:?}");
    }
    let mut out = Vec::new();
    out.extend_from_slice(HEAD);
    out.put_u16(FORM);
    out.put_u64(voucher.cluster.0);
    out.put_u64(voucher.resource.0);
    out.put_u16(voucher.signer.0);
    out.put_u64(voucher.revision);
    out.put_u64(voucher.fork);
    out.put_u64(voucher.epoch.0);
    out.put_u16(u16::try_from(voucher.members.len()).expect("few"));
    for member in &voucher.members {
        out.put_u16(member.0);
    }
    for standing in &voucher.standings {
        out.put_u16(standing.node.0);
        out.put_u64(standing.number);
        out.put_bool(standing.admitted);
    }
    out
}

/// The voucher that `statement` holds.
///
/// # Errors
/// `Schema` if it is of a newer form, `Damaged` if it is none.
pub fn decode_voucher(statement: &[u8]) -> Result<Voucher, DecodeError> {
    let mut bytes = Reader::new(statement);
    if bytes.bytes(HEAD.len())? != HEAD {
        return Err(DecodeError::Damaged("no voucher"));
    }
    let form = bytes.u16()?;
    if form > FORM {
        return Err(DecodeError::Schema(form));
    }
    if form == 0 {
        return Err(DecodeError::Damaged("a voucher of no form"));
    }
    let mut voucher = Voucher {
        cluster: ClusterId(bytes.u64()?),
        resource: ResourceId(bytes.u64()?),
        signer: NodeId(bytes.u16()?),
        revision: bytes.u64()?,
        fork: bytes.u64()?,
        epoch: Epoch(bytes.u64()?),
        members: Vec::new(),
        standings: Vec::new(),
    };
    for _ in 0..bytes.u16()? {
        voucher.members.push(NodeId(bytes.u16()?));
    }
    while !bytes.is_empty() {
        let (node, number, admitted) = (NodeId(bytes.u16()?), bytes.u64()?, bytes.bool()?);
        voucher.standings.push(Standing { node, number, admitted });
    }
    check(&voucher).map_err(DecodeError::Damaged)?;
    Ok(voucher)
}

fn check(voucher: &Voucher) -> Result<(), &'static str> {
    if voucher.members.len() > MEMBERS_MAX || voucher.standings.len() > STANDINGS_MAX {
        return Err("too many nodes in a voucher");
    }
    let members = voucher.members.is_sorted_by(|a, b| a < b);
    if !members || !voucher.standings.is_sorted_by(|a, b| a.node < b.node) {
        return Err("nodes of a voucher do not ascend");
    }
    let nodes = voucher.standings.iter().map(|standing| standing.node);
    if nodes.chain([voucher.signer]).chain(voucher.members.iter().copied()).any(|n| n == NodeId(0))
    {
        return Err("node 0 is no node");
    }
    if voucher.standings.iter().any(|standing| standing.number == 0) {
        return Err("changes are counted from 1");
    }
    Ok(())
}

/// What is wrong with a voucher's parts.
pub(crate) fn check_signed(signed: &SignedVoucher) -> Result<(), &'static str> {
    if signed.statement.len() > STATEMENT_BYTES_MAX
        || signed.certificate.len() > VOUCHER_CERTIFICATE_BYTES_MAX
        || signed.signature.len() > SIGNATURE_BYTES_MAX
    {
        return Err("too long a voucher");
    }
    Ok(())
}

/// Appends the body of a frame with `signed`.
pub(crate) fn put_signed(signed: &SignedVoucher, out: &mut Vec<u8>) {
    out.put_u64(signed.resource.0);
    out.put_u16(signed.scheme);
    for part in [&signed.statement, &signed.certificate] {
        out.put_u16(u16::try_from(part.len()).expect("checked"));
        out.extend_from_slice(part);
    }
    out.extend_from_slice(&signed.signature);
}

/// The signed voucher that the body of a frame holds.
pub(crate) fn take_signed(body: &mut Reader<'_>) -> Result<SignedVoucher, DecodeError> {
    let resource = ResourceId(body.u64()?);
    let scheme = body.u16()?;
    let mut part = || {
        let length = usize::from(body.u16()?);
        body.bytes(length).map(<[u8]>::to_vec)
    };
    let (statement, certificate) = (part()?, part()?);
    Ok(SignedVoucher { resource, statement, scheme, certificate, signature: body.rest().to_vec() })
}
