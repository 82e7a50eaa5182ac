//! The query of a request's target is settled: each parameter is read, named as ignored, or refused.

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    stator_proxy::fuzz::query(text);
}
