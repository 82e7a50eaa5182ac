//! The bound of a model's thoughts that a request asks for.

use super::catalog::ServedModel;
use stator_api::openai::ApiError;
use stator_api::{FieldNotes, GenerateOptions};
use std::sync::Arc;

/// Has workers bound the thoughts of the answers to `prompts`, if the request says how; returns whether
/// they are to. `calls` says whether answers are read for calls of tools.
///
/// # Errors
///
/// 400 for a model, or a fleet, whose thoughts nobody can bound, unless clients of the API send a
/// budget whatever the model is.
pub(super) fn bound_thoughts(
    served: &ServedModel,
    options: &mut GenerateOptions,
    prompts: &[Arc<[u32]>],
    calls: bool,
    notes: &FieldNotes,
) -> Result<bool, ApiError> {
    let Some(budget) = options.thought_budget else { return Ok(false) };
    let prompt = prompts.first().filter(|_| served.pool.bounds_thoughts());
    let limit = prompt.and_then(|prompt| served.model.thought_limit(budget.tokens, prompt, calls));
    options.sampling.thought_limit = limit;
    let is_bound = options.sampling.thought_limit.is_some();
    match is_bound {
        false if budget.is_usual => notes.ignore(budget.field),
        false => {
            let why = "nothing here ends this model's thoughts";
            return Err(ApiError::unsupported(budget.field, format!("{}: {why}", budget.field)));
        }
        true => {}
    }
    Ok(is_bound)
}
