//! Every parser answers every body, and points at nothing outside it. A body that was screened has
//! nothing more to lose.
//!
//! An input is a byte that chooses the path, then the body.

use stator_body::{BodyDescription, FieldRules, ParseOutcome, ParserSet, ScreenOutcome, parser};

const PARSERS: [&str; 7] = [
    "openai-parser",
    "anthropic-parser",
    "vllmhttp-parser",
    "sglanghttp-parser",
    "vllmgrpc-parser",
    "vertexai-parser",
    "passthrough-parser",
];

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    let Some((choice, body)) = input.split_first() else { return };
    let parsers = PARSERS.map(|name| parser(name).expect("it is known"));
    let families = parsers.iter().flat_map(|parser| parser.families());
    let paths: Vec<_> = families.flat_map(|family| family.endings()).collect();
    let path = paths[usize::from(*choice) % paths.len()];
    screen(path, body);
    for set in [ParserSet::new(parsers.to_vec()), ParserSet::default()] {
        let Ok(ParseOutcome::Request(request)) = set.parse(path, body) else { continue };
        let inside = body.as_ptr_range();
        for piece in request.prompt_bytes(body) {
            let piece = piece.as_ptr_range();
            assert!(inside.start <= piece.start && piece.end <= inside.end);
        }
        assert!(request.cache_salt.as_deref() != Some(""));
        if let Some(ids) = request.token_ids(body) {
            assert!(ids.len() <= body.len());
        }
        if let Some(mut editor) = request.editor(body) {
            editor.set_string(stator_body::Field::Model, "m\"");
            assert!(editor.finish().edited_len(body.len()) > 0);
        }
    }
}

/// Screens a body that nobody read.
fn screen(path: &str, body: &[u8]) {
    let rules = FieldRules::default();
    let screen = |body: &[u8]| {
        let described = BodyDescription { path, content_type: None };
        match rules.screen_body(described, &body.to_vec().into(), None) {
            Ok(ScreenOutcome::Read(screening)) => Some(screening.edits()),
            _ => None,
        }
    };
    let Some(edits) = screen(body) else { return };
    let left = edits.apply(body);
    assert!(screen(&left).is_some_and(|edits| edits.is_empty()));
}
