//! Leaving out the beginning of a conversation that does not fit.

use super::catalog::ServedModel;
use super::encode::tokens;
use stator_api::conversation::{Conversation, Role};
use stator_api::openai::ApiError;
use stator_api::{GenerateOptions, Input};
use std::sync::Arc;

/// The tokens of a conversation without as many of its first turns as need be. Instructions stay,
/// and so does the last turn; a result of a tool goes with the turn of its call.
///
/// # Errors
///
/// 4xx where not even the last turn becomes tokens.
pub(super) fn fitted(
    served: &ServedModel,
    input: Input<'_>,
    options: &GenerateOptions,
) -> Result<Vec<Arc<[u32]>>, ApiError> {
    let Input::Conversation(mut conversation) = input else { return tokens(&served.model, &input) };
    let context = served.pool.record().context_length as usize;
    let wanted = options.open.max_tokens.map_or(1, |max| max as usize);
    let messages = std::mem::take(&mut conversation.messages);
    let is_kept = |role| matches!(role, Role::System | Role::Developer);
    let head = messages.iter().take_while(|message| is_kept(message.role)).count();
    // A turn begins where nothing hangs on what came before.
    let starts: Vec<usize> =
        (head..messages.len()).filter(|at| messages[*at].role != Role::Tool).collect();
    let encode = |start: usize, conversation: Conversation<'_>| {
        let kept = messages[..head].iter().chain(&messages[start..]).cloned().collect();
        let input = Input::Conversation(Conversation { messages: kept, ..conversation });
        tokens(&served.model, &input)
    };
    let fits = |tokens: &Result<Vec<Arc<[u32]>>, ApiError>| {
        let tokens = tokens.as_ref().ok().and_then(|prompts| prompts.first());
        tokens.is_some_and(|prompt| prompt.len() + wanted <= context)
    };
    let whole = encode(head, conversation.clone());
    if fits(&whole) || starts.len() < 2 {
        return whole;
    }
    // The first start from which the rest fits, by halves: each try makes the whole prompt.
    let (mut low, mut high) = (1, starts.len() - 1);
    let mut best = encode(starts[high], conversation.clone());
    while low < high {
        let middle = low.midpoint(high);
        let tried = encode(starts[middle], conversation.clone());
        match fits(&tried) {
            true => (high, best) = (middle, tried),
            false => low = middle + 1,
        }
    }
    best
}
