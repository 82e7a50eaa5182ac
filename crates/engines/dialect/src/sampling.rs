//! Sampling parameters that all engines have by the same name.

use crate::Fault;
use crate::json::Object;
use stator_protos::sampling::Number;
use stator_protos::worker::Sampling;

/// Writes every plain number, defaults too: what is left out may come from the model's own
/// generation configuration.
pub(crate) fn numbers(body: &mut Object, given: &Sampling) {
    for number in Number::ALL {
        body.field(number.name(), number.of(given));
    }
}

/// The seed as engines take it: a signed number that is not negative. Greedy requests need none.
pub(crate) fn seed(given: &Sampling) -> Option<u64> {
    (given.temperature > 0.0).then_some(given.seed & i64::MAX.unsigned_abs())
}

/// Writes the lists of tokens that are not empty.
pub(crate) fn token_lists(body: &mut Object, given: &Sampling) {
    body.biases("logit_bias", &given.logit_bias);
    if !given.stop_token_ids.is_empty() {
        body.ids("stop_token_ids", &given.stop_token_ids);
    }
}

/// Refuses a bound of thoughts, for engines that know none.
///
/// # Errors
///
/// [`Fault::Invalid`] where there is one.
pub(crate) fn refuse_thought_limit(given: &Sampling) -> Result<(), Fault> {
    match given.thought_limit {
        None => Ok(()),
        Some(_) => Err(Fault::Invalid("thought_limit: the engine does not bound thoughts".into())),
    }
}
