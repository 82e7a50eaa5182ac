//! Flags of the markup in which models call tools and think.

use clap::Args;
use stator_markup::families::{REASONING, TOOLS};
use stator_markup::{ReasoningFamily, ToolFamily};
use stator_model::{FamilyChoice, MarkupChoice};
use std::collections::BTreeMap;

/// Markup of answers.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Tools and reasoning")]
pub struct MarkupArgs {
    /// Parser of tool calls, by the names that vLLM, SGLang and Dynamo use, such as hermes,
    /// llama3_json or deepseek_v3_1. `auto` finds the parser in each model's chat template, and
    /// `none` leaves calls in the text. A model may have its own, `model=name`; one without a model
    /// is for all others.
    #[arg(
        long,
        env = "STATOR_TOOL_CALL_PARSER",
        alias = "dyn-tool-call-parser",
        default_value = "auto",
        value_delimiter = ',',
        value_name = "[MODEL=]NAME"
    )]
    pub tool_call_parser: Vec<String>,

    /// Parser of reasoning, such as qwen3, deepseek_r1 or gpt_oss; `auto`, `none` and models as for
    /// tool calls.
    #[arg(
        long,
        env = "STATOR_REASONING_PARSER",
        alias = "dyn-reasoning-parser",
        default_value = "auto",
        value_delimiter = ',',
        value_name = "[MODEL=]NAME"
    )]
    pub reasoning_parser: Vec<String>,
}

/// The families that an operator chose, of each model.
#[derive(Clone, Debug, Default)]
pub(crate) struct MarkupChoices {
    tools: ByModel<FamilyChoice<ToolFamily>>,
    reasoning: ByModel<FamilyChoice<ReasoningFamily>>,
}

/// A value for all models but those that have their own.
#[derive(Clone, Debug, Default)]
struct ByModel<T> {
    all: Option<T>,
    own: BTreeMap<String, T>,
}

impl MarkupChoices {
    /// The families chosen for a model.
    pub(crate) fn of(&self, model: &str) -> MarkupChoice {
        MarkupChoice { tools: self.tools.of(model), reasoning: self.reasoning.of(model) }
    }
}

impl<T: Copy + Default> ByModel<T> {
    fn of(&self, model: &str) -> T {
        self.own.get(model).copied().or(self.all).unwrap_or_default()
    }
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
    /// The families chosen; a fault for each name that is none's, and for a model's second.
    pub(crate) fn choices(&self, faults: &mut Vec<String>) -> MarkupChoices {
        let tools = |name: &str, faults: &mut Vec<String>| {
            let known = TOOLS.iter().map(ToolFamily::name);
            family(name, ToolFamily::find)
                .unwrap_or_else(|| unknown("tool-call-parser", name, known, faults))
        };
        let reasoning = |name: &str, faults: &mut Vec<String>| {
            let known = REASONING.iter().map(ReasoningFamily::name);
            family(name, ReasoningFamily::find)
                .unwrap_or_else(|| unknown("reasoning-parser", name, known, faults))
        };
        MarkupChoices {
            tools: by_model("tool-call-parser", &self.tool_call_parser, tools, faults),
            reasoning: by_model("reasoning-parser", &self.reasoning_parser, reasoning, faults),
        }
    }
}

/// The values of a flag, each `NAME` or `MODEL=NAME`. Names of models may have the sign too, those of
/// parsers have none.
fn by_model<T>(
    flag: &str,
    values: &[String],
    read: impl Fn(&str, &mut Vec<String>) -> T,
    faults: &mut Vec<String>,
) -> ByModel<T> {
    let mut chosen = ByModel { all: None, own: BTreeMap::new() };
    for text in values {
        let (model, name) = match text.rsplit_once('=') {
            Some((model, name)) => (Some(model), name),
            None => (None, text.as_str()),
        };
        if model == Some("") {
            faults.push(format!("{flag}: {text:?} names no model"));
            continue;
        }
        let value = read(name, faults);
        let second = match model {
            Some(model) => chosen.own.insert(model.to_owned(), value).is_some(),
            None => chosen.all.replace(value).is_some(),
        };
        if second {
            let whose = model.map_or("all models".to_owned(), |model| format!("{model:?}"));
            faults.push(format!("{flag}: {text:?} is the second for {whose}"));
        }
    }
    chosen
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

    fn choices(tools: &[&str], reasoning: &[&str]) -> Result<MarkupChoices, Vec<String>> {
        let mut faults = Vec::new();
        let values = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect();
        let args =
            MarkupArgs { tool_call_parser: values(tools), reasoning_parser: values(reasoning) };
        let choices = args.choices(&mut faults);
        if faults.is_empty() { Ok(choices) } else { Err(faults) }
    }

    fn tools_of(choices: &MarkupChoices, model: &str) -> &'static str {
        match choices.of(model).tools {
            FamilyChoice::Auto => "auto",
            FamilyChoice::Off => "none",
            FamilyChoice::Family(family) => family.name(),
        }
    }

    #[test]
    fn parsers_have_the_names_of_engines() {
        let found = choices(&["qwen25"], &["none"]).expect("both are known");
        assert_eq!(tools_of(&found, "m"), "hermes");
        assert!(matches!(found.of("m").reasoning, FamilyChoice::Off));
        let faults = choices(&["no-such"], &["m=nor-this"]).expect_err("neither is known");
        assert!(faults[0].starts_with("tool-call-parser: \"no-such\" is no parser"), "{faults:?}");
        assert!(faults[1].starts_with("reasoning-parser: \"nor-this\" is no"), "{faults:?}");
        assert!(faults[1].contains("deepseek_r1"), "{faults:?}");
        let faults = choices(&["hf"], &["response_template"]).expect_err("no template is read");
        assert!(faults.iter().all(|fault| fault.contains("tokenizer_config.json")), "{faults:?}");
        let found = choices(&["nemotron"], &["passthrough"]).expect("SMG's names are known");
        assert!(matches!(found.of("m").reasoning, FamilyChoice::Off));
    }

    #[test]
    fn a_model_may_have_its_own_parser() {
        let values = ["hermes", "org/llama=llama3_json", "a=b=none", "other=auto"];
        let found = choices(&values, &["auto"]).expect("all are known");
        let models = ["org/llama", "a=b", "other", "any"];
        assert_eq!(
            models.map(|model| tools_of(&found, model)),
            ["llama3_json", "none", "auto", "hermes"]
        );
        let found = choices(&["m=hermes"], &[]).expect("it is known");
        assert_eq!(["m", "n"].map(|model| tools_of(&found, model)), ["hermes", "auto"]);
        assert!(matches!(found.of("m").reasoning, FamilyChoice::Auto));
    }

    #[test]
    fn a_second_parser_for_a_model_is_a_fault() {
        for (values, fault) in [
            (["m=hermes", "m=json"], "tool-call-parser: \"m=json\" is the second for \"m\""),
            (["hermes", "json"], "tool-call-parser: \"json\" is the second for all models"),
            (["hermes", "=json"], "tool-call-parser: \"=json\" names no model"),
        ] {
            assert_eq!(choices(&values, &[]).expect_err("it is one"), [fault]);
        }
    }
}
