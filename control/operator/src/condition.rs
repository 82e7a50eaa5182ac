//! Conditions that say what of a document has no counterpart.

use crate::translate::Note;
use serde_json::{Value, json};

/// Longest message of a condition, in bytes: the API server's limit.
const MESSAGE_BYTES_MAX: usize = 32_768;

/// The condition `Translated`, true if nothing was lost.
pub(crate) fn translated(notes: &[Note]) -> Value {
    let (status, reason) =
        if notes.is_empty() { ("True", "Complete") } else { ("False", "WithoutCounterpart") };
    let message = lines(notes).join("\n");
    json!({ "type": "Translated", "status": status, "reason": reason, "message": bounded(&message) })
}

/// Notes as text, a line each.
pub(crate) fn lines(notes: &[Note]) -> Vec<String> {
    notes.iter().map(line).collect()
}

/// Makes a status that of a document whose steps failed.
pub(crate) fn failed(status: &mut Value, faults: &[String]) {
    let message = faults.join("\n");
    if status.get("state").is_some() {
        status["state"] = "failed".into();
    }
    if let Some(ready) = status["conditions"].get_mut(0) {
        ready["status"] = "False".into();
        ready["reason"] = "failed_to_reconcile_the_resources".into();
        ready["message"] = bounded(&message).into();
    }
}

/// Start of a message, as long as a condition takes.
pub(crate) fn bounded(message: &str) -> &str {
    &message[..message.floor_char_boundary(MESSAGE_BYTES_MAX)]
}

/// Gives conditions their times: that of the last change of each one's status. A change of
/// generations gets the times of its begin and its end, an adapter that of its last change.
pub(crate) fn timed(status: &mut Value, known: &Value, now: &str) {
    if status["selector"].is_string() {
        let is_same = known["replicas"].is_null() || status["replicas"] == known["replicas"];
        let time = if is_same { known["lastScaleTime"].clone() } else { json!(now) };
        if !time.is_null() {
            status["lastScaleTime"] = time;
        }
    }
    if let Some(update) = status.get_mut("rollingUpdate") {
        let before = &known["rollingUpdate"];
        let is_same = update["phase"] == before["phase"];
        let has_ended = update["phase"] == "Completed";
        for (name, is_of_phase) in [("startTime", !has_ended), ("endTime", has_ended)] {
            let time = if is_of_phase && !is_same { json!(now) } else { before[name].clone() };
            if !time.is_null() && (has_ended || is_of_phase) {
                update[name] = time;
            }
        }
    }
    // A status without conditions stays without: its kind may have none.
    let conditions = status.get_mut("conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten() {
        let mut all = known["conditions"].as_array().into_iter().flatten();
        let before =
            all.find(|of| of["type"] == condition["type"] && of["status"] == condition["status"]);
        let time = before.map_or_else(|| now.into(), |of| of["lastTransitionTime"].clone());
        condition["lastTransitionTime"] = time;
    }
}

/// A note as a line: where it is, its subject, and what became of it.
fn line(note: &Note) -> String {
    let Note { component, container, subject, message } = note;
    let place = [component, container].map(String::as_str).into_iter().filter(|of| !of.is_empty());
    let place: Vec<_> = place.collect();
    match place[..] {
        [] => format!("{subject}: {message}"),
        _ => format!("{}: {subject}: {message}", place.join("/")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(component: &str, container: &str) -> Note {
        let [component, container] = [component, container].map(str::to_owned);
        Note { component, container, subject: "--a".to_owned(), message: "é".to_owned() }
    }

    #[test]
    fn a_condition_names_all_that_was_lost() {
        assert_eq!(translated(&[])["status"], "True");
        let lost = translated(&[note("C", "main"), note("C", ""), note("", "")]);
        assert_eq!(lost["message"], "C/main: --a: é\nC: --a: é\n--a: é");
        assert_eq!(
            (&lost["status"], &lost["reason"]),
            (&json!("False"), &json!("WithoutCounterpart"))
        );
    }

    #[test]
    fn a_condition_keeps_its_time_while_its_status_stays() {
        let known = json!({ "conditions": [
            { "type": "A", "status": "True", "lastTransitionTime": "then" },
            { "type": "B", "status": "True", "lastTransitionTime": "then" },
        ] });
        let mut status = json!({ "conditions": [
            { "type": "A", "status": "True" }, { "type": "B", "status": "False" },
        ] });
        timed(&mut status, &known, "now");
        let times = [0, 1].map(|at| status["conditions"][at]["lastTransitionTime"].clone());
        assert_eq!(times, [json!("then"), json!("now")]);
    }

    #[test]
    fn an_adapter_keeps_the_time_of_its_last_change() {
        let check = |known: Value, expected: Value| {
            let mut status = json!({ "replicas": 2, "selector": "a=b" });
            timed(&mut status, &known, "now");
            assert_eq!(status["lastScaleTime"], expected);
            assert!(status.get("conditions").is_none(), "an adapter has none: {status}");
        };
        check(json!({}), Value::Null);
        check(json!({ "replicas": 2, "lastScaleTime": "then" }), json!("then"));
        check(json!({ "replicas": 1, "lastScaleTime": "then" }), json!("now"));
    }

    #[test]
    fn a_message_is_as_long_as_the_server_takes() {
        let lost = translated(&vec![note("C", "main"); 10_000]);
        let length = lost["message"].as_str().expect("a text").len();
        assert!((MESSAGE_BYTES_MAX - 2..=MESSAGE_BYTES_MAX).contains(&length), "{length}");
    }
}
