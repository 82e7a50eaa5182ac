//! The answers of `GET /v1/models` and `GET /v1/models/{id}`, in which adapters are models with a
//! parent.

use stator_api::openai::escape::push_json_str;
use stator_api::openai::models::{ModelEntry, push_model};

/// A model, or an adapter of one.
pub(crate) struct Entry {
    /// Fields that every listed model has.
    pub model: ModelEntry,
    /// The model that an adapter is for.
    ///
    /// Source: vLLM, which lists loaded LoRA adapters so.
    pub parent: Option<String>,
}

/// The list of all.
pub(crate) fn list(entries: &[Entry]) -> Vec<u8> {
    let mut out = b"{\"object\":\"list\",\"data\":[".to_vec();
    for (place, entry) in entries.iter().enumerate() {
        if place > 0 {
            out.push(b',');
        }
        push(&mut out, entry);
    }
    out.extend_from_slice(b"]}");
    out
}

/// One of them.
pub(crate) fn one(entry: &Entry) -> Vec<u8> {
    let mut out = Vec::new();
    push(&mut out, entry);
    out
}

fn push(out: &mut Vec<u8>, entry: &Entry) {
    push_model(out, &entry.model);
    if let Some(parent) = &entry.parent {
        // Into the object that was just closed.
        out.pop();
        out.extend_from_slice(b",\"parent\":");
        push_json_str(out, parent);
        out.push(b'}');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn entry(id: &str, parent: Option<&str>) -> Entry {
        let model = ModelEntry { id: id.into(), created: 7, max_model_len: 512 };
        Entry { model, parent: parent.map(str::to_owned) }
    }

    fn parsed(body: &[u8]) -> Value {
        serde_json::from_slice(body).expect("it is JSON")
    }

    #[test]
    fn adapters_are_models_with_a_parent() {
        let plain = json!({"id": "a/b", "object": "model", "created": 7, "owned_by": "stator", "max_model_len": 512});
        let mut tuned = plain.clone();
        tuned["id"] = json!("c\"d");
        tuned["parent"] = json!("a/b");
        let entries = [entry("a/b", None), entry("c\"d", Some("a/b"))];
        assert_eq!(parsed(&list(&entries)), json!({"object": "list", "data": [plain, tuned]}));
        assert_eq!(parsed(&one(&entries[1])), tuned);
        assert_eq!(parsed(&list(&[])), json!({"object": "list", "data": []}));
    }
}
