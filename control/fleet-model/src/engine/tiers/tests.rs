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
    let (mut tiers, mut news) = (Tiers::new(limits(8, 100)), KvNews::new(16, true));
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
fn selective_host_memory_takes_blocks_at_their_second_use() {
    let selective = TierLimits { is_selective: true, ..limits(8, 100) };
    let (mut tiers, mut news) = (Tiers::new(selective), KvNews::new(16, true));
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
    let (mut tiers, mut news) = (Tiers::new(limits(4, 100)), KvNews::new(16, true));
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
    let (mut lender, mut news) = (Tiers::new(limits(16, 1)), KvNews::new(16, true));
    compute(&mut lender, &mut news, &[1, 2, 3]);
    let lent = lender.lend(&[1, 2, 3, 4], &mut news);
    assert_eq!((lent.blocks, lent.ready), (3, lender.now));
    let (mut tiers, mut news) = (Tiers::new(limits(16, 1)), KvNews::new(16, true));
    tiers.hint(&[1, 2, 3], 0, &mut news);
    assert!(news.take().is_empty());
    let loaded = tiers.load(&[1, 2, 3, 4], 50 * MS, &mut news);
    assert_eq!((loaded.blocks, tiers.totals().peers), (3, 3));
    tiers.advance(loaded.ready, &mut news);
    news.take();
    assert_eq!(news.blocks().count(), 3);
}

#[test]
fn what_another_worker_has_on_disk_comes_after_its_disk() {
    let (mut lender, mut news) = (Tiers::new(limits(8, 100)), KvNews::new(16, true));
    compute(&mut lender, &mut news, &[1, 2, 3, 4]);
    compute(&mut lender, &mut news, &[11, 12, 13, 14, 15, 16, 17]);
    let here = [1, 2, 3, 4].iter().take_while(|id| lender.host.contains(&name(**id))).count();
    let on_disk = 2.min(4 - here) as u32;
    let lent = lender.lend(&[1, 2, 3, 4, 5], &mut news);
    // A reader may have a quarter of the host memory read.
    assert_eq!(lent.blocks, here as u32 + on_disk);
    assert_eq!(lent.ready, lender.now + MS + u64::from(on_disk) * 2 * MS);
    let (mut tiers, mut news) = (Tiers::new(limits(16, 1)), KvNews::new(16, true));
    tiers.advance(lender.now, &mut news);
    tiers.hint(&[1, 2, 3][..lent.blocks as usize], lent.ready, &mut news);
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
        let (mut tiers, mut news) = (Tiers::new(limits(host, disk)), KvNews::new(16, true));
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
