//! KV events as engines publish them: vLLM's MessagePack payload, in both of its encodings.
//!
//! Source: vLLM's `kv_events` as published by 0.10 to 0.33 and SGLang's as published by 0.5; an
//! event was a positional array up to vLLM 0.23 and is a map from 0.24 on. [`decode`] reads
//! both, [`encode`] writes maps.

mod decode;
mod encode;
mod engine;
#[cfg(test)]
mod tests;

pub use crate::msgpack::{DecodeError, MAX_DEPTH};
pub use decode::{
    Decoded, MAX_BLOCK_SIZE, MAX_BLOCKS, MAX_EVENTS, MAX_PAYLOAD_BYTES, decode, decode_engine,
};
pub use encode::encode;
pub use engine::{Detail, EngineBatch, EngineEvent, ExtraKeys, MAX_EXTRA_KEYS};

/// Content of one message: events in the order in which they happened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EventBatch {
    /// Time of publication, in seconds since the Unix epoch.
    pub timestamp_s: f64,
    /// The events.
    pub events: Vec<KvEvent>,
    /// Data-parallel rank of the publisher, where it says so.
    pub rank: Option<u32>,
}

/// One change of an engine's KV cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEvent {
    /// Consecutive blocks of one sequence were filled.
    Stored(Stored),
    /// Blocks are gone.
    Removed(Removed),
    /// All blocks are gone.
    Cleared,
}

/// Consecutive blocks of one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Hashes of the blocks, in order. A stator agent sends sequence hashes
    /// ([`crate::hash::SequenceHash`]); other engines send their own.
    pub hashes: Vec<u64>,
    /// Hash of the block before the first, `None` at the start of a sequence.
    pub parent: Option<u64>,
    /// `block_size` tokens per hash, or none at all.
    pub tokens: Vec<u32>,
    /// Tokens per block.
    pub block_size: u32,
    /// Medium that the blocks are on.
    pub medium: Medium,
    /// LoRA adapter, if any. Engines that only number their adapters give the number here.
    pub lora_name: Option<String>,
}

/// Blocks that are gone from one medium.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    /// Their hashes, in any order. A block that was stored twice is named twice when both of its
    /// copies are gone.
    pub hashes: Vec<u64>,
    /// Medium that the blocks were on.
    pub medium: Medium,
}

/// Medium on which a block lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Medium {
    /// Accelerator memory (or what stands for it).
    #[default]
    Device,
    /// Host memory.
    Host,
    /// Local disk.
    Disk,
    /// Storage that several nodes share.
    Remote,
}

impl From<Medium> for crate::worker::Medium {
    fn from(medium: Medium) -> Self {
        match medium {
            Medium::Device => Self::Device,
            Medium::Host => Self::Host,
            Medium::Disk => Self::Disk,
            Medium::Remote => Self::Remote,
        }
    }
}

impl From<crate::worker::Medium> for Medium {
    fn from(medium: crate::worker::Medium) -> Self {
        match medium {
            crate::worker::Medium::Device => Self::Device,
            crate::worker::Medium::Host => Self::Host,
            crate::worker::Medium::Disk => Self::Disk,
            crate::worker::Medium::Remote => Self::Remote,
        }
    }
}

impl Medium {
    /// Every medium, nearest first.
    pub const ALL: [Self; 4] = [Self::Device, Self::Host, Self::Disk, Self::Remote];

    /// The medium that an engine means by `name`; `None` if no engine is known to say so.
    fn parse(name: &[u8]) -> Option<Self> {
        Some(match name {
            b"GPU" | b"DEVICE" => Self::Device,
            b"CPU" | b"CPU_PINNED" | b"CPU_TIER1" => Self::Host,
            b"CPU_TIER2" | b"DISK" | b"NVME" | b"STORAGE" => Self::Disk,
            b"EXTERNAL" | b"NETWORK" | b"REMOTE" | b"SHARED" => Self::Remote,
            _ => return None,
        })
    }

    /// The medium that engines mean by `name`, in letters of any case; `None` if no engine is
    /// known to say so.
    pub fn of_engine(name: &str) -> Option<Self> {
        Self::parse(name.to_ascii_uppercase().as_bytes())
    }

    /// The name that [`encode`] writes.
    fn name(self) -> &'static str {
        match self {
            Self::Device => "GPU",
            Self::Host => "CPU",
            Self::Disk => "DISK",
            Self::Remote => "REMOTE",
        }
    }
}
