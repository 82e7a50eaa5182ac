//! A body that is spliced says what the edited tree says, and every byte elsewhere stays.
//!
//! An input is a body, then steps of three bytes: a field, what is done to it, and a value.

use crate::{cut, split};
use serde_json::{Map, Value, json};
use stator_body::{Body, Editor, Field, scan};

/// Values to give: one of every kind.
const VALUES: [&str; 7] = ["1", "-2.5e3", "\"a\\n\"", "null", "true", "[1,{}]", "{\"b\":[]}"];
const MEMBER: &str = "token_data";

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    let (text, control) = split(input);
    let Ok(fields) = scan(text) else { return };
    let mut body = Body::new(text.len());
    for chunk in cut(text, control) {
        body.push(chunk).expect("the limit is its length");
    }
    let mut editor = Editor::new(text, &fields);
    let mut tree: Map<String, Value> = serde_json::from_slice(text).expect("it was scanned");
    for step in last_of_each(control) {
        apply(step, &mut editor, &mut tree);
    }
    let edits = editor.finish();
    let limit = control.first().map_or(1, |byte| usize::from(*byte) + 1);
    let pieces: Vec<_> = edits.pieces(&body, limit).collect();
    assert!(pieces.iter().all(|piece| (1..=limit).contains(&piece.len())));
    let edited = pieces.concat();
    assert_eq!(edited.len(), edits.edited_len(text.len()));
    assert!(!edits.is_empty() || edited == text);
    let edited: Value = serde_json::from_slice(&edited).expect("an edited body is sound");
    assert_eq!(edited, Value::Object(tree));
}

struct Step {
    field: Field,
    kind: u8,
    value: &'static str,
}

/// The steps, of each field only the last: that is the one that counts.
fn last_of_each(control: &[u8]) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for step in control.chunks_exact(3) {
        let field = Field::ALL[usize::from(step[0]) % Field::ALL.len()];
        steps.retain(|earlier| earlier.field != field);
        let value = VALUES[usize::from(step[2]) % VALUES.len()];
        steps.push(Step { field, kind: step[1] % 3, value });
    }
    steps
}

fn apply(step: Step, editor: &mut Editor<'_>, tree: &mut Map<String, Value>) {
    let Step { field, kind, value } = step;
    let read = || serde_json::from_str::<Value>(value).expect("values are JSON");
    match kind {
        0 => {
            editor.set(field, value);
            tree.insert(field.name().to_owned(), read());
        }
        1 => {
            editor.remove(field);
            tree.remove(field.name());
        }
        _ => {
            editor.merge(field, MEMBER, value);
            let object = tree.entry(field.name()).or_insert_with(|| json!({}));
            if !object.is_object() {
                *object = json!({});
            }
            object[MEMBER] = read();
        }
    }
}
