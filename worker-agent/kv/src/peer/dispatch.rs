//! One peer: what waits for it, what is being read, and whether it is believed.

use super::board::{Board, LeaseAnswer};
use super::common::PeerCommon;
use super::direct::{self, DirectEnd};
use super::health::PeerHealth;
use super::pace::{PeerCosts, PeerPace, PulledBatch};
use super::path::PathChoice;
use super::pull::{NextStep, Pull};
use super::queue::{QueuedRead, ReadQueue};
use super::stream;
use crate::SlotId;
use crate::tier::{TierError, TierRead, Urgency};
use crate::transfer::LinkError;
use parking_lot::Mutex;
use stator_protos::load::LoadCost;
use stator_protos::name::BlockName;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

/// Pause before a peer that has too many leases is asked again.
const BUSY_PAUSE: Duration = Duration::from_millis(10);
/// Time after a connection failed in which no more than one is made.
const CONNECT_PAUSE: Duration = Duration::from_secs(1);
/// Time that a lease lasts beyond the reads that it is for.
const LEASE_SPARE: Duration = Duration::from_millis(100);

/// End of a connection.
type StreamEnd = Result<(), LinkError>;

/// An agent that blocks are read from.
pub(super) struct Peer {
    common: Arc<PeerCommon>,
    address: SocketAddr,
    queue: Mutex<ReadQueue>,
    /// Rung when reads were added.
    bell: Notify,
    board: Arc<Board>,
    health: Mutex<PeerHealth>,
    /// Batches that are being read.
    pulling: AtomicUsize,
    choice: Arc<Mutex<PathChoice>>,
    pace: Mutex<PeerPace>,
}

impl Peer {
    pub(super) fn new(common: Arc<PeerCommon>, address: SocketAddr) -> Self {
        Self {
            common,
            address,
            queue: Mutex::default(),
            bell: Notify::new(),
            board: Arc::new(Board::new()),
            health: Mutex::default(),
            pulling: AtomicUsize::new(0),
            choice: Arc::default(),
            pace: Mutex::default(),
        }
    }

    /// Cost of reads that begin now, and when it was measured; none where nothing is known of it.
    pub(super) fn cost(&self, now: Instant) -> Option<(Instant, PeerCosts)> {
        if self.is_shunned() {
            let never = LoadCost { latency_us: LoadCost::NEVER_US, block_ns: 0 };
            return Some((now, PeerCosts { link: never, all: never }));
        }
        let waiting = self.queue.lock().len();
        self.pace.lock().cost(waiting, now)
    }

    /// Adds a read; gives it back where too many wait.
    pub(super) fn push(&self, read: QueuedRead) -> Result<(), QueuedRead> {
        self.queue.lock().push(read, self.common.settings.queue_max)?;
        self.bell.notify_one();
        Ok(())
    }

    /// Takes a read out that waits, if it does. Reads that were begun go on.
    pub(super) fn take(&self, name: BlockName, slot: SlotId) -> Option<TierRead> {
        Some(self.queue.lock().take(name, slot)?.read)
    }

    /// The work for the peer's connections.
    pub(super) fn board(&self) -> Arc<Board> {
        self.board.clone()
    }

    /// Whether nothing is read from the peer for now.
    pub(super) fn is_shunned(&self) -> bool {
        self.health.lock().is_shunned(Instant::now())
    }

    /// Whether there is nothing to do.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.lock().deadline().is_none() && self.pulling.load(Relaxed) == 0
    }

    /// Fails whatever waits.
    pub(super) fn fail_queued(&self, error: TierError) {
        self.fail(self.queue.lock().drain(), error);
    }

    /// Reads whatever is queued, until the future is dropped.
    pub(super) async fn run(self: Arc<Self>) {
        let mut streams = JoinSet::new();
        let mut directs = JoinSet::new();
        let mut pulls = JoinSet::new();
        let mut rest_until = Instant::now();
        loop {
            self.start(&mut pulls);
            self.pulling.store(pulls.len(), Relaxed);
            if !pulls.is_empty() && !self.is_shunned() {
                self.connect(&mut streams, rest_until);
                self.open_arena(&mut directs);
            }
            let deadline = self.queue.lock().deadline();
            let expired = async {
                match deadline {
                    Some(deadline) => sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.bell.notified() => {}
                () = expired => {}
                Some(_) = pulls.join_next() => {}
                Some(ended) = directs.join_next() => self.direct_ended(ended),
                Some(ended) = streams.join_next() => {
                    if !matches!(ended, Ok(Ok(()))) {
                        rest_until = Instant::now() + CONNECT_PAUSE;
                    }
                    self.stream_ended(ended, &mut streams);
                }
            }
        }
    }

    /// Starts as many batches as are allowed.
    fn start(self: &Arc<Self>, pulls: &mut JoinSet<()>) {
        let settings = &self.common.settings;
        let expired = self.queue.lock().expired(Instant::now());
        self.fail(expired, TierError::Failed);
        if self.is_shunned() {
            // Reads on their way end by themselves, with the error that the peer is shunned for.
            self.fail_queued(TierError::Missing);
            return;
        }
        while pulls.len() < settings.batches_max {
            let only_demand = pulls.len() >= settings.batches_max.div_ceil(2);
            let batch = self.queue.lock().batch(settings.batch_max, only_demand);
            if batch.is_empty() {
                break;
            }
            pulls.spawn(self.clone().pull(batch));
        }
    }

    /// Makes as many connections as are wanted; after a failure, while others work, only one.
    fn connect(&self, streams: &mut JoinSet<StreamEnd>, rest_until: Instant) {
        let is_resting = Instant::now() < rest_until;
        let wanted = if is_resting { 1 } else { self.common.settings.streams };
        while streams.len() < wanted {
            let (common, board) = (self.common.clone(), self.board.clone());
            streams.spawn(stream::run(common, board, self.address));
        }
    }

    /// Reads the peer's arena directly, where there is a way and it did not fail lately.
    fn open_arena(&self, directs: &mut JoinSet<Result<(), DirectEnd>>) {
        let is_possible = self.common.direct.get().is_some() && directs.is_empty();
        if is_possible && !self.choice.lock().is_closed(Instant::now()) {
            let (common, board, choice) =
                (self.common.clone(), self.board.clone(), self.choice.clone());
            directs.spawn(direct::run(common, board, self.address, choice));
        }
    }

    /// Connections do what a direct reader has left. The peer is not to blame for it.
    fn direct_ended(&self, ended: Result<Result<(), DirectEnd>, JoinError>) {
        let reason = match ended {
            Ok(Ok(())) => return,
            Ok(Err(error)) => {
                // The bytes did not come from the peer's process, so it is not shunned.
                if matches!(error, DirectEnd::Link(LinkError::Forged(_))) {
                    self.common.counters.forged.fetch_add(1, Relaxed);
                }
                error.to_string()
            }
            Err(error) => error.to_string(),
        };
        tracing::info!(peer = %self.address, reason, "the peer's KV comes over connections only");
        self.choice.lock().failed(Instant::now());
    }

    fn stream_ended(&self, ended: Result<StreamEnd, JoinError>, streams: &mut JoinSet<StreamEnd>) {
        let Ok(Err(error)) = ended else { return };
        let now = Instant::now();
        let peer = self.address;
        match error {
            LinkError::Io(_) | LinkError::Late | LinkError::Worn => {
                tracing::debug!(%peer, %error, "connection to a peer failed");
                // Other connections carry on with what this one has lost.
                if streams.is_empty() {
                    self.health.lock().failed(now);
                    self.board.fail(TierError::Failed);
                }
            }
            LinkError::Forged(_) => {
                tracing::warn!(%peer, %error, "peer is shunned");
                self.common.counters.forged.fetch_add(1, Relaxed);
                self.health.lock().misbehaved(now);
                streams.abort_all();
                self.board.fail(TierError::Corrupt);
            }
            LinkError::Wire(_)
            | LinkError::Unexpected(_)
            | LinkError::Refused(_)
            | LinkError::Unknown
            | LinkError::Distrusted => {
                tracing::warn!(%peer, %error, "peer is shunned");
                self.health.lock().misbehaved(now);
                streams.abort_all();
                self.board.fail(TierError::Failed);
            }
        }
    }

    /// Reads one batch. All its reads are reported, also if the future is dropped.
    fn pull(self: Arc<Self>, batch: Vec<QueuedRead>) -> impl Future<Output = ()> + use<> {
        let deadline = batch[0].deadline;
        let urgency = batch[0].read.urgency;
        let reads: Vec<TierRead> = batch.iter().map(|read| read.read).collect();
        let path = self.choice.lock().choose();
        let pull = Arc::new(Pull::new(self.common.clone(), reads, path));
        // Before the future is polled for the first time, because that may never happen.
        let closing = ClosingPull { peer: self, pull };
        async move {
            let ClosingPull { peer, pull } = &closing;
            let answers = peer.board.answers();
            match timeout_at(deadline, peer.drive(pull, urgency, deadline)).await {
                Ok(Ok(())) => peer.health.lock().answered(),
                Ok(Err(error)) => pull.close(error),
                Err(_) => {
                    // A peer that is merely slow answers others meanwhile.
                    if peer.board.answers() == answers {
                        peer.health.lock().failed(Instant::now());
                    }
                    pull.close(TierError::Failed);
                }
            }
        }
    }

    async fn drive(
        &self,
        pull: &Arc<Pull>,
        urgency: Urgency,
        deadline: Instant,
    ) -> Result<(), TierError> {
        self.board.add(pull.clone(), urgency);
        let (path, mut leased, begun) = (pull.path(), None::<(Instant, Duration)>, Instant::now());
        loop {
            match pull.next_step() {
                NextStep::Done => {
                    // A batch that changed its path says nothing about either.
                    if let Some((since, disk)) = leased.filter(|_| pull.path() == path) {
                        let now = Instant::now();
                        let took = now.saturating_duration_since(since);
                        self.choice.lock().measured(path, pull.bytes(), took);
                        let latency = since.saturating_duration_since(begun);
                        let batch = PulledBatch { latency, disk, blocks: pull.blocks(), took };
                        self.pace.lock().add(batch, now);
                    }
                    return Ok(());
                }
                NextStep::Fail(error) => return Err(error),
                NextStep::Wait => pull.changed().await,
                NextStep::Lease { base, names } => {
                    let time = deadline.saturating_duration_since(Instant::now()) + LEASE_SPARE;
                    match self.board.lease(names, time, urgency).await {
                        Ok(LeaseAnswer::Leased { number, checksums, waited }) => {
                            leased =
                                Some((Instant::now(), waited)).filter(|_| !checksums.is_empty());
                            pull.leased(number, base, &checksums);
                            self.board.stir();
                        }
                        Ok(LeaseAnswer::Busy) => sleep(BUSY_PAUSE).await,
                        // Another connection may get an answer, unless there is none.
                        Err(_) if self.is_shunned() => {
                            return Err(pull.error().unwrap_or(TierError::Failed));
                        }
                        Err(_) => {}
                    }
                }
            }
        }
    }

    fn fail(&self, reads: Vec<QueuedRead>, error: TierError) {
        let reads: Vec<_> = reads.into_iter().map(|read| read.read).collect();
        self.common.report_failed(&reads, error);
    }
}

/// Gives a pull's slots and its lease up.
struct ClosingPull {
    peer: Arc<Peer>,
    pull: Arc<Pull>,
}

impl Drop for ClosingPull {
    fn drop(&mut self) {
        self.pull.close(TierError::Failed);
        self.peer.board.remove(&self.pull);
    }
}
