//! Edits of a conversation before the model reads it: `context_management`.
//!
//! Source: "Context editing" of Anthropic's API reference.

use crate::conversation::{Message, Role};
use crate::field_notes::FieldNotes;
use crate::json::Json;
use crate::openai::ApiError;
use crate::tree::{JsonPath, Members};

/// The edit that leaves earlier thoughts out.
const CLEAR_THINKING: &str = "clear_thinking_20251015";
/// The member of a message that has its thoughts.
const THOUGHTS: &str = "reasoning_content";

/// Edits of a conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ContextEdits {
    /// Turns of the assistant whose thoughts stay, the last ones; none: all.
    kept_thoughts: Option<u64>,
}

/// Reads `context_management`.
///
/// # Errors
///
/// 400 for an edit that is not made here: the client leaves out itself what the model need not see.
pub(super) fn read(value: Json<'_>, notes: &FieldNotes) -> Result<ContextEdits, ApiError> {
    let path = JsonPath::Field(notes, "context_management");
    let mut config = Members::of(value, path)?;
    let edits = config.take("edits");
    config.refuse_untaken()?;
    let path = JsonPath::Member(&path, "edits");
    let mut read = ContextEdits::default();
    let edits = match edits {
        None => return Ok(read),
        Some(Json::Array(edits)) => edits,
        Some(other) => return Err(path.mistyped("a list", &other)),
    };
    for (at, edit) in edits.into_iter().enumerate() {
        let path = JsonPath::Item(&path, at);
        let mut edit = Members::of(edit, path)?;
        let kind = edit.required_text("type")?;
        if kind != CLEAR_THINKING {
            let fault = format!("is {kind:.40?}, only \"{CLEAR_THINKING}\" is supported");
            return Err(JsonPath::Member(&path, "type").unsupported(fault));
        }
        read.kept_thoughts = kept(edit.take("keep"), JsonPath::Member(&path, "keep"))?;
        edit.refuse_untaken()?;
    }
    Ok(read)
}

/// The turns whose thoughts stay: one where the client says nothing.
fn kept(keep: Option<Json<'_>>, path: JsonPath<'_>) -> Result<Option<u64>, ApiError> {
    let keep = match keep {
        None => return Ok(Some(1)),
        Some(Json::Str(all)) if all == "all" => return Ok(None),
        Some(keep) => keep,
    };
    let mut keep = Members::of(keep, path)?;
    let kind = keep.required_text("type")?;
    let turns = match &*kind {
        "all" => None,
        "thinking_turns" => match keep.required("value")? {
            Json::Uint(turns) if turns > 0 => Some(turns),
            _ => return Err(JsonPath::Member(&path, "value").invalid("must be at least 1")),
        },
        _ => {
            let fault = format!("is {kind:.40?}, it must be \"all\" or \"thinking_turns\"");
            return Err(JsonPath::Member(&path, "type").invalid(fault));
        }
    };
    keep.refuse_untaken()?;
    Ok(turns)
}

impl ContextEdits {
    /// Makes the edits. A turn of the assistant goes on over the results of its tools.
    pub(super) fn apply(self, messages: &mut [Message<'_>]) {
        let Some(kept) = self.kept_thoughts else { return };
        let (mut turns, mut is_counted) = (0, false);
        for at in (0..messages.len()).rev() {
            let follows_tool = at > 0 && messages[at - 1].role == Role::Tool;
            let message = &mut messages[at];
            // A text beside the results of tools ends no turn.
            if message.role == Role::User && !follows_tool {
                is_counted = false;
            }
            let thoughts = message.extra.iter().position(|(name, _)| name == THOUGHTS);
            let Some(thoughts) = thoughts else { continue };
            turns += u64::from(!is_counted);
            is_counted = true;
            if turns > kept {
                message.extra.remove(thoughts);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::Content;

    fn edits(json: &str) -> Result<ContextEdits, ApiError> {
        let json: Json<'_> = serde_json::from_str(json).expect("JSON");
        read(json, &FieldNotes::default())
    }

    fn keep(json: &str) -> Result<Option<u64>, Option<String>> {
        let json = format!(r#"{{"edits":[{{"type":"{CLEAR_THINKING}"{json}}}]}}"#);
        edits(&json).map(|edits| edits.kept_thoughts).map_err(|error| error.param)
    }

    #[test]
    fn thoughts_are_kept_of_as_many_turns_as_the_client_says() {
        assert_eq!(edits("{}"), Ok(ContextEdits::default()));
        assert_eq!(keep(""), Ok(Some(1)));
        assert_eq!(keep(r#","keep":"all""#), Ok(None));
        assert_eq!(keep(r#","keep":{"type":"all"}"#), Ok(None));
        assert_eq!(keep(r#","keep":{"type":"thinking_turns","value":3}"#), Ok(Some(3)));
    }

    #[test]
    fn other_edits_are_refused_by_name() {
        let path = |rest: &str| Err(Some(format!("context_management.edits[0].{rest}")));
        assert_eq!(keep(r#","keep":"some""#), path("keep"));
        assert_eq!(keep(r#","keep":{"type":"thinking_turns","value":0}"#), path("keep.value"));
        assert_eq!(keep(r#","keep":{"type":"some"}"#), path("keep.type"));
        assert_eq!(keep(r#","trigger":1"#), path("trigger"));
        let tools = edits(r#"{"edits":[{"type":"clear_tool_uses_20250919"}]}"#);
        let error = tools.expect_err("it is not made here");
        assert_eq!(error.param.as_deref(), Some("context_management.edits[0].type"));
    }

    /// Compares the messages that keep their thoughts, of a conversation whose letters are a user's
    /// turn, the result of a tool, and an assistant's thoughts.
    fn check(kept: u64, turns: &str, expected: &str) {
        let message = |kind| {
            let role = match kind {
                'u' => Role::User,
                't' => Role::Tool,
                _ => Role::Assistant,
            };
            let thoughts = (kind == 'a').then(|| (THOUGHTS.into(), Json::Str("hm".into())));
            Message { role, content: Content::Text("x".into()), extra: Vec::from_iter(thoughts) }
        };
        let mut messages: Vec<_> = turns.chars().map(message).collect();
        ContextEdits { kept_thoughts: Some(kept) }.apply(&mut messages);
        let found: String = messages
            .iter()
            .map(|message| if message.extra.is_empty() { '.' } else { 'x' })
            .collect();
        assert_eq!(found, expected, "{kept} of {turns}");
    }

    #[test]
    fn earlier_thoughts_are_left_out() {
        check(1, "uaua", "...x");
        check(2, "uaua", ".x.x");
        check(1, "uauatata", "...x.x.x");
        check(1, "uatua", ".x..x");
        check(1, "uauatuat", "...x..x.");
        check(1, "uau", ".x.");
        check(1, "", "");
    }
}
