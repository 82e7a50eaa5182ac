//! Blocks that a TensorRT-LLM's events announce are those that it has.
//!
//! An input is a list of events, as the engine's server gives it.

use crate::kv_translate::{BLOCK_SIZE, BLOCKS_MAX, Told};
use serde_json::Value;
use stator_signals::events::Translator;
use stator_signals::fuzz::TrtLlmReader;
use std::num::NonZeroU32;

/// Tokens of the engine's blocks, of which several are one of ours.
const PART_SIZE: NonZeroU32 = NonZeroU32::new(4).expect("it is not zero");

/// Runs the target.
pub(crate) fn run(list: &[u8]) {
    let Ok(events) = serde_json::from_slice::<Vec<Value>>(list) else { return };
    let mut reader = TrtLlmReader::new(PART_SIZE, BLOCKS_MAX);
    let mut translator = Translator::new(BLOCK_SIZE, BLOCKS_MAX);
    let mut told = Told::default();
    // The second time every block is there already.
    for event in events.iter().chain(&events) {
        let Ok(read) = reader.read(event.to_string().as_bytes()) else { continue };
        told.follow(&mut translator, &read);
    }
}
