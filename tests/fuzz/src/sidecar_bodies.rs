//! Bodies that a sidecar reads, edits, screens and finds media in.

/// Runs the target.
pub(crate) fn run(body: &[u8]) {
    stator_proxy::fuzz::object(body);
    stator_proxy::fuzz::screened(body);
    stator_proxy::fuzz::media(body);
}
