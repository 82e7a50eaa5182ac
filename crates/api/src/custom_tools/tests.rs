//! Grammars of custom tools, as EBNF and as what they refuse.

use super::lark::of_lark;
use super::regex::of_regex;
use crate::conversation::{Content, Message, Role};
use crate::json::Json;

/// The grammar with which an agent writes changes of files.
const PATCH: &str = r#"
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

%import common.LF
"#;

fn lark(definition: &str) -> String {
    of_lark(definition).unwrap_or_else(|fault| panic!("{definition}: {fault}"))
}

#[test]
fn a_grammar_is_written_in_ebnf() {
    for (definition, ebnf) in [
        (r#"start: "a" | "b""#, "root ::= r1\nr1 ::= (\"a\" | \"b\")\n"),
        ("start: A?\nA: \"x\"~2..3", "root ::= r1\nr1 ::= (r2)?\nr2 ::= (\"x\"){2,3}\n"),
        (
            "?start.2: [b] (\"c\" b)*   // words\n  | // nothing\nb: \"1\"..\"3\" -> digit # end\n",
            "root ::= r1\nr1 ::= (((r2)? ((\"c\" r2))*) | \"\")\nr2 ::= ([1-3])\n",
        ),
        (r#"start: "A"i"#, "root ::= r1\nr1 ::= ([Aa])\n"),
        ("start: /a+?b/", "root ::= r1\nr1 ::= ((\"a\")+ \"b\")\n"),
    ] {
        assert_eq!(lark(definition).replacen("r0 ::= \"\"\n", "", 1), ebnf, "{definition}");
    }
}

#[test]
fn what_is_ignored_may_stand_around_words() {
    let ebnf = lark("start: \"a\" B\nB: \"b\" \"c\"\n%ignore \" \"");
    let expected = "root ::= r3\nr0 ::= ((\" \"))*\nr1 ::= ((\"a\" r0) (r2 r0))\n\
                    r2 ::= (\"b\" \"c\")\nr3 ::= (r0 r1)\n";
    assert_eq!(ebnf, expected);
}

#[test]
fn characters_that_json_escapes_are_their_escapes() {
    for (expression, ebnf) in [
        ("a\"\\\\\\n\\x01", r#""a\\\"\\\\\\n\\u0001""#),
        ("[a\"\\n]", r#"([a] | "\\n" | "\\\"")"#),
        (".", r#"([\x20-\x21\x23-\x5b\x5d-\U0010ffff]"#),
        ("é", "\"\\u00e9\""),
    ] {
        let written = of_regex(expression).expect(expression);
        let whole = format!("root ::= r0\nr0 ::= {ebnf}");
        assert!(written.starts_with(&whole), "{expression}: {written}");
    }
}

#[test]
fn the_grammar_of_patches_is_held() {
    let ebnf = lark(PATCH);
    assert!(ebnf.contains(r#""*** Begin Patch""#) && ebnf.contains(r#""\\n""#), "{ebnf}");
}

#[test]
fn a_fault_has_its_place() {
    for (definition, fault) in [
        ("", "line 1, column 1: the grammar has no rule \"start\""),
        ("start: a\na: \"b\" c", "line 2, column 8: nothing defines c"),
        ("start: \"a", "line 1, column 8: a text is not closed"),
        ("start: (\"a\"", "line 1, column 8: a bracket is not closed"),
        ("start: \"a\"\nstart: \"b\"", "line 2, column 1: start is there twice"),
        ("start: /a(?=b)/", "line 1, column 10: look-around"),
        ("start: \"é\" /[/", "line 1, column 13: "),
        ("start: /a\\b/", "line 1, column 9: anchors"),
        ("start: x{\"a\"}\nx{y}: y", "line 1, column 9: templates are not supported"),
        ("%import python.NAME", "line 1, column 9: only common"),
        ("%import common.NAME", "line 1, column 16: common has no NAME here"),
        ("%declare A", "line 1, column 1: only %import and %ignore"),
        ("start[lazy]: \"a\"", "line 1, column 6: attributes"),
        ("start: \"a\"~3..2", "line 1, column 12: a count"),
        ("start: A\nA: b\nb: \"x\"", "line 2, column 4: a terminal cannot hold the rule b"),
        ("start: \"a\" = \"b\"", "line 1, column 12: '=' means nothing here"),
    ] {
        let error = of_lark(definition).expect_err(definition).to_string();
        assert!(error.starts_with(fault), "{definition:?}: {error}");
    }
    let error = of_regex("ab(?!c)").expect_err("look-around").to_string();
    assert!(error.starts_with("line 1, column 3: look-around"), "{error}");
}

#[test]
fn large_grammars_are_refused() {
    let deep = format!("start: {}\"a\"{}", "(".repeat(99), ")".repeat(99));
    assert!(of_lark(&deep).is_err());
    let wide = format!("start: {}", "/\\w/ ".repeat(9000));
    let error = of_lark(&wide).expect_err("too large").to_string();
    assert!(error.contains("larger than"), "{error}");
}

#[test]
fn calls_in_a_conversation_are_a_function_s() {
    let calls = r#"[{"id":"c","type":"custom","custom":{"name":"f","input":"a\n"}},{"id":"d"}]"#;
    let calls: Json<'_> = serde_json::from_str(calls).expect("JSON");
    let extra = vec![("tool_calls".into(), calls)];
    let mut message = Message { role: Role::Assistant, content: Content::Null, extra };
    super::settle_calls(&mut message, "messages[1]").expect("sound calls");
    let settled = serde_json::to_string(&message.extra[0].1).expect("JSON");
    let expected = r#"[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"input\":\"a\\n\"}"}},{"id":"d"}]"#;
    assert_eq!(settled, expected);
    let call = r#"[{"type":"custom","custom":{"name":"f"}}]"#;
    message.extra[0].1 = serde_json::from_str(call).expect("JSON");
    let error = super::settle_calls(&mut message, "messages[1]").expect_err("no input");
    assert_eq!(error.param.as_deref(), Some("messages[1].tool_calls[0].custom.input"));
}
