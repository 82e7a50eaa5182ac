//! The output items of one response: each has its id, its index and its content once.

use crate::delta::{Delta, ToolCallDelta};
use crate::openai::escape::{push_int, push_json_str};
use crate::openai::logprobs::push_chat_token;
use crate::openai::logprobs::push_list;

/// Content of an item.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ItemContent {
    /// Thoughts.
    Reasoning(String),
    /// Text of the answer, with the logprobs of its tokens as JSON objects.
    Message {
        /// The text.
        text: String,
        /// The logprobs, with commas between them.
        logprobs: Vec<u8>,
    },
    /// A call of a function.
    Call {
        /// Number of the call in the answer.
        index: u32,
        /// The id under which the client reports the result.
        call_id: String,
        /// The function.
        name: String,
        /// Text of JSON.
        arguments: String,
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
            ItemContent::Reasoning(_) => "rs",
            ItemContent::Message { .. } => "msg",
            ItemContent::Call { .. } => "fc",
        };
        Self { id: format!("{prefix}_{response}_{at}"), content, status: "in_progress" }
    }

    /// The content of a new call.
    pub(super) fn call(call: &ToolCallDelta<'_>) -> ItemContent {
        let (id, name) = call.start.map_or(("", ""), |start| (start.id, start.name));
        ItemContent::Call {
            index: call.index,
            call_id: id.to_owned(),
            name: name.to_owned(),
            arguments: String::new(),
        }
    }

    /// Appends the item as JSON; one that was just added has no content yet.
    pub(super) fn push(&self, out: &mut Vec<u8>, is_new: bool) {
        out.extend_from_slice(b"{\"id\":");
        push_json_str(out, &self.id);
        out.extend_from_slice(b",\"status\":");
        push_json_str(out, self.status);
        match &self.content {
            ItemContent::Reasoning(_) => {
                out.extend_from_slice(b",\"type\":\"reasoning\",\"summary\":[],\"content\":[");
                if !is_new {
                    self.push_part(out);
                }
                out.extend_from_slice(b"],\"encrypted_content\":null}");
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
            ItemContent::Call { call_id, name, arguments, .. } => {
                out.extend_from_slice(b",\"type\":\"function_call\",\"call_id\":");
                push_json_str(out, call_id);
                out.extend_from_slice(b",\"name\":");
                push_json_str(out, name);
                out.extend_from_slice(b",\"arguments\":");
                push_json_str(out, arguments);
                out.push(b'}');
            }
        }
    }

    /// Appends the item's one part of content, as it is now.
    pub(super) fn push_part(&self, out: &mut Vec<u8>) {
        match &self.content {
            ItemContent::Reasoning(text) => {
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
