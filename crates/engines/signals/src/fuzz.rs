//! Parsers of what engines send, for fuzz targets.

use crate::events::trtllm::{Places, decode};
use stator_protos::kv_event::EngineEvent;
use std::num::NonZeroU32;

/// Reads the events of one life of a TensorRT-LLM, as a follower does.
#[derive(Debug)]
pub struct TrtLlmReader {
    block_size: NonZeroU32,
    places: Places,
}

impl TrtLlmReader {
    /// A reader for an engine of `block_size` tokens a block, which tracks at most `blocks_max`.
    pub fn new(block_size: NonZeroU32, blocks_max: usize) -> Self {
        Self { block_size, places: Places::new(blocks_max) }
    }

    /// The events that one event in JSON means to a translator.
    ///
    /// # Errors
    ///
    /// The fault of an event that is none.
    pub fn read(&mut self, event: &[u8]) -> Result<Vec<EngineEvent>, String> {
        let batch = decode(event, self.block_size).map_err(|error| error.to_string())?;
        Ok(self.places.settle(&batch.events))
    }
}
