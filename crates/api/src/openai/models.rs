//! `GET /v1/models` and `GET /v1/models/{id}`.

use super::escape::{push_int, push_json_str};
use super::logprobs::push_list;

/// A model as clients see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelEntry {
    /// The name that requests use; may contain slashes.
    pub id: String,
    /// Time at which it was first seen here, in seconds since 1970.
    pub created: u64,
    /// Most tokens of a prompt and its answer; 0 if unknown. vLLM's field of the same name.
    pub max_model_len: u32,
    /// Whether prompts and answers are text alone; nothing is said of a model whose engines speak for
    /// themselves.
    pub is_text: bool,
}

/// Appends the list of models.
pub fn push_models(out: &mut Vec<u8>, models: &[ModelEntry]) {
    out.extend_from_slice(b"{\"object\":\"list\",\"data\":");
    push_list(out, models, push_model);
    out.push(b'}');
}

/// Appends one model.
pub fn push_model(out: &mut Vec<u8>, model: &ModelEntry) {
    out.extend_from_slice(b"{\"id\":");
    push_json_str(out, &model.id);
    out.extend_from_slice(b",\"object\":\"model\",\"created\":");
    push_int(out, model.created);
    out.extend_from_slice(b",\"owned_by\":\"stator\",\"max_model_len\":");
    push_int(out, model.max_model_len);
    if model.is_text {
        out.extend_from_slice(b",\"modalities\":{\"input\":[\"text\"],\"output\":[\"text\"]}");
    }
    out.push(b'}');
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn a_list_holds_every_model() {
        let entry = |id: &str, is_text: bool| ModelEntry {
            id: id.into(),
            created: 7,
            max_model_len: 512,
            is_text,
        };
        let mut out = Vec::new();
        push_models(&mut out, &[entry("a/b", true), entry("c\"d", false)]);
        let one = |id: &str| json!({"id": id, "object": "model", "created": 7, "owned_by": "stator", "max_model_len": 512});
        let mut text = one("a/b");
        text["modalities"] = json!({"input": ["text"], "output": ["text"]});
        assert_eq!(
            serde_json::from_slice::<Value>(&out).unwrap(),
            json!({"object": "list", "data": [text, one("c\"d")]})
        );
    }
}
