//! Frames on a transfer's connection, as bytes.
//!
//! A frame is a header of [`HEADER_BYTES`], a tag of [`TAG_BYTES`] that shows who sent it
//! (`keys`), and a payload. All numbers are little endian. Decoding bounds every length by
//! the kind of the frame, so that nobody reserves memory because a stranger said so.

use super::direct::DESCRIPTION_BYTES_MAX;
use crate::{BlockForm, Checksum, SlotId};
use stator_protos::name::BlockName;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 40;
/// Bytes of a tag.
pub const TAG_BYTES: usize = 16;
/// Bytes of KV in one frame at most.
pub const FRAME_BYTES_MAX: usize = 1 << 20;
/// Names that one lease covers at most.
pub const NAMES_MAX: usize = 4096;
/// Bytes of a reason for a refusal at most.
pub const REASON_BYTES_MAX: usize = 512;

const MAGIC: u32 = u32::from_le_bytes(*b"SKVT");
/// Version of the protocol. Two agents of different versions do not exchange KV.
const VERSION: u8 = 2;
const NAME_BYTES: usize = 16;
const CHECKSUM_BYTES: usize = 8;
const SLOT_BYTES: usize = 4;
const HELLO_BYTES: usize = 16 + 32 + 32 + 8;
/// Bytes of the random number that each side draws for a connection.
const NONCE_BYTES: usize = 32;

/// The purpose of a frame. The reading agent sends the frames marked `>`, the holder those marked
/// `<`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FrameKind {
    /// `>` Who reads, and the form of its KV. `count`: [`super::ReaderPurpose`]. Payload: [`Hello`].
    Hello = 1,
    /// `<` A random number. Its tag proves that the holder knows the fleet's key.
    Challenge = 2,
    /// `>` Its tag proves that the reader knows the fleet's key.
    Proof = 3,
    /// `<` The reader may ask for blocks.
    Welcome = 4,
    /// `<` The reader is refused. Payload: the reason in UTF-8.
    Refused = 5,
    /// `>` Asks for a lease of blocks. `count`: milliseconds for which the blocks are wanted.
    /// Payload: their names.
    Lease = 6,
    /// `<` The lease `transfer` covers the leading blocks. `count`: microseconds for which the holder
    /// waited for its disk; zero from holders that lend host memory alone. Payload: their checksums.
    Leased = 7,
    /// `<` The holder has too many leases.
    Busy = 8,
    /// `>` Asks for `count` bytes from `offset` of the block at `place` of the lease `transfer`.
    Read = 9,
    /// `<` Bytes from `offset` of the block at `place` of the lease `transfer`. Payload: the bytes.
    Data = 10,
    /// `<` There is no lease `transfer`, or no more.
    Gone = 11,
    /// `>` The lease `transfer` is needed no more. It is not answered.
    End = 12,
    /// `>` Asks how the holder's arena is read directly.
    Describe = 13,
    /// `<` Description of the holder's arena ([`super::direct`]); empty if it cannot be read directly.
    Described = 14,
    /// `>` Asks for the slots of the lease `transfer`.
    Locate = 15,
    /// `<` Slots of the lease `transfer`. Payload: their numbers.
    Located = 16,
    /// `>` Asks for the tag of `count` bytes from `offset` of the block at `place` of the lease
    /// `transfer`, which the reader has read directly.
    Vouch = 17,
    /// `<` Its tag covers these bytes as if they were its payload. The other fields are those of
    /// the question.
    Vouched = 18,
}

/// Why bytes are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The other side does not speak this protocol.
    #[error("no frame of a KV transfer begins with {0:#010x}")]
    Magic(u32),
    /// The other side speaks another version.
    #[error("version {0} of KV transfer, not {VERSION}")]
    Version(u8),
    /// A kind that nobody knows.
    #[error("kind {0} of frame is not known")]
    Kind(u8),
    /// A payload that is too long or too short for its kind.
    #[error("a frame of kind {kind:?} has no {length} bytes")]
    Length {
        /// Kind of the frame.
        kind: FrameKind,
        /// Bytes that it says to have.
        length: u32,
    },
    /// Another field that is out of bounds.
    #[error("a frame of kind {kind:?} with a wrong {field}")]
    Field {
        /// Kind of the frame.
        kind: FrameKind,
        /// Name of the field.
        field: &'static str,
    },
}

/// The fixed part of a frame. Fields that a kind does not use are 0, and nobody heeds them: a field that
/// a later agent of the same version uses means to an earlier one what it meant before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Purpose of the frame.
    pub kind: FrameKind,
    /// Bytes of the payload.
    pub length: u32,
    /// Place of a block in a lease.
    pub place: u32,
    /// Number of a lease.
    pub transfer: u64,
    /// Frames that its sender has sent before on this connection, since the handshake.
    pub sequence: u64,
    /// First byte within the block.
    pub offset: u32,
    /// A number whose meaning depends on the kind.
    pub count: u32,
}

impl FrameKind {
    const ALL: [Self; 18] = [
        Self::Hello,
        Self::Challenge,
        Self::Proof,
        Self::Welcome,
        Self::Refused,
        Self::Lease,
        Self::Leased,
        Self::Busy,
        Self::Read,
        Self::Data,
        Self::Gone,
        Self::End,
        Self::Describe,
        Self::Described,
        Self::Locate,
        Self::Located,
        Self::Vouch,
        Self::Vouched,
    ];

    /// Whether `count` is the number of bytes from `offset`.
    fn counts_bytes(self) -> bool {
        matches!(self, Self::Read | Self::Vouch | Self::Vouched)
    }

    fn of_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }

    /// Whether a payload may have this many bytes.
    fn allows(self, length: usize) -> bool {
        let units = |bytes: usize, min: usize| {
            length.is_multiple_of(bytes) && (min..=NAMES_MAX).contains(&(length / bytes))
        };
        match self {
            Self::Hello => length == HELLO_BYTES,
            Self::Challenge => length == NONCE_BYTES,
            Self::Refused => length <= REASON_BYTES_MAX,
            Self::Lease => units(NAME_BYTES, 1),
            Self::Leased => units(CHECKSUM_BYTES, 0),
            Self::Data => (1..=FRAME_BYTES_MAX).contains(&length),
            Self::Described => length <= DESCRIPTION_BYTES_MAX,
            Self::Located => units(SLOT_BYTES, 1),
            Self::Proof
            | Self::Welcome
            | Self::Busy
            | Self::Read
            | Self::Gone
            | Self::End
            | Self::Describe
            | Self::Locate
            | Self::Vouch
            | Self::Vouched => length == 0,
        }
    }
}

impl FrameHeader {
    /// A header with all other fields 0.
    pub fn new(kind: FrameKind) -> Self {
        Self { kind, length: 0, place: 0, transfer: 0, sequence: 0, offset: 0, count: 0 }
    }

    /// The header as bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4] = self.kind as u8;
        bytes[5] = VERSION;
        // Bytes 6 and 7 are reserved.
        bytes[8..12].copy_from_slice(&self.length.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.place.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.transfer.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.offset.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.count.to_le_bytes());
        bytes
    }

    /// The header that bytes stand for.
    ///
    /// # Errors
    ///
    /// [`WireError`] for bytes that no agent of this version sends.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, WireError> {
        let magic = u32_at(bytes, 0);
        if magic != MAGIC {
            return Err(WireError::Magic(magic));
        }
        if bytes[5] != VERSION {
            return Err(WireError::Version(bytes[5]));
        }
        let kind = FrameKind::of_byte(bytes[4]).ok_or(WireError::Kind(bytes[4]))?;
        let header = Self {
            kind,
            length: u32_at(bytes, 8),
            place: u32_at(bytes, 12),
            transfer: u64_at(bytes, 16),
            sequence: u64_at(bytes, 24),
            offset: u32_at(bytes, 32),
            count: u32_at(bytes, 36),
        };
        if !kind.allows(header.length as usize) {
            return Err(WireError::Length { kind, length: header.length });
        }
        let wrong = |field| Err(WireError::Field { kind, field });
        if bytes[6..8] != [0; 2] {
            return wrong("reserved");
        }
        if kind.counts_bytes() && !(1..=FRAME_BYTES_MAX as u32).contains(&header.count) {
            return wrong("count");
        }
        let bytes = if kind.counts_bytes() { header.count } else { header.length };
        // A sum past the end of the largest block would point to its beginning.
        if header.offset.checked_add(bytes).is_none() {
            return wrong("offset");
        }
        Ok(header)
    }
}

/// First words of the reading agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Drawn once by each reader. Connections with the same number share their leases.
    pub instance: [u8; 16],
    /// Drawn for this connection.
    pub nonce: [u8; 32],
    /// Form of the reader's KV.
    pub form: BlockForm,
}

impl Hello {
    /// The payload of a [`FrameKind::Hello`].
    pub fn encode(&self) -> Vec<u8> {
        let block_bytes = self.form.block_bytes as u64;
        let mut bytes = Vec::with_capacity(HELLO_BYTES);
        bytes.extend_from_slice(&self.instance);
        bytes.extend_from_slice(&self.nonce);
        bytes.extend_from_slice(&self.form.fingerprint);
        bytes.extend_from_slice(&block_bytes.to_le_bytes());
        bytes
    }

    /// Meaning of the payload.
    ///
    /// # Errors
    ///
    /// [`WireError`] for a payload of another length, or blocks without bytes or of 4 GiB and more.
    pub fn decode(payload: &[u8]) -> Result<Self, WireError> {
        let kind = FrameKind::Hello;
        let wrong = WireError::Length { kind, length: payload.len() as u32 };
        let (instance, rest) = payload.split_first_chunk().ok_or(wrong)?;
        let (nonce, rest) = rest.split_first_chunk().ok_or(wrong)?;
        let (fingerprint, rest) = rest.split_first_chunk().ok_or(wrong)?;
        let block_bytes = u64::from_le_bytes(rest.try_into().map_err(|_| wrong)?);
        let block_bytes = u32::try_from(block_bytes).ok().filter(|bytes| *bytes > 0);
        let block_bytes = block_bytes.ok_or(WireError::Field { kind, field: "block_bytes" })?;
        let form = BlockForm { fingerprint: *fingerprint, block_bytes: block_bytes as usize };
        Ok(Self { instance: *instance, nonce: *nonce, form })
    }
}

/// The payload of a [`FrameKind::Lease`].
pub fn encode_names(names: &[BlockName]) -> Vec<u8> {
    names.iter().flat_map(|name| name.to_bytes()).collect()
}

/// Names in the payload of a [`FrameKind::Lease`]; bytes that make no whole name are left out.
pub fn decode_names(payload: &[u8]) -> Vec<BlockName> {
    let (names, _) = payload.as_chunks();
    names.iter().map(|name| BlockName(u128::from_le_bytes(*name))).collect()
}

/// The payload of a [`FrameKind::Leased`].
pub fn encode_checksums(checksums: impl IntoIterator<Item = Checksum>) -> Vec<u8> {
    checksums.into_iter().flat_map(|checksum| checksum.0.to_le_bytes()).collect()
}

/// Checksums in the payload of a [`FrameKind::Leased`]; bytes that make no whole checksum are left
/// out.
pub fn decode_checksums(payload: &[u8]) -> Vec<Checksum> {
    let (checksums, _) = payload.as_chunks();
    checksums.iter().map(|checksum| Checksum(u64::from_le_bytes(*checksum))).collect()
}

/// The payload of a [`FrameKind::Located`].
pub fn encode_slots(slots: impl IntoIterator<Item = SlotId>) -> Vec<u8> {
    slots.into_iter().flat_map(|slot| slot.0.to_le_bytes()).collect()
}

/// Slots in the payload of a [`FrameKind::Located`]; bytes that make no whole number are left out.
pub fn decode_slots(payload: &[u8]) -> Vec<SlotId> {
    let (slots, _) = payload.as_chunks();
    slots.iter().map(|slot| SlotId(u32::from_le_bytes(*slot))).collect()
}

/// A reason as the payload of a [`FrameKind::Refused`], cut where it is too long.
pub fn encode_reason(reason: &str) -> &[u8] {
    &reason.as_bytes()[..reason.floor_char_boundary(REASON_BYTES_MAX)]
}

/// The reason for a refusal, fit for a log: a stranger may have written it.
pub fn decode_reason(payload: &[u8]) -> String {
    let text = String::from_utf8_lossy(payload);
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(REASON_BYTES_MAX).collect()
}

fn u32_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().expect("all numbers lie within the header"))
}

fn u64_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("all numbers lie within the header"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn data() -> FrameHeader {
        FrameHeader {
            length: 0x0001_0002,
            place: 3,
            transfer: 0x0102_0304_0506_0708,
            sequence: 9,
            offset: 0x000a_0000,
            ..FrameHeader::new(FrameKind::Data)
        }
    }

    /// Agents of two builds must agree.
    #[test]
    fn bytes_stay_what_they_are() {
        let expected = [
            b'S', b'K', b'V', b'T', 10, 2, 0, 0, 2, 0, 1, 0, 3, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1, 9,
            0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0,
        ];
        assert_eq!(data().encode(), expected);
        let form = BlockForm { fingerprint: [3; 32], block_bytes: 0x0201 };
        let hello = Hello { instance: [1; 16], nonce: [2; 32], form };
        let expected = [&[1; 16][..], &[2; 32], &[3; 32], &[1, 2, 0, 0, 0, 0, 0, 0]].concat();
        assert_eq!(hello.encode(), expected);
        assert_eq!(encode_names(&[BlockName(0x0102)])[..3], [2, 1, 0]);
        assert_eq!(encode_checksums([Checksum(0x0102)]), [2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(encode_slots([SlotId(0x0102)]), [2, 1, 0, 0]);
    }

    fn check(change: impl FnOnce(&mut FrameHeader)) -> Result<FrameHeader, WireError> {
        let mut header = data();
        change(&mut header);
        FrameHeader::decode(&header.encode())
    }

    #[test]
    fn lengths_are_bounded_by_kind() {
        assert_eq!(check(|_| ()), Ok(data()));
        let largest = FRAME_BYTES_MAX as u32;
        assert!(check(|header| header.length = largest).is_ok());
        let wrong = |kind, length| {
            let fault = check(|header| {
                header.kind = kind;
                header.length = length;
            });
            assert_eq!(fault, Err(WireError::Length { kind, length }));
        };
        wrong(FrameKind::Data, largest + 1);
        wrong(FrameKind::Data, 0);
        wrong(FrameKind::Lease, 0);
        wrong(FrameKind::Lease, 17);
        wrong(FrameKind::Lease, 16 * (NAMES_MAX as u32 + 1));
        wrong(FrameKind::Leased, 9);
        wrong(FrameKind::Described, DESCRIPTION_BYTES_MAX as u32 + 1);
        wrong(FrameKind::Located, 6);
        wrong(FrameKind::Locate, 1);
        wrong(FrameKind::Hello, 87);
        wrong(FrameKind::Refused, REASON_BYTES_MAX as u32 + 1);
        wrong(FrameKind::Read, 1);
        wrong(FrameKind::Vouched, 1);
    }

    #[test]
    fn fields_out_of_bounds_are_refused() {
        let wrong = |kind, field| Err(WireError::Field { kind, field });
        let offset = check(|header| header.offset = u32::MAX);
        assert_eq!(offset, wrong(FrameKind::Data, "offset"));
        let read = |count, offset| {
            check(|header| {
                (header.kind, header.length) = (FrameKind::Read, 0);
                (header.count, header.offset) = (count, offset);
            })
        };
        assert!(read(1, u32::MAX - 1).is_ok());
        assert_eq!(read(0, 0), wrong(FrameKind::Read, "count"));
        assert_eq!(read(FRAME_BYTES_MAX as u32 + 1, 0), wrong(FrameKind::Read, "count"));
        assert_eq!(read(2, u32::MAX - 1), wrong(FrameKind::Read, "offset"));
        let byte = |at: usize, value| {
            let mut bytes = data().encode();
            bytes[at] = value;
            FrameHeader::decode(&bytes)
        };
        assert_eq!(byte(0, b's'), Err(WireError::Magic(u32::from_le_bytes(*b"sKVT"))));
        assert_eq!(byte(4, 19), Err(WireError::Kind(19)));
        assert_eq!(byte(5, 1), Err(WireError::Version(1)));
        assert_eq!(byte(7, 1), wrong(FrameKind::Data, "reserved"));
    }

    #[test]
    fn blocks_have_bytes_and_fewer_than_four_gib() {
        let decode = |block_bytes: u64| {
            let payload = [&[0; 80][..], &block_bytes.to_le_bytes()].concat();
            Hello::decode(&payload).map(|hello| hello.form.block_bytes)
        };
        assert_eq!(decode(4096), Ok(4096));
        let wrong = WireError::Field { kind: FrameKind::Hello, field: "block_bytes" };
        assert_eq!(decode(0), Err(wrong));
        assert_eq!(decode(1 << 32), Err(wrong));
        assert!(Hello::decode(&[0; 87]).is_err());
        assert!(Hello::decode(&[0; 89]).is_err());
    }

    #[test]
    fn reasons_are_cut_and_fit_for_a_log() {
        let long = "ä".repeat(REASON_BYTES_MAX);
        assert_eq!(encode_reason(&long).len(), REASON_BYTES_MAX);
        assert_eq!(decode_reason(encode_reason("no\nway\u{1b}")), "no way ");
        assert_eq!(decode_reason(b"\xff"), "\u{fffd}");
    }

    proptest! {
        #[test]
        fn every_header_that_is_read_survives_the_wire(mut bytes: [u8; HEADER_BYTES], kind in 0..20_u8) {
            bytes[..4].copy_from_slice(b"SKVT");
            (bytes[4], bytes[5], bytes[6], bytes[7]) = (kind, VERSION, 0, 0);
            bytes[10..12].fill(0);
            if let Ok(header) = FrameHeader::decode(&bytes) {
                prop_assert_eq!(header.encode(), bytes);
            }
        }

        #[test]
        fn names_and_checksums_survive_the_wire(names: Vec<u128>, checksums: Vec<u64>) {
            let names: Vec<_> = names.into_iter().map(BlockName).collect();
            prop_assert_eq!(decode_names(&encode_names(&names)), names);
            let checksums: Vec<_> = checksums.into_iter().map(Checksum).collect();
            prop_assert_eq!(decode_checksums(&encode_checksums(checksums.clone())), checksums);
        }
    }
}
