use super::*;
use crate::body::Body;
use crate::scan::scan;
use crate::scan::tests::{any_key, any_object, any_value};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// A body in chunks of `size` bytes.
fn chunked(body: &[u8], size: usize) -> Body {
    let mut chunks = Body::new(body.len());
    for chunk in body.chunks(size.max(1)) {
        chunks.push(Bytes::copy_from_slice(chunk)).expect("the body fits its own length");
    }
    chunks
}

/// Applies an edit to a body in chunks and returns the outcome in one piece.
fn apply(body: &[u8], size: usize, edit: impl FnOnce(&mut Editor<'_>)) -> Vec<u8> {
    let fields = scan(body).expect("the body is sound");
    let mut editor = Editor::new(body, &fields);
    edit(&mut editor);
    let edits = editor.finish();
    let chunks = chunked(body, size);
    let pieces: Vec<Bytes> = edits.pieces(&chunks, 7).collect();
    assert!(pieces.iter().all(|piece| (1..=7).contains(&piece.len())));
    let edited = pieces.concat();
    assert_eq!(edited.len(), edits.edited_len(body.len()));
    edited
}

#[track_caller]
fn check(body: &str, edit: impl FnOnce(&mut Editor<'_>), expected: &str) {
    let edited = apply(body.as_bytes(), 3, edit);
    assert_eq!(String::from_utf8_lossy(&edited), expected);
}

#[test]
fn the_model_is_replaced_in_place() {
    let edit = |editor: &mut Editor<'_>| editor.set_string(Field::Model, "a\"b");
    check(
        r#"{ "seed" : 9007199254740993, "model" : "old" ,"a":1.0}"#,
        edit,
        r#"{ "seed" : 9007199254740993, "model" : "a\"b" ,"a":1.0}"#,
    );
    let edit = |editor: &mut Editor<'_>| editor.set_string(Field::Model, "m");
    check("{}", edit, r#"{"model":"m"}"#);
    check(" { } ", edit, r#" {"model":"m" } "#);
    check("{\"a\":1\n}", edit, "{\"a\":1,\"model\":\"m\"\n}");
}

#[test]
fn token_data_joins_what_nvext_has() {
    let edit = |editor: &mut Editor<'_>| editor.merge(Field::Nvext, "token_data", "[1,2]");
    check(r#"{"a":1}"#, edit, r#"{"a":1,"nvext":{"token_data":[1,2]}}"#);
    check(r#"{"nvext":{}}"#, edit, r#"{"nvext":{"token_data":[1,2]}}"#);
    check(r#"{"nvext":null}"#, edit, r#"{"nvext":{"token_data":[1,2]}}"#);
    check(r#"{"nvext":{"b": 2 },"c":3}"#, edit, r#"{"nvext":{"b": 2,"token_data":[1,2] },"c":3}"#);
    check(
        r#"{"nvext":{"token_data": [7,8,9] ,"b":2}}"#,
        edit,
        r#"{"nvext":{"token_data": [1,2] ,"b":2}}"#,
    );
}

#[test]
fn removing_takes_the_right_comma() {
    let edit = |editor: &mut Editor<'_>| {
        editor.remove(Field::Stream);
        editor.remove(Field::User);
    };
    check(r#"{"stream":true}"#, edit, "{}");
    check(r#"{ "stream":true, "user":"u" }"#, edit, "{ }");
    check(r#"{"stream":true, "n":1}"#, edit, r#"{"n":1}"#);
    check(r#"{"n":1 , "stream":true}"#, edit, r#"{"n":1}"#);
    check(r#"{"user":"u","n":1,"stream":true }"#, edit, r#"{"n":1 }"#);
    check(r#"{"n":1,"stream":true,"user":"u","stream":false}"#, edit, r#"{"n":1}"#);
}

#[test]
fn members_go_and_come_at_the_same_end() {
    let edit = |editor: &mut Editor<'_>| {
        editor.remove(Field::Stream);
        editor.set(Field::MaxTokens, "1");
        editor.set(Field::MinTokens, "1");
    };
    check(r#"{"n":1,"stream":true}"#, edit, r#"{"n":1,"max_tokens":1,"min_tokens":1}"#);
    check(r#"{"stream":true}"#, edit, r#"{"max_tokens":1,"min_tokens":1}"#);
}

#[test]
fn the_last_step_for_a_field_counts() {
    let edit = |editor: &mut Editor<'_>| {
        editor.remove(Field::N);
        editor.set(Field::N, "3");
    };
    check(r#"{"n":1}"#, edit, r#"{"n":3}"#);
}

#[test]
fn an_unchanged_body_shares_its_memory() {
    let mut body = Body::new(100);
    body.push(Bytes::from_static(b"{\"model\":\"m\"}")).expect("it fits");
    let edits = Edits::default();
    let pieces: Vec<Bytes> = edits.pieces(&body, 62_000).collect();
    assert!(edits.is_empty());
    assert_eq!(pieces.len(), 1);
    assert_eq!(pieces[0].as_ptr(), body.chunks()[0].as_ptr());
}

#[derive(Clone, Debug)]
enum Wish {
    Set(Value),
    Remove,
    Merge(Value),
}

fn any_wishes() -> impl Strategy<Value = Vec<(Field, Wish)>> {
    let wish = prop_oneof![
        any_value().prop_map(Wish::Set),
        Just(Wish::Remove),
        any_value().prop_map(Wish::Merge),
    ];
    prop::collection::vec((prop::sample::select(Field::ALL), wish), 0..6)
}

/// An object that has `keys` beside whatever else it has.
fn body_with(mut object: Value, keys: Vec<(String, Value)>) -> Value {
    if let Some(map) = object.as_object_mut() {
        map.extend(keys);
    }
    object
}

/// What the wishes make of an object, by way of a tree.
fn model(object: &Value, wishes: &[(Field, Wish)]) -> Value {
    let mut map: Map<String, Value> = object.as_object().cloned().expect("bodies are objects");
    for (at, (field, wish)) in wishes.iter().enumerate() {
        if wishes[at + 1..].iter().any(|(later, _)| later == field) {
            continue;
        }
        match wish {
            Wish::Set(value) => drop(map.insert(field.name().to_owned(), value.clone())),
            Wish::Remove => drop(map.remove(field.name())),
            Wish::Merge(value) => {
                let inner = map.entry(field.name()).or_insert(json!({}));
                if !inner.is_object() {
                    *inner = json!({});
                }
                inner["token_data"] = value.clone();
            }
        }
    }
    Value::Object(map)
}

proptest! {
    #[test]
    fn splicing_does_what_a_tree_does(
        object in any_object(),
        more in prop::collection::vec((any_key(), any_value()), 0..4),
        wishes in any_wishes(),
        pretty in any::<bool>(),
        size in 1_usize..200,
    ) {
        let object = body_with(object, more);
        let body = if pretty { serde_json::to_vec_pretty(&object) } else { serde_json::to_vec(&object) };
        let body = body.expect("values serialise");
        let edited = apply(&body, size, |editor| {
            for (field, wish) in &wishes {
                match wish {
                    Wish::Set(value) => editor.set(*field, value.to_string()),
                    Wish::Remove => editor.remove(*field),
                    Wish::Merge(value) => editor.merge(*field, "token_data", value.to_string()),
                }
            }
        });
        let object: Value = serde_json::from_slice(&body).expect("the body is sound");
        let wishes: Vec<(Field, Wish)> = wishes.into_iter().map(reread).collect();
        let edited: Value = serde_json::from_slice(&edited).expect("the edited body is sound");
        prop_assert_eq!(edited, model(&object, &wishes));
    }

    /// Replacing one value leaves every byte before and after it alone.
    #[test]
    fn the_rest_of_a_body_is_untouched(object in any_object(), value in any_value(), size in 1_usize..99) {
        let object = body_with(object, vec![("model".to_owned(), json!("m"))]);
        let body = serde_json::to_vec_pretty(&object).expect("values serialise");
        let span = scan(&body).expect("the body is sound").get(Field::Model).expect("it has a model");
        let edited = apply(&body, size, |editor| editor.set(Field::Model, value.to_string()));
        let expected = [&body[..span.start], value.to_string().as_bytes(), &body[span.end..]].concat();
        prop_assert_eq!(edited, expected);
    }
}

/// The wish with its value as it comes back from text: doubles may differ in the last digit.
fn reread((field, wish): (Field, Wish)) -> (Field, Wish) {
    let again = |value: Value| serde_json::from_str(&value.to_string()).expect("values come back");
    let wish = match wish {
        Wish::Set(value) => Wish::Set(again(value)),
        Wish::Merge(value) => Wish::Merge(again(value)),
        Wish::Remove => Wish::Remove,
    };
    (field, wish)
}
