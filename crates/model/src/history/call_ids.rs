//! Ids of calls as a model knows them. The client's ids stay the client's: these are in the prompt
//! alone, on a call and on its result.

use super::calls::{answered_id, calls, function_name};
use stator_api::conversation::{Message, Role};
use stator_api::json::Json;
use std::borrow::Cow;
use std::collections::HashMap;

/// Ids that a template renders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CallIds {
    /// Any id.
    #[default]
    Any,
    /// Nine letters and digits, as Mistral's templates demand.
    Nine,
    /// `functions.NAME:N`, where `N` counts all calls from 0: the id alone has the function's name,
    /// as in Kimi's templates.
    Counted,
}

/// A new id, and its place.
struct NewId {
    message: usize,
    /// The call of the message; none for the id that a result answers.
    call: Option<usize>,
    id: String,
}

/// Gives calls and their results ids of this form. Ids that have the form stay.
pub(super) fn rename(messages: &mut Cow<'_, [Message<'_>]>, form: CallIds) {
    if form == CallIds::Any {
        return;
    }
    let (mut renamed, mut known, mut count) = (Vec::new(), HashMap::new(), 0);
    for (message, it) in messages.iter().enumerate() {
        for (call, it) in calls(it).iter().enumerate() {
            let id = it.get("id").and_then(Json::as_str);
            let new = match (form, id) {
                (CallIds::Counted, _) => counted(id, function_name(it), &mut count),
                (_, Some(id)) => nine(id),
                (_, None) => None,
            };
            // A client may use an id again: the last call that has it is meant.
            id.map(|id| known.insert(id, new.clone()));
            renamed.extend(new.map(|id| NewId { message, call: Some(call), id }));
        }
        let Some(id) = answered_id(it).filter(|_| it.role == Role::Tool) else { continue };
        let new = match known.get(id) {
            Some(new) => new.clone(),
            None if form == CallIds::Nine => nine(id),
            None => None,
        };
        renamed.extend(new.map(|id| NewId { message, call: None, id }));
    }
    for NewId { message, call, id } in renamed {
        let message = &mut messages.to_mut()[message];
        match call {
            Some(call) => set_call_id(message, call, id),
            None => set(&mut message.extra, "tool_call_id", id),
        }
    }
}

fn set_call_id(message: &mut Message<'_>, call: usize, id: String) {
    let list = message.extra.iter_mut().find(|(name, _)| name == "tool_calls");
    if let Some((_, Json::Array(calls))) = list
        && let Json::Object(members) = &mut calls[call]
    {
        set(members, "id", id);
    }
}

fn set(members: &mut Vec<(Cow<'_, str>, Json<'_>)>, name: &'static str, text: String) {
    let value = Json::Str(text.into());
    match members.iter_mut().rev().find(|(key, _)| key == name) {
        Some((_, old)) => *old = value,
        None => members.push((name.into(), value)),
    }
}

/// The counted id of a call, unless it has one. `count` is the number of the next call: above that
/// of each call before.
fn counted(id: Option<&str>, name: Option<&Cow<'_, str>>, count: &mut u32) -> Option<String> {
    let name = name?;
    let number = id.and_then(|id| {
        let digits = id.strip_prefix("functions.")?.strip_prefix(&**name)?.strip_prefix(':')?;
        digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse::<u32>().ok())?
    });
    let here = *count;
    *count = number.map_or(here, |number| number.max(here)).saturating_add(1);
    number.is_none().then(|| format!("functions.{name}:{here}"))
}

/// Nine letters and digits that stand for an id, unless it has that form.
fn nine(id: &str) -> Option<String> {
    const LENGTH: usize = 9;
    const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    if id.len() == LENGTH && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return None;
    }
    // FNV-1a of 64 bits. Nobody gains by a collision: the ids of one client's conversation meet.
    let mut hash = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut digit = || {
        let digit = DIGITS[(hash % DIGITS.len() as u64) as usize];
        hash /= DIGITS.len() as u64;
        char::from(digit)
    };
    Some((0..LENGTH).map(|_| digit()).collect())
}
