//! A conversation as its template can take it: results of tools in their order and with names, ids
//! of calls and instructions in the forms that the template renders.
//!
//! Pure: messages in, messages out. Nothing is copied for a template that needs nothing.

mod call_ids;
mod calls;
#[cfg(test)]
pub(crate) mod conversations;
mod instructions;
mod results;
#[cfg(test)]
mod tests;

pub(crate) use call_ids::CallIds;
pub(crate) use instructions::InstructionRules;

use stator_api::conversation::Message;
use std::borrow::Cow;

/// Needs of a template beyond the form of a single message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HistoryNeeds {
    /// Instructions that the template renders.
    pub(crate) instructions: InstructionRules,
    /// Ids of calls that the template renders.
    pub(crate) ids: CallIds,
    /// Whether results of tools carry the name of their function.
    pub(crate) result_names: bool,
}

/// The messages as the template renders them, in an order that depends on earlier messages alone:
/// a conversation that an assistant continues begins as it did before.
pub(crate) fn settle<'m, 'a>(
    messages: &'m [Message<'a>],
    needs: HistoryNeeds,
) -> Cow<'m, [Message<'a>]> {
    let mut settled = Cow::Borrowed(messages);
    results::order(&mut settled);
    // Names are found by the client's ids.
    if needs.result_names {
        results::name(&mut settled);
    }
    call_ids::rename(&mut settled, needs.ids);
    instructions::place(&mut settled, needs.instructions);
    settled
}
