//! Results of tools: in the order of their calls, and with the names of their functions.

use super::calls::{answered_id, calls, function_name};
use stator_api::conversation::{Message, Role};
use stator_api::json::Json;
use std::borrow::Cow;
use std::collections::HashMap;

/// Puts results that follow each other into the order of their calls: templates without ids tell
/// them apart by their places. Results of no known call come last.
pub(super) fn order(messages: &mut Cow<'_, [Message<'_>]>) {
    let mut at = 0;
    while at < messages.len() {
        let results = messages[at + 1..].iter().take_while(|it| it.role == Role::Tool).count();
        let first = at + 1;
        if results > 1 {
            let places = places(&messages[at], &messages[first..first + results]);
            if !places.is_sorted() {
                let mut order: Vec<usize> = (0..results).collect();
                order.sort_by_key(|result| places[*result]);
                let sorted: Vec<_> =
                    order.iter().map(|result| messages[first + result].clone()).collect();
                messages.to_mut().splice(first..first + results, sorted);
            }
        }
        at = first + results;
    }
}

/// The place of each result's call among the calls of a message.
fn places(caller: &Message<'_>, results: &[Message<'_>]) -> Vec<usize> {
    let mut known = HashMap::new();
    for (place, call) in calls(caller).iter().enumerate() {
        if let Some(id) = call.get("id").and_then(Json::as_str) {
            known.entry(id).or_insert(place);
        }
    }
    let place = |result| answered_id(result).and_then(|id| known.get(id).copied());
    results.iter().map(|result| place(result).unwrap_or(usize::MAX)).collect()
}

/// Gives results that have no `name` the name of the function that was called.
pub(super) fn name(messages: &mut Cow<'_, [Message<'_>]>) {
    let (mut known, mut named) = (HashMap::new(), Vec::new());
    for (at, message) in messages.iter().enumerate() {
        for call in calls(message) {
            // Clients count calls anew in each turn: the last call of an id is meant.
            if let Some((id, name)) = call.get("id").and_then(Json::as_str).zip(function_name(call))
            {
                known.insert(id, name);
            }
        }
        let is_nameless = || !message.extra.iter().any(|(name, _)| name == "name");
        if message.role == Role::Tool
            && is_nameless()
            && let Some(name) = answered_id(message).and_then(|id| known.get(id))
        {
            named.push((at, Cow::clone(name)));
        }
    }
    for (at, name) in named {
        messages.to_mut()[at].extra.push(("name".into(), Json::Str(name)));
    }
}
