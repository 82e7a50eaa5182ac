//! Frames on a transfer's connection, as bytes.
//!
//! A frame is a header of [`HEADER_BYTES`], a tag of [`TAG_BYTES`] that shows who sent it
//! (`keys`), and a payload. All numbers are little endian. Decoding bounds every length by
//! the kind of the frame, so that nobody reserves memory because a stranger said so.

use super::direct::DESCRIPTION_BYTES_MAX;
use crate::tier::Urgency;
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
    /// `>` Asks for a lease of blocks. `count`: milliseconds for which the blocks are wanted. `place`:
    /// their urgency ([`urgency_number`]); zero, demand, from readers that do not tell it. Payload: their
    /// names.
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

/// The number of an urgency in a [`FrameKind::Lease`].
pub fn urgency_number(urgency: Urgency) -> u32 {
    match urgency {
        Urgency::Demand => 0,
        Urgency::Prefetch | Urgency::Offload => 1,
    }
}

/// The urgency of a [`FrameKind::Lease`]. A number that nobody knows here is of a later reader, which can
/// wait.
pub fn urgency_of(lease: &FrameHeader) -> Urgency {
    if lease.place == 0 { Urgency::Demand } else { Urgency::Prefetch }
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
mod tests;
