//! The pools of this process, as other replicas of the picker see them.

use crate::pool::Pool;
use stator_epp_scheduler::NamedPlugin;
use stator_epp_scheduler::plugin::{IndexListener, SharedIndex};
use stator_peers::{Blocks, Outbox, Peers, PoolId, PoolLink, Replica, Seat};
use stator_placement::{PeerLoad, WorkerHoldings};
use stator_protos::WorkerRank;
use stator_protos::hash::SequenceHash;
use stator_runtime::Shutdown;
use std::sync::Arc;
use tokio::sync::watch;

/// Indices that replicas share, in the order of their numbers: the pools, then those of plug-ins,
/// which all pools have in common as they share one configuration, then the sessions of the pools,
/// where the placement core binds them.
struct Shared {
    pools: Vec<Arc<Pool>>,
    indices: Vec<NamedPlugin<dyn SharedIndex>>,
    binds_sessions: bool,
    /// Whether each replica goes by what it sent itself alone.
    apart: bool,
}

impl Shared {
    fn new(pools: &[Arc<Pool>], apart: bool) -> Self {
        let indices =
            |pool: &Arc<Pool>| pool.with(|scheduler, _| scheduler.program().shared.clone());
        Self {
            pools: pools.to_vec(),
            indices: pools.first().map(indices).unwrap_or_default(),
            binds_sessions: pools.iter().any(|pool| pool.binds_sessions()),
            apart,
        }
    }

    fn of(&self, id: PoolId) -> Option<&Pool> {
        self.pools.get(id.0 as usize).map(|pool| &**pool)
    }

    fn index(&self, id: PoolId) -> Option<&dyn SharedIndex> {
        let number = (id.0 as usize).checked_sub(self.pools.len())?;
        self.indices.get(number).map(|index| &*index.plugin)
    }

    /// The pool whose sessions have this number.
    fn with_sessions(&self, id: PoolId) -> Option<&Pool> {
        let number = (id.0 as usize).checked_sub(self.pools.len() + self.indices.len())?;
        self.pools.get(number).filter(|_| self.binds_sessions).map(|pool| &**pool)
    }

    /// Sends `peers` all further requests of this replica.
    fn tell(&self, peers: &Peers) {
        let mut ids = (0..).map(PoolId);
        let pools: Vec<_> = self.pools.iter().zip(&mut ids).collect();
        for (index, id) in self.indices.iter().zip(&mut ids) {
            index.plugin.tell(Arc::new(Letters { outbox: peers.outbox(), id }));
        }
        for ((pool, id), sessions) in pools.into_iter().zip(ids) {
            let sessions = self.binds_sessions.then_some(sessions);
            pool.share(PoolLink { outbox: peers.outbox(), id, sessions });
        }
    }
}

/// Tells other replicas what an index records.
struct Letters {
    outbox: Outbox,
    id: PoolId,
}

impl IndexListener for Letters {
    fn sent(&self, worker: WorkerRank, chain: &[SequenceHash]) {
        self.outbox.sent(self.id, worker, chain);
    }
}

impl Blocks for Shared {
    fn workers(&self, pool: PoolId) -> Vec<WorkerRank> {
        self.of(pool).map(Pool::tellers).unwrap_or_default()
    }

    fn held(&self, pool: PoolId, workers: &[WorkerRank]) -> Vec<(WorkerRank, WorkerHoldings)> {
        self.of(pool).map(|pool| pool.held_by(workers)).unwrap_or_default()
    }

    fn predicted(
        &self,
        pool: PoolId,
        from: usize,
        most: usize,
    ) -> Option<Vec<(WorkerRank, SequenceHash)>> {
        if let Some(index) = self.index(pool) {
            return index.predictions(from, most);
        }
        match self.with_sessions(pool) {
            Some(pool) => pool.sessions(from, most),
            None => self.of(pool)?.predictions(from, most),
        }
    }

    fn restore(&self, pool: PoolId, worker: WorkerRank, held: WorkerHoldings) -> bool {
        self.of(pool).is_some_and(|pool| pool.restore(worker, held))
    }
}

impl Replica for Shared {
    fn pools(&self) -> Vec<String> {
        let pools = self.pools.iter().map(|pool| pool.name().to_owned());
        let indices = self.indices.iter().map(|index| index.name.to_string());
        let sessions = self.pools.iter().filter(|_| self.binds_sessions);
        let sessions = sessions.map(|pool| format!("sessions of {}", pool.name()));
        pools.chain(indices).chain(sessions).collect()
    }

    fn own(&self, pool: PoolId, seen: &mut u64, out: &mut Vec<(WorkerRank, PeerLoad)>) -> bool {
        let Some(pool) = self.of(pool).filter(|_| !self.apart) else { return false };
        pool.with(|scheduler, now| {
            let changed = std::mem::replace(seen, scheduler.own_version()) != *seen;
            if changed {
                out.extend(scheduler.own(now));
            }
            changed
        })
    }

    fn set_others(&self, pool: PoolId, others: &[(WorkerRank, PeerLoad)]) {
        let Some(pool) = self.of(pool).filter(|_| !self.apart) else { return };
        pool.with(|scheduler, _| {
            for (worker, load) in others {
                scheduler.set_others(*worker, *load);
            }
        });
    }

    fn may_have_room(&self, pool: PoolId) {
        if let Some(pool) = self.of(pool) {
            pool.kick();
        }
    }

    fn sent(&self, pool: PoolId, worker: WorkerRank, sequence: &[SequenceHash]) {
        if let Some(pool) = self.of(pool) {
            return pool.sent(worker, sequence);
        }
        if let Some(pool) = self.with_sessions(pool) {
            return pool.bound(worker, sequence);
        }
        let Some(index) = self.index(pool) else { return };
        // Which pool the worker is of is not said, and others do not know it.
        for pool in &self.pools {
            pool.with(|scheduler, now| {
                if let Some((endpoint, load)) = scheduler.endpoint(worker) {
                    index.sent(endpoint, load, sequence, now);
                }
            });
        }
    }
}

/// Joins other replicas once the pools' endpoints are known, and takes over one replica's state;
/// `warm` becomes true then. With `apart` they hear nothing of the load in flight. Ends with
/// `ended`, which is set after the last request.
pub(crate) async fn join(
    seat: Seat,
    pools: Vec<Arc<Pool>>,
    apart: bool,
    warm: watch::Sender<bool>,
    ended: Shutdown,
) {
    tokio::select! {
        () = known(&pools) => {}
        () = ended.wait() => return,
    }
    // What the schedulers know of their endpoints is as new as the views that were awaited.
    pools.iter().for_each(|pool| pool.follow_view());
    let shared = Arc::new(Shared::new(&pools, apart));
    let (peers, tasks) = seat.join(shared.clone(), ended);
    shared.tell(&peers);
    peers.warm_start().await;
    warm.send_replace(true);
    tasks.join_all().await;
}

/// Waits until the endpoints of all pools are known.
pub(crate) async fn known(pools: &[Arc<Pool>]) {
    for pool in pools {
        // A pool's source lives as long as the process; without one nothing is ever known.
        let _ = pool.views().wait_for(|view| view.synced).await;
    }
}

#[cfg(test)]
#[path = "replicas_tests.rs"]
mod tests;
