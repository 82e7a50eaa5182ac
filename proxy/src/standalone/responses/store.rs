//! Responses that clients may ask for again, in memory and within bounds, and perhaps in a database:
//! one of SQLite follows the memory, one of PostgreSQL is what several proxies share.

use super::archive::{ArchivedResponse, ResponseArchive};
use super::limits::StoreLimits;
use super::postgres::{PostgresArchive, PostgresPlace};
use super::record::ResponseRecord;
use parking_lot::Mutex;
use stator_api::openai::ApiError;
use stator_api::space::PrefixSpace;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::task::{JoinError, spawn_blocking};

/// Responses that one look removes at the end of their stay: no request waits long for the store.
const EXPIRED_MAX: usize = 1024;
/// Pause between two looks for responses whose stay is over.
const SWEEP_PAUSE: Duration = Duration::from_secs(1);
/// Time after which a database that does not answer may be asked again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Responses by id. When the store is full, the tenant that holds most loses its oldest: nobody
/// pushes out what others keep within their share.
pub(crate) struct ResponseStore {
    limits: StoreLimits,
    shelf: Mutex<Shelf>,
}

/// Store of a proxy, shared by all that keep responses.
pub(crate) type SharedStore = Arc<ResponseStore>;

#[derive(Default)]
struct Shelf {
    kept: HashMap<String, KeptResponse>,
    /// Ids of each tenant's responses, oldest first; some may be gone.
    tenants: HashMap<PrefixSpace, Tenant>,
    /// Ids by age, for the end of their stay.
    ages: BTreeMap<u64, String>,
    bytes: usize,
    next: u64,
    /// Hears of every change.
    archive: Option<Archive>,
}

/// A database of responses.
enum Archive {
    /// A database that follows the memory.
    Sqlite(ResponseArchive),
    /// A database that has more than the memory, from other proxies too.
    Postgres(Arc<PostgresArchive>),
}

impl Archive {
    /// Has a response written if it is over; returns whether it will be.
    fn keep(&self, id: &str, record: &Arc<ResponseRecord>) -> bool {
        match self {
            Self::Sqlite(archive) => archive.keep(id, record),
            Self::Postgres(archive) => archive.keep(id, record),
        }
    }

    /// Hears that a response leaves the memory.
    fn leaves(&self, id: &str, why: Leaving) {
        match (self, why) {
            (Self::Sqlite(archive), _) => archive.forget(id),
            (Self::Postgres(archive), Leaving::Unwanted) => archive.forget(id),
            // The database has bounds of its own.
            (Self::Postgres(_), Leaving::Bounds | Leaving::Gone) => {}
        }
    }
}

/// Reason why a response leaves the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    /// Its client wants it no more.
    Unwanted,
    /// The response is too old, there is no room for it, or a later form of it takes its place.
    Bounds,
    /// The database does not have it any more.
    Gone,
}

struct KeptResponse {
    record: Arc<ResponseRecord>,
    bytes: usize,
    number: u64,
    since: Instant,
    /// Whether the database has it, or will.
    is_archived: bool,
}

#[derive(Default)]
struct Tenant {
    ids: VecDeque<String>,
    bytes: usize,
}

/// Numbers of a store, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoreUse {
    pub bytes: usize,
    pub responses: usize,
}

impl ResponseStore {
    pub(crate) fn new(limits: StoreLimits) -> Self {
        Self { limits, shelf: Mutex::default() }
    }

    /// A store that an SQLite database follows, with the responses that are there, as far as they are
    /// within the bounds.
    ///
    /// # Errors
    ///
    /// A database that cannot be opened.
    pub(crate) fn open(limits: StoreLimits, path: &Path) -> anyhow::Result<Self> {
        let (archive, archived) = ResponseArchive::open(path)?;
        let (store, now) = (Self::new(limits), Instant::now());
        let mut ids = Vec::with_capacity(archived.len());
        for ArchivedResponse { id, record, age } in archived {
            if age < limits.ttl {
                // A machine that started later than that has no such instant.
                let since = now.checked_sub(age).unwrap_or(now);
                let bytes = record.bytes();
                store.keep_at(since, &id, Arc::new(record), bytes);
            }
            ids.push(id);
        }
        let mut shelf = store.shelf.lock();
        shelf.kept.values_mut().for_each(|kept| kept.is_archived = true);
        let kept = shelf.kept.len();
        ids.iter().filter(|id| !shelf.kept.contains_key(*id)).for_each(|id| archive.forget(id));
        tracing::info!(path = %path.display(), kept, "responses of earlier processes are kept on");
        shelf.archive = Some(Archive::Sqlite(archive));
        drop(shelf);
        Ok(store)
    }

    /// A store whose responses are in a PostgreSQL database that other proxies use, too.
    ///
    /// # Errors
    ///
    /// A database that cannot be used.
    pub(crate) async fn share(limits: StoreLimits, place: &PostgresPlace) -> anyhow::Result<Self> {
        let archive = Arc::new(PostgresArchive::open(place, limits).await?);
        tracing::info!(%place, "responses are kept in a database that proxies share");
        let store = Self::new(limits);
        store.shelf.lock().archive = Some(Archive::Postgres(archive));
        Ok(store)
    }

    /// The database that other proxies use, too.
    fn shared(&self) -> Option<Arc<PostgresArchive>> {
        match &self.shelf.lock().archive {
            Some(Archive::Postgres(archive)) => Some(archive.clone()),
            Some(Archive::Sqlite(_)) | None => None,
        }
    }

    /// Whether other proxies use the database, too.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared().is_some()
    }

    /// Has in memory what the database that others share knows of a response, for those who look for
    /// it next.
    ///
    /// # Errors
    ///
    /// 503 where the database does not answer and the response is not in memory.
    pub(crate) async fn recall(&self, id: &str, space: PrefixSpace) -> Result<(), ApiError> {
        let Some(archive) = self.shared() else { return Ok(()) };
        let known = || self.shelf.lock().kept.get(id).map(|kept| kept.is_archived);
        // A response that is worked on here is in no database yet.
        if archive.is_waiting(id) || known() == Some(false) {
            return Ok(());
        }
        match archive.find(id, space).await {
            Ok(Some(found)) if known().is_none() => self.take_over(found),
            Ok(Some(_)) => {}
            // Another proxy was told to delete it, or its stay was over.
            Ok(None) if !archive.is_waiting(id) && known() == Some(true) => {
                self.shelf.lock().remove(id, Leaving::Gone);
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "a response was not looked up");
                if known().is_none() {
                    let message = "the database of responses does not answer; try again later";
                    return Err(ApiError::unavailable(message, RETRY_AFTER));
                }
            }
        }
        Ok(())
    }

    /// Keeps a response that another proxy wrote.
    fn take_over(&self, ArchivedResponse { id, record, age }: ArchivedResponse) {
        let (now, bytes) = (Instant::now(), record.bytes());
        let since = now.checked_sub(age).unwrap_or(now);
        let kept =
            KeptResponse { record: Arc::new(record), bytes, number: 0, since, is_archived: true };
        let mut shelf = self.shelf.lock();
        if bytes <= self.limits.bytes && !shelf.kept.contains_key(&id) {
            shelf.make_room(bytes, self.limits);
            shelf.insert(&id, kept);
        }
    }

    /// Waits until the database that others share has the last change of a response.
    ///
    /// # Errors
    ///
    /// 503 where that takes too long; the change is made later.
    pub(crate) async fn settle(&self, id: &str) -> Result<(), ApiError> {
        let Some(archive) = self.shared() else { return Ok(()) };
        match archive.settled(id).await {
            true => Ok(()),
            false => {
                let message = "the database of responses takes the change later";
                Err(ApiError::unavailable(message, RETRY_AFTER))
            }
        }
    }

    /// Whether responses are kept at all.
    pub(crate) fn keeps(&self) -> bool {
        self.limits.bytes > 0 && self.limits.responses > 0
    }

    /// Keeps a response of so many bytes; one that is larger than the store is not kept.
    pub(crate) fn keep(&self, id: &str, record: Arc<ResponseRecord>, bytes: usize) {
        self.keep_at(Instant::now(), id, record, bytes);
    }

    fn keep_at(&self, now: Instant, id: &str, record: Arc<ResponseRecord>, bytes: usize) {
        if bytes > self.limits.bytes {
            tracing::info!(id, bytes, limit = self.limits.bytes, "a response is too large to keep");
            return;
        }
        let mut shelf = self.shelf.lock();
        shelf.remove(id, Leaving::Bounds);
        shelf.expire(now, self.limits.ttl);
        shelf.make_room(bytes, self.limits);
        let is_archived = shelf.archive.as_ref().is_some_and(|archive| archive.keep(id, &record));
        shelf.insert(id, KeptResponse { record, bytes, number: 0, since: now, is_archived });
    }

    /// The response of this id, if it is kept and is of this space.
    pub(crate) fn find(&self, id: &str, space: PrefixSpace) -> Option<Arc<ResponseRecord>> {
        self.find_at(Instant::now(), id, space)
    }

    fn find_at(&self, now: Instant, id: &str, space: PrefixSpace) -> Option<Arc<ResponseRecord>> {
        let shelf = self.shelf.lock();
        let kept = shelf.kept.get(id)?;
        let is_there = kept.record.space == space
            && now.saturating_duration_since(kept.since) < self.limits.ttl;
        is_there.then(|| kept.record.clone())
    }

    /// Forgets the response of this id, if it is of this space.
    pub(crate) fn forget(&self, id: &str, space: PrefixSpace) -> Option<Arc<ResponseRecord>> {
        let found = self.find(id, space)?;
        self.shelf.lock().remove(id, Leaving::Unwanted);
        Some(found)
    }

    /// Removes responses whose stay is over, also where nobody asks for any, until the store is gone:
    /// what a client may not have again stays neither in memory nor in the database.
    pub(crate) async fn sweep(store: Weak<Self>) {
        let mut pause = tokio::time::interval(SWEEP_PAUSE);
        pause.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            pause.tick().await;
            let Some(store) = store.upgrade() else { return };
            store.shelf.lock().expire(Instant::now(), store.limits.ttl);
        }
    }

    /// Waits until the database, if there is one, has all changes so far, and leaves it to others.
    ///
    /// # Errors
    ///
    /// A panic while the changes were written.
    pub(crate) async fn end(self: Arc<Self>) -> Result<(), JoinError> {
        if let Some(archive) = self.shared() {
            archive.close().await;
        }
        spawn_blocking(move || self.close()).await
    }

    /// Waits until the database, if it is of this process alone, has all changes so far, and leaves it.
    pub(crate) fn close(&self) {
        let archive = self.shelf.lock().archive.take();
        drop(archive);
    }

    /// Present numbers.
    pub(crate) fn usage(&self) -> StoreUse {
        let shelf = self.shelf.lock();
        StoreUse { bytes: shelf.bytes, responses: shelf.kept.len() }
    }
}

impl Shelf {
    fn insert(&mut self, id: &str, mut kept: KeptResponse) {
        self.next += 1;
        kept.number = self.next;
        self.bytes += kept.bytes;
        let tenant = self.tenants.entry(kept.record.space).or_default();
        tenant.bytes += kept.bytes;
        tenant.ids.push_back(id.to_owned());
        self.ages.insert(kept.number, id.to_owned());
        self.kept.insert(id.to_owned(), kept);
    }

    /// Shrinks until so many bytes and one response more are within the bounds.
    fn make_room(&mut self, bytes: usize, limits: StoreLimits) {
        while !self.kept.is_empty()
            && (self.bytes + bytes > limits.bytes || self.kept.len() >= limits.responses)
        {
            self.shrink();
        }
    }

    fn remove(&mut self, id: &str, why: Leaving) {
        let Some(kept) = self.kept.remove(id) else { return };
        if let Some(archive) = self.archive.as_ref().filter(|_| kept.is_archived) {
            archive.leaves(id, why);
        }
        self.bytes -= kept.bytes;
        self.ages.remove(&kept.number);
        let space = kept.record.space;
        let Some(tenant) = self.tenants.get_mut(&space) else { return };
        tenant.bytes -= kept.bytes;
        match tenant.ids.front() {
            // Nearly always: the oldest goes first.
            Some(first) if first == id => drop(tenant.ids.pop_front()),
            _ => tenant.ids.retain(|known| known != id),
        }
        if tenant.ids.is_empty() {
            self.tenants.remove(&space);
        }
    }

    /// Removes the oldest response of the tenant with most bytes.
    fn shrink(&mut self) {
        let largest = self.tenants.values().max_by_key(|tenant| tenant.bytes);
        let Some(id) = largest.and_then(|tenant| tenant.ids.front()).cloned() else { return };
        self.remove(&id, Leaving::Bounds);
    }

    /// Removes responses whose stay is over, at most [`EXPIRED_MAX`] of them.
    fn expire(&mut self, now: Instant, ttl: Duration) {
        for _ in 0..EXPIRED_MAX {
            let Some((_, id)) = self.ages.first_key_value() else { return };
            let id = id.clone();
            let is_over = self
                .kept
                .get(&id)
                .is_none_or(|kept| now.saturating_duration_since(kept.since) >= ttl);
            if !is_over {
                return;
            }
            self.remove(&id, Leaving::Bounds);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::standalone::responses::tenant_space;
    use proptest::prelude::*;

    fn record(space: PrefixSpace) -> Arc<ResponseRecord> {
        Arc::new(ResponseRecord::of_tests(space))
    }

    fn store(bytes: usize, responses: usize) -> ResponseStore {
        ResponseStore::new(StoreLimits { bytes, responses, ttl: Duration::from_secs(60) })
    }

    #[test]
    fn a_response_is_its_tenants_own() {
        let (mine, yours) = (tenant_space(1), tenant_space(2));
        let store = store(100, 10);
        store.keep("a", record(mine), 10);
        assert!(store.find("a", mine).is_some());
        assert!(store.find("a", yours).is_none() && store.forget("a", yours).is_none());
        assert!(store.forget("a", mine).is_some() && store.find("a", mine).is_none());
        assert_eq!(store.usage(), StoreUse::default());
    }

    #[test]
    fn who_holds_most_loses_its_oldest() {
        let (large, small) = (tenant_space(1), tenant_space(2));
        let store = store(100, 10);
        store.keep("small", record(small), 20);
        for id in ["a", "b", "c", "d"] {
            store.keep(id, record(large), 30);
        }
        assert!(store.find("small", small).is_some());
        assert!(store.find("b", large).is_none() && store.find("d", large).is_some());
        store.keep("huge", record(small), 101);
        assert!(store.find("huge", small).is_none());
    }

    #[test]
    fn a_stay_has_an_end() {
        let space = tenant_space(1);
        let store = store(100, 10);
        let now = Instant::now();
        store.keep_at(now, "a", record(space), 10);
        let later = now + Duration::from_secs(60);
        assert!(store.find_at(later, "a", space).is_none());
        store.keep_at(later, "b", record(space), 10);
        assert_eq!(store.usage(), StoreUse { bytes: 10, responses: 1 });
    }

    proptest! {
        /// Bounds hold and sums are right after any order of keeping and forgetting.
        #[test]
        fn bounds_hold(steps in proptest::collection::vec((0..30u32, 0..4u64, 0..60usize), 0..80)) {
            let store = store(100, 5);
            for (id, tenant, bytes) in steps {
                let (id, space) = (id.to_string(), tenant_space(tenant));
                match bytes {
                    0 => drop(store.forget(&id, space)),
                    bytes => store.keep(&id, record(space), bytes),
                }
                let shelf = store.shelf.lock();
                prop_assert!(shelf.bytes <= 100 && shelf.kept.len() <= 5);
                prop_assert_eq!(shelf.bytes, shelf.kept.values().map(|kept| kept.bytes).sum::<usize>());
                prop_assert_eq!(shelf.bytes, shelf.tenants.values().map(|it| it.bytes).sum::<usize>());
                prop_assert_eq!(shelf.ages.len(), shelf.kept.len());
            }
        }
    }
}
