//! Formats of engines' messages.

use super::trtllm::{self, Places};
use stator_protos::kv_event::{self, EngineBatch, EngineEvent};
use std::borrow::Cow;
use std::num::NonZeroU32;

/// The format of an engine's messages, with the state that reading them needs.
#[derive(Debug)]
pub(super) enum Dialect {
    /// MessagePack, as vLLM and SGLang publish it.
    MsgPack,
    /// JSON, from TensorRT-LLM.
    TrtLlm {
        /// Tokens per block of the engine.
        block_size: NonZeroU32,
        places: Places,
    },
}

impl Dialect {
    /// Reads a message; the error is for a log line.
    pub(super) fn decode(&self, payload: &[u8]) -> Result<EngineBatch, String> {
        match self {
            Self::MsgPack => kv_event::decode_engine(payload).map_err(|error| error.to_string()),
            Self::TrtLlm { block_size, .. } => {
                trtllm::decode(payload, *block_size).map_err(|error| error.to_string())
            }
        }
    }

    /// Resolves events that depend on those before them.
    pub(super) fn settle<'a>(&mut self, events: &'a [EngineEvent]) -> Cow<'a, [EngineEvent]> {
        match self {
            Self::MsgPack => Cow::Borrowed(events),
            Self::TrtLlm { places, .. } => Cow::Owned(places.settle(events)),
        }
    }

    /// Forgets the engine's blocks.
    pub(super) fn forget(&mut self) {
        if let Self::TrtLlm { places, .. } = self {
            places.forget();
        }
    }

    /// Resets for another process of the engine.
    pub(super) fn restart(&mut self) {
        if let Self::TrtLlm { places, .. } = self {
            places.restart();
        }
    }
}
