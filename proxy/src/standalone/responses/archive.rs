//! Responses in an SQLite database, so that they outlive the process.
//!
//! The store in memory decides what is kept, and answers. The database follows the store, and is read
//! once, when the process starts. A thread writes changes in order, so that no request waits for a
//! disk: a process that is killed loses the last few.

use super::record::{FinishedResponse, ResponseKeeping, ResponseRecord};
use anyhow::{Context, bail, ensure};
use ring::digest::{SHA256, digest};
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use stator_api::space::PrefixSpace;
use std::collections::HashMap;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Form of the database; one of another form is refused.
const FORM: i64 = 1;
/// Responses that wait for the disk. One beyond is not written, which a restart shows.
const UNWRITTEN_MAX: usize = 4096;
/// Changes of one transaction.
const BATCH_MAX: usize = 256;
/// Bytes of an item's number in a list.
const NUMBER_BYTES: usize = size_of::<i64>();
/// Items are shared by all responses of a conversation, and counted.
const SCHEMA: &str = "
    CREATE TABLE items (
        number INTEGER PRIMARY KEY,
        digest BLOB NOT NULL UNIQUE,
        text TEXT NOT NULL,
        uses INTEGER NOT NULL
    );
    CREATE TABLE responses (
        id TEXT PRIMARY KEY,
        space BLOB,
        session TEXT NOT NULL,
        kept_at_s INTEGER NOT NULL,
        background INTEGER NOT NULL,
        object BLOB NOT NULL,
        events BLOB NOT NULL,
        earlier BLOB NOT NULL,
        input BLOB NOT NULL,
        output BLOB NOT NULL
    );
    PRAGMA user_version = 1;
";

/// A response that was in the database.
pub(crate) struct ArchivedResponse {
    pub id: String,
    pub record: ResponseRecord,
    /// Time since it was kept.
    pub age: Duration,
}

/// A change of the database.
pub(super) enum Change {
    Keep { id: String, record: Arc<ResponseRecord>, kept_at_s: i64 },
    Forget(String),
}

/// The database of a store. Dropping it waits until all changes are written.
pub(crate) struct ResponseArchive {
    /// None once it ends. Its bound is that of the responses: each is written once and removed once.
    changes: Option<Sender<Change>>,
    /// Responses that wait for the disk.
    unwritten: Arc<AtomicUsize>,
    writer: Option<JoinHandle<()>>,
}

impl ResponseArchive {
    /// Opens the database, or makes it, and reads all of its responses, oldest first.
    ///
    /// # Errors
    ///
    /// A file that cannot be opened, that another process uses, or that is of another form.
    pub(crate) fn open(path: &Path) -> anyhow::Result<(Self, Vec<ArchivedResponse>)> {
        let what = || format!("responses-store: {}", path.display());
        // Conversations are their tenants' own: nobody else on this machine reads them.
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        options.open(path).with_context(what)?;
        let mut connection = Connection::open(path).with_context(what)?;
        prepare(&mut connection).with_context(what)?;
        let responses = read(&connection).with_context(what)?;
        let (changes, waiting) = channel();
        let unwritten = Arc::new(AtomicUsize::new(0));
        let counted = unwritten.clone();
        let writer = std::thread::Builder::new().name("responses".into());
        let writer =
            writer.spawn(move || write(connection, &waiting, &counted)).with_context(what)?;
        Ok((Self { changes: Some(changes), unwritten, writer: Some(writer) }, responses))
    }

    /// Has a response written if it is over; returns whether it will be.
    pub(crate) fn keep(&self, id: &str, record: &Arc<ResponseRecord>) -> bool {
        if !record.is_over() {
            return false;
        }
        if self.unwritten.load(Ordering::Relaxed) >= UNWRITTEN_MAX {
            tracing::warn!(id, "the database of responses is too slow: a response is not written");
            return false;
        }
        self.unwritten.fetch_add(1, Ordering::Relaxed);
        let (id, record) = (id.to_owned(), record.clone());
        self.send(Change::Keep { id, record, kept_at_s: now_s() });
        true
    }

    /// Has a response removed that is written, or will be. It is never left out: a response that its
    /// client deleted does not come back.
    pub(crate) fn forget(&self, id: &str) {
        self.send(Change::Forget(id.to_owned()));
    }

    fn send(&self, change: Change) {
        // The writer ends only after its sender.
        let _ = self.changes.as_ref().map(|changes| changes.send(change));
    }
}

impl Drop for ResponseArchive {
    fn drop(&mut self) {
        self.changes.take();
        if let Some(writer) = self.writer.take() {
            // A panic of the thread has been printed already.
            let _ = writer.join();
        }
    }
}

fn now_s() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_secs()).unwrap_or(i64::MAX)
}

/// Takes the database for this process alone, and makes its tables where there are none.
///
/// # Errors
///
/// A database that another process uses, or of another form.
pub(super) fn prepare(connection: &mut Connection) -> anyhow::Result<()> {
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    // Nothing of a response that is removed stays in the file.
    connection.pragma_update(None, "secure_delete", "ON")?;
    let transaction =
        connection.transaction_with_behavior(rusqlite::TransactionBehavior::Exclusive);
    let transaction = transaction.context("another process uses the database")?;
    match transaction.query_row("PRAGMA user_version", [], |row| row.get::<_, i64>(0))? {
        0 => transaction.execute_batch(SCHEMA)?,
        FORM => {}
        other => bail!("the database has the form {other}, this version reads the form {FORM}"),
    }
    Ok(transaction.commit()?)
}

/// All responses of the database, oldest first.
///
/// # Errors
///
/// A database that cannot be read, and a row that is damaged.
pub(super) fn read(connection: &Connection) -> anyhow::Result<Vec<ArchivedResponse>> {
    let mut items: HashMap<i64, Arc<str>> = HashMap::new();
    let mut statement = connection.prepare("SELECT number, text FROM items")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        items.insert(row.get(0)?, row.get::<_, String>(1)?.into());
    }
    let mut statement = connection.prepare(
        "SELECT id, space, kept_at_s, background, object, events, earlier, input, output, session
         FROM responses ORDER BY kept_at_s, rowid",
    )?;
    let mut rows = statement.query([])?;
    let (mut responses, now_s) = (Vec::new(), now_s());
    while let Some(row) = rows.next()? {
        let id: String = row.get(0)?;
        let read = read_row(row, &items).with_context(|| format!("the response {id:?}"));
        let (record, kept_at_s) = read?;
        let age = Duration::from_secs(u64::try_from(now_s.saturating_sub(kept_at_s)).unwrap_or(0));
        responses.push(ArchivedResponse { id, record, age });
    }
    Ok(responses)
}

/// The record of a row, and when it was kept, in seconds since 1970.
fn read_row(
    row: &Row<'_>,
    items: &HashMap<i64, Arc<str>>,
) -> anyhow::Result<(ResponseRecord, i64)> {
    let space: Option<Vec<u8>> = row.get(1)?;
    let named = |column| -> anyhow::Result<Vec<Arc<str>>> {
        let bytes: Vec<u8> = row.get(column)?;
        ensure!(bytes.len().is_multiple_of(NUMBER_BYTES), "a list of items is damaged");
        let found = numbers(&bytes).map(|number| items.get(&number).cloned());
        found.collect::<Option<_>>().context("an item is missing")
    };
    let keeping = ResponseKeeping {
        space: PrefixSpace::read(space.as_deref()).context("the space is damaged")?,
        session: row.get::<_, String>(9)?.into(),
        earlier: named(6)?,
        input: named(7)?,
        background: row.get(3)?,
    };
    let finished = FinishedResponse {
        object: row.get::<_, Vec<u8>>(4)?.into(),
        events: row.get::<_, Vec<u8>>(5)?.into(),
        items: named(8)?,
    };
    Ok((ResponseRecord::finished(&keeping, finished), row.get(2)?))
}

/// Writes changes until nobody sends any more.
fn write(mut connection: Connection, changes: &Receiver<Change>, unwritten: &AtomicUsize) {
    // Removals that failed, for the next attempt.
    let mut batch: Vec<Change> = Vec::new();
    while let Ok(first) = changes.recv() {
        batch.push(first);
        batch.extend(changes.try_iter().take(BATCH_MAX - 1));
        let kept = batch.iter().filter(|change| matches!(change, Change::Keep { .. })).count();
        let applied = apply(&mut connection, &batch);
        unwritten.fetch_sub(kept, Ordering::Relaxed);
        match applied {
            Ok(()) => batch.clear(),
            Err(error) => {
                tracing::error!(%error, responses = kept, "responses were not written");
                batch.retain(|change| matches!(change, Change::Forget(_)));
            }
        }
    }
}

/// Makes all changes of a batch, in order, or none.
///
/// # Errors
///
/// A database that cannot be written.
pub(super) fn apply(connection: &mut Connection, batch: &[Change]) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    for change in batch {
        match change {
            Change::Forget(id) => forget(&transaction, id)?,
            Change::Keep { id, record, kept_at_s } => {
                forget(&transaction, id)?;
                keep(&transaction, id, record, *kept_at_s)?;
            }
        }
    }
    transaction.commit()
}

fn keep(
    transaction: &Transaction<'_>,
    id: &str,
    record: &ResponseRecord,
    kept_at_s: i64,
) -> rusqlite::Result<()> {
    let FinishedResponse { object, events, items } = record.finish();
    let [earlier, input, output] =
        [&record.earlier, &record.input, &items].map(|items| use_items(transaction, items));
    let mut statement = transaction
        .prepare_cached("INSERT INTO responses VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)")?;
    let (object, events): (&[u8], &[u8]) = (&object, &events);
    statement.execute(params![
        id,
        record.space.bytes(),
        &*record.session,
        kept_at_s,
        record.background,
        object,
        events,
        earlier?,
        input?,
        output?
    ])?;
    Ok(())
}

/// Counts a use of each item; returns their numbers.
fn use_items(transaction: &Transaction<'_>, items: &[Arc<str>]) -> rusqlite::Result<Vec<u8>> {
    let mut statement = transaction.prepare_cached(
        "INSERT INTO items (digest, text, uses) VALUES (?1, ?2, 1)
         ON CONFLICT (digest) DO UPDATE SET uses = uses + 1 RETURNING number",
    )?;
    let mut numbers = Vec::with_capacity(items.len() * NUMBER_BYTES);
    for item in items {
        let digest = digest(&SHA256, item.as_bytes());
        let number: i64 =
            statement.query_row(params![digest.as_ref(), &**item], |row| row.get(0))?;
        numbers.extend_from_slice(&number.to_le_bytes());
    }
    Ok(numbers)
}

fn forget(transaction: &Transaction<'_>, id: &str) -> rusqlite::Result<()> {
    let mut find = transaction
        .prepare_cached("DELETE FROM responses WHERE id = ?1 RETURNING earlier, input, output")?;
    let found = find.query_row([id], |row| {
        let lists: [Vec<u8>; 3] = [row.get(0)?, row.get(1)?, row.get(2)?];
        Ok(lists.concat())
    });
    let Some(items) = found.optional()? else { return Ok(()) };
    let mut less = transaction
        .prepare_cached("UPDATE items SET uses = uses - 1 WHERE number = ?1 RETURNING uses")?;
    let mut remove = transaction.prepare_cached("DELETE FROM items WHERE number = ?1")?;
    for number in numbers(&items) {
        let uses: Option<i64> = less.query_row([number], |row| row.get(0)).optional()?;
        if uses.is_some_and(|uses| uses <= 0) {
            remove.execute([number])?;
        }
    }
    Ok(())
}

/// Numbers of items, eight bytes each.
fn numbers(bytes: &[u8]) -> impl Iterator<Item = i64> {
    bytes.as_chunks().0.iter().map(|chunk| i64::from_le_bytes(*chunk))
}

#[cfg(test)]
mod tests {
    use super::super::{ResponseStore, StoreLimits};
    use super::*;
    use crate::standalone::responses::tenant_space;

    const LIMITS: StoreLimits =
        StoreLimits { bytes: 1 << 20, responses: 10, ttl: Duration::from_secs(60) };

    fn keep(store: &ResponseStore, id: &str, items: &[&str], space: PrefixSpace) {
        let keeping = ResponseKeeping::of_tests(space, items);
        let finished = FinishedResponse {
            object: id.as_bytes().to_vec().into(),
            events: b"event: a\n\nevent: b\n\n".as_slice().into(),
            items: vec!["out".into()],
        };
        let record = Arc::new(ResponseRecord::finished(&keeping, finished));
        store.keep(id, record.clone(), record.bytes());
    }

    /// Items of the database.
    fn items(path: &Path) -> i64 {
        let connection = Connection::open(path).expect("a database");
        connection.query_row("SELECT count(*) FROM items", [], |row| row.get(0)).expect("a number")
    }

    #[test]
    fn responses_outlive_their_process_as_they_were() {
        let home = tempfile::tempdir().expect("a folder");
        let path = home.path().join("responses");
        let (mine, yours) = (tenant_space(1), PrefixSpace::default());
        let store = ResponseStore::open(LIMITS, &path).expect("a store");
        keep(&store, "a", &["shared", "one"], mine);
        keep(&store, "b", &["shared", "two"], yours);
        keep(&store, "c", &["three"], yours);
        store.forget("c", yours).expect("it was kept");
        drop(store);
        assert_eq!(items(&path), 4, "shared, one, two, out");

        let store = ResponseStore::open(LIMITS, &path).expect("a store");
        assert!(store.find("a", yours).is_none() && store.find("c", yours).is_none());
        let found = store.find("a", mine).expect("it was kept");
        assert_eq!(found.items(), ["shared", "one", "out"].map(Arc::from));
        assert_eq!((found.object(), found.events(1).1), (b"a".to_vec(), 2));
        assert_eq!((found.events(1).0, &*found.session), (vec!["event: b\n\n".into()], "first"));
        assert!(store.find("b", yours).is_some() && found.is_over());
        // Responses that the bounds push out leave the database, too, and their items with them.
        drop(store);
        let fewer = StoreLimits { responses: 1, ..LIMITS };
        drop(ResponseStore::open(fewer, &path).expect("a store"));
        assert_eq!(items(&path), 3);
        let none = StoreLimits { ttl: Duration::ZERO, ..LIMITS };
        drop(ResponseStore::open(none, &path).expect("a store"));
        assert_eq!(items(&path), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_over_leaves_the_database_though_nobody_asks() {
        let home = tempfile::tempdir().expect("a folder");
        let path = home.path().join("responses");
        let limits = StoreLimits { ttl: Duration::ZERO, ..LIMITS };
        let store = Arc::new(ResponseStore::open(limits, &path).expect("a store"));
        keep(&store, "a", &["one"], PrefixSpace::default());
        assert_eq!(store.usage().responses, 1);
        let sweep = ResponseStore::sweep(Arc::downgrade(&store));
        tokio::time::timeout(Duration::from_millis(1), sweep).await.expect_err("it goes on");
        assert_eq!(store.usage().responses, 0);
        store.close();
        assert_eq!(items(&path), 0);
    }

    #[test]
    fn a_database_has_one_process_and_a_form() {
        let home = tempfile::tempdir().expect("a folder");
        let path = home.path().join("responses");
        let store = ResponseStore::open(LIMITS, &path).expect("a store");
        let refused = |what: &str| {
            let error = ResponseStore::open(LIMITS, &path).err().expect("an error");
            assert!(format!("{error:#}").contains(what), "{error:#}");
        };
        refused("database is locked");
        drop(store);
        let connection = Connection::open(&path).expect("a database");
        connection.pragma_update(None, "user_version", 9).expect("a form");
        drop(connection);
        refused("the form 9, this version reads the form 1");
    }

    #[test]
    fn a_damaged_row_is_refused_by_its_name() {
        let home = tempfile::tempdir().expect("a folder");
        let path = home.path().join("responses");
        let store = ResponseStore::open(LIMITS, &path).expect("a store");
        keep(&store, "a", &["one"], tenant_space(1));
        drop(store);
        for (change, what) in [
            ("UPDATE responses SET input = x'010000000000000002'", "a list of items is damaged"),
            ("UPDATE responses SET input = x'0900000000000000'", "an item is missing"),
            ("UPDATE responses SET space = x'01'", "the space is damaged"),
        ] {
            let copy = home.path().join("copy");
            std::fs::copy(&path, &copy).expect("a copy");
            let connection = Connection::open(&copy).expect("a database");
            connection.execute(change, []).expect("a change");
            drop(connection);
            let error = ResponseStore::open(LIMITS, &copy).err().expect("an error");
            let error = format!("{error:#}");
            assert!(error.contains(&format!("the response \"a\": {what}")), "{error}");
        }
    }
}
