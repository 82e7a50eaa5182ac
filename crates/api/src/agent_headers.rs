//! Headers of agents and of NVIDIA Dynamo that change nothing at an edge: answers name them.

use crate::steering::{PRIORITY, STRICT_PRIORITY};

/// Most names that a client is told.
const NAMED_MAX: usize = 16;
/// Headers that no edge obeys: sessions belong to no others and need no end, and who computes a
/// prompt is for placement to say.
///
/// Source: the headers of NVIDIA Dynamo's frontend, and of the agents that it knows.
const UNHEEDED: [&str; 5] = [
    "x-codex-parent-thread-id",
    "x-dynamo-parent-session-id",
    "x-dynamo-routing-mode",
    "x-dynamo-session-final",
    "x-parent-session-id",
];
/// Beginning of names by which clients of Dynamo hang notes on a request.
const NOTE_PREFIX: &str = "x-dynamo-meta-";

/// Names of a request's headers that change nothing at an edge, each once, at most 16. `names` are in
/// lower case. An edge that has a queue of its own `takes_priorities`.
pub fn unheeded<'h>(
    names: impl IntoIterator<Item = &'h str>,
    takes_priorities: bool,
) -> Vec<&'h str> {
    let is_unheeded = |name: &str| {
        // Nearly all headers end here.
        name.starts_with("x-")
            && (UNHEEDED.contains(&name)
                || name.starts_with(NOTE_PREFIX)
                || (!takes_priorities && [PRIORITY, STRICT_PRIORITY].contains(&name)))
    };
    let mut found: Vec<&str> = Vec::new();
    for name in names.into_iter().filter(|name| is_unheeded(name)) {
        if found.len() < NAMED_MAX && !found.contains(&name) {
            found.push(name);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_header_that_changes_nothing_is_named_once() {
        let sent = [
            "content-type",
            "x-dynamo-session-id",
            "x-dynamo-meta-team",
            "x-dynamo-request-priority",
            "x-dynamo-meta-team",
            "x-dynamo-session-final",
            "thread-id",
        ];
        let notes = ["x-dynamo-meta-team", "x-dynamo-session-final"];
        assert_eq!(unheeded(sent, true), notes);
        assert_eq!(unheeded(sent, false), [notes[0], "x-dynamo-request-priority", notes[1]]);
    }

    #[test]
    fn names_are_bounded() {
        let names: Vec<_> = (0..40).map(|at| format!("x-dynamo-meta-{at}")).collect();
        let named = unheeded(names.iter().map(String::as_str), true);
        assert_eq!(named.len(), NAMED_MAX);
    }
}
