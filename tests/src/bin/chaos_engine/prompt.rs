//! The part of an answer that is there: the state that all tokens so far have led to.

use serde_json::Value;

/// The tokens of answers: those of whole words, none of which ends an answer.
const TOKENS: std::ops::Range<u32> = 300..2800;

/// A prompt, and what was said after it.
pub(crate) struct Prompt {
    state: u64,
    /// The tokens of the prompt; those of a text are its bytes.
    tokens: Vec<u64>,
}

/// The beginning of a prompt as another engine computed it.
pub(crate) struct Computed {
    pub(crate) state: u64,
    /// Tokens that led to the state.
    pub(crate) tokens: usize,
}

impl Prompt {
    /// The prompt of these tokens.
    pub(crate) fn of_tokens(tokens: &Value) -> Self {
        let tokens = tokens.as_array().into_iter().flatten();
        Self::new(tokens.filter_map(Value::as_u64).collect())
    }

    /// The prompt of a text.
    pub(crate) fn of_text(text: &str) -> Self {
        Self::new(text.bytes().map(u64::from).collect())
    }

    fn new(tokens: Vec<u64>) -> Self {
        Self { state: fold(0, &tokens), tokens }
    }

    /// The rest of the prompt, whose beginning was computed elsewhere.
    pub(crate) fn after(self, begun: Computed) -> Self {
        let rest = self.tokens.get(begun.tokens..).unwrap_or_default();
        Self { state: fold(begun.state, rest), tokens: self.tokens }
    }

    /// The number of its tokens.
    pub(crate) fn length(&self) -> usize {
        self.tokens.len()
    }

    /// The state after all of its tokens.
    pub(crate) fn state(&self) -> u64 {
        self.state
    }

    /// Says the next token.
    pub(crate) fn say(&mut self) -> u32 {
        let token = TOKENS.start + (self.state >> 32) as u32 % (TOKENS.end - TOKENS.start);
        self.state = mix(self.state ^ u64::from(token));
        token
    }
}

fn fold(state: u64, tokens: &[u64]) -> u64 {
    tokens.iter().fold(state, |state, token| mix(state ^ token))
}

/// Scrambles a number so that neighbours have nothing in common.
///
/// Source: the output function of SplitMix64 (Steele, Lea and Flood, 2014).
fn mix(state: u64) -> u64 {
    let z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
