//! Responses in a PostgreSQL database that several proxies share.
//!
//! The database has every response that is over, and decides which are kept. The store in memory
//! answers for those that this process works on, or has looked up. A proxy has two connections: a task
//! writes changes in order over one, look-ups go over the other.

mod place;
mod statements;

pub(crate) use place::PostgresPlace;
pub(super) use statements::StoredResponse;

use super::archive::ArchivedResponse;
use super::limits::StoreLimits;
use super::record::ResponseRecord;
use anyhow::Context;
use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use place::PostgresRoute;
use stator_api::space::PrefixSpace;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

/// Longest wait for the answer to a look-up.
const FIND_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest wait of a request until the database has what it changed.
const WRITTEN_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest time for one transaction.
const WRITE_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest wait at the end of the process for changes that are not written.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Pauses before a change is tried again: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Pause between two looks for responses that have to go.
const SWEEP: Duration = Duration::from_secs(60);
/// Responses that wait for the database. One beyond stays in this process.
const UNWRITTEN_MAX: usize = 4096;
/// Changes of one transaction.
const BATCH_MAX: usize = 64;

/// A change of the database.
enum Change {
    Keep { id: String, record: Arc<ResponseRecord> },
    Forget(String),
}

impl Change {
    fn id(&self) -> &str {
        match self {
            Self::Keep { id, .. } | Self::Forget(id) => id,
        }
    }
}

/// The database of a store.
pub(crate) struct PostgresArchive {
    ttl: Duration,
    reader: Reader,
    /// Its bound is that of the responses: each is written once and removed once.
    changes: UnboundedSender<NumberedChange>,
    progress: Arc<WriteProgress>,
    /// True once nothing more comes.
    closing: watch::Sender<bool>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// A change, and its number among all.
struct NumberedChange(u64, Change);

/// Progress of the task that writes.
struct WriteProgress {
    /// The numbers of the last changes of responses that wait for the database.
    waiting: Mutex<HashMap<String, u64>>,
    /// Responses among them.
    unwritten: AtomicUsize,
    /// Number of the last change that is done with.
    done: watch::Sender<u64>,
    /// Whether the last attempt failed.
    fails: AtomicBool,
}

impl PostgresArchive {
    /// Connects, and makes the tables where there are none.
    ///
    /// # Errors
    ///
    /// A server that cannot be reached or does not let this process in, and tables of another form.
    pub(crate) async fn open(place: &PostgresPlace, limits: StoreLimits) -> anyhow::Result<Self> {
        let what = || format!("responses-store: PostgreSQL at {place}");
        let route = place.route().with_context(what)?;
        let mut client = route.connect().await.with_context(what)?;
        let prepared = timeout(WRITE_TIMEOUT, statements::prepare(&mut client)).await;
        prepared.context("no answer").flatten().with_context(what)?;
        let progress = Arc::new(WriteProgress {
            waiting: Mutex::default(),
            unwritten: AtomicUsize::new(0),
            done: watch::Sender::new(0),
            fails: AtomicBool::new(false),
        });
        let (changes, waiting) = unbounded_channel();
        let closing = watch::Sender::new(false);
        let writer = Writer {
            route: route.clone(),
            client: Some(client),
            limits,
            progress: progress.clone(),
            closing: closing.subscribe(),
        };
        let writer = Mutex::new(Some(tokio::spawn(writer.run(waiting))));
        let reader = Reader { route, client: ArcSwapOption::empty(), turn: Semaphore::new(1) };
        Ok(Self { ttl: limits.ttl, reader, changes, progress, closing, writer })
    }

    /// Has a response written if it is over; returns whether it will be.
    pub(crate) fn keep(&self, id: &str, record: &Arc<ResponseRecord>) -> bool {
        if !record.is_over() {
            return false;
        }
        if self.progress.unwritten.load(Ordering::Relaxed) >= UNWRITTEN_MAX {
            tracing::warn!(id, "the database of responses is too slow: a response is not written");
            return false;
        }
        self.progress.unwritten.fetch_add(1, Ordering::Relaxed);
        self.send(Change::Keep { id: id.to_owned(), record: record.clone() });
        true
    }

    /// Has a response removed.
    pub(crate) fn forget(&self, id: &str) {
        self.send(Change::Forget(id.to_owned()));
    }

    fn send(&self, change: Change) {
        // The number and the place in the channel go together.
        let mut waiting = self.progress.waiting.lock();
        let number = waiting.values().max().copied().unwrap_or(0);
        let number = number.max(*self.progress.done.borrow()) + 1;
        waiting.insert(change.id().to_owned(), number);
        // The writer ends only once nothing more comes.
        let _ = self.changes.send(NumberedChange(number, change));
    }

    /// Whether a change of this response waits for the database: then this process knows better.
    pub(crate) fn is_waiting(&self, id: &str) -> bool {
        self.progress.waiting.lock().contains_key(id)
    }

    /// Waits until the last change of this response is done with; false if that takes too long.
    pub(crate) async fn settled(&self, id: &str) -> bool {
        let number = self.progress.waiting.lock().get(id).copied();
        let Some(number) = number else { return true };
        if self.progress.fails.load(Ordering::Relaxed) {
            return false;
        }
        let mut done = self.progress.done.subscribe();
        timeout(WRITTEN_TIMEOUT, done.wait_for(|done| *done >= number)).await.is_ok()
    }

    /// The response of this id in the database, if it is of this space.
    ///
    /// # Errors
    ///
    /// A database that does not answer.
    pub(crate) async fn find(
        &self,
        id: &str,
        space: PrefixSpace,
    ) -> anyhow::Result<Option<ArchivedResponse>> {
        let found = async {
            let client = self.reader.client().await?;
            statements::find(&client, id, space, self.ttl).await
        };
        timeout(FIND_TIMEOUT, found).await.context("no answer")?
    }

    /// Waits until all changes are written, up to [`CLOSE_TIMEOUT`].
    pub(crate) async fn close(&self) {
        self.closing.send_replace(true);
        let Some(mut writer) = self.writer.lock().take() else { return };
        if timeout(CLOSE_TIMEOUT, &mut writer).await.is_err() {
            let responses = self.progress.unwritten.load(Ordering::Relaxed);
            tracing::error!(responses, "the database of responses did not take the last changes");
            writer.abort();
        }
    }
}

/// The connection of look-ups, which all share.
struct Reader {
    route: PostgresRoute,
    client: ArcSwapOption<Client>,
    /// Held by who connects.
    turn: Semaphore,
}

impl Reader {
    async fn client(&self) -> anyhow::Result<Arc<Client>> {
        let open = || self.client.load_full().filter(|client| !client.is_closed());
        if let Some(client) = open() {
            return Ok(client);
        }
        let _turn = self.turn.acquire().await.context("nobody closes it")?;
        if let Some(client) = open() {
            return Ok(client);
        }
        let client = Arc::new(self.route.connect().await?);
        self.client.store(Some(client.clone()));
        Ok(client)
    }
}

/// The task that writes.
struct Writer {
    route: PostgresRoute,
    client: Option<Client>,
    limits: StoreLimits,
    progress: Arc<WriteProgress>,
    closing: watch::Receiver<bool>,
}

impl Writer {
    /// Writes changes until nothing more comes, and looks for responses that have to go.
    async fn run(mut self, mut changes: UnboundedReceiver<NumberedChange>) {
        let mut sweeps = interval(SWEEP);
        sweeps.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut closing = self.closing.clone();
        loop {
            let mut batch = Vec::new();
            let closed = async { drop(closing.wait_for(|closing| *closing).await) };
            tokio::select! {
                biased;
                count = changes.recv_many(&mut batch, BATCH_MAX) => {
                    if count == 0 {
                        return;
                    }
                    self.write(batch).await;
                }
                () = closed => return,
                _ = sweeps.tick() => self.sweep().await,
            }
        }
    }

    /// Writes changes, however often it takes.
    async fn write(&mut self, mut batch: Vec<NumberedChange>) {
        let last = batch.last().map_or(0, |change| change.0);
        let kept = |batch: &[NumberedChange]| {
            batch.iter().filter(|change| matches!(change.1, Change::Keep { .. })).count()
        };
        let all = kept(&batch);
        let mut pause = PAUSES.0;
        while let Err(fault) = self.apply(&batch).await {
            if fault.is_of_data() {
                tracing::error!(%fault, responses = kept(&batch), "responses were not written");
                batch.retain(|change| matches!(change.1, Change::Forget(_)));
                continue;
            }
            if !self.progress.fails.swap(true, Ordering::Relaxed) {
                tracing::error!(%fault, "the database of responses fails; changes wait for it");
            }
            self.client = None;
            sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
        if self.progress.fails.swap(false, Ordering::Relaxed) {
            tracing::info!("the database of responses takes changes again");
        }
        self.progress.unwritten.fetch_sub(all, Ordering::Relaxed);
        // In this order, so that whoever numbers a change meanwhile counts on from here.
        self.progress.done.send_replace(last);
        self.progress.waiting.lock().retain(|_, number| *number > last);
    }

    async fn apply(&mut self, batch: &[NumberedChange]) -> Result<(), WriteFault> {
        let applied = async {
            let transaction = statements::begin(self.client().await?).await?;
            for NumberedChange(_, change) in batch {
                match change {
                    Change::Forget(id) => statements::forget(&transaction, id).await?,
                    Change::Keep { id, record } => {
                        statements::keep(&transaction, id, record).await?;
                    }
                }
            }
            Ok(transaction.commit().await?)
        };
        timeout(WRITE_TIMEOUT, applied).await.unwrap_or(Err(WriteFault::Late))
    }

    async fn sweep(&mut self) {
        let limits = self.limits;
        let swept = async {
            let transaction = statements::begin(self.client().await?).await?;
            let gone = statements::sweep(&transaction, limits).await?;
            transaction.commit().await?;
            Ok::<_, WriteFault>(gone)
        };
        match timeout(WRITE_TIMEOUT, swept).await.unwrap_or(Err(WriteFault::Late)) {
            Ok(0) => {}
            Ok(responses) => tracing::debug!(responses, "the database of responses was swept"),
            Err(fault) => {
                // The next change, or the next sweep, connects anew.
                self.client = None;
                tracing::warn!(%fault, "the database of responses was not swept");
            }
        }
    }

    async fn client(&mut self) -> Result<&mut Client, WriteFault> {
        if self.client.as_ref().is_none_or(Client::is_closed) {
            self.client = Some(self.route.connect().await?);
        }
        Ok(self.client.as_mut().expect("it is connected"))
    }
}

/// Reason why changes were not written.
#[derive(Debug, thiserror::Error)]
enum WriteFault {
    #[error("no answer within {} s", WRITE_TIMEOUT.as_secs())]
    Late,
    #[error("{}", told(.0))]
    Database(#[from] tokio_postgres::Error),
}

impl WriteFault {
    /// Whether the same changes would fail again: their values are at fault.
    fn is_of_data(&self) -> bool {
        // Classes of states: data exceptions, violated constraints, program limits.
        let of_data = |state: &SqlState| {
            ["22", "23", "54"].iter().any(|class| state.code().starts_with(class))
        };
        match self {
            Self::Late => false,
            Self::Database(error) => error.code().is_some_and(of_data),
        }
    }
}

/// An error with its cause.
fn told(error: &tokio_postgres::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}
