//! Answers of every family, what they say, and that no cut changes it.

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

/// Family of calls, family of thoughts, whether the prompt opened them, the text, what it says.
type Answer = (&'static str, &'static str, bool, &'static str, &'static str);

const ANSWERS: &[Answer] = &[
    ("hermes", "", false, "Hi.\nThere", "|T Hi.\nThere"),
    (
        "hermes",
        "",
        false,
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1.0, \"s\": \"</tool_call>é\\\"}\"}}\n</tool_call>",
        "|C f|A {\"n\": 1.0, \"s\": \"</tool_call>é\\\"}\"}|E",
    ),
    (
        "hermes",
        "",
        false,
        "Let me see.\n<tool_call>\n{\"arguments\": {\"n\": 1e3}, \"name\": \"f\"}\n</tool_call>\n<tool_call>{\"name\":\"g\"}</tool_call>\n",
        "|T Let me see.\n|C f|A {\"n\": 1e3}|E|C g|A {}|E",
    ),
    (
        "hermes",
        "",
        false,
        "<tool_call>\n{\"name\": \"f\", \"arguments\": \"{\\\"n\\\": 1}\"}\n</tool_call>Done",
        "|C f|A {\"n\": 1}|E|T Done",
    ),
    ("hermes", "", false, "<tool_call>no json</tool_call> rest", "|T no json rest"),
    (
        "hermes",
        "",
        false,
        "<tool_call>{\"name\":\"f\",\"arguments\":{\"n\": <oops></tool_call>x",
        "|C f|A {\"n\": <oops>|E|T x",
    ),
    (
        "hermes",
        "",
        false,
        "<tool_call>{\"name\":\"f\",\"arguments\":{\"n\": [1",
        "|C f|A {\"n\": [1|E",
    ),
    ("hermes", "", false, "<tool_call>{\"na", "|T {\"na"),
    ("hermes", "", false, "a < b <tool> </tool_call>", "|T a < b <tool> "),
    ("hermes", "qwen3", false, "<think>\nhm\n</think>\n\nYes", "|R \nhm\n|T Yes"),
    (
        "hermes",
        "qwen3",
        true,
        "hm\n</think>\n\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>",
        "|R hm\n|C f|A {}|E",
    ),
    (
        "hermes",
        "qwen3",
        true,
        "hm <tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>",
        "|R hm |C f|A {}|E",
    ),
    ("hermes", "qwen3", true, "<think>again</think></think>x", "|R again|T x"),
    ("", "qwen3", false, "x <think> y", "|T x <think> y"),
    ("", "qwen3", true, "never closed", "|R never closed"),
    ("", "deepseek_r1", true, "a</think>b", "|R a|T b"),
    (
        "",
        "granite",
        false,
        "Here is my thought process: hm. Here is my response: yes",
        "|R  hm. |T  yes",
    ),
    ("", "granite", false, "Here is a list", "|T Here is a list"),
    ("", "mistral", false, "[THINK]hm[/THINK]yes", "|R hm|T yes"),
    ("", "hunyuan_a13b", false, "<think>\nhm\n</think>\n<answer>\nyes\n</answer>", "|R hm|T yes"),
    ("", "ernie45", true, "hm\n</think>\n\n<response>\nyes\n</response>\n", "|R hm\n|T yes\n"),
    ("", "kimi", false, "◁think▷hm◁/think▷yes", "|R hm|T yes"),
    (
        "llama3_json",
        "",
        false,
        "{\"name\": \"f\", \"parameters\": {\"n\": 1}}; {\"name\": \"g\", \"parameters\": {}}",
        "|C f|A {\"n\": 1}|E|C g|A {}|E",
    ),
    (
        "llama3_json",
        "",
        false,
        "<|python_tag|>{\"type\": \"function\", \"name\": \"f\", \"parameters\": {\"n\": 1}}",
        "|C f|A {\"n\": 1}|E",
    ),
    (
        "llama3_json",
        "",
        false,
        "{\"name\": \"Ann\", \"age\": 3}",
        "|T {\"name\": \"Ann\", \"age\": 3}",
    ),
    (
        "llama3_json",
        "",
        false,
        "Use {\"name\": \"f\", \"parameters\": {}}",
        "|T Use {\"name\": \"f\", \"parameters\": {}}",
    ),
    (
        "pythonic",
        "",
        false,
        "[f(n=1, s='a, b)'), g(o={'k': [1, None]}, b=True)]",
        "|C f|A {\"n\": 1, \"s\": \"a, b)\"}|E|C g|A {\"o\": {\"k\": [1, null]}, \"b\": true}|E",
    ),
    ("pythonic", "", false, "[a link](url) and more", "|T [a link](url) and more"),
    ("pythonic", "", false, "[f()]", "|C f|A {}|E"),
    ("pythonic", "", false, "[f(1)]", "|T [f(1)]"),
    ("llama4_pythonic", "", false, "<|python_start|>[f(n=1)]<|python_end|>", "|C f|A {\"n\": 1}|E"),
    (
        "lfm2",
        "",
        false,
        "<|tool_call_start|>[f(s=\"x\")]<|tool_call_end|>Calling",
        "|C f|A {\"s\": \"x\"}|E|T Calling",
    ),
    (
        "olmo3",
        "",
        false,
        "<function_calls>\nf(n=1)\ng(b=null)\n</function_calls>",
        "|C f|A {\"n\": 1}|E|C g|A {\"b\": null}|E",
    ),
    (
        "mistral",
        "",
        false,
        "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"n\": 1}, \"id\": \"abcdefghi\"}, {\"name\": \"g\", \"arguments\": {}}]",
        "|C f|A {\"n\": 1}|E|C g|A {}|E",
    ),
    (
        "mistral",
        "",
        false,
        "[TOOL_CALLS]f[ARGS]{\"n\": 1}[TOOL_CALLS]g[CALL_ID]abcdefghi[ARGS]{}",
        "|C f|A {\"n\": 1}|E|C g#abcdefghi|A {}|E",
    ),
    ("mistral", "", false, "So: [TOOL_CALLS]f{\"n\": 1}", "|T So: |C f|A {\"n\": 1}|E"),
    (
        "deepseek_v3",
        "",
        false,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"n\": 1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "|C f|A {\"n\": 1}|E|C g|A {}|E",
    ),
    (
        "deepseek_v3_1",
        "qwen3",
        true,
        "hm</think>Ok.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"s\": \"<｜tool▁call▁end｜>\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "|R hm|T Ok.|C f|A {\"s\": \"<｜tool▁call▁end｜>\"}|E",
    ),
    (
        "deepseek_v3_2",
        "",
        false,
        "Ok\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"s\" string=\"true\">1</｜DSML｜parameter>\n<｜DSML｜parameter name=\"n\" string=\"false\">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        "|T Ok\n\n|C f|A {\"s\": \"1\", \"n\": 1}|E",
    ),
    (
        "kimi_k2",
        "",
        false,
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"n\": 1}<|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        "|C f#functions.f:0|A {\"n\": 1}|E|C g#functions.g:1|A {}|E",
    ),
    (
        "qwen3_coder",
        "",
        false,
        "I will.\n<tool_call>\n<function=f>\n<parameter=s>\na\n<b>\n</parameter>\n<parameter=n>\n12\n</parameter>\n</function>\n</tool_call>",
        "|T I will.\n|C f|A {\"s\": \"a\\n<b>\", \"n\": 12}|E",
    ),
    (
        "qwen3_coder",
        "",
        false,
        "<function=g>\n<parameter=o>\n{\"k\": 1.0}\n<parameter=b>\nTrue\n</function>",
        "|C g|A {\"o\": {\"k\": 1.0}, \"b\": true}|E",
    ),
    (
        "qwen3_coder",
        "",
        false,
        "<tool_call>\n<function=f>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n<parameter=s>\nx",
        "|C f|A {}|E|C g|A {\"s\": \"x|E",
    ),
    (
        "mimo",
        "",
        false,
        "<tool_call>\n<function=f>\n<parameter=n>1</parameter>\n</function>\n</tool_call>",
        "|C f|A {\"n\": \"1\"}|E",
    ),
    (
        "glm45",
        "",
        false,
        "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>x y</arg_value>\n<arg_key>n</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>g</tool_call>",
        "|C f|A {\"s\": \"x y\", \"n\": 3}|E|C g|A {}|E",
    ),
    (
        "glm47",
        "glm47",
        true,
        "hm</think><tool_call>f<arg_key>s</arg_key><arg_value>x</arg_value><arg_key>s</arg_key><arg_value>y</arg_value></tool_call>",
        "|R hm|C f|A {\"s\": \"x\"}|E",
    ),
    (
        "minimax_m2",
        "",
        false,
        "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"s\">x</parameter>\n</invoke>\n<invoke name='g'>\n</invoke>\n</minimax:tool_call>",
        "|C f|A {\"s\": \"x\"}|E|C g|A {}|E",
    ),
    (
        "seed_oss",
        "seed_oss",
        false,
        "<seed:think>hm</seed:think><seed:tool_call>\n<function=f>\n<parameter=n>1</parameter>\n</function>\n</seed:tool_call>",
        "|R hm|C f|A {\"n\": 1}|E",
    ),
    (
        "granite",
        "",
        false,
        "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"n\": 1}}]",
        "|C f|A {\"n\": 1}|E",
    ),
    (
        "phi4_mini_json",
        "",
        false,
        "functools[{\"name\": \"f\", \"arguments\": {\"n\": 1}}, {\"name\": \"g\", \"arguments\": {}}]",
        "|C f|A {\"n\": 1}|E|C g|A {}|E",
    ),
    ("phi4_mini_json", "", false, "functools are great", "|T functools are great"),
    (
        "jamba",
        "",
        false,
        "<tool_calls>[{\"name\": \"f\", \"arguments\": {\"n\": 1}}]</tool_calls>",
        "|C f|A {\"n\": 1}|E",
    ),
    (
        "apertus",
        "",
        false,
        "<|tools_prefix|>[{\"f\": {\"n\": 1}}, {\"g\": {}}]<|tools_suffix|>",
        "|C f|A {\"n\": 1}|E|C g|A {}|E",
    ),
    (
        "cohere_command3",
        "cohere_command3",
        false,
        "<|START_THINKING|>hm<|END_THINKING|><|START_ACTION|>[{\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": {\"n\": 1}}]<|END_ACTION|>",
        "|R hm|C f#0|A {\"n\": 1}|E",
    ),
    (
        "internlm",
        "",
        false,
        "Ok<|action_start|><|plugin|>{\"name\": \"f\", \"parameters\": {}}<|action_end|>",
        "|T Ok|C f|A {}|E",
    ),
    (
        "xlam",
        "",
        false,
        "```json\n[{\"name\": \"f\", \"arguments\": {\"n\": 1}}]\n```",
        "|C f|A {\"n\": 1}|E",
    ),
    (
        "harmony",
        "gpt_oss",
        false,
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"n\": 1}<|call|>",
        "|R hm|C f|A {\"n\": 1}|E",
    ),
    (
        "harmony",
        "",
        false,
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}<|call|>",
        "|T I look.|C f|A {}|E",
    ),
    ("harmony", "", false, "<|channel|>final<|message|>Yes <b>.<|return|>", "|T Yes <b>."),
    (
        "harmony",
        "",
        false,
        "<|channel|>commentary to=functions.f<|channel|>commentary<|message|>{\"n\": 1",
        "|C f|A {\"n\": 1|E",
    ),
    ("harmony", "", false, "Plain text", "|T Plain text"),
];

#[test]
fn answers_say_what_their_family_means() {
    for (tools, reasoning, inside, text, said) in ANSWERS {
        assert_eq!(fold(&[text], tools, reasoning, *inside), *said, "{tools} {reasoning}: {text}");
    }
}

/// Places between the characters of a text.
fn places(text: &str) -> Vec<usize> {
    text.char_indices().map(|(at, _)| at).chain([text.len()]).collect()
}

#[test]
fn no_cut_changes_what_an_answer_says() {
    for (tools, reasoning, inside, text, said) in ANSWERS {
        let check = |pieces: &[&str]| {
            assert_eq!(fold(pieces, tools, reasoning, *inside), *said, "{tools}: {pieces:?}");
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
        answer in 0..ANSWERS.len(),
        from in any::<prop::sample::Index>(),
        to in any::<prop::sample::Index>(),
        noise in "[<{\\[\"a ,:}\\]/>\n(=)']{0,3}",
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let (tools, reasoning, inside, text, _) = ANSWERS[answer];
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
    fn plain_text_is_passed_on(text in "[a-zé .,!?\n]{1,60}", answer in 0..ANSWERS.len()) {
        let (tools, reasoning, ..) = ANSWERS[answer];
        prop_assume!(tools != "harmony" && reasoning != "gpt_oss" && !text.contains("functools"));
        prop_assert_eq!(fold(&[&text], tools, reasoning, false), format!("|T {text}"));
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
