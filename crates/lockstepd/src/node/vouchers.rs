//! How nodes that were away learn who was admitted to a resource and who was dismissed meanwhile: from what its
//! members have signed, whoever shows it ([0010](../../../../docs/design/0010-admission.md)).
//!
//! A member signs what it knows whenever that has changed, keeps it with what others have signed, and shows all
//! of it to each node of the resource: when a connection begins, before anything else is said about the resource;
//! when the peer begins to run it; and when something is new.
//!
//! Always: what a peer shows changes nothing unless a member that this node knows, or was told of so, has signed
//! it; it only says who may speak: members are whom the register names, and a node that a configuration names is
//! let in whatever a voucher says.
//!
//! Not here: which word counts (`roster`), signatures (`link`), bytes (`wire`).

use std::collections::BTreeSet;
use std::sync::Arc;

use base::{Duration, Instant, NodeId, ResourceId};
use wire::admin::FileNode;
use wire::{
    Configuration, DecodeError, NodeMessage, SignedVoucher, VOUCHER_CERTIFICATE_BYTES_MAX,
    decode_voucher, encode_voucher,
};

use super::Node;
use super::admission::without;
use super::lifecycle::Known;
use super::roster::Roster;
use crate::log::{debug, info, warning};

/// What is to be signed or written when there is time: one in each turn, for each is a wait for a disk, and a resource has at
/// least one.
#[derive(Debug, Default)]
pub(super) struct Unsaid {
    /// Resources of which this node's certificate is to sign anew what it knows.
    unsigned: BTreeSet<String>,
    /// Rosters that are not on the disk as they are: of what follows from nothing, and would be shown again.
    unsaved: BTreeSet<String>,
}

impl Unsaid {
    fn is_empty(&self) -> bool {
        self.unsigned.is_empty() && self.unsaved.is_empty()
    }
}

/// What is wrong with a voucher that no honest node shows: it would have looked at it first.
pub(super) type Fault = &'static str;

impl Node {
    pub(super) fn known_by_id(&self, id: ResourceId) -> Option<&Known> {
        self.known.values().find(|known| known.file.id == id.0)
    }

    /// The newest configuration that this node knows of a resource.
    fn configuration_of(&self, known: &Known) -> Option<Arc<Configuration>> {
        let running = known.running.and_then(|key| self.resources.get(key));
        let found = running.and_then(|resource| resource.configuration());
        found.or_else(|| known.file.configuration().ok().map(Arc::new))
    }

    /// Whether a node's word about a resource counts: a member's, as far as is known here.
    pub(super) fn is_member_of(&self, known: &Known, node: NodeId) -> bool {
        known.roster.may_vouch(node, self.configuration_of(known).as_deref())
    }

    /// A peer may be told of a resource that is known here.
    fn may_hear_of(&self, known: &Known, peer: NodeId) -> bool {
        known.file.node_name(peer).is_some() || self.is_of(ResourceId(known.file.id), peer)
    }

    /// Reads what was kept of a resource's nodes. Without it others tell it again.
    pub(super) fn read_roster(&self, id: ResourceId) -> Roster {
        let path = Roster::path(&self.config.directory, id);
        Roster::read(&path).unwrap_or_else(|why| {
            warning!("{}: {why}; it is made anew", path.display());
            Roster::default()
        })
    }

    fn save_roster(&mut self, name: &str) {
        self.unsaid.unsaved.remove(name);
        let Some(known) = self.known.get(name) else { return };
        let id = ResourceId(known.file.id);
        let path = Roster::path(&self.config.directory, id);
        if let Err(why) = known.roster.write(&path, self.config.node, id) {
            warning!("{}: {why}", path.display());
        }
    }

    /// A resource is none of this node's any more.
    pub(super) fn drop_roster(&self, id: ResourceId) {
        std::fs::remove_file(Roster::path(&self.config.directory, id)).ok();
    }

    /// An operator has admitted or dismissed a node: that is kept before anything follows from it.
    pub(super) fn note_standing(&mut self, name: &str, node: NodeId, admitted: bool) {
        let Some(known) = self.known.get_mut(name) else { return };
        known.roster.change(node, admitted);
        self.save_roster(name);
    }

    /// Signs what this node knows of a resource's nodes, if it is a member and has not said so, and tells it.
    pub(super) fn vouch(&mut self, name: &str) {
        let (own, cluster) = (self.config.node, self.config.cluster);
        let Some(config) = self.peers.config.clone() else { return };
        if let Some(known) = self.known.get_mut(name) {
            known.roster.unsay(own, config.certificate());
        }
        let Some(known) = self.known.get(name) else { return };
        // Committed: who is only about to join is believed by nobody.
        let running = known.running.and_then(|key| self.resources.get(key));
        let committed = running.and_then(|resource| resource.member().status().configuration);
        let Some(configuration) = committed else { return };
        if !known.roster.may_vouch(own, Some(&configuration)) {
            return;
        }
        let id = ResourceId(known.file.id);
        let Some(voucher) = known.roster.to_say(cluster, id, own, &configuration) else { return };
        let statement = encode_voucher(&voucher);
        let proof = config.prove(&statement);
        let Some(proof) =
            proof.filter(|proof| proof.certificate.len() <= VOUCHER_CERTIFICATE_BYTES_MAX)
        else {
            return warning!("{name}: this node's certificate or key is not made to sign vouchers");
        };
        let link::Proof { scheme, certificate, signature } = proof;
        let signed = SignedVoucher { resource: id, statement, scheme, certificate, signature };
        if let Some(known) = self.known.get_mut(name) {
            known.roster.said(voucher, signed.clone());
        }
        self.save_roster(name);
        self.spread_voucher(name, &signed, None);
    }

    /// This node's certificate is a new one: what it has said is signed anew.
    pub(super) fn vouch_anew(&mut self) {
        let said = self.known.iter().filter(|(_, known)| !known.roster.is_blank());
        self.unsaid.unsigned.extend(said.map(|(name, _)| name.clone()));
    }

    /// Goes on with what is to be signed and written, one resource at a time.
    pub(super) fn go_on_vouching(&mut self) {
        if let Some(name) = self.unsaid.unsigned.pop_first() {
            self.vouch(&name);
        } else if let Some(name) = self.unsaid.unsaved.pop_first() {
            self.save_roster(&name);
        }
    }

    /// Writes all that waits for it, as far as that takes no longer than this: what is left is shown again.
    pub(super) fn save_rosters(&mut self, limit: Duration) {
        let until = sys::clock() + limit;
        while sys::clock() < until
            && let Some(name) = self.unsaid.unsaved.pop_first()
        {
            self.save_roster(&name);
        }
    }

    /// At once, while anything is left.
    pub(super) fn unsaid_wake_at(&self) -> Option<Instant> {
        (!self.unsaid.is_empty()).then(|| self.hands.now())
    }

    /// Tells a voucher to all nodes of a resource that are connected, but not to who has shown it.
    fn spread_voucher(&mut self, name: &str, signed: &SignedVoucher, from: Option<NodeId>) {
        for (key, peer) in self.first_streams() {
            let known = &self.known[name];
            if Some(peer) != from && self.may_hear_of(known, peer) {
                self.send_node(key, &NodeMessage::Voucher(signed.clone()));
            }
        }
    }

    /// What a peer is to be shown of these resources, or of all.
    pub(super) fn vouchers_for(
        &mut self,
        peer: NodeId,
        only: Option<&[ResourceId]>,
    ) -> Vec<SignedVoucher> {
        let wanted = |known: &Known| {
            only.is_none_or(|ids| ids.contains(&ResourceId(known.file.id)))
                && !known.roster.is_blank()
        };
        let known = self.known.values().filter(|known| wanted(known));
        let names: Vec<String> = known
            .filter(|known| self.may_hear_of(known, peer))
            .map(|known| known.file.name.clone())
            .collect();
        for name in &names {
            self.vouch(name);
        }
        names.iter().flat_map(|name| self.known[name].roster.vouchers()).collect()
    }

    /// A peer shows a voucher. What an honest node never shows is an error.
    pub(super) fn on_voucher(&mut self, peer: NodeId, signed: SignedVoucher) -> Result<(), Fault> {
        let voucher = match decode_voucher(&signed.statement) {
            Ok(voucher) => voucher,
            Err(DecodeError::Schema(_)) => return Ok(()),
            Err(DecodeError::Damaged(_)) => return Err("it shows a voucher that is none"),
        };
        if voucher.cluster != self.config.cluster || voucher.resource != signed.resource {
            return Err("it shows a voucher for something else");
        }
        let (own, signer, id) = (self.config.node, voucher.signer, voucher.resource);
        let Some(known) = self.known_by_id(id) else { return Ok(()) };
        let name = known.file.name.clone();
        let shown = self.node_name(&name, peer);
        let whose = self.node_name(&name, signer);
        // What this node has said itself, and then forgot, it believes. What members of earlier times have said
        // it keeps for those who were away longer.
        let counts = signer == own || self.is_member_of(known, signer);
        if !counts && !self.is_member_of(known, peer) {
            debug!("{name}: {shown} shows what {whose} has signed, who is no member as known here");
            return Ok(());
        }
        if known.roster.has(&voucher) {
            return Ok(());
        }
        if let Err(why) = self.verify_voucher(signer, &signed)? {
            info!("{name}: what {whose} has signed is not believed: {why}");
            return Ok(());
        }
        let configuration = self.configuration_of(known);
        let Some(known) = self.known.get_mut(&name) else { return Ok(()) };
        if !counts {
            known.roster.keep(voucher, signed);
            self.unsaid.unsaved.insert(name);
            return Ok(());
        }
        let heard = known.roster.hear(voucher, signed.clone(), configuration.as_deref());
        let Ok(new) = heard else {
            warning!("{name}: what {whose} has signed is not believed: its numbers are absurd");
            return Ok(());
        };
        if new {
            self.save_roster(&name);
            self.settle_roster(&name);
            self.vouch(&name);
        } else {
            self.unsaid.unsaved.insert(name.clone());
        }
        self.spread_voucher(&name, &signed, Some(peer));
        Ok(())
    }

    /// Why a voucher is not to be believed, if it is not. Who forges one is at fault.
    fn verify_voucher(
        &self,
        signer: NodeId,
        signed: &SignedVoucher,
    ) -> Result<Result<(), link::Refusal>, Fault> {
        let config = self.peers.config().expect("who has peers has an identity");
        let proof = link::Proof {
            scheme: signed.scheme,
            certificate: signed.certificate.clone(),
            signature: signed.signature.clone(),
        };
        match config.verify(&signed.statement, &proof) {
            Ok(node) if node == signer => Ok(Ok(())),
            Ok(_) => Err("it shows a voucher that another has signed"),
            Err(link::Refusal::Damaged) => Err("it shows a forged voucher"),
            Err(why) => Ok(Err(why)),
        }
    }

    /// Makes the list of a resource's nodes what its roster says.
    pub(super) fn settle_roster(&mut self, name: &str) {
        let own = self.config.node;
        let Some(known) = self.known.get(name) else { return };
        let configuration = self.configuration_of(known);
        let mut file = known.file.clone();
        for node in known.roster.admitted() {
            if file.node_name(node).is_none() {
                let shown = self.node_name(name, node);
                info!("{name}: {shown} is one of its nodes: a member says so");
                file.nodes.push(FileNode { id: node.0, name: shown, addresses: Vec::new() });
            }
        }
        for node in known.roster.dismissed() {
            let needed = configuration.as_ref().is_some_and(|configuration| {
                configuration.member(node).is_some() || configuration.primary == Some(node)
            });
            if node == own || needed || file.node_name(node).is_none() {
                continue;
            }
            info!("{name}: {} is none of its nodes any more", self.node_name(name, node));
            file = without(&file, configuration.as_deref(), |member| member == node);
            file.nodes.retain(|entry| entry.id != node.0);
        }
        if file == known.file {
            return;
        }
        let result = match file.check() {
            Ok(()) => self.rename_nodes(name, file).map_err(|refused| refused.to_string()),
            Err(error) => Err(error.0),
        };
        if let Err(why) = result {
            warning!("{name}: its file does not say which nodes it has: {why}");
        }
    }
}
