//! Limits of an engine, and the facts of its model.

use stator_pins::PinLimits;
use stator_protos::name::NameKey;

/// Limits of one engine. [`EngineOptions::check`] says whether they make sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// Tokens per KV block, 1 to 1024; 16 by default.
    pub block_size: u32,
    /// KV blocks, 1 to 2^24; 1024 by default.
    pub total_blocks: u32,
    /// Sequences computed together, 1 to 65536; 64 by default.
    pub max_running: u32,
    /// Choices that may wait for room, 1 to 2^20; further ones are refused; 4096 by default.
    pub max_waiting: u32,
    /// Tokens computed in one step, 1 to 2^20; 512 by default. Raised to `max_running` where that
    /// is larger, so that every sequence decodes in every step.
    pub max_batched_tokens: u32,
    /// Longest prompt and answer together, in tokens, where it is to be shorter than the model's.
    pub context_length: Option<u32>,
    /// How one vector is made of a prompt.
    pub pooling: Pooling,
    /// Key of the names under which KV is reused; everybody's by default. Engines that exchange KV
    /// have the same.
    pub name_key: NameKey,
    /// Limits of what clients may pin in the engine's own memory.
    pub pins: PinLimits,
}

/// How one vector is made of the hidden values of a prompt's tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooling {
    /// The hidden values of the last token, which has seen all others.
    #[default]
    Last,
    /// The mean of all tokens. Every token is computed anew: a cached prefix has KV alone.
    Mean,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            block_size: 16,
            total_blocks: 1024,
            max_running: 64,
            max_waiting: 4096,
            max_batched_tokens: 512,
            context_length: None,
            pooling: Pooling::default(),
            name_key: NameKey::default(),
            pins: PinLimits::default(),
        }
    }
}

/// An option outside its range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{option}: {value} is not in {min}..={max}")]
pub struct InvalidOption {
    /// Name of the option.
    pub option: &'static str,
    /// The given value.
    pub value: u32,
    /// Least allowed value.
    pub min: u32,
    /// Largest allowed value.
    pub max: u32,
}

impl EngineOptions {
    /// Whether every option is within its documented range.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] names the first that is not.
    pub fn check(&self) -> Result<(), InvalidOption> {
        let ranges = [
            ("block_size", self.block_size, 1, 1024),
            ("total_blocks", self.total_blocks, 1, 1 << 24),
            ("max_running", self.max_running, 1, 65_536),
            ("max_waiting", self.max_waiting, 1, 1 << 20),
            ("max_batched_tokens", self.max_batched_tokens, 1, 1 << 20),
            ("context_length", self.context_length.unwrap_or(u32::MAX), 2, u32::MAX),
        ];
        for (option, value, min, max) in ranges {
            if !(min..=max).contains(&value) {
                return Err(InvalidOption { option, value, min, max });
            }
        }
        Ok(())
    }

    /// Tokens computed in one step at most, with one for every running sequence.
    pub(crate) fn step_tokens(&self) -> usize {
        self.max_batched_tokens.max(self.max_running) as usize
    }
}

/// Facts of a model that a scheduler needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelInfo {
    /// Longest prompt and answer together, in tokens.
    pub context_length: u32,
    /// Token ids are below this.
    pub vocab_size: u32,
    /// Tokens that end an answer.
    pub eos_token_ids: Vec<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid() {
        assert_eq!(EngineOptions::default().check(), Ok(()));
    }

    #[test]
    fn an_option_out_of_range_is_named_with_its_limits() {
        let options = EngineOptions { block_size: 0, ..EngineOptions::default() };
        let error = options.check().unwrap_err();
        assert_eq!(error.to_string(), "block_size: 0 is not in 1..=1024");
    }

    #[test]
    fn a_step_has_room_for_every_running_sequence() {
        let options = EngineOptions { max_running: 600, ..EngineOptions::default() };
        assert_eq!(options.step_tokens(), 600);
    }
}
