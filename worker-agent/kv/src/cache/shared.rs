//! The store behind its lock, as clients and tiers call it.

use super::questions::QuestionKey;
use super::settings::{CacheSettings, Progress, ProgressListener};
use super::state::{ClientListener, Question, StoreState, UnverifiedBlocks};
use crate::arena::Arena;
use crate::cost::{EnginePace, HostPace};
use crate::metrics::{FilledOutcome, HitPlace, KvMetrics, TierOperation, TierWay};
use crate::store::{
    Action, AheadReads, BlockStore, Filled, Found, OwnerId, RequestId, SlotContent, StoreStatus,
    TierId,
};
use crate::tier::{TierError, TierReport};
use crate::{Block, Checksum, Now, SlotId};
use parking_lot::{Condvar, Mutex, MutexGuard};
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::Medium;
use stator_protos::load::{LoadCost, TierCosts};
use stator_protos::name::BlockName;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Tells the time, which never goes back.
pub(super) type Clock = Arc<dyn Fn() -> Now + Send + Sync>;

/// Longest time between two looks at the store, so that writes go on that a tier had no room for.
const LOOK: Duration = Duration::from_millis(250);

/// Name of the tier that reads from other agents.
const PEER_TIER: &str = "peer";

/// Answers to one question that turn out to have spoiled blocks. After that, it finds nothing.
const SPOILED_ANSWERS_MAX: usize = 8;

/// The store, and its decisions that have not been carried out.
pub(super) struct SharedStore {
    state: Mutex<StoreState>,
    /// There is something to carry out, another deadline, or the end.
    news: Condvar,
    arena: Arc<Arena>,
    /// Blocks that are compared with their checksums at a time; none where they are not compared.
    verify_blocks: Option<usize>,
    tiers: Vec<(&'static str, Medium)>,
    host_pace: Mutex<HostPace>,
    metrics: KvMetrics,
    clock: Clock,
}

/// Progress, and the one who is to hear of it.
pub(super) struct ClientNews {
    pub(super) listener: ProgressListener,
    pub(super) progress: Progress,
}

impl SharedStore {
    pub(super) fn new(
        store: BlockStore,
        arena: Arc<Arena>,
        settings: &CacheSettings,
        clock: Clock,
    ) -> Self {
        let state = StoreState::new(store);
        let verify_blocks = (settings.verify_bytes / arena.block_bytes()).max(1);
        Self {
            state: Mutex::new(state),
            news: Condvar::new(),
            arena,
            verify_blocks: settings.verify_host.then_some(verify_blocks),
            tiers: settings.tiers.iter().map(|tier| (tier.name, tier.settings.medium)).collect(),
            host_pace: Mutex::default(),
            metrics: settings.metrics.clone(),
            clock,
        }
    }

    pub(super) fn shared_arena(&self) -> Arc<Arena> {
        self.arena.clone()
    }

    pub(super) fn arena(&self) -> &Arena {
        &self.arena
    }

    pub(super) fn connect(&self, listener: ClientListener) -> OwnerId {
        self.call(|state, _| {
            let owner = state.store.connect();
            state.listeners.insert(owner, listener);
            owner
        })
    }

    pub(super) fn disconnect(&self, owner: OwnerId, is_dead: bool) {
        self.call(|state, _| {
            state.listeners.remove(&owner);
            state.questions.close_all(owner);
            state.store.disconnect(owner, is_dead);
        });
    }

    pub(super) fn buried(&self, owner: OwnerId) {
        self.call(|state, _| state.store.buried(owner));
    }

    pub(super) fn grant(&self, owner: OwnerId, wanted: usize) -> Vec<SlotId> {
        self.call(|state, now| state.store.grant(owner, wanted, now))
    }

    /// Registers blocks in slots that the owner has filled. Returns the slots of blocks that were
    /// there already, or that are beyond the quota of their tenant; they stay with the owner.
    pub(super) fn filled(&self, owner: OwnerId, blocks: &[(SlotId, Block)]) -> Vec<SlotId> {
        // Outside the lock, because this reads all bytes. The checksum of a slot that is not the
        // owner's to fill may be of anything: it is refused below.
        let known = blocks.iter().filter(|(slot, _)| slot.0 < self.arena.slots());
        let known: Vec<_> = known
            .map(|&(slot, block)| (slot, block, self.arena.checksum(slot, block.name)))
            .collect();
        let refused = blocks.len() - known.len();
        self.register(owner, known, refused)
    }

    /// Copies a block into a slot that the owner was granted, and registers it. Returns the slot if
    /// the block was there already.
    pub(super) fn store(
        &self,
        owner: OwnerId,
        slot: SlotId,
        block: Block,
        kv: &[u8],
    ) -> Option<SlotId> {
        let checksum = self.arena.write_checked(slot, block.name, kv);
        self.register(owner, vec![(slot, block, checksum)], 0).pop()
    }

    /// Registers blocks with their checksums, and counts those that were refused before, too.
    fn register(
        &self,
        owner: OwnerId,
        blocks: Vec<(SlotId, Block, Checksum)>,
        mut refused: usize,
    ) -> Vec<SlotId> {
        let mut registered = 0;
        let (mut duplicates, mut over_quota) = (Vec::new(), Vec::new());
        self.call(|state, now| {
            for (slot, block, checksum) in blocks {
                match state.store.filled(owner, slot, block, checksum, now) {
                    Filled::Registered => registered += 1,
                    Filled::Duplicate => duplicates.push(slot),
                    Filled::NotGranted => refused += 1,
                    Filled::OverQuota => over_quota.push(slot),
                }
            }
        });
        self.metrics.filled(FilledOutcome::registered, registered);
        self.metrics.filled(FilledOutcome::duplicate, duplicates.len());
        self.metrics.filled(FilledOutcome::over_quota, over_quota.len());
        // To the engine it is the same: the slot is its to fill again.
        duplicates.extend(over_quota);
        self.metrics.filled(FilledOutcome::not_granted, refused);
        if refused > 0 {
            tracing::warn!(owner = owner.0, refused, "an engine filled slots that it did not hold");
        }
        duplicates
    }

    /// Answers a question with blocks that have their checksums. Of many blocks, only the first are
    /// compared before the answer, because an engine waits for it. The others are on their way.
    pub(super) fn ask(&self, question: Question<'_>) -> Found {
        self.metrics.asked.inc_by(question.names.len() as u64);
        let (found, _) = self.answer(question, self.verify_blocks.unwrap_or(usize::MAX));
        self.metrics.hit(HitPlace::host, found.ready.len());
        found
    }

    /// Answers the question of another agent with blocks that have their checksums, and the number of
    /// blocks behind them that are on their way.
    pub(super) fn lend(&self, question: Question<'_>) -> (Vec<SlotContent>, usize) {
        let (found, contents) = self.answer(question, usize::MAX);
        self.metrics.lent.inc_by(contents.len() as u64);
        (contents, found.pending)
    }

    /// The blocks in slots that a request has pinned.
    pub(super) fn contents(&self, slots: &[SlotId]) -> Vec<SlotContent> {
        self.state.lock().contents(slots)
    }

    /// Answers a question with `at_once` leading blocks at most.
    fn answer(&self, question: Question<'_>, at_once: usize) -> (Found, Vec<SlotContent>) {
        let key = (question.owner, question.request);
        for _ in 0..SPOILED_ANSWERS_MAX {
            let (mut found, mut contents) = self.call(|state, now| state.ask(question, now));
            contents.truncate(at_once);
            let (later, pending) = (found.ready.split_off(contents.len()), found.pending);
            // Outside the lock, because this reads all bytes. The request has pinned the slots.
            if self.forget_spoiled(&contents) == contents.len() {
                found.pending += later.len();
                self.call(|state, _| state.answered_in_part(key, later, pending));
                return (found, contents);
            }
        }
        // Somebody keeps writing into blocks that are not theirs.
        self.call(|state, _| state.questions.close(key));
        <(Found, Vec<SlotContent>)>::default()
    }

    pub(super) fn read_ahead(&self, hashes: &[SequenceHash], pace: EnginePace) -> AheadReads {
        self.call(|state, now| state.store.read_ahead(hashes, pace, now))
    }

    pub(super) fn end_ahead(&self, reads: AheadReads) {
        self.call(|state, now| state.store.end_ahead(reads, now));
    }

    /// Whether there is a tier whose blocks have hashes: what other agents hold is known by names.
    pub(super) fn can_read_ahead(&self) -> bool {
        self.tiers.iter().any(|(name, _)| *name != PEER_TIER)
    }

    pub(super) fn touch(&self, names: &[BlockName]) {
        self.call(|state, now| state.store.touch(names, now));
    }

    pub(super) fn end(&self, owner: OwnerId, request: RequestId) {
        self.call(|state, now| {
            state.questions.close((owner, request));
            state.store.end(owner, request, now);
        });
    }

    pub(super) fn event_hash(&self, name: BlockName) -> Option<SequenceHash> {
        self.state.lock().store.event_hash(name)
    }

    pub(super) fn learn(&self, blocks: &[Block]) {
        self.call(|state, now| blocks.iter().for_each(|block| state.store.learn(*block, now)));
    }

    pub(super) fn clear(&self) {
        self.call(|state, _| state.store.clear());
    }

    /// Calls the store for an operator.
    pub(super) fn operate<R>(&self, act: impl FnOnce(&mut BlockStore, Now) -> R) -> R {
        let result = self.call(|state, now| act(&mut state.store, now));
        // There may be another limit.
        self.news.notify_one();
        result
    }

    /// Names of the tiers, in the store's order.
    pub(super) fn tier_names(&self) -> Vec<&'static str> {
        self.tiers.iter().map(|(name, _)| *name).collect()
    }

    /// Counts of this process.
    pub(super) fn metrics(&self) -> &KvMetrics {
        &self.metrics
    }

    pub(super) fn report(&self, tier: TierId, report: TierReport) {
        self.call(|state, now| {
            let (way, slot, error) = match &report {
                TierReport::Read { slot, result, .. } => (TierWay::read, *slot, result.err()),
                TierReport::Written { slot, result, .. } => (TierWay::write, *slot, result.err()),
                _ => return state.store.report(tier, report, now),
            };
            // Nobody was given work that is not in the table: it is not counted.
            if let Some(since) = state.started.remove(&(tier, way, slot)) {
                self.count((tier, way), now.saturating_sub(since), error);
            }
            state.store.report(tier, report, now);
        });
    }

    /// Ends [`SharedStore::wait`].
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        self.news.notify_all();
    }

    /// Waits for decisions, for a look's time at most; `None` after the end.
    pub(super) fn wait(&self) -> Option<VecDeque<Action>> {
        let mut state = self.state.lock();
        let until = (self.clock)() + LOOK;
        while !state.is_closed {
            let now = (self.clock)();
            let decisions = state.take(now);
            let has_work = !decisions.is_empty() || !state.unverified.is_empty();
            if has_work || (now >= until && !state.has_excess) {
                return Some(decisions);
            }
            if state.has_excess {
                // Requests come first: an operator's new limit is in no hurry.
                MutexGuard::bump(&mut state);
                continue;
            }
            let deadline = state.store.next_deadline().map_or(until, |at| at.min(until));
            self.news.wait_for(&mut state, deadline.saturating_sub(now));
        }
        None
    }

    /// The state of the store, a few times a second at most.
    pub(super) fn status_to_publish(&self) -> Option<StoreStatus> {
        let mut state = self.state.lock();
        let now = (self.clock)();
        let is_due = state.published.is_none_or(|last| now.saturating_sub(last) >= LOOK);
        is_due.then(|| {
            state.published = Some(now);
            state.store.status(now)
        })
    }

    /// The decisions that are to be carried out now; none if there is nothing to do.
    #[cfg(test)]
    pub(super) fn decisions(&self) -> Option<VecDeque<Action>> {
        let mut state = self.state.lock();
        let decisions = state.take((self.clock)());
        (!decisions.is_empty() || !state.unverified.is_empty()).then_some(decisions)
    }

    /// Compares the next blocks of a long answer, if there is one. A part at a time, so that other
    /// requests' reads and news do not wait for long.
    pub(super) fn verify_next(&self) -> Option<ClientNews> {
        let mut answer = self.state.lock().unverified.pop_front()?;
        let UnverifiedBlocks { key, number, pending, .. } = answer;
        let size = self.verify_blocks.unwrap_or(usize::MAX).min(answer.slots.len());
        let behind = answer.slots.split_off(size);
        let slots = std::mem::replace(&mut answer.slots, behind);
        let progress = Progress { request: key.1, slots, pending: answer.slots.len() + pending };
        let news = self.checked(key, number, progress, HitPlace::host)?;
        self.call(|state, _| {
            if news.progress.pending > 0 && answer.slots.is_empty() {
                // What came from tiers meanwhile is told from now on.
                state.answered(key, pending);
            } else if news.progress.pending > 0 {
                state.unverified.push_back(answer);
            }
        });
        Some(news)
    }

    /// The news for a client in the progress of a request: leading slots that have their checksums.
    pub(super) fn news(&self, key: QuestionKey, progress: Progress) -> Option<ClientNews> {
        let number = self.state.lock().questions.number(key)?;
        self.checked(key, number, progress, HitPlace::below)
    }

    /// Progress of a question with the leading blocks that have their checksums; `None` if the
    /// question has ended.
    fn checked(
        &self,
        key: QuestionKey,
        number: u64,
        mut progress: Progress,
        place: HitPlace,
    ) -> Option<ClientNews> {
        let contents = {
            let state = self.state.lock();
            state.questions.number(key).filter(|now| *now == number)?;
            state.contents(&progress.slots)
        };
        // Outside the lock, as for an answer. A block that was here before those in front of it
        // were read has not been looked at yet.
        let good = self.forget_spoiled(&contents);
        if good < progress.slots.len() {
            progress.slots.truncate(good);
            progress.pending = 0;
        }
        let mut state = self.state.lock();
        // The request may have ended, or asked again, meanwhile.
        if state.questions.number(key) != Some(number) {
            return None;
        }
        if progress.pending == 0 {
            state.questions.close(key);
        }
        let ClientListener { tell, is_lender } = state.listeners.get(&key.0)?.clone();
        match is_lender {
            true => drop(self.metrics.lent.inc_by(progress.slots.len() as u64)),
            false => self.metrics.hit(place, progress.slots.len()),
        }
        Some(ClientNews { listener: tell, progress })
    }

    /// Compares slots with their checksums, and has the store forget blocks that have changed.
    /// Returns the number of leading slots that are good.
    fn forget_spoiled(&self, contents: &[SlotContent]) -> usize {
        if self.verify_blocks.is_none() {
            return contents.len();
        }
        let is_spoiled = |of: &&SlotContent| self.arena.checksum(of.slot, of.name) != of.checksum;
        let start = (self.clock)();
        let good = contents.iter().take_while(|of| !is_spoiled(of)).count();
        self.host_pace.lock().add(good, (self.clock)().saturating_sub(start));
        // All others, too: the next question should not stumble over one after the other.
        let spoiled: Vec<_> = contents[good..].iter().filter(is_spoiled).collect();
        if !spoiled.is_empty() {
            tracing::warn!(
                blocks = spoiled.len(),
                "KV in host memory has changed: it is forgotten"
            );
            self.metrics.corrupt.inc_by(spoiled.len() as u64);
            self.call(|state, _| spoiled.into_iter().for_each(|of| state.store.spoiled(*of)));
        }
        good
    }

    fn count(&self, work: (TierId, TierWay), took: Duration, error: Option<TierError>) {
        let (tier, way) = work;
        let (tier, _) = self.tiers[usize::from(tier.0)];
        let bytes = self.arena.block_bytes();
        self.metrics.ended(TierOperation { tier, way, bytes, took }, error);
    }

    /// Measured costs of loads.
    pub(super) fn costs(&self) -> TierCosts {
        let host = self.host_pace.lock().block();
        let block_ns = |block: Duration| (block.as_nanos() as u64).max(1);
        let host = host.map(|block| LoadCost { latency_us: 0, block_ns: block_ns(block) });
        let mut costs = TierCosts {
            block_bytes: self.arena.block_bytes() as u64,
            host: host.unwrap_or_default(),
            ..TierCosts::default()
        };
        let state = self.state.lock();
        for ((name, medium), cost) in self.tiers.iter().zip(state.store.load_costs((self.clock)()))
        {
            // Both an object store and other agents are remote.
            let place = match medium {
                Medium::Remote if *name == PEER_TIER => &mut costs.peer,
                Medium::Remote => &mut costs.remote,
                Medium::Disk => &mut costs.disk,
                Medium::Host | Medium::Device => continue,
            };
            *place = cost.unwrap_or_default();
        }
        costs
    }

    /// Calls the store, and wakes the thread that carries out what it decides.
    fn call<R>(&self, act: impl FnOnce(&mut StoreState, Now) -> R) -> R {
        let mut state = self.state.lock();
        let before = state.store.next_deadline();
        let result = act(&mut state, (self.clock)());
        state.collect();
        let has_work = !state.outbox.is_empty() || !state.unverified.is_empty();
        if has_work || state.store.next_deadline() != before {
            self.news.notify_one();
        }
        result
    }
}
