//! Rows of the databases of responses, for fuzz targets.

use super::archive::{ArchivedResponse, Change, apply, prepare, read};
use super::postgres::StoredResponse;
use rusqlite::{Connection, params};
use stator_api::space::PrefixSpace;
use std::sync::Arc;

/// Bytes of a prefix space.
const SPACE_BYTES: usize = 32;
/// Bytes of an item's number.
const NUMBER_BYTES: usize = 8;

/// Columns of a row of the SQLite database.
#[derive(Clone, Copy, Debug, Default)]
pub struct SqliteRow<'a> {
    /// Owner of the response; none for the common space.
    pub space: Option<&'a [u8]>,
    /// The first response of its conversation.
    pub session: &'a str,
    /// When the response was kept, in seconds since 1970.
    pub kept_at_s: i64,
    /// The response's object.
    pub object: &'a [u8],
    /// Its events.
    pub events: &'a [u8],
    /// Lists of the numbers of its items: earlier ones, those of its request, those of its output.
    pub lists: [&'a [u8]; 3],
}

/// A row is read where its lists name items that there are, and is refused elsewhere. A response that
/// was read is the same after it was written again, and its items go with it.
pub fn sqlite_row(row: SqliteRow<'_>, items: &[&str]) {
    let first = database();
    for (number, text) in (1_i64..).zip(items) {
        let values = params![number, number.to_be_bytes(), text];
        first.execute("INSERT INTO items VALUES (?1, ?2, ?3, 1)", values).expect("an item");
    }
    let [earlier, input, output] = row.lists;
    let values = params![
        "r",
        row.space,
        row.session,
        row.kept_at_s,
        true,
        row.object,
        row.events,
        earlier,
        input,
        output
    ];
    let sql = "INSERT INTO responses VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
    first.execute(sql, values).expect("a row");
    let lists = row.lists.map(|list| named(list, items));
    let is_sound = lists.iter().all(Option::is_some)
        && row.space.is_none_or(|space| space.len() == SPACE_BYTES);
    let Ok(found) = read(&first) else {
        assert!(!is_sound, "a sound row is refused");
        return;
    };
    assert!(is_sound, "a damaged row is read");
    let [found] = &found[..] else { panic!("there is one row") };
    let texts: Vec<&str> = lists.iter().flatten().flatten().copied().collect();
    check(found, &texts, (row.object, row.events, row.session));

    let mut second = database();
    let [read_again] = &copied(&first, &mut second)[..] else { panic!("one was written") };
    check(read_again, &texts, (row.object, row.events, row.session));
    assert_eq!(read_again.record.space, found.record.space);
    assert_eq!(read_again.record.earlier, found.record.earlier);
    assert_eq!(read_again.record.input, found.record.input);
    apply(&mut second, &[Change::Forget("r".to_owned())]).expect("it is removed");
    assert!(read(&second).expect("nothing is damaged").is_empty());
    let left: i64 =
        second.query_row("SELECT count(*) FROM items", [], |row| row.get(0)).expect("a number");
    assert_eq!(left, 0, "items stay behind");
}

fn database() -> Connection {
    let mut connection = Connection::open_in_memory().expect("memory");
    prepare(&mut connection).expect("tables");
    connection
}

/// Writes all responses of one database into another, and reads them there.
fn copied(from: &Connection, to: &mut Connection) -> Vec<ArchivedResponse> {
    let kept = read(from).expect("it was read").into_iter();
    let changes: Vec<_> = kept
        .map(|ArchivedResponse { id, record, .. }| Change::Keep {
            id,
            record: Arc::new(record),
            kept_at_s: 0,
        })
        .collect();
    apply(to, &changes).expect("it is written");
    read(to).expect("it was written")
}

/// The texts that a list names, if it is sound.
fn named<'a>(list: &[u8], items: &[&'a str]) -> Option<Vec<&'a str>> {
    let whole = list.chunks(NUMBER_BYTES).map(|number| {
        let number = i64::from_le_bytes(number.try_into().ok()?);
        items.get(usize::try_from(number.checked_sub(1)?).ok()?).copied()
    });
    whole.collect()
}

fn check(found: &ArchivedResponse, texts: &[&str], row: (&[u8], &[u8], &str)) {
    let (object, events, session) = row;
    let ArchivedResponse { id, record, .. } = found;
    assert_eq!((&**id, &*record.session, record.is_over()), ("r", session, true));
    assert_eq!((&record.object()[..], &record.events(0).0.concat()[..]), (object, events));
    let items = record.items();
    assert_eq!(items.iter().map(|item| &**item).collect::<Vec<_>>(), texts);
    let (_, next) = record.events(0);
    for from in 0..=next {
        let rest = record.events(from).0.concat();
        assert!(events.ends_with(&rest), "events are not in order");
    }
}

/// Columns of a row of the PostgreSQL database.
#[derive(Clone, Debug, Default)]
pub struct PostgresRow {
    /// Age of the response in seconds.
    pub age_s: i64,
    /// Items of the responses before it.
    pub earlier: i32,
    /// Items of its request.
    pub input: i32,
    /// Texts that were found.
    pub texts: Vec<String>,
    /// Texts that there should be.
    pub items: i32,
}

/// A row is read where its counts are those of its items, which are then all there, in order.
pub fn postgres_row(row: PostgresRow) {
    let PostgresRow { age_s, earlier, input, texts, items } = row.clone();
    let stored = StoredResponse {
        session: "s".to_owned(),
        age_s,
        background: false,
        object: b"{}".to_vec(),
        events: Vec::new(),
        earlier,
        input,
        texts,
        items,
    };
    let counts = [row.earlier, row.input].map(i64::from);
    let is_sound = usize::try_from(row.items) == Ok(row.texts.len())
        && counts.iter().all(|count| *count >= 0)
        && counts.iter().sum::<i64>() <= i64::from(row.items);
    match stored.response("r", PrefixSpace::default()) {
        Err(_) => assert!(!is_sound, "a sound row is refused: {row:?}"),
        Ok(found) => {
            assert!(is_sound, "a damaged row is read: {row:?}");
            let read = found.record.items();
            assert!(read.iter().map(|item| &**item).eq(row.texts.iter().map(String::as_str)));
            assert_eq!(found.record.earlier.len() as i64, counts[0]);
            assert_eq!(found.record.input.len() as i64, counts[1]);
            assert_eq!(found.age.as_secs(), u64::try_from(row.age_s).unwrap_or(0));
        }
    }
}
