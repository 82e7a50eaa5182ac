//! The output items of one response: each has its id, its index and its content once.

use super::call_form::{CallForm, CallForms};
use super::seal::ThoughtSeal;
use crate::delta::{Delta, ToolCallDelta};
use crate::openai::escape::{push_int, push_json_str};
use crate::openai::logprobs::push_chat_token;
use crate::openai::logprobs::push_list;

/// Content of an item.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ItemContent {
    /// Thoughts.
    Reasoning {
        /// The text.
        text: String,
        /// Seals the text for the client, if it wants that.
        seal: Option<ThoughtSeal>,
    },
    /// Text of the answer, with the logprobs of its tokens as JSON objects.
    Message {
        /// The text.
        text: String,
        /// The logprobs, with commas between them.
        logprobs: Vec<u8>,
    },
    /// A call of a tool.
    Call {
        /// Number of the call in the answer.
        index: u32,
        /// The id under which the client reports the result.
        call_id: String,
        /// The tool, by the name that the model knows.
        name: String,
        /// Text of JSON, or the input of a custom tool.
        arguments: String,
        /// The form in which the client gets the call; none for that of a plain function.
        form: Option<CallForm>,
    },
}

/// One output item.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OutputItem {
    pub(super) id: String,
    pub(super) content: ItemContent,
    /// `in_progress`, `completed` or `incomplete`.
    pub(super) status: &'static str,
}

impl OutputItem {
    /// A new item of thoughts or text.
    pub(super) fn new(content: ItemContent, response: &str, at: usize) -> Self {
        let prefix = match &content {
            ItemContent::Reasoning { .. } => "rs",
            ItemContent::Message { .. } => "msg",
            ItemContent::Call { form: Some(CallForm::Custom), .. } => "ctc",
            ItemContent::Call { .. } => "fc",
        };
        Self { id: format!("{prefix}_{response}_{at}"), content, status: "in_progress" }
    }

    /// The content of a new call.
    pub(super) fn call(call: &ToolCallDelta<'_>, forms: &CallForms) -> ItemContent {
        let (id, name) = call.start.map_or(("", ""), |start| (start.id, start.name));
        ItemContent::Call {
            index: call.index,
            call_id: id.to_owned(),
            name: name.to_owned(),
            arguments: String::new(),
            form: match call.custom {
                true => Some(CallForm::Custom),
                false => forms.find(name).cloned(),
            },
        }
    }

    /// Appends the item as JSON; one that was just added has no content yet.
    pub(super) fn push(&self, out: &mut Vec<u8>, is_new: bool) {
        out.extend_from_slice(b"{\"id\":");
        push_json_str(out, &self.id);
        out.extend_from_slice(b",\"status\":");
        push_json_str(out, self.status);
        match &self.content {
            ItemContent::Reasoning { text, seal } => {
                out.extend_from_slice(b",\"type\":\"reasoning\",\"summary\":[],\"content\":[");
                if !is_new {
                    self.push_part(out);
                }
                out.extend_from_slice(b"],\"encrypted_content\":");
                match seal.as_ref().filter(|_| !is_new) {
                    Some(seal) => push_json_str(out, &seal.seal(text)),
                    None => out.extend_from_slice(b"null"),
                }
                out.push(b'}');
            }
            ItemContent::Message { .. } => {
                out.extend_from_slice(
                    b",\"type\":\"message\",\"role\":\"assistant\",\"content\":[",
                );
                if !is_new {
                    self.push_part(out);
                }
                out.extend_from_slice(b"]}");
            }
            ItemContent::Call { call_id, name, arguments, form, .. } => {
                let is_custom = *form == Some(CallForm::Custom);
                push_text(
                    out,
                    "type",
                    if is_custom { "custom_tool_call" } else { "function_call" },
                );
                push_text(out, "call_id", call_id);
                if let Some(CallForm::Namespaced { namespace, .. }) = form {
                    push_text(out, "namespace", namespace);
                }
                push_text(out, "name", own_name(name, form.as_ref()));
                push_text(out, if is_custom { "input" } else { "arguments" }, arguments);
                out.push(b'}');
            }
        }
    }

    /// Appends the members of the event that ends the item's content.
    pub(super) fn push_whole(&self, out: &mut Vec<u8>) {
        match &self.content {
            ItemContent::Reasoning { text, .. } => push_text(out, "text", text),
            ItemContent::Message { text, logprobs } => {
                push_text(out, "text", text);
                out.extend_from_slice(b",\"logprobs\":[");
                out.extend_from_slice(logprobs);
                out.push(b']');
            }
            ItemContent::Call { arguments, form: Some(CallForm::Custom), .. } => {
                push_text(out, "input", arguments);
            }
            ItemContent::Call { arguments, name, form, .. } => {
                push_text(out, "arguments", arguments);
                push_text(out, "name", own_name(name, form.as_ref()));
            }
        }
    }

    /// Appends the item's one part of content, as it is now.
    pub(super) fn push_part(&self, out: &mut Vec<u8>) {
        match &self.content {
            ItemContent::Reasoning { text, .. } => {
                out.extend_from_slice(b"{\"type\":\"reasoning_text\",\"text\":");
                push_json_str(out, text);
                out.push(b'}');
            }
            ItemContent::Message { text, logprobs } => {
                out.extend_from_slice(b"{\"type\":\"output_text\",\"annotations\":[],\"text\":");
                push_json_str(out, text);
                out.extend_from_slice(b",\"logprobs\":[");
                out.extend_from_slice(logprobs);
                out.extend_from_slice(b"]}");
            }
            ItemContent::Call { .. } => {}
        }
    }
}

/// The name of a tool as its client knows it.
fn own_name<'n>(name: &'n str, form: Option<&'n CallForm>) -> &'n str {
    match form {
        Some(CallForm::Namespaced { name, .. }) => name,
        _ => name,
    }
}

/// Appends a member behind a comma.
pub(super) fn push_text(out: &mut Vec<u8>, member: &str, text: &str) {
    out.push(b',');
    push_json_str(out, member);
    out.push(b':');
    push_json_str(out, text);
}

/// Appends the logprobs of a delta as JSON objects with commas between them.
pub(super) fn push_logprobs(out: &mut Vec<u8>, delta: &Delta<'_>) {
    for token in delta.logprobs.unwrap_or_default() {
        if !out.is_empty() {
            out.push(b',');
        }
        push_chat_token(out, token);
    }
}

/// Appends the place of an item, and of its part of content if `has_part`.
pub(super) fn push_place(out: &mut Vec<u8>, item: &OutputItem, at: usize, has_part: bool) {
    out.extend_from_slice(b",\"item_id\":");
    push_json_str(out, &item.id);
    out.extend_from_slice(b",\"output_index\":");
    push_int(out, at);
    if has_part {
        out.extend_from_slice(b",\"content_index\":0");
    }
}

/// Appends all items as a list.
pub(super) fn push_items(out: &mut Vec<u8>, items: &[OutputItem]) {
    push_list(out, items, |out, item| item.push(out, false));
}
