//! A target or a rule of the sidecar's list survives being printed, or is refused.

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    stator_proxy::fuzz::allow_list(text);
}
