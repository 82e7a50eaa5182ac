//! Dates in templates are those of the calendar, and dates in headers are read back as they were.
//!
//! An input is a format, then eight bytes of seconds since 1970; fewer bytes are a smaller number.

use crate::split;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::Offset;
use serde_json::json;
use stator_api::openai::chat;
use stator_model::template::ChatTemplate;
use stator_runtime::date::rfc3339;
use std::sync::LazyLock;
use std::time::{Duration, UNIX_EPOCH};

/// A prompt that is a date and nothing else.
const SOURCE: &str = "{{ strftime_now(form) }}";
/// Directives that templates may use; `-` goes before some of them.
const DIRECTIVES: [&str; 21] = [
    "%Y", "%m", "%d", "%e", "%-d", "%-m", "%-H", "%B", "%b", "%h", "%A", "%a", "%H", "%I", "%M",
    "%S", "%p", "%j", "%F", "%T", "%%",
];

static TEMPLATE: LazyLock<ChatTemplate> = LazyLock::new(|| {
    let sources = vec![("default".to_owned(), SOURCE.to_owned())];
    ChatTemplate::new(sources, Vec::new()).expect("a template")
});

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    let (format, seconds) = split(input);
    let seconds = seconds.iter().take(8).fold(0, |all, byte| all << 8 | u64::from(*byte));
    let Some(time) = UNIX_EPOCH.checked_add(Duration::from_secs(seconds)) else { return };
    let timestamp = i64::try_from(seconds).ok().and_then(|it| Timestamp::from_second(it).ok());
    let timestamp = timestamp.unwrap_or_default();
    assert_eq!(rfc3339(time).parse().ok(), Some(timestamp));

    let form = String::from_utf8_lossy(format);
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "a"}],
        "chat_template_kwargs": {"form": form}});
    let body = body.to_string();
    let Ok(request) = chat::read(body.as_bytes()) else { return };
    let conversation = request.input.conversation().expect("a chat is a conversation");
    let rendered = TEMPLATE.render(conversation, time).expect("any format is one");
    assert_eq!(rendered, obvious(&form, Offset::UTC.to_datetime(timestamp)), "{form:?} {seconds}");
}

/// The date as the calendar's own library writes it, one directive after the other.
fn obvious(form: &str, date: DateTime) -> String {
    let (mut rest, mut out) = (form, String::new());
    while let Some(c) = rest.chars().next() {
        let directive = DIRECTIVES.iter().find(|directive| rest.starts_with(**directive));
        let (written, length) = match directive {
            Some(directive) => (date.strftime(directive).to_string(), directive.len()),
            // The library knows no year of another century.
            None if rest.starts_with("%y") => (format!("{:02}", date.year() % 100), 2),
            None if rest.starts_with("%D") => {
                (format!("{}/{:02}", date.strftime("%m/%d"), date.year() % 100), 2)
            }
            None if rest.starts_with("%Z") => ("UTC".to_owned(), 2),
            None if rest.starts_with("%z") => ("+0000".to_owned(), 2),
            // Text that is no directive stays, and so does the sign behind it, which begins none.
            None if rest.starts_with("%-") => pass(rest, 3),
            None if c == '%' => pass(rest, 2),
            None => pass(rest, 1),
        };
        out.push_str(&written);
        rest = &rest[length..];
    }
    out
}

/// So many characters as they stand, and their bytes.
fn pass(rest: &str, count: usize) -> (String, usize) {
    let text: String = rest.chars().take(count).collect();
    let bytes = text.len();
    (text, bytes)
}
