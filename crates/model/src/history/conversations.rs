//! Conversations of property tests: each text is a word of its own, and turns alternate but for
//! instructions, which stand anywhere.

use super::calls::{calls, function_name};
use proptest::prelude::*;
use stator_api::conversation::{Content, Message, Role};
use stator_api::json::Json;
use std::borrow::Cow;

/// A round of calls of tools, and instructions after its results.
#[derive(Clone, Debug)]
struct Round {
    /// Forms of the calls' ids.
    ids: Vec<u8>,
    /// Whether the results come in the opposite order.
    reversed: bool,
    after: Vec<Role>,
}

/// A question, rounds of calls, and an answer.
#[derive(Clone, Debug)]
struct Turn {
    before: Vec<Role>,
    after: Vec<Role>,
    rounds: Vec<Round>,
}

/// Conversations that end with a question.
pub(crate) fn conversations() -> impl Strategy<Value = Vec<Message<'static>>> {
    let roles = |most: usize| {
        prop::collection::vec(prop::sample::select(vec![Role::System, Role::Developer]), 0..=most)
    };
    let round = (prop::collection::vec(0_u8..4, 1..4), any::<bool>(), roles(1))
        .prop_map(|(ids, reversed, after)| Round { ids, reversed, after });
    let turn = (roles(2), roles(1), prop::collection::vec(round, 0..3))
        .prop_map(|(before, after, rounds)| Turn { before, after, rounds });
    (prop::collection::vec(turn, 0..4), roles(2)).prop_map(|(turns, last)| {
        let mut messages = Vec::new();
        for Turn { before, after, rounds } in turns {
            say(&mut messages, &before);
            say(&mut messages, &[Role::User]);
            say(&mut messages, &after);
            rounds.iter().for_each(|round| push_round(&mut messages, round));
            say(&mut messages, &[Role::Assistant]);
        }
        say(&mut messages, &last);
        say(&mut messages, &[Role::User]);
        messages
    })
}

fn say(messages: &mut Vec<Message<'static>>, roles: &[Role]) {
    for role in roles {
        let content = Content::Text(format!("w{}w", messages.len()).into());
        messages.push(Message { role: *role, content, extra: Vec::new() });
    }
}

fn push_round(messages: &mut Vec<Message<'static>>, Round { ids, reversed, after }: &Round) {
    let at = messages.len();
    let name = |call: usize| format!("f{at}_{call}f");
    let id = |call: usize| match ids[call] {
        0 => format!("call_{at:010}{call:010}"),
        1 => format!("abc{at:03}{call:03}"),
        2 => format!("functions.{}:{call}", name(call)),
        // Some clients count their calls anew in each turn.
        _ => format!("{call}"),
    };
    let calls = (0..ids.len()).map(|call| {
        let arguments = format!(r#"{{"k": "a{at}_{call}a"}}"#);
        let function = object([("name", text(name(call))), ("arguments", text(arguments))]);
        object([("id", text(id(call))), ("type", text("function".into())), ("function", function)])
    });
    let calls = Json::Array(calls.collect());
    let extra = vec![("tool_calls".into(), calls)];
    messages.push(Message { role: Role::Assistant, content: Content::Null, extra });
    let mut order: Vec<usize> = (0..ids.len()).collect();
    if *reversed {
        order.reverse();
    }
    for call in order {
        let content = Content::Text(format!("w{}w", messages.len()).into());
        let extra = vec![("tool_call_id".into(), text(id(call)))];
        messages.push(Message { role: Role::Tool, content, extra });
    }
    say(messages, after);
}

fn text(text: String) -> Json<'static> {
    Json::Str(text.into())
}

fn object<const N: usize>(members: [(&'static str, Json<'static>); N]) -> Json<'static> {
    Json::Object(members.into_iter().map(|(name, value)| (name.into(), value)).collect())
}

/// The words of a conversation: its texts, and names and arguments of its calls.
pub(crate) fn words(messages: &[Message<'_>]) -> Vec<String> {
    let mut words = Vec::new();
    for message in messages {
        if let Content::Text(text) = &message.content {
            words.push(text.clone().into_owned());
        }
        for call in calls(message) {
            words.extend(function_name(call).cloned().map(Cow::into_owned));
            let arguments = call.get("function").and_then(|it| it.get("arguments")?.as_str());
            words.extend(arguments.and_then(|text| Some(text.split('"').nth(3)?.to_owned())));
        }
    }
    words
}
