//! The superblock: whose disk this is, and where its metadata stands.
//!
//! Always: a node touches nothing of a disk whose superblock it does not fully understand: an unknown
//! bit among the incompatible features refuses the disk, and so does a layout that is none of ours; a bit among
//! the read-only ones refuses writes. Regions of kinds without a use here are passed over: the masks say whether
//! that is allowed.
//!
//! Not here: places as computed for a new disk (`layout`).

use super::bytes::{Reader, Writer, is_sealed, seal};
use super::{BadMetadata, LOG_COPIES, LOG_HALVES, Layout, RECORD_BYTES, RECORD_COPIES};
use crate::door::Page;
use alloc::boxed::Box;
use alloc::vec::Vec;
use base::{ClusterId, ResourceId, VolumeId};

/// First bytes of a volume's metadata.
const SUPERBLOCK_MAGIC: [u8; 8] = *b"LOCKSTEP";
/// What this version writes.
const SUPERBLOCK_FORMAT: u32 = 1;
/// Its length.
pub const SUPERBLOCK_BYTES: u64 = 4096;
/// Features this version knows among those that refuse the whole disk.
const INCOMPATIBLE_KNOWN: u64 = 0;
/// Features this version knows among those that refuse writes.
const READ_ONLY_KNOWN: u64 = 0;
/// Regions, at most.
const REGIONS_MAX: usize = 16;
/// Where the kind of layout stands: behind the room for all regions.
const LAYOUT_AT: usize = 384;

/// How the data of the volume lies on its disks. 2 is reserved for `stripe`, of which each disk would hold a part.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum LayoutKind {
    /// 1: each replica holds all of it, each sector at its own place.
    #[default]
    Replica,
}

/// Where the metadata stands.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum AreaPlace {
    /// At the end of the device that holds the data.
    #[default]
    Internal,
    /// On another device or file.
    External,
    /// In persistent memory.
    Pmem,
}

/// What a region holds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RegionKind {
    /// Both copies of the record.
    Records,
    /// The activity log, both halves and copies.
    Log,
    /// The dirty bitmaps, all slots.
    Bitmap,
    /// Block checksums, two pages for each extent.
    Checksums,
    /// Something else, by its number: 5 is reserved for a journal, 6 for the map of a snapshot.
    Other(u16),
}

impl RegionKind {
    fn number(self) -> u16 {
        match self {
            RegionKind::Records => 1,
            RegionKind::Log => 2,
            RegionKind::Bitmap => 3,
            RegionKind::Checksums => 4,
            RegionKind::Other(number) => number,
        }
    }

    fn of(number: u16) -> RegionKind {
        match number {
            1 => RegionKind::Records,
            2 => RegionKind::Log,
            3 => RegionKind::Bitmap,
            4 => RegionKind::Checksums,
            other => RegionKind::Other(other),
        }
    }
}

/// A run of bytes of the metadata area.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Region {
    /// What it holds.
    pub kind: RegionKind,
    /// Where it starts, in bytes from the start of the area.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
}

/// Whose disk this is, and where its metadata stands.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Superblock {
    /// Features that every version may pass over.
    pub compatible: u64,
    /// Features that a version must know to write.
    pub read_only: u64,
    /// Features that a version must know to read.
    pub incompatible: u64,
    /// Of which cluster.
    pub cluster: ClusterId,
    /// Of which resource.
    pub resource: ResourceId,
    /// Which volume.
    pub volume: VolumeId,
    /// Identity of the disk; random, given when the metadata was made.
    pub disk: u64,
    /// Where the metadata stands.
    pub place: AreaPlace,
    /// Number of bitmap slots.
    pub slots: u8,
    /// Size of the volume's data in sectors when the metadata was made or last resized.
    pub sectors: u64,
    /// The regions, ascending by offset.
    pub regions: Vec<Region>,
    /// How the data lies on its disks.
    pub layout: LayoutKind,
}

impl Superblock {
    /// The regions of `layout`.
    #[must_use]
    pub fn regions_of(layout: &Layout) -> Vec<Region> {
        let log = LOG_HALVES * u64::from(layout.log_pages) * LOG_COPIES * SUPERBLOCK_BYTES;
        [
            (RegionKind::Records, layout.records, RECORD_COPIES * RECORD_BYTES),
            (RegionKind::Log, layout.log, log),
            (RegionKind::Bitmap, layout.bitmap, layout.sums - layout.bitmap),
            (RegionKind::Checksums, layout.sums, layout.total_bytes - layout.sums),
        ]
        .into_iter()
        .map(|(kind, offset, length)| Region { kind, offset, length })
        .collect()
    }

    /// Where everything stands, as the sizes and the region of the log say; `None` if no log is as long as that.
    #[must_use]
    pub fn area(&self) -> Option<Layout> {
        let log = self.regions.iter().find(|region| region.kind == RegionKind::Log)?;
        let page_bytes = LOG_HALVES * LOG_COPIES * SUPERBLOCK_BYTES;
        let pages = u32::try_from(log.length / page_bytes).ok()?;
        let layout = Layout::with_log(self.sectors, self.slots, pages);
        (log.length.is_multiple_of(page_bytes)).then_some(layout)
    }

    /// The superblock as bytes.
    ///
    /// # Panics
    /// If there are more than 16 regions.
    #[must_use]
    pub fn encode(&self) -> Box<Page> {
        assert!(
            self.regions.len() <= REGIONS_MAX,
            "a superblock has {REGIONS_MAX} regions at most"
        );
        let mut bytes = Vec::with_capacity(4096);
        bytes.extend_from_slice(&SUPERBLOCK_MAGIC);
        bytes.put_u32(SUPERBLOCK_FORMAT);
        bytes.put_u64(self.compatible);
        bytes.put_u64(self.read_only);
        bytes.put_u64(self.incompatible);
        bytes.put_u64(self.cluster.0);
        bytes.put_u64(self.resource.0);
        bytes.put_u16(self.volume.0);
        bytes.put_u64(self.disk);
        bytes.put_u8(match self.place {
            AreaPlace::Internal => 1,
            AreaPlace::External => 2,
            AreaPlace::Pmem => 3,
        });
        bytes.put_u8(self.slots);
        bytes.put_u64(self.sectors);
        bytes.put_u16(u16::try_from(self.regions.len()).expect("limited above"));
        for region in &self.regions {
            bytes.put_u16(region.kind.number());
            bytes.put_u64(region.offset);
            bytes.put_u64(region.length);
        }
        bytes.resize(LAYOUT_AT, 0);
        bytes.put_u8(match self.layout {
            LayoutKind::Replica => 1,
        });
        seal(&mut bytes, 4096);
        bytes.into_boxed_slice().try_into().expect("sealed to the length of a page")
    }

    /// What was read from the start of a metadata area.
    ///
    /// # Errors
    /// It is not ours, torn, or of a version, with features or of a layout that are not understood here.
    pub fn decode(bytes: &Page) -> Result<Superblock, BadMetadata> {
        if bytes[..8] != SUPERBLOCK_MAGIC {
            return Err(BadMetadata::NotOurs);
        }
        if !is_sealed(bytes) {
            return Err(BadMetadata::Torn);
        }
        let mut reader = Reader::new(&bytes[8..]);
        let format = reader.u32().ok_or(BadMetadata::Torn)?;
        if format != SUPERBLOCK_FORMAT {
            return Err(BadMetadata::TooNew { format });
        }
        let found = take(&mut reader).ok_or(BadMetadata::Torn)?;
        let bits = found.incompatible & !INCOMPATIBLE_KNOWN;
        if bits != 0 {
            return Err(BadMetadata::UnknownFeatures { bits });
        }
        // The first disks of all say nothing: they are replicas.
        match bytes[LAYOUT_AT] {
            0 | 1 => Ok(found),
            kind => Err(BadMetadata::UnknownLayout { kind }),
        }
    }

    /// Features without which this version may read the disk, and not write to it; 0: none. A disk with one is no node's
    /// replica: that would write its record before anything else.
    #[must_use]
    pub fn unwritable(&self) -> u64 {
        self.read_only & !READ_ONLY_KNOWN
    }
}

fn take(reader: &mut Reader<'_>) -> Option<Superblock> {
    let mut found = Superblock {
        compatible: reader.u64()?,
        read_only: reader.u64()?,
        incompatible: reader.u64()?,
        cluster: ClusterId(reader.u64()?),
        resource: ResourceId(reader.u64()?),
        volume: VolumeId(reader.u16()?),
        disk: reader.u64()?,
        place: match reader.u8()? {
            1 => AreaPlace::Internal,
            2 => AreaPlace::External,
            3 => AreaPlace::Pmem,
            _ => return None,
        },
        slots: reader.u8()?,
        sectors: reader.u64()?,
        regions: Vec::new(),
        layout: LayoutKind::Replica,
    };
    let count = usize::from(reader.u16()?);
    if count > REGIONS_MAX {
        return None;
    }
    for _ in 0..count {
        let kind = RegionKind::of(reader.u16()?);
        found.regions.push(Region { kind, offset: reader.u64()?, length: reader.u64()? });
    }
    Some(found)
}
