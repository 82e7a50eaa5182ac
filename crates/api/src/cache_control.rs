//! Wishes that a prompt stays cached for a time.
//!
//! Source: `cache_control` of Anthropic's Messages, and of NVIDIA Dynamo's request extensions.

use crate::field_notes::FieldNotes;
use crate::json::{Json, Text};
use crate::object::client_object;
use crate::openai::ApiError;
use crate::request::PromptPin;
use crate::tree::{JsonPath, Members};
use stator_body::Api;

/// The member that has the wish: of any object of Anthropic's API, and of `nvext`.
pub(crate) const CACHE_CONTROL: &str = "cache_control";
/// Path of the wish in `nvext`, in the words of error messages.
const EXTENSION: &str = "nvext.cache_control";
/// Seconds for which a prompt stays cached if its client says no time.
const DEFAULT: u32 = 300;
/// Longest time that may be asked for, in seconds: a day.
const SECONDS_MAX: u32 = 86_400;

client_object! {
    /// `prompt_cache_options` of OpenAI's APIs.
    pub struct CacheOptions<'a> {
        /// Kind of prefixes that are cached.
        pub mode: Option<Text<'a>>,
    }
}

impl CacheOptions<'_> {
    /// Settles the options.
    ///
    /// # Errors
    ///
    /// 400 for one that asks for something else than an answer.
    pub(crate) fn settle(&self, api: Api, notes: &FieldNotes) -> Result<(), ApiError> {
        const OPTIONS: &str = "prompt_cache_options.";
        if self.mode.is_some() {
            notes.ignore(format_args!("{OPTIONS}mode"));
        }
        notes.settle(api, OPTIONS, &self.strangers, Self::FIELDS)
    }
}

/// Notes the wish of `nvext`.
///
/// # Errors
///
/// 400 for anything but `{"type":"ephemeral"}` with a `ttl` that is a time.
pub(crate) fn read_extension(value: Json<'_>, notes: &FieldNotes) -> Result<(), ApiError> {
    let seconds = read(value, JsonPath::Field(notes, EXTENSION))?;
    notes.pin(PromptPin { seconds, field: EXTENSION, is_usual: false });
    Ok(())
}

/// Notes the wish of an object of Anthropic's API, or of a chat's. Of several, the longest counts for the
/// whole prompt.
///
/// # Errors
///
/// As [`read_extension`].
pub(crate) fn read_member(value: Json<'_>, path: JsonPath<'_>) -> Result<(), ApiError> {
    let seconds = read(value, path)?;
    path.notes().pin(PromptPin { seconds, field: CACHE_CONTROL, is_usual: true });
    Ok(())
}

impl Members<'_, '_> {
    /// Refuses what nobody has taken, but for `cache_control`, which any object of Anthropic's API may
    /// have.
    ///
    /// # Errors
    ///
    /// 400 for a member that the API does not have, unless unknown fields are ignored, and for a
    /// `cache_control` that is none.
    pub(crate) fn refuse_rest(mut self) -> Result<(), ApiError> {
        if let Some(wish) = self.take(CACHE_CONTROL) {
            read_member(wish, JsonPath::Member(self.path(), CACHE_CONTROL))?;
        }
        self.refuse_untaken()
    }
}

fn read(value: Json<'_>, path: JsonPath<'_>) -> Result<u32, ApiError> {
    let mut wish = Members::of(value, path)?;
    let kind = wish.required_text("type")?;
    if kind != "ephemeral" {
        let fault = format!("is {kind:?}, it must be \"ephemeral\"");
        return Err(JsonPath::Member(&path, "type").invalid(fault));
    }
    let seconds = match wish.take("ttl") {
        None => DEFAULT,
        Some(ttl) => time(&ttl).ok_or_else(|| {
            let fault = "must be a time of 1 second to 24 hours, as \"5m\", \"1h\" or 300";
            JsonPath::Member(&path, "ttl").invalid(fault)
        })?,
    };
    // Claude Code sends members that Anthropic's servers alone know.
    wish.ignore_rest();
    Ok(seconds)
}

/// Seconds of a time: a number, or a text of digits and a unit.
fn time(ttl: &Json<'_>) -> Option<u32> {
    let seconds = match ttl {
        Json::Uint(seconds) => u32::try_from(*seconds).ok()?,
        Json::Str(text) => {
            let (count, unit) = match text.char_indices().last()? {
                (at, 's') => (&text[..at], 1),
                (at, 'm') => (&text[..at], 60),
                (at, 'h') => (&text[..at], 3600),
                _ => (&**text, 1),
            };
            let is_count = !count.is_empty() && count.bytes().all(|byte| byte.is_ascii_digit());
            let count: u32 = is_count.then(|| count.parse().ok())??;
            count.checked_mul(unit)?
        }
        _ => return None,
    };
    (1..=SECONDS_MAX).contains(&seconds).then_some(seconds)
}

#[cfg(test)]
mod tests {
    use crate::{Api, FieldNotes, PromptPin, read};

    fn check(api: Api, body: &str) -> Result<Option<PromptPin>, String> {
        let notes = FieldNotes::default();
        let request = read(api, body.as_bytes(), &notes).map_err(|error| error.message)?;
        Ok(request.options.pin)
    }

    fn chat(wish: &str) -> Result<Option<(u32, &'static str)>, String> {
        let body = format!(
            r#"{{"model":"m","messages":[{{"role":"user","content":"a"}}],"nvext":{{"cache_control":{wish}}}}}"#
        );
        let pin = check(Api::ChatCompletions, &body)?;
        Ok(pin.map(|pin| (pin.seconds, pin.field)))
    }

    #[test]
    fn a_time_is_a_number_of_seconds_or_has_a_unit() {
        let field = "nvext.cache_control";
        for (ttl, seconds) in
            [("\"5m\"", 300), ("\"1h\"", 3600), ("300", 300), ("\"20s\"", 20), ("\"7\"", 7)]
        {
            let wish = format!(r#"{{"type":"ephemeral","ttl":{ttl}}}"#);
            assert_eq!(chat(&wish), Ok(Some((seconds, field))), "{ttl}");
        }
        assert_eq!(chat(r#"{"type":"ephemeral"}"#), Ok(Some((300, field))));
        assert_eq!(
            chat(r#"{"type":"ephemeral","ttl":null,"scope":"global"}"#),
            Ok(Some((300, field)))
        );
        assert_eq!(chat("null"), Ok(None));
    }

    #[test]
    fn what_is_no_wish_is_refused_by_name() {
        let time = "nvext.cache_control.ttl must be a time of 1 second to 24 hours, as \"5m\", \"1h\" or 300";
        for ttl in ["0", "-5", "86401", "\"25h\"", "\"soon\"", "\"\"", "\"m\"", "1.5", "[]"] {
            let wish = format!(r#"{{"type":"ephemeral","ttl":{ttl}}}"#);
            assert_eq!(chat(&wish), Err(time.into()), "{ttl}");
        }
        assert_eq!(
            chat(r#"{"type":"forever"}"#).unwrap_err(),
            "nvext.cache_control.type is \"forever\", it must be \"ephemeral\""
        );
        assert_eq!(chat("[]").unwrap_err(), "nvext.cache_control must be an object, not a list");
    }

    #[test]
    fn wishes_stand_in_a_chats_messages_parts_and_tools() {
        let with = |messages: &str, more: &str| {
            let body = format!(r#"{{"model":"m","messages":[{messages}]{more}}}"#);
            check(Api::ChatCompletions, &body).map(|pin| pin.map(|pin| (pin.seconds, pin.is_usual)))
        };
        let wish = |ttl: &str| format!(r#""cache_control":{{"type":"ephemeral","ttl":"{ttl}"}}"#);
        let plain = r#"{"role":"user","content":"a"}"#;
        let part = |more: &str| {
            format!(r#"{{"role":"user","content":[{{"type":"text","text":"a"{more}}}]}}"#)
        };
        assert_eq!(with(&part(""), ""), Ok(None));
        assert_eq!(with(&part(r#","cache_control":null"#), ""), Ok(None));
        assert_eq!(with(&part(&format!(",{}", wish("1h"))), ""), Ok(Some((3600, true))));
        let message = format!(r#"{{"role":"user","content":"a",{}}}"#, wish("2m"));
        assert_eq!(with(&message, ""), Ok(Some((120, true))));
        assert_eq!(with(plain, &format!(",{}", wish("3m"))), Ok(Some((180, true))));
        for tool in [
            format!(r#"{{"type":"function","function":{{"name":"f"}},{}}}"#, wish("4m")),
            format!(r#"{{"type":"function","function":{{"name":"f",{}}}}}"#, wish("4m")),
            format!(r#"{{"type":"custom","custom":{{"name":"f",{}}}}}"#, wish("4m")),
        ] {
            assert_eq!(with(plain, &format!(r#","tools":[{tool}]"#)), Ok(Some((240, true))));
        }
        let wrong = with(&part(&format!(",{}", wish("soon"))), "").expect_err("no time");
        assert!(wrong.starts_with("messages[0].content[0].cache_control.ttl must be"), "{wrong}");
    }

    #[test]
    fn no_template_shows_wishes_to_the_model() {
        let wish = r#""cache_control":{"type":"ephemeral"}"#;
        let body = format!(
            r#"{{"model":"m","messages":[{{"role":"user","content":[{{"type":"text","text":"a",{wish},"id":7}}],{wish}}}],
            "tools":[{{"type":"function",{wish},"function":{{"name":"f",{wish}}}}}]}}"#
        );
        let notes = FieldNotes::default();
        let request = read(Api::ChatCompletions, body.as_bytes(), &notes).expect("a chat");
        let conversation = request.input.conversation().expect("a conversation");
        assert!(conversation.messages[0].extra.is_empty());
        let tools = serde_json::to_string(&conversation.tools.as_ref().expect("tools")[0]);
        assert_eq!(tools.expect("JSON"), r#"{"type":"function","function":{"name":"f"}}"#);
        assert_eq!(notes.ignored().as_deref(), Some("messages[0].content[0].id"));
    }

    #[test]
    fn options_of_the_cache_are_named_and_a_request_without_an_answer_is_refused() {
        let settled = |options: &str| {
            let body = format!(r#"{{"model":"m","prompt":"a","prompt_cache_options":{options}}}"#);
            let notes = FieldNotes::default();
            read(Api::Completions, body.as_bytes(), &notes).map_err(|error| error.param)?;
            Ok::<_, Option<String>>(notes.ignored())
        };
        let named = "prompt_cache_options.mode, prompt_cache_options.ttl";
        let options = r#"{"mode":"explicit","ttl":"30m","prewarm":false}"#;
        assert_eq!(settled(options), Ok(Some(named.into())));
        let refused = settled(r#"{"prewarm":true}"#);
        assert_eq!(refused, Err(Some("prompt_cache_options.prewarm".into())));
    }

    #[test]
    fn of_the_wishes_of_a_conversation_the_longest_counts() {
        let body = r#"{"model":"m","max_tokens":4,
            "system":[{"type":"text","text":"S","cache_control":{"type":"ephemeral","ttl":"1h"}}],
            "tools":[{"name":"f","input_schema":{},"cache_control":{"type":"ephemeral"}}],
            "messages":[{"role":"user","content":[
                {"type":"text","text":"a","cache_control":{"type":"ephemeral","ttl":"5m"}}]}]}"#;
        let pin = PromptPin { seconds: 3600, field: "cache_control", is_usual: true };
        assert_eq!(check(Api::Messages, body), Ok(Some(pin)));
        let whole = r#"{"model":"m","max_tokens":4,"cache_control":{"type":"ephemeral"},
            "messages":[{"role":"user","content":"a"}]}"#;
        assert_eq!(check(Api::Messages, whole), Ok(Some(PromptPin { seconds: 300, ..pin })));
        let wrong = body.replace("\"5m\"", "\"soon\"");
        let error = check(Api::Messages, &wrong).unwrap_err();
        assert!(error.starts_with("messages[0].content[0].cache_control.ttl must be"), "{error}");
    }
}
