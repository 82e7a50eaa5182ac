//! Hub of a replica, where news for peers and news from peers come together.

use crate::feeds::{Frame, ListenerId, PeerFeeds};
use crate::gauges::{GaugeKey, Others};
use crate::names::{PoolMap, PoolNames};
use crate::outbox::Letters;
use crate::{Outbox, PEERS_MAX, PeersMetrics, PeersSettings, PoolId, Replica};
use parking_lot::Mutex;
use stator_placement::PeerLoad;
use stator_protos::WorkerRank;
use stator_protos::peers as proto;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Half the time in which a prompt's beginning is not told again, see [`crate::recent`]. Workers
/// must be taken to hold what they were sent for longer than twice this.
const TURN: Duration = Duration::from_millis(500);

/// Interval at which the pools are told everything again, for workers that came since.
const REPEAT: Duration = Duration::from_secs(1);

/// One part in this many of a core's time goes into looking at the pools.
const SHARE: u32 = 50;

/// Longest wait for that: a flood of prompts must not keep loads from being told.
const REST_MAX: Duration = Duration::from_millis(100);

/// Shortest time between two looks at the pools.
const INTERVAL_MIN: Duration = Duration::from_millis(1);

/// State that the tasks of a replica share.
pub(crate) struct Hub {
    /// Identity of this replica; drawn at random.
    pub(crate) id: u64,
    pub(crate) names: Mutex<PoolNames>,
    pub(crate) replica: Arc<dyn Replica>,
    pub(crate) outbox: Outbox,
    pub(crate) metrics: PeersMetrics,
    /// Whether this replica has been through its own start.
    pub(crate) warm: AtomicBool,
    feeds: Mutex<PeerFeeds>,
    others: Mutex<Others>,
    /// Changes when somebody has something to be told.
    news: watch::Sender<()>,
}

impl Hub {
    pub(crate) fn new(
        settings: &PeersSettings,
        replica: Arc<dyn Replica>,
        metrics: PeersMetrics,
    ) -> Self {
        let mut names = PoolNames::default();
        for name in replica.pools() {
            names.id(&name);
        }
        Self {
            id: rand::random(),
            names: Mutex::new(names),
            replica,
            outbox: Outbox::new(metrics.outbox_dropped.clone()),
            metrics,
            warm: AtomicBool::new(false),
            feeds: Mutex::new(PeerFeeds::new(settings.queue_hashes_max)),
            others: Mutex::default(),
            news: watch::Sender::new(()),
        }
    }

    /// The pools that have been named, here or by peers.
    pub(crate) fn pool_ids(&self) -> impl ExactSizeIterator<Item = PoolId> + use<> {
        (0..self.names.lock().len() as u32).map(PoolId)
    }

    /// Shares what has this name with peers that have it too, see [`crate::Peers::share`].
    pub(crate) fn share(&self, name: &str) -> Option<PoolId> {
        let id = self.names.lock().id(name);
        self.news.send_replace(());
        id
    }

    /// Greeting of this replica to a peer.
    pub(crate) fn hello(&self) -> proto::Hello {
        proto::Hello { replica_id: self.id, pools: self.names.lock().after(0) }
    }

    pub(crate) fn is_warm(&self) -> bool {
        self.warm.load(Ordering::Relaxed)
    }

    /// Looks at what there is to tell, and tells those who listen.
    fn publish(&self, scratch: &mut Scratch) {
        let mut feeds = self.feeds.lock();
        if feeds.listeners() == 0 {
            return;
        }
        self.outbox.take(&mut scratch.letters);
        let pools = self.pool_ids();
        scratch.seen.resize(pools.len(), 0);
        for (pool, seen) in pools.zip(&mut scratch.seen) {
            scratch.gauges.clear();
            if self.replica.own(pool, seen, &mut scratch.gauges) {
                feeds.set_pool(pool, &scratch.gauges);
            }
        }
        let (queued, lost) = feeds.publish(&scratch.letters);
        self.metrics.prefixes_sent.inc_by(queued);
        self.metrics.queue_dropped.inc_by(lost);
        let waiting = feeds.waiting();
        drop(feeds);
        if waiting {
            self.news.send_replace(());
        }
    }

    /// Tells the pools everything that others have in flight.
    fn repeat(&self) {
        let others = self.others.lock();
        self.tell(others.sums().collect());
    }

    /// Tells the pools these sums; which pools they are of. Called under the lock of
    /// [`Hub::others`], so that they are told in the order in which they came about.
    fn tell(&self, mut sums: Vec<(GaugeKey, PeerLoad)>) -> Vec<PoolId> {
        sums.sort_unstable_by_key(|(key, _)| *key);
        let tell_one = |of_pool: &[(GaugeKey, PeerLoad)]| {
            let told: Vec<_> = of_pool.iter().map(|((_, worker), sum)| (*worker, *sum)).collect();
            self.replica.set_others(of_pool[0].0.0, &told);
            of_pool[0].0.0
        };
        sums.chunk_by(|one, next| one.0.0 == next.0.0).map(tell_one).collect()
    }

    /// Tells pools that waiting requests may have room. Not under a lock.
    fn may_have_room(&self, pools: Vec<PoolId>) {
        pools.into_iter().for_each(|pool| self.replica.may_have_room(pool));
    }
}

/// Memory that each look uses again.
#[derive(Default)]
struct Scratch {
    letters: Letters,
    gauges: Vec<(WorkerRank, PeerLoad)>,
    /// The version of each pool's gauges that was looked at.
    seen: Vec<u64>,
}

/// Tells those who listen what is new, when it is, but no two times within `interval`; until
/// dropped. As a rule one part of a core in [`SHARE`] goes into it at most: large busy pools are
/// looked at less often.
pub(crate) async fn speak(hub: Arc<Hub>, interval: Duration) {
    let mut scratch = Scratch::default();
    let (mut turned, mut repeated) = (Instant::now(), Instant::now());
    let interval = interval.max(INTERVAL_MIN);
    loop {
        if tokio::time::timeout(TURN, hub.outbox.stirred()).await.is_ok() {
            let began = Instant::now();
            hub.publish(&mut scratch);
            let rest = (began.elapsed() * SHARE).min(REST_MAX);
            tokio::time::sleep(interval.max(rest)).await;
        }
        if turned.elapsed() >= TURN {
            hub.feeds.lock().turn();
            turned = Instant::now();
        }
        if repeated.elapsed() >= REPEAT {
            hub.repeat();
            repeated = Instant::now();
        }
    }
}

/// A peer that listens to us, until dropped.
pub(crate) struct FeedSubscription {
    hub: Arc<Hub>,
    id: ListenerId,
    news: watch::Receiver<()>,
    /// Pools that the peer was told the names of.
    named: usize,
}

impl FeedSubscription {
    /// One more that listens, and what it is greeted with; `None` where as many listen as may.
    pub(crate) fn new(hub: &Arc<Hub>) -> Option<(Self, proto::Hello)> {
        let mut feeds = hub.feeds.lock();
        if feeds.listeners() == PEERS_MAX {
            return None;
        }
        if feeds.listeners() == 0 {
            // What was left while nobody listened is for nobody.
            hub.outbox.take(&mut Letters::default());
            hub.outbox.set_listened(true);
        }
        let id = feeds.subscribe();
        // What changed while nobody listened.
        hub.outbox.stir();
        hub.metrics.listeners.set(feeds.listeners() as i64);
        let (hello, news) = (hub.hello(), hub.news.subscribe());
        let named = hello.pools.len();
        Some((Self { hub: hub.clone(), id, news, named }, hello))
    }

    /// Next news for the peer; an empty frame if nothing came up for `heartbeat`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub(crate) async fn next(&mut self, heartbeat: Duration) -> Frame {
        let beat = tokio::time::sleep(heartbeat);
        tokio::pin!(beat);
        loop {
            self.news.mark_unchanged();
            let mut frame = self.hub.feeds.lock().take(self.id);
            // After the rest was taken, which speaks of no pool that is named later.
            frame.pools = self.hub.names.lock().after(self.named);
            self.named += frame.pools.len();
            if !frame.is_empty() {
                self.hub.metrics.gauges_sent.inc_by(frame.gauges.len() as u64);
                return frame;
            }
            tokio::select! {
                // An error means that the hub is gone, and we hold it.
                _ = self.news.changed() => {}
                () = &mut beat => return frame,
            }
        }
    }
}

impl Drop for FeedSubscription {
    fn drop(&mut self) {
        let mut feeds = self.hub.feeds.lock();
        feeds.unsubscribe(self.id);
        self.hub.outbox.set_listened(feeds.listeners() > 0);
        self.hub.metrics.listeners.set(feeds.listeners() as i64);
    }
}

/// A peer that is heard, until dropped: then it counts no more.
pub(crate) struct PeerOrigin {
    hub: Arc<Hub>,
    id: u64,
    pools: PoolMap,
}

impl PeerOrigin {
    /// `None` for this replica itself, and for one that is heard already.
    pub(crate) fn new(hub: &Arc<Hub>, hello: &proto::Hello) -> Option<Self> {
        if hello.replica_id == hub.id || !hub.others.lock().join(hello.replica_id) {
            hub.metrics.aliases.inc();
            return None;
        }
        hub.metrics.connected.inc();
        let mut pools = PoolMap::default();
        pools.extend(&hello.pools, &mut hub.names.lock());
        Some(Self { hub: hub.clone(), id: hello.replica_id, pools })
    }

    /// Takes in what the peer says.
    pub(crate) fn hear(&mut self, frame: proto::SyncFrame) {
        let Self { hub, pools, .. } = self;
        if !frame.pools.is_empty() {
            pools.extend(&frame.pools, &mut hub.names.lock());
        }
        hub.metrics.gauges_received.inc_by(frame.gauges.len() as u64);
        hub.metrics.prefixes_received.inc_by(frame.sent.len() as u64);
        if !frame.gauges.is_empty() {
            let mut others = hub.others.lock();
            let gauges = frame.gauges.iter().filter_map(|gauge| pools.gauge(gauge));
            let sums = gauges
                .filter_map(|(key, value)| others.set(self.id, key, value).map(|sum| (key, sum)));
            let told = hub.tell(sums.collect());
            drop(others);
            hub.may_have_room(told);
        }
        for sent in frame.sent.into_iter().filter_map(|sent| pools.sent(sent)) {
            hub.replica.sent(sent.key.0, sent.key.1, &sent.hashes);
        }
    }
}

impl Drop for PeerOrigin {
    fn drop(&mut self) {
        let mut others = self.hub.others.lock();
        let told = self.hub.tell(others.leave(self.id));
        drop(others);
        self.hub.may_have_room(told);
        self.hub.metrics.connected.dec();
    }
}
