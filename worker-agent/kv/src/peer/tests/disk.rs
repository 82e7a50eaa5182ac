//! Blocks that lie on the disk of another agent.

use super::testkit::{self, Reading, Served, Shelf, form, settings};
use super::{PeerSettings, secret};
use crate::Block;
use crate::cache::{CacheLender, CacheSettings, CacheTier, TierPlace, TieredCache};
use crate::disk::{DiskSettings, DiskTier};
use crate::store::TierSettings;
use crate::tier::{Tier, TierError, TierEvent, TierRead, TierReport, TierWrite, Urgency};
use crate::transfer::wire::{FrameHeader, FrameKind, decode_checksums, encode_names};
use crate::transfer::{LendingStore, introduce};
use stator_protos::kv_event::Medium;
use stator_protos::name::BlockName;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

const BLOCK: usize = 5000;

fn block(name: u128) -> Block {
    Block {
        name: BlockName(name),
        hash: None,
        parent: None,
        depth: name as u32,
        tenant: crate::TenantKey::default(),
    }
}

/// Registers the right KV of a block.
fn compute(cache: &Arc<TieredCache>, names: std::ops::Range<u128>) {
    let engine = cache.connect(Arc::new(|_| {}));
    let slots = engine.grant(names.clone().count());
    assert_eq!(slots.len(), names.clone().count());
    for (name, slot) in names.zip(slots) {
        assert_eq!(engine.store(slot, block(name), &testkit::kv(name, BLOCK)), None);
    }
}

async fn serve(cache: &Arc<TieredCache>) -> Served {
    let (arena, lender) = (cache.shared_arena(), Arc::new(CacheLender::new(cache)));
    Served::new(LendingStore { arena, lender, form: form(BLOCK), key: secret(), direct: None })
        .await
}

/// A disk that holds blocks and ends reads as the test says.
struct HeldDisk {
    place: TierPlace,
    reads: UnboundedSender<TierRead>,
}

impl HeldDisk {
    fn end(&self, read: TierRead) {
        let TierRead { name, slot, .. } = read;
        self.place.arena.write(slot, &testkit::kv(name.0, BLOCK));
        let result = Ok(self.place.arena.checksum(slot, name));
        (self.place.report)(TierReport::Read { name, slot, result });
    }
}

impl Tier for HeldDisk {
    fn medium(&self) -> Medium {
        Medium::Disk
    }

    fn read(&self, read: TierRead) {
        let _ = self.reads.send(read);
    }

    fn write(&self, write: TierWrite) {
        let (name, slot) = (write.block.name, write.slot);
        (self.place.report)(TierReport::Written { name, slot, result: Err(TierError::Full) });
    }

    fn forget(&self, _: &[BlockName]) {}

    fn clear(&self) {}
}

/// A cache above a disk that holds these blocks, and the reads that it is asked for.
fn held(
    names: std::ops::Range<u128>,
) -> (Arc<TieredCache>, Arc<HeldDisk>, UnboundedReceiver<TierRead>) {
    let (reads, asked) = unbounded_channel();
    let (sender, opened) = std::sync::mpsc::channel();
    let open = move |place: TierPlace| {
        (place.report)(TierReport::Found(names.map(block).collect()));
        let disk = Arc::new(HeldDisk { place, reads });
        sender.send(disk.clone()).unwrap();
        Ok(disk as Arc<dyn Tier>)
    };
    let mut settings = CacheSettings::new(32);
    let disk = TierSettings::new(Medium::Disk);
    settings.tiers.push(CacheTier { name: "disk", settings: disk, open: Box::new(open) });
    let cache = TieredCache::open(form(BLOCK), settings).unwrap();
    (cache, opened.recv().unwrap(), asked)
}

/// Once nobody reads any more, nothing is pinned.
async fn all_pins_go(cache: &Arc<TieredCache>, served: Served) {
    served.kill().await;
    assert_eq!(cache.status().store.host.pinned, 0);
}

#[tokio::test]
async fn blocks_on_the_disk_of_another_come_with_all_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let disk = DiskSettings::new(folder.path(), 64 << 20);
    let open = move |TierPlace { form, arena, report }: TierPlace| {
        Ok(Arc::new(DiskTier::open(disk, form, arena, report)?) as Arc<dyn Tier>)
    };
    let (sender, mut stored) = unbounded_channel();
    let mut cached = CacheSettings::new(32);
    cached.events = Arc::new(move |event| {
        if let TierEvent::Stored { block, medium: Medium::Disk } = event {
            let _ = sender.send(block.name);
        }
    });
    let limits = TierSettings::new(Medium::Disk);
    cached.tiers.push(CacheTier { name: "disk", settings: limits, open: Box::new(open) });
    let cache = TieredCache::open(form(BLOCK), cached).unwrap();
    compute(&cache, 0..6);
    for _ in 0..6 {
        stored.recv().await.unwrap();
    }
    cache.clear_one("host").unwrap();
    compute(&cache, 0..2);
    let served = serve(&cache).await;
    let mut reading = Reading::new(form(BLOCK), secret(), settings());
    reading.hint(served.address, 0..7);
    let results = reading.read(0..7).await;
    assert!(results[..6].iter().all(Result::is_ok), "{results:?}");
    assert_eq!(results[6], Err(TierError::Missing));
    let status = cache.status();
    assert_eq!(status.store.tiers[0].stats.demanded, 4);
    assert_eq!(status.metrics.lent.get(), 6);
    all_pins_go(&cache, served).await;
}

#[tokio::test]
async fn a_dead_disk_at_the_holder_is_a_miss_in_time_and_what_is_in_memory_comes() {
    let (cache, _disk, mut asked) = held(2..4);
    compute(&cache, 0..2);
    let served = serve(&cache).await;
    let settings = PeerSettings { read_deadline: Duration::from_secs(2), ..settings() };
    let mut reading = Reading::new(form(BLOCK), secret(), settings);
    reading.hint(served.address, 0..4);
    let results = reading.read(0..4).await;
    assert!(results[..2].iter().all(Result::is_ok), "{results:?}");
    assert_eq!(results[2..], [Err(TierError::Missing); 2]);
    assert_eq!(asked.recv().await.map(|read| read.name), Some(BlockName(2)));
    all_pins_go(&cache, served).await;
}

#[tokio::test]
async fn a_reader_that_goes_while_the_disk_is_read_leaves_no_pin() {
    let (cache, disk, mut asked) = held(0..2);
    let served = serve(&cache).await;
    let reading = Reading::new(form(BLOCK), secret(), settings());
    reading.hint(served.address, 0..2);
    (0..2).for_each(|name| reading.ask(name, Urgency::Demand));
    let read = asked.recv().await.unwrap();
    drop(reading);
    all_pins_go(&cache, served).await;
    // The disk still has the slot, and gives it back.
    disk.end(read);
    assert_eq!(cache.status().store.host.pinned, 0);
}

#[tokio::test]
async fn a_lease_says_how_long_the_disk_took() {
    let (cache, disk, mut asked) = held(1..2);
    compute(&cache, 0..1);
    let served = serve(&cache).await;
    let stream = TcpStream::connect(served.address).await.unwrap();
    let mut link = introduce(stream, &secret().into(), form(BLOCK)).await.unwrap();
    for (names, takes_time) in [(0..2, true), (0..1, false)] {
        let names: Vec<_> = names.map(BlockName).collect();
        let lease = FrameHeader { count: 10_000, ..FrameHeader::new(FrameKind::Lease) };
        link.queue(lease, &encode_names(&names));
        link.flush().await.unwrap();
        if takes_time {
            let read = asked.recv().await.unwrap();
            disk.end(read);
        }
        let answer = link.next().await.unwrap();
        let payload = link.payload(&answer).await.unwrap();
        assert_eq!(answer.header.kind, FrameKind::Leased);
        assert_eq!(decode_checksums(&payload).len(), names.len());
        assert_eq!(answer.header.count > 0, takes_time, "{}", answer.header.count);
    }
}

#[tokio::test]
async fn the_urgency_of_a_lease_is_that_of_the_holders_disk_reads() {
    let (cache, disk, mut asked) = held(0..3);
    let served = serve(&cache).await;
    let mut reading = Reading::new(form(BLOCK), secret(), settings());
    reading.hint(served.address, 0..3);
    for (name, urgency) in [(0, Urgency::Prefetch), (1, Urgency::Demand), (2, Urgency::Prefetch)] {
        reading.ask(name, urgency);
        let read = asked.recv().await.unwrap();
        assert_eq!((read.name, read.urgency), (BlockName(name), urgency));
        disk.end(read);
        let report = reading.report().await;
        assert!(matches!(report, TierReport::Read { result: Ok(_), .. }), "{report:?}");
    }
    let stats = &cache.status().store.tiers[0].stats;
    assert_eq!((stats.demanded, stats.prefetched), (1, 2));
}

/// One reader's reads ahead arrive although another reader takes nothing of its own.
#[tokio::test]
async fn a_reader_that_takes_nothing_does_not_keep_others_from_reading_ahead() {
    const LARGE: usize = 1 << 20;
    let shelf = Shelf::new(24, LARGE);
    let served = shelf.serve(secret()).await;
    let stream = TcpStream::connect(served.address).await.unwrap();
    let mut link = introduce(stream, &secret().into(), form(LARGE)).await.unwrap();
    let lease = FrameHeader { count: 10_000, ..FrameHeader::new(FrameKind::Lease) };
    link.queue(lease, &encode_names(&(0..24).map(BlockName).collect::<Vec<_>>()));
    link.flush().await.unwrap();
    let answer = link.next().await.unwrap();
    link.payload(&answer).await.unwrap();
    let transfer = answer.header.transfer;
    for place in 0..24 {
        let count = LARGE as u32;
        let read = FrameHeader { place, transfer, count, ..FrameHeader::new(FrameKind::Read) };
        link.queue(read, &[]);
    }
    link.flush().await.unwrap();
    let mut reading = Reading::new(form(LARGE), secret(), settings());
    reading.hint(served.address, 0..2);
    (0..2).for_each(|name| reading.ask(name, Urgency::Prefetch));
    for _ in 0..2 {
        let report = reading.report().await;
        assert!(matches!(report, TierReport::Read { result: Ok(_), .. }), "{report:?}");
    }
}
