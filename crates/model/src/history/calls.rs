//! Calls of tools in messages, and what results say of them.

use stator_api::conversation::Message;
use stator_api::json::Json;
use std::borrow::Cow;

/// The calls of a message.
pub(super) fn calls<'m, 'a>(message: &'m Message<'a>) -> &'m [Json<'a>] {
    match message.extra.iter().find(|(name, _)| name == "tool_calls") {
        Some((_, Json::Array(calls))) => calls,
        _ => &[],
    }
}

/// The name of a call's function.
pub(super) fn function_name<'m, 'a>(call: &'m Json<'a>) -> Option<&'m Cow<'a, str>> {
    match call.get("function")?.get("name")? {
        Json::Str(name) => Some(name),
        _ => None,
    }
}

/// The id of the call that a result answers.
pub(super) fn answered_id<'m>(message: &'m Message<'_>) -> Option<&'m str> {
    message.extra.iter().find(|(name, _)| name == "tool_call_id")?.1.as_str()
}
