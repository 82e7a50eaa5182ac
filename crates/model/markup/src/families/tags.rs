//! Families whose parameters are tags.

use super::TagMarkup;

/// Functions with parameters, as Qwen's coders write them.
pub(super) const FUNCTION_TAGS: TagMarkup = TagMarkup {
    call_openers: &["<function="],
    named_openers: &[1],
    name_end: ">",
    call_closers: &["</function>"],
    closers: &["</tool_call>"],
    parameter: "<parameter=",
    key_end: ">",
    type_tag: ("", ""),
    value: "",
    value_closers: &["\n</parameter>", "</parameter>"],
    lines: true,
    strings: false,
    objects: false,
};

/// Calls with pairs of key and value, as GLM writes them.
pub(super) const PAIR_TAGS: TagMarkup = TagMarkup {
    call_openers: &[],
    named_openers: &[0],
    name_end: "",
    call_closers: &[],
    closers: &["</tool_call>"],
    parameter: "<arg_key>",
    key_end: "</arg_key>",
    type_tag: ("", ""),
    value: "<arg_value>",
    value_closers: &["</arg_value>"],
    lines: false,
    strings: false,
    objects: false,
};

/// Invocations with parameters, as MiniMax writes them.
pub(super) const INVOKE_TAGS: TagMarkup = TagMarkup {
    call_openers: &["<invoke name="],
    named_openers: &[],
    name_end: ">",
    call_closers: &["</invoke>"],
    closers: &["</minimax:tool_call>"],
    parameter: "<parameter name=",
    key_end: ">",
    type_tag: ("", ""),
    value: "",
    value_closers: &["</parameter>"],
    lines: false,
    strings: false,
    objects: false,
};

/// DeepSeek's tags, whose bars are full-width.
pub(super) const DSML_TAGS: TagMarkup = TagMarkup {
    call_openers: &["<｜DSML｜invoke name="],
    named_openers: &[],
    name_end: ">",
    call_closers: &["</｜DSML｜invoke>"],
    closers: &["</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"],
    parameter: "<｜DSML｜parameter name=",
    key_end: ">",
    type_tag: ("", ""),
    value: "",
    value_closers: &["</｜DSML｜parameter>"],
    lines: false,
    strings: false,
    objects: false,
};

/// DeepSeek's tags of version 4.1, with a blank behind the bar.
pub(super) const SPACED_DSML_TAGS: TagMarkup = TagMarkup {
    call_openers: &["<｜DSML｜ invoke name="],
    call_closers: &["</｜DSML｜ invoke>"],
    closers: &["</｜DSML｜ calls>"],
    parameter: "<｜DSML｜ parameter name=",
    value_closers: &["</｜DSML｜ parameter>"],
    ..DSML_TAGS
};

/// GigaChat's tags, which are DeepSeek's with another name.
pub(super) const GCML_TAGS: TagMarkup = TagMarkup {
    call_openers: &["<｜GCML｜invoke name="],
    call_closers: &["</｜GCML｜invoke>"],
    closers: &["</｜GCML｜tool_calls>"],
    parameter: "<｜GCML｜parameter name=",
    value_closers: &["</｜GCML｜parameter>"],
    ..DSML_TAGS
};

/// Hunyuan's tags; `token_suffix` of the tokenizer stands before each bracket that closes.
pub(super) const HUNYUAN_TAGS: TagMarkup = TagMarkup {
    call_openers: &["<tool_call>"],
    named_openers: &[],
    name_end: "<tool_sep>",
    call_closers: &["</tool_call>"],
    closers: &["</tool_calls>"],
    ..PAIR_TAGS
};

/// K2 Horizon's tags, in which types and whole objects may stand.
pub(super) const HORIZON_TAGS: TagMarkup = TagMarkup {
    call_openers: &["<ifm|tool_call>"],
    named_openers: &[],
    call_closers: &["</ifm|tool_call>"],
    closers: &["</ifm|tool_calls>"],
    parameter: "<ifm|arg_key>",
    key_end: "</ifm|arg_key>",
    type_tag: ("<ifm|arg_type>", "</ifm|arg_type>"),
    value: "<ifm|arg_value>",
    value_closers: &["</ifm|arg_value>"],
    objects: true,
    ..PAIR_TAGS
};

/// Kimi's tags of K3, whose attributes say the types.
pub(super) const XTML_TAGS: TagMarkup = TagMarkup {
    call_openers: &["<|open|>call "],
    named_openers: &[],
    name_end: "<|sep|>",
    call_closers: &["<|close|>call<|sep|>"],
    closers: &["<|close|>tools<|sep|>"],
    parameter: "<|open|>argument ",
    key_end: "<|sep|>",
    value_closers: &["<|close|>argument<|sep|>"],
    ..INVOKE_TAGS
};

/// MiniCPM's tags, whose values may be marked as raw.
pub(super) const FUNCTION_NAME_TAGS: TagMarkup = TagMarkup {
    call_openers: &["<function name="],
    named_openers: &[0],
    call_closers: &["</function>"],
    closers: &[],
    parameter: "<param name=",
    value: "<![CDATA[",
    value_closers: &["]]></param>", "</param>"],
    ..INVOKE_TAGS
};

/// Step's tags in DeepSeek's markers.
pub(super) const STEP_TAGS: TagMarkup = TagMarkup {
    call_openers: &["<steptml:invoke name="],
    call_closers: &[
        "</steptml:invoke>",
        "<｜tool_call_end｜>",
        "<｜tool_call_begin｜>",
        "<｜tool_call_begin｜>function<｜tool_sep｜>",
    ],
    closers: &["<｜tool_calls_end｜>"],
    parameter: "<steptml:parameter name=",
    value_closers: &["</steptml:parameter>"],
    ..INVOKE_TAGS
};

/// Muse's tags.
pub(super) const ATEM_TAGS: TagMarkup = TagMarkup {
    call_openers: &["<atem:invoke name="],
    call_closers: &["</atem:invoke>", "<atem:function_calls>"],
    closers: &["</atem:function_calls>"],
    parameter: "<atem:parameter name=",
    value_closers: &["</atem:parameter>"],
    ..INVOKE_TAGS
};
