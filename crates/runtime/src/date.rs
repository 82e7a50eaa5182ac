//! Dates in texts.

use jiff::Timestamp;
use std::time::{SystemTime, UNIX_EPOCH};

/// A time in UTC, to the second. Times before 1970 and beyond year 9999 are 1970.
pub fn rfc3339(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let seconds = i64::try_from(seconds).unwrap_or_default();
    Timestamp::from_second(seconds).unwrap_or_default().to_string()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn dates_follow_the_calendar() {
        let check = |seconds, expected: &str| {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_secs(seconds)), expected)
        };
        check(0, "1970-01-01T00:00:00Z");
        check(951_827_696, "2000-02-29T12:34:56Z");
        check(951_868_800, "2000-03-01T00:00:00Z");
        check(1_798_761_599, "2026-12-31T23:59:59Z");
    }
}
