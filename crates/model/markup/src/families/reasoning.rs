//! The table of families of thoughts.

use super::channels::{HARMONY, INKLING, MUSE};
use super::tools::XTML_FRAMES;
use super::{MessageFrame, ReasoningFamily};

/// Thoughts between `<think>` and `</think>`.
const THINK: ReasoningFamily = ReasoningFamily {
    names: &[],
    openers: &["<think>"],
    closers: &["</think>"],
    ends_at_calls: true,
    dropped: &[],
    begins_inside: false,
    preamble: "",
    channels: None,
    messages: None,
    efforts: &[],
};

/// Thoughts and answers of gpt-oss. Source: openai/harmony.
const HARMONY_MESSAGES: MessageFrame = MessageFrame {
    opener: "<|channel|>analysis<|message|>",
    closer: "<|end|>",
    next: "<|start|>assistant",
    answer: "<|channel|>final<|message|>",
};

/// Levels of OpenAI's API as gpt-oss knows them.
const HARMONY_EFFORTS: &[(&str, &str)] = &[
    ("none", "low"),
    ("minimal", "low"),
    ("low", "low"),
    ("medium", "medium"),
    ("high", "high"),
    ("xhigh", "high"),
    ("max", "high"),
];

/// All families of thoughts.
pub static REASONING: &[ReasoningFamily] = &[
    ReasoningFamily {
        names: &[
            "qwen3",
            "glm45",
            "glm47",
            "deepseek_v3",
            "deepseek-v3",
            "deepseek_v3_1",
            "deepseek_v3_2",
            "deepseek_v4",
            "deepseek-v4",
            "deepseekv4",
            "deepseek_v41",
            "deepseek-v41",
            "poolside_v1",
            "dots",
            "iquest_q1",
            "qwen3_coder",
            "kimi_k2",
            "kimi_k25",
            "mimo",
            "ling3",
            "holo2",
            "minicpmv",
            "olmo3",
            "basic",
            "interns1",
            "nanbeige",
        ],
        ..THINK
    },
    ReasoningFamily {
        names: &[
            "deepseek_r1",
            "deepseek-r1",
            "qwen3-thinking",
            "qwen3_thinking",
            "step3",
            "step3p5",
            "minimax_m2",
            "minimax",
            "nemotron_nano",
            "nemotron_v3",
            "nemotron_3",
            "nemotron_deci",
            "nemotron3",
            "deepseek_v31_thinking",
            "gigachat35",
        ],
        begins_inside: true,
        ..THINK
    },
    ReasoningFamily {
        names: &["ernie45"],
        begins_inside: true,
        dropped: &["<response>\n", "<response>", "\n</response>", "</response>"],
        ..THINK
    },
    ReasoningFamily {
        names: &["hunyuan_a13b", "hunyuan"],
        openers: &["<think>\n", "<think>"],
        closers: &["\n</think>\n<answer>\n", "</think>\n<answer>\n", "</think>"],
        dropped: &["<answer>\n", "\n</answer>", "</answer>"],
        ..THINK
    },
    ReasoningFamily {
        names: &["minimax_m3", "minimax-m3"],
        openers: &["<mm:think>"],
        closers: &["</mm:think>"],
        ..THINK
    },
    ReasoningFamily {
        names: &["seed_oss"],
        openers: &["<seed:think>"],
        closers: &["</seed:think>"],
        ..THINK
    },
    ReasoningFamily {
        names: &["kimi"], openers: &["◁think▷"], closers: &["◁/think▷"], ..THINK
    },
    ReasoningFamily {
        names: &["mistral"],
        openers: &["[THINK]", "<think>"],
        closers: &["[/THINK]", "</think>"],
        ..THINK
    },
    ReasoningFamily {
        names: &["granite", "granite_thinking_parser"],
        openers: &["Here is my thought process:", "Here's my thought process:"],
        closers: &["Here is my response:", "Here's my response:"],
        ends_at_calls: false,
        ..THINK
    },
    ReasoningFamily {
        names: &["gemma4", "gemma-4"],
        openers: &["<|channel>thought\n"],
        closers: &["<channel|>"],
        ends_at_calls: false,
        ..THINK
    },
    ReasoningFamily {
        names: &["cohere_command3", "cohere_command4"],
        openers: &["<|START_THINKING|>"],
        closers: &["<|END_THINKING|>"],
        dropped: &["<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"],
        ..THINK
    },
    ReasoningFamily {
        names: &["gpt_oss", "gpt-oss", "openai_gptoss", "harmony"],
        openers: &[],
        closers: &[],
        ends_at_calls: false,
        channels: Some(&HARMONY),
        messages: Some(HARMONY_MESSAGES),
        efforts: HARMONY_EFFORTS,
        ..THINK
    },
    ReasoningFamily {
        names: &["muse_glimmer", "muse"],
        openers: &["to=self<|message|>"],
        closers: &["<|eom|>", "<|eot|>", "to=user<|message|>"],
        channels: Some(&MUSE),
        ..THINK
    },
    ReasoningFamily {
        names: &["inkling"],
        openers: &["<|content_thinking|>"],
        closers: &["<|content_text|>", "<|message_model|>", "<|end_message|>"],
        channels: Some(&INKLING),
        ..THINK
    },
    ReasoningFamily {
        names: &["kimi_k3", "kimi-k3"],
        openers: &["<|open|>think<|sep|>"],
        closers: &["<|open|>response<|sep|>", "<|close|>think<|sep|>"],
        dropped: XTML_FRAMES,
        ..THINK
    },
    ReasoningFamily {
        names: &["k2_horizon"],
        openers: &["<ifm|think>", "<ifm|think_fast>", "<ifm|think_faster>"],
        closers: &["</ifm|think_fast>", "</ifm|think_faster>", "</ifm|think>"],
        ..THINK
    },
    ReasoningFamily {
        names: &["apertus2509", "apertus"],
        openers: &["<|inner_prefix|>"],
        closers: &["<|inner_suffix|>"],
        ..THINK
    },
    // The tokenizer's suffix may stand before the brackets.
    ReasoningFamily { names: &["hy_v3", "hy_v4"], ..THINK },
    ReasoningFamily {
        names: &["plamo3"],
        openers: &["<|plamo:begin_think:plamo|>"],
        closers: &["<|plamo:end_think:plamo|>"],
        dropped: &["<|plamo:tag|>"],
        ..THINK
    },
    ReasoningFamily {
        names: &["minimax_m2_append_think", "minimax_append_think", "minimax-append-think"],
        openers: &[],
        closers: &[],
        ends_at_calls: false,
        preamble: "<think>",
        ..THINK
    },
];
