//! Reads a batch in either encoding, and believes nothing that it cannot see in the frame.

use super::engine::{Detail, EngineBatch, EngineEvent, ExtraKeys};
use super::{EventBatch, KvEvent, Medium, Removed, Stored};
use crate::msgpack::{DecodeError, MsgpackReader, MsgpackValue};

/// Largest payload, in bytes.
pub const MAX_PAYLOAD_BYTES: usize = 64 << 20;
/// Most events in one batch.
pub const MAX_EVENTS: u32 = 262_144;
/// Most blocks in one event.
pub const MAX_BLOCKS: u32 = 1_000_000;
/// Most tokens in one block.
pub const MAX_BLOCK_SIZE: u32 = 65_536;

/// No event that is kept is shorter: an array with `AllBlocksCleared` in it.
const MIN_EVENT_BYTES: usize = 18;
/// Widths of a hash that is sent as bytes: 8 of them name a block, digests have up to 64.
const HASH_BYTES: std::ops::RangeInclusive<usize> = 8..=64;

/// Fields that engines are known to send, and that decide nothing here.
///
/// Source: vLLM up to 0.33 and SGLang 0.5.23. `medium` and the like may stand in events of any
/// kind.
const UNUSED: [&[u8]; 11] = [
    b"type",
    b"kv_cache_spec_sliding_window",
    b"locality",
    b"ownership",
    b"session_id",
    b"lookahead_token_ids",
    b"kv_cache_spec_kind",
    b"lora_id",
    b"lora_name",
    b"medium",
    b"group_idx",
];

/// Description of a valid count or token id.
const SMALL_INTEGER: &str = "an integer from 0 to 4294967295";

/// A batch, and what of it meant nothing to us.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    /// The batch without the events that were skipped.
    pub batch: EventBatch,
    /// Events of an unknown kind or on an unknown medium.
    pub skipped: u32,
}

/// Reads a payload in any encoding that vLLM or SGLang has used.
///
/// Hashes may be unsigned, signed (kept as the same 64 bits) or bytes (the last 8, big endian).
/// Trailing fields may be missing, and unknown fields have no effect but to be counted. Memory is at most a small
/// multiple of `payload`'s length, whatever the lengths inside it claim.
///
/// # Errors
///
/// [`DecodeError`] where the frame is malformed or beyond a limit; nothing of it may be used.
pub fn decode(payload: &[u8]) -> Result<Decoded, DecodeError> {
    let EngineBatch { timestamp_s, events, rank, skipped, .. } = decode_engine(payload)?;
    let events = events.into_iter().map(|found| found.event).collect();
    Ok(Decoded { batch: EventBatch { timestamp_s, events, rank }, skipped })
}

/// As [`decode`], with what only engines say of their blocks.
///
/// # Errors
///
/// Those of [`decode`].
pub fn decode_engine(payload: &[u8]) -> Result<EngineBatch, DecodeError> {
    within("payload bytes", payload.len() as u64, MAX_PAYLOAD_BYTES as u64)?;
    let mut reader = MsgpackReader::new(payload);
    let fields = array(&mut reader, "batch")?;
    if fields < 2 {
        return Err(DecodeError::Missing { field: "events" });
    }
    let timestamp_s = timestamp(&mut reader)?;
    let count = array(&mut reader, "events")?;
    within("events", count.into(), MAX_EVENTS.into())?;
    // The count is only a claim: memory goes by the bytes that are there.
    let mut events = Vec::with_capacity((count as usize).min(reader.remaining() / MIN_EVENT_BYTES));
    let (mut skipped, mut fields_skipped) = (0, fields.saturating_sub(3));
    for _ in 0..count {
        match event(&mut reader, &mut fields_skipped)? {
            Some(event) => events.push(event),
            None => skipped += 1,
        }
    }
    let rank = match fields {
        2 => None,
        _ => optional_u32(&mut reader, "data_parallel_rank")?,
    };
    for _ in 3..fields {
        reader.skip()?;
    }
    reader.finish()?;
    Ok(EngineBatch { timestamp_s, events, rank, skipped, fields_skipped })
}

#[derive(Clone, Copy)]
enum TopicKind {
    Stored,
    Removed,
    Cleared,
    Unknown,
}

impl TopicKind {
    fn parse(name: &[u8]) -> Self {
        match name {
            b"BlockStored" => Self::Stored,
            b"BlockRemoved" => Self::Removed,
            b"AllBlocksCleared" => Self::Cleared,
            _ => Self::Unknown,
        }
    }

    /// Name of the field at `position` of the array form, the kind itself being 0.
    fn field(self, position: u32) -> &'static [u8] {
        const STORED: [&[u8]; 11] = [
            b"block_hashes",
            b"parent_block_hash",
            b"token_ids",
            b"block_size",
            b"lora_id",
            b"medium",
            b"lora_name",
            b"extra_keys",
            b"group_idx",
            b"kv_cache_spec_kind",
            b"kv_cache_spec_sliding_window",
        ];
        const REMOVED: [&[u8]; 3] = [b"block_hashes", b"medium", b"group_idx"];
        let names: &[&[u8]] = match self {
            Self::Stored => &STORED,
            Self::Removed => &REMOVED,
            Self::Cleared | Self::Unknown => &[],
        };
        names.get(position as usize - 1).copied().unwrap_or(b"")
    }
}

/// One event; `None` if it is of no known kind or medium. Counts the fields of a known kind that
/// are new.
fn event(
    reader: &mut MsgpackReader<'_>,
    fields_skipped: &mut u32,
) -> Result<Option<EngineEvent>, DecodeError> {
    let unexpected = unexpected("event", "an array or a map");
    match reader.value()? {
        MsgpackValue::Array(items) if items > 0 => {
            let MsgpackValue::Str(name) = reader.value()? else { return Err(unexpected) };
            let kind = TopicKind::parse(name);
            let mut fields = Fields::default();
            for position in 1..items {
                fields.read(kind, kind.field(position), reader)?;
            }
            *fields_skipped += fields.skipped;
            fields.event(kind)
        }
        // The kind may be the last member of the map, so it is looked for first.
        MsgpackValue::Map(pairs) => {
            let kind = kind_of_map(*reader, pairs)?;
            let mut fields = Fields::default();
            for _ in 0..pairs {
                let MsgpackValue::Str(name) = reader.value()? else { return Err(unexpected) };
                fields.read(kind, name, reader)?;
            }
            *fields_skipped += fields.skipped;
            fields.event(kind)
        }
        _ => Err(unexpected),
    }
}

/// Looks ahead for the kind, which is the first key of every writer known and may be any.
fn kind_of_map(mut reader: MsgpackReader<'_>, pairs: u32) -> Result<TopicKind, DecodeError> {
    for _ in 0..pairs {
        if reader.value()? == MsgpackValue::Str(b"type") {
            let MsgpackValue::Str(name) = reader.value()? else {
                return Err(unexpected("type", "a string"));
            };
            return Ok(TopicKind::parse(name));
        }
        reader.skip()?;
    }
    Err(DecodeError::Missing { field: "type" })
}

/// Fields of one event as far as they have been read.
#[derive(Default)]
struct Fields {
    hashes: Option<Vec<u64>>,
    parent: Option<u64>,
    tokens: Vec<u32>,
    block_size: Option<u32>,
    lora_id: Option<u64>,
    lora_name: Option<String>,
    medium: Option<Medium>,
    unknown_medium: bool,
    detail: Detail,
    /// Fields that are new.
    skipped: u32,
}

impl Fields {
    /// Reads the value of one field, or skips it if an event of this kind has no such field.
    fn read(
        &mut self,
        kind: TopicKind,
        name: &[u8],
        reader: &mut MsgpackReader<'_>,
    ) -> Result<(), DecodeError> {
        match (kind, name) {
            (TopicKind::Stored | TopicKind::Removed, b"block_hashes") => {
                self.hashes = Some(hashes(reader)?)
            }
            (TopicKind::Stored | TopicKind::Removed, b"medium") => self.read_medium(reader)?,
            (TopicKind::Stored, b"parent_block_hash") => self.parent = optional_hash(reader)?,
            (TopicKind::Stored, b"token_ids") => self.tokens = tokens(reader)?,
            (TopicKind::Stored, b"block_size") => {
                self.block_size = optional_u32(reader, "block_size")?;
            }
            (TopicKind::Stored, b"lora_id") => self.lora_id = optional_hash(reader)?,
            (TopicKind::Stored, b"lora_name") => {
                self.lora_name = optional_str(reader, "lora_name")?.map(lossy);
            }
            (TopicKind::Stored | TopicKind::Removed, b"group_idx") => {
                self.detail.group = optional_u32(reader, "group_idx")?;
            }
            (TopicKind::Stored, b"extra_keys") => self.detail.extra_keys = ExtraKeys::read(reader)?,
            (TopicKind::Stored, b"kv_cache_spec_kind") => {
                self.detail.spec_kind = optional_str(reader, "kv_cache_spec_kind")?.map(lossy);
            }
            (TopicKind::Stored, b"cache_salt") => {
                self.detail.cache_salt = optional_str(reader, "cache_salt")?.map(lossy);
            }
            (TopicKind::Stored, b"metadata") => self.read_metadata(reader)?,
            (TopicKind::Unknown, _) => reader.skip()?,
            _ => {
                self.skipped += u32::from(!UNUSED.contains(&name));
                reader.skip()?;
            }
        }
        Ok(())
    }

    /// Later SGLang keeps the salt in a map.
    fn read_metadata(&mut self, reader: &mut MsgpackReader<'_>) -> Result<(), DecodeError> {
        let pairs = match reader.value()? {
            MsgpackValue::Nil => 0,
            MsgpackValue::Map(pairs) => pairs,
            _ => return Err(unexpected("metadata", "a map or nil")),
        };
        for _ in 0..pairs {
            let MsgpackValue::Str(key) = reader.value()? else {
                return Err(unexpected("metadata", "a map whose keys are strings"));
            };
            match key {
                b"cache_salt" => {
                    self.detail.cache_salt = optional_str(reader, "cache_salt")?.map(lossy);
                }
                _ => reader.skip()?,
            }
        }
        Ok(())
    }

    fn read_medium(&mut self, reader: &mut MsgpackReader<'_>) -> Result<(), DecodeError> {
        let name = optional_str(reader, "medium")?;
        self.medium = name.and_then(Medium::parse);
        self.unknown_medium = name.is_some() && self.medium.is_none();
        Ok(())
    }

    /// Puts the fields together.
    fn event(mut self, kind: TopicKind) -> Result<Option<EngineEvent>, DecodeError> {
        let detail = std::mem::take(&mut self.detail);
        Ok(self.plain_event(kind)?.map(|event| EngineEvent { event, detail }))
    }

    fn plain_event(self, kind: TopicKind) -> Result<Option<KvEvent>, DecodeError> {
        if self.unknown_medium {
            return Ok(None);
        }
        let medium = self.medium.unwrap_or_default();
        let hashes = self.hashes.ok_or(DecodeError::Missing { field: "block_hashes" });
        Ok(match kind {
            TopicKind::Unknown => None,
            TopicKind::Cleared => Some(KvEvent::Cleared),
            TopicKind::Removed => Some(KvEvent::Removed(Removed { hashes: hashes?, medium })),
            TopicKind::Stored => {
                let hashes = hashes?;
                let block_size = block_size(self.block_size)?;
                fills(self.tokens.len(), hashes.len(), block_size)?;
                // An adapter that has only a number is still another namespace than none.
                let lora_name = self.lora_name.or(self.lora_id.map(|id| id.to_string()));
                let (parent, tokens) = (self.parent, self.tokens);
                Some(KvEvent::Stored(Stored {
                    hashes,
                    parent,
                    tokens,
                    block_size,
                    medium,
                    lora_name,
                }))
            }
        })
    }
}

fn block_size(value: Option<u32>) -> Result<u32, DecodeError> {
    match value {
        None => Err(DecodeError::Missing { field: "block_size" }),
        Some(0) => Err(unexpected("block_size", "at least 1")),
        Some(size) => {
            within("block_size", size.into(), MAX_BLOCK_SIZE.into())?;
            Ok(size)
        }
    }
}

/// Tokens may be left out; those that are there must fill the blocks.
fn fills(tokens: usize, blocks: usize, block_size: u32) -> Result<(), DecodeError> {
    if tokens == 0 || tokens as u64 == blocks as u64 * u64::from(block_size) {
        return Ok(());
    }
    Err(DecodeError::TokenCount { tokens, blocks, block_size })
}

fn hashes(reader: &mut MsgpackReader<'_>) -> Result<Vec<u64>, DecodeError> {
    let count = array(reader, "block_hashes")?;
    within("block_hashes", count.into(), MAX_BLOCKS.into())?;
    let mut hashes = Vec::with_capacity((count as usize).min(reader.remaining()));
    for _ in 0..count {
        let hash = optional_hash(reader)?.ok_or(unexpected("block_hashes", "a hash"))?;
        hashes.push(hash);
    }
    Ok(hashes)
}

fn optional_hash(reader: &mut MsgpackReader<'_>) -> Result<Option<u64>, DecodeError> {
    match reader.value()? {
        MsgpackValue::Nil => Ok(None),
        MsgpackValue::Unsigned(hash) => Ok(Some(hash)),
        MsgpackValue::Negative(hash) => Ok(Some(hash as u64)),
        MsgpackValue::Bin(bytes) if HASH_BYTES.contains(&bytes.len()) => {
            Ok(bytes.last_chunk().map(|last| u64::from_be_bytes(*last)))
        }
        _ => Err(unexpected("hash", "an integer, or 8 to 64 bytes")),
    }
}

fn tokens(reader: &mut MsgpackReader<'_>) -> Result<Vec<u32>, DecodeError> {
    let count = array(reader, "token_ids")?;
    let mut tokens = Vec::with_capacity((count as usize).min(reader.remaining()));
    for _ in 0..count {
        tokens.push(reader.u32()?.ok_or(unexpected("token_ids", SMALL_INTEGER))?);
    }
    Ok(tokens)
}

fn timestamp(reader: &mut MsgpackReader<'_>) -> Result<f64, DecodeError> {
    match reader.value()? {
        MsgpackValue::Float(seconds) => Ok(seconds),
        MsgpackValue::Unsigned(seconds) => Ok(seconds as f64),
        _ => Err(unexpected("timestamp", "a number of seconds")),
    }
}

fn array(reader: &mut MsgpackReader<'_>, field: &'static str) -> Result<u32, DecodeError> {
    match reader.value()? {
        MsgpackValue::Array(items) => Ok(items),
        _ => Err(unexpected(field, "an array")),
    }
}

fn optional_u32(
    reader: &mut MsgpackReader<'_>,
    field: &'static str,
) -> Result<Option<u32>, DecodeError> {
    match reader.value()? {
        MsgpackValue::Nil => Ok(None),
        MsgpackValue::Unsigned(value) if value <= u32::MAX.into() => Ok(Some(value as u32)),
        _ => Err(unexpected(field, SMALL_INTEGER)),
    }
}

fn optional_str<'a>(
    reader: &mut MsgpackReader<'a>,
    field: &'static str,
) -> Result<Option<&'a [u8]>, DecodeError> {
    match reader.value()? {
        MsgpackValue::Nil => Ok(None),
        MsgpackValue::Str(text) => Ok(Some(text)),
        _ => Err(unexpected(field, "a string or nil")),
    }
}

fn lossy(text: &[u8]) -> String {
    String::from_utf8_lossy(text).into_owned()
}

fn within(field: &'static str, size: u64, limit: u64) -> Result<(), DecodeError> {
    if size <= limit { Ok(()) } else { Err(DecodeError::TooLarge { field, size, limit }) }
}

fn unexpected(field: &'static str, expected: &'static str) -> DecodeError {
    DecodeError::Unexpected { field, expected }
}
