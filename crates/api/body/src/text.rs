//! The user's input in a body, as bytes that two requests share where they share a prompt.

use crate::cursor::Cursor;
use crate::fields::{Field, Fields};
use crate::span::Span;
use crate::strings::unquote;

/// Fields that precede the conversation in a prompt, in the order of the usual chat templates, and the
/// side of a score or ranking that all its pairs have.
const HEAD: [Field; 7] = [
    Field::Tools,
    Field::Instructions,
    Field::System,
    Field::Query,
    Field::Queries,
    Field::Text1,
    Field::Data1,
];
/// Fields with the conversation or the text; the first that a body has is its input.
const INPUT: [Field; 10] = [
    Field::Messages,
    Field::Prompt,
    Field::Input,
    Field::Items,
    Field::Text,
    Field::InputIds,
    Field::TokenIds,
    // A conversation may have documents as well, which stand behind it then.
    Field::Documents,
    Field::Text2,
    Field::Data2,
];
/// Members that say nothing about the prompt. Clients move `cache_control` from message to
/// message as a conversation grows, and write one text part as `type` and `text` or as a string.
const IGNORED: [&str; 2] = ["cache_control", "type"];

/// The input bytes of a request in the order of the prompt: tools, instructions, then the
/// messages or the text.
///
/// Of each value these are the strings with their quotes, still escaped, and the numbers; keys
/// and whatever JSON puts between are left out. They are a deterministic function of the bytes of
/// the conversation, and one that preserves prefixes: the bytes of a conversation are a prefix of
/// those of the same conversation with messages appended. A list of numbers, which is what token
/// ids are, comes as one piece.
///
/// The bytes of images that stand in a body as `data:` addresses are among them.
pub fn prompt_bytes<'a>(body: &'a [u8], fields: &Fields) -> PromptBytes<'a> {
    let mut spans = [None; HEAD.len() + 1];
    for (span, field) in spans.iter_mut().zip(HEAD) {
        *span = fields.get(field);
    }
    spans[HEAD.len()] = INPUT.iter().find_map(|&field| fields.get(field));
    PromptBytes { body, spans: spans.into_iter(), cursor: Cursor::at(&[], 0) }
}

/// The iterator of [`prompt_bytes`].
pub struct PromptBytes<'a> {
    body: &'a [u8],
    spans: std::array::IntoIter<Option<Span>, { HEAD.len() + 1 }>,
    /// Within the value that is being read, which ends where the cursor does.
    cursor: Cursor<'a>,
}

impl<'a> Iterator for PromptBytes<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        loop {
            if let Some(span) = next_scalar(self.body, &mut self.cursor) {
                return Some(span.of(self.body));
            }
            let span = self.spans.by_ref().flatten().next()?;
            self.cursor = Cursor::at(self.body.get(..span.end)?, span.start);
        }
    }
}

/// The next string or run of numbers. The body was scanned, so that what fails is its end.
fn next_scalar(body: &[u8], cursor: &mut Cursor<'_>) -> Option<Span> {
    loop {
        match cursor.peek()? {
            b'"' => {
                let text = cursor.known_string()?;
                let end = cursor.position();
                cursor.space();
                if cursor.peek() != Some(b':') {
                    cursor.rewind(end);
                    return Some(text);
                }
                cursor.pass();
                if unquote(text.of(body)).is_some_and(|key| IGNORED.contains(&&*key)) {
                    cursor.space();
                    cursor.value(0).ok()?;
                }
            }
            b'-' | b'0'..=b'9' => return number_run(cursor),
            _ => cursor.pass(),
        }
    }
}

/// Numbers with nothing but commas between them, as one span. It begins with the delimiter that
/// stands before them, so that 1 and 23 differ from 12 and 3.
fn number_run(cursor: &mut Cursor<'_>) -> Option<Span> {
    let start = cursor.position().saturating_sub(1);
    loop {
        cursor.number().ok()?;
        let end = cursor.position();
        cursor.space();
        if cursor.peek() == Some(b',') {
            cursor.pass();
            cursor.space();
            if let Some(b'-' | b'0'..=b'9') = cursor.peek() {
                continue;
            }
        }
        cursor.rewind(end);
        return Some(Span { start, end });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::scan;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn extract(body: &[u8]) -> Vec<u8> {
        let fields = scan(body).expect("the body is sound");
        prompt_bytes(body, &fields).collect::<Vec<_>>().concat()
    }

    #[track_caller]
    fn check(body: &str, expected: &str) {
        assert_eq!(String::from_utf8_lossy(&extract(body.as_bytes())), expected);
    }

    #[test]
    fn chats_give_tools_then_roles_and_contents() {
        check(
            r#"{"messages":[{"role":"user","content":"a\nb"},{"role":"assistant","content":null}],
                "model":"m","tools":[{"type":"function","function":{"name":"f","strict":true}}]}"#,
            r#""f""user""a\nb""assistant""#,
        );
        check(
            r#"{"system":"s","messages":[{"role":"user","content":[
                {"type":"text","text":"a","cache_control":{"type":"ephemeral"}},
                {"type":"image_url","image_url":{"url":"http://i"}}]}]}"#,
            r#""s""user""a""http://i""#,
        );
    }

    #[test]
    fn a_text_part_counts_as_the_string() {
        let string = extract(br#"{"messages":[{"role":"user","content":"a"}]}"#);
        let part =
            extract(br#"{"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}]}"#);
        assert_eq!(string, part);
    }

    #[test]
    fn prompts_are_taken_in_every_shape() {
        check(r#"{"prompt":"a b"}"#, r#""a b""#);
        check(r#"{"prompt":["a","b"]}"#, r#""a""b""#);
        check(r#"{"prompt":[1, 23]}"#, "[1, 23");
        check(r#"{"prompt":[[1,2],[3]]}"#, "[1,2[3");
        check(r#"{"prompt":[],"input":"unread"}"#, "");
        check(r#"{"instructions":"i","input":[{"role":"user","content":"c"}]}"#, r#""i""user""c""#);
        check(r#"{"input_ids":[5,6],"model":"m"}"#, "[5,6");
        check(r#"{"documents":["a",{"text":"b"}],"query":"q"}"#, r#""q""a""b""#);
        check(r#"{"text_2":["a"],"text_1":"q"}"#, r#""q""a""#);
        check(r#"{"messages":[{"role":"user","content":"c"}],"documents":["d"]}"#, r#""user""c""#);
        check(r#"{"model":"m"}"#, "");
    }

    fn any_message() -> impl Strategy<Value = Value> {
        let content = prop_oneof![
            any::<String>().prop_map(Value::from),
            prop::collection::vec(any_part(), 0..4).prop_map(Value::from),
            Just(Value::Null),
            prop::collection::vec(any::<u32>(), 0..4).prop_map(Value::from),
        ];
        ("user|assistant|tool", content)
            .prop_map(|(role, content)| json!({"role": role, "content": content}))
    }

    fn any_part() -> impl Strategy<Value = Value> {
        any::<String>().prop_map(|text| json!({"type": "text", "text": text}))
    }

    /// A client marks the last message of what it sends, as the Anthropic ones do.
    fn body_of(mut messages: Vec<Value>, marked: bool) -> Vec<u8> {
        if let Some(last) = messages.last_mut().filter(|_| marked) {
            last["cache_control"] = json!({"type": "ephemeral"});
        }
        let body = json!({"tools": [{"name": "f"}], "system": "s", "messages": messages});
        serde_json::to_vec(&body).expect("values serialise")
    }

    proptest! {
        #[test]
        fn appended_messages_append_bytes(
            mut messages in prop::collection::vec(any_message(), 1..6),
            more in prop::collection::vec(any_message(), 0..4),
            marked in any::<bool>(),
        ) {
            let before = extract(&body_of(messages.clone(), marked));
            messages.extend(more);
            let after = extract(&body_of(messages, marked));
            prop_assert!(after.starts_with(&before));
        }

        #[test]
        fn longer_token_lists_begin_alike(
            mut ids in prop::collection::vec(any::<u32>(), 1..20),
            more in prop::collection::vec(any::<u32>(), 0..5),
        ) {
            let before = extract(json!({"prompt": ids}).to_string().as_bytes());
            ids.extend(more);
            let after = extract(json!({"prompt": ids}).to_string().as_bytes());
            prop_assert!(after.starts_with(&before));
        }
    }
}
