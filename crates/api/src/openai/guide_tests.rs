use super::*;
use crate::openai::completion;
use proptest::prelude::*;

/// The form that a completion with these members asks for.
fn guide(members: &str) -> Result<Option<(&'static str, Form)>, ApiError> {
    let body = format!(r#"{{"model":"m","prompt":"p",{members}}}"#);
    let options = completion::read(body.as_bytes())?.options;
    Ok(options.guide_field.zip(options.sampling.form().cloned()))
}

#[track_caller]
fn check(members: &str, field: &'static str, expected: Form) {
    let found = guide(members).unwrap_or_else(|error| panic!("{members}: {error}"));
    assert_eq!(found, Some((field, expected)), "{members}");
}

#[track_caller]
fn check_refused(members: &str, status: u16, param: &str, message: &str) {
    let error = guide(members).expect_err(members);
    assert_eq!(error.status.as_u16(), status, "{members}: {error}");
    assert_eq!(error.param.as_deref(), Some(param), "{members}: {error}");
    assert!(error.message.contains(message), "{members}: {error}");
}

fn schema(text: &str) -> Form {
    Form::JsonSchema(text.to_owned())
}

#[test]
fn every_way_to_ask_for_a_form_is_taken() {
    let field = "response_format";
    check(r#""response_format":{"type":"json_object"}"#, field, Form::any_object());
    let format = r#""response_format":{"type":"json_schema","json_schema":
        {"name":"n","strict":true,"schema":{"type":"object","properties":{"b":{},"a":{}}}}}"#;
    check(format, field, schema(r#"{"type":"object","properties":{"b":{},"a":{}}}"#));
    let tag = r#"{"type":"structural_tag","format":{"type":"any_text"}}"#;
    check(&format!(r#""response_format":{tag}"#), field, Form::StructuralTag(tag.into()));

    let field = "structured_outputs";
    check(r#""structured_outputs":{"json":{"a":1.5}}"#, field, schema(r#"{"a":1.5}"#));
    check(r#""structured_outputs":{"json":"{ \"a\":1}"}"#, field, schema(r#"{ "a":1}"#));
    check(
        r#""structured_outputs":{"regex":"a+","json":null,"disable_any_whitespace":false}"#,
        field,
        Form::Regex("a+".into()),
    );
    let choices = || Form::one_of(vec!["a".into(), "b".into()]);
    check(r#""structured_outputs":{"choice":["a","b"]}"#, field, choices());
    check(r#""structured_outputs":{"grammar":"g"}"#, field, Form::Grammar("g".into()));
    check(r#""structured_outputs":{"json_object":true}"#, field, Form::any_object());
    let quoted = r#""structured_outputs":{"structural_tag":"{}"}"#;
    check(quoted, field, Form::StructuralTag("{}".into()));

    check(r#""guided_json":{"type":"object"}"#, "guided_json", schema(r#"{"type":"object"}"#));
    check(r#""guided_regex":"a|b""#, "guided_regex", Form::Regex("a|b".into()));
    check(r#""guided_choice":["a","b"]"#, "guided_choice", choices());
    check(r#""guided_grammar":"g""#, "guided_grammar", Form::Grammar("g".into()));
    check(r#""json_schema":"{}""#, "json_schema", schema("{}"));
    check(r#""regex":"r""#, "regex", Form::Regex("r".into()));
    check(r#""ebnf":"g""#, "ebnf", Form::Grammar("g".into()));
    check(r#""structural_tag":"{}""#, "structural_tag", Form::StructuralTag("{}".into()));
}

#[test]
fn what_asks_for_nothing_is_nothing() {
    let free = [
        r#""response_format":null"#,
        r#""response_format":{"type":"text"}"#,
        r#""structured_outputs":{}"#,
        r#""structured_outputs":{"json_object":false,"choice":[]}"#,
        r#""guided_json":null,"guided_regex":"","guided_choice":[],"json_schema":"""#,
        r#""response_format":{"type":"text"},"structured_outputs":null"#,
    ];
    for members in free {
        assert_eq!(guide(members), Ok(None), "{members}");
    }
}

#[test]
fn what_is_no_form_is_refused_by_name() {
    let big = "x".repeat(GUIDE_MAX_BYTES + 1);
    let deep = format!("{}{}", r#"{"a":"#.repeat(64), format_args!("{{}}{}", "}".repeat(64)));
    let many = vec!["\"x\""; GUIDE_CHOICES_MAX + 1].join(",");
    let path = "response_format.json_schema.schema";
    let cases = [
        (r#""response_format":{"type":"grammar"}"#.to_owned(), "response_format", "\"grammar\""),
        (r#""response_format":{}"#.to_owned(), "response_format", "\"null\""),
        (r#""response_format":{"type":"json_schema"}"#.to_owned(), path, path),
        (
            r#""response_format":{"type":"json_schema","json_schema":{"schema":[]}}"#.to_owned(),
            path,
            "must be an object",
        ),
        (r#""structured_outputs":3"#.to_owned(), "structured_outputs", "must be an object"),
        (
            r#""structured_outputs":{"whitespace_pattern":"x"}"#.to_owned(),
            "structured_outputs.whitespace_pattern",
            "is not supported",
        ),
        (
            r#""structured_outputs":{"json_object":1}"#.to_owned(),
            "structured_outputs.json_object",
            "must be a boolean",
        ),
        (r#""guided_json":"{""#.to_owned(), "guided_json", "is not valid JSON"),
        (r#""guided_json":"[]""#.to_owned(), "guided_json", "must be an object"),
        (
            format!(r#""guided_json":{deep}"#),
            "guided_json",
            "nests 65 levels deep, the limit is 64",
        ),
        (format!(r#""guided_json":{{"a":"{big}"}}"#), "guided_json", "bytes, the limit is 65536"),
        (format!(r#""regex":"{big}""#), "regex", "has 65537 bytes, the limit is 65536"),
        (r#""guided_regex":7"#.to_owned(), "guided_regex", "must be a string"),
        (r#""guided_choice":["a",""]"#.to_owned(), "guided_choice", "guided_choice[1] is empty"),
        (r#""guided_choice":[1]"#.to_owned(), "guided_choice", "guided_choice[0] must be a string"),
        (r#""guided_choice":{}"#.to_owned(), "guided_choice", "must be a list of strings"),
        (format!(r#""guided_choice":[{many}]"#), "guided_choice", "1025 texts, the limit is 1024"),
    ];
    for (members, param, message) in cases {
        check_refused(&members, 400, param, message);
    }
}

#[test]
fn an_answer_has_one_form() {
    check_refused(r#""regex":"a","ebnf":"b""#, 422, "ebnf", "regex and ebnf each");
    let both = r#""structured_outputs":{"json":{},"regex":"a"}"#;
    check_refused(both, 422, "structured_outputs", "several forms");
}

proptest! {
    /// A schema reaches the engines with the meaning it had.
    #[test]
    fn schemas_are_written_as_they_were_read(
        number in any::<i32>().prop_map(|n| f64::from(n) / 8.0),
        (signed, unsigned) in any::<(i64, u64)>(),
        (key, text) in any::<(String, String)>(),
    ) {
        let value = serde_json::json!({
            "z": [number, signed, unsigned, null, true],
            (key): { "text": text },
        });
        let members = format!(r#""guided_json":{value}"#);
        let Some((_, Form::JsonSchema(written))) = guide(&members).unwrap() else {
            panic!("{members}");
        };
        prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&written).unwrap(), value);
    }
}
