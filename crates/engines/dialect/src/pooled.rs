//! Requests for what an engine makes of a prompt in place of an answer.

use crate::{Ask, Delta, Fault, Finish, Hand, Pooling};

/// Whether `ask` is a request for a vector, from an engine that does `pooling`, or answers where that
/// is none. A canary is for whatever the engine does.
///
/// # Errors
///
/// [`Fault::Unsupported`] for an answer from an engine that pools, and for a vector from another.
pub(crate) fn is_pooled(ask: &Ask, pooling: Option<Pooling>) -> Result<bool, Fault> {
    match (ask.sampling.pooled, pooling, &ask.hand) {
        (_, Some(_), Hand::Canary) => Ok(true),
        (true, Some(_), Hand::Whole) => Ok(true),
        (false, None, _) => Ok(false),
        (true, Some(_), _) => Err(Fault::Unsupported("a vector has no half".into())),
        (true, None, _) => Err(Fault::Unsupported("the engine makes no vectors".into())),
        (false, Some(Pooling::Vector), _) => {
            Err(Fault::Unsupported("the engine makes vectors of prompts, and answers none".into()))
        }
        (false, Some(Pooling::Classes), _) => {
            Err(Fault::Unsupported("the engine classifies prompts, and answers none".into()))
        }
    }
}

/// The whole answer that is this vector.
///
/// # Errors
///
/// [`Fault::Failed`] for a vector without a value, or with one that is no number.
pub(crate) fn whole(pooled: Vec<f32>, cached_tokens: Option<u32>) -> Result<Delta, Fault> {
    if pooled.is_empty() {
        return Err(Fault::Failed("the answer has no vector".into()));
    }
    if pooled.iter().any(|value| !value.is_finite()) {
        return Err(Fault::Failed("the answer has a value that is no number".into()));
    }
    Ok(Delta { pooled, cached_tokens, finish: Some(Finish::Length), ..Delta::default() })
}
