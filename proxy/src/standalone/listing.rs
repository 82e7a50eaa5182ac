//! The answers of `GET /v1/models` and `GET /v1/models/{id}`, in which adapters are models with a
//! parent.

use super::query::Query;
use stator_api::openai::ApiError;
use stator_api::openai::escape::push_json_str;
use stator_api::openai::models::{ModelEntry, push_model};
use stator_runtime::date::rfc3339;
use std::time::{Duration, UNIX_EPOCH};

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

/// Models of a page for Anthropic's clients, if they do not say how many, and most of them.
const PAGE: usize = 20;
const PAGE_MAX: usize = 1000;

/// The list as Anthropic's clients read it: a page, behind one model or before one.
///
/// # Errors
///
/// 400 for a size out of range, and for a place that is none.
pub(crate) fn list_for_anthropic(entries: &[Entry], query: &Query) -> Result<Vec<u8>, ApiError> {
    let size = query.number("limit", PAGE_MAX)?.unwrap_or(PAGE);
    let place = |name: &str| {
        let Some(id) = query.value(name) else { return Ok(None) };
        let at = entries.iter().position(|entry| entry.model.id == id);
        let unknown = || ApiError::invalid(name, format!("{name} must be the id of a model"));
        at.ok_or_else(unknown).map(Some)
    };
    let (entries, has_more) = match (place("after_id")?, place("before_id")?) {
        (Some(_), Some(_)) => {
            let message = "after_id and before_id exclude each other";
            return Err(ApiError::impossible("before_id", message));
        }
        (None, Some(end)) => (&entries[end.saturating_sub(size)..end], end > size),
        (after, None) => {
            let rest = &entries[after.map_or(0, |at| at + 1)..];
            (&rest[..size.min(rest.len())], rest.len() > size)
        }
    };
    let mut out = b"{\"data\":[".to_vec();
    for (place, entry) in entries.iter().enumerate() {
        if place > 0 {
            out.push(b',');
        }
        push_for_anthropic(&mut out, entry);
    }
    out.extend_from_slice(format!("],\"has_more\":{has_more}").as_bytes());
    for (name, entry) in [("first_id", entries.first()), ("last_id", entries.last())] {
        out.extend_from_slice(format!(",\"{name}\":").as_bytes());
        match entry {
            Some(entry) => push_json_str(&mut out, &entry.model.id),
            None => out.extend_from_slice(b"null"),
        }
    }
    out.push(b'}');
    Ok(out)
}

/// One of them as Anthropic's clients read it.
pub(crate) fn one_for_anthropic(entry: &Entry) -> Vec<u8> {
    let mut out = Vec::new();
    push_for_anthropic(&mut out, entry);
    out
}

fn push_for_anthropic(out: &mut Vec<u8>, entry: &Entry) {
    let ModelEntry { id, created, max_model_len, .. } = &entry.model;
    out.extend_from_slice(b"{\"type\":\"model\",\"id\":");
    push_json_str(out, id);
    out.extend_from_slice(b",\"display_name\":");
    push_json_str(out, id);
    let created = UNIX_EPOCH.checked_add(Duration::from_secs(*created)).unwrap_or(UNIX_EPOCH);
    let rest = format!(
        ",\"created_at\":\"{}\",\"max_input_tokens\":{max_model_len},\"max_tokens\":{max_model_len}}}",
        rfc3339(created)
    );
    out.extend_from_slice(rest.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn entry(id: &str, parent: Option<&str>) -> Entry {
        let model = ModelEntry { id: id.into(), created: 7, max_model_len: 512, is_text: true };
        Entry { model, parent: parent.map(str::to_owned) }
    }

    fn parsed(body: &[u8]) -> Value {
        serde_json::from_slice(body).expect("it is JSON")
    }

    fn page(entries: &[Entry], query: &str) -> Value {
        parsed(&list_for_anthropic(entries, &Query::of_tests(query)).unwrap())
    }

    #[test]
    fn anthropics_clients_turn_pages() {
        let entries: Vec<_> = ["a", "b", "c", "d"].map(|id| entry(id, None)).into();
        let check = |query: &str, ids: &[&str], has_more: bool| {
            let page = page(&entries, query);
            let listed = page["data"].as_array().unwrap().iter();
            let found: Vec<_> = listed.map(|model| model["id"].as_str().unwrap()).collect();
            assert_eq!((found.as_slice(), &page["has_more"]), (ids, &json!(has_more)), "{query}");
        };
        check("", &["a", "b", "c", "d"], false);
        check("limit=3", &["a", "b", "c"], true);
        check("limit=3&after_id=c", &["d"], false);
        check("limit=2&before_id=d", &["b", "c"], true);
        check("limit=3&before_id=d", &["a", "b", "c"], false);
        for wrong in ["limit=1001", "limit=x", "after_id=z", "after_id=a&before_id=b"] {
            list_for_anthropic(&entries, &Query::of_tests(wrong)).expect_err(wrong);
        }
    }

    #[test]
    fn anthropics_clients_get_their_own_shape() {
        let entries = [entry("a/b", None), entry("c", Some("a/b"))];
        let list = page(&entries, "");
        let first = json!({"type": "model", "id": "a/b", "display_name": "a/b",
            "created_at": "1970-01-01T00:00:07Z", "max_input_tokens": 512, "max_tokens": 512});
        assert_eq!(list["data"][0], first);
        assert_eq!((&list["first_id"], &list["last_id"]), (&json!("a/b"), &json!("c")));
        assert_eq!(parsed(&one_for_anthropic(&entries[0])), first);
        assert_eq!(page(&[], "")["first_id"], Value::Null);
    }

    #[test]
    fn adapters_are_models_with_a_parent() {
        let plain = json!({"id": "a/b", "object": "model", "created": 7, "owned_by": "stator", "max_model_len": 512,
            "modalities": {"input": ["text"], "output": ["text"]}});
        let mut tuned = plain.clone();
        tuned["id"] = json!("c\"d");
        tuned["parent"] = json!("a/b");
        let entries = [entry("a/b", None), entry("c\"d", Some("a/b"))];
        assert_eq!(parsed(&list(&entries)), json!({"object": "list", "data": [plain, tuned]}));
        assert_eq!(parsed(&one(&entries[1])), tuned);
        assert_eq!(parsed(&list(&[])), json!({"object": "list", "data": []}));
    }
}
