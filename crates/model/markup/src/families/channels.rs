//! Families that write messages.

use super::tags::ATEM_TAGS;
use super::{BodyKind, CallMarkup, CallObjectForm, ChannelMarkup, JsonMarkup};

/// gpt-oss.
pub(super) static HARMONY: ChannelMarkup = ChannelMarkup {
    start: "<|start|>",
    bodies: &[("<|message|>", BodyKind::ByHead)],
    ends: &["<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>"],
    in_heads: &["<|channel|>", "<|constrain|>"],
    calls: None,
    bare_heads: false,
};

/// Muse Glimmer.
pub(super) static MUSE: ChannelMarkup = ChannelMarkup {
    start: "<|start|>",
    bodies: &[("<|message|>", BodyKind::ByHead)],
    ends: &["<|eom|>", "<|eot|>", "<|start|>"],
    in_heads: &[],
    calls: Some(CallMarkup::Tags(ATEM_TAGS)),
    bare_heads: true,
};

/// Inkling.
pub(super) static INKLING: ChannelMarkup = ChannelMarkup {
    start: "<|message_model|>",
    bodies: &[
        ("<|content_text|>", BodyKind::Text),
        ("<|content_thinking|>", BodyKind::Reasoning),
        ("<|content_invoke_tool_json|>", BodyKind::Calls),
        ("<|content_invoke_tool_text|>", BodyKind::Text),
        ("<|content_tool_error|>", BodyKind::Text),
    ],
    ends: &["<|end_message|>", "<|content_model_end_sampling|>", "<|message_model|>"],
    in_heads: &[],
    calls: Some(CallMarkup::Json(JsonMarkup {
        closers: &[],
        form: CallObjectForm::Members,
        bare: false,
        separators: b"",
    })),
    bare_heads: false,
};
