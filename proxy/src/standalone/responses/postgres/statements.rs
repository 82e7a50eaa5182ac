//! The tables of responses, and what is done to them in one transaction.
//!
//! Items are shared by all responses of a conversation, and counted. Transactions that change
//! something take turns, those of other proxies too, so that the counts are right.

use super::super::archive::ArchivedResponse;
use super::super::limits::StoreLimits;
use super::super::record::{FinishedResponse, ResponseKeeping, ResponseRecord};
use anyhow::{Context, bail, ensure};
use ring::digest::{SHA256, digest};
use stator_api::space::PrefixSpace;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row, Transaction};

/// Form of the tables; a database with another form is refused.
const FORM: i32 = 1;
/// Key of the lock under which changes take turns: `stator`, in ASCII.
const TURN: &str = "SELECT pg_advisory_xact_lock(126943972122482)";
const SCHEMA: &str = "
    CREATE TABLE stator_responses_form (form INTEGER NOT NULL);
    INSERT INTO stator_responses_form VALUES (1);
    CREATE TABLE stator_response_items (
        number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        digest BYTEA NOT NULL UNIQUE,
        text TEXT NOT NULL,
        uses BIGINT NOT NULL
    );
    CREATE TABLE stator_responses (
        id TEXT PRIMARY KEY,
        space BYTEA,
        session TEXT NOT NULL,
        kept_at_s BIGINT NOT NULL,
        bytes BIGINT NOT NULL,
        background BOOLEAN NOT NULL,
        object BYTEA NOT NULL,
        events BYTEA NOT NULL,
        items BIGINT[] NOT NULL,
        earlier INTEGER NOT NULL,
        input INTEGER NOT NULL
    );
    CREATE INDEX stator_responses_age ON stator_responses (kept_at_s);
    CREATE INDEX stator_response_items_unused ON stator_response_items (uses) WHERE uses <= 0;
";
const NOW_S: &str = "extract(epoch FROM now())::bigint";

/// Makes the tables where there are none.
///
/// # Errors
///
/// Tables of another form, or a user who may not make them.
pub(super) async fn prepare(client: &mut Client) -> anyhow::Result<()> {
    let transaction = client.transaction().await?;
    transaction.batch_execute(TURN).await?;
    let found = transaction
        .query_typed_one("SELECT to_regclass('stator_responses_form') IS NOT NULL", &[])
        .await?;
    if !found.try_get::<_, bool>(0)? {
        transaction.batch_execute(SCHEMA).await.context("the tables cannot be made")?;
    }
    let form = transaction.query_typed_one("SELECT form FROM stator_responses_form", &[]).await?;
    match form.try_get(0)? {
        FORM => {}
        other => bail!("the tables have the form {other}, this version reads the form {FORM}"),
    }
    Ok(transaction.commit().await?)
}

/// The response of this id, if it is of this space and was kept less than `ttl` ago.
///
/// # Errors
///
/// A database that does not answer, and a row that is damaged.
pub(super) async fn find(
    client: &Client,
    id: &str,
    space: PrefixSpace,
    ttl: Duration,
) -> anyhow::Result<Option<ArchivedResponse>> {
    let sql = format!(
        "SELECT session, {NOW_S} - kept_at_s, background, object, events, earlier, input,
            ARRAY(SELECT text FROM unnest(items) WITH ORDINALITY AS wanted (item, place)
                  JOIN stator_response_items ON number = item ORDER BY place),
            cardinality(items)
         FROM stator_responses
         WHERE id = $1 AND space IS NOT DISTINCT FROM $2 AND {NOW_S} - kept_at_s < $3"
    );
    let (space_bytes, ttl_s) = (space.bytes(), seconds(ttl));
    let parameters: [(&(dyn ToSql + Sync), Type); 3] =
        [(&id, Type::TEXT), (&space_bytes, Type::BYTEA), (&ttl_s, Type::INT8)];
    let row = client.query_typed_opt(&sql, &parameters).await?;
    let Some(row) = row else { return Ok(None) };
    let response = StoredResponse::of(&row)?.response(id, space);
    response.map(Some).context("a row of stator_responses")
}

/// A row of `stator_responses`, and the texts of its items.
pub(crate) struct StoredResponse {
    pub session: String,
    pub age_s: i64,
    pub background: bool,
    pub object: Vec<u8>,
    pub events: Vec<u8>,
    /// Items of the responses before it, and of its request; all others are of its output.
    pub earlier: i32,
    pub input: i32,
    /// Texts that were found.
    pub texts: Vec<String>,
    /// Texts that there should be.
    pub items: i32,
}

impl StoredResponse {
    fn of(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            session: row.try_get(0)?,
            age_s: row.try_get(1)?,
            background: row.try_get(2)?,
            object: row.try_get(3)?,
            events: row.try_get(4)?,
            earlier: row.try_get(5)?,
            input: row.try_get(6)?,
            texts: row.try_get(7)?,
            items: row.try_get(8)?,
        })
    }

    /// The response of the row, which has this id and is of this space.
    ///
    /// # Errors
    ///
    /// A row whose items are not all there, or whose counts are not theirs.
    pub(crate) fn response(self, id: &str, space: PrefixSpace) -> anyhow::Result<ArchivedResponse> {
        let found = self.texts.len();
        ensure!(
            usize::try_from(self.items) == Ok(found),
            "{found} of {} items are there",
            self.items
        );
        let mut texts = self.texts.into_iter().map(Arc::<str>::from);
        let mut take = |what, count: i32| {
            let wanted = usize::try_from(count).ok();
            let taken: Vec<_> = texts.by_ref().take(wanted.unwrap_or(0)).collect();
            ensure!(wanted == Some(taken.len()), "{count} {what} items are not among {found}");
            Ok(taken)
        };
        let (earlier, input) = (take("earlier", self.earlier)?, take("input", self.input)?);
        let session = self.session.into();
        let keeping =
            ResponseKeeping { space, session, earlier, input, background: self.background };
        let finished = FinishedResponse {
            object: self.object.into(),
            events: self.events.into(),
            items: texts.collect(),
        };
        Ok(ArchivedResponse {
            id: id.to_owned(),
            record: ResponseRecord::finished(&keeping, finished),
            age: Duration::from_secs(self.age_s.try_into().unwrap_or(0)),
        })
    }
}

/// Begins a transaction that changes something, once it is its turn.
pub(super) async fn begin(client: &mut Client) -> Result<Transaction<'_>, Error> {
    let transaction = client.transaction().await?;
    transaction.batch_execute(TURN).await?;
    Ok(transaction)
}

/// Keeps a response, in place of one of the same id.
pub(super) async fn keep(
    transaction: &Transaction<'_>,
    id: &str,
    record: &ResponseRecord,
) -> Result<(), Error> {
    forget(transaction, id).await?;
    let FinishedResponse { object, events, items } = record.finish();
    let all: Vec<_> = record.earlier.iter().chain(&record.input).chain(&items).collect();
    let numbers = use_items(transaction, &all).await?;
    let sql = format!(
        "INSERT INTO stator_responses
         VALUES ($1, $2, $3, {NOW_S}, $4, $5, $6, $7, $8, $9, $10)"
    );
    let (object, events): (&[u8], &[u8]) = (&object, &events);
    let parameters: [(&(dyn ToSql + Sync), Type); 10] = [
        (&id, Type::TEXT),
        (&record.space.bytes(), Type::BYTEA),
        (&&*record.session, Type::TEXT),
        (&(record.bytes() as i64), Type::INT8),
        (&record.background, Type::BOOL),
        (&object, Type::BYTEA),
        (&events, Type::BYTEA),
        (&numbers, Type::INT8_ARRAY),
        (&(record.earlier.len() as i32), Type::INT4),
        (&(record.input.len() as i32), Type::INT4),
    ];
    transaction.execute_typed(&sql, &parameters).await.map(drop)
}

/// Counts a use of each item; returns their numbers.
async fn use_items(transaction: &Transaction<'_>, items: &[&Arc<str>]) -> Result<Vec<i64>, Error> {
    let digests: Vec<_> = items.iter().map(|item| digest(&SHA256, item.as_bytes())).collect();
    let mut different: HashMap<&[u8], (&str, i64)> = HashMap::new();
    for (digest, item) in digests.iter().zip(items) {
        different.entry(digest.as_ref()).or_insert((item, 0)).1 += 1;
    }
    let (mut keys, mut texts, mut counts) = (Vec::new(), Vec::new(), Vec::new());
    for (key, (text, count)) in different {
        keys.push(key);
        texts.push(text);
        counts.push(count);
    }
    let sql = "INSERT INTO stator_response_items (digest, text, uses)
         SELECT * FROM unnest($1, $2, $3)
         ON CONFLICT (digest) DO UPDATE SET uses = stator_response_items.uses + EXCLUDED.uses
         RETURNING digest, number";
    let parameters: [(&(dyn ToSql + Sync), Type); 3] =
        [(&keys, Type::BYTEA_ARRAY), (&texts, Type::TEXT_ARRAY), (&counts, Type::INT8_ARRAY)];
    let mut numbers: HashMap<Vec<u8>, i64> = HashMap::new();
    for row in transaction.query_typed(sql, &parameters).await? {
        numbers.insert(row.try_get(0)?, row.try_get(1)?);
    }
    // Each digest was given, so that each has a number.
    Ok(digests.iter().filter_map(|digest| numbers.get(digest.as_ref()).copied()).collect())
}

/// Forgets the response of this id.
pub(super) async fn forget(transaction: &Transaction<'_>, id: &str) -> Result<(), Error> {
    remove(transaction, "id = $1", &[(&id, Type::TEXT)]).await.map(drop)
}

/// Forgets responses whose stay is over, and the oldest of who holds most while they are too many or
/// too large; returns their number.
pub(super) async fn sweep(
    transaction: &Transaction<'_>,
    limits: StoreLimits,
) -> Result<u64, Error> {
    let is_over = format!("{NOW_S} - kept_at_s >= $1");
    let gone = remove(transaction, &is_over, &[(&seconds(limits.ttl), Type::INT8)]).await?;
    // Each tenant's newest first; then those before which the tenant has least.
    let is_beyond = "id IN (
        SELECT id FROM (
            SELECT id, row_number() OVER fair AS place, sum(bytes) OVER fair AS total FROM (
                SELECT id, bytes, kept_at_s, sum(bytes) OVER (
                    PARTITION BY space ORDER BY kept_at_s DESC, id) AS own
                FROM stator_responses) AS owned
            WINDOW fair AS (ORDER BY own, kept_at_s DESC, id)) AS ranked
        WHERE place > $1 OR total > $2)";
    let responses = i64::try_from(limits.responses).unwrap_or(i64::MAX);
    let bytes = i64::try_from(limits.bytes).unwrap_or(i64::MAX);
    let parameters: [(&(dyn ToSql + Sync), Type); 2] =
        [(&responses, Type::INT8), (&bytes, Type::INT8)];
    Ok(gone + remove(transaction, is_beyond, &parameters).await?)
}

/// Removes the responses that a condition names, and items that nobody uses any more.
async fn remove(
    transaction: &Transaction<'_>,
    condition: &str,
    parameters: &[(&(dyn ToSql + Sync), Type)],
) -> Result<u64, Error> {
    let sql = format!(
        "WITH gone AS (DELETE FROM stator_responses WHERE {condition} RETURNING items),
            less AS (SELECT item, count(*) AS uses FROM gone, unnest(items) AS item GROUP BY item),
            down AS (UPDATE stator_response_items AS known SET uses = known.uses - less.uses
                     FROM less WHERE number = item)
         SELECT count(*) FROM gone"
    );
    let gone = transaction.query_typed_one(&sql, parameters).await?.try_get::<_, i64>(0)?;
    if gone > 0 {
        let unused = "DELETE FROM stator_response_items WHERE uses <= 0";
        transaction.execute_typed(unused, &[]).await?;
    }
    Ok(gone.unsigned_abs())
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Items of the response of a row, or the fault.
    fn check(earlier: i32, input: i32, items: i32) -> String {
        let stored = StoredResponse {
            session: "s".into(),
            age_s: 1,
            background: false,
            object: b"{}".into(),
            events: Vec::new(),
            earlier,
            input,
            texts: ["a", "b", "c"].map(String::from).into(),
            items,
        };
        match stored.response("r", PrefixSpace::default()) {
            Ok(found) => format!("{:?} {:?}", found.record.earlier, found.record.input),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_row_whose_counts_are_not_those_of_its_items_is_refused() {
        assert_eq!(check(1, 1, 3), "[\"a\"] [\"b\"]");
        assert_eq!(check(3, 0, 3), "[\"a\", \"b\", \"c\"] []");
        assert_eq!(check(1, 1, 4), "3 of 4 items are there");
        assert_eq!(check(2, 2, 3), "2 input items are not among 3");
        assert_eq!(check(-1, 1, 3), "-1 earlier items are not among 3");
    }
}
