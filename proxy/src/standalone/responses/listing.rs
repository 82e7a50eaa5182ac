//! The list of a response's input items.

use super::record::{ResponseRecord, item_id};
use crate::standalone::query::Query;
use stator_api::openai::ApiError;
use stator_api::responses::request::REASONING;
use std::sync::Arc;

/// Items of a page, if the client does not say how many.
const LIMIT: usize = 20;
/// Most items of a page.
const LIMIT_MAX: usize = 100;

/// A page of the items that a response was asked with, those of earlier responses among them.
///
/// # Errors
///
/// 400 for parameters out of range.
pub(super) fn input_items(record: &ResponseRecord, query: &Query) -> Result<Vec<u8>, ApiError> {
    // Items are listed as they were sent.
    if let Some(what) = query.values("include").find(|what| *what != REASONING) {
        let what: String = what.chars().take(80).collect();
        let message = format!("include {what:?} is not supported: no item here has it");
        return Err(ApiError::unsupported("include", message));
    }
    let limit = query.number("limit", LIMIT_MAX)?.unwrap_or(LIMIT);
    let mut items: Vec<&Arc<str>> = record.earlier.iter().chain(&record.input).collect();
    match query.value("order").unwrap_or("desc") {
        "asc" => {}
        "desc" => items.reverse(),
        _ => return Err(ApiError::invalid("order", "order must be \"asc\" or \"desc\"")),
    }
    let start = match query.value("after") {
        None => 0,
        Some(after) => {
            let at = items.iter().position(|item| item_id(item).as_deref() == Some(after));
            at.map(|at| at + 1).ok_or_else(|| {
                ApiError::invalid("after", "after must be the id of an item of the response")
            })?
        }
    };
    let rest = &items[start.min(items.len())..];
    let page = &rest[..limit.min(rest.len())];
    let quoted = |item: Option<&&Arc<str>>| match item.and_then(|item| item_id(item)) {
        Some(id) => serde_json::Value::from(id).to_string(),
        None => "null".to_owned(),
    };
    let (first, last) = (quoted(page.first()), quoted(page.last()));
    let data = page.iter().map(|item| &***item).collect::<Vec<_>>().join(",");
    let has_more = rest.len() > page.len();
    let list = format!(
        r#"{{"object":"list","data":[{data}],"first_id":{first},"last_id":{last},"has_more":{has_more}}}"#
    );
    Ok(list.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::standalone::responses::tenant_space;
    use serde_json::{Value, json};

    fn page(query: &str) -> Result<Value, String> {
        let mut record = ResponseRecord::of_tests(tenant_space(1));
        record.earlier = vec![r#"{"id":"a"}"#.into()];
        record.input = vec![r#"{"id":"b"}"#.into(), r#"{"id":"c"}"#.into()];
        let page = input_items(&record, &Query::of_tests(query)).map_err(|error| error.message)?;
        Ok(serde_json::from_slice(&page).expect("JSON"))
    }

    #[test]
    fn items_are_listed_by_pages() {
        let all = page("order=asc").expect("a page");
        let ids = json!([{"id": "a"}, {"id": "b"}, {"id": "c"}]);
        assert_eq!((&all["data"], &all["has_more"]), (&ids, &json!(false)));
        let second = page("limit=1&after=c").expect("a page");
        assert_eq!(second["data"], json!([{"id": "b"}]));
        assert_eq!((&second["first_id"], &second["has_more"]), (&json!("b"), &json!(true)));
        assert_eq!(page("after=a").expect("a page")["data"], json!([]));
        for wrong in ["limit=0", "limit=101", "limit=x", "order=up", "after=z", "include=x"] {
            page(wrong).expect_err(wrong);
        }
    }
}
