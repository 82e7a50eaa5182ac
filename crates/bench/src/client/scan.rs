//! Reads what a load generator needs from one stream chunk in a single pass, without building a
//! tree: a chunk is about 200 bytes of which one string matters.

use serde::Deserialize;

/// Content of one chunk.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Chunk<'a> {
    /// The text of the answer in it, as it stands in the JSON, quotes included; chat's `content`
    /// or completions' `text`. `None` where it is absent or empty.
    pub(crate) text: Option<&'a [u8]>,
    /// Whether it carries something that the model produced: text, reasoning or a tool call.
    pub(crate) content: bool,
    /// Whether it carries a reason for the end.
    pub(crate) finished: bool,
    /// Whether it carries an error.
    pub(crate) error: bool,
    /// Its token counts.
    pub(crate) usage: Option<TokenUsage>,
}

/// Token counts of a request, as the server reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct TokenUsage {
    /// Tokens of the prompt.
    #[serde(default)]
    pub prompt_tokens: u64,
    /// Tokens of the answer.
    #[serde(default)]
    pub completion_tokens: u64,
    /// Details of the prompt's tokens; many servers leave them out.
    #[serde(default)]
    pub prompt_tokens_details: Option<PromptDetails>,
}

/// Details of the prompt's tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct PromptDetails {
    /// Tokens whose KV was reused.
    #[serde(default)]
    pub cached_tokens: Option<u64>,
}

impl TokenUsage {
    /// Tokens of the prompt whose KV was reused, where the server says.
    pub fn cached_tokens(&self) -> Option<u64> {
        self.prompt_tokens_details.and_then(|details| details.cached_tokens)
    }
}

/// Reads a chunk and skips all that it does not understand. The scan never fails: garbage is a
/// chunk without content.
pub(crate) fn chunk(json: &[u8]) -> Chunk<'_> {
    let mut chunk = Chunk::default();
    let (mut at, mut depth) = (0, 0_u32);
    while let Some(byte) = json.get(at) {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                let end = string_end(json, at);
                let value =
                    json[end..].iter().position(|b| !b.is_ascii_whitespace()).map(|n| end + n);
                // A string before a colon is a name; any other string is passed over whole.
                if let Some(colon) = value.filter(|at| json[*at] == b':') {
                    at = skip_whitespace(json, colon + 1);
                    member(&mut chunk, depth, &json[..end], at, json);
                } else {
                    at = end;
                }
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    chunk
}

/// Takes note of one member of an object: `key` ends with its name in quotes, its value begins
/// at `at`.
fn member<'a>(chunk: &mut Chunk<'a>, depth: u32, key: &[u8], at: usize, json: &'a [u8]) {
    let value = &json[at..];
    let is_text = matches!(value, [b'"', second, ..] if *second != b'"');
    if key.ends_with(b"\"content\"") || key.ends_with(b"\"text\"") {
        if is_text && depth > 1 {
            chunk.content = true;
            chunk.text = Some(&json[at..string_end(json, at)]);
        }
    } else if key.ends_with(b"\"reasoning_content\"") || key.ends_with(b"\"reasoning\"") {
        chunk.content |= is_text && depth > 1;
    } else if key.ends_with(b"\"tool_calls\"") {
        chunk.content |=
            value.starts_with(b"[") && !value[1..].trim_ascii_start().starts_with(b"]");
    } else if key.ends_with(b"\"finish_reason\"") {
        chunk.finished |= is_text;
    } else if depth == 1 && key.ends_with(b"\"error\"") {
        chunk.error |= value.starts_with(b"{") || is_text;
    } else if depth == 1 && key.ends_with(b"\"usage\"") && value.starts_with(b"{") {
        let mut deserializer = serde_json::Deserializer::from_slice(value);
        chunk.usage = TokenUsage::deserialize(&mut deserializer).ok().or(chunk.usage);
    }
}

/// End of the string that begins at `start`: one past its closing quote, or the end of `json`.
fn string_end(json: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(byte) = json.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    json.len()
}

fn skip_whitespace(json: &[u8], from: usize) -> usize {
    json[from..]
        .iter()
        .position(|byte| !byte.is_ascii_whitespace())
        .map_or(json.len(), |n| from + n)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check(json: &str, expected: Chunk<'_>) {
        assert_eq!(chunk(json.as_bytes()), expected);
    }

    fn content(text: &str) -> Chunk<'_> {
        Chunk { text: Some(text.as_bytes()), content: true, ..Chunk::default() }
    }

    #[test]
    fn chat_and_completion_chunks_have_text() {
        let chat = r#"{"id":"c","choices":[{"index":0,"delta":{"content":" Hi"},"logprobs":null,"finish_reason":null}]}"#;
        check(chat, content("\" Hi\""));
        check(
            r#"{"choices": [{"index": 0, "text": "a\"b", "finish_reason": null}]}"#,
            content(r#""a\"b""#),
        );
    }

    #[test]
    fn a_role_alone_is_no_content() {
        check(
            r#"{"choices":[{"delta":{"role":"assistant","content":""},"index":0}]}"#,
            Chunk::default(),
        );
        check(r#"{"choices":[{"delta":{"content":null},"index":0}]}"#, Chunk::default());
    }

    #[test]
    fn reasoning_and_tool_calls_are_content_without_text() {
        let produced = || Chunk { content: true, ..Chunk::default() };
        check(r#"{"choices":[{"delta":{"reasoning_content":"hm"}}]}"#, produced());
        check(
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}}]}"#,
            produced(),
        );
        check(r#"{"choices":[{"delta":{"tool_calls":[]}}]}"#, Chunk::default());
    }

    #[test]
    fn keys_inside_text_are_text() {
        let json = json!({"choices": [{"text": "{\"error\":{},\"usage\":{}} \\"}]}).to_string();
        let found = chunk(json.as_bytes());
        assert!(found.content && !found.error && found.usage.is_none());
    }

    #[test]
    fn log_probabilities_are_no_content() {
        let json = r#"{"choices":[{"delta":{"content":""},"logprobs":{"content":[{"token":" a","logprob":-0.1}]}}]}"#;
        check(json, Chunk::default());
    }

    #[test]
    fn the_last_chunk_has_usage() {
        let json = r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4,"total_tokens":13,"prompt_tokens_details":{"cached_tokens":8}}}"#;
        let usage = chunk(json.as_bytes()).usage.unwrap();
        assert_eq!(
            (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens()),
            (9, 4, Some(8))
        );
        let without =
            r#"{"usage":{"prompt_tokens":9,"completion_tokens":4,"prompt_tokens_details":null}}"#;
        assert_eq!(chunk(without.as_bytes()).usage.unwrap().cached_tokens(), None);
        check(r#"{"choices":[],"usage":null}"#, Chunk::default());
    }

    #[test]
    fn the_end_and_errors_are_seen() {
        check(
            r#"{"choices":[{"text":"","finish_reason":"length"}]}"#,
            Chunk { finished: true, ..Chunk::default() },
        );
        check(r#"{"error":{"type":"x"}}"#, Chunk { error: true, ..Chunk::default() });
        check(r#"{"error":null}"#, Chunk::default());
    }

    proptest! {
        /// Any text of an answer is found whole, however it is escaped and spaced.
        #[test]
        fn agrees_with_a_json_parser(text: String, pretty: bool) {
            let value = json!({"id": text, "choices": [{"delta": {"content": text}, "index": 0}]});
            let bytes = if pretty { serde_json::to_vec_pretty(&value) } else { serde_json::to_vec(&value) };
            let bytes = bytes.unwrap();
            let found = chunk(&bytes);
            prop_assert_eq!(found.content, !text.is_empty());
            let parsed = found.text.map(|text| serde_json::from_slice::<Value>(text).unwrap());
            prop_assert_eq!(parsed, (!text.is_empty()).then(|| Value::from(text)));
        }

        /// Bytes that are no JSON at all do not panic.
        #[test]
        fn arbitrary_bytes_are_harmless(bytes in proptest::collection::vec(any::<u8>(), 0..300), tail in "[\"\\\\:{}a]{0,60}") {
            let _ = chunk(&bytes);
            let _ = chunk(tail.as_bytes());
        }
    }
}
