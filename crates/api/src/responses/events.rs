//! The events of a response, and the response itself.
//!
//! Source: the stream events of the Responses API, and the order that the accumulator of the Python
//! client `openai` 3.52.0 demands.

use super::call_form::CallForm;
use super::echo::RequestEcho;
use super::ledger::{ItemContent, OutputItem, push_items, push_logprobs, push_place};
use crate::delta::{Delta, FinishReason, Identity, Usage};
use crate::openai::ApiError;
use crate::openai::escape::{push_int, push_json_str};
use std::sync::Arc;

/// Phases of a response that its object tells.
#[derive(Clone, Debug, PartialEq)]
enum ResponseState {
    Queued,
    InProgress,
    Completed,
    /// The answer was cut short, for this reason.
    Incomplete(&'static str),
    Cancelled,
    /// The code and the message of a fault.
    Failed(&'static str, String),
}

/// Writes the events of one response, and keeps its items.
#[derive(Clone, Debug)]
pub struct ResponseEvents {
    /// The response's id without its prefix.
    id: Box<str>,
    created: u64,
    echo: RequestEcho,
    items: Vec<OutputItem>,
    /// Whether the last item is still written.
    is_open: bool,
    next: u64,
    state: ResponseState,
    ending: Option<FinishReason>,
    usage: Option<Usage>,
    /// Seconds since 1970 at which it was complete.
    completed: Option<u64>,
    now: fn() -> u64,
}

impl ResponseEvents {
    /// Prepares a response that nobody works on yet; `now` tells the seconds since 1970.
    pub fn new(identity: &Identity<'_>, echo: RequestEcho, now: fn() -> u64) -> Self {
        Self {
            id: identity.id.into(),
            created: identity.created,
            echo,
            items: Vec::new(),
            is_open: false,
            next: 0,
            state: ResponseState::Queued,
            ending: None,
            usage: None,
            completed: None,
            now,
        }
    }

    /// The response's id.
    pub fn id(&self) -> String {
        format!("resp_{}", self.id)
    }

    /// Number of the next event.
    pub fn next_number(&self) -> u64 {
        self.next
    }

    /// Appends the events of a response that waits for its turn.
    pub fn queue(&mut self, out: &mut Vec<u8>) {
        self.lifecycle(out, "response.created");
        self.lifecycle(out, "response.queued");
    }

    /// Appends the events of a response that is worked on from now on.
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        self.state = ResponseState::InProgress;
        if self.next == 0 {
            self.lifecycle(out, "response.created");
        }
        self.lifecycle(out, "response.in_progress");
    }

    /// Appends the events of new output.
    pub fn delta(&mut self, out: &mut Vec<u8>, delta: &Delta<'_>) {
        if !delta.reasoning.is_empty() {
            let seal = self.echo.seal.clone();
            self.enter(
                out,
                |content| matches!(content, ItemContent::Reasoning { .. }),
                || ItemContent::Reasoning { text: String::new(), seal },
            );
            self.piece(out, "response.reasoning_text.delta", delta.reasoning, None);
        }
        if !delta.text.is_empty() {
            self.enter(
                out,
                |content| matches!(content, ItemContent::Message { .. }),
                || ItemContent::Message { text: String::new(), logprobs: Vec::new() },
            );
            let mut logprobs = Vec::new();
            push_logprobs(&mut logprobs, delta);
            self.piece(out, "response.output_text.delta", delta.text, Some(logprobs));
        }
        for call in delta.tool_calls {
            let is_it = |content: &ItemContent| matches!(content, ItemContent::Call { index, .. } if *index == call.index);
            let calls = self.echo.calls.clone();
            self.enter(out, is_it, || OutputItem::call(call, &calls));
            if !call.arguments.is_empty() {
                let name = match call.custom {
                    true => "response.custom_tool_call_input.delta",
                    false => "response.function_call_arguments.delta",
                };
                self.piece(out, name, call.arguments, None);
            }
        }
        self.ending = delta.finish.or(self.ending);
    }

    /// Appends the events that end the response.
    pub fn end(&mut self, out: &mut Vec<u8>, usage: Usage) {
        self.state = match self.ending {
            Some(FinishReason::Length) => ResponseState::Incomplete("max_output_tokens"),
            Some(FinishReason::ContentFilter) => ResponseState::Incomplete("content_filter"),
            _ => ResponseState::Completed,
        };
        let is_whole = self.state == ResponseState::Completed;
        self.close(out, if is_whole { "completed" } else { "incomplete" });
        self.usage = Some(usage);
        self.completed = is_whole.then(self.now);
        self.lifecycle(out, if is_whole { "response.completed" } else { "response.incomplete" });
    }

    /// Appends the events of a fault, which end the response.
    pub fn error(&mut self, out: &mut Vec<u8>, error: &ApiError) {
        let code = match error.status.as_u16() {
            429 => "rate_limit_exceeded",
            400..=499 => "invalid_prompt",
            _ => "server_error",
        };
        self.event(out, "error", |out, _| {
            out.extend_from_slice(b",\"code\":");
            push_json_str(out, code);
            out.extend_from_slice(b",\"message\":");
            push_json_str(out, &error.message);
            out.extend_from_slice(b",\"param\":null");
        });
        self.close(out, "incomplete");
        self.state = ResponseState::Failed(code, error.message.clone());
        self.lifecycle(out, "response.failed");
    }

    /// Ends the response because its client wants it no more.
    pub fn cancel(&mut self) {
        self.close(&mut Vec::new(), "incomplete");
        self.state = ResponseState::Cancelled;
    }

    /// Whether nothing more comes.
    pub fn is_over(&self) -> bool {
        !matches!(self.state, ResponseState::Queued | ResponseState::InProgress)
    }

    /// Appends the response's object as it is now.
    pub fn push_object(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"id\":\"resp_");
        out.extend_from_slice(self.id.as_bytes());
        out.extend_from_slice(b"\",\"object\":\"response\",\"created_at\":");
        push_int(out, self.created);
        out.extend_from_slice(b",\"completed_at\":");
        match self.completed {
            Some(at) => push_int(out, at),
            None => out.extend_from_slice(b"null"),
        }
        self.push_state(out);
        out.extend_from_slice(b",\"output\":");
        push_items(out, &self.items);
        out.extend_from_slice(b",\"usage\":");
        match self.usage {
            Some(usage) => push_usage(out, usage),
            None => out.extend_from_slice(b"null"),
        }
        out.extend_from_slice(&self.echo.members);
        out.push(b'}');
    }

    /// The output items as JSON objects, in order.
    pub fn items(&self) -> impl Iterator<Item = Arc<str>> {
        self.items.iter().map(|item| {
            let mut out = Vec::new();
            item.push(&mut out, false);
            String::from_utf8_lossy(&out).into()
        })
    }

    fn push_state(&self, out: &mut Vec<u8>) {
        let (status, reason, fault) = match &self.state {
            ResponseState::Queued => ("queued", None, None),
            ResponseState::InProgress => ("in_progress", None, None),
            ResponseState::Completed => ("completed", None, None),
            ResponseState::Incomplete(reason) => ("incomplete", Some(*reason), None),
            ResponseState::Cancelled => ("cancelled", None, None),
            ResponseState::Failed(code, message) => ("failed", None, Some((*code, message))),
        };
        out.extend_from_slice(b",\"status\":");
        push_json_str(out, status);
        out.extend_from_slice(b",\"incomplete_details\":");
        match reason {
            None => out.extend_from_slice(b"null"),
            Some(reason) => {
                out.extend_from_slice(b"{\"reason\":");
                push_json_str(out, reason);
                out.push(b'}');
            }
        }
        out.extend_from_slice(b",\"error\":");
        match fault {
            None => out.extend_from_slice(b"null"),
            Some((code, message)) => {
                out.extend_from_slice(b"{\"code\":");
                push_json_str(out, code);
                out.extend_from_slice(b",\"message\":");
                push_json_str(out, message);
                out.push(b'}');
            }
        }
    }

    /// Makes an item the open one: the last if `is_it`, or a new one.
    fn enter(
        &mut self,
        out: &mut Vec<u8>,
        is_it: impl Fn(&ItemContent) -> bool,
        content: impl FnOnce() -> ItemContent,
    ) {
        if self.is_open && self.items.last().is_some_and(|item| is_it(&item.content)) {
            return;
        }
        self.close(out, "completed");
        let at = self.items.len();
        let item = OutputItem::new(content(), &self.id, at);
        self.event(out, "response.output_item.added", |out, _| {
            out.extend_from_slice(b",\"output_index\":");
            push_int(out, at);
            out.extend_from_slice(b",\"item\":");
            item.push(out, true);
        });
        let has_part = !matches!(item.content, ItemContent::Call { .. });
        self.items.push(item);
        self.is_open = true;
        if has_part {
            self.event(out, "response.content_part.added", |out, items| {
                let item = &items[at];
                push_place(out, item, at, true);
                out.extend_from_slice(b",\"part\":");
                item.push_part(out);
            });
        }
    }

    /// Appends a piece to the open item.
    fn piece(&mut self, out: &mut Vec<u8>, name: &str, piece: &str, logprobs: Option<Vec<u8>>) {
        let Some(at) = self.items.len().checked_sub(1) else { return };
        match &mut self.items[at].content {
            ItemContent::Reasoning { text, .. } | ItemContent::Call { arguments: text, .. } => {
                text.push_str(piece);
            }
            ItemContent::Message { text, logprobs: all } => {
                text.push_str(piece);
                if let Some(new) = logprobs.as_ref().filter(|new| !new.is_empty()) {
                    if !all.is_empty() {
                        all.push(b',');
                    }
                    all.extend_from_slice(new);
                }
            }
        }
        self.event(out, name, |out, items| {
            let item = &items[at];
            push_place(out, item, at, !matches!(item.content, ItemContent::Call { .. }));
            out.extend_from_slice(b",\"delta\":");
            push_json_str(out, piece);
            if let Some(logprobs) = &logprobs {
                out.extend_from_slice(b",\"logprobs\":[");
                out.extend_from_slice(logprobs);
                out.push(b']');
            }
        });
    }

    /// Appends the events that end the open item, if one is.
    fn close(&mut self, out: &mut Vec<u8>, status: &'static str) {
        if !std::mem::take(&mut self.is_open) {
            return;
        }
        let Some(at) = self.items.len().checked_sub(1) else { return };
        self.items[at].status = status;
        let (done, has_part) = match &self.items[at].content {
            ItemContent::Reasoning { .. } => ("response.reasoning_text.done", true),
            ItemContent::Message { .. } => ("response.output_text.done", true),
            ItemContent::Call { form: Some(CallForm::Custom), .. } => {
                ("response.custom_tool_call_input.done", false)
            }
            ItemContent::Call { .. } => ("response.function_call_arguments.done", false),
        };
        self.event(out, done, |out, items| {
            push_place(out, &items[at], at, has_part);
            items[at].push_whole(out);
        });
        if has_part {
            self.event(out, "response.content_part.done", |out, items| {
                push_place(out, &items[at], at, true);
                out.extend_from_slice(b",\"part\":");
                items[at].push_part(out);
            });
        }
        self.event(out, "response.output_item.done", |out, items| {
            out.extend_from_slice(b",\"output_index\":");
            push_int(out, at);
            out.extend_from_slice(b",\"item\":");
            items[at].push(out, false);
        });
    }

    /// Appends an event with the response as it is.
    fn lifecycle(&mut self, out: &mut Vec<u8>, name: &str) {
        let mut object = Vec::new();
        self.push_object(&mut object);
        self.event(out, name, |out, _| {
            out.extend_from_slice(b",\"response\":");
            out.extend_from_slice(&object);
        });
    }

    /// Appends an event, the members of which `write` adds.
    fn event(
        &mut self,
        out: &mut Vec<u8>,
        name: &str,
        write: impl FnOnce(&mut Vec<u8>, &[OutputItem]),
    ) {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"\ndata: {\"type\":\"");
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"\",\"sequence_number\":");
        push_int(out, self.next);
        self.next += 1;
        write(out, &self.items);
        out.extend_from_slice(b"}\n\n");
    }
}

fn push_usage(out: &mut Vec<u8>, usage: Usage) {
    out.extend_from_slice(b"{\"input_tokens\":");
    push_int(out, usage.prompt_tokens);
    out.extend_from_slice(b",\"input_tokens_details\":{\"cached_tokens\":");
    push_int(out, usage.cached_tokens);
    out.extend_from_slice(b",\"cache_write_tokens\":");
    push_int(out, usage.written_tokens());
    out.extend_from_slice(b"},\"output_tokens\":");
    push_int(out, usage.completion_tokens);
    out.extend_from_slice(b",\"output_tokens_details\":{\"reasoning_tokens\":");
    push_int(out, usage.reasoning_tokens);
    out.extend_from_slice(b"},\"total_tokens\":");
    push_int(out, u64::from(usage.prompt_tokens) + u64::from(usage.completion_tokens));
    out.push(b'}');
}

#[cfg(test)]
#[path = "events_tests.rs"]
mod tests;
