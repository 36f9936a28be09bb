//! The table of a machine's memory: which of its addresses lie where in what the front end shares.

use alloc::vec::Vec;

use crate::Fault;

/// Regions of one machine, at most: as many as one message has.
pub const REGIONS_MAX: usize = 8;

/// One region, as a front end tells of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Region {
    /// Where the machine has it.
    pub guest: u64,
    /// Its length.
    pub bytes: u64,
    /// Where the front end itself has it.
    pub user: u64,
    /// Where it begins in the file that comes with it.
    pub offset: u64,
}

/// A place in a region.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Place {
    /// Number of the region.
    pub region: usize,
    /// Bytes from its beginning.
    pub offset: u64,
}

impl Place {
    /// So many bytes further on; whoever got the place knows how far it reaches.
    #[must_use]
    pub fn after(self, bytes: u64) -> Place {
        Place { offset: self.offset + bytes, ..self }
    }
}

/// All regions, of which no two overlap.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Regions(Vec<Region>);

impl Regions {
    /// The table, if it is one.
    ///
    /// # Errors
    /// [`Fault::Regions`].
    pub fn new(all: Vec<Region>) -> Result<Regions, Fault> {
        let ends = |start: u64, bytes: u64| start.checked_add(bytes);
        let right = |one: &Region| {
            let whole = ends(one.guest, one.bytes)
                .and(ends(one.user, one.bytes))
                .and(ends(one.offset, one.bytes));
            one.bytes > 0 && whole.is_some()
        };
        let apart = |a: u64, b: u64, a_bytes: u64, b_bytes: u64| {
            if a < b { b - a >= a_bytes } else { a - b >= b_bytes }
        };
        let alone = |(number, one): (usize, &Region)| {
            all[..number].iter().all(|other| {
                apart(one.guest, other.guest, one.bytes, other.bytes)
                    && apart(one.user, other.user, one.bytes, other.bytes)
            })
        };
        let good =
            all.len() <= REGIONS_MAX && all.iter().all(right) && all.iter().enumerate().all(alone);
        if good { Ok(Regions(all)) } else { Err(Fault::Regions) }
    }

    /// Each of them.
    #[must_use]
    pub fn all(&self) -> &[Region] {
        &self.0
    }

    /// Where an address of the machine is, and how many bytes of that region follow.
    fn guest(&self, address: u64) -> Option<(Place, u64)> {
        find(&self.0, address, |region| region.guest)
    }

    /// Where the front end's own address is, if so many bytes lie there in one region.
    ///
    /// # Errors
    /// [`Fault::Address`].
    pub fn user(&self, address: u64, bytes: u64) -> Result<Place, Fault> {
        match find(&self.0, address, |region| region.user) {
            Some((place, rest)) if rest >= bytes => Ok(place),
            _ => Err(Fault::Address(address)),
        }
    }

    /// Where a range of the machine's addresses is: in one place, or in several where regions follow each other.
    ///
    /// # Errors
    /// [`Fault::Address`] if any part of it is nowhere, or it has no end.
    pub(crate) fn places(
        &self,
        address: u64,
        bytes: u64,
        mut take: impl FnMut(Place, u64),
    ) -> Result<(), Fault> {
        if address.checked_add(bytes).is_none() {
            return Err(Fault::Address(address));
        }
        let (mut at, mut left) = (address, bytes);
        while left > 0 {
            let Some((place, rest)) = self.guest(at) else { return Err(Fault::Address(at)) };
            let here = rest.min(left);
            take(place, here);
            (at, left) = (at + here, left - here);
        }
        Ok(())
    }
}

fn find(all: &[Region], address: u64, start: impl Fn(&Region) -> u64) -> Option<(Place, u64)> {
    all.iter().enumerate().find_map(|(number, region)| {
        let offset = address.checked_sub(start(region))?;
        let rest = region.bytes.checked_sub(offset).filter(|&rest| rest > 0)?;
        Some((Place { region: number, offset }, rest))
    })
}
