//! Every parser answers every body, and points at nothing outside it.
//!
//! An input is a byte that chooses the path, then the body.

use stator_body::{Parsed, ParserSet, parser};

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
    let paths: Vec<_> = parsers.iter().flat_map(|parser| parser.paths()).collect();
    let path = paths[usize::from(*choice) % paths.len()];
    for set in [ParserSet::new(parsers.to_vec()), ParserSet::default()] {
        let Ok(Parsed::Request(request)) = set.parse(path, body) else { continue };
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
