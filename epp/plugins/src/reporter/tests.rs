use super::parse::parse;
use crate::settings::PluginSettings;
use crate::testing::check_errors;
use crate::{BuildContext, build};
use proptest::prelude::*;
use serde_json::{Value, json};

fn usage(path: &str) -> Option<f64> {
    match path {
        "prompt_tokens" => Some(10.0),
        "completion_tokens" => Some(4.0),
        "prompt_tokens_details.cached_tokens" => Some(8.0),
        _ => None,
    }
}

fn check(attribute: Value, wanted: Option<i64>) {
    let mut context = BuildContext::default();
    let parameters = json!({"attributes": [attribute]});
    let built = build("request-attribute-reporter", "reporter", &parameters, &mut context);
    built.expect("the parameters are right");
    let Some(PluginSettings::AttributeReporter(reporter)) = context.settings.get("reporter") else {
        panic!("a reporter leaves its settings");
    };
    let reported = reporter.report(&usage);
    assert_eq!(reported.as_ref().map(|reported| reported.value), wanted);
    if let Some(reported) = reported {
        assert_eq!((&*reported.namespace, &*reported.name), ("envoy.lb", "cost"));
    }
}

fn check_expression(expression: &str, wanted: Option<i64>) {
    check(json!({"key": {"name": "cost"}, "expression": expression}), wanted);
}

#[test]
fn expressions_come_to_numbers() {
    check_expression("usage.completion_tokens", Some(4));
    check_expression("usage.prompt_tokens + 2*usage.completion_tokens", Some(18));
    check_expression("usage.prompt_tokens - usage.completion_tokens - 1", Some(5));
    check_expression("(usage.prompt_tokens + 2) * 3 % 7", Some(1));
    check_expression("-usage.prompt_tokens / 4.0", Some(-2));
    check_expression("usage.prompt_tokens - usage.prompt_tokens_details.cached_tokens", Some(2));
    check_expression("has(usage.audio) ? usage.audio : usage.prompt_tokens", Some(10));
    check_expression("usage.prompt_tokens > 5 && !(1 == 2) ? 7 : 8", Some(7));
}

#[test]
fn nothing_is_reported_of_zero_or_of_what_is_absent() {
    check_expression("usage.prompt_tokens - 10", None);
    check_expression("usage.audio + 1", None);
    check_expression("usage.prompt_tokens / 0", None);
}

#[test]
fn a_condition_can_forbid_the_report() {
    let with = |condition: &str| json!({"key": {"name": "cost"}, "expression": "1", "condition": condition});
    check(with("usage.prompt_tokens >= 10"), Some(1));
    check(with("usage.prompt_tokens != 10 || false"), None);
    check(with("usage.audio > 1"), None);
    check(with("usage.audio > 1 || has(usage.prompt_tokens)"), Some(1));
}

#[test]
fn what_is_beyond_the_subset_is_refused() {
    let check = |expression: &str, wanted: &str| {
        let attribute = json!({"key": {"name": "cost"}, "expression": expression});
        let wanted = format!("attributes[0].expression: {wanted}");
        check_errors("request-attribute-reporter", json!({"attributes": [attribute]}), &[&wanted]);
    };
    check("int(usage.a)", "\"int(usage.a)\" at byte 0 is not supported");
    check("usage.a.map(x, x)", "\"usage.a.map(x, x)\" at byte 0 is not supported");
    check("usage", "\"usage\" at byte 0 is not supported");
    check("usage.a +", "ends too early");
    check("usage.a b", "\"b\" at byte 8 is not supported");
    check("usage.a && true", "the part before byte 15 is not true or false");
    check("usage.a > 1", "\"usage.a > 1\" is not a number");
    check(&"(".repeat(100), "nests deeper than 32");
}

#[test]
fn there_is_one_attribute_with_a_name() {
    let check = |parameters, wanted: &[&str]| {
        check_errors("request-attribute-reporter", parameters, wanted);
    };
    check(Value::Null, &["attributes: must have one entry, there are 0"]);
    check(
        json!({"attributes": [{"key": {}, "condition": "1"}]}),
        &[
            "attributes[0].key.name: is required",
            "attributes[0].expression: is required",
            "attributes[0].condition: \"1\" is not true or false",
        ],
    );
}

proptest! {
    /// Whatever is written as an expression, it is read or refused.
    #[test]
    fn any_text_is_an_expression_or_none(text in "[-+*/%<>=!&|?:(). a-z0-9]{0,40}") {
        if let Ok(expression) = parse(&text) {
            let _ = (expression.number(&usage), expression.holds(&usage));
        }
    }
}
