use super::*;
use crate::fields::Field;
use crate::scan_error::DEPTH_MAX;
use proptest::prelude::*;
use serde_json::Value;

/// Checks that a body is taken exactly where serde_json takes it as an object, and that every
/// field is what serde_json reads.
fn check(body: &[u8]) {
    let model = serde_json::from_slice::<Value>(body).ok().filter(Value::is_object);
    let fields = scan(body);
    assert_eq!(fields.is_ok(), model.is_some(), "{}: {fields:?}", body.escape_ascii());
    let (Ok(fields), Some(model)) = (fields, model) else { return };
    for &field in Field::ALL {
        let ours = fields.raw(body, field).map(|raw| {
            serde_json::from_slice::<Value>(raw).expect("the span of a value is a value")
        });
        assert_eq!(ours.as_ref(), model.get(field.name()), "{}", body.escape_ascii());
    }
}

#[track_caller]
fn check_error(body: &str, text: &str) {
    let error = scan(body.as_bytes()).expect_err("the body is wrong");
    assert_eq!(error.to_string(), format!("invalid JSON at byte {text}"));
    check(body.as_bytes());
}

#[test]
fn errors_say_what_and_where() {
    check_error("", "0: the body ends inside a value");
    check_error("no healthy upstream", "0: expected an object");
    check_error(" [1]", "1: expected an object");
    check_error("{\"a\":1", "6: the body ends inside a value");
    check_error("{\"a\":tru", "8: the body ends inside a value");
    check_error("{\"a\":truth}", "5: unexpected character 't'");
    check_error("{\"a\" 1}", "5: unexpected character '1'");
    check_error("{a:1}", "1: expected a key");
    check_error("{\"a\":1,}", "7: expected a key");
    check_error("{\"a\":[1,]}", "8: unexpected character ']'");
    check_error("{\"a\":[1}", "7: unexpected character '}'");
    check_error("{} {}", "3: unexpected bytes after the object");
    check_error("{\"a\":\"b\nc\"}", "7: control character in a string");
    check_error("{\"a\":\"\\x\"}", "6: invalid escape in a string");
    check_error("{\"a\":\"\\uD800\"}", "6: invalid escape in a string");
    check_error("{\"a\":-}", "6: invalid number");
    check_error("{\"a\":1e999}", "5: number out of range");
    check_error("{\"a\":1.}", "7: invalid number");
    let error = scan(b"{\"a\":\"b\xff\"}").expect_err("the string is not UTF-8");
    assert_eq!(error, ScanError { kind: ScanErrorKind::Utf8, at: 7 });
}

#[test]
fn nesting_ends_where_serde_json_ends_it() {
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        for depth in 120..135 {
            let inner = if open == "[" { "" } else { "1" };
            let nested = format!("{}{inner}{}", open.repeat(depth), close.repeat(depth));
            check(format!("{{\"a\":{nested}}}").as_bytes());
        }
    }
    assert_eq!(DEPTH_MAX, 127);
}

#[test]
fn the_last_of_equal_names_counts() {
    check(br#"{"model":"a","n":1,"model":"b","\u006dodel":"c"}"#);
    let body = br#"{"\u006dodel":"c"}"#;
    let fields = scan(body).expect("the body is sound");
    assert_eq!(fields.raw(body, Field::Model), Some(&b"\"c\""[..]));
}

#[test]
fn numbers_are_kept_to_the_letter() {
    for number in [
        "0",
        "-0",
        "1.5e3",
        "1E+2",
        "1e-99999999999",
        "0e99999999999",
        "12345678901234567890123",
        "01",
        "-01",
        "1.e1",
        ".5",
        "+1",
        "1e",
        "1e+",
        "--1",
        "0x1",
        "NaN",
        "Infinity",
        "1e308",
        "1e309",
        "-1e309",
        "0.00001e311",
    ] {
        check(format!("{{\"n\":{number}}}").as_bytes());
    }
    for zeros in [199, 200, 201, 307, 308, 309, 400] {
        check(format!("{{\"n\":1{}}}", "0".repeat(zeros)).as_bytes());
        check(format!("{{\"n\":1{}e-200}}", "0".repeat(zeros)).as_bytes());
    }
}

/// Text that is nearly JSON: the tokens of JSON in any order, with some that are broken.
fn token_soup() -> impl Strategy<Value = String> {
    let token = prop_oneof![
        4 => prop::sample::select(vec!["{", "}", "[", "]", ",", ":", " ", "\n\t"]),
        4 => prop::sample::select(vec!["{\"model\":", "[1", ",2", "]}", "\"a\":", ",\"n\":"]),
        2 => prop::sample::select(vec!["true", "false", "null", "tru", "0", "-1.5e3", "1e999"]),
        2 => prop::sample::select(vec!["\"\"", "\"é\\n\"", "\"\\ud83d\\ude00\"", "\"", "\\", "\u{0}"]),
    ];
    prop::collection::vec(token, 0..14).prop_map(|tokens| format!("{{{}}}", tokens.concat()))
}

/// Any value of JSON, with names of fields among the keys.
pub(crate) fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        "[a-z \"\\\\\n]{0,120}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(any_key(), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

pub(crate) fn any_key() -> impl Strategy<Value = String> {
    let names: Vec<String> = Field::ALL.iter().map(|field| field.name().to_owned()).collect();
    prop_oneof![prop::sample::select(names), any::<String>(), "[a-z\"\\\\]{0,9}"]
}

pub(crate) fn any_object() -> impl Strategy<Value = Value> {
    prop::collection::btree_map(any_key(), any_value(), 0..8)
        .prop_map(|map| Value::Object(map.into_iter().collect()))
}

proptest! {
    #[test]
    fn sound_bodies_are_taken(object in any_object(), pretty in any::<bool>()) {
        let body = if pretty { serde_json::to_vec_pretty(&object) } else { serde_json::to_vec(&object) };
        let body = body.expect("values serialise");
        prop_assert!(scan(&body).is_ok());
        check(&body);
    }

    /// One byte changed, lost or added, anywhere.
    #[test]
    fn damaged_bodies_are_judged_as_serde_json_does(
        object in any_object(), at in any::<prop::sample::Index>(), byte in any::<u8>(), how in 0..4
    ) {
        let mut body = serde_json::to_vec(&object).expect("values serialise");
        let at = at.index(body.len());
        match how {
            0 => body[at] = byte,
            1 => drop(body.remove(at)),
            2 => body.insert(at, byte),
            _ => body.truncate(at),
        }
        check(&body);
    }

    #[test]
    fn token_soup_is_judged_as_serde_json_does(soup in token_soup()) {
        check(soup.as_bytes());
    }

    #[test]
    fn numbers_are_judged_as_serde_json_does(number in "-?[0-9]{0,3}(\\.[0-9]{0,3})?([eE][+-]?[0-9]{0,3})?") {
        check(format!("{{\"n\":{number}}}").as_bytes());
    }

    #[test]
    fn any_bytes_are_answered(body in prop::collection::vec(any::<u8>(), 0..64)) {
        check(&body);
    }
}
