//! The wish that a prompt stays cached is read alike in the body of each API, and as an obvious reader
//! does.

use serde_json::{Value, json};
use stator_api::{Api, FieldNotes, read};

/// Longest time, in seconds.
const SECONDS_MAX: u64 = 86_400;

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    let Ok(wish) = serde_json::from_slice::<Value>(input) else { return };
    let expected = obvious(&wish);
    let messages = json!([{"role": "user", "content": "a"}]);
    let part = json!([{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": wish}]}]);
    let bodies = [
        (Api::ChatCompletions, json!({"messages": messages, "nvext": {"cache_control": wish}})),
        (Api::Messages, json!({"max_tokens": 1, "messages": messages, "cache_control": wish})),
        (Api::Messages, json!({"max_tokens": 1, "messages": part})),
    ];
    for (api, mut body) in bodies {
        body["model"] = json!("m");
        let body = body.to_string();
        let seconds = match read(api, body.as_bytes(), &FieldNotes::default()) {
            Ok(request) => Some(request.options.pin.map(|pin| u64::from(pin.seconds))),
            Err(error) => {
                assert!(error.status.is_client_error());
                None
            }
        };
        assert_eq!(seconds, expected, "{body}");
    }
}

/// The seconds that are asked for, if any are; none for what is no wish.
fn obvious(wish: &Value) -> Option<Option<u64>> {
    if wish.is_null() {
        return Some(None);
    }
    let seconds = match wish.as_object()?.get("ttl").filter(|ttl| !ttl.is_null()) {
        None => 300,
        Some(Value::String(text)) => {
            let units = [("s", 1), ("m", 60), ("h", 3600), ("", 1)];
            let (count, unit) = units
                .iter()
                .find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, seconds)))?;
            let digits = !count.is_empty() && count.chars().all(|c| c.is_ascii_digit());
            digits.then(|| count.parse::<u64>().ok())??.checked_mul(*unit)?
        }
        Some(ttl) => ttl.as_u64()?,
    };
    let is_wish = wish["type"] == "ephemeral" && (1..=SECONDS_MAX).contains(&seconds);
    is_wish.then_some(Some(seconds))
}
