//! The bodies that are sent: conversations of several turns, all of one size.

use bytes::Bytes;

/// Width of the numbers that tell one body from another.
const DIGITS: usize = 16;
/// Prompts are cut into messages of about this share, so that long ones have many turns.
const MESSAGES_MAX: usize = 32;
/// Smallest message that is worth a turn, in bytes.
const MESSAGE_BYTES_MIN: usize = 400;

const WORDS: [&str; 32] = [
    "the", "value", "of", "this", "name", "is", "not", "set", "when", "a", "list", "has", "more",
    "than", "one", "item", "return", "first", "then", "with", "each", "key", "and", "file", "that",
    "was", "read", "before", "any", "other", "line", "ends",
];

/// A body with two holes for numbers: in its first message, that of the conversation, and in its
/// last, that of the turn. Equal conversations have all but the last message in common.
pub(crate) struct Template {
    text: Vec<u8>,
    conversation_at: usize,
    turn_at: usize,
    conversations: u64,
}

impl Template {
    /// Bodies of about `size_bytes`, of this many conversations in turn; 0 makes each its own.
    pub(crate) fn new(size_bytes: usize, conversations: u64) -> Self {
        let messages = (size_bytes / MESSAGE_BYTES_MIN).clamp(2, MESSAGES_MAX) & !1;
        let words_bytes = (size_bytes / messages).saturating_sub(60);
        let mut text = br#"{"model":"tiny","max_tokens":5,"messages":["#.to_vec();
        let mut holes = Vec::new();
        for message in 0..messages {
            let role = match message {
                0 => "system",
                _ if message % 2 == 1 => "user",
                _ => "assistant",
            };
            text.extend_from_slice(format!(r#"{{"role":"{role}","content":"number "#).as_bytes());
            holes.push(text.len());
            text.extend_from_slice(format!("{message:0DIGITS$}").as_bytes());
            words(&mut text, message, words_bytes);
            text.extend_from_slice(if message + 1 < messages { br#""},"# } else { br#""}]}"# });
        }
        Self { text, conversation_at: holes[0], turn_at: holes[messages - 1], conversations }
    }

    /// Length of a body in bytes.
    pub(crate) fn size_bytes(&self) -> usize {
        self.text.len()
    }

    /// The body of a request, counted from 0.
    pub(crate) fn body(&self, number: u64) -> Bytes {
        let conversation = match self.conversations {
            0 => number,
            conversations => number % conversations,
        };
        let mut body = self.text.clone();
        for (at, number) in [(self.conversation_at, conversation), (self.turn_at, number)] {
            body[at..at + DIGITS].copy_from_slice(format!("{number:0DIGITS$}").as_bytes());
        }
        body.into()
    }
}

/// Appends words that begin with a space, in an order of their own for each message.
fn words(text: &mut Vec<u8>, message: usize, size_bytes: usize) {
    let end = text.len() + size_bytes;
    let mut random = message as u64 + 1;
    while text.len() < end {
        // Knuth's generator; its high bits are good enough to draw words with.
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.push(b' ');
        text.extend_from_slice(WORDS[(random >> 59) as usize].as_bytes());
    }
}
