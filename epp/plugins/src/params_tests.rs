use super::*;
use serde_json::json;

fn check(value: Value, wanted: &[&str]) {
    let read = read(&value, |p| {
        p.flag("on", true);
        p.number("share", 0.5, Bound::Within(0.0, 1.0));
        p.number("power", 1.0, Bound::Above(0.0));
        p.number("slack", 0.0, Bound::AtLeast(0.0));
        p.whole("port", 8000, 1..=65535);
        p.whole("count", 1, 1..=u64::MAX);
        p.choice("mode", &[("least", 0), ("most", 1)]);
        p.duration("wait", Duration::from_secs(1));
        p.texts("names");
        p.text_map("labels");
        p.within("inner", |p| p.text("url"));
        p.list("items", |p| p.required_text("name"));
    });
    assert_eq!(read.err().unwrap_or_default(), wanted);
}

#[test]
fn parameters_in_range_have_no_errors() {
    check(Value::Null, &[]);
    check(json!({"on": false, "share": 1, "wait": "1m30s", "names": ["a"], "mode": "most"}), &[]);
    check(json!({"inner": {"url": "x"}, "items": [{"name": "y"}], "labels": {"a": "b"}}), &[]);
}

#[test]
fn every_wrong_parameter_is_named_with_its_path() {
    check(json!([]), &["parameters: not an object"]);
    check(
        json!({"on": 1, "share": 1.5, "power": 0, "slack": -1, "port": 0, "count": -3}),
        &[
            "on: 1 is not true or false",
            "share: 1.5 is not in 0..=1",
            "power: 0 is not above 0",
            "slack: -1 is less than 0",
            "port: 0 is not in 1..=65535",
            "count: -3 is less than 1",
        ],
    );
    check(
        json!({"mode": "some", "wait": "soon", "names": "a", "labels": [], "inner": 3}),
        &[
            "mode: \"some\" is none of least, most",
            "wait: \"soon\" is not a duration such as \"500ms\"",
            "names: \"a\" is not a list of texts",
            "labels: [] is not an object of texts",
            "inner: is not an object",
        ],
    );
}

#[test]
fn what_nobody_asked_for_is_an_error() {
    check(
        json!({"inner": {"uri": "x"}, "items": [{}, 7], "sahre": 1}),
        &[
            "inner.uri: unknown parameter, known are url",
            "items[0].name: is required",
            "items[1]: is not an object",
            "sahre: unknown parameter, known are on, share, power, slack, port, count, mode, \
             wait, names, labels, inner, items",
        ],
    );
    let none = read(&json!({"a": 1}), |_| ()).expect_err("nothing was asked for");
    assert_eq!(none, ["a: unknown parameter, there are none"]);
}
