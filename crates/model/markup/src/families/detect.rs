//! The families of a model, by its chat template and configuration.

use super::{ReasoningFamily, ToolFamily};

/// Traits of a model's files that reveal its markup.
#[derive(Clone, Copy, Debug, Default)]
pub struct ModelTraits<'a> {
    /// Source of the chat template; empty for a model without one.
    pub template: &'a str,
    /// `model_type` of `config.json`; empty where unknown.
    pub model_type: &'a str,
}

/// Text in a template, and the family that it gives away; the first that is there counts. What is
/// more special stands first.
const TOOL_SIGNS: &[(&str, &str)] = &[
    ("<atem:function_calls>", "muse_glimmer"),
    ("<|content_invoke_tool_json|>", "inkling"),
    ("<|plamo:begin_tool_requests:plamo|>", "plamo3"),
    ("<|channel|>", "harmony"),
    ("]<]minimax[>[", "minimax_m3"),
    ("<|open|>", "kimi_k3"),
    ("<ifm|tool_calls>", "k2_horizon"),
    ("<steptml:", "step3"),
    ("<tool_sep", "hy_v3"),
    ("<tool_calls:", "hy_v4"),
    ("<start_function_call>", "functiongemma"),
    ("<|tool_call>", "gemma4"),
    ("<iquest_tool_call>", "iquest_q1"),
    ("<｜GCML｜", "gigachat35"),
    ("<|role_sep|>", "gigachat3"),
    ("<|function_call|>", "gigachat3"),
    ("<｜DSML｜ ", "deepseek_v41"),
    ("<｜DSML｜", "deepseek_v3_2"),
    ("<｜tool▁calls▁begin｜>", "deepseek_v3_1"),
    ("<|tool_calls_section_begin|>", "kimi_k2"),
    ("<minimax:tool_call>", "minimax_m2"),
    ("<seed:tool_call>", "seed_oss"),
    ("<longcat_tool_call>", "longcat"),
    ("<|tool_call_start|>", "lfm2"),
    ("<function_calls>", "olmo3"),
    ("<|tools_prefix|>", "apertus"),
    ("<|START_ACTION|>", "cohere_command3"),
    ("<|action_start|>", "internlm"),
    ("<TOOLCALL>", "nemotron_deci"),
    ("<function=", "qwen3_coder"),
    ("<function name=", "minicpm5"),
    ("<arg_key>", "glm45"),
    ("[TOOL_CALLS]", "mistral"),
    ("<|tool_call|>", "granite"),
    ("<tool_calls>", "jamba"),
    ("<tool_call>", "hermes"),
    ("<|python_start|>", "llama4_pythonic"),
    ("<|python_tag|>", "llama3_json"),
    ("functools", "phi4_mini_json"),
    ("\"parameters\": dictionary of argument name", "llama3_json"),
    ("[func_name1(", "pythonic"),
];

/// Signs in a chat template, each with its family of thoughts; the first match counts.
const REASONING_SIGNS: &[(&str, &str)] = &[
    ("to=self<|message|>", "muse_glimmer"),
    ("<|content_thinking|>", "inkling"),
    ("<|plamo:begin_think:plamo|>", "plamo3"),
    ("<|channel|>", "gpt_oss"),
    ("<|open|>", "kimi_k3"),
    ("<|inner_prefix|>", "apertus2509"),
    ("<ifm|think", "k2_horizon"),
    ("</think:", "hy_v4"),
    ("<seed:think>", "seed_oss"),
    ("<mm:think>", "minimax_m3"),
    ("◁think▷", "kimi"),
    ("[THINK]", "mistral"),
    ("<|START_THINKING|>", "cohere_command3"),
    ("<|channel>thought", "gemma4"),
    ("Here is my thought process:", "granite"),
    ("</think>\\n<answer>", "hunyuan_a13b"),
    ("</think>", "qwen3"),
    ("<think>", "qwen3"),
];

/// Model types whose templates give nothing away: their engines render prompts in code.
const TOOL_TYPES: &[(&str, &str)] = &[
    ("gpt_oss", "harmony"),
    ("mistral", "mistral"),
    ("mistral3", "mistral"),
    ("mixtral", "mistral"),
    ("deepseek_v32", "deepseek_v3_2"),
    ("deepseek_v4", "deepseek_v3_2"),
    ("deepseek_v41", "deepseek_v41"),
    ("kimi_k3", "kimi_k3"),
    ("hy_v4", "hy_v4"),
    ("muse_glimmer", "muse_glimmer"),
];

const REASONING_TYPES: &[(&str, &str)] = &[
    ("gpt_oss", "gpt_oss"),
    ("deepseek_v32", "qwen3"),
    ("deepseek_v4", "qwen3"),
    ("deepseek_v41", "qwen3"),
    ("kimi_k3", "kimi_k3"),
    ("hy_v4", "hy_v4"),
    ("muse_glimmer", "muse_glimmer"),
];

/// The family of a model's calls, where its files give it away.
pub fn tools_of(traits: ModelTraits<'_>) -> Option<&'static ToolFamily> {
    let name = match sign(traits, TOOL_SIGNS, TOOL_TYPES)? {
        // The older one of two families with the same markers puts its JSON into a fence.
        "deepseek_v3_1" if traits.template.contains("```json") => "deepseek_v3",
        // GLM puts nothing around its calls.
        "glm45" if traits.template.contains("<tool_calls>") => "hy_v4",
        name => name,
    };
    ToolFamily::find(name)
}

/// The family of a model's thoughts, where its files give it away.
pub fn reasoning_of(traits: ModelTraits<'_>) -> Option<&'static ReasoningFamily> {
    ReasoningFamily::find(sign(traits, REASONING_SIGNS, REASONING_TYPES)?)
}

fn sign(
    traits: ModelTraits<'_>,
    signs: &[(&str, &'static str)],
    types: &[(&str, &'static str)],
) -> Option<&'static str> {
    let in_template = signs.iter().find(|(sign, _)| traits.template.contains(sign));
    let of_type = || types.iter().find(|(kind, _)| *kind == traits.model_type);
    in_template.or_else(of_type).map(|(_, family)| *family)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(template: &str, tools: &str, reasoning: &str) {
        let traits = ModelTraits { template, model_type: "" };
        assert_eq!(tools_of(traits).map_or("", ToolFamily::name), tools, "{template}");
        assert_eq!(reasoning_of(traits).map_or("", ReasoningFamily::name), reasoning, "{template}");
    }

    #[test]
    fn templates_give_their_families_away() {
        check("{{ messages }}", "", "");
        check("<tool_call></tool_call> <think></think>", "hermes", "qwen3");
        check("<tool_call>\n<function=", "qwen3_coder", "");
        check("<tool_call> <arg_key> </think>", "glm45", "qwen3");
        check("<｜tool▁calls▁begin｜> ```json", "deepseek_v3", "");
        check("<｜tool▁calls▁begin｜>", "deepseek_v3_1", "");
        check("[TOOL_CALLS] [THINK]", "mistral", "mistral");
        check("<|start|><|channel|>", "harmony", "gpt_oss");
        check("<tool_calls><tool_call> <arg_key> </think>", "hy_v3", "qwen3");
        check("<tool_call:ab><tool_sep:ab></think:ab>", "hy_v3", "hy_v3");
        check("<|tool_call>call: <|channel>thought", "gemma4", "gemma4");
        check("]<]minimax[>[<tool_call> <mm:think>", "minimax_m3", "minimax_m3");
        check("<｜DSML｜ calls>", "deepseek_v41", "");
    }

    #[test]
    fn every_sign_names_a_family() {
        for (_, name) in TOOL_SIGNS.iter().chain(TOOL_TYPES) {
            assert!(ToolFamily::find(name).is_some(), "{name}");
        }
        for (_, name) in REASONING_SIGNS.iter().chain(REASONING_TYPES) {
            assert!(ReasoningFamily::find(name).is_some(), "{name}");
        }
    }
}
