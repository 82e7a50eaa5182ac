//! Texts to tokens and back: `POST /tokenize` and `POST /detokenize`.
//!
//! Source: vLLM's routes of these names.

use crate::field_notes::FieldNotes;
use crate::json::{Json, Text};
use crate::object::{MemberWeight, Strangers, client_object};
use crate::openai::ApiError;
use crate::openai::body::{self, Body};
use crate::openai::chat;
use crate::openai::escape::{push_int, push_json_str};
use crate::openai::logprobs::push_list;
use crate::openai::messages::ChatMessages;
use crate::openai::nested;
use crate::request::{Input, Prompt};
use std::borrow::Cow;

/// Most tokens of a request that asks for their text.
pub const TOKENS_MAX: usize = 4 << 20;

client_object! {
    /// The body of `/tokenize`.
    pub(crate) struct TokenizeBody<'a> {
        model: Option<Text<'a>>,
        prompt: Option<Text<'a>>,
        messages: Option<ChatMessages<'a>>,
        tools: Option<Json<'a>>,
        chat_template_kwargs: Option<Json<'a>>,
        add_special_tokens: Option<bool>,
        add_generation_prompt: Option<bool>,
        continue_final_message: Option<bool>,
        return_token_strs: Option<bool>,
    }
}

client_object! {
    /// The body of `/detokenize`.
    pub(crate) struct DetokenizeBody<'a> {
        model: Option<Text<'a>>,
        tokens: Option<Vec<u32>>,
    }
}

/// A request for the tokens of a text or a conversation.
#[derive(Debug, PartialEq)]
pub struct TokenizeRequest<'a> {
    /// The model; none means the only one.
    pub model: Option<Cow<'a, str>>,
    /// The text or conversation.
    pub input: Input<'a>,
    /// Whether the answer has the tokens as text, too.
    pub with_text: bool,
}

/// A request for the text of tokens.
#[derive(Debug, PartialEq, Eq)]
pub struct DetokenizeRequest<'a> {
    /// The model; none means the only one.
    pub model: Option<Cow<'a, str>>,
    /// The tokens.
    pub tokens: Vec<u32>,
}

/// Reads the body of `/tokenize`.
///
/// # Errors
///
/// 400 for anything but a text or a conversation, and for fields that nobody knows.
pub fn read_tokenize<'a>(
    bytes: &'a [u8],
    notes: &FieldNotes,
) -> Result<TokenizeRequest<'a>, ApiError> {
    let mut body: TokenizeBody<'_> = body::parse_as(bytes)?;
    refuse(&body.strangers, TokenizeBody::FIELDS, notes)?;
    let with_text = body.return_token_strs.unwrap_or(false);
    let model = body.model.map(|model| model.0);
    let input = match (body.prompt, body.messages) {
        (Some(Text(prompt)), None) => Input::Prompts {
            prompts: vec![Prompt::Text(prompt)],
            add_special_tokens: body.add_special_tokens.unwrap_or(true),
            echo: false,
        },
        (None, Some(mut messages)) => {
            // Wishes for the cache are no part of a chat's prompt, nor of this one.
            messages.settle(notes)?;
            if let Some(tools) = &mut body.tools {
                nested::settle_tools(tools, notes)?;
            }
            let chat = Body {
                // The conversation is the same for every model.
                model: Some(Text(model.clone().unwrap_or("any".into()))),
                messages: Some(messages),
                tools: body.tools,
                chat_template_kwargs: body.chat_template_kwargs,
                add_special_tokens: body.add_special_tokens,
                add_generation_prompt: body.add_generation_prompt,
                continue_final_message: body.continue_final_message,
                ..Body::default()
            };
            chat::check(chat)?.input
        }
        (Some(_), Some(_)) => {
            let message = "prompt and messages are both there: one may";
            return Err(ApiError::impossible("messages", message));
        }
        (None, None) => return Err(ApiError::missing("prompt")),
    };
    Ok(TokenizeRequest { model, input, with_text })
}

/// Reads the body of `/detokenize`.
///
/// # Errors
///
/// 400 for anything but tokens, and for fields that nobody knows.
pub fn read_detokenize<'a>(
    bytes: &'a [u8],
    notes: &FieldNotes,
) -> Result<DetokenizeRequest<'a>, ApiError> {
    let body: DetokenizeBody<'_> = body::parse_as(bytes)?;
    refuse(&body.strangers, DetokenizeBody::FIELDS, notes)?;
    let tokens = body.tokens.ok_or_else(|| ApiError::missing("tokens"))?;
    match tokens.len() {
        count if count > TOKENS_MAX => {
            let message = format!("tokens has {count} tokens, the limit is {TOKENS_MAX}");
            Err(ApiError::invalid("tokens", message))
        }
        _ => Ok(DetokenizeRequest { model: body.model.map(|model| model.0), tokens }),
    }
}

/// Refuses members that nobody knows and that say something.
fn refuse(
    strangers: &Strangers<'_>,
    known: &[&'static str],
    notes: &FieldNotes,
) -> Result<(), ApiError> {
    let mut full = strangers.iter().filter(|(_, weight)| *weight != MemberWeight::Null);
    full.try_for_each(|(name, _)| notes.unknown(&name, known.iter().copied()))
}

/// The answer of `/tokenize`; `texts` are the tokens as text, if they are wanted.
pub fn tokenized(tokens: &[u32], texts: Option<&[String]>, context_length: u32) -> Vec<u8> {
    let mut out = b"{\"count\":".to_vec();
    push_int(&mut out, tokens.len());
    out.extend_from_slice(b",\"max_model_len\":");
    push_int(&mut out, context_length);
    out.extend_from_slice(b",\"tokens\":");
    push_list(&mut out, tokens, |out, id| push_int(out, *id));
    out.extend_from_slice(b",\"token_strs\":");
    match texts {
        Some(texts) => push_list(&mut out, texts, |out, text| push_json_str(out, text)),
        None => out.extend_from_slice(b"null"),
    }
    out.push(b'}');
    out
}

/// The answer of `/detokenize`.
pub fn detokenized(text: &str) -> Vec<u8> {
    let mut out = b"{\"prompt\":".to_vec();
    push_json_str(&mut out, text);
    out.push(b'}');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(body: &str) -> Result<TokenizeRequest<'_>, ApiError> {
        read_tokenize(body.as_bytes(), &FieldNotes::default())
    }

    #[test]
    fn a_text_or_a_conversation_is_tokenized() {
        let text = read(r#"{"prompt":"a","add_special_tokens":false}"#).expect("a request");
        let prompts = vec![Prompt::Text("a".into())];
        let input = Input::Prompts { prompts, add_special_tokens: false, echo: false };
        assert_eq!(text, TokenizeRequest { model: None, input, with_text: false });
        let chat =
            r#"{"model":"m","messages":[{"role":"user","content":"a"}],"return_token_strs":true}"#;
        let chat = read(chat).expect("a request");
        assert!(chat.input.conversation().is_some() && chat.with_text);
        for (wrong, param) in [
            ("{}", "prompt"),
            (r#"{"prompt":"a","messages":[]}"#, "messages"),
            (r#"{"messages":[]}"#, "messages"),
            (r#"{"promt":"a"}"#, "promt"),
        ] {
            assert_eq!(read(wrong).expect_err(wrong).param.as_deref(), Some(param));
        }
    }

    #[test]
    fn tokens_are_read_and_answers_are_json() {
        let notes = FieldNotes::default();
        let request = read_detokenize(br#"{"tokens":[1,2]}"#, &notes).expect("a request");
        assert_eq!(request, DetokenizeRequest { model: None, tokens: vec![1, 2] });
        read_detokenize(br#"{"tokens":[-1]}"#, &notes).expect_err("no token");
        read_detokenize(b"{}", &notes).expect_err("no tokens");
        let answer = tokenized(&[1, 2], Some(&["a".into(), "\"".into()]), 9);
        let answer: Value = serde_json::from_slice(&answer).expect("JSON");
        let expected =
            json!({"count": 2, "max_model_len": 9, "tokens": [1, 2], "token_strs": ["a", "\""]});
        assert_eq!(answer, expected);
        assert_eq!(detokenized("\n"), br#"{"prompt":"\n"}"#);
    }
}
