//! Tiers below an engine's device: the real block store with its policies, over devices of which only
//! the times and the content are modelled.
//!
//! A device's work ends at a time that is known when it begins, so that a request knows at once when
//! its blocks will be there. The store hears of each end when virtual time has come to it.

mod bucket;
mod disk;
mod limits;
#[cfg(test)]
mod tests;
mod totals;

pub(crate) use bucket::Bucket;
pub use limits::{DiskLimits, ObjectLimits, PeerLimits, TierLimits};
pub use totals::TierTotals;

use super::block::{BlockId, BlockPlace, hash};
use super::news::KvNews;
use crate::time::{Ps, SECOND, duration};
use disk::FifoDisk;
use rustc_hash::{FxHashMap, FxHashSet};
use stator_kv::policy::Ghosts;
use stator_kv::store::{
    Action, BlockStore, Filled, LoanTerms, OwnerId, RequestId, StoreSettings, TierAdmission,
    TierId, TierSettings,
};
use stator_kv::tier::{TierError, TierEvent, TierRead, TierReport, TierWrite, Urgency};
use stator_kv::{Block, Checksum, SlotId, TenantKey};
use stator_protos::kv_event::Medium;
use stator_protos::load::{LoadCost, TierCosts};
use stator_protos::name::BlockName;
use std::collections::BTreeMap;
use std::fmt;

/// The tiers as the store numbers them.
const DISK: TierId = TierId(0);
const OBJECTS: TierId = TierId(1);
const PEERS: TierId = TierId(2);
/// Names of used blocks that are remembered, for each block of the larger tier.
const SEEN_PER_BLOCK: usize = 16;
/// Longest wait of a request for blocks: the store's default.
const WAIT_MAX: Ps = 2 * SECOND;

/// Longest wait for the disk on behalf of another worker: half of the time that an agent's reads may take.
const LEND_WAIT: Ps = SECOND;
/// Blocks that are read from disk for another worker at a time, as by an agent.
const LEND_READS_MAX: usize = 256;

/// Blocks that a prompt gets from the tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoadedBlocks {
    pub(crate) blocks: u32,
    /// The time at which the last of them is on the device, or at which the request gave up the rest.
    pub(crate) ready: Ps,
}

/// The tiers of one engine. Time never goes back from call to call.
pub(crate) struct Tiers {
    limits: TierLimits,
    store: Option<BlockStore>,
    owner: OwnerId,
    granted: Vec<SlotId>,
    requests: u64,
    /// Work under way by the time of its end, and in the order in which it began.
    due: BTreeMap<(Ps, u64), DueWork>,
    begun: u64,
    now: Ps,
    disk: FifoDisk,
    /// Blocks that all workers have written to the object store.
    bucket: Bucket,
    /// Number of these that this worker has heard of.
    heard: usize,
    /// Times at which the reads and writes under way will have ended.
    disk_reads: Ps,
    disk_writes: Ps,
    object_reads: Ps,
    object_writes: Ps,
    peer_reads: Ps,
    /// When the last of what others lend is in their host memory.
    lent_at: Ps,
    /// Blocks that are being read, and when they come; `None` for those that will not.
    arriving: FxHashMap<BlockName, (TierId, Option<Ps>)>,
    /// Blocks in host memory, which other workers may read.
    host: FxHashSet<BlockName>,
    /// Blocks that were used before, where host memory takes only these.
    seen: Option<Ghosts>,
    totals: TierTotals,
}

/// Work that ends at a known time.
enum DueWork {
    Read {
        tier: TierId,
        name: BlockName,
        slot: SlotId,
        is_there: bool,
    },
    Write {
        tier: TierId,
        block: Block,
        slot: SlotId,
    },
    /// A request has its blocks on the device.
    End(RequestId),
}

impl Tiers {
    /// Empty tiers, above a bucket that others fill too.
    pub(crate) fn new(limits: TierLimits, bucket: Bucket) -> Self {
        let disk = limits.disk.map_or(TierAdmission::Never, |disk| disk.admission);
        let disk = TierSettings { admission: disk, ..TierSettings::new(Medium::Disk) };
        let objects = limits.objects.map_or(TierAdmission::Never, |objects| objects.admission);
        let objects = TierSettings { admission: objects, ..TierSettings::new(Medium::Remote) };
        // What others lend is theirs to announce.
        let peers = TierSettings {
            admission: TierAdmission::Never,
            is_announced: false,
            ..TierSettings::new(Medium::Remote)
        };
        let tiers = vec![disk, objects, peers];
        let settings = StoreSettings {
            policy: limits.host_policy,
            ..StoreSettings::new(limits.host_blocks, 1, tiers)
        };
        let mut store = (limits.host_blocks > 0).then(|| BlockStore::new(settings));
        let owner = store.as_mut().map_or(OwnerId(0), BlockStore::connect);
        let (granted, due, arriving, host, totals) = Default::default();
        let below = limits.disk.map_or(0, |disk| disk.blocks);
        let names = SEEN_PER_BLOCK * limits.host_blocks.max(below) as usize;
        let seen = limits.is_selective.then(|| Ghosts::new(names));
        Self {
            limits,
            store,
            owner,
            granted,
            requests: 0,
            due,
            begun: 0,
            now: 0,
            disk: FifoDisk::new(limits.disk.map_or(0, |disk| disk.blocks)),
            bucket,
            heard: 0,
            disk_reads: 0,
            disk_writes: 0,
            object_reads: 0,
            object_writes: 0,
            peer_reads: 0,
            lent_at: 0,
            arriving,
            host,
            seen,
            totals,
        }
    }

    /// Whether there are any.
    pub(crate) fn are_there(&self) -> bool {
        self.store.is_some()
    }

    /// Blocks that they gave and took.
    pub(crate) fn totals(&self) -> TierTotals {
        self.totals
    }

    /// The disk, if there is one, reads a block in so long from now on.
    pub(crate) fn set_disk_read(&mut self, block: Ps) {
        if let Some(disk) = &mut self.limits.disk {
            disk.read_block = block;
        }
    }

    /// Time goes on: the store hears of the work that has ended.
    pub(crate) fn advance(&mut self, now: Ps, news: &mut KvNews) {
        self.now = self.now.max(now);
        while let Some(entry) = self.due.first_entry()
            && entry.key().0 <= now
        {
            let ((at, _), work) = entry.remove_entry();
            self.end(work, at, news);
            self.act(at, news);
        }
        self.hear(now, news);
    }

    /// The store hears of what others have written to the bucket.
    fn hear(&mut self, now: Ps, news: &mut KvNews) {
        let Some(store) = self.store.as_mut().filter(|_| self.limits.objects.is_some()) else {
            return;
        };
        let found = self.bucket.news(self.heard, now);
        if !found.is_empty() {
            self.heard += found.len();
            store.report(OBJECTS, TierReport::Found(found), duration(now));
            self.act(now, news);
        }
    }

    /// Leading blocks of `ids` that come from the tiers, for a request whose engine computes a block
    /// in `block_prefill`.
    pub(crate) fn load(
        &mut self,
        ids: &[BlockId],
        block_prefill: Ps,
        news: &mut KvNews,
    ) -> LoadedBlocks {
        let now = self.now;
        let Some(store) = self.store.as_mut().filter(|_| !ids.is_empty()) else {
            return LoadedBlocks { blocks: 0, ready: now };
        };
        let names: Vec<_> = ids.iter().map(|id| name(*id)).collect();
        self.requests += 1;
        let request = RequestId(self.requests);
        let prefill = duration(block_prefill);
        let found = store.ask(self.owner, request, &names, prefill, duration(now));
        self.act(now, news);
        let ready = found.ready.len();
        // The store waits no longer than to compute them would take.
        let deadline = now + WAIT_MAX.min(block_prefill * found.pending as u64);
        let (mut blocks, mut there) = (ready, now);
        for name in &names[ready..ready + found.pending] {
            match self.arriving.get(name) {
                Some((tier, Some(at))) if *at <= deadline => {
                    there = there.max(*at);
                    *match *tier {
                        DISK => &mut self.totals.disk,
                        OBJECTS => &mut self.totals.objects,
                        _ => &mut self.totals.peers,
                    } += 1;
                }
                // One that is here already, behind others that are not.
                None => self.totals.host += 1,
                Some(_) => {
                    there = deadline;
                    break;
                }
            }
            blocks += 1;
        }
        self.totals.host += ready as u64;
        let onboarded = there + blocks as u64 * self.limits.onboard_block;
        self.begin(onboarded, DueWork::End(request));
        LoadedBlocks { blocks: blocks as u32, ready: onboarded }
    }

    /// A block was computed on the device: host memory keeps it too, unless that waits for a second use.
    pub(crate) fn store(&mut self, id: BlockId, place: BlockPlace, news: &mut KvNews) {
        if self.seen.as_mut().is_none_or(|seen| seen.replace(name(id))) {
            self.fill(id, place, news);
        }
    }

    fn fill(&mut self, id: BlockId, place: BlockPlace, news: &mut KvNews) {
        let (now, BlockPlace { parent, depth }) = (self.now, place);
        let Some(store) = &mut self.store else { return };
        if self.granted.is_empty() {
            self.granted = store.grant(self.owner, 1, duration(now));
        }
        if let Some(slot) = self.granted.pop() {
            let block = Block {
                name: name(id),
                hash: Some(hash(id)),
                parent: parent.map(hash),
                depth,
                tenant: TenantKey::default(),
            };
            match store.filled(self.owner, slot, block, Checksum(0), duration(now)) {
                Filled::Registered => self.totals.host_written += 1,
                Filled::Duplicate => self.granted.push(slot),
                Filled::NotGranted | Filled::OverQuota => {}
            }
        }
        self.act(now, news);
    }

    /// Leading blocks of a sequence were used on the device.
    pub(crate) fn touch(&mut self, ids: &[BlockId], news: &mut KvNews) {
        let now = duration(self.now);
        if let Some(store) = &mut self.store {
            let names: Vec<_> = ids.iter().map(|id| name(*id)).collect();
            store.touch(&names, now);
        }
        if self.seen.is_none() {
            return;
        }
        for (at, id) in ids.iter().enumerate() {
            if !self.host.contains(&name(*id)) {
                let parent = at.checked_sub(1).map(|before| ids[before]);
                self.fill(*id, BlockPlace { parent, depth: at as u32 }, news);
            }
        }
    }

    /// Whether a block is in host memory.
    pub(crate) fn has_in_host(&self, id: BlockId) -> bool {
        self.host.contains(&name(id))
    }

    /// Leading blocks of these that another worker can read here, and when they are in host memory.
    pub(crate) fn lend(&mut self, ids: &[BlockId], news: &mut KvNews) -> LoadedBlocks {
        let now = self.now;
        let here = ids.iter().take_while(|id| self.host.contains(&name(**id))).count();
        let at_once = LoadedBlocks { blocks: here as u32, ready: now };
        let Some(store) = self.store.as_mut().filter(|_| here < ids.len()) else { return at_once };
        let names: Vec<_> = ids.iter().map(|id| name(*id)).collect();
        self.requests += 1;
        let request = RequestId(self.requests);
        let reads_max = LEND_READS_MAX.min(self.limits.host_blocks as usize / 4);
        let (wait, urgency) = (duration(LEND_WAIT), Urgency::Demand);
        let terms = LoanTerms { wait, reads_max, urgency };
        let found = store.lend(self.owner, request, &names, terms, duration(now));
        self.act(now, news);
        let mut lent = at_once;
        let end = found.ready.len() + found.pending;
        for name in names.get(here..end).unwrap_or_default() {
            match self.arriving.get(name) {
                Some((_, Some(at))) if *at <= now + LEND_WAIT => lent.ready = lent.ready.max(*at),
                Some(_) => break,
                None => {}
            }
            lent.blocks += 1;
        }
        self.begin(lent.ready, DueWork::End(request));
        lent
    }

    /// Another worker lends these leading blocks of a sequence from the one of number `first` on, once it
    /// has them in its host memory.
    pub(crate) fn hint(&mut self, ids: &[BlockId], first: usize, ready: Ps, news: &mut KvNews) {
        let now = self.now;
        self.lent_at = self.lent_at.max(ready);
        let Some(store) = self.store.as_mut().filter(|_| self.limits.peers.is_some()) else {
            return;
        };
        let blocks = ids.iter().enumerate().skip(first).map(|(depth, id)| Block {
            name: name(*id),
            hash: Some(hash(*id)),
            parent: depth.checked_sub(1).map(|before| hash(ids[before])),
            depth: depth as u32,
            tenant: TenantKey::default(),
        });
        store.report(PEERS, TierReport::Found(blocks.collect()), duration(now));
        self.act(now, news);
    }

    /// Costs of loads as an agent measures them, for blocks of so many bytes that take `compute` to
    /// compute.
    pub(crate) fn costs(&self, block_bytes: f64, compute: Ps) -> TierCosts {
        let Some(store) = &self.store else { return TierCosts::default() };
        let ns = |span: Ps| (span / 1_000).max(1);
        let mut measured = store.load_costs(duration(self.now)).map(Option::unwrap_or_default);
        TierCosts {
            block_bytes: block_bytes as u64,
            compute_ns: ns(compute),
            host: LoadCost { latency_us: 0, block_ns: ns(self.limits.onboard_block) },
            disk: measured.next().unwrap_or_default(),
            remote: measured.next().unwrap_or_default(),
            peer: measured.next().unwrap_or_default(),
            ..TierCosts::default()
        }
    }

    fn begin(&mut self, ends: Ps, work: DueWork) {
        self.begun += 1;
        self.due.insert((ends, self.begun), work);
    }

    /// Carries out what the store decides.
    fn act(&mut self, now: Ps, news: &mut KvNews) {
        while let Some(action) = self.store.as_mut().and_then(BlockStore::next_action) {
            match action {
                Action::Read { tier, read } => self.read(tier, &read, now),
                Action::Write { tier, write } => self.write(tier, &write, now),
                Action::Event(event) => self.tell(&event, news),
                // A read has its end from its beginning. Operators have no part in the model.
                Action::Cancel { .. } => {}
                Action::Ready { .. } | Action::Forget { .. } | Action::Clear { .. } => {}
            }
        }
    }

    fn write(&mut self, tier: TierId, write: &TierWrite, now: Ps) {
        let TierLimits { disk, objects, .. } = self.limits;
        let disk = disk.map(|disk| (disk.latency, disk.write_block));
        let objects = objects.map(|objects| (objects.latency, objects.write_block));
        let (times, free) = match tier {
            DISK => (disk, &mut self.disk_writes),
            _ => (objects, &mut self.object_writes),
        };
        let (latency, block) = times.unwrap_or_default();
        *free = (*free).max(now) + block;
        let ends = *free + latency;
        self.begin(ends, DueWork::Write { tier, block: write.block, slot: write.slot });
    }

    fn read(&mut self, tier: TierId, read: &TierRead, now: Ps) {
        let TierRead { name, slot, .. } = *read;
        let TierLimits { disk, objects, peers, .. } = self.limits;
        let disk = disk.map(|disk| (disk.latency, disk.read_block));
        let objects = objects.map(|objects| (objects.latency, objects.read_block));
        let peers = peers.map(|peers| (peers.latency, peers.block));
        let (times, free, is_there) = match tier {
            DISK => (disk, &mut self.disk_reads, self.disk.read(name)),
            OBJECTS => (objects, &mut self.object_reads, true),
            _ => (peers, &mut self.peer_reads, true),
        };
        let (latency, block) = times.unwrap_or_default();
        let from = if tier == PEERS { now.max(self.lent_at) } else { now };
        *free = (*free).max(from) + block;
        let ends = *free + latency;
        self.arriving.insert(name, (tier, is_there.then_some(ends)));
        self.begin(ends, DueWork::Read { tier, name, slot, is_there });
    }

    fn end(&mut self, work: DueWork, at: Ps, news: &mut KvNews) {
        let (Some(store), now) = (&mut self.store, duration(at)) else { return };
        match work {
            DueWork::Read { tier, name, slot, is_there } => {
                self.arriving.remove(&name);
                let result = if is_there { Ok(Checksum(0)) } else { Err(TierError::Missing) };
                store.report(tier, TierReport::Read { name, slot, result }, now);
            }
            DueWork::Write { tier, block, slot } => {
                let mut gone = Vec::new();
                if tier == DISK {
                    self.totals.disk_written += self.disk.write(block.name, &mut gone);
                } else {
                    let known_after = self.limits.objects.map_or(0, |objects| objects.known_after);
                    self.bucket.write(block, at + known_after);
                    self.totals.objects_written += 1;
                }
                let written = TierReport::Written { name: block.name, slot, result: Ok(()) };
                store.report(tier, written, now);
                self.act(at, news);
                if let Some(store) = &mut self.store {
                    store.report(tier, TierReport::Gone(gone), now);
                }
            }
            DueWork::End(request) => store.end(self.owner, request, now),
        }
    }

    fn tell(&mut self, event: &TierEvent, news: &mut KvNews) {
        match event {
            // Nobody clears the tiers of a model.
            TierEvent::Cleared => {}
            TierEvent::Stored { block, medium } => {
                if *medium == Medium::Host {
                    self.host.insert(block.name);
                }
                if let Some(hash) = block.hash {
                    news.stored_as(hash, block.parent, *medium);
                }
            }
            TierEvent::Removed { block, medium } => {
                if *medium == Medium::Host {
                    self.host.remove(&block.name);
                }
                if let Some(hash) = block.hash {
                    news.removed_as(hash, *medium);
                }
            }
        }
    }
}

impl fmt::Debug for Tiers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tiers").field("limits", &self.limits).finish_non_exhaustive()
    }
}

fn name(id: BlockId) -> BlockName {
    BlockName(hash(id).0.into())
}
