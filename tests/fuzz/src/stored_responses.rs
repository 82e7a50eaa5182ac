//! Rows of the databases of responses are read if they are sound, refused if not, and written again as
//! they were.
//!
//! An input is an age or a time, counts of items and which of their texts are missing; then, each behind
//! a byte of 255, the space, session, object and events of a row, the texts of items (behind bytes of
//! 254), and lists of the numbers of items.

use stator_proxy::fuzz::{PostgresRow, SqliteRow, postgres_row, sqlite_row};

/// Between two columns.
const COLUMN: u8 = 255;
/// Between two items.
const ITEM: u8 = 254;
/// Columns that an input may have.
const COLUMNS: usize = 8;
/// Bytes of the numbers before the columns.
const NUMBERS: usize = 12;

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    let Some((numbers, columns)) = input.split_first_chunk::<NUMBERS>() else { return };
    let [time @ .., earlier, its_input, items, missing] = numbers;
    let time = i64::from_le_bytes(*time);
    let mut columns = columns.splitn(COLUMNS, |byte| *byte == COLUMN);
    let mut next = || columns.next().unwrap_or_default();
    let [space, session, object, events, texts] = [(); 5].map(|()| next());
    let texts: Vec<_> = texts.split(|byte| *byte == ITEM).map(String::from_utf8_lossy).collect();
    let texts: Vec<&str> = texts.iter().map(|text| &**text).collect();
    let session = String::from_utf8_lossy(session);
    sqlite_row(
        SqliteRow {
            space: (!space.is_empty()).then_some(space),
            session: &session,
            kept_at_s: time,
            object,
            events,
            lists: [(); 3].map(|()| next()),
        },
        &texts,
    );
    let found = texts.len().saturating_sub(usize::from(*missing));
    postgres_row(PostgresRow {
        age_s: time,
        earlier: i32::from(earlier.cast_signed()),
        input: i32::from(its_input.cast_signed()),
        texts: texts[..found].iter().map(|text| (*text).to_owned()).collect(),
        items: i32::from(items.cast_signed()),
    });
}
