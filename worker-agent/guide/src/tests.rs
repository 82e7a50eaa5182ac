//! Guides over a vocabulary of bytes and a few words.

use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};
use stator_protos::worker::ThoughtLimit;
use stator_protos::worker::guide::Form;

const EOS: u32 = 256;

/// Single bytes, an end, a special marker, and a few words of several bytes.
fn factory() -> GuideFactory {
    let mut tokens: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
    tokens.extend([Vec::new(), Vec::new()]);
    for word in ["{\"", "\": ", "\", \"", "true", "name", "<tool", "_call>\n", " 12", "}\n", "é"] {
        tokens.push(word.as_bytes().to_vec());
    }
    let special = vec![(EOS, "<|end|>".to_owned()), (EOS + 1, "<|tool|>".to_owned())];
    GuideFactory::new(tokens, special, &[EOS]).expect("a vocabulary")
}

fn bytes(token: u32) -> Vec<u8> {
    match token {
        0..=255 => vec![token as u8],
        257 => b"<|tool|>".to_vec(),
        _ => {
            let words =
                ["{\"", "\": ", "\", \"", "true", "name", "<tool", "_call>\n", " 12", "}\n", "é"];
            words[token as usize - 258].as_bytes().to_vec()
        }
    }
}

/// An answer, each token of which `choose` draws among those allowed; none past 2000 tokens.
fn answer(mut guide: Guide, mut choose: impl FnMut(&[u32]) -> u32) -> Option<String> {
    let mut out = Vec::new();
    for _ in 0..2000 {
        let allowed: Vec<u32> = (0..268).filter(|id| guide.mask().allows(*id)).collect();
        assert!(!allowed.is_empty(), "{:?}", String::from_utf8_lossy(&out));
        let token = choose(&allowed);
        guide.advance(token);
        if token == EOS {
            return Some(String::from_utf8(out).expect("text"));
        }
        out.extend(bytes(token));
    }
    None
}

/// Whether a text is an answer of the form.
fn accepts(form: &Form, text: &str) -> bool {
    let mut guide = factory().compile(form).unwrap_or_else(|error| panic!("{form:?}: {error}"));
    for byte in text.bytes() {
        if !guide.mask().allows(byte.into()) {
            return false;
        }
        guide.advance(byte.into());
    }
    guide.mask().allows(EOS)
}

fn tag(format: &Value) -> Form {
    Form::StructuralTag(json!({"type": "structural_tag", "format": format}).to_string())
}

fn call(begin: &str) -> Value {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}},
        "required": ["n"], "additionalProperties": false});
    json!({"type": "tag", "begin": begin, "end": "}\n</tool_call>",
        "content": {"type": "json_schema", "json_schema": schema}})
}

#[test]
fn forms_take_what_they_say() {
    let schema = r#"{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false}"#;
    for (form, good, bad) in [
        (Form::JsonSchema(schema.into()), "{\"a\": 12}", "{\"b\": 1}"),
        (Form::any_object(), "{\"é\": [1, null]}", "[1]"),
        (Form::Regex("[ab]+c".into()), "abac", "abd"),
        (Form::one_of(vec!["yes \"1\"".into(), "no".into()]), "yes \"1\"", "nope"),
        (Form::Grammar("start: \"a\" b+\nb: /[0-9]/ \"x\"".into()), "a1x2x", "a1"),
        (Form::Grammar("root ::= \"a/\" b+\nb ::= [0-9] \"x\"".into()), "a/1x2x", "a/1"),
        (
            Form::Grammar("root ::= \"(\" root \")\" | [a-z]* | \"ab\" \"1\"".into()),
            "((ab1))",
            "((ab1)",
        ),
    ] {
        assert!(accepts(&form, good), "{form:?} {good}");
        assert!(!accepts(&form, bad), "{form:?} {bad}");
    }
}

#[test]
fn structural_tags_hold_calls() {
    let begin = "<tool_call>\n{\"name\": \"f\", \"arguments\": ";
    let forced = json!({"type": "tags_with_separator", "tags": [call(begin)], "separator": "\n",
        "at_least_one": true});
    let one = format!("{begin}{{\"n\": 1}}}}\n</tool_call>");
    assert!(accepts(&tag(&forced), &one));
    assert!(accepts(&tag(&forced), &format!("{one}\n{one}")));
    assert!(!accepts(&tag(&forced), "text"));
    let thought = json!({"type": "sequence", "elements": [
        {"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": "</think>"},
        {"type": "regex", "pattern": "\\n{0,2}"}, forced]});
    assert!(accepts(&tag(&thought), &format!("hm, a < b\n</think>\n{one}")));
    assert!(!accepts(&tag(&thought), &one));
    let free =
        json!({"type": "triggered_tags", "triggers": ["<tool_call>"], "tags": [call(begin)]});
    assert!(accepts(&tag(&free), "just text"));
    assert!(accepts(&tag(&free), &format!("So: {one} and {one}")));
    assert!(!accepts(&tag(&free), "So: <tool_call>\n{\"name\": \"g\""));
    let older = json!({"triggers": ["<f"], "structures": [
        {"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}]});
    assert!(accepts(&Form::StructuralTag(older.to_string()), "x <f>12</f>"));
}

#[test]
fn a_grammar_stands_within_a_tag_in_either_notation() {
    for grammar in [
        "root ::= \"a/\" b+\nb ::= [0-9] \"x\"",
        "root ::= \"a/\" b\nb ::= [0-9] \"x\" b | \"\"",
        "start: \"a/\" b+\nb: /[0-9]/ \"x\"",
    ] {
        let grammar = json!({"type": "grammar", "grammar": grammar});
        let thoughts = json!({"type": "tag", "begin": "<t>", "end": "</t>",
            "content": {"type": "any_text"}});
        let thinking = json!({"type": "sequence", "elements": [thoughts, grammar]});
        let form = tag(&json!({"type": "or", "elements": [thinking, grammar]}));
        for good in ["a/1x2x", "<t>1x a/</t>a/1x", "<t></t>a/0x"] {
            assert!(accepts(&form, good), "{grammar} {good}");
        }
        for bad in ["a/1", "<t>a/1x", "<t></t>", "a/1x<t></t>", "1x"] {
            assert!(!accepts(&form, bad), "{grammar} {bad}");
        }
    }
}

#[test]
fn an_end_may_begin_with_a_special_token() {
    let form = tag(&json!({"type": "sequence", "elements": [
        {"type": "tag", "begin": "t:", "content": {"type": "any_text"}, "end": "<|tool|>go"},
        {"type": "const_string", "value": "x"}]}));
    let mut guide = factory().compile(&form).expect("a sound tag");
    let words = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
    for token in [words("t:any text"), vec![EOS + 1], words("gox")].concat() {
        assert!(guide.mask().allows(token), "{token}");
        guide.advance(token);
    }
    assert!(guide.mask().allows(EOS));
}

#[test]
fn a_marker_that_is_a_special_token_comes_as_that_token() {
    let marked = json!({"type": "tag", "begin": "<|tool|>", "end": "", "content":
        {"type": "const_string", "value": "x"}});
    let mut guide = factory().compile(&tag(&marked)).expect("a sound tag");
    assert!(guide.mask().allows(EOS + 1) && !guide.mask().allows(u32::from(b'<')));
    guide.advance(EOS + 1);
    assert!(guide.mask().allows(u32::from(b'x')));
}

#[test]
fn what_is_not_supported_is_named() {
    let schema = |schema: &str| Form::JsonSchema(schema.into());
    for (form, word) in [
        (schema(r#"{"type":"object","not":{"required":["a"]}}"#), "not"),
        (schema(r#"{"type":"array","uniqueItems":true}"#), "uniqueItems"),
        (schema(r##"{"$ref":"#/$defs/none"}"##), "none"),
        (Form::Regex("(".into()), "("),
        (Form::Regex("a(?=b)".into()), "look"),
        (Form::Grammar("root ::= \"a\" other".into()), "other"),
        (Form::Grammar("root ::= (?= \"a\")".into()), "line 1"),
        (Form::Grammar("start: missing".into()), "missing"),
        (tag(&json!({"type": "nothing"})), "format.type"),
        (tag(&json!({"type": "tag", "begin": 7})), "format.begin"),
    ] {
        let error = factory().compile(&form).expect_err("it is not supported").to_string();
        assert!(error.contains(word), "{form:?}: {error}");
    }
}

/// A guard of thoughts of at most `tokens` tokens, between `<t>` and `</t>`.
fn guard(tokens: u32, inside: bool) -> ThoughtGuard {
    factory().guard(&ThoughtLimit {
        tokens,
        openers: vec!["<t>".into()],
        closers: vec!["</t>".into()],
        end_tokens: b"</t>".iter().copied().map(u32::from).collect(),
        inside,
    })
}

/// The text that comes of a model that writes `wanted`, byte by byte, where it has the choice.
fn guarded(mut guard: ThoughtGuard, wanted: &str) -> String {
    let (mut wanted, mut out) = (wanted.bytes(), Vec::new());
    while let Some(token) = guard.forced().or_else(|| wanted.next().map(u32::from)) {
        guard.advance(token);
        out.push(token as u8);
    }
    String::from_utf8(out).expect("text")
}

#[test]
fn thoughts_end_where_their_bound_is_and_not_before() {
    for (tokens, inside, wanted, expected) in [
        (4, true, "abcdefgh", "abcd</t>efgh"),
        (4, true, "abcd</t>x", "abcd</t></t>x"),
        (9, true, "abcd</t>x", "abcd</t>x"),
        (0, true, "x", "</t>x"),
        (2, false, "\n<t>abc", "\n<t>ab</t>c"),
        (2, false, "<tab> is no marker", "<tab> is no marker"),
        (2, false, "a <t>bcd", "a <t>bcd"),
    ] {
        assert_eq!(guarded(guard(tokens, inside), wanted), expected, "{tokens} {wanted}");
    }
}

#[test]
fn a_fork_goes_its_own_way() {
    let mut one = factory().compile(&Form::Regex("ab|ac".into())).expect("a sound regex");
    one.advance(u32::from(b'a'));
    let mut other = one.clone();
    other.advance(u32::from(b'c'));
    assert!(other.mask().allows(EOS) && !one.mask().allows(EOS));
    let mut logits = vec![0.0; 300];
    one.mask().apply(&mut logits, &[EOS]);
    let left: Vec<_> = (0..300).filter(|id| logits[*id] == 0.0).collect();
    assert_eq!(left, [usize::from(b'b'), usize::from(b'c')]);
    assert_eq!(one.mask().first(), Some(u32::from(b'b')));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A grammar within itself takes what is balanced, and nothing else.
    #[test]
    fn brackets_balance(text in "[()]{0,8}") {
        let grammar = Form::Grammar("root ::= (\"(\" root \")\")*".into());
        let depth = text.chars().try_fold(0_u32, |depth, c| match c {
            '(' => Some(depth + 1),
            _ => depth.checked_sub(1),
        });
        prop_assert_eq!(accepts(&grammar, &text), depth == Some(0));
    }

    /// A finished answer fits its form after any choice of allowed tokens.
    #[test]
    fn answers_are_of_the_form_whatever_is_drawn(draws in proptest::collection::vec(any::<prop::sample::Index>(), 400)) {
        let schema = json!({"type": "object", "required": ["name", "n"], "additionalProperties": false,
            "properties": {"name": {"enum": ["Ann", "Bob \"é\""]}, "n": {"type": "integer", "minimum": 3, "maximum": 77},
            "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}}});
        let guide = factory().compile(&Form::JsonSchema(schema.to_string())).expect("a sound schema");
        let mut draws = draws.into_iter();
        let text = answer(guide, |allowed| match draws.next() {
            Some(draw) => *draw.get(allowed),
            None => *allowed.iter().max().expect("one at least"),
        });
        // Within the white space that is allowed, every answer ends.
        let value: Value = serde_json::from_str(&text.expect("it ends")).expect("JSON");
        prop_assert!(["Ann", "Bob \"é\""].contains(&value["name"].as_str().unwrap_or_default()));
        prop_assert!((3..=77).contains(&value["n"].as_i64().unwrap_or_default()));
        prop_assert!(value["tags"].as_array().is_none_or(|tags| tags.len() <= 2));
    }

    /// The input of a custom tool is a string of JSON whatever is drawn, and what it holds is of the
    /// grammar. The second grammar stands within itself.
    #[test]
    fn inputs_of_custom_tools_are_of_their_grammar(draws in proptest::collection::vec(any::<prop::sample::Index>(), 400)) {
        let lines = r#"root ::= r0
            r0 ::= (("*" ([\x20-\x21\x23-\x5b\x5d-\U0010ffff] | "\\t" | "\\\"" | "\\\\"){1,4} "\\n")){1,3}"#;
        let nested = r#"root ::= r0
            r0 ::= ("\\\"" [ab] "\\\"" | "(" r0 ")")"#;
        for (ebnf, is_nested) in [(lines, false), (nested, true)] {
            let const_string = |value| json!({"type": "const_string", "value": value});
            let form = tag(&json!({"type": "tag", "begin": "<f>", "end": "</f>",
                "content": {"type": "sequence", "elements": [const_string("{\"input\": \""),
                    {"type": "grammar", "grammar": ebnf}, const_string("\"}")]}}));
            let guide = factory().compile(&form).expect("a sound tag");
            let mut draws = draws.iter();
            let text = answer(guide, |allowed| match draws.next() {
                Some(draw) => *draw.get(allowed),
                None => *allowed.iter().max().expect("one at least"),
            });
            let Some(text) = text else { continue };
            let call = text.strip_prefix("<f>").and_then(|text| text.strip_suffix("</f>"));
            let call: Value = serde_json::from_str(call.expect("a call")).expect("JSON");
            let input = call["input"].as_str().expect("text");
            let fits = match is_nested {
                true => ["\"a\"", "\"b\""].contains(&input.trim_matches(['(', ')'])),
                false => input.strip_suffix('\n').expect("lines").split('\n').all(|line| {
                    let chars = line.strip_prefix('*').map_or(0, |line| line.chars().count());
                    (1..=4).contains(&chars)
                }),
            };
            prop_assert!(fits, "{input:?}");
        }
    }
}
