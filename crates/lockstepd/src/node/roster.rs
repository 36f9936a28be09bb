//! What this node knows of who was admitted to a resource and who was dismissed, and whose signed words it has
//! for that: one file for each resource, beside the description (`vouchers/ID.toml`).
//!
//! Each admission and each dismissal has a number above all that its author knew; for each node the greatest
//! counts. So all nodes that have heard the same words, in whatever order, come to the same.
//!
//! Always: nothing here grows without a limit; what a voucher says is taken in only once its caller has verified
//! the signature and that the signer `may_vouch`. A file is believed if it is as it was written, which its checksum
//! says: signatures are not looked at again. One that has expired since must still be shown to those who were away,
//! and what this node knows itself nobody has signed.
//!
//! Not here: what becomes of it in the list of a resource's nodes, and how it travels (`vouchers`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base::{ClusterId, Epoch, NodeId, ResourceId, crc32c};
use serde::{Deserialize, Serialize};
use wire::{
    Configuration, MEMBERS_MAX, STANDINGS_MAX, SignedVoucher, Standing, Voucher, decode_voucher,
    encode_voucher,
};

use super::files::replace_file;

/// Signers whose newest voucher is kept, for those who know no newer member: as many as a configuration has.
const VOUCHERS_MAX: usize = MEMBERS_MAX;

/// How far a number may lie above all that are known here. Nobody was away for more changes; and who lies cannot
/// reach the end of the numbers, above which no true word would count.
const NUMBER_STEP_MAX: u64 = 1 << 20;

/// What is known of who was admitted to a resource and dismissed.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Roster {
    standings: BTreeMap<NodeId, Standing>,
    /// Members of a configuration newer than this node's, as a voucher has them, until the register says it.
    newest: Option<(u64, Epoch, Vec<NodeId>)>,
    /// What each signer said last.
    held: BTreeMap<NodeId, (Voucher, SignedVoucher)>,
    /// Of this node's own last voucher.
    revision: u64,
    /// The greatest number of a standing that was let go for want of room. What others still hold of one that is not
    /// known here any more, up to this number, does not count: its dismissal may be what went.
    floor: u64,
}

/// A voucher's numbers are far beyond all that are known here.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct TooFar;

/// What the first line of a file begins with, before the CRC-32C of all behind that line in hexadecimal. A comment,
/// so that programs from before there was one read the file, too.
const CHECKSUM: &str = "# crc32c ";

/// A roster as a file has it.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct RosterFile {
    /// What is known, in the form of a voucher that nobody signs; hexadecimal.
    known: String,
    #[serde(default)]
    floor: u64,
    #[serde(default)]
    vouchers: Vec<VoucherFile>,
}

/// A signed voucher in it; all but the scheme in hexadecimal.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct VoucherFile {
    statement: String,
    scheme: u16,
    certificate: String,
    signature: String,
}

impl Roster {
    /// Whether nothing was ever said: then there is nothing to sign either.
    pub(super) fn is_blank(&self) -> bool {
        *self == Roster::default()
    }

    /// Whether a node was admitted or else dismissed last; `None`: neither, as far as is known here.
    pub(super) fn standing(&self, node: NodeId) -> Option<bool> {
        self.standings.get(&node).map(|standing| standing.admitted)
    }

    /// Nodes that are to be let in.
    pub(super) fn admitted(&self) -> Vec<NodeId> {
        let said = self.standings.values().filter(|standing| standing.admitted);
        let members = self.newest.iter().flat_map(|(.., members)| members);
        let members = members.filter(|&&node| self.standing(node) != Some(false));
        said.map(|standing| standing.node).chain(members.copied()).collect()
    }

    /// Nodes that are not.
    pub(super) fn dismissed(&self) -> Vec<NodeId> {
        let said = self.standings.values().filter(|standing| !standing.admitted);
        said.map(|standing| standing.node).collect()
    }

    /// Whether a node's word counts: a member's, by the configuration known here or by what a member said; not
    /// of one that was dismissed.
    pub(super) fn may_vouch(&self, node: NodeId, known: Option<&Configuration>) -> bool {
        let member = known.is_some_and(|known| known.member(node).is_some());
        let said = self.newest.as_ref().is_some_and(|(.., members)| members.contains(&node));
        (member || said) && self.standing(node) != Some(false)
    }

    /// An operator admits or dismisses a node.
    pub(super) fn change(&mut self, node: NodeId, admitted: bool) {
        let number = self.number_max().saturating_add(1);
        self.put(Standing { node, number, admitted });
    }

    /// The register has a member that nobody admitted. It stays admitted when it is no member any more, but any
    /// operator's word counts more.
    pub(super) fn note_member(&mut self, node: NodeId) {
        if self.standing(node).is_none() {
            self.put(Standing { node, number: self.floor + 1, admitted: true });
        }
    }

    /// The register itself was reached: what vouchers said of the members of this configuration, or of an older one, is
    /// of no more use.
    pub(super) fn reach_register(&mut self, known: &Configuration) {
        let reached = (known.fork, known.epoch);
        self.newest.take_if(|(fork, epoch, _)| (*fork, *epoch) <= reached);
    }

    fn number_max(&self) -> u64 {
        let numbers = self.standings.values().map(|standing| standing.number);
        numbers.max().unwrap_or_default().max(self.floor)
    }

    /// Keeps a change if it counts more than what is known; whether it does.
    fn put(&mut self, new: Standing) -> bool {
        let counts = |old: &Standing| {
            let (new, old) = ((new.number, !new.admitted), (old.number, !old.admitted));
            new > old
        };
        if !self.standings.get(&new.node).map_or(new.number > self.floor, counts) {
            return false;
        }
        self.standings.insert(new.node, new);
        if self.standings.len() > STANDINGS_MAX {
            // The oldest dismissal: who is not in the description is not let in either.
            let order = |standing: &&Standing| (standing.admitted, standing.number);
            let oldest = self.standings.values().min_by_key(order).copied();
            if let Some(oldest) = oldest {
                self.standings.remove(&oldest.node);
                self.floor = self.floor.max(oldest.number);
            }
        }
        self.standings.contains_key(&new.node)
    }

    /// Takes in what a member says, and keeps it for others; whether anything in it was new.
    pub(super) fn hear(
        &mut self,
        voucher: Voucher,
        signed: SignedVoucher,
        known: Option<&Configuration>,
    ) -> Result<bool, TooFar> {
        let new = self.absorb(&voucher, known)?;
        self.hold(voucher, signed);
        // Of others there may be kept what counts by this.
        for _ in 0..=self.held.len() {
            let mut more = false;
            let counts = self.held.values().filter(|(held, _)| self.may_vouch(held.signer, known));
            let counts: Vec<Voucher> = counts.map(|(held, _)| held.clone()).collect();
            for held in counts {
                more |= self.absorb(&held, known) == Ok(true);
            }
            if !more {
                break;
            }
        }
        Ok(new)
    }

    fn absorb(&mut self, said: &Voucher, known: Option<&Configuration>) -> Result<bool, TooFar> {
        let numbers = said.standings.iter().map(|standing| standing.number);
        if numbers.max().unwrap_or_default() > self.number_max().saturating_add(NUMBER_STEP_MAX) {
            return Err(TooFar);
        }
        let far = |known: &Configuration| {
            said.fork > known.fork.saturating_add(NUMBER_STEP_MAX)
                || said.epoch.0 > known.epoch.0.saturating_add(NUMBER_STEP_MAX)
        };
        if known.is_some_and(far) {
            return Err(TooFar);
        }
        let mut new = false;
        for &standing in &said.standings {
            new |= self.put(standing);
        }
        let stamp = (said.fork, said.epoch);
        let own = known.map(|known| (known.fork, known.epoch));
        let newest = self.newest.as_ref().map(|(fork, epoch, _)| (*fork, *epoch));
        if Some(stamp) > own.max(newest) {
            self.newest = Some((said.fork, said.epoch, said.members.clone()));
            new = true;
        }
        Ok(new)
    }

    /// Keeps what somebody has signed who is no member as known here, for those who knew that one: a member
    /// shows it. It changes nothing here.
    pub(super) fn keep(&mut self, voucher: Voucher, signed: SignedVoucher) {
        self.hold(voucher, signed);
    }

    /// Whether as much is held of its signer: then nobody need look at the signature.
    pub(super) fn has(&self, voucher: &Voucher) -> bool {
        let held = self.held.get(&voucher.signer).map(|(held, _)| held.revision);
        held.is_some_and(|revision| revision >= voucher.revision)
    }

    fn hold(&mut self, voucher: Voucher, signed: SignedVoucher) {
        let signer = voucher.signer;
        self.held.insert(signer, (voucher, signed));
        if self.held.len() > VOUCHERS_MAX {
            let order = |(node, (held, _)): &(&NodeId, &(Voucher, SignedVoucher))| {
                (**node == signer, held.fork, held.epoch)
            };
            let oldest = self.held.iter().min_by_key(order).map(|(node, _)| *node);
            oldest.map(|node| self.held.remove(&node));
        }
    }

    /// What a member of this configuration has to say that it has not said: to be signed.
    pub(super) fn to_say(
        &self,
        cluster: ClusterId,
        resource: ResourceId,
        own: NodeId,
        known: &Configuration,
    ) -> Option<Voucher> {
        let held = self.held.get(&own).map(|(held, _)| held);
        let revision = held.map_or(0, |held| held.revision).max(self.revision) + 1;
        let members = known.members.iter().map(|member| member.node).collect();
        let standings = self.standings.values().copied().collect();
        let (fork, epoch) = (known.fork, known.epoch);
        let new =
            Voucher { cluster, resource, signer: own, revision, fork, epoch, members, standings };
        let same = held.is_some_and(|held| {
            let (old, new) = ((&held.members, &held.standings), (&new.members, &new.standings));
            old == new && held.fork == fork
        });
        (!same).then_some(new)
    }

    /// This node has said this.
    pub(super) fn said(&mut self, voucher: Voucher, signed: SignedVoucher) {
        self.revision = voucher.revision;
        self.hold(voucher, signed);
    }

    /// What this node signed with another certificate than this is to be signed anew.
    pub(super) fn unsay(&mut self, own: NodeId, certificate: &[u8]) {
        let old = self.held.get(&own).filter(|(_, signed)| signed.certificate != certificate);
        if let Some(revision) = old.map(|(voucher, _)| voucher.revision) {
            self.held.remove(&own);
            self.revision = self.revision.max(revision);
        }
    }

    /// What is held of all signers, in the order in which a listener comes to believe them.
    pub(super) fn vouchers(&self) -> Vec<SignedVoucher> {
        let mut held: Vec<_> = self.held.values().collect();
        held.sort_by_key(|(voucher, _)| (voucher.fork, voucher.epoch, voucher.signer));
        held.into_iter().map(|(_, signed)| signed.clone()).collect()
    }

    /// Where the roster of a resource is.
    pub(super) fn path(directory: &Path, id: ResourceId) -> PathBuf {
        directory.join("vouchers").join(format!("{:016x}.toml", id.0))
    }

    /// What the file says; blank if there is none.
    pub(super) fn read(path: &Path) -> Result<Roster, String> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Roster::default());
            }
            Err(error) => return Err(error.to_string()),
        };
        let file: RosterFile = toml::from_str(intact(&text)?).map_err(|error| error.to_string())?;
        let known = decode_voucher(&from_hex(&file.known)?).map_err(|error| error.to_string())?;
        let standings = known.standings.iter().map(|standing| (standing.node, *standing)).collect();
        let members = (!known.members.is_empty()).then_some(known.members);
        let mut roster = Roster {
            standings,
            newest: members.map(|members| (known.fork, known.epoch, members)),
            held: BTreeMap::new(),
            revision: known.revision,
            floor: file.floor,
        };
        for entry in file.vouchers.iter().take(VOUCHERS_MAX) {
            let statement = from_hex(&entry.statement)?;
            let voucher = decode_voucher(&statement).map_err(|error| error.to_string())?;
            let signed = SignedVoucher {
                resource: voucher.resource,
                statement,
                scheme: entry.scheme,
                certificate: from_hex(&entry.certificate)?,
                signature: from_hex(&entry.signature)?,
            };
            roster.hold(voucher, signed);
        }
        Ok(roster)
    }

    /// Puts it into its file, whole or not at all.
    pub(super) fn write(&self, path: &Path, own: NodeId, id: ResourceId) -> Result<(), String> {
        let (fork, epoch, members) = self.newest.clone().unwrap_or((0, Epoch(0), Vec::new()));
        let known = encode_voucher(&Voucher {
            cluster: ClusterId(0),
            resource: id,
            signer: own,
            revision: self.revision,
            fork,
            epoch,
            members,
            standings: self.standings.values().copied().collect(),
        });
        let voucher = |signed: &SignedVoucher| VoucherFile {
            statement: to_hex(&signed.statement),
            scheme: signed.scheme,
            certificate: to_hex(&signed.certificate),
            signature: to_hex(&signed.signature),
        };
        let vouchers = self.held.values().map(|(_, signed)| voucher(signed)).collect();
        let file = RosterFile { known: to_hex(&known), floor: self.floor, vouchers };
        let text = toml::to_string(&file).map_err(|error| error.to_string())?;
        let text = format!("{CHECKSUM}{:08x}\n{text}", crc32c(text.as_bytes()));
        let directory = path.parent().expect("a roster has a directory");
        sys::make_directory(directory).map_err(|error| error.to_string())?;
        replace_file(path, text.as_bytes()).map_err(|error| error.to_string())
    }
}

/// What stands behind the checksum, which must be right if there is one.
fn intact(text: &str) -> Result<&str, String> {
    let Some(guarded) = text.strip_prefix(CHECKSUM) else { return Ok(text) };
    let (checksum, rest) = guarded.split_once('\n').unwrap_or_default();
    if u32::from_str_radix(checksum, 16) == Ok(crc32c(rest.as_bytes())) {
        return Ok(rest);
    }
    Err("it is not as it was written: its checksum is that of something else".to_owned())
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Result<Vec<u8>, String> {
    let pair = |pair: &[u8]| {
        let digits = std::str::from_utf8(pair).ok().filter(|_| pair.len() == 2)?;
        u8::from_str_radix(digits, 16).ok()
    };
    let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(pair).collect();
    bytes.ok_or_else(|| "it holds something else than hexadecimal digits".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::{MemberEntry, MemberKind, Options};

    fn configuration(epoch: u64, members: &[u16]) -> Configuration {
        let entry = |node: &u16| MemberEntry {
            node: NodeId(*node),
            kind: MemberKind::Witness,
            voter: base::VoterId(u64::from(*node)),
            in_sync: false,
            incarnation: base::Incarnation(0),
        };
        let members = members.iter().map(entry).collect();
        let first = Configuration::first(members, Vec::new(), Options::default());
        Configuration { epoch: Epoch(epoch), ..first }
    }

    /// What a node with this roster would sign.
    fn say(roster: &mut Roster, own: u16, known: &Configuration) -> (Voucher, SignedVoucher) {
        let (cluster, id) = (ClusterId(1), ResourceId(7));
        let voucher = roster.to_say(cluster, id, NodeId(own), known).expect("something to say");
        let signed = SignedVoucher {
            resource: id,
            statement: encode_voucher(&voucher),
            scheme: 1,
            certificate: vec![1, 2],
            signature: vec![3],
        };
        roster.said(voucher.clone(), signed.clone());
        (voucher, signed)
    }

    /// Node 2 hears of it, if the signer may vouch: whether anything was new.
    fn hear(roster: &mut Roster, said: &(Voucher, SignedVoucher), known: &Configuration) -> bool {
        assert!(roster.may_vouch(said.0.signer, Some(known)), "{:?}", said.0);
        roster.hear(said.0.clone(), said.1.clone(), Some(known)).expect("it is worth it")
    }

    #[test]
    fn who_was_away_believes_a_chain_of_members_of_which_it_knew_the_first_only() {
        let known = configuration(4, &[1, 2, 4]);
        let (mut a, mut c, mut b) = (Roster::default(), Roster::default(), Roster::default());
        a.change(NodeId(3), true);
        let by_a = say(&mut a, 1, &configuration(6, &[1, 2, 3]));
        hear(&mut c, &by_a, &configuration(6, &[1, 2, 3]));
        c.change(NodeId(5), true);
        let by_c = say(&mut c, 3, &configuration(9, &[2, 3, 5]));
        assert!(!b.may_vouch(NodeId(3), Some(&known)), "nobody has said who that is");
        assert!(hear(&mut b, &by_a, &known));
        assert_eq!(b.admitted(), [NodeId(3), NodeId(1), NodeId(2), NodeId(3)]);
        assert!(hear(&mut b, &by_c, &known));
        assert!(b.may_vouch(NodeId(5), Some(&known)) && b.admitted().contains(&NodeId(5)));
        // Who holds them shows the one first that is believed first.
        assert_eq!(b.vouchers(), [by_a.1.clone(), by_c.1.clone()]);
        // Who came later never knew the first, and keeps what it said all the same.
        let mut e = Roster::default();
        e.keep(by_a.0.clone(), by_a.1.clone());
        assert!(e.admitted().is_empty(), "it is not believed");
        hear(&mut e, &by_c, &configuration(8, &[2, 3, 5]));
        assert_eq!(e.vouchers(), [by_a.1.clone(), by_c.1.clone()]);
        // What was kept counts as soon as its signer does.
        let mut late = Roster::default();
        late.keep(by_c.0.clone(), by_c.1.clone());
        assert!(hear(&mut late, &by_a, &known) && late.admitted().contains(&NodeId(5)));
        b.reach_register(&configuration(8, &[1, 2, 4]));
        assert!(b.may_vouch(NodeId(5), Some(&known)), "what the register said then is older");
        b.reach_register(&configuration(9, &[1, 2, 4]));
        assert!(!b.may_vouch(NodeId(5), Some(&known)), "the register says who is a member");
        assert!(b.admitted().contains(&NodeId(5)), "who was admitted stays so");
    }

    #[test]
    fn the_greater_number_counts_in_whatever_order_it_is_heard_and_a_dismissal_if_they_are_alike() {
        let known = configuration(4, &[1, 2, 4]);
        let mut a = Roster::default();
        a.change(NodeId(3), true);
        let first = say(&mut a, 1, &known);
        a.change(NodeId(3), false);
        let second = say(&mut a, 1, &known);
        let mut b = Roster::default();
        assert!(hear(&mut b, &second, &known));
        assert_eq!(b.standing(NodeId(3)), Some(false));
        assert!(b.has(&first.0) && b.has(&second.0), "an old voucher is no news");
        let mut replayed = b.clone();
        hear(&mut replayed, &first, &known);
        assert_eq!(replayed.standing(NodeId(3)), Some(false), "nor would it change anything");
        // Somebody else still says what was true before.
        let mut d = Roster::default();
        hear(&mut d, &first, &known);
        let by_d = say(&mut d, 4, &known);
        assert!(!hear(&mut b, &by_d, &known), "its number is lower");
        assert_eq!(b.dismissed(), [NodeId(3)]);
        // Both sides of a cut, each with its own next word.
        d.change(NodeId(3), true);
        assert_eq!(d.standings[&NodeId(3)].number, a.standings[&NodeId(3)].number);
        let raced = say(&mut d, 4, &known);
        assert!(!hear(&mut b.clone(), &raced, &known), "alike, and an admission");
        hear(&mut d, &second, &known);
        assert_eq!(d.standing(NodeId(3)), Some(false));
        b.change(NodeId(3), true);
        assert_eq!(b.standing(NodeId(3)), Some(true), "an operator's next word counts");
    }

    #[test]
    fn who_was_dismissed_vouches_for_nobody_even_where_it_is_still_a_member() {
        let known = configuration(4, &[1, 2, 4]);
        let mut roster = Roster::default();
        assert!(roster.may_vouch(NodeId(4), Some(&known)));
        roster.change(NodeId(4), false);
        assert!(!roster.may_vouch(NodeId(4), Some(&known)));
        assert!(!roster.may_vouch(NodeId(9), Some(&known)), "no member");
        roster.change(NodeId(9), true);
        assert!(!roster.may_vouch(NodeId(9), Some(&known)), "a client vouches for nobody");
        roster.note_member(NodeId(4));
        assert_eq!(roster.standing(NodeId(4)), Some(false), "an old configuration is no admission");
        // An older configuration than this node's own is not believed to be the newest.
        let mut other = Roster::default();
        other.change(NodeId(6), true);
        let old = say(&mut other, 1, &configuration(3, &[1, 6]));
        hear(&mut roster, &old, &known);
        assert!(!roster.may_vouch(NodeId(6), Some(&known)));
    }

    #[test]
    fn numbers_that_nobody_reaches_are_not_believed() {
        let known = configuration(4, &[1, 2, 4]);
        let mut liar = Roster::default();
        liar.put(Standing { node: NodeId(3), number: u64::MAX, admitted: false });
        let said = say(&mut liar, 1, &known);
        let mut roster = Roster::default();
        assert_eq!(roster.hear(said.0, said.1, Some(&known)), Err(TooFar));
        assert!(roster.is_blank());
    }

    #[test]
    fn a_roster_has_limits_and_lets_the_oldest_dismissals_go() {
        let known = configuration(4, &[1, 2, 4]);
        let mut roster = Roster::default();
        for node in 1..=500 {
            roster.change(NodeId(node), node % 100 == 0);
        }
        assert_eq!(roster.standings.len(), STANDINGS_MAX);
        assert_eq!(roster.admitted().len(), 5, "no admission went");
        assert!(roster.dismissed().contains(&NodeId(499)) && roster.standing(NodeId(1)).is_none());
        for signer in 1..=40 {
            say(&mut Roster::clone(&roster), signer, &known);
            let mut other = roster.clone();
            let said = say(&mut other, signer, &configuration(u64::from(signer), &[1]));
            roster.hold(said.0, said.1);
        }
        assert_eq!(roster.held.len(), VOUCHERS_MAX);
        assert!(roster.held.contains_key(&NodeId(40)) && !roster.held.contains_key(&NodeId(1)));
    }

    #[test]
    fn rosters_that_are_full_take_in_what_they_hear_and_nobody_comes_back_by_old_words() {
        let known = configuration(4, &[1, 2, 4]);
        let mut a = Roster::default();
        a.change(NodeId(1000), true);
        let old = say(&mut a, 1, &known);
        a.change(NodeId(1000), false);
        for node in 1..=u16::try_from(STANDINGS_MAX).expect("few") - 1 {
            a.change(NodeId(node + 1), false);
            a.change(NodeId(node + 1), node % 2 == 0 && node < 20);
        }
        let mut b = a.clone();
        let by_b = say(&mut b, 2, &known);
        a.keep(by_b.0, by_b.1);
        say(&mut a, 1, &known);
        a.change(NodeId(2000), false);
        assert_eq!(a.standing(NodeId(1000)), None, "its dismissal went");
        let by_a = say(&mut a, 1, &configuration(5, &[1, 2, 4]));
        assert!(hear(&mut b, &by_a, &known));
        assert_eq!(b.standings, a.standings);
        assert!(!hear(&mut b, &by_a, &known), "it is known");
        hear(&mut b, &old, &known);
        assert_eq!(b.standing(NodeId(1000)), None, "an old voucher lets nobody in");
        let far = configuration(1 << 40, &[1]);
        let mut liar = Roster::default();
        liar.change(NodeId(9), true);
        let said = say(&mut liar, 1, &far);
        assert_eq!(b.hear(said.0, said.1, Some(&known)), Err(TooFar));
    }

    #[test]
    fn a_roster_is_the_same_after_a_start_and_a_damaged_file_is_told() {
        let directory =
            std::env::temp_dir().join(format!("lockstepd-roster-{}", std::process::id()));
        let id = ResourceId(7);
        let path = Roster::path(&directory, id);
        assert_eq!(Roster::read(&path), Ok(Roster::default()), "there is none yet");
        let known = configuration(6, &[1, 2, 3]);
        let mut a = Roster::default();
        a.change(NodeId(3), true);
        let by_a = say(&mut a, 1, &known);
        let mut roster = Roster::default();
        hear(&mut roster, &by_a, &configuration(4, &[1, 2, 4]));
        roster.change(NodeId(9), false);
        say(&mut roster, 2, &configuration(4, &[1, 2, 4]));
        roster.write(&path, NodeId(2), id).expect("a directory for this test");
        assert_eq!(Roster::read(&path), Ok(roster.clone()));
        // Saying it anew takes a revision that nobody has heard.
        let silent = |roster: &Roster| {
            let known = configuration(4, &[1, 2, 4]);
            roster.to_say(ClusterId(1), id, NodeId(2), &known).is_none()
        };
        roster.unsay(NodeId(2), &[1, 2]);
        assert!(silent(&roster), "it was said with this very certificate");
        roster.unsay(NodeId(2), &[9]);
        assert!(!silent(&roster));
        assert_eq!(say(&mut roster, 2, &known).0.revision, 2);
        std::fs::write(&path, "known = \"zz\"\n").expect("this test's own");
        assert!(Roster::read(&path).is_err());
        std::fs::remove_dir_all(&directory).expect("this test's own");
    }

    #[test]
    fn a_file_in_which_anything_has_changed_on_the_disk_is_not_believed() {
        let directory =
            std::env::temp_dir().join(format!("lockstepd-rotten-roster-{}", std::process::id()));
        let path = Roster::path(&directory, ResourceId(7));
        let known = configuration(6, &[1, 2, 3]);
        let mut roster = Roster::default();
        roster.change(NodeId(3), true);
        say(&mut roster, 1, &known);
        roster.write(&path, NodeId(1), ResourceId(7)).expect("a directory for this test");
        let good = std::fs::read(&path).expect("just written");
        let read = |bytes: &[u8]| {
            std::fs::write(&path, bytes).expect("this test's own");
            Roster::read(&path)
        };
        let what_is_left = |bytes: &[u8]| read(bytes).unwrap_or_else(|_| roster.clone());
        for at in 0..good.len() {
            for bit in [1, 4, 0x20] {
                let mut rotten = good.clone();
                rotten[at] ^= bit;
                assert_eq!(what_is_left(&rotten), roster, "byte {at} of {}", good.len());
            }
            assert!(read(&good[..at]).is_err(), "cut off at {at}");
        }
        let mut longer = good.clone();
        longer.extend_from_slice(b"floor = 9\n");
        assert!(read(&longer).is_err());
        // Written before there were checksums.
        let text = String::from_utf8(good).expect("text");
        let (_, old) = text.split_once('\n').expect("lines");
        assert_eq!(read(old.as_bytes()), Ok(roster.clone()));
        std::fs::remove_dir_all(&directory).expect("this test's own");
    }
}
