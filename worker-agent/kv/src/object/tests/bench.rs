//! A tier with an arena, and a store that notes what is reported.

use crate::arena::Arena;
use crate::checksum::checksum;
use crate::object::shared::Edges;
use crate::object::{ObjectSettings, ObjectTier, ObjectUrl};
use crate::tier::{Tier, TierError, TierRead, TierReport, TierWrite, Urgency};
use crate::{Block, BlockForm, Checksum, SlotId};
use object_store::ObjectStore;
use stator_protos::hash::SequenceHash;
use stator_protos::name::BlockName;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

/// Slots of the arena: blocks are written from the first half and read into the second.
const SLOTS: u32 = 256;
/// Not a multiple of anything.
pub(super) const FORM: BlockForm = BlockForm { fingerprint: [7; 32], block_bytes: 5_001 };
/// No test waits for longer.
const DEADLINE: Duration = Duration::from_secs(60);

/// A tier, its arena, and what it reports.
pub(super) struct Bench {
    pub(super) tier: ObjectTier,
    pub(super) arena: Arc<Arena>,
    reports: mpsc::UnboundedReceiver<TierReport>,
    pub(super) found: Vec<Block>,
    pub(super) gone: Vec<BlockName>,
}

/// The settings of most tests: extents of eight blocks, and no waiting.
pub(super) fn settings(url: &str) -> ObjectSettings {
    let url: ObjectUrl = url.parse().unwrap();
    let mut settings = ObjectSettings::new(url, Handle::current());
    settings.extent_bytes = 8 * FORM.block_bytes;
    settings.times.linger = Duration::from_millis(1);
    settings.times.index_write = Duration::from_millis(1);
    settings.times.index_read = Duration::from_millis(20);
    settings
}

/// The block of a number, as everybody has it.
pub(super) fn block(number: u32) -> Block {
    Block {
        name: BlockName(u128::from(number) << 64 | 0xabc),
        hash: Some(SequenceHash(number.into())),
        parent: number.checked_sub(1).map(|parent| SequenceHash(parent.into())),
        depth: number,
        tenant: crate::TenantKey::default(),
    }
}

/// The KV of a block.
pub(super) fn kv(number: u32) -> Vec<u8> {
    let seed = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..FORM.block_bytes as u64).map(|at| (seed.rotate_left((at % 61) as u32) ^ at) as u8).collect()
}

impl Bench {
    pub(super) fn open(settings: ObjectSettings) -> Self {
        Self::with(|arena, report| ObjectTier::open(settings, FORM, arena, report).unwrap())
    }

    /// A tier on a store of the test's own.
    pub(super) fn on(settings: ObjectSettings, store: Arc<dyn ObjectStore>) -> Self {
        Self::with(|arena, report| {
            ObjectTier::start(settings, FORM, Edges { store, arena, report })
        })
    }

    fn with(
        open: impl FnOnce(Arc<Arena>, Arc<dyn Fn(TierReport) + Send + Sync>) -> ObjectTier,
    ) -> Self {
        let arena = Arc::new(Arena::new(SLOTS, FORM.block_bytes).unwrap());
        let (reported, reports) = mpsc::unbounded_channel();
        let report = move |report| drop(reported.send(report));
        let tier = open(Arc::clone(&arena), Arc::new(report));
        Self { tier, arena, reports, found: Vec::new(), gone: Vec::new() }
    }

    /// Asks for writes and does not wait.
    pub(super) fn ask_writes(&self, numbers: Range<u32>) {
        for (slot, number) in numbers.enumerate() {
            let (slot, block, kv) = (SlotId(slot as u32), block(number), kv(number));
            self.arena.write(slot, &kv);
            self.tier.write(TierWrite { block, slot, checksum: checksum(block.name, &kv) });
        }
    }

    /// Writes blocks, and waits for the ends.
    pub(super) async fn write(&mut self, numbers: Range<u32>) -> Vec<Result<(), TierError>> {
        self.ask_writes(numbers.clone());
        self.write_ends(numbers).await
    }

    /// The ends of writes, in the order of the blocks.
    pub(super) async fn write_ends(&mut self, numbers: Range<u32>) -> Vec<Result<(), TierError>> {
        let mut ends = BTreeMap::new();
        while ends.len() < numbers.len() {
            if let Some(TierReport::Written { name, result, .. }) = self.next().await {
                assert!(ends.insert(name, result).is_none(), "{name:?} ended twice");
            }
        }
        numbers.map(|number| ends[&block(number).name]).collect()
    }

    /// Asks for reads and does not wait.
    pub(super) fn ask_reads(&self, numbers: Range<u32>, urgency: Urgency) {
        for (at, number) in numbers.enumerate() {
            let slot = SlotId(SLOTS / 2 + at as u32);
            self.arena.write(slot, &vec![0xee; FORM.block_bytes]);
            self.tier.read(TierRead { name: block(number).name, slot, urgency });
        }
    }

    /// Reads blocks and waits for the ends. A block that is said to be there is the right one.
    pub(super) async fn read(&mut self, numbers: Range<u32>) -> Vec<Result<(), TierError>> {
        self.ask_reads(numbers.clone(), Urgency::Demand);
        self.read_ends(numbers).await
    }

    /// The ends of reads, in the order of the blocks.
    pub(super) async fn read_ends(&mut self, numbers: Range<u32>) -> Vec<Result<(), TierError>> {
        let mut ends = BTreeMap::new();
        while ends.len() < numbers.len() {
            if let Some(TierReport::Read { name, slot, result }) = self.next().await {
                assert!(ends.insert(name, (slot, result)).is_none(), "{name:?} ended twice");
            }
        }
        let check = |number| {
            let (slot, result) = ends[&block(number).name];
            let mut read = vec![0; FORM.block_bytes];
            self.arena.read(slot, &mut read);
            result.map(|sum: Checksum| {
                assert_eq!(sum, checksum(block(number).name, &read), "block {number}");
                assert!(read == kv(number), "block {number} is another's");
            })
        };
        numbers.map(check).collect()
    }

    /// The depths of the next blocks whose reads end.
    pub(super) async fn read_order(&mut self, reads: usize) -> Vec<u32> {
        let mut order = Vec::new();
        while order.len() < reads {
            if let Some(TierReport::Read { name, .. }) = self.next().await {
                order.push((name.0 >> 64) as u32);
            }
        }
        order
    }

    /// Waits until the tier has reported that it has found these blocks.
    pub(super) async fn find(&mut self, numbers: Range<u32>) {
        let wanted: BTreeSet<_> = numbers.map(|number| block(number).name).collect();
        while !self
            .found
            .iter()
            .map(|block| block.name)
            .collect::<BTreeSet<_>>()
            .is_superset(&wanted)
        {
            assert!(self.next().await.is_none(), "a report that nobody waits for");
        }
    }

    /// Waits until the tier has reported that these blocks have gone.
    pub(super) async fn lose(&mut self, numbers: Range<u32>) {
        let wanted: BTreeSet<_> = numbers.map(|number| block(number).name).collect();
        while !self.gone.iter().copied().collect::<BTreeSet<_>>().is_superset(&wanted) {
            assert!(self.next().await.is_none(), "a report that nobody waits for");
        }
    }

    /// The next report; what is found and gone is noted.
    async fn next(&mut self) -> Option<TierReport> {
        let report = tokio::time::timeout(DEADLINE, self.reports.recv());
        match report.await.expect("a report in time").expect("the tier lives") {
            TierReport::Found(blocks) => self.found.extend(blocks),
            TierReport::Gone(names) => self.gone.extend(names),
            report => return Some(report),
        }
        None
    }
}
