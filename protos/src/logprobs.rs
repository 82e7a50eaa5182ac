//! Log-probabilities of tokens, as engines report them.

/// A token's log-probability before temperature and truncation, and its alternatives.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// The token.
    pub token: u32,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// The most likely tokens with theirs, best first.
    pub top: Vec<(u32, f32)>,
}
