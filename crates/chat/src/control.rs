//! Control characters of a server's text.

/// A server's text without the control characters that a terminal would obey.
pub(crate) fn harmless(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect()
}
