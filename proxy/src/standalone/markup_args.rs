//! Flags of the markup in which models call tools and think.

use clap::Args;
use stator_markup::families::{REASONING, TOOLS};
use stator_markup::{ReasoningFamily, ToolFamily};
use stator_model::{FamilyChoice, MarkupChoice};

/// Markup of answers.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Tools and reasoning")]
pub struct MarkupArgs {
    /// Parser of tool calls, by the names that vLLM, SGLang and Dynamo use, such as hermes,
    /// llama3_json or deepseek_v3_1. `auto` finds the parser in each model's chat template, and
    /// `none` leaves calls in the text.
    #[arg(
        long,
        env = "STATOR_TOOL_CALL_PARSER",
        alias = "dyn-tool-call-parser",
        default_value = "auto",
        value_name = "NAME"
    )]
    pub tool_call_parser: String,

    /// Parser of reasoning, such as qwen3, deepseek_r1 or gpt_oss; `auto` and `none` as for tool
    /// calls.
    #[arg(
        long,
        env = "STATOR_REASONING_PARSER",
        alias = "dyn-reasoning-parser",
        default_value = "auto",
        value_name = "NAME"
    )]
    pub reasoning_parser: String,
}

/// Parsers of vLLM, SGLang and SMG that are not here, and why.
const ABSENT: [(&str, &str); 4] = [
    ("hf", TEMPLATE),
    ("response_template", TEMPLATE),
    ("beam", TEMPLATE),
    ("sarashina", "reads a markup that is not known here"),
];
const TEMPLATE: &str =
    "reads the response_template of a model's tokenizer_config.json, which is not read here";

impl MarkupArgs {
    /// The families chosen; a fault for each name that is none's.
    pub(crate) fn choice(&self, faults: &mut Vec<String>) -> MarkupChoice {
        let tools = TOOLS.iter().map(ToolFamily::name);
        let reasoning = REASONING.iter().map(ReasoningFamily::name);
        MarkupChoice {
            tools: family(&self.tool_call_parser, ToolFamily::find).unwrap_or_else(|| {
                unknown("tool-call-parser", &self.tool_call_parser, tools, faults)
            }),
            reasoning: family(&self.reasoning_parser, ReasoningFamily::find).unwrap_or_else(|| {
                unknown("reasoning-parser", &self.reasoning_parser, reasoning, faults)
            }),
        }
    }
}

fn family<F>(name: &str, find: fn(&str) -> Option<&'static F>) -> Option<FamilyChoice<F>> {
    match name {
        "auto" => Some(FamilyChoice::Auto),
        "none" | "passthrough" => Some(FamilyChoice::Off),
        name => find(name).map(FamilyChoice::Family),
    }
}

fn unknown<F>(
    flag: &str,
    name: &str,
    known: impl Iterator<Item = &'static str>,
    faults: &mut Vec<String>,
) -> FamilyChoice<F> {
    let absent = ABSENT.iter().find(|(absent, _)| *absent == name);
    let known: Vec<_> = known.collect();
    faults.push(match absent {
        Some((_, why)) => format!("{flag}: {name:?} {why}: name the model's family, or none"),
        None => format!(
            "{flag}: {name:?} is no parser; there are auto, none, {} and their other names",
            known.join(", ")
        ),
    });
    FamilyChoice::Off
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(tools: &str, reasoning: &str) -> Result<MarkupChoice, Vec<String>> {
        let mut faults = Vec::new();
        let args =
            MarkupArgs { tool_call_parser: tools.into(), reasoning_parser: reasoning.into() };
        let choice = args.choice(&mut faults);
        if faults.is_empty() { Ok(choice) } else { Err(faults) }
    }

    #[test]
    fn parsers_have_the_names_of_engines() {
        let found = choice("qwen25", "none").expect("both are known");
        assert!(matches!(found.tools, FamilyChoice::Family(family) if family.name() == "hermes"));
        assert!(matches!(found.reasoning, FamilyChoice::Off));
        let faults = choice("no-such", "nor-this").expect_err("neither is known");
        assert!(faults[0].starts_with("tool-call-parser: \"no-such\" is no parser"), "{faults:?}");
        assert!(faults[1].contains("deepseek_r1"), "{faults:?}");
        let faults = choice("hf", "response_template").expect_err("no template is read");
        assert!(faults.iter().all(|fault| fault.contains("tokenizer_config.json")), "{faults:?}");
        let found = choice("nemotron", "passthrough").expect("SMG's names are known");
        assert!(matches!(found.reasoning, FamilyChoice::Off));
    }
}
