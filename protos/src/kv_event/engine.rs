//! Events of engines, with the details that stator's own agents do not send.

use super::KvEvent;
use crate::msgpack::{DecodeError, MsgpackReader, MsgpackValue};
use std::sync::Arc;

/// Most extra keys in one event.
pub const MAX_EXTRA_KEYS: u32 = 1_000_000;

/// Content of one message of an engine.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineBatch {
    /// Time of publication, in seconds since the Unix epoch.
    pub timestamp_s: f64,
    /// The events.
    pub events: Vec<EngineEvent>,
    /// Data-parallel rank of the publisher, where it says so.
    pub rank: Option<u32>,
    /// Events of an unknown kind or on an unknown medium.
    pub skipped: u32,
    /// Fields of the other events, and of the batch, that no version known has. Of events that are
    /// sent as JSON they are not counted.
    pub fields_skipped: u32,
}

/// An event and its details.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineEvent {
    /// The event.
    pub event: KvEvent,
    /// Its details.
    pub detail: Detail,
}

/// Details that, beside tokens, decide to which prompts blocks belong.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Detail {
    /// Cache salt of a request, if the engine names it as such.
    pub cache_salt: Option<String>,
    /// Inputs of the blocks' hashes beside tokens.
    pub extra_keys: ExtraKeys,
    /// Group of layers that the blocks belong to, in models with several kinds of layers.
    pub group: Option<u32>,
    /// Kind of these layers' cache, `full_attention` and others.
    pub spec_kind: Option<String>,
}

/// Inputs of blocks' hashes beside their tokens: a cache salt in the first block of a sequence, an
/// adapter's name in every block, names of images at their positions.
///
/// vLLM does not tag them, so that only their place and form tell them apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtraKeys(Vec<(u32, Option<Arc<str>>)>);

impl ExtraKeys {
    /// The keys in order of their blocks: position of the block in its event, and the key if it is
    /// a text.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Option<&str>)> {
        self.0.iter().map(|(block, key)| (*block, key.as_deref()))
    }

    /// Reads a list with an entry for each block: nil, or a list of keys.
    pub(super) fn read(reader: &mut MsgpackReader<'_>) -> Result<Self, DecodeError> {
        let mut keys = Self::default();
        let blocks = match reader.value()? {
            MsgpackValue::Nil => return Ok(keys),
            MsgpackValue::Array(blocks) => blocks,
            _ => return Err(unexpected("extra_keys", "an array or nil")),
        };
        for block in 0..blocks {
            let items = match reader.value()? {
                MsgpackValue::Nil => continue,
                MsgpackValue::Array(items) => items,
                _ => return Err(unexpected("extra_keys", "arrays or nil")),
            };
            for _ in 0..items {
                keys.read_key(block, reader)?;
            }
        }
        Ok(keys)
    }

    fn read_key(&mut self, block: u32, reader: &mut MsgpackReader<'_>) -> Result<(), DecodeError> {
        if self.0.len() >= MAX_EXTRA_KEYS as usize {
            let (size, limit) = (self.0.len() as u64 + 1, MAX_EXTRA_KEYS.into());
            return Err(DecodeError::TooLarge { field: "extra_keys", size, limit });
        }
        let mut ahead = *reader;
        let key = match ahead.value()? {
            MsgpackValue::Str(text) => {
                let text = String::from_utf8_lossy(text);
                // An adapter's name is the same in every block.
                let last = self.0.last().and_then(|(_, key)| key.clone());
                Some(last.filter(|last| **last == *text).unwrap_or_else(|| text.into()))
            }
            _ => None,
        };
        reader.skip()?;
        self.0.push((block, key));
        Ok(())
    }
}

fn unexpected(field: &'static str, expected: &'static str) -> DecodeError {
    DecodeError::Unexpected { field, expected }
}
