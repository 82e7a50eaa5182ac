//! The bound of a model's thoughts that a request asks for.

use super::catalog::ServedModel;
use super::reading::AnswerReading;
use stator_api::openai::ApiError;
use stator_api::{FieldNotes, GenerateOptions};
use std::sync::Arc;

/// Has workers bound the thoughts of the answers to `prompts`, which are read so, if the request says
/// how.
///
/// # Errors
///
/// 400 for a model, or a fleet, whose thoughts nobody can bound, unless clients of the API send a
/// budget whatever the model is.
pub(super) fn bound_thoughts(
    served: &ServedModel,
    options: &mut GenerateOptions,
    prompts: &[Arc<[u32]>],
    reading: Option<&AnswerReading>,
    notes: &FieldNotes,
) -> Result<(), ApiError> {
    let Some(budget) = options.thought_budget else { return Ok(()) };
    let calls = reading.is_some_and(AnswerReading::reads_calls);
    let prompt = prompts.first().filter(|_| served.pool.bounds_thoughts());
    let limit = prompt.and_then(|prompt| served.model.thought_limit(budget.tokens, prompt, calls));
    options.sampling.thought_limit = limit;
    match options.sampling.thought_limit.is_some() {
        true => Ok(()),
        false if budget.is_usual => {
            notes.ignore(budget.field);
            Ok(())
        }
        false => {
            let why = "nothing here ends this model's thoughts";
            Err(ApiError::unsupported(budget.field, format!("{}: {why}", budget.field)))
        }
    }
}
