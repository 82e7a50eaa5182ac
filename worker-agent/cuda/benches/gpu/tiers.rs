//! Tiers that read into a registered arena: TCP from another arena, and a disk.

use crate::rig::{PAGE, arena, attach, filled, median, rate, side};
use futures::future::{BoxFuture, ready};
use stator_cuda::cuda::CudaDriver;
use stator_cuda::driver::MemorySource;
use stator_cuda::fold::PagePair;
use stator_cuda::layout::PageOrder;
use stator_cuda::{KvRoute, RouteSettings};
use stator_kv::arena::Arena;
use stator_kv::disk::{DiskSettings, DiskTier};
use stator_kv::peer::{PeerSettings, PeerTier};
use stator_kv::tier::{Tier, TierRead, TierReport, TierWrite, Urgency};
use stator_kv::transfer::{
    FleetKey, Lender, LendingStore, LentBlock, LentBlocks, LoanWish, TransferServer,
};
use stator_kv::{Block, BlockForm, SlotId};
use stator_protos::name::BlockName;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};

const BLOCKS: u32 = 128;
const BYTES: usize = BLOCKS as usize * PAGE;
const FORM: BlockForm = BlockForm { fingerprint: [1; 32], block_bytes: PAGE };
const REPETITIONS: usize = 5;

/// Each way once into an arena that the driver does not know, and once into one that it pinned.
/// From there the blocks go to the device and back.
pub(crate) fn measure(dir: &Path) {
    let driver = CudaDriver::open(0).unwrap_or_else(|error| panic!("no device: {error}"));
    let held = arena(BLOCKS);
    for slot in 0..BLOCKS {
        held.write(SlotId(slot), &filled(slot, 0, PAGE));
    }
    for is_registered in [false, true] {
        let landing = arena(BLOCKS);
        let memory = is_registered.then(|| attach(&driver, MemorySource::Arena(landing.clone())));
        let what = if is_registered { "registered" } else { "plain" };
        let tcp = tcp(&held, &landing);
        round_trip(&driver, memory.as_ref(), &landing, "TCP");
        println!("TCP, 4 streams, into a {what} arena: {tcp:.2} GB/s");
        clear(&landing);
        let (write, read) = disk(dir, &held, &landing);
        round_trip(&driver, memory.as_ref(), &landing, "disk");
        println!("disk, depth 32, into a {what} arena: write {write:.2}, read {read:.2} GB/s");
    }
}

fn clear(arena: &Arena) {
    (0..BLOCKS).for_each(|slot| arena.write(SlotId(slot), &vec![0; PAGE]));
}

/// All blocks to the device and back; all bytes must be those that were held.
fn round_trip(
    driver: &Arc<CudaDriver>,
    memory: Option<&crate::rig::Memory>,
    landing: &Arc<Arena>,
    what: &str,
) {
    if let Some(memory) = memory {
        let slots = side(memory, PageOrder::Blhnc);
        let device = attach(driver, MemorySource::Device { bytes: BYTES });
        let engine = side(&device, PageOrder::Lbhnc);
        let all: Vec<_> = (0..BLOCKS).map(|at| PagePair { from: at, to: at }).collect();
        let mut load =
            KvRoute::new(slots.clone(), engine.clone(), RouteSettings::default()).expect("a route");
        load.start(&all, &[]).expect("pages are there").wait().expect("the copies end");
        clear(landing);
        let mut store = KvRoute::new(engine, slots, RouteSettings::default()).expect("a route");
        store.start(&all, &[]).expect("pages are there").wait().expect("the copies end");
    }
    let mut kv = vec![0; PAGE];
    for slot in 0..BLOCKS {
        landing.read(SlotId(slot), &mut kv);
        assert!(kv == filled(slot, 0, PAGE), "{what}: wrong bytes in slot {slot}");
    }
    let by_device = if memory.is_some() { ", by way of the device" } else { "" };
    println!("{what}{by_device}: all bytes equal");
}

struct Shelf(Vec<LentBlock>);

impl Lender for Shelf {
    fn lend(&self, _: u64, wish: LoanWish) -> BoxFuture<'static, LentBlocks> {
        let lent = wish.names.iter().map(|name| self.0[name.0 as usize]);
        Box::pin(ready(lent.collect::<Vec<_>>().into()))
    }

    fn release(&self, _: u64) {}
}

fn name(slot: u32) -> BlockName {
    BlockName(slot.into())
}

fn runtime(threads: usize) -> Runtime {
    Builder::new_multi_thread().worker_threads(threads).enable_all().build().expect("threads")
}

fn tcp(held: &Arc<Arena>, landing: &Arc<Arena>) -> f64 {
    let runtimes = [runtime(4), runtime(4)];
    let lent =
        |slot| LentBlock { slot: SlotId(slot), checksum: held.checksum(SlotId(slot), name(slot)) };
    let lender = Arc::new(Shelf((0..BLOCKS).map(lent).collect()));
    let listener = runtimes[0].block_on(tokio::net::TcpListener::bind("127.0.0.1:0"));
    let listener = listener.expect("the loopback interface is there");
    let peer = listener.local_addr().expect("a listener has an address");
    let key = FleetKey::default();
    let store =
        LendingStore { arena: held.clone(), lender, form: FORM, key: key.clone(), direct: None };
    let server = TransferServer::new(Arc::new(store));
    runtimes[0].spawn(server.run(listener));
    let (sender, reports) = channel();
    let sink = Arc::new(move |report| drop(sender.send(report)));
    let settings = PeerSettings {
        streams: 4,
        read_deadline: Duration::from_secs(60),
        ..PeerSettings::default()
    };
    let handle = runtimes[1].handle().clone();
    let tier = PeerTier::new(landing.clone(), FORM, key, settings, handle, sink);
    let times = (0..=REPETITIONS).map(|_| {
        let block = |slot| Block {
            name: name(slot),
            hash: None,
            parent: None,
            depth: 0,
            tenant: stator_kv::TenantKey::default(),
        };
        tier.hint(peer, &(0..BLOCKS).map(block).collect::<Vec<_>>());
        read_all(&tier, &reports)
    });
    rate(BYTES, median(times.skip(1).collect()))
}

/// Reads all blocks; returns the time.
fn read_all(tier: &dyn Tier, reports: &Receiver<TierReport>) -> Duration {
    let started = Instant::now();
    for slot in 0..BLOCKS {
        let urgency = Urgency::Demand;
        tier.read(TierRead { name: name(slot), slot: SlotId(slot), urgency });
    }
    let mut missing = BLOCKS;
    while missing > 0 {
        if let TierReport::Read { result, .. } = reports.recv().expect("the tier is there") {
            result.expect("blocks come");
            missing -= 1;
        }
    }
    started.elapsed()
}

fn disk(dir: &Path, held: &Arc<Arena>, landing: &Arc<Arena>) -> (f64, f64) {
    let dir = tempfile::tempdir_in(dir).expect("the directory can be written");
    let settings = DiskSettings::new(dir.path(), 16 * BYTES as u64);
    let open = |arena: &Arc<Arena>| {
        let (sender, reports) = channel();
        let sink = Arc::new(move |report| drop(sender.send(report)));
        let tier = DiskTier::open(settings.clone(), FORM, arena.clone(), sink).expect("a tier");
        (tier, reports)
    };
    let (tier, reports) = open(held);
    let started = Instant::now();
    for slot in 0..BLOCKS {
        let block = Block {
            name: name(slot),
            hash: None,
            parent: None,
            depth: 0,
            tenant: stator_kv::TenantKey::default(),
        };
        let checksum = held.checksum(SlotId(slot), block.name);
        tier.write(TierWrite { block, slot: SlotId(slot), checksum });
    }
    let mut missing = BLOCKS;
    while missing > 0 {
        if let TierReport::Written { result, .. } = reports.recv().expect("the tier is there") {
            result.expect("the disk takes blocks");
            missing -= 1;
        }
    }
    let written = started.elapsed();
    drop(tier);
    // Another life of the tier, on the other arena, finds the blocks.
    let (tier, reports) = open(landing);
    let times = (0..REPETITIONS).map(|_| read_all(&tier, &reports)).collect();
    (rate(BYTES, written), rate(BYTES, median(times)))
}
