//! Instructions (messages of `system` and `developer`) where a template renders them.

use stator_api::conversation::{Content, Message, Role};
use std::borrow::Cow;

/// Places in which a template renders instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InstructionRules {
    /// One message in front of all others.
    pub(crate) first: bool,
    /// Several messages in front.
    pub(crate) several: bool,
    /// A message between turns, in its place.
    pub(crate) later: bool,
    /// Two messages of the user that follow each other.
    pub(crate) adjacent_users: bool,
}

/// A template that renders all that comes.
impl Default for InstructionRules {
    fn default() -> Self {
        Self { first: true, several: true, later: true, adjacent_users: true }
    }
}

/// Stands between texts that become one message.
const SEPARATOR: &str = "\n\n";

/// Moves instructions to places in which the template renders them, and keeps the order of all texts.
///
/// Several in front become one. Any other becomes a message of the user where two may follow each
/// other. Where turns must alternate it begins the user's next message; if that is not the next one,
/// it ends the user's or tool's message before it, or is a turn of its own.
pub(super) fn place(messages: &mut Cow<'_, [Message<'_>]>, rules: InstructionRules) {
    let head = messages.iter().take_while(|message| is_instruction(message)).count();
    let merges = head > 1 && rules.first && !rules.several;
    let moves_head = head > 0 && !rules.first;
    let moves = moves_head || (!rules.later && messages[head..].iter().any(is_instruction));
    if !merges && !moves {
        return;
    }
    let mut placed = Vec::with_capacity(messages.len());
    // Instructions that wait for the message after them.
    let mut waiting = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let stays = if at < head { rules.first } else { rules.later };
        let is_one_of_several = at < head && at > 0 && !rules.several;
        match is_instruction(message) {
            true if stays && is_one_of_several => append(&mut placed[0], message.clone()),
            true if !stays && rules.adjacent_users => {
                placed.push(Message { role: Role::User, ..message.clone() });
            }
            true if !stays => waiting.push(Message { role: Role::User, ..message.clone() }),
            _ => {
                let mut message = message.clone();
                if message.role == Role::User {
                    waiting.drain(..).rev().for_each(|text| prepend(&mut message, text));
                }
                flush(&mut waiting, &mut placed);
                placed.push(message);
            }
        }
    }
    flush(&mut waiting, &mut placed);
    *messages = Cow::Owned(placed);
}

fn is_instruction(message: &Message<'_>) -> bool {
    matches!(message.role, Role::System | Role::Developer)
}

/// Ends the waiting of instructions that no message of the user follows.
fn flush<'a>(waiting: &mut Vec<Message<'a>>, placed: &mut Vec<Message<'a>>) {
    for message in waiting.drain(..) {
        match placed.last_mut() {
            Some(last) if matches!(last.role, Role::User | Role::Tool) => append(last, message),
            _ => placed.push(message),
        }
    }
}

fn append<'a>(message: &mut Message<'a>, after: Message<'a>) {
    message.content = joined(&message.content, &after.content);
    for (name, value) in after.extra {
        if !message.extra.iter().any(|(known, _)| *known == name) {
            message.extra.push((name, value));
        }
    }
}

fn prepend<'a>(message: &mut Message<'a>, before: Message<'a>) {
    message.content = joined(&before.content, &message.content);
}

fn joined(first: &Content<'_>, second: &Content<'_>) -> Content<'static> {
    let (first, second) = (text(first), text(second));
    let separator = if first.is_empty() || second.is_empty() { "" } else { SEPARATOR };
    Content::Text(format!("{first}{separator}{second}").into())
}

fn text(content: &Content<'_>) -> String {
    content.texts().collect::<Vec<_>>().join("\n")
}
