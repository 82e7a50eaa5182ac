//! The form of an extent: blocks that were written together, in one object.
//!
//! An extent is a header and a frame for each block. All numbers are little endian.
//!
//! | part | bytes |
//! | --- | --- |
//! | header | magic 8, version 4, blocks 4, fingerprint 32, bytes of a block 8, written at 8 (Unix, ms) |
//! | an entry for each block | record 48, offset 8, length 8, checksum 8 |
//! | end of the header | nonce and tag of its encryption 28, or zeros; tag 32 |
//! | a frame for each block | KV, magic 8, name 16, checksum 8, tag 32 |
//!
//! With a key the header is encrypted behind its version. A frame is then KV and checksum 8, both
//! encrypted, magic 8, nonce and tag of its encryption 28, zeros 20; its name is in no place.
//!
//! A frame proves itself: whoever knows a block's position reads its frame and nothing else. The
//! header says what an extent is that somebody else wrote under the same name.

use std::ops::Range;

use bytes::{Buf, BufMut};
use stator_protos::name::BlockName;

use super::record::{RECORD_BYTES, put_block, take_block};
use super::seal::{BlockTag, CLOSE_BYTES, Seal, TAG_BYTES};
use crate::cipher::{CipherTag, KvCipher};
use crate::{Block, BlockForm, Checksum};

/// Most blocks of an extent.
pub(crate) const BLOCKS_MAX: usize = 1024;
/// Bytes of a frame after the KV.
pub const TRAILER_BYTES: usize = 64;

const MAGIC: &[u8; 8] = b"STKVEXT1";
const FRAME_MAGIC: &[u8; 8] = b"STKVFRM1";
const SEALED_MAGIC: &[u8; 8] = b"STKVFRS1";
/// Bytes of a checksum.
const SUM_BYTES: usize = 8;
const VERSION: u32 = 2;
const HEAD_BYTES: usize = 64;
const ENTRY_BYTES: usize = RECORD_BYTES + 24;

/// Identity of an extent: a hash of its form and its blocks' names in order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExtentId(pub [u8; 32]);

impl ExtentId {
    /// The identity of an extent with these blocks.
    pub(crate) fn of(
        form: &BlockForm,
        seal: &Seal,
        names: impl Iterator<Item = BlockName>,
    ) -> Self {
        let mut hasher = seal.name_hasher();
        hasher.update(&form.fingerprint);
        names.for_each(|name| {
            hasher.update(&name.to_bytes());
        });
        Self(hasher.finalize().into())
    }
}

impl std::fmt::Debug for ExtentId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

/// Byte ranges of an extent's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExtentLayout {
    blocks: usize,
    block_bytes: usize,
}

impl ExtentLayout {
    /// The layout of an extent of so many blocks.
    pub(crate) fn new(blocks: usize, block_bytes: usize) -> Self {
        Self { blocks, block_bytes }
    }

    /// Bytes of the header with its entries and its tag.
    pub(crate) fn header_bytes(self) -> usize {
        HEAD_BYTES + self.blocks * ENTRY_BYTES + CLOSE_BYTES
    }

    /// Bytes of a frame.
    pub(crate) fn frame_bytes(self) -> usize {
        self.block_bytes + TRAILER_BYTES
    }

    /// Byte range of the frames at these positions.
    pub(crate) fn frames(self, positions: Range<usize>) -> Range<u64> {
        let at = |position| (self.header_bytes() + position * self.frame_bytes()) as u64;
        at(positions.start)..at(positions.end)
    }

    /// Bytes of the extent.
    pub(crate) fn bytes(self) -> u64 {
        self.frames(0..self.blocks).end
    }
}

/// A block of an extent with the checksum of its KV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentEntry {
    /// The block.
    pub block: Block,
    /// The checksum of its KV.
    pub checksum: Checksum,
}

/// Content of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtentHeader {
    /// When the extent was written, in ms since the Unix epoch by the writer's clock.
    pub written_unix_ms: u64,
    /// The blocks, in the extent's order.
    pub entries: Vec<ExtentEntry>,
}

impl ExtentHeader {
    /// The header in bytes.
    pub fn encode(&self, form: &BlockForm, seal: &Seal) -> Vec<u8> {
        let layout = ExtentLayout::new(self.entries.len(), form.block_bytes);
        let mut out = Vec::with_capacity(layout.header_bytes());
        out.put_slice(MAGIC);
        out.put_u32_le(VERSION);
        out.put_u32_le(self.entries.len() as u32);
        out.put_slice(&form.fingerprint);
        out.put_u64_le(form.block_bytes as u64);
        out.put_u64_le(self.written_unix_ms);
        for (position, entry) in self.entries.iter().enumerate() {
            put_block(&mut out, &entry.block);
            out.put_u64_le(layout.frames(position..position + 1).start);
            out.put_u64_le(form.block_bytes as u64);
            out.put_u64_le(entry.checksum.0);
        }
        seal.close(&mut out);
        out
    }

    /// The header that these bytes are; none if they are no header of this form and fleet.
    pub fn decode(bytes: &[u8], form: &BlockForm, seal: &Seal) -> Option<Self> {
        let content = seal.open(bytes)?;
        let mut rest = &content[..];
        let magic = rest.try_get_u64_le().ok()?.to_le_bytes();
        let version = rest.try_get_u32_le().ok()?;
        let blocks = rest.try_get_u32_le().ok()? as usize;
        if magic != *MAGIC || version != VERSION || blocks > BLOCKS_MAX {
            return None;
        }
        let layout = ExtentLayout::new(blocks, form.block_bytes);
        let (fingerprint, after) = rest.split_first_chunk::<32>()?;
        rest = after;
        let block_bytes = rest.try_get_u64_le().ok()?;
        let written_unix_ms = rest.try_get_u64_le().ok()?;
        let is_of_form = *fingerprint == form.fingerprint && block_bytes == form.block_bytes as u64;
        if !is_of_form || rest.len() != blocks * ENTRY_BYTES {
            return None;
        }
        let entries = (0..blocks).map(|position| read_entry(&mut rest, position, layout));
        Some(Self { written_unix_ms, entries: entries.collect::<Option<_>>()? })
    }
}

fn read_entry(rest: &mut &[u8], position: usize, layout: ExtentLayout) -> Option<ExtentEntry> {
    let block = take_block(rest)?;
    let offset = rest.try_get_u64_le().ok()?;
    let length = rest.try_get_u64_le().ok()?;
    let checksum = Checksum(rest.try_get_u64_le().ok()?);
    let is_in_place = offset == layout.frames(position..position + 1).start
        && length == layout.block_bytes as u64;
    is_in_place.then_some(ExtentEntry { block, checksum })
}

/// Appends what follows a block's KV in its frame. `tag` has taken the KV.
pub fn put_trailer(out: &mut Vec<u8>, name: BlockName, checksum: Checksum, tag: BlockTag) {
    out.put_slice(FRAME_MAGIC);
    out.put_slice(&name.to_bytes());
    out.put_u64_le(checksum.0);
    out.put_slice(&tag.finish(checksum));
}

/// The checksum that the KV before this trailer must have; none if the frame is not of this block or
/// its tag is wrong. `tag` has taken the KV.
pub fn read_trailer(
    trailer: &[u8; TRAILER_BYTES],
    name: BlockName,
    tag: BlockTag,
) -> Option<Checksum> {
    let mut rest = &trailer[..];
    let magic = rest.try_get_u64_le().ok()?.to_le_bytes();
    let named = BlockName(rest.try_get_u128_le().ok()?);
    let checksum = Checksum(rest.try_get_u64_le().ok()?);
    let found = *rest.first_chunk::<TAG_BYTES>()?;
    let is_right = magic == *FRAME_MAGIC && named == name && tag.verify(checksum, found);
    is_right.then_some(checksum)
}

/// Encrypts the KV from `start` on and its checksum, and appends what follows in its frame.
pub fn seal_frame(
    out: &mut Vec<u8>,
    start: usize,
    block: (BlockName, Checksum),
    cipher: &KvCipher,
) {
    let (name, checksum) = block;
    let end = out.len() + TRAILER_BYTES;
    out.put_u64_le(checksum.0);
    let tag = cipher.seal_block(name, &mut out[start..]);
    out.put_slice(SEALED_MAGIC);
    out.put_slice(&tag.to_bytes());
    out.resize(end, 0);
}

/// Decrypts the KV of a frame. The checksum that it must have; none if the frame is not of this
/// block, or not what was encrypted.
pub fn open_frame(
    kv: &mut Vec<u8>,
    trailer: &[u8; TRAILER_BYTES],
    name: BlockName,
    cipher: &KvCipher,
) -> Option<Checksum> {
    let (sum, rest) = trailer.split_first_chunk::<SUM_BYTES>()?;
    let (magic, rest) = rest.split_first_chunk::<8>()?;
    let (tag, zeros) = rest.split_first_chunk()?;
    if magic != SEALED_MAGIC || zeros.iter().any(|byte| *byte != 0) {
        return None;
    }
    kv.put_slice(sum);
    let is_open = cipher.open_block(name, &CipherTag::from_bytes(*tag), kv);
    let (rest, sum) = kv.split_last_chunk::<SUM_BYTES>()?;
    let checksum = Checksum(u64::from_le_bytes(*sum));
    let bytes = rest.len();
    kv.truncate(bytes);
    is_open.then_some(checksum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cipher::KvKey;
    use stator_protos::hash::SequenceHash;

    const FORM: BlockForm = BlockForm { fingerprint: [3; 32], block_bytes: 100 };

    fn entries() -> Vec<ExtentEntry> {
        let entry = |depth: u32| ExtentEntry {
            block: Block {
                name: BlockName(u128::from(depth) << 70),
                hash: depth.is_multiple_of(2).then_some(SequenceHash(depth.into())),
                parent: depth.is_multiple_of(3).then_some(SequenceHash(depth.into())),
                depth,
                tenant: crate::TenantKey::default(),
            },
            checksum: Checksum(depth.into()),
        };
        (4..9).map(entry).collect()
    }

    fn seal() -> Seal {
        Seal::new(None, &FORM.fingerprint)
    }

    #[test]
    fn a_header_is_read_as_it_was_written_and_else_refused() {
        let header = ExtentHeader { written_unix_ms: 77, entries: entries() };
        let bytes = header.encode(&FORM, &seal());
        assert_eq!(bytes.len(), ExtentLayout::new(5, 100).header_bytes());
        assert_eq!(ExtentHeader::decode(&bytes, &FORM, &seal()), Some(header));
        for at in 0..bytes.len() {
            assert_eq!(ExtentHeader::decode(&bytes[..at], &FORM, &seal()), None);
            let mut changed = bytes.clone();
            changed[at] ^= 4;
            assert_eq!(ExtentHeader::decode(&changed, &FORM, &seal()), None);
        }
        for other in
            [BlockForm { fingerprint: [4; 32], ..FORM }, BlockForm { block_bytes: 99, ..FORM }]
        {
            assert_eq!(ExtentHeader::decode(&bytes, &other, &seal()), None);
        }
    }

    #[test]
    fn a_trailer_is_of_its_block() {
        let seal = Seal::new(Some([1; 32]), &FORM.fingerprint);
        let tag = |kv: &[u8]| {
            let mut tag = seal.block(BlockName(5));
            tag.update(kv);
            tag
        };
        let mut bytes = Vec::new();
        put_trailer(&mut bytes, BlockName(5), Checksum(6), tag(b"kv"));
        let trailer: [u8; TRAILER_BYTES] = bytes.try_into().unwrap();
        assert_eq!(read_trailer(&trailer, BlockName(5), tag(b"kv")), Some(Checksum(6)));
        assert_eq!(read_trailer(&trailer, BlockName(5), tag(b"kw")), None);
        assert_eq!(read_trailer(&trailer, BlockName(6), tag(b"kv")), None);
        for at in 0..TRAILER_BYTES {
            let mut changed = trailer;
            changed[at] ^= 16;
            assert_eq!(read_trailer(&changed, BlockName(5), tag(b"kv")), None, "{at}");
        }
    }

    #[test]
    fn an_encrypted_frame_is_of_its_block_and_its_key() {
        let cipher = |secret: &[u8]| KvCipher::new(&KvKey::of_secret(secret), &[0; 32]);
        let mut bytes = b"before, and kv of a block".to_vec();
        let kv = bytes[12..].to_vec();
        seal_frame(&mut bytes, 12, (BlockName(5), Checksum(6)), &cipher(b"a"));
        assert_eq!(bytes.len(), 12 + kv.len() + TRAILER_BYTES);
        let read = |frame: &[u8], name, secret: &[u8]| {
            let (sealed, trailer) = frame.split_last_chunk::<TRAILER_BYTES>().unwrap();
            let mut opened = sealed.to_vec();
            let sum = open_frame(&mut opened, trailer, BlockName(name), &cipher(secret));
            sum.map(|sum| (opened, sum))
        };
        let frame = &bytes[12..];
        assert_eq!(read(frame, 5, b"a"), Some((kv, Checksum(6))));
        assert!(read(frame, 6, b"a").is_none() && read(frame, 5, b"b").is_none());
        for at in 0..frame.len() {
            let mut changed = frame.to_vec();
            changed[at] ^= 16;
            assert_eq!(read(&changed, 5, b"a"), None, "{at}");
        }
    }

    #[test]
    fn frames_follow_the_header_without_gaps() {
        let layout = ExtentLayout::new(3, 10);
        let first = layout.header_bytes() as u64;
        assert_eq!(layout.frames(0..1), first..first + 74);
        assert_eq!(layout.frames(1..3), first + 74..first + 3 * 74);
        assert_eq!(layout.bytes(), first + 3 * 74);
    }

    #[test]
    fn the_identity_of_an_extent_is_of_form_names_and_order() {
        let id = |form: &BlockForm, names: &[u128]| {
            ExtentId::of(form, &seal(), names.iter().map(|name| BlockName(*name)))
        };
        let right = id(&FORM, &[1, 2]);
        assert_eq!(right, id(&FORM, &[1, 2]));
        for names in [&[2, 1][..], &[1], &[1, 2, 3]] {
            assert_ne!(right, id(&FORM, names));
        }
        assert_ne!(right, id(&BlockForm { fingerprint: [4; 32], ..FORM }, &[1, 2]));
    }
}
