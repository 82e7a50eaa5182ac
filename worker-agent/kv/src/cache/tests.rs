use super::testkit::*;
use super::*;
use crate::SlotId;
use crate::store::RequestId;
use crate::tier::{TierError, TierEvent, TierReport};
use stator_protos::kv_event::Medium;
use stator_protos::name::BlockName;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// A rig whose tier has blocks that are not in host memory.
fn with_stored(slots: u32, count: u128) -> Rig {
    let media = Media::default();
    let mut before = Rig::new(count as u32, std::slice::from_ref(&media));
    names(0..count).into_iter().for_each(|name| assert!(before.fill(before.owner, name)));
    before.finish_all(0, Fault::None);
    Rig::new(slots, &[media])
}

#[test]
fn a_filled_block_is_found_with_its_bytes() {
    let mut rig = Rig::new(8, &[]);
    let all = names(0..4);
    all.iter().for_each(|name| assert!(rig.fill(rig.owner, *name)));
    let other = rig.connect();
    let found = rig.ask_as(other, 1, &names(0..6));
    assert_eq!((found.ready.len(), found.pending), (4, 0));
    assert!(rig.is_right(&found.ready, &all));
    assert_eq!(rig.metric("stator_kv_filled_slots_total{outcome=\"registered\"}"), "4");
    assert_eq!(rig.metric("stator_kv_asked_blocks_total"), "6");
    assert_eq!(rig.metric("stator_kv_hit_blocks_total{from=\"host\"}"), "4");
}

#[test]
fn a_slot_that_was_not_granted_registers_nothing() {
    let rig = Rig::new(4, &[]);
    let refused = [SlotId(0), SlotId(4), SlotId(u32::MAX)];
    let blocks = refused.map(|slot| (slot, block(BlockName(1))));
    assert_eq!(rig.shared.filled(rig.owner, &blocks), []);
    assert_eq!(rig.ask(1, &names(1..2)).ready, []);
    assert_eq!(rig.metric("stator_kv_filled_slots_total{outcome=\"not_granted\"}"), "3");
}

#[test]
fn blocks_come_back_from_a_tier() {
    let mut rig = with_stored(4, 3);
    let found = rig.ask(1, &names(0..3));
    assert_eq!((found.ready.len(), found.pending), (0, 3));
    rig.finish_all(0, Fault::None);
    let told = rig.told();
    let slots: Vec<_> = told.iter().flat_map(|(_, progress)| progress.slots.clone()).collect();
    assert!(rig.is_right(&slots, &names(0..3)));
    assert_eq!((slots.len(), told[told.len() - 1].1.pending), (3, 0));
    assert_eq!(
        rig.metric("stator_kv_tier_operations_total{tier=\"fake\",way=\"read\",outcome=\"done\"}"),
        "3"
    );
}

#[test]
fn failed_read_is_never_loaded() {
    use TierError::{Busy, Corrupt, Failed, Full, Missing};
    let errors = [Missing, Corrupt, Busy, Full, Failed].map(Fault::Error);
    for fault in errors.into_iter().chain([Fault::Half, Fault::Flip(99), Fault::Stale]) {
        let mut rig = with_stored(4, 3);
        assert_eq!(rig.ask(1, &names(0..3)).pending, 3);
        rig.step();
        rig.tiers[0].finish(1, fault);
        rig.finish_all(0, Fault::None);
        let slots: Vec<_> = rig.told().into_iter().flat_map(|(_, told)| told.slots).collect();
        assert_eq!(slots.len(), 1, "{fault:?}");
        assert!(rig.is_right(&slots, &names(0..1)), "{fault:?}");
    }
}

#[test]
fn failed_key_is_a_miss_for_its_request() {
    let mut rig = with_stored(4, 2);
    rig.ask(1, &names(0..2));
    rig.step();
    rig.tiers[0].finish(0, Fault::Error(TierError::Failed));
    rig.finish_all(0, Fault::None);
    let (_, last) = rig.told().pop().unwrap();
    assert_eq!((last.slots, last.pending), (vec![], 0));
    // The tier has the block, but the request is not sent there again, however often it asks.
    for _ in 0..3 {
        let again = rig.ask(1, &names(0..2));
        assert_eq!((again.ready.len(), again.pending), (0, 0));
    }
    assert_eq!(rig.ask(2, &names(0..2)).pending, 2);
}

#[test]
fn every_load_ends_in_two_seconds() {
    let mut rig = with_stored(4, 3);
    let found = rig.ask(1, &names(0..3));
    assert_eq!(found.pending, 3);
    rig.step();
    rig.tiers[0].finish(0, Fault::None);
    assert_eq!(rig.told().len(), 1);
    // The tier says nothing more.
    rig.wait(2 * SECOND);
    let told = rig.told();
    assert_eq!(told.len(), 1);
    assert_eq!((told[0].1.slots.len(), told[0].1.pending), (0, 0));
    // Nor does the request hear of it when the tier does.
    rig.finish_all(0, Fault::None);
    assert_eq!(rig.told(), []);
}

#[test]
fn a_slot_that_a_silent_tier_reads_into_is_nobody_elses() {
    let mut rig = with_stored(4, 3);
    rig.ask(1, &names(0..3));
    rig.wait(2 * SECOND);
    rig.end(1);
    let granted = rig.shared.grant(rig.owner, 4);
    assert_eq!(granted.len(), 1);
    rig.shared.arena().write(granted[0], &kv_of(BlockName(50)));
    rig.shared.filled(rig.owner, &[(granted[0], block(BlockName(50)))]);
    rig.finish_all(0, Fault::None);
    let found = rig.ask(2, &names(50..51));
    assert!(found.ready.len() == 1 && rig.is_right(&found.ready, &names(50..51)));
}

#[test]
fn queued_reads_of_a_request_that_ended_are_dropped_by_the_tier() {
    let mut rig = with_stored(8, 6);
    rig.tiers[0].is_queue.store(true, Relaxed);
    rig.ask(1, &names(0..4));
    rig.ask(2, &names(2..6));
    rig.step();
    assert_eq!(rig.tiers[0].queued(), 6);
    rig.end(1);
    assert_eq!(rig.tiers[0].queued(), 4, "those that the other waits for");
    let dropped =
        "stator_kv_tier_operations_total{tier=\"fake\",way=\"read\",outcome=\"cancelled\"}";
    assert_eq!(rig.metric(dropped), "2");
    rig.finish_all(0, Fault::None);
    let told = rig.told();
    assert_eq!(told.last().map(|(_, progress)| progress.pending), Some(0));
    assert_eq!(rig.ask(3, &names(2..6)).ready.len(), 4);
    // All that was dropped can be had again.
    rig.end(2);
    rig.end(3);
    assert_eq!(rig.ask(4, &names(0..2)).pending, 2);
}

#[test]
fn a_flipped_bit_in_host_memory_is_a_miss() {
    let mut rig = Rig::new(8, &[]);
    names(0..4).into_iter().for_each(|name| assert!(rig.fill(rig.owner, name)));
    let found = rig.ask(1, &names(0..4));
    rig.flip(found.ready[2], 1000);
    rig.flip(found.ready[3], 0);
    let again = rig.ask(2, &names(0..4));
    assert_eq!((again.ready.len(), again.pending), (2, 0));
    assert!(rig.is_right(&again.ready, &names(0..2)));
    assert_eq!(rig.metric("stator_kv_corrupt_blocks_total"), "2");
    rig.step();
    let removed = TierEvent::Removed { block: block(BlockName(2)), medium: Medium::Host };
    assert!(rig.events.lock().contains(&removed));
    // The block can be computed anew.
    assert!(rig.fill(rig.owner, BlockName(2)));
    assert!(rig.is_right(&rig.ask(3, &names(0..4)).ready, &names(0..3)));
}

#[test]
fn a_flipped_bit_in_host_memory_is_healed_by_a_tier() {
    let mut rig = Rig::new(8, &[Media::default()]);
    names(0..3).into_iter().for_each(|name| assert!(rig.fill(rig.owner, name)));
    rig.finish_all(0, Fault::None);
    let found = rig.ask(1, &names(0..3));
    rig.flip(found.ready[1], 7);
    let again = rig.ask(2, &names(0..3));
    assert_eq!((again.ready.len(), again.pending), (1, 2));
    rig.finish_all(0, Fault::None);
    let slots: Vec<_> = rig.told().into_iter().flat_map(|(_, told)| told.slots).collect();
    assert!(slots.len() == 2 && rig.is_right(&slots, &names(1..3)));
}

#[test]
fn a_block_behind_a_gap_is_verified_when_the_gap_is_closed() {
    let mut rig = with_stored(8, 1);
    names(1..4).into_iter().for_each(|name| assert!(rig.fill(rig.owner, name)));
    let host = rig.ask(1, &names(1..4));
    let found = rig.ask(2, &names(0..4));
    assert_eq!((found.ready.len(), found.pending), (0, 4));
    rig.flip(host.ready[1], 5);
    rig.finish_all(0, Fault::None);
    let told = rig.told();
    assert_eq!(told.len(), 1);
    assert_eq!((told[0].1.slots.len(), told[0].1.pending), (2, 0));
    assert!(rig.is_right(&told[0].1.slots, &names(0..2)));
}

#[test]
fn verification_can_be_left_out() {
    let mut settings = CacheSettings::new(2);
    settings.verify_host = false;
    let cache = TieredCache::open(FORM, settings).unwrap();
    let client = cache.connect(Arc::new(|_| {}));
    let slot = client.grant(1)[0];
    client.filled(&[(slot, block(BlockName(1)))]);
    cache.arena().write(slot, &[1; BLOCK]);
    assert_eq!(client.ask(RequestId(1), &names(1..2), Duration::ZERO).ready, [slot]);
}

#[test]
fn restart_reannounces_what_a_tier_holds() {
    let mut rig = with_stored(4, 3);
    let stored =
        |name: u128| TierEvent::Stored { block: block(BlockName(name)), medium: Medium::Disk };
    assert_eq!(*rig.events.lock(), [stored(0), stored(1), stored(2)]);
    assert_eq!(rig.metric("stator_kv_blocks{medium=\"disk\"}"), "3");
    rig.ask(1, &names(0..3));
    rig.finish_all(0, Fault::None);
    let slots: Vec<_> = rig.told().into_iter().flat_map(|(_, told)| told.slots).collect();
    assert!(slots.len() == 3 && rig.is_right(&slots, &names(0..3)));
}

#[test]
fn a_clear_reaches_the_tiers() {
    let mut rig = with_stored(4, 3);
    assert!(rig.fill(rig.owner, BlockName(9)));
    rig.shared.clear();
    rig.step();
    assert!(rig.tiers[0].media.lock().is_empty());
    assert_eq!(rig.events.lock().last(), Some(&TierEvent::Cleared));
    assert_eq!(rig.metric("stator_kv_blocks{medium=\"disk\"}"), "0");
    assert_eq!(rig.metric("stator_kv_blocks{medium=\"host\"}"), "0");
    assert_eq!(rig.ask(1, &names(0..3)).pending, 0);
}

#[test]
fn progress_of_an_earlier_question_is_not_told() {
    let mut rig = with_stored(4, 3);
    rig.ask(1, &names(0..3));
    rig.step();
    rig.tiers[0].finish(0, Fault::None);
    // The store has news, but the request has asked again before anybody heard of it.
    let found = rig.ask(1, &names(0..3));
    assert_eq!((found.ready.len(), found.pending), (1, 2));
    assert_eq!(rig.told(), []);
    rig.finish_all(0, Fault::None);
    let slots: usize = rig.told().iter().map(|(_, told)| told.slots.len()).sum();
    assert_eq!(slots, 2);
}

#[test]
fn a_request_that_ended_hears_nothing() {
    let mut rig = with_stored(4, 3);
    rig.ask(1, &names(0..3));
    rig.step();
    rig.tiers[0].finish(0, Fault::None);
    rig.end(1);
    rig.finish_all(0, Fault::None);
    rig.wait(2 * SECOND);
    assert_eq!(rig.told(), []);
}

#[test]
fn an_owner_that_is_gone_hears_nothing() {
    let mut rig = with_stored(4, 3);
    let other = rig.connect();
    rig.ask_as(other, 1, &names(0..3));
    rig.step();
    rig.shared.disconnect(other, true);
    rig.finish_all(0, Fault::None);
    assert_eq!(rig.told(), []);
    assert_eq!(rig.ask(1, &names(0..3)).ready.len(), 3);
}

#[test]
fn reports_of_work_that_nobody_gave_change_nothing() {
    let mut rig = with_stored(4, 1);
    let report = rig.tiers[0].place.report.clone();
    for slot in [SlotId(0), SlotId(77)] {
        let result = Ok(crate::Checksum(1));
        report(TierReport::Read { name: BlockName(0), slot, result });
        report(TierReport::Written { name: BlockName(0), slot, result: Ok(()) });
    }
    rig.step();
    assert_eq!(rig.ask(1, &names(0..1)).ready, []);
}

#[test]
fn a_tier_that_cannot_be_opened_is_named() {
    let mut settings = CacheSettings::new(2);
    settings.tiers.push(CacheTier {
        name: "disk",
        settings: crate::store::TierSettings::new(Medium::Disk),
        open: Box::new(|_| Err("no such folder".into())),
    });
    let error = TieredCache::open(FORM, settings).err().unwrap();
    assert_eq!(error.to_string(), "the KV tier \"disk\" cannot be opened: no such folder");
}

/// A cache with its thread, and a tier that ends its work at once in the thread that asks.
struct PromptTier(FakeTier);

impl Tier for PromptTier {
    fn medium(&self) -> Medium {
        self.0.medium()
    }

    fn read(&self, read: crate::tier::TierRead) {
        self.0.read(read);
        self.0.finish(0, Fault::None);
    }

    fn write(&self, write: crate::tier::TierWrite) {
        self.0.write(write);
        self.0.finish(0, Fault::None);
    }

    fn forget(&self, names: &[BlockName]) {
        self.0.forget(names);
    }

    fn clear(&self) {
        self.0.clear();
    }
}

fn threaded(slots: u32, media: Media, events: TierEventListener) -> Arc<TieredCache> {
    let mut settings = CacheSettings { events, ..CacheSettings::new(slots) };
    settings.tiers.push(CacheTier {
        name: "prompt",
        settings: crate::store::TierSettings::new(Medium::Disk),
        open: Box::new(move |place| {
            Ok(Arc::new(PromptTier(FakeTier::open(place, Medium::Disk, media))))
        }),
    });
    TieredCache::open(FORM, settings).expect("memory for a few blocks")
}

fn quiet() -> TierEventListener {
    Arc::new(|_| {})
}

#[test]
fn a_cache_with_its_thread_restarts_and_gives_all_back() {
    const WAIT: Duration = Duration::from_secs(20);
    let media = Media::default();
    let (stored, heard) = mpsc::channel();
    let on_disk = move |event| {
        if let TierEvent::Stored { medium: Medium::Disk, block } = event {
            let _ = stored.send(block.name);
        }
    };
    let cache = threaded(8, media.clone(), Arc::new(on_disk));
    let client = cache.connect(Arc::new(|_| {}));
    let slots = client.grant(2);
    let blocks: Vec<_> =
        slots.iter().zip(names(0..2)).map(|(slot, name)| (*slot, block(name))).collect();
    blocks.iter().for_each(|(slot, of)| cache.arena().write(*slot, &kv_of(of.name)));
    assert_eq!(client.filled(&blocks), []);
    assert_eq!([(); 2].map(|()| heard.recv_timeout(WAIT).unwrap()), [BlockName(0), BlockName(1)]);
    drop((cache, client));
    assert!(heard.recv().is_err(), "the thread and its listener are gone");

    let cache = threaded(8, media, quiet());
    let (told, progress) = mpsc::channel();
    let client = cache.connect(Arc::new(move |progress| {
        let _ = told.send(progress);
    }));
    let found = client.ask(RequestId(5), &names(0..3), Duration::ZERO);
    let mut slots = found.ready;
    let mut pending = found.pending;
    while pending > 0 {
        let more: Progress = progress.recv_timeout(WAIT).unwrap();
        slots.extend(more.slots);
        pending = more.pending;
    }
    assert_eq!(slots.len(), 2);
    let mut kv = vec![0; BLOCK];
    for (slot, name) in slots.into_iter().zip(names(0..2)) {
        cache.arena().read(slot, &mut kv);
        assert_eq!(kv, kv_of(name));
    }
    client.end(RequestId(5));
}

#[test]
fn slots_of_a_lost_client_wait_for_its_burial() {
    let cache = threaded(8, Media::default(), quiet());
    let lost = cache.connect(Arc::new(|_| {}));
    assert_eq!(lost.grant(2).len(), 2);
    let client = cache.connect(Arc::new(|_| {}));
    let lost = lost.lose();
    let granted = |cache: &Arc<TieredCache>| {
        let others: Vec<_> = (0..4).map(|_| cache.connect(Arc::new(|_| {}))).collect();
        others.iter().map(|other| other.grant(2).len()).sum::<usize>()
    };
    assert_eq!(granted(&cache), 6);
    lost.bury();
    assert_eq!(granted(&cache), 8);
    drop(client);
}

#[test]
fn a_listener_may_drop_the_last_client() {
    let media = Media::default();
    let mut before = Rig::new(2, std::slice::from_ref(&media));
    assert!(before.fill(before.owner, BlockName(0)));
    before.finish_all(0, Fault::None);
    let cache = threaded(2, media, quiet());
    let place = Arc::new(parking_lot::Mutex::new(None));
    let (told, heard) = mpsc::channel();
    let own = place.clone();
    let client = cache.connect(Arc::new(move |progress: Progress| {
        drop(own.lock().take());
        let _ = told.send(progress.pending);
    }));
    // The listener waits until the client is in its place.
    let mut guard = place.lock();
    client.ask(RequestId(1), &names(0..1), Duration::ZERO);
    *guard = Some(client);
    drop((guard, cache));
    assert_eq!(heard.recv_timeout(Duration::from_secs(20)).unwrap(), 0);
}

#[test]
fn hundred_caches_leave_no_files_and_threads() {
    let count = |dir: &str| std::fs::read_dir(dir).unwrap().count();
    let cache = || threaded(4, Media::default(), quiet());
    drop(cache());
    let shared_memory = count("/dev/shm");
    (0..100).for_each(|_| drop(cache()));
    assert_eq!(count("/dev/shm"), shared_memory);
    let threads = std::fs::read_dir("/proc/self/task").unwrap().filter_map(Result::ok);
    let own = threads.filter(|thread| {
        std::fs::read_to_string(thread.path().join("comm"))
            .is_ok_and(|name| name.trim() == "kv-store")
    });
    // Other tests run caches, too, but not as many.
    assert!(own.count() < 50);
}
