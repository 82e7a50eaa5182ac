//! `strftime` for chat templates that tell the model the date, in UTC.

use jiff::Timestamp;
use jiff::tz::Offset;
use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// Formats a time; directives that are not known stay as they are.
pub(crate) fn strftime(format: &str, time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let timestamp = i64::try_from(seconds).ok().and_then(|s| Timestamp::from_second(s).ok());
    let date = Offset::UTC.to_datetime(timestamp.unwrap_or_default());
    let (year, month, day) = (date.year(), date.month(), date.day());
    let (hour, minute, second) = (date.hour(), date.minute(), date.second());
    let month_name = MONTHS[month as usize - 1];
    let day_name = DAYS[date.weekday().to_sunday_zero_offset() as usize];
    let mut out = String::with_capacity(format.len() + 16);
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        // Writing to a string cannot fail.
        let _ = match chars.next() {
            Some('Y') => write!(out, "{year}"),
            Some('y') => write!(out, "{:02}", year % 100),
            Some('m') => write!(out, "{month:02}"),
            Some('d') => write!(out, "{day:02}"),
            Some('e') => write!(out, "{day:2}"),
            Some('-') => match chars.next() {
                Some('d') => write!(out, "{day}"),
                Some('m') => write!(out, "{month}"),
                Some('H') => write!(out, "{hour}"),
                Some(other) => write!(out, "%-{other}"),
                None => write!(out, "%-"),
            },
            Some('B') => write!(out, "{month_name}"),
            Some('b' | 'h') => write!(out, "{}", &month_name[..3]),
            Some('A') => write!(out, "{day_name}"),
            Some('a') => write!(out, "{}", &day_name[..3]),
            Some('H') => write!(out, "{hour:02}"),
            Some('I') => write!(out, "{:02}", (hour + 11) % 12 + 1),
            Some('M') => write!(out, "{minute:02}"),
            Some('S') => write!(out, "{second:02}"),
            Some('p') => write!(out, "{}", if hour < 12 { "AM" } else { "PM" }),
            Some('j') => write!(out, "{:03}", date.day_of_year()),
            Some('F') => write!(out, "{year}-{month:02}-{day:02}"),
            Some('T') => write!(out, "{hour:02}:{minute:02}:{second:02}"),
            Some('D') => write!(out, "{month:02}/{day:02}/{:02}", year % 100),
            Some('Z') => write!(out, "UTC"),
            Some('z') => write!(out, "+0000"),
            Some('%') => write!(out, "%"),
            Some(other) => write!(out, "%{other}"),
            None => write!(out, "%"),
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[track_caller]
    fn check(seconds: u64, format: &str, expected: &str) {
        assert_eq!(strftime(format, UNIX_EPOCH + Duration::from_secs(seconds)), expected);
    }

    #[test]
    fn dates_are_the_calendars() {
        check(0, "%A, %d %B %Y %H:%M:%S", "Thursday, 01 January 1970 00:00:00");
        check(951_782_400, "%d %b %Y", "29 Feb 2000");
        check(1_735_689_599, "%F %T %j %p %I", "2024-12-31 23:59:59 366 PM 11");
        check(4_107_542_399, "%-d.%-m.%y %a", "28.2.00 Sun");
        check(4_107_542_400, "%Y-%m-%d %j", "2100-03-01 060");
        check(0, "100%% %Q %", "100% %Q %");
    }
}
