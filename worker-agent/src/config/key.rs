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
    // Engines log headers with quotes around them: a key must not end them.
    let forbidden = Characters {
        are_these: |char| !char.is_ascii_graphic() || matches!(char, '"' | '\'' | '\\'),
        name: "white space, a quote or what is no ASCII",
    };
    read("engine-api-key", given, file, &forbidden)
}

/// The key that signs hand-overs, from the flag or the file.
pub(super) fn handover_key(
    given: Option<ApiKey>,
    file: Option<&Path>,
) -> Result<Option<ApiKey>, String> {
    let forbidden = Characters { are_these: char::is_control, name: "a control character" };
    read("engine-handover-key", given, file, &forbidden)
}

/// A set of characters, with its name in messages.
struct Characters {
    are_these: fn(char) -> bool,
    name: &'static str,
}

/// The key of `flag`, or of the file that `flag` with `-file` names, without `forbidden` ones.
fn read(
    flag: &str,
    given: Option<ApiKey>,
    file: Option<&Path>,
    forbidden: &Characters,
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
    if key.contains(forbidden.are_these) {
        return Err(format!("{place}: the key has {}", forbidden.name));
    }
    Ok(Some(ApiKey(key)))
}
