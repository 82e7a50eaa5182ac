//! `strftime` for chat templates that tell the model the date, in UTC.

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
    let (days, clock) = (seconds / 86_400, seconds % 86_400);
    let (hour, minute, second) = (clock / 3600, clock / 60 % 60, clock % 60);
    let (year, month, day) = civil(days);
    let month_name = MONTHS[month as usize - 1];
    let day_name = DAYS[((days + 4) % 7) as usize];
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
            Some('j') => write!(out, "{:03}", day_of_year(days, year)),
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

/// Year, month and day of a number of days since 1970-01-01.
///
/// Years are counted from March, so that the leap day is the last of its year and every month
/// starts at `(153 m + 2) / 5` days. Eras are the 400 years after which the calendar repeats.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

fn day_of_year(days: u64, year: u64) -> u64 {
    let before = year - 1;
    let first = before * 365 + before / 4 - before / 100 + before / 400 - 719_162;
    days - first + 1
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
