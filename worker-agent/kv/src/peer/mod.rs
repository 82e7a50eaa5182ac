//! The tier of other agents: reads blocks that they hold into the arena.
//!
//! Nobody lists what other agents hold. [`PeerTier::hint`] says that one of them has some blocks:
//! the router knows, and tells with the request. Reads of blocks that follow one another are done
//! together. Blocks go one way: a peer is read from, never written to.
//!
//! The way of a read: [`PeerTier::read`] finds the peer by its hint and queues the read (`queue`).
//! The peer's task (`dispatch`) makes batches of them, and for each batch gets a lease and waits
//! until its blocks are there (`pull`). Connections (`stream`) take the frames to ask for from the
//! peer's board (`board`), the urgent ones first. Where both sides can (`crate::transfer::direct`), a
//! batch is read straight from the peer's arena instead (`direct`), if that was faster (`path`).

mod board;
mod common;
mod counts;
mod direct;
mod dispatch;
mod health;
mod hints;
mod pace;
mod path;
mod pull;
mod queue;
mod settings;
mod stream;
#[cfg(test)]
#[cfg(target_os = "linux")]
pub(crate) mod tests;

pub use common::{DirectReads, ReportListener};
pub use counts::PeerCounts;
pub use settings::PeerSettings;
pub use stream::visit;

use crate::arena::Arena;
use crate::cost::{ReadCost, SourceId};
use crate::tier::{Tier, TierError, TierRead, TierReport, TierWrite};
use crate::transfer::ReaderIdentity;
use crate::{Block, BlockForm, SlotId};
use common::PeerCommon;
use counts::Counters;
use dispatch::Peer;
use hints::Hints;
use pace::PeerCosts;
use parking_lot::Mutex;
use queue::QueuedRead;
use rustc_hash::FxHashMap;
use stator_protos::kv_event::Medium;
use stator_protos::load::LoadCost;
use stator_protos::name::BlockName;
use std::net::SocketAddr;
use std::num::NonZeroU8;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Blocks of other agents.
pub struct PeerTier {
    common: Arc<PeerCommon>,
    runtime: Handle,
    peers: Mutex<Peers>,
}

#[derive(Default)]
struct Peers(FxHashMap<SocketAddr, RunningPeer>);

struct RunningPeer {
    peer: Arc<Peer>,
    /// Its number among the sources of the tier.
    source: SourceId,
    task: AbortHandle,
}

impl PeerTier {
    /// A tier that reads blocks of this form into `arena`.
    ///
    /// Its work is done on `runtime`. A connection checks half a mebibyte at a time there, which
    /// takes up to a quarter of a millisecond.
    pub fn new(
        arena: Arc<Arena>,
        form: BlockForm,
        reader: impl Into<ReaderIdentity>,
        settings: PeerSettings,
        runtime: Handle,
        listener: ReportListener,
    ) -> Self {
        let counters = Counters::default();
        let hints = Mutex::new(Hints::new(settings.hints_max));
        let (reader, direct) = (reader.into(), OnceLock::new());
        let common =
            PeerCommon { settings, form, reader, arena, listener, counters, hints, direct };
        Self { common: Arc::new(common), runtime, peers: Mutex::default() }
    }

    /// Another agent holds these blocks, which follow one another in a sequence. It answers readers
    /// at `peer`. Without a fleet secret, agents on other machines are not believed.
    pub fn hint(&self, peer: SocketAddr, blocks: &[Block]) {
        if !self.common.reader.key.covers(peer.ip()) {
            tracing::debug!(%peer, "peer ignored: no fleet secret vouches for it");
            return;
        }
        let max = self.common.settings.peers_max;
        let mut peers = self.peers.lock();
        let found = peers.find_or_start(peer, max, |source| self.start(peer, source));
        let cost = found.map(|running| (running.source, running.peer.cost(Instant::now())));
        drop(peers);
        let Some((source, cost)) = cost else { return };
        let changes = self.common.hints.lock().insert(peer, blocks);
        // Outside the lock, because the store has locks of its own.
        if !changes.forgotten.is_empty() {
            (self.common.listener)(TierReport::Gone(changes.forgotten));
        }
        if !changes.new.is_empty() {
            (self.common.listener)(TierReport::Found(changes.new));
        }
        let names = blocks.iter().map(|block| block.name).collect();
        // The reader cannot know which blocks lie on the peer's disk: the cost has their mean share.
        let cost = cost.map(|(_, PeerCosts { all, .. })| ReadCost {
            latency: Duration::from_micros(all.latency_us),
            block: Duration::from_nanos(all.block_ns),
        });
        (self.common.listener)(TierReport::Located { names, source, cost });
    }

    /// Reads arenas of peers in this way too, from now on, where it is faster than the connections.
    /// The first way stays.
    pub fn read_directly(&self, reads: DirectReads) {
        let _ = self.common.direct.set(reads);
    }

    /// Waits until all peers know that nothing of them is needed any more, for `limit` at most. All
    /// reads have been reported. Without this call, a peer keeps its last blocks for a while.
    pub async fn finish(&self, limit: Duration) {
        let boards: Vec<_> =
            self.peers.lock().0.values().map(|running| running.peer.board()).collect();
        let finished = async {
            for board in boards {
                board.finished().await;
            }
        };
        // A peer that cannot be told gives the blocks up by itself.
        let _ = tokio::time::timeout(limit, finished).await;
    }

    /// Measured costs of reads from the host memory of single peers, the latest first. What a peer needs
    /// to read its disk comes on top.
    pub fn costs(&self) -> Vec<(SocketAddr, LoadCost)> {
        let now = Instant::now();
        let peers = self.peers.lock();
        let costs = peers.0.iter().filter_map(|(at, running)| Some((*at, running.peer.cost(now)?)));
        let mut costs: Vec<_> = costs.collect();
        drop(peers);
        costs.sort_unstable_by_key(|(at, (measured, _))| (std::cmp::Reverse(*measured), *at));
        costs.into_iter().map(|(at, (_, costs))| (at, costs.link)).collect()
    }

    /// Work since the start.
    pub fn counts(&self) -> PeerCounts {
        self.common.counters.counts()
    }

    fn start(&self, address: SocketAddr, source: SourceId) -> RunningPeer {
        let peer = Arc::new(Peer::new(self.common.clone(), address));
        let task = self.runtime.spawn(peer.clone().run()).abort_handle();
        RunningPeer { peer, source, task }
    }

    /// Reports a read that comes to nothing, after the call that asked for it.
    fn refuse(&self, read: TierRead, error: TierError) {
        let common = self.common.clone();
        self.runtime.spawn(async move { common.report(read, Err(error)) });
    }
}

impl Peers {
    /// The peer at this address, if it may be read from. Starts it where there is room, at the cost
    /// of one that has nothing to do.
    fn find_or_start(
        &mut self,
        address: SocketAddr,
        max: usize,
        start: impl FnOnce(SourceId) -> RunningPeer,
    ) -> Option<&RunningPeer> {
        if !self.0.contains_key(&address) && self.0.len() >= max {
            // Shunned peers stay, so that they are not forgiven too early.
            let is_spare = |peer: &Peer| peer.is_idle() && !peer.is_shunned();
            let spare = self.0.iter().find(|(_, running)| is_spare(&running.peer));
            let spare = spare.map(|(address, _)| *address)?;
            self.0.remove(&spare);
        }
        let free = self.free_number()?;
        let running = self.0.entry(address).or_insert_with(|| start(free));
        Some(&*running).filter(|running| !running.peer.is_shunned())
    }

    /// The lowest number that no peer has.
    fn free_number(&self) -> Option<SourceId> {
        let is_free = |number: &SourceId| self.0.values().all(|running| running.source != *number);
        (1..=u8::MAX).filter_map(NonZeroU8::new).map(SourceId).find(is_free)
    }
}

impl Drop for RunningPeer {
    fn drop(&mut self) {
        self.task.abort();
        self.peer.fail_queued(TierError::Failed);
    }
}

impl Tier for PeerTier {
    fn medium(&self) -> Medium {
        Medium::Remote
    }

    fn read(&self, read: TierRead) {
        let hint = self.common.hints.lock().get(read.name);
        let Some(hint) = hint else { return self.refuse(read, TierError::Missing) };
        let deadline = Instant::now() + self.common.settings.read_deadline;
        let peers = self.peers.lock();
        let running = peers.0.get(&hint.peer).filter(|running| !running.peer.is_shunned());
        let pushed = running.map(|running| running.peer.push(QueuedRead { read, hint, deadline }));
        match pushed {
            Some(Ok(())) => {}
            Some(Err(_)) => self.refuse(read, TierError::Busy),
            None => self.refuse(read, TierError::Missing),
        }
    }

    /// Refuses: a peer is read from, never written to.
    fn write(&self, write: TierWrite) {
        let common = self.common.clone();
        self.runtime.spawn(async move {
            let (name, slot) = (write.block.name, write.slot);
            (common.listener)(TierReport::Written { name, slot, result: Err(TierError::Full) });
        });
    }

    fn cancel(&self, name: BlockName, slot: SlotId) {
        let peers = self.peers.lock();
        // Of any peer: another may be said to have the block since.
        let dropped = peers.0.values().find_map(|running| running.peer.take(name, slot));
        drop(peers);
        if let Some(read) = dropped {
            self.refuse(read, TierError::Cancelled);
        }
    }

    fn forget(&self, names: &[BlockName]) {
        let mut hints = self.common.hints.lock();
        names.iter().for_each(|name| hints.remove(*name));
    }

    fn clear(&self) {
        self.common.hints.lock().clear();
    }
}
