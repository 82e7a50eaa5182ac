//! The pools of this process, as other replicas of it are told of them.

use super::place::PoolGate;
use super::pool::Pool;
use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use stator_peers::{Blocks, Peers, PoolId, PoolLink, Replica, Seat, WarmStart};
use stator_placement::{PeerLoad, WorkerHoldings};
use stator_protos::WorkerRank;
use stator_protos::hash::SequenceHash;
use stator_runtime::Shutdown;
use stator_runtime::shutdown::Trigger;
use std::sync::Arc;
use tokio::sync::OnceCell;
use tokio::task::JoinSet;

/// This replica among the others, until dropped.
pub(crate) struct Replicas {
    peers: Peers,
    shared: Arc<Shared>,
    warm: OnceCell<WarmStart>,
    _tasks: JoinSet<()>,
    _end: Trigger,
}

impl Replicas {
    /// Takes the seat among them; pools come later.
    pub(crate) fn join(seat: Seat) -> Self {
        let shared = Arc::new(Shared::default());
        let (end, ended) = Shutdown::new();
        let (peers, tasks) = seat.join(shared.clone(), ended);
        Self { peers, shared, warm: OnceCell::new(), _tasks: tasks, _end: end }
    }

    /// Shares a pool, in place of an earlier one of its model.
    pub(crate) fn share(&self, pool: &Arc<Pool>) {
        let name = &pool.record().name;
        let Some(id) = self.peers.share(name) else {
            tracing::warn!(model = name, "more models than replicas share: this one is not");
            return;
        };
        let sessions = pool
            .workers()
            .binds_sessions()
            .then(|| self.peers.share(&format!("sessions of {name}")));
        let sessions = sessions.flatten();
        pool.workers().share(PoolLink { outbox: self.peers.outbox(), id, sessions });
        self.shared.enter(id, sessions, pool.clone());
    }

    /// Takes over what another replica knows, once, and waits until that is done.
    pub(crate) async fn warm(&self) {
        self.warm.get_or_init(|| self.peers.warm_start()).await;
    }
}

/// The pools by the numbers that they have among replicas.
#[derive(Default)]
struct Shared {
    pools: RwLock<FxHashMap<PoolId, Entry>>,
    /// Those whose sessions have the number.
    sessions: RwLock<FxHashMap<PoolId, Arc<Pool>>>,
}

struct Entry {
    pool: Arc<Pool>,
    /// Changes of the pools that had its number before it.
    changes: u64,
}

impl Shared {
    fn enter(&self, id: PoolId, sessions: Option<PoolId>, pool: Arc<Pool>) {
        if let Some(id) = sessions {
            self.sessions.write().insert(id, pool.clone());
        }
        let mut pools = self.pools.write();
        let before = |entry: &Entry| entry.changes + entry.pool.workers().changes() + 1;
        let changes = pools.get(&id).map_or(0, before);
        pools.insert(id, Entry { pool, changes });
    }

    fn of(&self, id: PoolId) -> Option<Arc<Pool>> {
        self.pools.read().get(&id).map(|entry| entry.pool.clone())
    }

    fn with_sessions(&self, id: PoolId) -> Option<Arc<Pool>> {
        self.sessions.read().get(&id).cloned()
    }
}

impl Blocks for Shared {
    /// None: agents tell everybody who asks what their workers hold.
    fn workers(&self, _: PoolId) -> Vec<WorkerRank> {
        Vec::new()
    }

    fn held(&self, _: PoolId, _: &[WorkerRank]) -> Vec<(WorkerRank, WorkerHoldings)> {
        Vec::new()
    }

    fn predicted(
        &self,
        pool: PoolId,
        from: usize,
        most: usize,
    ) -> Option<Vec<(WorkerRank, SequenceHash)>> {
        match self.with_sessions(pool) {
            Some(pool) => pool.workers().sessions(from, most),
            None => self.of(pool)?.workers().predictions(from, most),
        }
    }

    fn restore(&self, _: PoolId, _: WorkerRank, _: WorkerHoldings) -> bool {
        false
    }
}

impl Replica for Shared {
    fn pools(&self) -> Vec<String> {
        Vec::new()
    }

    fn own(&self, pool: PoolId, seen: &mut u64, out: &mut Vec<(WorkerRank, PeerLoad)>) -> bool {
        let pools = self.pools.read();
        let Some(Entry { pool, changes }) = pools.get(&pool) else { return false };
        // Before what is in flight is looked at: what changes meanwhile is looked at again.
        let now = changes + pool.workers().changes();
        let changed = std::mem::replace(seen, now) != now;
        if changed {
            out.extend(pool.workers().booked());
        }
        changed
    }

    fn set_others(&self, pool: PoolId, others: &[(WorkerRank, PeerLoad)]) {
        if let Some(pool) = self.of(pool) {
            pool.workers().set_others(others);
        }
    }

    fn may_have_room(&self, pool: PoolId) {
        if let Some(pool) = self.of(pool) {
            pool.kick();
        }
    }

    fn sent(&self, pool: PoolId, worker: WorkerRank, sequence: &[SequenceHash]) {
        if let Some(pool) = self.with_sessions(pool) {
            pool.workers().bound_elsewhere(worker, sequence);
        } else if let Some(pool) = self.of(pool) {
            pool.workers().sent_elsewhere(worker, sequence);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::pool_settings::PoolSettings;
    use super::*;
    use stator_protos::discovery::ModelRecord;

    fn pool() -> Arc<Pool> {
        let (context_length, block_size, vocab_size) = (4096, 16, 1000);
        let record = ModelRecord { name: "m".into(), context_length, block_size, vocab_size };
        Pool::new(record, &PoolSettings::default()).expect("blocks have tokens")
    }

    #[test]
    fn a_pool_in_place_of_another_is_looked_at_again() {
        let (shared, id) = (Shared::default(), PoolId(7));
        let mut seen = 0;
        let mut look = |shared: &Shared| shared.own(id, &mut seen, &mut Vec::new());
        assert!(!look(&shared), "it is not here");
        let first = pool();
        first.workers().share(PoolLink { outbox: Default::default(), id, sessions: None });
        shared.enter(id, None, first.clone());
        assert!(!look(&shared), "nothing was ever sent");
        first.workers().changed();
        assert!(look(&shared));
        assert!(!look(&shared));
        shared.enter(id, None, pool());
        assert!(look(&shared), "what the first had is nobody's");
        assert!(!look(&shared));
    }
}
