//! Bytes on disk: the header of a form's directory, and the descriptors of its blocks.
//!
//! A segment's file is a table of descriptors, one for each slot, and then the slots. A descriptor
//! is bound to its form, its segment and its slot: read at another place or in another directory it
//! is torn. All numbers are little endian.

use crate::cipher::CipherTag;
use crate::{Block, BlockForm, Checksum, TenantKey};
use stator_protos::hash::SequenceHash;
use stator_protos::name::BlockName;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Version of the format. Another version has other directories.
pub const VERSION: u32 = 1;
/// Bytes of a descriptor.
pub const DESCRIPTOR_BYTES: usize = 128;
/// Bytes of a header.
pub const HEADER_BYTES: usize = 128;
/// Unit of all I/O, of which slots, tables and memory are multiples. No disk wants more of
/// unbuffered I/O.
pub const PAGE_BYTES: usize = 4096;
/// Descriptors in a page.
pub const PAGE_SLOTS: u32 = (PAGE_BYTES / DESCRIPTOR_BYTES) as u32;

/// Mark of the header of an encrypted directory.
const SEALED: u32 = 1;
const HEADER_MAGIC: [u8; 8] = *b"statorKV";
const DESCRIPTOR_MAGIC: u32 = u32::from_le_bytes(*b"kvb1");
/// Flag of a descriptor whose block has a hash.
const HAS_HASH: u16 = 1;
/// Flag of a descriptor whose block has a parent with a hash.
const HAS_PARENT: u16 = 2;
/// Bytes of what a descriptor says, without its seal.
pub(super) const FIELD_BYTES: usize = 64;
/// Place of the descriptor's own checksum.
const OWN: usize = DESCRIPTOR_BYTES - 8;

/// A page of memory, aligned for unbuffered I/O.
#[derive(Clone, Debug)]
#[repr(C, align(4096))]
pub struct Page(pub [u8; PAGE_BYTES]);

impl Page {
    /// Pages of zeros, which are a table without blocks.
    pub fn zeros(count: usize) -> Box<[Self]> {
        vec![Self([0; PAGE_BYTES]); count].into()
    }
}

/// Sizes of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Slots of a segment, at least one.
    pub segment_slots: u32,
}

impl Geometry {
    /// Bytes of a slot.
    pub fn slot_bytes(&self) -> usize {
        self.block_bytes.next_multiple_of(PAGE_BYTES)
    }

    /// Pages of the table at the start of a segment.
    pub fn table_pages(&self) -> usize {
        self.segment_slots.div_ceil(PAGE_SLOTS) as usize
    }

    /// Bytes of a segment.
    pub fn segment_bytes(&self) -> u64 {
        self.slot_offset(self.segment_slots)
    }

    /// Offset of a slot in its segment.
    pub fn slot_offset(&self, slot: u32) -> u64 {
        (self.table_pages() * PAGE_BYTES) as u64 + u64::from(slot) * self.slot_bytes() as u64
    }
}

/// Place of a block: a slot of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The segment.
    pub segment: u32,
    /// The slot in the segment.
    pub slot: u32,
}

impl Place {
    /// The page of the segment's table that has the slot's descriptor.
    pub fn page(&self) -> u32 {
        self.slot / PAGE_SLOTS
    }
}

/// Seed of the checksums of a form's descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormSeed(u64);

impl FormSeed {
    /// The seed of a form.
    pub fn of(form: &BlockForm) -> Self {
        Self(xxh3_64_with_seed(&form.fingerprint, form.block_bytes as u64))
    }

    /// The seed as a number.
    pub(super) fn number(self) -> u64 {
        self.0
    }
}

/// A block on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// The block.
    pub block: Block,
    /// Checksum of its KV.
    pub checksum: Checksum,
    /// The use of the segment in which the block was written. Of two descriptors of a name, the one
    /// of the later epoch counts.
    pub epoch: u64,
    /// Bytes of its KV.
    pub length: u32,
    /// The tag of its KV where that is encrypted, else zeros.
    pub seal: CipherTag,
}

/// The meaning of a descriptor's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorRead {
    /// Zeros: the slot has no block.
    Empty,
    /// No descriptor, or one of another form or place.
    Torn,
    /// The descriptor of a block.
    Whole(Descriptor),
}

impl Descriptor {
    /// The descriptor as bytes, for its place.
    pub fn encode(&self, seed: FormSeed, place: Place) -> [u8; DESCRIPTOR_BYTES] {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        bytes[0..4].copy_from_slice(&DESCRIPTOR_MAGIC.to_le_bytes());
        bytes[4..6].copy_from_slice(&(VERSION as u16).to_le_bytes());
        let flags = encode_fields(self, &mut bytes[8..8 + FIELD_BYTES]);
        bytes[6..8].copy_from_slice(&flags.to_le_bytes());
        let own = own_checksum(&bytes, seed, place);
        bytes[OWN..].copy_from_slice(&own.to_le_bytes());
        bytes
    }

    /// Reads what stands at a place.
    pub fn decode(bytes: &[u8; DESCRIPTOR_BYTES], seed: FormSeed, place: Place) -> DescriptorRead {
        if bytes.iter().all(|byte| *byte == 0) {
            return DescriptorRead::Empty;
        }
        let flags = u16::from_le_bytes(field(bytes, 6));
        let intact = u64::from_le_bytes(field(bytes, OWN)) == own_checksum(bytes, seed, place)
            && u32::from_le_bytes(field(bytes, 0)) == DESCRIPTOR_MAGIC
            && u16::from_le_bytes(field(bytes, 4)) == VERSION as u16;
        let read = decode_fields(&bytes[8..8 + FIELD_BYTES], flags).filter(|_| intact);
        read.map_or(DescriptorRead::Torn, DescriptorRead::Whole)
    }
}

/// Writes what a descriptor says, without its seal; returns its flags.
pub(super) fn encode_fields(descriptor: &Descriptor, bytes: &mut [u8]) -> u16 {
    let Block { name, hash, parent, depth, tenant } = descriptor.block;
    let number = |hash: Option<SequenceHash>| hash.map_or(0, |hash| hash.0).to_le_bytes();
    bytes[0..16].copy_from_slice(&name.to_bytes());
    bytes[16..24].copy_from_slice(&number(hash));
    bytes[24..32].copy_from_slice(&descriptor.checksum.0.to_le_bytes());
    bytes[32..40].copy_from_slice(&descriptor.epoch.to_le_bytes());
    bytes[40..44].copy_from_slice(&depth.to_le_bytes());
    bytes[44..48].copy_from_slice(&descriptor.length.to_le_bytes());
    bytes[48..56].copy_from_slice(&number(parent));
    bytes[56..64].copy_from_slice(&tenant.0.to_le_bytes());
    let flag = |hash: Option<SequenceHash>, flag| if hash.is_some() { flag } else { 0 };
    flag(hash, HAS_HASH) | flag(parent, HAS_PARENT)
}

/// Reads what a descriptor says, without its seal; none under flags that there are not.
pub(super) fn decode_fields(bytes: &[u8], flags: u16) -> Option<Descriptor> {
    let hash =
        |flag, at| (flags & flag != 0).then(|| SequenceHash(u64::from_le_bytes(field(bytes, at))));
    let block = Block {
        name: BlockName(u128::from_le_bytes(field(bytes, 0))),
        hash: hash(HAS_HASH, 16),
        parent: hash(HAS_PARENT, 48),
        depth: u32::from_le_bytes(field(bytes, 40)),
        tenant: TenantKey(u64::from_le_bytes(field(bytes, 56))),
    };
    (flags & !(HAS_HASH | HAS_PARENT) == 0).then(|| Descriptor {
        block,
        checksum: Checksum(u64::from_le_bytes(field(bytes, 24))),
        epoch: u64::from_le_bytes(field(bytes, 32)),
        length: u32::from_le_bytes(field(bytes, 44)),
        seal: CipherTag::default(),
    })
}

/// The header of a form's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The form of all blocks in the directory.
    pub form: BlockForm,
    /// Slots of a segment.
    pub segment_slots: u32,
    /// The first epoch whose blocks count; clearing the tier raises it.
    pub first_epoch: u64,
    /// Mark of the key of an encrypted directory; none if it is plain.
    pub seal: Option<HeaderSeal>,
}

/// Mark in a header by which the key of an encrypted directory is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderSeal {
    /// The directory's own salt, random.
    pub salt: [u8; 32],
    /// By which the key is known again.
    pub check: [u8; 16],
}

/// The meaning of a header's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderRead {
    /// Too short or damaged, as after a crash while the header was written.
    Damaged,
    /// Not the header of a disk tier.
    Foreign,
    /// The header of another version.
    OtherVersion(u32),
    /// A header.
    Whole(Header),
}

impl Header {
    /// Sizes of the directory's segments.
    pub fn geometry(&self) -> Geometry {
        Geometry { block_bytes: self.form.block_bytes, segment_slots: self.segment_slots }
    }

    /// The header as bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..8].copy_from_slice(&HEADER_MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.segment_slots.to_le_bytes());
        bytes[16..48].copy_from_slice(&self.form.fingerprint);
        bytes[48..56].copy_from_slice(&(self.form.block_bytes as u64).to_le_bytes());
        bytes[56..64].copy_from_slice(&self.first_epoch.to_le_bytes());
        if let Some(HeaderSeal { salt, check }) = self.seal {
            bytes[64..68].copy_from_slice(&SEALED.to_le_bytes());
            bytes[68..100].copy_from_slice(&salt);
            bytes[100..116].copy_from_slice(&check);
        }
        let checksum = xxh3_64(&bytes[..120]);
        bytes[120..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads a header.
    pub fn decode(bytes: &[u8]) -> HeaderRead {
        let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else {
            return HeaderRead::Damaged;
        };
        if bytes.iter().all(|byte| *byte == 0) {
            return HeaderRead::Damaged;
        }
        if field(bytes, 0) != HEADER_MAGIC {
            return HeaderRead::Foreign;
        }
        let version = u32::from_le_bytes(field(bytes, 8));
        // Before the checksum, which another version may have elsewhere.
        if version != VERSION {
            return HeaderRead::OtherVersion(version);
        }
        let block_bytes = usize::try_from(u64::from_le_bytes(field(bytes, 48)));
        let segment_slots = u32::from_le_bytes(field(bytes, 12));
        let intact = u64::from_le_bytes(field(bytes, 120)) == xxh3_64(&bytes[..120]);
        let Ok(block_bytes) = block_bytes else { return HeaderRead::Damaged };
        let seal = match u32::from_le_bytes(field(bytes, 64)) {
            0 => None,
            SEALED => Some(HeaderSeal { salt: field(bytes, 68), check: field(bytes, 100) }),
            _ => return HeaderRead::Damaged,
        };
        if !intact || segment_slots == 0 {
            return HeaderRead::Damaged;
        }
        HeaderRead::Whole(Self {
            form: BlockForm { fingerprint: field(bytes, 16), block_bytes },
            segment_slots,
            first_epoch: u64::from_le_bytes(field(bytes, 56)),
            seal,
        })
    }
}

/// The checksum of a descriptor, in which its place stands for the checksum itself.
fn own_checksum(bytes: &[u8; DESCRIPTOR_BYTES], seed: FormSeed, place: Place) -> u64 {
    let mut bound = *bytes;
    bound[OWN..OWN + 4].copy_from_slice(&place.segment.to_le_bytes());
    bound[OWN + 4..].copy_from_slice(&place.slot.to_le_bytes());
    xxh3_64_with_seed(&bound, seed.0)
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    *bytes[at..].first_chunk().expect("the field lies within a checked length")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FORM: BlockForm = BlockForm { fingerprint: [7; 32], block_bytes: 5000 };

    fn descriptors() -> impl Strategy<Value = Descriptor> {
        let block = (any::<u128>(), any::<Option<u64>>(), any::<Option<u64>>(), any::<u32>());
        let block = block.prop_map(|(name, hash, parent, depth)| Block {
            name: BlockName(name),
            hash: hash.map(SequenceHash),
            parent: parent.map(SequenceHash),
            depth,
            tenant: TenantKey(u64::from(depth)),
        });
        (block, any::<(u64, u64, u32)>()).prop_map(|(block, (checksum, epoch, length))| {
            let (checksum, seal) = (Checksum(checksum), CipherTag::default());
            Descriptor { block, checksum, epoch, length, seal }
        })
    }

    proptest! {
        #[test]
        fn descriptors_survive_the_disk_and_every_flipped_bit_tears_them(
            descriptor in descriptors(), segment: u32, slot: u32, bit in 0..DESCRIPTOR_BYTES * 8,
        ) {
            let (seed, place) = (FormSeed::of(&FORM), Place { segment, slot });
            let mut bytes = descriptor.encode(seed, place);
            let read = Descriptor::decode(&bytes, seed, place);
            prop_assert_eq!(read, DescriptorRead::Whole(descriptor));
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Descriptor::decode(&bytes, seed, place), DescriptorRead::Torn);
        }

        #[test]
        fn descriptors_of_another_place_or_form_are_torn(
            descriptor in descriptors(), slot in 0..1000_u32,
        ) {
            let (seed, place) = (FormSeed::of(&FORM), Place { segment: 3, slot });
            let bytes = descriptor.encode(seed, place);
            let other = FormSeed::of(&BlockForm { block_bytes: 5001, ..FORM });
            prop_assert_eq!(Descriptor::decode(&bytes, other, place), DescriptorRead::Torn);
            for place in [Place { segment: 4, slot }, Place { segment: 3, slot: slot + 1 }] {
                prop_assert_eq!(Descriptor::decode(&bytes, seed, place), DescriptorRead::Torn);
            }
        }

        #[test]
        fn headers_survive_the_disk_and_no_flipped_bit_is_read(
            segment_slots in 1..u32::MAX, first_epoch: u64, salt: Option<[u8; 32]>,
            bit in 0..HEADER_BYTES * 8,
        ) {
            let seal = salt.map(|salt| HeaderSeal { salt, check: [9; 16] });
            let header = Header { form: FORM, segment_slots, first_epoch, seal };
            let mut bytes = header.encode();
            prop_assert_eq!(Header::decode(&bytes), HeaderRead::Whole(header));
            prop_assert_eq!(Header::decode(&bytes[..100]), HeaderRead::Damaged);
            bytes[bit / 8] ^= 1 << (bit % 8);
            let read = Header::decode(&bytes);
            prop_assert!(!matches!(read, HeaderRead::Whole(_)), "{:?}", read);
        }
    }

    #[test]
    fn sizes_are_whole_pages() {
        let geometry = Geometry { block_bytes: 5000, segment_slots: 33 };
        assert_eq!((geometry.slot_bytes(), geometry.table_pages()), (8192, 2));
        assert_eq!(geometry.slot_offset(1), 2 * 4096 + 8192);
        assert_eq!(geometry.segment_bytes(), 2 * 4096 + 33 * 8192);
        assert_eq!((align_of::<Page>(), size_of::<Page>()), (4096, 4096));
    }
}
