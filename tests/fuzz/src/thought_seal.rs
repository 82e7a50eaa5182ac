//! Sealed thoughts are opened by the seal that made them. Nothing else is, whatever clients send, and a
//! response keeps its other members when it is sealed.

use serde_json::Value;
use stator_api::responses::ThoughtSeal;
use std::sync::LazyLock;

static SEALS: LazyLock<[ThoughtSeal; 2]> =
    LazyLock::new(|| [[7; 32], [8; 32]].map(|key| ThoughtSeal::new(&key)));

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    let [seal, other] = &*SEALS;
    let text = String::from_utf8_lossy(input);
    assert_eq!(seal.open(&text), None, "nobody has the key");
    let content = seal.seal(&text);
    assert_eq!((seal.open(&content).as_deref(), other.open(&content)), (Some(&*text), None));
    let mut changed = content.clone().into_bytes();
    let at = input.iter().map(|byte| usize::from(*byte)).sum::<usize>() % changed.len();
    changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
    let changed = String::from_utf8(changed).expect("base64 is ASCII");
    assert_eq!(seal.open(&changed), None, "{content} {changed}");
    if let Ok(object) = serde_json::from_slice::<Value>(input) {
        check_object(seal, object);
    }
}

/// Seals the reasoning items of a response, and looks what became of each.
fn check_object(seal: &ThoughtSeal, mut object: Value) {
    let before = serde_json::to_vec(&object).expect("values serialise");
    let Some(sealed) = seal.seal_object(&before) else {
        assert!(!object.is_object(), "{object}");
        return;
    };
    let mut sealed: Value = serde_json::from_slice(&sealed).expect("a sealed object is JSON");
    let items =
        |of: &mut Value| of.get_mut("output").and_then(Value::as_array_mut).map(std::mem::take);
    for (item, was) in
        items(&mut sealed).into_iter().flatten().zip(items(&mut object).into_iter().flatten())
    {
        let parts = was["content"].as_array();
        let Some(parts) = parts.filter(|_| was.get("encrypted_content").is_some()) else {
            assert_eq!(item, was);
            continue;
        };
        let text: String = parts.iter().filter_map(|part| part["text"].as_str()).collect();
        let content = item["encrypted_content"].as_str().and_then(|content| seal.open(content));
        assert_eq!(content, Some(text));
    }
    assert_eq!(sealed, object);
}
