//! References to items of earlier responses, and the items that take their place.
//!
//! An item's id holds its response's: no table of items is needed to find one.
//!
//! Source: `item_reference` of the Responses API; the OpenAI provider of Vercel's AI SDK sends one for
//! every item of an earlier answer.

use super::body::ResponsesBody;
use super::request::ITEMS_MAX;
use crate::field_notes::FieldNotes;
use crate::json::Json;
use crate::object::client_object;
use crate::openai::ApiError;
use crate::openai::body::parse_as;
use crate::tree::{JsonPath, Members};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Most responses whose items one request may refer to: each is looked up.
const REFERENCED_RESPONSES_MAX: usize = 512;
/// Most bytes of all items that one request refers to.
const REFERENCED_MAX_BYTES: usize = 32 << 20;

const REFERENCE: &str = "item_reference";
/// Longest id that an error repeats, in characters.
const ID_MAX_CHARS: usize = 120;

/// Reason why no item takes the place of a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingItem {
    /// No response of the client has the item.
    Unknown,
    /// The item's response is not over yet.
    Unfinished,
}

client_object! {
    /// A body, as far as it names earlier responses.
    struct ReferringBody<'a> {
        previous_response_id: Option<Json<'a>>,
        input: Option<Json<'a>>,
    }
}

/// The response that an item belongs to, by its id without the prefix, and the item's place in it; none
/// for an id that no item here has.
pub fn response_of(item: &str) -> Option<(&str, usize)> {
    let (_, rest) = item.split_once('_')?;
    let (response, at) = rest.rsplit_once('_')?;
    let is_number = at.bytes().all(|byte| byte.is_ascii_digit());
    let at = at.parse().ok().filter(|_| is_number)?;
    (!response.is_empty()).then_some((response, at))
}

/// The ids of the responses that a body continues or whose items it refers to, at most 513; none for a
/// body that cannot be read.
pub fn named_responses(body: &[u8]) -> BTreeSet<String> {
    let Ok(ReferringBody { previous_response_id, input, .. }) = parse_as(body) else {
        return BTreeSet::new();
    };
    let items = match &input {
        Some(Json::Array(items)) => &items[..],
        _ => &[],
    };
    let referred = items.iter().filter(|item| is_reference(item));
    let referred = referred.filter_map(|item| response_of(item.get("id")?.as_str()?));
    let mut named = BTreeSet::new();
    for (response, _) in referred {
        named.insert(format!("resp_{response}"));
        if named.len() >= REFERENCED_RESPONSES_MAX {
            break;
        }
    }
    if let Some(Json::Str(id)) = previous_response_id {
        named.insert(id.into_owned());
    }
    named
}

/// Puts items of earlier responses in place of the references to them. `find` gives an item by its id,
/// as a JSON object.
///
/// # Errors
///
/// 400 with the id of an item that is not kept here, and for more references than the limits allow.
pub fn resolve(
    body: &mut ResponsesBody<'_>,
    notes: &FieldNotes,
    mut find: impl FnMut(&str) -> Result<Arc<str>, MissingItem>,
) -> Result<(), ApiError> {
    let Some(Json::Array(items)) = &mut body.input else { return Ok(()) };
    if items.len() > ITEMS_MAX {
        // The request is refused for that.
        return Ok(());
    }
    let path = JsonPath::Field(notes, "input");
    let (mut responses, mut bytes) = (BTreeSet::new(), 0);
    for (at, item) in items.iter_mut().enumerate().filter(|(_, item)| is_reference(item)) {
        let path = JsonPath::Item(&path, at);
        let mut reference = Members::of(std::mem::replace(item, Json::Null), path)?;
        reference.take("type");
        let id = reference.required_text("id")?;
        reference.refuse_rest()?;
        let path = JsonPath::Member(&path, "id");
        if let Some((response, _)) = response_of(&id) {
            responses.insert(response.to_owned());
        }
        if responses.len() > REFERENCED_RESPONSES_MAX {
            let fault = format!(
                "is of one response more than the {REFERENCED_RESPONSES_MAX} whose items a request \
                 may refer to"
            );
            return Err(path.invalid(fault));
        }
        let found = find(&id).map_err(|missing| missing.fault(&path, &id))?;
        bytes += found.len();
        if bytes > REFERENCED_MAX_BYTES {
            let fault = format!(
                "leads beyond {REFERENCED_MAX_BYTES} bytes, which is the limit for all items that a \
                 request refers to"
            );
            return Err(path.invalid(fault));
        }
        let found: Json<'_> = serde_json::from_str(&found).map_err(|_| ApiError::internal())?;
        *item = found.into_owned();
    }
    Ok(())
}

/// Whether an item refers to another. The official types let a reference be without a type.
fn is_reference(item: &Json<'_>) -> bool {
    match item.get("type") {
        Some(Json::Str(kind)) => kind == REFERENCE,
        Some(Json::Null) | None => item.get("role").is_none() && item.get("id").is_some(),
        Some(_) => false,
    }
}

impl MissingItem {
    fn fault(self, path: &JsonPath<'_>, id: &str) -> ApiError {
        let id: String = id.chars().take(ID_MAX_CHARS).collect();
        let fault = match self {
            Self::Unknown => format!("is {id:?}, and no item with this id is kept here"),
            Self::Unfinished => format!("is {id:?}, an item of a response that is not over yet"),
        };
        path.invalid(fault).with_code("item_not_found")
    }
}

#[cfg(test)]
mod tests {
    use super::super::request::{self, ResponsePlace};
    use super::*;
    use serde_json::{Value, json};

    const PLACE: ResponsePlace<'static> = ResponsePlace { id: "r", keeps: true, seal: None };

    /// A store of two items; one response is not over.
    fn find(id: &str) -> Result<Arc<str>, MissingItem> {
        match id {
            "rs_a_0" => Ok(r#"{"id":"rs_a_0","type":"reasoning","summary":[],"content":
                [{"type":"reasoning_text","text":"t"}],"encrypted_content":null}"#
                .into()),
            "msg_a_1" => Ok(r#"{"id":"msg_a_1","status":"completed","type":"message","role":
                "assistant","content":[{"type":"output_text","text":"b","annotations":[]}]}"#
                .into()),
            "msg_b_0" => Err(MissingItem::Unfinished),
            _ => Err(MissingItem::Unknown),
        }
    }

    /// The input's items as they are kept, with references resolved.
    fn kept(input: &Value) -> Result<Vec<Value>, ApiError> {
        let body = json!({"model": "m", "input": input}).to_string();
        let notes = FieldNotes::default();
        let mut body = request::parse(body.as_bytes(), &notes)?;
        resolve(&mut body, &notes, find)?;
        let checked = request::check(body, &[], PLACE, &notes)?;
        let items = checked.form.input.iter();
        Ok(items.map(|item| serde_json::from_str(item).expect("JSON")).collect())
    }

    #[test]
    fn items_take_the_place_of_references() {
        let input = json!([{"role": "user", "content": "a"},
            {"type": "item_reference", "id": "rs_a_0"}, {"id": "msg_a_1"},
            {"role": "user", "content": "c"}]);
        let kept = kept(&input).expect("a request");
        assert_eq!((&kept[1]["id"], &kept[1]["type"]), (&json!("rs_a_0"), &json!("reasoning")));
        assert_eq!(kept[2]["content"][0]["text"], "b");
        assert_eq!(kept[3]["id"], "item_r_3");
    }

    #[test]
    fn a_reference_to_nothing_names_the_id() {
        for (reference, param, message) in [
            (json!({"type": "item_reference", "id": "msg_c_0"}), "input[0].id", "\"msg_c_0\""),
            (json!({"type": "item_reference", "id": "msg_b_0"}), "input[0].id", "not over yet"),
            (json!({"type": "item_reference"}), "input[0].id", "missing"),
            (json!({"type": "item_reference", "id": 7}), "input[0].id", "a string"),
            (json!({"id": "rs_a_0", "idd": 1}), "input[0].idd", "did you mean id?"),
        ] {
            let error = kept(&json!([reference])).expect_err("a fault");
            assert_eq!(error.param.as_deref(), Some(param), "{error}");
            assert!(error.message.contains(message), "{error}");
        }
    }

    #[test]
    fn references_are_bounded() {
        let reference = |n: usize| json!({"type": "item_reference", "id": format!("msg_r{n}_0")});
        let input: Vec<_> = (0..=REFERENCED_RESPONSES_MAX).map(reference).collect();
        let body = json!({"previous_response_id": "resp_x", "input": input}).to_string();
        let named = named_responses(body.as_bytes());
        assert_eq!(named.len(), REFERENCED_RESPONSES_MAX + 1);
        assert!(named.contains("resp_x") && named.contains("resp_r0"));
        let notes = FieldNotes::default();
        let mut parsed = request::parse(body.as_bytes(), &notes).expect("a body");
        let item: Arc<str> = r#"{"id":"x","role":"user","content":"a"}"#.into();
        let error = resolve(&mut parsed, &notes, |_| Ok(item.clone())).expect_err("too many");
        assert!(error.message.contains("512"), "{error}");
        let large: Arc<str> = format!("{{\"a\":\"{}\"}}", "x".repeat(20 << 20)).into();
        let body = json!({"input": [{"id": "msg_r_0"}, {"id": "msg_r_0"}]}).to_string();
        let mut parsed = request::parse(body.as_bytes(), &notes).expect("a body");
        let error = resolve(&mut parsed, &notes, |_| Ok(large.clone())).expect_err("too large");
        assert!(error.message.contains("33554432"), "{error}");
    }

    #[test]
    fn an_items_id_holds_its_responses() {
        assert_eq!(response_of("msg_0af_12"), Some(("0af", 12)));
        assert_eq!(response_of("item_a_b_0"), Some(("a_b", 0)));
        for other in ["", "msg", "msg_1", "msg__1", "msg_a_", "msg_a_+1", "msg_a_x"] {
            assert_eq!(response_of(other), None, "{other}");
        }
        assert!(named_responses(b"no JSON").is_empty());
    }
}
