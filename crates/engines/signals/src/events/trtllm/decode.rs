//! Decoder of one TensorRT-LLM event, into the other engines' terms.

use serde::Deserialize;
use stator_protos::kv_event::{
    Detail, EngineBatch, EngineEvent, KvEvent, MAX_BLOCK_SIZE, MAX_BLOCKS, Medium, Removed, Stored,
};
use std::num::NonZeroU32;

/// Digits of a hexadecimal hash that count: its last 64 bits.
const HASH_DIGITS: usize = 16;

/// Reason why an event was refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DecodeError {
    /// The JSON does not have the expected shape.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// A list is longer than any engine sends.
    #[error("blocks: {size} is above the limit of {MAX_BLOCKS}")]
    TooManyBlocks { size: usize },
    /// A block has more tokens than the configured block size.
    #[error("tokens: a block has {size}, the engine's have {block_size}")]
    BlockSize { size: usize, block_size: u32 },
}

#[derive(Deserialize)]
struct Event {
    data: Data,
    #[serde(default)]
    window_size: Option<u32>,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Data {
    Created {},
    Stored {
        #[serde(default)]
        parent_hash: Option<Hash>,
        blocks: Vec<Block>,
    },
    Removed {
        block_hashes: Vec<Hash>,
    },
    Updated {
        block_hash: Hash,
        #[serde(default)]
        cache_level: Option<Change>,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Block {
    block_hash: Hash,
    tokens: Vec<Token>,
    #[serde(default)]
    cache_level: Option<u32>,
    #[serde(default)]
    lora_id: Option<u64>,
    #[serde(default)]
    cache_salt: Option<String>,
    /// Images and the like, by their keys.
    #[serde(default)]
    mm_keys: Option<Vec<serde::de::IgnoredAny>>,
}

#[derive(Deserialize)]
struct Token {
    token_id: u32,
    /// Other than 0 where the token stands for something else than text.
    #[serde(default)]
    token_extra_id: u64,
}

#[derive(Deserialize)]
struct Change {
    new_value: u32,
}

/// A 64-bit number, signed or unsigned, or hexadecimal text.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "RawHash")]
struct Hash(u64);

#[derive(Deserialize)]
#[serde(untagged)]
enum RawHash {
    Unsigned(u64),
    Signed(i64),
    Text(String),
}

impl TryFrom<RawHash> for Hash {
    type Error = &'static str;

    fn try_from(raw: RawHash) -> Result<Self, Self::Error> {
        Ok(Self(match raw {
            RawHash::Unsigned(hash) => hash,
            RawHash::Signed(hash) => hash as u64,
            RawHash::Text(text) => {
                let digits = text.get(text.len().saturating_sub(HASH_DIGITS)..);
                let hash = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
                hash.ok_or("hash: expected an integer or hexadecimal digits")?
            }
        }))
    }
}

/// The medium of a cache level, if the level is known.
fn medium(level: u32) -> Option<Medium> {
    match level {
        0 => Some(Medium::Device),
        1 => Some(Medium::Host),
        2 => Some(Medium::Disk),
        _ => None,
    }
}

/// Reads one event of an engine whose blocks have `block_size` tokens.
///
/// Stored blocks count up to the first that is not full or holds more than text; no other request
/// could find blocks after it by its tokens. The attention window of a block is its cache group; an
/// event without blocks announces a window. The medium of a removed event means nothing.
pub(crate) fn decode(payload: &[u8], block_size: NonZeroU32) -> Result<EngineBatch, DecodeError> {
    let Event { data, window_size } = serde_json::from_slice(payload)?;
    let removed = |hashes: Vec<u64>| KvEvent::Removed(Removed { hashes, medium: Medium::Device });
    let mut skipped = 0;
    let events = match data {
        Data::Created {} => vec![(removed(Vec::new()), Detail::default())],
        Data::Stored { parent_hash, blocks } => {
            within(blocks.len())?;
            runs(parent_hash, blocks, block_size, &mut skipped)?
        }
        Data::Removed { block_hashes } => {
            within(block_hashes.len())?;
            let hashes = block_hashes.iter().map(|hash| hash.0).collect();
            vec![(removed(hashes), Detail::default())]
        }
        Data::Updated { block_hash, cache_level } => match cache_level {
            // It is as important as it was, or more; that is not ours to know.
            None => Vec::new(),
            Some(change) => {
                let event = match medium(change.new_value) {
                    Some(medium) => KvEvent::Stored(Stored {
                        hashes: vec![block_hash.0],
                        parent: None,
                        tokens: Vec::new(),
                        block_size: block_size.get(),
                        medium,
                        lora_name: None,
                    }),
                    None => removed(vec![block_hash.0]),
                };
                vec![(event, Detail::default())]
            }
        },
        Data::Other => {
            skipped += 1;
            Vec::new()
        }
    };
    let events = events.into_iter().map(|(event, detail)| EngineEvent {
        event,
        detail: Detail { group: window_size, ..detail },
    });
    let (timestamp_s, rank, events) = (0.0, None, events.collect());
    Ok(EngineBatch { timestamp_s, events, rank, skipped, fields_skipped: 0 })
}

/// Groups consecutive blocks into stored events, one for each stretch on one medium.
fn runs(
    parent: Option<Hash>,
    blocks: Vec<Block>,
    block_size: NonZeroU32,
    skipped: &mut u32,
) -> Result<Vec<(KvEvent, Detail)>, DecodeError> {
    let block_size = block_size.get().min(MAX_BLOCK_SIZE);
    let mut parent = parent.map(|hash| hash.0);
    let mut runs: Vec<(Stored, Detail)> = Vec::new();
    for block in blocks {
        let size = block.tokens.len();
        if size > block_size as usize {
            return Err(DecodeError::BlockSize { size, block_size });
        }
        let is_text = block.tokens.iter().all(|token| token.token_extra_id == 0)
            && block.mm_keys.is_none_or(|keys| keys.is_empty());
        let medium = medium(block.cache_level.unwrap_or(0));
        // The blocks behind one that is left out would have a parent that nobody knows.
        let Some(medium) = medium.filter(|_| is_text && size == block_size as usize) else {
            *skipped += 1;
            break;
        };
        let hash = block.block_hash.0;
        let fits = |(run, _): &&mut (Stored, Detail)| run.medium == medium;
        let run = match runs.last_mut().filter(fits) {
            Some((run, _)) => run,
            None => {
                let lora_name = block.lora_id.map(|id| id.to_string());
                let (hashes, tokens) = Default::default();
                let detail = Detail { cache_salt: block.cache_salt, ..Detail::default() };
                let run = Stored { hashes, parent, tokens, block_size, medium, lora_name };
                runs.push((run, detail));
                &mut runs.last_mut().expect("it was just pushed").0
            }
        };
        run.hashes.push(hash);
        run.tokens.extend(block.tokens.iter().map(|token| token.token_id));
        parent = Some(hash);
    }
    Ok(runs.into_iter().map(|(run, detail)| (KvEvent::Stored(run), detail)).collect())
}

fn within(size: usize) -> Result<(), DecodeError> {
    if size <= MAX_BLOCKS as usize { Ok(()) } else { Err(DecodeError::TooManyBlocks { size }) }
}
