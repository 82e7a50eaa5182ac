//! Queries about responses, and the list of a response's input items.

use super::record::ResponseRecord;
use stator_api::openai::ApiError;
use std::sync::Arc;

/// Items of a page, if the client does not say how many.
const LIMIT: usize = 20;
/// Most items of a page.
const LIMIT_MAX: usize = 100;

/// The value of a parameter; values that matter here need no decoding.
pub(super) fn value<'q>(query: &'q str, name: &str) -> Option<&'q str> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.filter(|(known, _)| *known == name).map(|(_, value)| value).next_back()
}

/// Number of the first event that a client wants.
///
/// # Errors
///
/// 400 for anything but a number.
pub(super) fn starting_after(query: &str) -> Result<u64, ApiError> {
    let Some(after) = value(query, "starting_after") else { return Ok(0) };
    let after: Option<u64> = after.parse().ok();
    after.and_then(|after| after.checked_add(1)).ok_or_else(|| {
        ApiError::invalid("starting_after", "starting_after must be the number of an event")
    })
}

/// A page of the items that a response was asked with, those of earlier responses among them.
///
/// # Errors
///
/// 400 for parameters out of range.
pub(super) fn input_items(record: &ResponseRecord, query: &str) -> Result<Vec<u8>, ApiError> {
    let limit = match value(query, "limit") {
        None => LIMIT,
        Some(limit) => {
            let number = limit.parse().ok().filter(|limit| (1..=LIMIT_MAX).contains(limit));
            number.ok_or_else(|| {
                ApiError::invalid("limit", format!("limit must be in 1..={LIMIT_MAX}"))
            })?
        }
    };
    let mut items: Vec<&Arc<str>> = record.earlier.iter().chain(&record.input).collect();
    match value(query, "order").unwrap_or("desc") {
        "asc" => {}
        "desc" => items.reverse(),
        _ => return Err(ApiError::invalid("order", "order must be \"asc\" or \"desc\"")),
    }
    let start = match value(query, "after") {
        None => 0,
        Some(after) => {
            let at = items.iter().position(|item| id(item).as_deref() == Some(after));
            at.map(|at| at + 1).ok_or_else(|| {
                ApiError::invalid("after", "after must be the id of an item of the response")
            })?
        }
    };
    let rest = &items[start.min(items.len())..];
    let page = &rest[..limit.min(rest.len())];
    let quoted = |item: Option<&&Arc<str>>| match item.and_then(|item| id(item)) {
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

/// The id of an item.
fn id(item: &str) -> Option<String> {
    let item: serde_json::Value = serde_json::from_str(item).ok()?;
    Some(item.get("id")?.as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::PrefixSpace;
    use serde_json::{Value, json};

    fn page(query: &str) -> Result<Value, String> {
        let mut record = ResponseRecord::of_tests(PrefixSpace::of_tests(1));
        record.earlier = vec![r#"{"id":"a"}"#.into()];
        record.input = vec![r#"{"id":"b"}"#.into(), r#"{"id":"c"}"#.into()];
        let page = input_items(&record, query).map_err(|error| error.message)?;
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
        for wrong in ["limit=0", "limit=101", "limit=x", "order=up", "after=z"] {
            page(wrong).expect_err(wrong);
        }
        assert_eq!(starting_after("starting_after=4"), Ok(5));
        assert_eq!(starting_after(""), Ok(0));
        starting_after("starting_after=-1").expect_err("a number");
    }
}
