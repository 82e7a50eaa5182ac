//! The wish of a request that its prompt stays cached for a time.

use super::catalog::ServedModel;
use stator_api::openai::ApiError;
use stator_api::{FieldNotes, GenerateOptions, PromptPin};

/// The wish, if the model has workers that can obey it.
///
/// # Errors
///
/// 400 where none can, unless clients of the API wish it whatever the server is.
pub(super) fn pin(
    served: &ServedModel,
    options: &GenerateOptions,
    notes: &FieldNotes,
) -> Result<Option<PromptPin>, ApiError> {
    match options.pin {
        Some(pin) if served.pool.pins() => Ok(Some(pin)),
        Some(pin) if pin.is_usual => {
            notes.ignore(pin.field);
            Ok(None)
        }
        Some(PromptPin { field, .. }) => {
            let why = "no worker of this model keeps prompts for a time";
            Err(ApiError::unsupported(field, format!("{field}: {why}")))
        }
        None => Ok(None),
    }
}
