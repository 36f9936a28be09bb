//! Split rings of virtio, in memory that a machine writes meanwhile.

use alloc::vec::Vec;

use crate::message::{ring_size, u16_at, u32_at, u64_at};
use crate::{Fault, Place, Regions, RingAddresses};

/// Places of one ring, at most: what QEMU allows.
pub const RING_SIZE_MAX: u16 = 1024;

/// Descriptors of one request, at most, those of its table included.
const CHAIN_MAX: usize = 1024;

const DESCRIPTOR_BYTES: u64 = 16;
const HAS_NEXT: u16 = 1;
const TO_WRITE: u16 = 2;
const IS_TABLE: u16 = 4;

/// The machine does not want to be told what is answered.
const NO_INTERRUPT: u16 = 1;

/// Memory is not there any more.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Lost;

impl From<Lost> for Fault {
    fn from(_: Lost) -> Fault {
        Fault::Gone
    }
}

/// What a front end shares. A place that is asked for lies in one of the regions with all of its bytes: the owner checks that
/// again.
pub trait Memory {
    /// Copies from there.
    ///
    /// # Errors
    /// [`Lost`].
    fn read(&self, place: Place, bytes: &mut [u8]) -> Result<(), Lost>;
    /// Copies to there.
    ///
    /// # Errors
    /// [`Lost`].
    fn write(&self, place: Place, bytes: &[u8]) -> Result<(), Lost>;
    /// A number of two bytes; whatever is read afterwards is read later.
    ///
    /// # Errors
    /// [`Lost`].
    fn load(&self, place: Place) -> Result<u16, Lost>;
    /// Writes a number of two bytes, after everything that was written before.
    ///
    /// # Errors
    /// [`Lost`].
    fn store(&self, place: Place, number: u16) -> Result<(), Lost>;
}

/// Bytes of a request that lie in one place.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Part {
    /// Where.
    pub place: Place,
    /// How many.
    pub bytes: u64,
}

/// One request's memory.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Chain {
    /// What the device reads, in order.
    pub readable: Vec<Part>,
    /// What the device writes, in order.
    pub writable: Vec<Part>,
}

/// Where a ring is, all of it inside the machine's memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ring {
    size: u16,
    descriptors: Place,
    available: Place,
    used: Place,
}

impl Ring {
    /// A ring of so many places at these addresses.
    ///
    /// # Errors
    /// It is not wholly in the table's memory, or askew.
    pub fn new(size: u16, at: &RingAddresses, regions: &Regions) -> Result<Ring, Fault> {
        let count = u64::from(ring_size(u32::from(size))?);
        for (address, alignment) in [(at.descriptors, 16), (at.available, 2), (at.used, 4)] {
            if !address.is_multiple_of(alignment) {
                return Err(Fault::Alignment(address));
            }
        }
        let ring = Ring {
            size,
            descriptors: regions.user(at.descriptors, DESCRIPTOR_BYTES * count)?,
            available: regions.user(at.available, 4 + 2 * count)?,
            used: regions.user(at.used, 4 + 8 * count)?,
        };
        // What is read and written as a number is one in the mapping, too.
        for place in [ring.available, ring.used] {
            if !place.offset.is_multiple_of(2) {
                return Err(Fault::Alignment(place.offset));
            }
        }
        Ok(ring)
    }

    /// Its places.
    #[must_use]
    pub fn size(&self) -> u16 {
        self.size
    }

    /// How many requests are there that are not taken yet, if so many are.
    ///
    /// # Errors
    /// More than the ring holds.
    pub fn waiting(&self, memory: &impl Memory, taken: u16) -> Result<u16, Fault> {
        let count = memory.load(self.available.after(2))?.wrapping_sub(taken);
        if count > self.size { Err(Fault::Available(count)) } else { Ok(count) }
    }

    /// The request that was given as this one: the number of its first descriptor.
    ///
    /// # Errors
    /// There is no such descriptor.
    pub fn head(&self, memory: &impl Memory, taken: u16) -> Result<u16, Fault> {
        let at = self.available.after(4 + 2 * u64::from(taken % self.size));
        let head = memory.load(at)?;
        if head < self.size { Ok(head) } else { Err(Fault::Descriptor(head)) }
    }

    /// Requests that were answered, as the machine sees it.
    ///
    /// # Errors
    /// [`Fault::Gone`].
    pub fn answered(&self, memory: &impl Memory) -> Result<u16, Fault> {
        Ok(memory.load(self.used.after(2))?)
    }

    /// Writes down that a request is answered, as number `answered`; and the count, which says so.
    ///
    /// # Errors
    /// [`Fault::Gone`].
    pub fn answer(
        &self,
        memory: &impl Memory,
        answered: u16,
        head: u16,
        written: u32,
    ) -> Result<(), Fault> {
        let mut element = [0; 8];
        element[..2].copy_from_slice(&head.to_le_bytes());
        element[4..].copy_from_slice(&written.to_le_bytes());
        memory.write(self.used.after(4 + 8 * u64::from(answered % self.size)), &element)?;
        memory.store(self.used.after(2), answered.wrapping_add(1))?;
        Ok(())
    }

    /// Whether the machine wants to be told.
    ///
    /// # Errors
    /// [`Fault::Gone`].
    pub fn wants_call(&self, memory: &impl Memory) -> Result<bool, Fault> {
        Ok(memory.load(self.available)? & NO_INTERRUPT == 0)
    }

    /// All memory of a request. Each descriptor is read once.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn chain(
        &self,
        memory: &impl Memory,
        regions: &Regions,
        head: u16,
        tables: bool,
    ) -> Result<Chain, Fault> {
        let mut chain = Chain::default();
        let (mut table, mut size) = (Table::Ring(self.descriptors), self.size);
        let mut at = head;
        for _ in 0..CHAIN_MAX {
            if at >= size {
                return Err(Fault::Descriptor(at));
            }
            let mut bytes = [0; 16];
            table.read(memory, regions, at, &mut bytes)?;
            let (address, length) = (u64_at(&bytes, 0), u32_at(&bytes, 8));
            let (flags, next) = (u16_at(&bytes, 12), u16_at(&bytes, 14));
            if flags & IS_TABLE != 0 {
                let inside = matches!(table, Table::Own(_));
                if !tables || inside || flags & HAS_NEXT != 0 {
                    return Err(Fault::Indirect);
                }
                let count = u64::from(length) / DESCRIPTOR_BYTES;
                let right = u64::from(length).is_multiple_of(DESCRIPTOR_BYTES)
                    && (1..=u64::from(RING_SIZE_MAX)).contains(&count);
                if !right {
                    return Err(Fault::Size(length));
                }
                table = Table::Own(address);
                (size, at) = (u16::try_from(count).expect("at most 1024"), 0);
                continue;
            }
            if length == 0 {
                return Err(Fault::Size(length));
            }
            chain.add(regions, address, length, flags & TO_WRITE != 0)?;
            if flags & HAS_NEXT == 0 {
                return Ok(chain);
            }
            at = next;
        }
        Err(Fault::Chain)
    }
}

/// Where descriptors are read.
enum Table {
    /// In the ring.
    Ring(Place),
    /// In a table of the request's own, at this address of the machine.
    Own(u64),
}

impl Table {
    fn read(
        &self,
        memory: &impl Memory,
        regions: &Regions,
        number: u16,
        bytes: &mut [u8; 16],
    ) -> Result<(), Fault> {
        let after = DESCRIPTOR_BYTES * u64::from(number);
        match self {
            Table::Ring(place) => Ok(memory.read(place.after(after), bytes)?),
            Table::Own(address) => {
                let start = address.checked_add(after).ok_or(Fault::Address(*address))?;
                // It may lie across two regions.
                let (mut done, mut lost) = (0, Ok(()));
                regions.places(start, DESCRIPTOR_BYTES, |place, count| {
                    let count = usize::try_from(count).expect("at most 16");
                    let read = memory.read(place, &mut bytes[done..done + count]);
                    lost = lost.and(read);
                    done += count;
                })?;
                Ok(lost?)
            }
        }
    }
}

impl Chain {
    fn add(
        &mut self,
        regions: &Regions,
        address: u64,
        length: u32,
        to_write: bool,
    ) -> Result<(), Fault> {
        if !to_write && !self.writable.is_empty() {
            return Err(Fault::Order);
        }
        let parts = if to_write { &mut self.writable } else { &mut self.readable };
        regions.places(address, u64::from(length), |place, bytes| parts.push(Part { place, bytes }))
    }
}
