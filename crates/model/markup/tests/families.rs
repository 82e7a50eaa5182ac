//! Answers of every family, what they say, and that no cut changes it.

mod answers;

use answers::answers;
use proptest::prelude::*;
use stator_api::json::Json;
use stator_api::tools::Function;
use stator_markup::tools::KnownTools;
use stator_markup::{OutputEvent, OutputParser, ReasoningFamily, ToolFamily};

/// Events together: `R…` thoughts, `T…` text, `C…` a call with its arguments, closed by `E`.
fn fold(pieces: &[&str], tools: &str, reasoning: &str, inside: bool) -> String {
    let schema = r#"{"properties":{"n":{"type":"integer"},"s":{"type":"string"},
        "o":{"type":"object"},"b":{"type":"boolean"}}}"#;
    let parameters: Json<'static> =
        serde_json::from_str::<Json<'_>>(schema).expect("JSON").into_owned();
    let function = |name: &str| Function {
        name: name.to_owned().into(),
        parameters: Some(parameters.clone()),
        strict: false,
        custom: None,
    };
    let known = KnownTools::new(vec![function("f"), function("g")]);
    let calls = ToolFamily::find(tools);
    assert_eq!(calls.is_some(), !tools.is_empty(), "{tools}");
    let thoughts = ReasoningFamily::find(reasoning);
    assert_eq!(thoughts.is_some(), !reasoning.is_empty(), "{reasoning}");
    let mut parser = OutputParser::new(thoughts, calls, known, inside);
    let mut out = String::new();
    let mut kind = ' ';
    let mut sink = |event: OutputEvent<'_>| {
        let (letter, piece) = match event {
            OutputEvent::Reasoning(piece) => ('R', piece.to_owned()),
            OutputEvent::Text(piece) => ('T', piece.to_owned()),
            OutputEvent::CallStart { name, id } => {
                ('C', format!("{name}{}", id.map(|id| format!("#{id}")).unwrap_or_default()))
            }
            OutputEvent::Arguments(piece) => ('A', piece.to_owned()),
            OutputEvent::CallEnd => ('E', String::new()),
        };
        assert!(letter == 'E' || !piece.is_empty(), "{event:?}");
        if letter != kind || letter == 'C' {
            out.push_str(match letter {
                'R' => "|R ",
                'T' => "|T ",
                'C' => "|C ",
                'A' => "|A ",
                _ => "|E",
            });
        }
        kind = letter;
        out.push_str(&piece);
    };
    for piece in pieces {
        parser.push(piece, &mut sink);
    }
    parser.finish(&mut sink);
    out
}

#[test]
fn answers_say_what_their_family_means() {
    for (tools, reasoning, inside, text, said) in answers() {
        assert_eq!(fold(&[text], tools, reasoning, inside), said, "{tools} {reasoning}: {text}");
    }
}

/// Places between the characters of a text.
fn places(text: &str) -> Vec<usize> {
    text.char_indices().map(|(at, _)| at).chain([text.len()]).collect()
}

#[test]
fn no_cut_changes_what_an_answer_says() {
    for (tools, reasoning, inside, text, said) in answers() {
        let check = |pieces: &[&str]| {
            assert_eq!(fold(pieces, tools, reasoning, inside), said, "{tools}: {pieces:?}");
        };
        let places = places(text);
        let letters: Vec<_> = places.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
        check(&letters);
        for (number, one) in places.iter().enumerate() {
            check(&[&text[..*one], &text[*one..]]);
            // The second cut falls near the first: what is held back there is short.
            for two in places[number..].iter().take(32) {
                check(&[&text[..*one], &text[*one..*two], &text[*two..]]);
            }
        }
    }
}

proptest! {
    /// Cuts change nothing in an answer of random text that breaks off anywhere.
    #[test]
    fn no_cut_changes_what_a_broken_answer_says(
        answer in 0..answers().len(),
        from in any::<prop::sample::Index>(),
        to in any::<prop::sample::Index>(),
        noise in "[<{\\[\"a ,:}\\]/>\n(=)']{0,3}",
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let (tools, reasoning, inside, text, _) = answers()[answer];
        let places = places(text);
        let (from, to) = (places[from.index(places.len())], places[to.index(places.len())]);
        // A part is left out, or comes twice.
        let broken = format!("{}{noise}{}", &text[..from], &text[to..]);
        let inner = self::places(&broken);
        let mut cuts: Vec<_> = cuts.iter().map(|cut| inner[cut.index(inner.len())]).collect();
        cuts.extend([0, broken.len()]);
        cuts.sort_unstable();
        let pieces: Vec<_> = cuts.windows(2).map(|pair| &broken[pair[0]..pair[1]]).collect();
        let whole = fold(&[&broken], tools, reasoning, inside);
        prop_assert_eq!(fold(&pieces, tools, reasoning, inside), whole, "{:?}", pieces);
    }

    /// Text without a marker is text, all of it.
    #[test]
    fn plain_text_is_passed_on(text in "[a-zé .,!?\n]{1,60}", answer in 0..answers().len()) {
        let (tools, reasoning, ..) = answers()[answer];
        let channels = ["harmony", "inkling", "muse_glimmer"];
        prop_assume!(!channels.contains(&tools) && !text.contains("functools"));
        prop_assume!(reasoning != "minimax_m2_append_think");
        prop_assert_eq!(fold(&[&text], tools, reasoning, false), format!("|T {text}"));
    }
}

#[test]
fn a_head_without_end_is_text() {
    let long = "a".repeat(600);
    for (begun, said) in [("", ""), ("<|channel|>final<|message|>b", "b")] {
        let answer = format!("{begun}<|channel|>{long}");
        let letters: Vec<_> = answer.split_inclusive(|_: char| true).collect();
        for pieces in [&[&*answer][..], &letters] {
            assert_eq!(fold(pieces, "harmony", "gpt_oss", false), format!("|T {said}{long}"));
        }
    }
}

#[test]
fn a_message_that_the_prompt_has_begun_goes_on() {
    let harmony = |prompt: &str, answer: &str| {
        let (calls, thoughts) = (ToolFamily::find("harmony"), ReasoningFamily::find("gpt_oss"));
        let markup = stator_markup::channels(thoughts, calls).expect("it writes messages");
        let parser = OutputParser::new(thoughts, calls, KnownTools::new(Vec::new()), false);
        let mut parser = parser.going_on(markup.begun(prompt));
        let mut said = [String::new(), String::new()];
        let mut sink = |event: OutputEvent<'_>| match event {
            OutputEvent::Reasoning(piece) => said[0].push_str(piece),
            OutputEvent::Text(piece) => said[1].push_str(piece),
            other => panic!("{other:?}"),
        };
        // One character at a time: no cut changes what is said.
        answer.char_indices().for_each(|(at, c)| {
            parser.push(&answer[at..at + c.len_utf8()], &mut sink);
        });
        parser.finish(&mut sink);
        said
    };
    let user = "<|start|>user<|message|>Hi<|end|><|start|>assistant";
    let next = "<|start|>assistant<|channel|>final<|message|>x";
    for (begun, answer, thoughts, said) in [
        ("", "<|channel|>analysis<|message|>hm<|end|>", "hm", ""),
        ("", "Said without a head<|return|>", "", "Said without a head"),
        ("", "Said without an end", "", "Said without an end"),
        ("<|channel|>", "analysis<|message|>hm<|end|>", "hm", ""),
        ("<|channel|>analysis<|message|>", "hm<|end|>", "hm", ""),
        ("<|channel|>analysis<|message|>h", "m<|end|>", "m", ""),
        ("<|channel|>analysis<|message|>hm<|end|>", next, "", "x"),
        ("<|channel|>final<|message|>", "assistant <|a<|return|>", "", "assistant <|a"),
        ("<|channel|>final<|message|>It <", " is.<|return|>", "", " is."),
        ("<|channel|>commentary to=functions.f<|message|>", "{}<|call|>", "", "{}"),
    ] {
        assert_eq!(harmony(&format!("{user}{begun}"), answer), [thoughts, said], "{begun}");
    }
}

/// A family of calls, and a call with `@` in place of its value of `s`; whether that is JSON's text
/// of the value, or the value itself.
const CALLS: &[(&str, bool, &str)] = &[
    ("hermes", true, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": @}}\n</tool_call>"),
    ("mistral", true, "[TOOL_CALLS]f[ARGS]{\"s\": @}"),
    (
        "deepseek_v3_1",
        true,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"s\": @}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (
        "plamo3",
        true,
        "<|plamo:begin_tool_requests:plamo|><|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>f<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>{\"s\": @}<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|><|plamo:end_tool_requests:plamo|>",
    ),
    ("gigachat3", true, "<|function_call|>{\"name\": \"f\", \"arguments\": {\"s\": @}}"),
    ("glm45", false, "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>@</arg_value>\n</tool_call>"),
    (
        "hy_v3",
        false,
        "<tool_calls><tool_call>f<tool_sep><arg_key>s</arg_key><arg_value>@</arg_value></tool_call></tool_calls>",
    ),
    (
        "k2_horizon",
        false,
        "<ifm|tool_calls><ifm|tool_call>f<ifm|arg_key>s</ifm|arg_key><ifm|arg_value>@</ifm|arg_value></ifm|tool_call></ifm|tool_calls>",
    ),
    (
        "kimi_k3",
        false,
        "<|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"s\" type=\"string\"<|sep|>@<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
    ),
    ("minicpm5", false, "<function name=\"f\"><param name=\"s\"><![CDATA[@]]></param></function>"),
    (
        "step3",
        false,
        "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"f\"><steptml:parameter name=\"s\">@</steptml:parameter></steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>",
    ),
    (
        "minimax_m2",
        false,
        "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"s\">@</parameter>\n</invoke>\n</minimax:tool_call>",
    ),
    (
        "minimax_m3",
        false,
        "]<]minimax[>[<tool_call>]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<s>@]<]minimax[>[</s>]<]minimax[>[</invoke>]<]minimax[>[</tool_call>",
    ),
    (
        "deepseek_v41",
        false,
        "<｜DSML｜ calls><｜DSML｜ invoke name=\"f\"><｜DSML｜ parameter name=\"s\" string=\"true\">@</｜DSML｜ parameter></｜DSML｜ invoke></｜DSML｜ calls>",
    ),
    ("gemma4", false, "<|tool_call>call:f{s:<|\"|>@<|\"|>}<tool_call|>"),
    ("functiongemma", false, "<start_function_call>call:f{s:<escape>@<escape>}<end_function_call>"),
];

proptest! {
    /// Text around a call and the call's value come out as they went in, however they are cut.
    #[test]
    fn texts_and_values_are_kept(
        call in 0..CALLS.len(),
        value in "[a-zé<>&{}\\[\\],:'\"\\\\/|= \n]{0,24}",
        before in "[a-z][a-z<>{}\\[\\]|\". \n]{0,12}[a-z.]",
        behind in "[a-z][a-z<>{}\\[\\]|\". \n]{0,12}",
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let (tools, is_json, form) = CALLS[call];
        let json = serde_json::Value::from(value.as_str()).to_string();
        let call = form.replace('@', if is_json { &json } else { &value });
        let answer = format!("{before}{call}{behind}");
        let places = places(&answer);
        let mut cuts: Vec<_> = cuts.iter().map(|cut| places[cut.index(places.len())]).collect();
        cuts.extend([0, answer.len()]);
        cuts.sort_unstable();
        let pieces: Vec<_> = cuts.windows(2).map(|pair| &answer[pair[0]..pair[1]]).collect();
        let said = format!("|T {before}|C f|A {{\"s\": {json}}}|E|T {behind}");
        prop_assert_eq!(fold(&pieces, tools, "", false), said, "{}: {:?}", tools, pieces);
    }
}

#[test]
fn every_family_of_calls_has_an_answer() {
    let answers = answers();
    for family in stator_markup::families::TOOLS {
        let of_family = |answer: &&answers::Answer| family.names.contains(&answer.0);
        // Families that differ from another only in a marker around the same calls are left out.
        let same = ["longcat", "granite-20b-fc", "nemotron_deci", "ernie45", "dots"];
        let known = same.contains(&family.name()) || answers.iter().find(of_family).is_some();
        assert!(known, "{}", family.name());
    }
}

#[test]
fn every_name_is_that_of_one_family() {
    let names = stator_markup::families::TOOLS.iter().flat_map(|family| family.names);
    let mut names: Vec<_> = names.collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    let names = stator_markup::families::REASONING.iter().flat_map(|family| family.names);
    let mut names: Vec<_> = names.collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}
