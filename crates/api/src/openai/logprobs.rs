//! Logprobs in the two shapes of the API.

use super::escape::{push_f32, push_int, push_json_str};
use crate::delta::{TokenLogprob, TokenText};

/// Appends a chat's `logprobs` value: `{"content":[…],"refusal":null}`.
pub fn push_chat(out: &mut Vec<u8>, tokens: &[TokenLogprob]) {
    out.extend_from_slice(b"{\"content\":");
    push_list(out, tokens, push_chat_token);
    out.extend_from_slice(b",\"refusal\":null}");
}

/// Appends one token of a chat's `logprobs`, with its alternatives.
pub(crate) fn push_chat_token(out: &mut Vec<u8>, token: &TokenLogprob) {
    out.push(b'{');
    push_token(out, &token.chosen);
    out.extend_from_slice(b",\"top_logprobs\":");
    push_list(out, &token.top, |out, top| {
        out.push(b'{');
        push_token(out, top);
        out.push(b'}');
    });
    out.push(b'}');
}

/// Appends a completion's `logprobs` value: `{"tokens","token_logprobs","top_logprobs",
/// "text_offset"}`.
pub fn push_completion(out: &mut Vec<u8>, tokens: &[TokenLogprob]) {
    out.extend_from_slice(b"{\"tokens\":");
    push_list(out, tokens, |out, token| push_json_str(out, &token.chosen.token));
    out.extend_from_slice(b",\"token_logprobs\":");
    push_list(out, tokens, |out, token| match token.known {
        true => push_f32(out, token.chosen.logprob),
        false => out.extend_from_slice(b"null"),
    });
    out.extend_from_slice(b",\"top_logprobs\":");
    push_list(out, tokens, |out, token| match token.known {
        true => push_top_map(out, token),
        false => out.extend_from_slice(b"null"),
    });
    out.extend_from_slice(b",\"text_offset\":");
    push_list(out, tokens, |out, token| push_int(out, token.text_offset));
    out.push(b'}');
}

/// The alternatives as an object. Different tokens may have the same text, and an object has each
/// key once: the most likely counts.
fn push_top_map(out: &mut Vec<u8>, token: &TokenLogprob) {
    out.push(b'{');
    let mut first = true;
    for (at, top) in token.top.iter().enumerate() {
        if token.top[..at].iter().any(|better| better.token == top.token) {
            continue;
        }
        if !std::mem::take(&mut first) {
            out.push(b',');
        }
        push_json_str(out, &top.token);
        out.push(b':');
        push_f32(out, top.logprob);
    }
    out.push(b'}');
}

fn push_token(out: &mut Vec<u8>, token: &TokenText) {
    out.extend_from_slice(b"\"token\":");
    push_json_str(out, &token.token);
    out.extend_from_slice(b",\"logprob\":");
    push_f32(out, token.logprob);
    out.extend_from_slice(b",\"bytes\":");
    push_list(out, &token.bytes, |out, byte| push_int(out, *byte));
}

/// Appends `[…]` with commas between the items.
pub(crate) fn push_list<T>(out: &mut Vec<u8>, items: &[T], mut push: impl FnMut(&mut Vec<u8>, &T)) {
    out.push(b'[');
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        push(out, item);
    }
    out.push(b']');
}
