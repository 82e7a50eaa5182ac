//! Calls that a model must write: the form that holds it to them.
//!
//! Source: xgrammar's structural tags, which vLLM, SGLang and TensorRT-LLM take, and the built-in
//! engine as well.

use crate::families::{CallText, MessageFrame, ThoughtRoom, ToolFamily};
use serde_json::{Value, json};
use stator_api::tools::{CustomInput, Function, ToolChoice, ToolUse};

/// `[{"name": …, "parameters": …}, …]`, which every model can write.
const LIST: CallText = CallText {
    section: ("[", "]"),
    begin: ("{\"name\": \"", "\", \"parameters\": "),
    numbered: "",
    end: "}",
    separator: ", ",
    trigger: "[",
};

/// The form of answers with forced calls, and the family that reads them.
#[derive(Clone, Debug, PartialEq)]
pub struct ForcedCalls {
    /// A structural tag, as text of JSON.
    pub structural_tag: String,
    /// Name of the family that reads the answers.
    pub family: &'static str,
}

/// The form for what a request asks of its tools: a call at least, a certain one, or calls that fit
/// the schemas of strict functions. None where nothing is asked that a form could hold.
///
/// The calls are in the family's own markup where that is JSON; in others models write a list of
/// objects.
pub fn forced_calls(
    family: Option<&'static ToolFamily>,
    tools: &ToolUse<'_>,
    room: ThoughtRoom,
) -> Option<ForcedCalls> {
    let named = |function: &&Function<'_>| match &tools.choice {
        ToolChoice::Named(name) => function.name == *name,
        _ => true,
    };
    let functions: Vec<_> = tools.functions.iter().filter(named).collect();
    let text = family.and_then(|family| Some((family, family.text.as_ref()?)));
    let one = !tools.parallel || matches!(tools.choice, ToolChoice::Named(_));
    let (format, family) = match (tools.is_forced(), text) {
        (true, Some((family, text))) => (forced(text, &functions, one), family.name()),
        (true, None) => (forced(&LIST, &functions, one), "json"),
        (false, Some((family, text)))
            if tools.choice == ToolChoice::Auto && functions.iter().any(|it| it.strict) =>
        {
            (free(text, &functions, one), family.name())
        }
        (false, _) => return None,
    };
    Some(ForcedCalls { structural_tag: tag(format, room), family })
}

/// The structural tag for an answer of the form `own`, which is a format of such a tag: with calls in
/// its place where the model may call, and behind the thoughts that there is room for. None where the
/// form does without.
pub fn formed_answer(
    family: Option<&'static ToolFamily>,
    tools: Option<&ToolUse<'_>>,
    room: ThoughtRoom,
    own: Value,
) -> Option<String> {
    let text = family.and_then(|family| family.text.as_ref());
    let tools = tools.filter(|it| it.choice == ToolChoice::Auto && !it.functions.is_empty());
    let format = match tools.zip(text) {
        Some((tools, text)) => {
            let calls = forced(text, &tools.functions.iter().collect::<Vec<_>>(), !tools.parallel);
            json!({"type": "or", "elements": [own, calls]})
        }
        None if matches!(room, ThoughtRoom::None) => return None,
        None => own,
    };
    Some(tag(format, room))
}

/// A structural tag, as text of JSON.
fn tag(format: Value, room: ThoughtRoom) -> String {
    let behind = |begin: &str, closer: &str, format: Value| {
        json!({"type": "sequence", "elements": [
            {"type": "tag", "begin": begin, "content": {"type": "any_text"}, "end": closer},
            {"type": "regex", "pattern": "\\n{0,2}"},
            format,
        ]})
    };
    let format = match room {
        ThoughtRoom::None => format,
        ThoughtRoom::Open(thoughts) => match thoughts.closers.last() {
            Some(closer) => behind("", closer, format),
            None => format,
        },
        ThoughtRoom::Ahead(thoughts) => {
            match (thoughts.messages, thoughts.openers, thoughts.closers.last()) {
                (Some(messages), ..) => in_messages(messages, format),
                (None, [opener, ..], Some(closer)) => {
                    let thinking = behind(opener, closer, format.clone());
                    json!({"type": "or", "elements": [thinking, format]})
                }
                _ => format,
            }
        }
    };
    json!({"type": "structural_tag", "format": format}).to_string()
}

/// Tag for an answer of this form, perhaps behind a message of thoughts.
fn in_messages(messages: MessageFrame, format: Value) -> Value {
    let MessageFrame { opener, closer, next, answer } = messages;
    let answer = json!({"type": "const_string", "value": answer});
    let thoughts = json!({"type": "tag", "begin": opener, "content": {"type": "any_text"},
        "end": format!("{closer}{next}")});
    let thinking = json!({"type": "sequence", "elements": [thoughts, answer, format]});
    let at_once = json!({"type": "sequence", "elements": [answer, format]});
    json!({"type": "or", "elements": [thinking, at_once]})
}

/// Calls and nothing else.
fn forced(text: &CallText, functions: &[&Function<'_>], one: bool) -> Value {
    let tags: Vec<_> = functions.iter().map(|function| call(text, function, true)).collect();
    let calls = json!({"type": "tags_with_separator", "tags": tags, "separator": text.separator,
        "at_least_one": true, "stop_after_first": one});
    match text.section {
        ("", "") => calls,
        (begin, end) => json!({"type": "tag", "begin": begin, "content": calls, "end": end}),
    }
}

/// Text in which calls fit the schemas of strict functions.
fn free(text: &CallText, functions: &[&Function<'_>], one: bool) -> Value {
    match text.section {
        ("", "") => {
            let tags: Vec<_> = functions.iter().map(|it| call(text, it, it.strict)).collect();
            json!({"type": "triggered_tags", "triggers": [text.trigger], "tags": tags,
                "at_least_one": false, "stop_after_first": one})
        }
        (begin, end) => {
            let tags: Vec<_> = functions.iter().map(|it| call(text, it, it.strict)).collect();
            let calls = json!({"type": "tags_with_separator", "tags": tags,
                "separator": text.separator, "at_least_one": true, "stop_after_first": one});
            json!({"type": "triggered_tags", "triggers": [begin], "at_least_one": false,
                "tags": [{"type": "tag", "begin": begin, "content": calls, "end": end}]})
        }
    }
}

/// One call; its arguments fit the schema if `strict`.
fn call(text: &CallText, function: &Function<'_>, strict: bool) -> Value {
    let arguments = arguments(function, strict);
    let content = match text.numbered {
        "" => arguments,
        behind => json!({"type": "sequence", "elements": [
            {"type": "regex", "pattern": "[0-9]{1,4}"},
            {"type": "const_string", "value": behind},
            arguments,
        ]}),
    };
    let (before, behind) = text.begin;
    let begin = format!("{before}{}{behind}", function.name);
    json!({"type": "tag", "begin": begin, "content": content, "end": text.end})
}

/// The arguments of a call, which fit the schema if `strict`. The input of a custom tool is a string of
/// its grammar, in the spacing that conversations show.
fn arguments(function: &Function<'_>, strict: bool) -> Value {
    let const_string = |value| json!({"type": "const_string", "value": value});
    match (&function.custom, strict) {
        (Some(CustomInput::Grammar(ebnf)), true) => json!({"type": "sequence", "elements": [
            const_string("{\"input\": \""),
            {"type": "grammar", "grammar": ebnf},
            const_string("\"}"),
        ]}),
        (_, true) => json!({"type": "json_schema", "json_schema": schema(function)}),
        (_, false) => json!({"type": "json_schema", "json_schema": {"type": "object"}}),
    }
}

fn schema(function: &Function<'_>) -> Value {
    let schema = function.parameters.as_ref().and_then(|it| serde_json::to_value(it).ok());
    schema.unwrap_or_else(|| json!({"type": "object"}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::ReasoningFamily;

    fn tools(choice: ToolChoice<'static>, strict: bool) -> ToolUse<'static> {
        let function = |name: &'static str, strict| Function {
            name: name.into(),
            parameters: None,
            strict,
            custom: None,
        };
        let functions = vec![function("f", strict), function("g", false)];
        ToolUse { functions, choice, parallel: true }
    }

    fn format(family: &str, tools: &ToolUse<'_>, thoughts: &str) -> Value {
        let room = ReasoningFamily::find(thoughts).map_or(ThoughtRoom::None, ThoughtRoom::Open);
        let forced = forced_calls(ToolFamily::find(family), tools, room);
        let forced = forced.expect("a form");
        let tag: Value = serde_json::from_str(&forced.structural_tag).expect("JSON");
        tag["format"].clone()
    }

    #[test]
    fn a_forced_call_is_in_the_family_s_markup() {
        let format = format("hermes", &tools(ToolChoice::Required, false), "");
        assert_eq!(format["type"], "tags_with_separator");
        assert_eq!(format["tags"][1]["begin"], "<tool_call>\n{\"name\": \"g\", \"arguments\": ");
        assert_eq!(
            (&format["at_least_one"], &format["stop_after_first"]),
            (&json!(true), &json!(false))
        );
    }

    #[test]
    fn a_named_call_is_the_only_one() {
        let format = format("kimi_k2", &tools(ToolChoice::Named("g".into()), false), "");
        let calls = &format["content"];
        assert_eq!(format["begin"], "<|tool_calls_section_begin|>");
        assert_eq!(
            (calls["tags"].as_array().map(Vec::len), &calls["stop_after_first"]),
            (Some(1), &json!(true))
        );
        assert_eq!(calls["tags"][0]["begin"], "<|tool_call_begin|>functions.g:");
    }

    #[test]
    fn families_without_json_write_a_list() {
        let required = tools(ToolChoice::Required, false);
        let forced = forced_calls(ToolFamily::find("glm45"), &required, ThoughtRoom::None);
        let forced = forced.expect("a form");
        assert_eq!(forced.family, "json");
        assert!(forced.structural_tag.contains(r#""begin":"{\"name\": \"f\", \"parameters\": ""#));
    }

    #[test]
    fn the_input_of_a_custom_tool_is_held_to_its_grammar() {
        let mut tools = tools(ToolChoice::Auto, true);
        tools.functions[0].custom = Some(CustomInput::Grammar("root ::= \"a\"".into()));
        for family in ["hermes", "kimi_k2"] {
            let format = format(family, &tools, "").to_string();
            let held = r#"{"type":"sequence","elements":[{"type":"const_string","value":"{\"input\": \""},{"type":"grammar","grammar":"root ::= \"a\""},{"type":"const_string","value":"\"}"}]}"#;
            assert!(format.contains(held), "{format}");
        }
    }

    #[test]
    fn a_form_of_one_s_own_leaves_room_for_calls_and_thoughts() {
        let own = json!({"type": "json_schema", "json_schema": {}});
        let formed = |choice, thoughts| {
            let (family, tools) = (ToolFamily::find("hermes"), tools(choice, false));
            let room = ReasoningFamily::find(thoughts).map_or(ThoughtRoom::None, ThoughtRoom::Open);
            let tag = formed_answer(family, Some(&tools), room, own.clone())?;
            Some(serde_json::from_str::<Value>(&tag).expect("JSON")["format"].clone())
        };
        let either = formed(ToolChoice::Auto, "").expect("a form");
        assert_eq!((&either["type"], &either["elements"][0]), (&json!("or"), &own));
        assert_eq!(either["elements"][1]["type"], "tags_with_separator");
        assert_eq!(formed(ToolChoice::None, ""), None);
        assert_eq!(formed(ToolChoice::None, "qwen3").expect("a form")["elements"][2], own);
    }

    #[test]
    fn thoughts_come_first() {
        let format = format("hermes", &tools(ToolChoice::Required, false), "qwen3");
        assert_eq!(format["elements"][0]["end"], "</think>");
        assert_eq!(format["elements"][2]["type"], "tags_with_separator");
    }

    #[test]
    fn thoughts_that_nobody_opened_may_come_and_need_not() {
        let own = json!({"type": "json_schema", "json_schema": {}});
        let qwen = ReasoningFamily::find("qwen3").expect("a family");
        let tag = formed_answer(None, None, ThoughtRoom::Ahead(qwen), own.clone());
        let tag: Value = serde_json::from_str(&tag.expect("a form")).expect("JSON");
        let [thinking, at_once] = [&tag["format"]["elements"][0], &tag["format"]["elements"][1]];
        assert_eq!((&tag["format"]["type"], at_once), (&json!("or"), &own));
        assert_eq!(thinking["elements"][0]["begin"], "<think>");
        assert_eq!(thinking["elements"][2], own);
        let harmony = ReasoningFamily::find("gpt_oss").expect("a family");
        let tag = formed_answer(None, None, harmony.room("<|start|>assistant"), own.clone());
        let tag: Value = serde_json::from_str(&tag.expect("a form")).expect("JSON");
        let [thinking, at_once] = [&tag["format"]["elements"][0], &tag["format"]["elements"][1]];
        assert_eq!(thinking["elements"][0]["end"], "<|end|><|start|>assistant");
        assert_eq!(at_once["elements"][0]["value"], "<|channel|>final<|message|>");
        assert_eq!((&thinking["elements"][2], &at_once["elements"][1]), (&own, &own));
    }

    #[test]
    fn the_end_of_a_prompt_says_what_thoughts_may_come() {
        let qwen = ReasoningFamily::find("qwen3").expect("a family");
        let room = |end: &str| match qwen.room(end) {
            ThoughtRoom::None => "none",
            ThoughtRoom::Open(_) => "open",
            ThoughtRoom::Ahead(_) => "ahead",
        };
        assert_eq!(room("<|im_start|>assistant\n"), "ahead");
        assert_eq!(room("assistant\n<think>\n"), "open");
        assert_eq!(room("assistant\n<think>\n\n</think>\n\n"), "none");
        assert_eq!(room("<think>a</think>b<|im_end|>\nassistant\n"), "ahead");
    }

    #[test]
    fn strict_functions_are_held_to_their_schemas_in_free_text() {
        let format = format("hermes", &tools(ToolChoice::Auto, true), "");
        assert_eq!(format["triggers"], json!(["<tool_call>"]));
        let none = |choice, strict| {
            let tools = tools(choice, strict);
            forced_calls(ToolFamily::find("hermes"), &tools, ThoughtRoom::None).is_none()
        };
        assert!(none(ToolChoice::Auto, false) && none(ToolChoice::None, true));
    }
}
