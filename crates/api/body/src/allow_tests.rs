use super::*;
use crate::screening::{NAME_MAX_BYTES, NAMES_MAX};
use crate::{Editor, scan};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// The body as it goes on, with the counts of steering and unknown fields.
fn screened(body: &str, named: &[&str]) -> Result<(String, u64, u64), ScreenError> {
    let fields = scan(body.as_bytes()).expect("a sound body");
    let named: Vec<String> = named.iter().map(|name| (*name).to_owned()).collect();
    let rules = FieldRules::new(&named).expect("an operator may name them");
    let screening = rules.screen(body.as_bytes(), &fields)?;
    let (steering, unknown) = (screening.steering(), screening.unknown());
    let mut editor = Editor::new(body.as_bytes(), &fields);
    editor.screen(&screening);
    let left = editor.finish().apply(body.as_bytes());
    Ok((String::from_utf8(left).expect("it stays text"), steering, unknown))
}

#[track_caller]
fn check(body: &str, expected: &str) {
    assert_eq!(screened(body, &[]).expect("it is screened").0, expected);
}

#[test]
fn the_lists_are_sorted_and_share_nothing() {
    assert!(ALLOWED.is_sorted());
    for name in STEERING.iter().chain(PRIVILEGED).chain([&EXTENSIONS, &"bootstrap_host"]) {
        assert!(ALLOWED.binary_search(name).is_err(), "{name}");
    }
}

#[test]
fn steering_and_privileged_and_unknown_fields_are_removed() {
    let more = ["bootstrap_host", "bootstrap_port", "bootstrap_room", "made_up", "nvext"];
    for name in STEERING.iter().chain(PRIVILEGED).chain(&more) {
        let body = format!(r#"{{"model":"m", "{name}":{{"do_remote_prefill":true}},"n":1}}"#);
        check(&body, r#"{"model":"m", "n":1}"#);
    }
    let body = r#"{"rid":1,"made_up":2,"priority":3,"n":1}"#;
    assert_eq!(screened(body, &[]), Ok((r#"{"n":1}"#.to_owned(), 2, 1)));
}

#[test]
fn an_operator_may_name_further_fields_but_none_that_steer() {
    let body = r#"{"made_up":1,"sampling_params":{"priority":2},"priority":3}"#;
    let (left, ..) = screened(body, &["made_up", "priority"]).expect("it is screened");
    assert_eq!(left, body);
    let (left, ..) =
        screened(r#"{"made_up":1,"priority":3,"rid":4}"#, &["*"]).expect("it is screened");
    assert_eq!(left, r#"{"made_up":1}"#);
    for name in ["kv_transfer_params", "bootstrap_room", "rid"] {
        let refused = FieldRules::new(&[name.to_owned()]).expect_err("it steers").to_string();
        assert!(refused.contains(name), "{refused}");
    }
}

#[test]
fn escapes_and_repetitions_hide_nothing() {
    check(r#"{"kv_transfer\u005fparams":1,"n":2,"\u006Bv_transfer_params":3}"#, r#"{"n":2}"#);
    check(r#"{"\u0062\u006f\u006f\u0074strap\u005Froom":1}"#, "{}");
    check(
        r#"{"sampling_params":{"r\u0069d":1},"sampling_params":{"rid":2,"n":1}}"#,
        r#"{"sampling_params":{},"sampling_params":{"n":1}}"#,
    );
}

#[test]
fn parameters_of_parameters_are_looked_into() {
    check(
        r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{}},"n":1}}"#,
        r#"{"sampling_params":{"extra_args":{},"n":1}}"#,
    );
    check(r#"{"vllm_xargs":{"a":1,"kv_transfer_params":"x"}}"#, r#"{"vllm_xargs":{"a":1}}"#);
    let deep = "{\"sampling_params\":".to_owned() + &"{\"extra_args\":".repeat(5);
    let deep = deep + "{\"bootstrap_room\":1}" + &"}".repeat(6);
    assert_eq!(screened(&deep, &[]), Err(ScreenError::TooDeep));
}

#[test]
fn other_bytes_stay_as_they_came() {
    for body in [
        r#"{ "model" : "m","n":18446744073709551615,"user":"nvext", "temperature":1e0}"#,
        r#"{"messages":[{"content":"what are kv_transfer_params? \"bootstrap_room\""}]}"#,
        r#"{"tools":[{"parameters":{"properties":{"bootstrap_host":{},"rid":{}}}}]}"#,
        "{}",
    ] {
        check(body, body);
    }
}

#[test]
fn removed_fields_are_told_with_what_is_around_them() {
    let body =
        br#"{"vllm_xargs":{"extra_args":{"rid":0},"priority":0},"made_up":0,"lora_path":null}"#;
    let fields = scan(body).expect("a sound body");
    let screening = FieldRules::default().screen(body, &fields).expect("it is screened");
    let told = screening.fields().iter().map(|field| (&*field.name, field.kind, field.asks));
    let expected = [
        ("vllm_xargs.extra_args.rid", RemovedKind::Steering, true),
        ("vllm_xargs.priority", RemovedKind::Privileged, false),
        ("made_up", RemovedKind::Unknown, true),
        ("lora_path", RemovedKind::Privileged, false),
    ];
    assert_eq!(told.collect::<Vec<_>>(), expected);
}

#[test]
fn names_of_removed_fields_are_few_and_short() {
    let body: String = (0..40).map(|n| format!(",\"{n}{}\":1", "ä".repeat(50))).collect();
    let body = format!("{{\"n\":1{body}}}");
    let fields = scan(body.as_bytes()).expect("a sound body");
    let screening = FieldRules::default().screen(body.as_bytes(), &fields).expect("it is screened");
    assert_eq!((screening.fields().len(), screening.unknown()), (NAMES_MAX, 40));
    assert!(screening.fields().iter().all(|field| field.name.len() <= NAME_MAX_BYTES));
    let many: String = (0..2000).map(|n| format!(",\"{n}\":1")).collect();
    let many = format!("{{\"n\":1{many}}}");
    let fields = scan(many.as_bytes()).expect("a sound body");
    let refused = FieldRules::default().screen(many.as_bytes(), &fields);
    assert!(matches!(refused, Err(ScreenError::TooManyFields(1024))), "{refused:?}");
}

fn any_value() -> impl Strategy<Value = Value> {
    let names = STEERING.iter().chain(PRIVILEGED).chain(CONTAINERS);
    let names: Vec<_> = names.chain(&["bootstrap_x", "a", "n", "model"]).copied().collect();
    let leaf = prop_oneof![Just(json!(1)), Just(json!("_rank")), Just(json!([{}]))];
    leaf.prop_recursive(3, 12, 4, move |inner| {
        let member = (proptest::sample::select(names.clone()), inner);
        vec(member, 0..4).prop_map(|members| {
            Value::Object(members.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())
        })
    })
}

/// Screens a tree, in the obvious way.
fn model(tree: &mut Map<String, Value>, outer: bool) {
    let allowed = ["model", "n", "sampling_params", "vllm_xargs"];
    tree.retain(|name, _| match outer {
        true => allowed.contains(&name.as_str()),
        false => {
            let name = name.as_str();
            !STEERING.contains(&name) && !PRIVILEGED.contains(&name) && name != "bootstrap_x"
        }
    });
    for (name, value) in tree {
        if let (true, Value::Object(inner)) = (CONTAINERS.contains(&name.as_str()), value) {
            model(inner, false);
        }
    }
}

proptest! {
    #[test]
    fn agrees_with_a_tree(value in any_value(), pretty in any::<bool>()) {
        let Value::Object(mut tree) = value else { return Ok(()) };
        let body = match pretty {
            true => serde_json::to_string_pretty(&tree),
            false => serde_json::to_string(&tree),
        };
        let (left, ..) = screened(&body.expect("it can be written"), &[]).expect("it is sound");
        model(&mut tree, true);
        let left: Value = serde_json::from_str(&left).expect("it stays sound");
        prop_assert_eq!(left, Value::Object(tree));
    }
}
