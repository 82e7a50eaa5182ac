//! Conditions that say what of a document has no counterpart.

use crate::translate::Note;
use serde_json::{Value, json};

/// Longest message of a condition, in bytes: the API server's limit.
const MESSAGE_BYTES_MAX: usize = 32_768;

/// The condition `Translated`, true if nothing was lost.
pub(crate) fn translated(notes: &[Note]) -> Value {
    let (status, reason) =
        if notes.is_empty() { ("True", "Complete") } else { ("False", "WithoutCounterpart") };
    let lines: Vec<_> = notes.iter().map(line).collect();
    let mut message = lines.join("\n");
    message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX));
    json!({ "type": "Translated", "status": status, "reason": reason, "message": message })
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
    fn a_message_is_as_long_as_the_server_takes() {
        let lost = translated(&vec![note("C", "main"); 10_000]);
        let length = lost["message"].as_str().expect("a text").len();
        assert!((MESSAGE_BYTES_MAX - 2..=MESSAGE_BYTES_MAX).contains(&length), "{length}");
    }
}
