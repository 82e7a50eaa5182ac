//! What the text of a flag means.

use std::time::Duration;

/// A time above 0 and at most 24 hours.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let parsed = stator_epp_config::parse_duration(text)?;
    let day = Duration::from_secs(86_400);
    match parsed > Duration::ZERO && parsed <= day {
        true => Ok(parsed),
        false => Err(format!("{text} is not above 0 and at most 24h")),
    }
}

/// A time of at most 10 minutes.
pub(super) fn delay(text: &str) -> Result<Duration, String> {
    let parsed = stator_epp_config::parse_duration(text)?;
    let minutes = Duration::from_secs(600);
    if parsed <= minutes { Ok(parsed) } else { Err(format!("{text} is not at most 10m")) }
}

/// A size of 1 KiB to 4 GiB, in bytes.
pub(super) fn size(text: &str) -> Result<u64, String> {
    bytes(text, 1 << 32)
}

/// A size of 1 KiB to 16 MiB, in bytes.
pub(super) fn head_size(text: &str) -> Result<u64, String> {
    bytes(text, 16 << 20)
}

/// A quantity with or without a `B` at its end, from 1 KiB to `max`.
fn bytes(text: &str, max: u64) -> Result<u64, String> {
    let number = text.strip_suffix(['B', 'b']).unwrap_or(text);
    match stator_epp_config::parse_quantity(number)? {
        bytes if (1024..=max).contains(&bytes) => Ok(bytes),
        bytes => Err(format!("{bytes} is not in 1024..={max}")),
    }
}
