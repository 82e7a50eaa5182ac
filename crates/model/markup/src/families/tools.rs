//! The table of families of calls.

use super::channels::{HARMONY, INKLING, MUSE};
use super::tags::{
    DSML_TAGS, FUNCTION_NAME_TAGS, FUNCTION_TAGS, GCML_TAGS, HORIZON_TAGS, HUNYUAN_TAGS,
    INVOKE_TAGS, PAIR_TAGS, SPACED_DSML_TAGS, STEP_TAGS, XTML_TAGS,
};
use super::{
    AnswerMarkup, BareMarkup, CallIds, CallMarkup, CallObjectForm, CallText, ChannelMarkup,
    HeadForm, JsonMarkup, NamedMarkup, NestedMarkup, PythonMarkup, TagMarkup, ToolFamily,
};

const fn json(closers: &'static [&'static str]) -> CallMarkup {
    CallMarkup::Json(JsonMarkup {
        closers,
        form: CallObjectForm::Members,
        bare: false,
        separators: b"",
    })
}

/// Objects whose brackets are the openers themselves.
const fn bare(closers: &'static [&'static str]) -> CallMarkup {
    CallMarkup::Json(JsonMarkup {
        closers,
        form: CallObjectForm::Members,
        bare: true,
        separators: b";,",
    })
}

const fn family(
    names: &'static [&'static str],
    openers: &'static [&'static str],
    calls: CallMarkup,
) -> ToolFamily {
    ToolFamily {
        names,
        openers,
        at_start: false,
        dropped: &[],
        calls: AnswerMarkup::Calls(calls),
        ids: CallIds::OpenAi,
        text: None,
    }
}

/// A family that writes messages.
const fn messages(names: &'static [&'static str], markup: &'static ChannelMarkup) -> ToolFamily {
    ToolFamily {
        names,
        openers: &[],
        at_start: false,
        dropped: &[],
        calls: AnswerMarkup::Channels(markup),
        ids: CallIds::OpenAi,
        text: None,
    }
}

/// A family whose openers are common text.
const fn at_start(
    names: &'static [&'static str],
    openers: &'static [&'static str],
    calls: CallMarkup,
) -> ToolFamily {
    ToolFamily { at_start: true, ..family(names, openers, calls) }
}

/// Lists of calls in Python behind a bracket.
const fn python(closers: &'static [&'static str]) -> CallMarkup {
    CallMarkup::Python(PythonMarkup { closers, bare: true })
}

const DEEPSEEK: NamedMarkup = NamedMarkup {
    call_openers: &["<｜tool▁call▁begin｜>"],
    call_closers: &["<｜tool▁call▁end｜>"],
    closers: &["<｜tool▁calls▁end｜>"],
    cuts: &["<｜tool▁sep｜>", "```json"],
    head: HeadForm::NameLast,
    list: false,
};

/// Markers around the channels of Kimi K3 that are no thoughts and no calls.
pub(super) const XTML_FRAMES: &[&str] = &[
    "<|open|>response<|sep|>",
    "<|close|>response<|sep|>",
    "<|close|>message<|sep|>",
    "<|end_of_msg|>",
];

/// All families of calls.
pub static TOOLS: &[ToolFamily] = &[
    ToolFamily {
        text: Some(CallText {
            section: ("", ""),
            begin: ("<tool_call>\n{\"name\": \"", "\", \"arguments\": "),
            numbered: "",
            end: "}\n</tool_call>",
            separator: "\n",
            trigger: "<tool_call>",
        }),
        ..family(
            &[
                "hermes",
                "qwen",
                "qwen25",
                "qwen3",
                "qwen3_json",
                "granite4",
                "trinity",
                "jan",
                "nous",
            ],
            &["<tool_call>"],
            json(&["</tool_call>"]),
        )
    },
    family(&["longcat"], &["<longcat_tool_call>"], json(&["</longcat_tool_call>"])),
    family(&["ernie45"], &["<tool_call>"], json(&["</tool_call>"])),
    ToolFamily {
        text: Some(CallText {
            section: ("", ""),
            begin: ("{\"name\": \"", "\", \"parameters\": "),
            numbered: "",
            end: "}",
            separator: "; ",
            trigger: "{\"name\": ",
        }),
        ..at_start(
            &["llama3_json", "llama4_json", "llama3", "llama"],
            &["<|python_tag|>{", "{"],
            bare(&[]),
        )
    },
    at_start(
        &["xlam"],
        &["[{", "{", "```json\n[{", "[TOOL_CALLS][{", "<tool_call>[{"],
        bare(&["</tool_call>", "\n```", "```"]),
    ),
    at_start(&["json"], &["[", "{"], bare(&[])),
    at_start(&["pythonic"], &["["], python(&[])),
    at_start(&["llama4_pythonic"], &["<|python_start|>[", "["], python(&["<|python_end|>"])),
    family(
        &["lfm2"],
        &["<|tool_call_start|>"],
        CallMarkup::Python(PythonMarkup { closers: &["<|tool_call_end|>"], bare: false }),
    ),
    family(
        &["olmo3"],
        &["<function_calls>"],
        CallMarkup::Python(PythonMarkup { closers: &["</function_calls>"], bare: false }),
    ),
    ToolFamily {
        ids: CallIds::Nine,
        ..family(
            &["mistral"],
            &["[TOOL_CALLS]"],
            CallMarkup::Named(NamedMarkup {
                call_openers: &[],
                call_closers: &[],
                closers: &[],
                cuts: &["[CALL_ID]", "[ARGS]"],
                head: HeadForm::NameFirst,
                list: true,
            }),
        )
    },
    ToolFamily {
        text: Some(CallText {
            section: ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
            begin: ("<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n"),
            numbered: "",
            end: "\n```<｜tool▁call▁end｜>",
            separator: "\n",
            trigger: "<｜tool▁calls▁begin｜>",
        }),
        ..family(
            &["deepseek_v3", "deepseekv3", "deepseek"],
            &["<｜tool▁calls▁begin｜>"],
            CallMarkup::Named(DEEPSEEK),
        )
    },
    ToolFamily {
        text: Some(CallText {
            section: ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
            begin: ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"),
            numbered: "",
            end: "<｜tool▁call▁end｜>",
            separator: "",
            trigger: "<｜tool▁calls▁begin｜>",
        }),
        ..family(
            &["deepseek_v3_1", "deepseek_v31", "deepseekv31", "deepseek31"],
            &["<｜tool▁calls▁begin｜>"],
            CallMarkup::Named(DEEPSEEK),
        )
    },
    family(
        &[
            "deepseek_v3_2",
            "deepseek_v32",
            "deepseekv32",
            "deepseek_v4",
            "deepseekv4",
            "deepseek-v4",
            "deepseek32",
        ],
        &["<｜DSML｜function_calls>", "<｜DSML｜tool_calls>"],
        CallMarkup::Tags(DSML_TAGS),
    ),
    family(
        &["deepseek_v41", "deepseekv41"],
        &["<｜DSML｜ calls>"],
        CallMarkup::Tags(SPACED_DSML_TAGS),
    ),
    ToolFamily {
        dropped: &["<|message_sep|>"],
        ..family(&["gigachat35"], &["<｜GCML｜tool_calls>"], CallMarkup::Tags(GCML_TAGS))
    },
    ToolFamily {
        text: Some(CallText {
            section: ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
            begin: ("<|tool_call_begin|>functions.", ":"),
            numbered: "<|tool_call_argument_begin|>",
            end: "<|tool_call_end|>",
            separator: "",
            trigger: "<|tool_calls_section_begin|>",
        }),
        ids: CallIds::Kimi,
        ..family(
            &["kimi_k2", "kimi_k25", "kimik2"],
            &["<|tool_calls_section_begin|>", "<|tool_call_section_begin|>"],
            CallMarkup::Named(NamedMarkup {
                call_openers: &["<|tool_call_begin|>"],
                call_closers: &["<|tool_call_end|>"],
                closers: &["<|tool_calls_section_end|>", "<|tool_call_section_end|>"],
                cuts: &["<|tool_call_argument_begin|>"],
                head: HeadForm::Numbered,
                list: false,
            }),
        )
    },
    family(
        &[
            "qwen3_coder",
            "qwen3_xml",
            "nemotron_nano",
            "nemotron_v3",
            "nemotron",
            "step3p5",
            "nanbeige",
            "qwen_coder",
            "qwen_xml",
        ],
        &["<tool_call>", "<function="],
        CallMarkup::Tags(FUNCTION_TAGS),
    ),
    family(
        &["mimo"],
        &["<tool_call>", "<function="],
        CallMarkup::Tags(TagMarkup { strings: true, ..FUNCTION_TAGS }),
    ),
    family(
        &["seed_oss"],
        &["<seed:tool_call>", "<function="],
        CallMarkup::Tags(TagMarkup { closers: &["</seed:tool_call>"], ..FUNCTION_TAGS }),
    ),
    family(
        &["glm45", "glm47", "glm", "ling3", "poolside_v1", "spark25", "glm45_moe", "glm47_moe"],
        &["<tool_call>"],
        CallMarkup::Tags(PAIR_TAGS),
    ),
    family(
        &["iquest_q1"],
        &["<iquest_tool_call>"],
        CallMarkup::Tags(TagMarkup { closers: &["</iquest_tool_call>"], ..PAIR_TAGS }),
    ),
    family(&["hy_v3", "hy_v4"], &["<tool_calls>"], CallMarkup::Tags(HUNYUAN_TAGS)),
    family(&["k2_horizon"], &["<ifm|tool_calls>"], CallMarkup::Tags(HORIZON_TAGS)),
    ToolFamily {
        dropped: XTML_FRAMES,
        ..family(&["kimi_k3", "kimi-k3"], &["<|open|>tools<|sep|>"], CallMarkup::Tags(XTML_TAGS))
    },
    family(&["minicpm5"], &["<function name="], CallMarkup::Tags(FUNCTION_NAME_TAGS)),
    family(&["step3"], &["<｜tool_calls_begin｜>"], CallMarkup::Tags(STEP_TAGS)),
    family(&["minimax_m2", "minimax-m2"], &["<minimax:tool_call>"], CallMarkup::Tags(INVOKE_TAGS)),
    family(
        &["dots"],
        &["<dots_function_call>"],
        CallMarkup::Tags(TagMarkup { closers: &["</dots_function_call>"], ..INVOKE_TAGS }),
    ),
    family(&["granite"], &["<|tool_call|>", "<tool_call>"], json(&["</tool_call>"])),
    family(&["granite-20b-fc"], &["<function_call>"], json(&[])),
    family(&["phi4_mini_json", "phi4"], &["functools[{"], bare(&[])),
    family(&["jamba", "hunyuan_a13b", "hunyuan"], &["<tool_calls>"], json(&["</tool_calls>"])),
    family(&["nemotron_deci"], &["<TOOLCALL>"], json(&["</TOOLCALL>"])),
    family(
        &["internlm", "interns1"],
        &["<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"],
        json(&["<|action_end|>"]),
    ),
    family(&["default"], &["<TOOLCALL>", "<|python_tag|>"], json(&["</TOOLCALL>"])),
    family(
        &["apertus", "apertus2509"],
        &["<|tools_prefix|>"],
        CallMarkup::Json(JsonMarkup {
            closers: &["<|tools_suffix|>"],
            form: CallObjectForm::Keyed,
            bare: false,
            separators: b"",
        }),
    ),
    family(
        &["cohere_command3", "cohere_command4", "cohere"],
        &["<|START_ACTION|>"],
        json(&["<|END_ACTION|>"]),
    ),
    messages(&["harmony", "gpt_oss", "gpt-oss", "openai"], &HARMONY),
    messages(&["muse_glimmer", "muse"], &MUSE),
    messages(&["inkling"], &INKLING),
    family(
        &["minimax_m3", "minimax-m3", "minimax_m3_nom", "minimax-m3-nom"],
        &["]<]minimax[>[<tool_call>"],
        CallMarkup::Nested(NestedMarkup {
            call_opener: "]<]minimax[>[<invoke name=",
            call_closer: "]<]minimax[>[</invoke>",
            closer: "]<]minimax[>[</tool_call>",
            open: "]<]minimax[>[<",
            close: "]<]minimax[>[</",
        }),
    ),
    family(
        &["gemma4", "gemma-4"],
        &["<|tool_call>"],
        CallMarkup::Bare(BareMarkup { quote: "<|\"|>", closers: &["<tool_call|>"] }),
    ),
    family(
        &["functiongemma"],
        &["<start_function_call>"],
        CallMarkup::Bare(BareMarkup { quote: "<escape>", closers: &["<end_function_call>"] }),
    ),
    ToolFamily {
        dropped: &["<|message_sep|>"],
        text: Some(CallText {
            section: ("", ""),
            begin: ("<|function_call|>{\"name\": \"", "\", \"arguments\": "),
            numbered: "",
            end: "}",
            separator: "",
            trigger: "<|function_call|>",
        }),
        ..family(&["gigachat3"], &["function call<|role_sep|>\n", "<|function_call|>"], json(&[]))
    },
    ToolFamily {
        dropped: &["<|plamo:tag|>"],
        text: Some(CallText {
            section: ("<|plamo:begin_tool_requests:plamo|>", "<|plamo:end_tool_requests:plamo|>"),
            begin: (
                "<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>",
                "<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>",
            ),
            numbered: "",
            end: "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>",
            separator: "",
            trigger: "<|plamo:begin_tool_requests:plamo|>",
        }),
        ..family(
            &["plamo3"],
            &["<|plamo:begin_tool_requests:plamo|>"],
            CallMarkup::Named(NamedMarkup {
                call_openers: &["<|plamo:begin_tool_request:plamo|>"],
                call_closers: &["<|plamo:end_tool_request:plamo|>"],
                closers: &["<|plamo:end_tool_requests:plamo|>"],
                cuts: &[
                    "<|plamo:constrain|>json",
                    "<|plamo:begin_tool_name:plamo|>",
                    "<|plamo:end_tool_name:plamo|>",
                    "<|plamo:begin_tool_arguments:plamo|>",
                    "<|plamo:msg|>",
                    "<|plamo:end_tool_arguments:plamo|>",
                ],
                head: HeadForm::NameLast,
                list: false,
            }),
        )
    },
];
