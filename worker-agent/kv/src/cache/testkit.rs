//! A cache that runs step by step, with tiers that fail as they are told.

use super::assemble;
use super::dispatch::Dispatcher;
use super::settings::{CacheSettings, CacheTier, Progress, TierPlace};
use super::shared::SharedStore;
use super::state::{ClientListener, Question, QuestionPurpose};
use crate::metrics::KvMetrics;
use crate::store::{Found, OwnerId, RequestId, TierSettings};
use crate::tier::{Tier, TierError, TierEvent, TierRead, TierReport, TierWrite};
use crate::{Block, BlockForm, Checksum, Now, SlotId};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::Medium;
use stator_protos::name::BlockName;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

pub(super) const BLOCK: usize = 264;
pub(super) const FORM: BlockForm = BlockForm { fingerprint: [7; 32], block_bytes: BLOCK };

/// The one right KV of a block.
pub(super) fn kv_of(name: BlockName) -> Vec<u8> {
    let word = |at| crate::checksum::checksum(name, &[at]).0.to_le_bytes();
    (0..BLOCK.div_ceil(8) as u8).flat_map(word).take(BLOCK).collect()
}

pub(super) fn names(range: std::ops::Range<u128>) -> Vec<BlockName> {
    range.map(BlockName).collect()
}

/// The hash by which events name a block.
pub(super) fn hash(name: BlockName) -> SequenceHash {
    SequenceHash(name.0 as u64)
}

pub(super) fn block(name: BlockName) -> Block {
    Block {
        name,
        hash: Some(hash(name)),
        parent: None,
        depth: name.0 as u32 % 64,
        tenant: crate::TenantKey::default(),
    }
}

/// A block as a tier has it, right or wrong.
#[derive(Clone)]
pub(super) struct StoredKv {
    pub(super) block: Block,
    pub(super) kv: Vec<u8>,
    pub(super) checksum: Checksum,
}

/// Storage that outlives the tiers that use it.
pub(super) type Media = Arc<Mutex<BTreeMap<BlockName, StoredKv>>>;

/// A fault of a tier's work. The tier finds out by checksums alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    /// The device says so, after it has left something in the slot.
    Error(TierError),
    /// Half of the bytes arrive, and nobody says so.
    Half,
    /// A bit of the media has changed.
    Flip(usize),
    /// The media has the KV of another block there, or never got what was written.
    Stale,
    /// Half of the bytes arrive, and the tier does not look.
    Unnoticed,
}

pub(super) enum Work {
    Read(TierRead),
    Write(TierWrite),
}

/// A tier whose work ends when, and as, the test wants.
pub(super) struct FakeTier {
    pub(super) place: TierPlace,
    pub(super) media: Media,
    pub(super) queue: Mutex<Vec<Work>>,
    /// Whether reads have not begun, so that they can be dropped. They have, by default.
    pub(super) is_queue: AtomicBool,
    medium: Medium,
}

impl Tier for FakeTier {
    fn medium(&self) -> Medium {
        self.medium
    }

    fn read(&self, read: TierRead) {
        self.queue.lock().push(Work::Read(read));
    }

    fn write(&self, write: TierWrite) {
        self.queue.lock().push(Work::Write(write));
    }

    fn cancel(&self, name: BlockName, slot: SlotId) {
        if !self.is_queue.load(Relaxed) {
            return;
        }
        let mut queue = self.queue.lock();
        let is_it = |work: &Work| match work {
            Work::Read(read) => (read.name, read.slot) == (name, slot),
            Work::Write(_) => false,
        };
        let dropped = queue.iter().position(is_it).map(|at| queue.remove(at));
        drop(queue);
        if dropped.is_some() {
            let result = Err(TierError::Cancelled);
            (self.place.report)(TierReport::Read { name, slot, result });
        }
    }

    fn forget(&self, names: &[BlockName]) {
        self.media.lock().retain(|name, _| !names.contains(name));
    }

    fn clear(&self) {
        self.media.lock().clear();
    }
}

impl FakeTier {
    pub(super) fn open(place: TierPlace, medium: Medium, media: Media) -> Self {
        let found: Vec<_> = media.lock().values().map(|stored| stored.block).collect();
        if !found.is_empty() {
            (place.report)(TierReport::Found(found));
        }
        Self { place, media, queue: Mutex::default(), is_queue: AtomicBool::new(false), medium }
    }

    pub(super) fn queued(&self) -> usize {
        self.queue.lock().len()
    }

    /// Ends the work at this place in the queue.
    pub(super) fn finish(&self, at: usize, fault: Fault) {
        let work = self.queue.lock().remove(at);
        let report = match work {
            Work::Read(TierRead { name, slot, .. }) => {
                TierReport::Read { name, slot, result: self.finish_read(name, slot, fault) }
            }
            Work::Write(write) => {
                let (name, slot) = (write.block.name, write.slot);
                TierReport::Written { name, slot, result: self.finish_write(write, fault) }
            }
        };
        (self.place.report)(report);
    }

    fn finish_read(
        &self,
        name: BlockName,
        slot: SlotId,
        fault: Fault,
    ) -> Result<Checksum, TierError> {
        let arena = &self.place.arena;
        if let Fault::Error(error) = fault {
            arena.write(slot, &[0xee; BLOCK]);
            return Err(error);
        }
        let mut media = self.media.lock();
        let other = media.values().find(|of| of.block.name != name).cloned();
        let stored = media.get_mut(&name).ok_or(TierError::Missing)?;
        match fault {
            Fault::Flip(bit) => stored.kv[bit / 8 % BLOCK] ^= 1 << (bit % 8),
            Fault::Stale => {
                if let Some(other) = other {
                    (stored.kv, stored.checksum) = (other.kv, other.checksum);
                }
            }
            _ => {}
        }
        let mut kv = stored.kv.clone();
        if matches!(fault, Fault::Half | Fault::Unnoticed) {
            kv[BLOCK / 2..].fill(0xdd);
        }
        arena.write(slot, &kv);
        if fault == Fault::Unnoticed {
            return Ok(stored.checksum);
        }
        if arena.checksum(slot, name) != stored.checksum {
            media.remove(&name);
            return Err(TierError::Corrupt);
        }
        Ok(stored.checksum)
    }

    fn finish_write(&self, write: TierWrite, fault: Fault) -> Result<(), TierError> {
        let TierWrite { block, slot, checksum } = write;
        if let Fault::Error(error) = fault {
            return Err(error);
        }
        let mut kv = vec![0; BLOCK];
        self.place.arena.read(slot, &mut kv);
        match fault {
            Fault::Half | Fault::Unnoticed => kv[BLOCK / 2..].fill(0xdd),
            Fault::Flip(bit) => kv[bit / 8 % BLOCK] ^= 1 << (bit % 8),
            Fault::Stale => return Ok(()),
            Fault::None | Fault::Error(_) => {}
        }
        self.media.lock().insert(block.name, StoredKv { block, kv, checksum });
        Ok(())
    }
}

/// A cache without a thread, on a clock that the test moves.
pub(super) struct Rig {
    pub(super) dispatcher: Dispatcher,
    pub(super) shared: Arc<SharedStore>,
    pub(super) tiers: Vec<Arc<FakeTier>>,
    pub(super) events: Arc<Mutex<Vec<TierEvent>>>,
    /// Progress told, in order.
    pub(super) told: Arc<Mutex<Vec<(OwnerId, Progress)>>>,
    pub(super) owner: OwnerId,
    now: Arc<Mutex<Now>>,
    registry: Registry,
}

impl Rig {
    /// A cache with a tier on each of the media, which are at most two.
    pub(super) fn new(slots: u32, media: &[Media]) -> Self {
        Self::with(CacheSettings::new(slots), media)
    }

    /// A cache with these settings and further tiers.
    pub(super) fn with(mut settings: CacheSettings, media: &[Media]) -> Self {
        let tiers = Arc::new(Mutex::new(Vec::new()));
        let events = Arc::new(Mutex::new(Vec::new()));
        let metrics = KvMetrics::default();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        settings.metrics = metrics;
        let heard = events.clone();
        settings.events = Arc::new(move |event| heard.lock().push(event));
        for (media, medium) in media.iter().zip([Medium::Disk, Medium::Remote]) {
            let (media, opened) = (media.clone(), tiers.clone());
            settings.tiers.push(CacheTier {
                name: "fake",
                settings: TierSettings::new(medium),
                open: Box::new(move |place| {
                    let tier = Arc::new(FakeTier::open(place, medium, media));
                    opened.lock().push(tier.clone());
                    Ok(tier)
                }),
            });
        }
        let now = Arc::new(Mutex::new(Now::ZERO));
        let clock = now.clone();
        let dispatcher = assemble(FORM, settings, Arc::new(move || *clock.lock()))
            .expect("memory for a few blocks");
        let shared = dispatcher.shared.clone();
        let told = Arc::new(Mutex::new(Vec::new()));
        let owner = connect(&shared, &told);
        let tiers = std::mem::take(&mut *tiers.lock());
        let mut rig = Self { dispatcher, shared, tiers, events, told, owner, now, registry };
        rig.step();
        rig
    }

    /// Another engine.
    pub(super) fn connect(&self) -> OwnerId {
        connect(&self.shared, &self.told)
    }

    /// Carries out all that the store has decided.
    pub(super) fn step(&mut self) {
        while let Some(decisions) = self.shared.decisions() {
            self.dispatcher.carry_out(decisions);
        }
    }

    pub(super) fn wait(&mut self, time: Duration) {
        *self.now.lock() += time;
        self.step();
    }

    /// Ends all of a tier's work, in order.
    pub(super) fn finish_all(&mut self, tier: usize, fault: Fault) {
        self.step();
        while self.tiers[tier].queued() > 0 {
            self.tiers[tier].finish(0, fault);
            self.step();
        }
    }

    /// Computes a block and registers it. Whether there was a slot for it.
    pub(super) fn fill(&mut self, owner: OwnerId, name: BlockName) -> bool {
        let Some(slot) = self.shared.grant(owner, 1).pop() else { return false };
        self.shared.arena().write(slot, &kv_of(name));
        self.shared.filled(owner, &[(slot, block(name))]);
        self.step();
        true
    }

    pub(super) fn ask(&self, request: u64, names: &[BlockName]) -> Found {
        self.ask_as(self.owner, request, names)
    }

    pub(super) fn ask_as(&self, owner: OwnerId, request: u64, names: &[BlockName]) -> Found {
        let request = RequestId(request);
        let purpose = QuestionPurpose::Load(Duration::ZERO.into());
        self.shared.ask(Question { owner, request, names, purpose })
    }

    pub(super) fn end(&mut self, request: u64) {
        self.shared.end(self.owner, RequestId(request));
        self.step();
    }

    /// Progress told since the last look.
    pub(super) fn told(&mut self) -> Vec<(OwnerId, Progress)> {
        self.step();
        std::mem::take(&mut *self.told.lock())
    }

    /// Whether slots have the KV of the blocks.
    pub(super) fn is_right(&self, slots: &[SlotId], names: &[BlockName]) -> bool {
        let mut kv = vec![0; BLOCK];
        slots.iter().zip(names).all(|(slot, name)| {
            self.shared.arena().read(*slot, &mut kv);
            kv == kv_of(*name)
        })
    }

    /// Flips a bit of a slot, as failing memory or a stray write does.
    pub(super) fn flip(&self, slot: SlotId, bit: usize) {
        let mut kv = vec![0; BLOCK];
        self.shared.arena().read(slot, &mut kv);
        kv[bit / 8 % BLOCK] ^= 1 << (bit % 8);
        self.shared.arena().write(slot, &kv);
    }

    /// The value of a metric, as it is rendered.
    pub(super) fn metric(&self, name: &str) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)
            .expect("a text takes all");
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{name} in {text}")).trim().to_owned()
    }
}

fn connect(shared: &SharedStore, told: &Arc<Mutex<Vec<(OwnerId, Progress)>>>) -> OwnerId {
    let number = Arc::new(Mutex::new(OwnerId(0)));
    let (told, of) = (told.clone(), number.clone());
    let tell = Arc::new(move |progress| told.lock().push((*of.lock(), progress)));
    let owner = shared.connect(ClientListener { tell, is_lender: false });
    *number.lock() = owner;
    owner
}
