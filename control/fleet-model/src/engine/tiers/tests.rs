//! The tiers under the real store.

use super::*;
use crate::time::MS;
use proptest::{collection::vec, prelude::*};

fn limits(host_blocks: u32, disk_blocks: u32) -> TierLimits {
    let disk = DiskLimits {
        blocks: disk_blocks,
        latency: MS,
        read_block: 2 * MS,
        write_block: MS,
        admission: TierAdmission::Through,
    };
    let peers = Some(PeerLimits { latency: 2 * MS, block: MS });
    TierLimits { host_blocks, onboard_block: MS / 10, disk: Some(disk), peers, ..TierLimits::NONE }
}

/// Tiers of the only worker of a fleet.
fn alone(limits: TierLimits) -> (Tiers, KvNews) {
    (Tiers::new(limits, Bucket::default()), KvNews::new(16, true))
}

/// Computes a prompt whose blocks follow one another, and gives the tiers time to write.
fn compute(tiers: &mut Tiers, news: &mut KvNews, ids: &[BlockId]) {
    for (depth, id) in (0..).zip(ids) {
        let parent = u32::checked_sub(depth, 1).map(|before| ids[before as usize]);
        tiers.store(*id, BlockPlace { parent, depth }, news);
        tiers.advance(tiers.now + 10 * MS, news);
    }
}

#[test]
fn blocks_come_from_host_memory_and_from_disk_in_their_time() {
    let (mut tiers, mut news) = alone(limits(8, 100));
    compute(&mut tiers, &mut news, &[1, 2, 3, 4]);
    compute(&mut tiers, &mut news, &[11, 12, 13, 14, 15, 16, 17]);
    let start = tiers.now;
    // The tail of the first prompt left host memory first; the disk has it still.
    let loaded = tiers.load(&[1, 2, 3, 4, 5], 50 * MS, &mut news);
    assert_eq!(loaded.blocks, 4);
    assert!(loaded.ready > start + 3 * MS, "{}", loaded.ready - start);
    let totals = tiers.totals();
    assert_eq!(totals.host + totals.disk, 4);
    assert!(totals.disk >= 3 && totals.disk_written >= 11, "{totals:?}");
    tiers.advance(loaded.ready, &mut news);
    // Measured by now, as an agent does.
    assert!(tiers.costs(1.0, MS).disk.is_known());
}

#[test]
fn what_one_worker_writes_to_the_bucket_all_find_in_time_and_a_new_one_at_once() {
    let objects = Some(ObjectLimits {
        latency: 10 * MS,
        read_block: MS,
        write_block: MS,
        known_after: SECOND,
        admission: TierAdmission::Through,
    });
    let limits = TierLimits { disk: None, peers: None, objects, ..limits(16, 1) };
    let bucket = Bucket::default();
    let fresh = || (Tiers::new(limits, bucket.clone()), KvNews::new(16, true));
    let ((mut writer, mut told), (mut reader, mut news)) = (fresh(), fresh());
    compute(&mut writer, &mut told, &[1, 2, 3]);
    writer.advance(writer.now + 10 * MS, &mut told);
    assert_eq!(writer.totals().objects_written, 3);
    reader.advance(SECOND / 2, &mut news);
    assert_eq!(reader.load(&[1, 2, 3, 4], 50 * MS, &mut news).blocks, 0);
    reader.advance(2 * SECOND, &mut news);
    assert!(!news.take().is_empty());
    assert!(news.blocks().all(|(_, medium)| medium == Medium::Remote));
    let loaded = reader.load(&[1, 2, 3, 4], 50 * MS, &mut news);
    assert_eq!((loaded.blocks, reader.totals().objects), (3, 3));
    assert!(loaded.ready >= reader.now + 12 * MS, "{}", loaded.ready - reader.now);
    // A worker that starts knows what is there.
    let (mut late, mut news) = fresh();
    late.advance(2 * SECOND, &mut news);
    assert_eq!(late.load(&[1, 2], 50 * MS, &mut news).blocks, 2);
}

#[test]
fn what_others_lend_is_read_from_them_though_a_slower_object_store_has_it() {
    let objects = Some(ObjectLimits {
        latency: 30 * MS,
        read_block: 33 * MS,
        write_block: MS,
        known_after: SECOND,
        admission: TierAdmission::Through,
    });
    let limits = TierLimits { disk: None, objects, ..limits(64, 1) };
    let bucket = Bucket::default();
    let fresh = || (Tiers::new(limits, bucket.clone()), KvNews::new(16, true));
    let ((mut lender, mut told), (mut reader, mut news)) = (fresh(), fresh());
    for round in 0..8 {
        let ids: Vec<_> = (round * 10 + 1..round * 10 + 9).collect();
        compute(&mut lender, &mut told, &ids);
        lender.advance(lender.now + 2 * SECOND, &mut told);
        reader.advance(lender.now, &mut news);
        let lent = lender.lend(&ids, &mut told);
        reader.hint(&ids, 0, lent.ready, &mut news);
        let loaded = reader.load(&ids, 28 * MS, &mut news);
        // At first nobody knows how long the object store takes.
        assert!(round == 0 || loaded.blocks == 8, "{round}: {loaded:?}");
        reader.advance(reader.now + SECOND, &mut news);
        lender.advance(reader.now, &mut told);
    }
    assert_eq!(reader.totals().peers, 56);
}

#[test]
fn selective_host_memory_takes_blocks_at_their_second_use() {
    let selective = TierLimits { is_selective: true, ..limits(8, 100) };
    let (mut tiers, mut news) = alone(selective);
    compute(&mut tiers, &mut news, &[1, 2, 3]);
    let lent = |tiers: &mut Tiers, news: &mut KvNews| tiers.lend(&[1, 2, 3], news).blocks;
    assert_eq!((lent(&mut tiers, &mut news), tiers.totals().host_written), (0, 0));
    // The first two are used on the device, and the third is computed once more.
    tiers.touch(&[1, 2], &mut news);
    tiers.store(3, BlockPlace { parent: Some(2), depth: 2 }, &mut news);
    assert_eq!((lent(&mut tiers, &mut news), tiers.totals().host_written), (3, 3));
    tiers.touch(&[1, 2, 3], &mut news);
    assert_eq!(tiers.totals().host_written, 3);
}

#[test]
fn a_disk_that_is_slower_than_computing_is_left_alone_once_that_is_known() {
    let (mut tiers, mut news) = alone(limits(4, 100));
    compute(&mut tiers, &mut news, &[1, 2, 3, 4]);
    for round in 0..40 {
        compute(&mut tiers, &mut news, &[11, 12, 13, 14]);
        let before = tiers.totals().disk;
        let loaded = tiers.load(&[1, 2, 3, 4], MS / 10, &mut news);
        tiers.advance(loaded.ready + 100 * MS, &mut news);
        if round > 20 {
            assert_eq!(tiers.totals().disk, before, "{round}");
        }
    }
}

#[test]
fn what_another_worker_lends_is_read_from_it_and_published_once_it_is_here() {
    let (mut lender, mut news) = alone(limits(16, 1));
    compute(&mut lender, &mut news, &[1, 2, 3]);
    let lent = lender.lend(&[1, 2, 3, 4], &mut news);
    assert_eq!((lent.blocks, lent.ready), (3, lender.now));
    let (mut tiers, mut news) = alone(limits(16, 1));
    tiers.hint(&[1, 2, 3], 0, 0, &mut news);
    assert!(news.take().is_empty());
    let loaded = tiers.load(&[1, 2, 3, 4], 50 * MS, &mut news);
    assert_eq!((loaded.blocks, tiers.totals().peers), (3, 3));
    tiers.advance(loaded.ready, &mut news);
    news.take();
    assert_eq!(news.blocks().count(), 3);
}

#[test]
fn what_another_worker_has_on_disk_comes_after_its_disk() {
    let (mut lender, mut news) = alone(limits(8, 100));
    compute(&mut lender, &mut news, &[1, 2, 3, 4]);
    compute(&mut lender, &mut news, &[11, 12, 13, 14, 15, 16, 17]);
    let here = [1, 2, 3, 4].iter().take_while(|id| lender.host.contains(&name(**id))).count();
    let on_disk = 2.min(4 - here) as u32;
    let lent = lender.lend(&[1, 2, 3, 4, 5], &mut news);
    // A reader may have a quarter of the host memory read.
    assert_eq!(lent.blocks, here as u32 + on_disk);
    assert_eq!(lent.ready, lender.now + MS + u64::from(on_disk) * 2 * MS);
    let (mut tiers, mut news) = alone(limits(16, 1));
    tiers.advance(lender.now, &mut news);
    tiers.hint(&[1, 2, 3, 4][..lent.blocks as usize], 0, lent.ready, &mut news);
    let loaded = tiers.load(&[1, 2, 3], 50 * MS, &mut news);
    assert_eq!(loaded.blocks, lent.blocks);
    assert!(loaded.ready > lent.ready + 2 * MS, "{}", loaded.ready - lent.ready);
}

proptest! {
    /// Tiers return only blocks that were stored, and every block that they announce.
    #[test]
    fn nothing_comes_that_was_not_stored(
        prompts in vec((0..6_u32, 1..12_u32), 1..60),
        host in 1..40_u32,
        disk in 1..80_u32,
    ) {
        let (mut tiers, mut news) = alone(limits(host, disk));
        let mut stored = FxHashSet::default();
        for (prompt, length) in prompts {
            let ids: Vec<_> = (0..length).map(|at| prompt * 100 + at).collect();
            let known = ids.iter().take_while(|id| stored.contains(*id)).count();
            let loaded = tiers.load(&ids, 50 * MS, &mut news);
            prop_assert!(loaded.blocks as usize <= known);
            prop_assert!(loaded.ready >= tiers.now);
            tiers.advance(loaded.ready, &mut news);
            compute(&mut tiers, &mut news, &ids);
            stored.extend(ids);
        }
        let totals = tiers.totals();
        prop_assert!(totals.host_written as usize >= tiers.host.len());
        prop_assert!(tiers.host.len() <= host as usize);
    }
}
