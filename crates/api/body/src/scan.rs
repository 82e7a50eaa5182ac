//! The one look at a request body: it is checked as a whole and its fields are located.

use crate::cursor::Cursor;
use crate::fields::Fields;
use crate::scan_error::{ScanError, ScanErrorKind};

/// Checks that `body` is one JSON object and locates its fields, in one pass and without a copy.
///
/// What is accepted is what `serde_json` accepts as an object, so that no reader behind us is
/// handed a body that it would read differently.
///
/// # Errors
///
/// The first thing that is wrong and its offset.
pub fn scan(body: &[u8]) -> Result<Fields, ScanError> {
    let mut cursor = Cursor::at(body, 0);
    cursor.space();
    if cursor.peek() != Some(b'{') {
        return Err(cursor.error(ScanErrorKind::NotAnObject));
    }
    let mut fields = Fields::new();
    let object = cursor.object(1, |member| fields.note(body, member))?;
    fields.close(object, cursor.saw_media());
    cursor.space();
    match cursor.peek() {
        None => Ok(fields),
        Some(_) => Err(cursor.error(ScanErrorKind::TrailingBytes)),
    }
}

#[cfg(test)]
#[path = "scan_tests.rs"]
pub(crate) mod tests;
