//! Keys that the agent shares with engines. No message shows one.

use stator_dialect::ApiKey;
use std::path::Path;

/// Longest key, in bytes.
const BYTES_MAX: usize = 4096;

/// The engine's API key, from the flag or the file.
pub(super) fn api_key(
    given: Option<ApiKey>,
    file: Option<&Path>,
) -> Result<Option<ApiKey>, String> {
    // What else a header may have is quoted where engines log what they were told.
    let quoted = |char: char| !char.is_ascii_graphic() || matches!(char, '"' | '\'' | '\\');
    let what = "white space, a quote or what is no ASCII";
    read("engine-api-key", (given, file), (quoted, what))
}

/// The key that signs hand-overs, from the flag or the file.
pub(super) fn handover_key(
    given: Option<ApiKey>,
    file: Option<&Path>,
) -> Result<Option<ApiKey>, String> {
    read("engine-handover-key", (given, file), (char::is_control, "a control character"))
}

/// A key given as `flag` says, or in a file that `flag` with `-file` names, without characters that
/// it must not have.
fn read(
    flag: &str,
    (given, file): (Option<ApiKey>, Option<&Path>),
    (is_refused, what): (impl Fn(char) -> bool, &str),
) -> Result<Option<ApiKey>, String> {
    let (place, key) = match (given, file) {
        (Some(_), Some(_)) => return Err(format!("{flag}-file: {flag} gives a key already")),
        (Some(ApiKey(key)), None) => (flag.to_owned(), key),
        (None, Some(file)) => {
            let key = std::fs::read_to_string(file)
                .map_err(|error| format!("{flag}-file: cannot read {file:?}: {error}"))?;
            (format!("{flag}-file"), key.trim().to_owned())
        }
        (None, None) => return Ok(None),
    };
    if key.is_empty() || key.len() > BYTES_MAX {
        return Err(format!("{place}: the key has {} bytes, 1 to {BYTES_MAX}", key.len()));
    }
    if key.contains(is_refused) {
        return Err(format!("{place}: the key has {what}"));
    }
    Ok(Some(ApiKey(key)))
}
