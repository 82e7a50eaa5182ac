//! Answers of a Kubernetes API server: objects are read or refused, lines of a watch are the same
//! however they are cut, and a refusal's message is bounded.

use crate::{cut, split};
use http::StatusCode;
use stator_kube::fuzz::{lines, refusal};

/// Longest message that is kept of a refusal, with what is said around it.
const MESSAGE_BYTES_MAX: usize = 1024;

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    let (answer, sizes) = split(input);
    let pieces = cut(answer, sizes);
    let whole = lines([answer]);
    assert_eq!(whole, lines(pieces.iter().map(|piece| &piece[..])));
    assert!(whole.iter().all(|line| !line.contains(&b'\n')));
    for status in
        [StatusCode::NOT_FOUND, StatusCode::GONE, StatusCode::CONFLICT, StatusCode::FORBIDDEN]
    {
        assert!(refusal(status, answer).to_string().len() <= MESSAGE_BYTES_MAX);
    }
    if let Ok(json) = std::str::from_utf8(answer) {
        let _ = stator_discovery::fuzz::kubernetes_object(json);
        let _ = stator_epp_pool::fuzz::kubernetes_object(json);
    }
}
