//! Answers to the API server's questions before it stores a document: fields that are filled in,
//! faults, and the document in another version. All of it is pure: reviews in, reviews out.
//!
//! The rules are those of Dynamo's own webhooks, with two differences. Fields that only Grove takes
//! get a warning where Dynamo's refuse them, so that a manifest applies wherever it was written
//! for. And no image needs a version in its tag: which roles run does not depend on one.

mod component;
mod defaults;
mod faults;
mod graph;
mod others;

pub(crate) use faults::FieldFault;

use crate::convert::{FormVersion, convert};
use crate::explain;
use crate::kinds::{ALPHA, BETA};
use crate::objects::OperatorSettings;
use crate::plan::OWNER;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use faults::{DocumentChange, Faults};
use serde_json::{Value, json};

/// End of the name of the account that scales for a graph.
const PLANNER: &str = ":planner-serviceaccount";

/// A review that cannot be read.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("{0}: is missing")]
pub(crate) struct NotAReview(&'static str);

/// Answers with the fields that are missing in a document.
///
/// # Errors
///
/// When the review cannot be read.
pub(crate) fn answer_default(
    review: &Value,
    settings: &OperatorSettings,
) -> Result<Value, NotAReview> {
    let request = request(review)?;
    let is_new = request["operation"] == "CREATE";
    let steps = defaults::patch(&request["object"], is_new, settings);
    let mut answer = json!({ "uid": request["uid"], "allowed": true });
    if !steps.is_empty() {
        answer["patchType"] = "JSONPatch".into();
        answer["patch"] = BASE64_STANDARD.encode(Value::from(steps).to_string()).into();
    }
    Ok(answered(review, answer))
}

/// Answers with all faults of a document, and with warnings of what in it has no counterpart.
/// `operator` is the operator's own name at the API server.
///
/// # Errors
///
/// When the review cannot be read.
pub(crate) fn answer_validation(
    review: &Value,
    settings: &OperatorSettings,
    operator: &str,
) -> Result<Value, NotAReview> {
    let request = request(review)?;
    let user = request["userInfo"]["username"].as_str().unwrap_or_default();
    let is_by_scaler = user == operator || user.ends_with(PLANNER);
    let old = Some(&request["oldObject"]).filter(|old| !old.is_null());
    let answer = match check(&request["object"], old, is_by_scaler, settings) {
        Ok(warnings) => json!({ "uid": request["uid"], "allowed": true, "warnings": warnings }),
        Err(faults) => json!({
            "uid": request["uid"], "allowed": false, "status": refusal(&request["object"], &faults),
        }),
    };
    Ok(answered(review, answer))
}

/// Answers with documents in the version that is asked for.
///
/// # Errors
///
/// When the review cannot be read.
pub(crate) fn answer_conversion(review: &Value) -> Result<Value, NotAReview> {
    let request = request(review)?;
    let documents = request["objects"].as_array().ok_or(NotAReview("request.objects"))?;
    let version = match request["desiredAPIVersion"].as_str() {
        Some(ALPHA) => Some(FormVersion::Alpha),
        Some(BETA) => Some(FormVersion::Beta),
        _ => None,
    };
    let answer = match version {
        Some(version) => json!({
            "uid": request["uid"],
            "result": { "status": "Success" },
            "convertedObjects": documents.iter().map(|of| convert(of, version)).collect::<Vec<_>>(),
        }),
        None => {
            let message = format!("there is no version {}", request["desiredAPIVersion"]);
            json!({
                "uid": request["uid"],
                "result": { "status": "Failure", "message": message },
                "convertedObjects": [],
            })
        }
    };
    Ok(answered(review, answer))
}

/// Checks a document, before and after a change, against all rules of its kind. Returns warnings.
fn check(
    document: &Value,
    old: Option<&Value>,
    is_by_scaler: bool,
    settings: &OperatorSettings,
) -> Result<Vec<String>, Vec<FieldFault>> {
    let new = convert(document, FormVersion::Beta);
    // The operator's own components follow their graph, which was checked.
    let is_owned = !new["metadata"]["labels"][OWNER].is_null();
    // A document that is going may be as wrong as it was.
    let is_going = !new["metadata"]["deletionTimestamp"].is_null();
    let (Some(rules), false) = (others::rules(&new), is_owned || is_going) else {
        return Ok(Vec::new());
    };
    let old = old.map(|old| convert(old, FormVersion::Beta));
    let mut faults = Faults::default();
    rules(DocumentChange { new: &new, old: old.as_ref(), is_by_scaler }, &mut faults);
    if !faults.0.is_empty() {
        return Err(faults.0);
    }
    match explain::wanted(&new, settings) {
        Ok(wanted) => Ok(crate::condition::lines(&wanted.notes)),
        Err(fault) => {
            let (path, message) = fault.split_once(": ").unwrap_or(("spec", &fault));
            Err(vec![FieldFault { path: path.to_owned(), message: message.to_owned() }])
        }
    }
}

/// A refusal in the API's form, which `kubectl` prints a line for each fault of.
fn refusal(document: &Value, faults: &[FieldFault]) -> Value {
    let lines: Vec<_> = faults.iter().map(FieldFault::to_string).collect();
    let causes = faults.iter().map(|fault| {
        json!({ "reason": "FieldValueInvalid", "field": fault.path, "message": fault.message })
    });
    json!({
        "status": "Failure",
        "code": 422,
        "reason": "Invalid",
        "message": lines.join("; "),
        "details": {
            "kind": document["kind"],
            "name": document["metadata"]["name"],
            "causes": causes.collect::<Vec<_>>(),
        },
    })
}

fn request(review: &Value) -> Result<&Value, NotAReview> {
    let request = &review["request"];
    if request["uid"].is_string() { Ok(request) } else { Err(NotAReview("request.uid")) }
}

fn answered(review: &Value, answer: Value) -> Value {
    json!({
        "apiVersion": review["apiVersion"], "kind": review["kind"], "response": answer,
    })
}

#[cfg(test)]
mod tests;
