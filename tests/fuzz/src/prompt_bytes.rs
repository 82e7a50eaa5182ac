//! The prompt's bytes of a conversation begin with those of the same conversation cut short, and
//! a mark for caching changes nothing.

use serde_json::{Value, json};
use stator_body::{prompt_bytes, scan};

/// Most messages that are looked at, so that long inputs do not take quadratic time.
const MESSAGES_MAX: usize = 8;

/// Runs the target.
pub(crate) fn run(body: &[u8]) {
    let Ok(fields) = scan(body) else { return };
    assert!(prompt_bytes(body, &fields).map(<[u8]>::len).sum::<usize>() <= 2 * body.len());
    let Ok(mut body) = serde_json::from_slice::<Value>(body) else { return };
    let Some(messages) = body.get_mut("messages").and_then(Value::as_array_mut) else { return };
    messages.truncate(MESSAGES_MAX);
    let messages = messages.clone();
    let mut before = Vec::new();
    for count in 0..=messages.len() {
        body["messages"] = Value::Array(messages[..count].to_vec());
        let after = extract(&body);
        assert!(after.starts_with(&before), "{body}");
        before = after;
    }
    if let Some(last) = body["messages"].as_array_mut().and_then(|messages| messages.last_mut())
        && last.is_object()
    {
        last["cache_control"] = json!({"type": "ephemeral", "ttl": 5});
        assert_eq!(extract(&body), before, "{body}");
    }
}

fn extract(body: &Value) -> Vec<u8> {
    let body = serde_json::to_vec(body).expect("values serialise");
    let fields = scan(&body).expect("what serde_json writes is sound");
    prompt_bytes(&body, &fields).collect::<Vec<_>>().concat()
}
