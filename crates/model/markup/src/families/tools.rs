//! The table of families of calls.

use super::{
    CallIds, CallMarkup, CallObjectForm, CallText, HeadForm, JsonMarkup, NamedMarkup, PythonMarkup,
    TagMarkup, ToolFamily,
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
    ToolFamily { names, openers, at_start: false, calls, ids: CallIds::OpenAi, text: None }
}

/// Functions with parameters, as Qwen's coders write them.
const FUNCTION_TAGS: TagMarkup = TagMarkup {
    call_openers: &["<function="],
    named_openers: &[1],
    name_end: ">",
    call_closers: &["</function>"],
    closers: &["</tool_call>"],
    parameter: "<parameter=",
    key_end: ">",
    value: "",
    value_closers: &["\n</parameter>", "</parameter>"],
    lines: true,
    strings: false,
};

/// Calls with pairs of key and value, as GLM writes them.
const PAIR_TAGS: TagMarkup = TagMarkup {
    call_openers: &[],
    named_openers: &[0],
    name_end: "",
    call_closers: &[],
    closers: &["</tool_call>"],
    parameter: "<arg_key>",
    key_end: "</arg_key>",
    value: "<arg_value>",
    value_closers: &["</arg_value>"],
    lines: false,
    strings: false,
};

/// Invocations with parameters, as MiniMax writes them.
const INVOKE_TAGS: TagMarkup = TagMarkup {
    call_openers: &["<invoke name="],
    named_openers: &[],
    name_end: ">",
    call_closers: &["</invoke>"],
    closers: &["</minimax:tool_call>"],
    parameter: "<parameter name=",
    key_end: ">",
    value: "",
    value_closers: &["</parameter>"],
    lines: false,
    strings: false,
};

/// DeepSeek's tags, whose bars are full-width.
const DSML_TAGS: TagMarkup = TagMarkup {
    call_openers: &["<｜DSML｜invoke name="],
    named_openers: &[],
    name_end: ">",
    call_closers: &["</｜DSML｜invoke>"],
    closers: &["</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"],
    parameter: "<｜DSML｜parameter name=",
    key_end: ">",
    value: "",
    value_closers: &["</｜DSML｜parameter>"],
    lines: false,
    strings: false,
};

const DEEPSEEK: NamedMarkup = NamedMarkup {
    call_openers: &["<｜tool▁call▁begin｜>"],
    call_closers: &["<｜tool▁call▁end｜>"],
    closers: &["<｜tool▁calls▁end｜>"],
    cuts: &["<｜tool▁sep｜>", "```json"],
    head: HeadForm::NameLast,
    list: false,
};

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
            &["hermes", "qwen", "qwen25", "qwen3_json", "granite4", "trinity", "jan", "nous"],
            &["<tool_call>"],
            json(&["</tool_call>"]),
        )
    },
    family(&["longcat"], &["<longcat_tool_call>"], json(&["</longcat_tool_call>"])),
    family(&["ernie45"], &["<tool_call>"], json(&["</tool_call>"])),
    ToolFamily {
        names: &["llama3_json", "llama4_json", "llama3", "llama"],
        openers: &["<|python_tag|>{", "{"],
        at_start: true,
        calls: bare(&[]),
        ids: CallIds::OpenAi,
        text: Some(CallText {
            section: ("", ""),
            begin: ("{\"name\": \"", "\", \"parameters\": "),
            numbered: "",
            end: "}",
            separator: "; ",
            trigger: "{\"name\": ",
        }),
    },
    ToolFamily {
        names: &["xlam"],
        openers: &["[{", "{", "```json\n[{", "[TOOL_CALLS][{", "<tool_call>[{"],
        at_start: true,
        calls: bare(&["</tool_call>", "\n```", "```"]),
        ids: CallIds::OpenAi,
        text: None,
    },
    ToolFamily {
        names: &["json"],
        openers: &["[", "{"],
        at_start: true,
        calls: bare(&[]),
        ids: CallIds::OpenAi,
        text: None,
    },
    ToolFamily {
        names: &["pythonic"],
        openers: &["["],
        at_start: true,
        calls: CallMarkup::Python(PythonMarkup { closers: &[], bare: true }),
        ids: CallIds::OpenAi,
        text: None,
    },
    ToolFamily {
        names: &["llama4_pythonic"],
        openers: &["<|python_start|>[", "["],
        at_start: true,
        calls: CallMarkup::Python(PythonMarkup { closers: &["<|python_end|>"], bare: true }),
        ids: CallIds::OpenAi,
        text: None,
    },
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
            &["deepseek_v3", "deepseekv3"],
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
            &["deepseek_v3_1", "deepseek_v31", "deepseekv31"],
            &["<｜tool▁calls▁begin｜>"],
            CallMarkup::Named(DEEPSEEK),
        )
    },
    family(
        &["deepseek_v3_2", "deepseek_v32", "deepseekv32", "deepseek_v4", "deepseekv4"],
        &["<｜DSML｜function_calls>", "<｜DSML｜tool_calls>"],
        CallMarkup::Tags(DSML_TAGS),
    ),
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
            &["kimi_k2", "kimi_k25"],
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
        &["qwen3_coder", "qwen3_xml", "nemotron_nano", "nemotron_v3", "step3p5"],
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
        &["glm45", "glm47", "glm", "ling3", "poolside_v1"],
        &["<tool_call>"],
        CallMarkup::Tags(PAIR_TAGS),
    ),
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
    family(&["internlm"], &["<|action_start|><|plugin|>"], json(&["<|action_end|>"])),
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
        &["cohere_command3", "cohere_command4"],
        &["<|START_ACTION|>"],
        json(&["<|END_ACTION|>"]),
    ),
    family(&["harmony", "gpt_oss", "gpt-oss", "openai"], &[], CallMarkup::Harmony),
];
