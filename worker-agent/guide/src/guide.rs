//! One answer and the tokens that may go on with it.

use llguidance::Matcher;
use std::sync::{Mutex, OnceLock, PoisonError};
use toktrie::SimpleVob;

/// Follows one answer. Its mask is computed once for each token, by whoever asks first.
pub struct Guide {
    matcher: Mutex<Matcher>,
    mask: OnceLock<TokenMask>,
}

/// The tokens that may come next: a bit for each of the vocabulary.
#[derive(Clone, Debug)]
pub struct TokenMask {
    /// None where the grammar failed: then nothing but an end may come.
    allowed: Option<SimpleVob>,
}

impl std::fmt::Debug for Guide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guide")
            .field("has_mask", &self.mask.get().is_some())
            .finish_non_exhaustive()
    }
}

impl Clone for Guide {
    /// Another answer that has come as far.
    fn clone(&self) -> Self {
        Self::new(self.matcher.lock().unwrap_or_else(PoisonError::into_inner).deep_clone())
    }
}

impl Guide {
    pub(crate) fn new(matcher: Matcher) -> Self {
        Self { matcher: Mutex::new(matcher), mask: OnceLock::new() }
    }

    /// The tokens that may come next. Computing it takes microseconds, or milliseconds for a grammar
    /// near its limits; asking again takes nothing.
    pub fn mask(&self) -> &TokenMask {
        self.mask.get_or_init(|| {
            let mut matcher = self.matcher.lock().unwrap_or_else(PoisonError::into_inner);
            TokenMask { allowed: matcher.compute_mask_or_eos().ok() }
        })
    }

    /// Takes the token that came.
    pub fn advance(&mut self, token: u32) {
        self.mask.take();
        let matcher = self.matcher.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !matcher.is_stopped() {
            // A token that the mask forbade, or a limit: the next mask allows only the end.
            let _ = matcher.consume_token(token);
        }
    }
}

impl TokenMask {
    /// Rules out all other tokens: their logits become negative infinity. `eos` are the tokens that
    /// end answers, which alone are left where the grammar failed.
    pub fn apply(&self, logits: &mut [f32], eos: &[u32]) {
        match &self.allowed {
            Some(allowed) => {
                let words = allowed.as_slice();
                for (logits, word) in logits.chunks_mut(u32::BITS as usize).zip(words) {
                    rule_out(logits, *word);
                }
                let covered = words.len() * u32::BITS as usize;
                if let Some(rest) = logits.get_mut(covered..) {
                    rest.fill(f32::NEG_INFINITY);
                }
            }
            None => {
                for (id, logit) in (0..).zip(logits) {
                    if !eos.contains(&id) {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }

    /// A token that is allowed, the one of the lowest id.
    pub fn first(&self) -> Option<u32> {
        self.allowed.as_ref()?.first_bit_set().map(|id| id as u32)
    }

    /// Whether a token is allowed.
    pub fn allows(&self, token: u32) -> bool {
        let allowed = self.allowed.as_ref();
        allowed.is_some_and(|allowed| (token as usize) < allowed.len() && allowed.is_allowed(token))
    }
}

fn rule_out(logits: &mut [f32], word: u32) {
    match word {
        u32::MAX => {}
        0 => logits.fill(f32::NEG_INFINITY),
        word => {
            for (bit, logit) in logits.iter_mut().enumerate() {
                if word & (1 << bit) == 0 {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
    }
}
