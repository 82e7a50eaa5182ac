use super::*;
use serde_json::Value as Json;
use stator_api::openai::chat;
use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

const RECORDED: &str = include_str!("../fixtures/templates.json");

fn source(name: &str) -> String {
    let path = format!("{}/fixtures/templates/{name}.jinja", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).expect(&path)
}

fn template(source: &str) -> ChatTemplate {
    let token = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    let special_tokens = vec![token("bos_token", "<bos>"), token("eos_token", "<eos>")];
    ChatTemplate::new(vec![(DEFAULT.to_owned(), source.to_owned())], special_tokens).unwrap()
}

fn render(template: &ChatTemplate, body: &str, now: SystemTime) -> Result<String, PromptError> {
    let request = chat::read(body.as_bytes()).expect(body);
    template.render(request.input.conversation().expect(body), now)
}

/// Renders one user message with `source`.
fn render_hi(source: &str) -> Result<String, PromptError> {
    let body = r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;
    render(&template(source), body, UNIX_EPOCH)
}

#[test]
fn every_recorded_prompt_is_rendered_as_transformers_does() {
    let recorded: Json = serde_json::from_str(RECORDED).unwrap();
    let now = UNIX_EPOCH + Duration::from_secs_f64(recorded["now"].as_f64().unwrap());
    let cases = recorded["cases"].as_array().unwrap();
    let (mut templates, mut failed) = (BTreeMap::new(), Vec::new());
    for case in cases {
        let name = case["template"].as_str().unwrap();
        let body = body_text(case["case"].as_str().unwrap());
        let template = templates.entry(name).or_insert_with(|| template(&source(name)));
        let rendered = render(template, body, now);
        let agrees = match (&rendered, case["prompt"].as_str(), case["refusal"].as_str()) {
            (Ok(text), Some(prompt), _) => text == prompt,
            (Err(error), None, Some(refusal)) => error.to_string().ends_with(refusal),
            // What is no refusal of the template's is told in our own words.
            (Err(_), None, None) => case["fault"].is_string(),
            _ => false,
        };
        if !agrees {
            let recorded = case.get("prompt").or(case.get("refusal")).or(case.get("fault"));
            failed.push(format!(
                "{name}, {}:\n  recorded {recorded:?}\n  rendered {rendered:?}",
                case["case"]
            ));
        }
    }
    assert!(
        failed.is_empty(),
        "{} of {} cases differ:\n{}",
        failed.len(),
        cases.len(),
        failed.join("\n")
    );
}

/// The recorded body of a case as it stands in the file: a tree would lose the order of its keys.
fn body_text(case: &str) -> &'static str {
    let start =
        RECORDED.find(&format!("\"case\": {}", serde_json::to_string(case).unwrap())).expect(case);
    let body = RECORDED[start..].find("\"body\": ").expect("a case has a body")
        + start
        + "\"body\": ".len();
    let mut values =
        serde_json::Deserializer::from_str(&RECORDED[body..]).into_iter::<serde::de::IgnoredAny>();
    values.next().expect("a body").expect("a body is JSON");
    &RECORDED[body..body + values.byte_offset()]
}

#[test]
fn a_refusal_is_the_clients_fault() {
    let error = render_hi("{{ raise_exception('no ' + messages[0].content) }}").unwrap_err();
    let message = "the chat template refuses the messages: no hi";
    assert_eq!(error, PromptError::Template(message.into()));
}

#[test]
fn a_division_by_zero_is_an_error_and_no_panic() {
    for (divisor, expected) in
        [("2", Some("True")), ("4", Some("False")), ("0", None), ("0.0", None)]
    {
        let rendered = render_hi(&format!("{{{{ 6 is divisibleby {divisor} }}}}"));
        match expected {
            Some(text) => assert_eq!(rendered.unwrap(), text, "{divisor}"),
            None => assert!(rendered.unwrap_err().to_string().contains("divided by zero")),
        }
    }
    let smallest = "{{ (-170141183460469231731687303715884105728) is divisibleby -1 }}";
    assert_eq!(render_hi(smallest).unwrap(), "True");
}

#[test]
fn a_template_that_loops_is_stopped() {
    let source =
        "{% for a in range(9999) %}{% for b in range(9999) %}{{ a }}{% endfor %}{% endfor %}";
    assert!(matches!(render_hi(source), Err(PromptError::Template(_))));
}

#[test]
fn a_template_that_recurses_is_stopped() {
    let error = render_hi("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").unwrap_err();
    assert!(error.to_string().contains("recursion"), "{error}");
}

#[test]
fn a_template_that_does_not_compile_is_refused_when_loaded() {
    let error = ChatTemplate::new(vec![(DEFAULT.into(), "\n{% if %}".into())], vec![]).unwrap_err();
    assert!(error.contains("line 2"), "{error}");
}

#[test]
fn requests_with_tools_use_the_template_for_tools() {
    let named = |name: &str, source: &str| (name.to_owned(), source.to_owned());
    let templates =
        vec![named("default", "plain"), named("tool_use", "tools {{ tools | length }}")];
    let template = ChatTemplate::new(templates, vec![]).unwrap();
    let body = |tools| {
        format!(r#"{{"model":"m","messages":[{{"role":"user","content":"hi"}}],"tools":{tools}}}"#)
    };
    assert_eq!(render(&template, &body("[]"), UNIX_EPOCH).unwrap(), "plain");
    let tools = r#"[{"type":"function","function":{"name":"f"}}]"#;
    assert_eq!(render(&template, &body(tools), UNIX_EPOCH).unwrap(), "tools 1");
    let missing = ChatTemplate::new(vec![named("a", ""), named("b", "")], vec![]);
    assert!(missing.unwrap_err().contains("default"));
}

#[test]
fn a_request_cannot_replace_what_the_template_is_given() {
    let body = r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"chat_template_kwargs":{"bos_token":"x"}}"#;
    // A client's own special tokens are its own business, as in `transformers`.
    assert_eq!(render(&template("{{ bos_token }}"), body, UNIX_EPOCH).unwrap(), "x");
    let body = body.replace("bos_token", "messages");
    assert!(chat::read(body.as_bytes()).is_err());
}

#[test]
fn generation_tags_keep_their_whitespace_control() {
    assert_eq!(
        replace_generation_tags("a {%- generation -%} b {% endgeneration%}{%if x%}"),
        "a {%- with generation_scope = true -%} b {% endwith%}{%if x%}"
    );
    assert_eq!(replace_generation_tags("none {% here"), "none {% here");
}

#[test]
fn a_call_whose_arguments_are_no_object_is_rendered_by_any_template() {
    const PRINTS: &str = "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments }}{% endfor %}{% endfor %}";
    const LISTS: &str = "{% for m in messages %}{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments | items %}{{ k }}={{ v }};{% endfor %}{% endfor %}{% endfor %}";
    const CALLS: &str = "{% for m in messages %}{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}{% endfor %}{% endfor %}";
    let check = |source: &str, arguments: &str, expected: &str| {
        let body = serde_json::json!({"model": "m", "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": null, "tool_calls": [{"id": "c", "type": "function",
                "function": {"name": "f", "arguments": arguments}}]},
            {"role": "tool", "tool_call_id": "c", "content": "invalid JSON"}]});
        let rendered = render(&template(source), &body.to_string(), UNIX_EPOCH);
        assert_eq!(rendered.as_deref(), Ok(expected), "{source} {arguments}");
    };
    let cut = r#"{"path":"a.txt","text":"hel"#;
    check(PRINTS, cut, cut);
    for source in [LISTS, CALLS] {
        check(source, cut, "path=a.txt;text=hel;");
        check(source, "look here", "arguments=look here;");
        check(source, r#"{"a":1}"#, "a=1;");
    }
}

#[test]
fn numbers_of_arguments_are_printed_as_python_prints_them() {
    const PRINTS: &str = "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% for k, v in c.function.arguments | items %} {{ k }}={{ v }}{% endfor %}{% endfor %}{% endfor %}";
    // As Python prints the same text.
    for (number, printed) in [
        ("18446744073709551616", "18446744073709551616"),
        ("-9223372036854775809", "-9223372036854775809"),
        (
            "115792089237316195423570985008687907853269984665640564039457584007913129639935",
            "115792089237316195423570985008687907853269984665640564039457584007913129639935",
        ),
        ("12345678901234567890", "12345678901234567890"),
        ("-0", "0"),
        ("1e3", "1000.0"),
        ("1.0", "1.0"),
        ("1e20", "1e+20"),
        ("0.1", "0.1"),
        ("123456789012345678901.0", "1.2345678901234568e+20"),
    ] {
        let arguments = format!(r#"{{"n":{number}}}"#);
        let body = serde_json::json!({"model": "m", "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": null, "tool_calls": [{"id": "c", "type": "function",
                "function": {"name": "f", "arguments": arguments}}]}]});
        let rendered = render(&template(PRINTS), &body.to_string(), UNIX_EPOCH);
        assert_eq!(rendered, Ok(format!("{{\"n\": {printed}}} n={printed}")), "{number}");
    }
}
