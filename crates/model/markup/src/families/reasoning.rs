//! The table of families of thoughts.

use super::ReasoningFamily;

/// Thoughts between `<think>` and `</think>`.
const THINK: ReasoningFamily = ReasoningFamily {
    names: &[],
    openers: &["<think>"],
    closers: &["</think>"],
    ends_at_calls: true,
    dropped: &[],
    begins_inside: false,
};

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
            "deepseek_v31_thinking",
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
        names: &["gemma4"],
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
        ..THINK
    },
];
