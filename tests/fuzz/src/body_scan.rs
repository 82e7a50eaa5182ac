//! A body is taken exactly where serde_json takes it as an object, and its fields are those that
//! serde_json reads.

use serde_json::Value;
use stator_body::{Field, Fields, read_token_ids, scan, unquote};

/// Runs the target.
pub(crate) fn run(body: &[u8]) {
    let model = serde_json::from_slice::<Value>(body).ok().filter(Value::is_object);
    let fields = scan(body);
    assert_eq!(fields.is_ok(), model.is_some(), "{fields:?}");
    if let (Ok(fields), Some(model)) = (fields, model) {
        for &field in Field::ALL {
            check(body, &fields, field, model.get(field.name()));
        }
    }
}

fn check(body: &[u8], fields: &Fields, field: Field, model: Option<&Value>) {
    let raw = fields.raw(body, field);
    let value = raw.map(|raw| serde_json::from_slice::<Value>(raw).expect("a value is a value"));
    assert_eq!(value.as_ref(), model, "{field:?}");
    assert_eq!(fields.flag(body, field), model.and_then(Value::as_bool));
    let text = raw.and_then(unquote);
    assert_eq!(text.as_deref(), model.and_then(Value::as_str));
    if let Some(raw) = raw {
        // serde_json takes -0 as an id; nobody means that.
        let ids = serde_json::from_slice::<Vec<u32>>(raw).ok();
        let negative = raw.windows(2).any(|pair| pair == b"-0");
        assert!(negative || read_token_ids(raw) == ids, "{field:?}");
    }
}
