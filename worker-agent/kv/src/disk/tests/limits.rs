//! Room that changes while the tier works, quotas, and blocks that are to be forgotten.

use super::*;
use crate::TenantKey;

/// Bytes that the segments' files have on disk.
fn bytes_on_disk(dir: &Path) -> usize {
    files(dir, &FORM)
        .iter()
        .filter(|(name, _)| name.starts_with("segment"))
        .map(|f| f.1.len())
        .sum()
}

#[test]
fn less_room_costs_the_oldest_blocks_and_more_room_is_used_again() {
    let dir = TempDir::new().unwrap();
    let rig = Rig::with_segments(dir.path(), 8);
    (0..32).for_each(|name| drop(rig.write(name)));
    assert_eq!(rig.tier.set_bytes(3 * SEGMENT_BYTES + 5), 3 * SEGMENT_BYTES);
    let mut gone = Vec::new();
    while gone.len() < 20 {
        match rig.report() {
            TierReport::Gone(names) => gone.extend(names),
            report => panic!("{report:?}"),
        }
    }
    assert_eq!(gone, (0..20).map(BlockName).collect::<Vec<_>>());
    rig.check_reads(20..32);
    assert_eq!(bytes_on_disk(dir.path()) as u64, 3 * SEGMENT_BYTES);
    // The next block takes the place of the oldest but a hot one, not more room.
    assert_eq!(rig.write(32), (21..24).map(BlockName).collect::<Vec<_>>());
    assert_eq!(
        (rig.tier.set_bytes(8 * SEGMENT_BYTES), rig.tier.bytes()),
        (8 * SEGMENT_BYTES, 8 * SEGMENT_BYTES)
    );
    assert!((33..45).all(|name| rig.write(name).is_empty()));
    rig.check_reads((24..45).chain([20]));
    rig.close();
    let left: Vec<_> = [20].into_iter().chain(24..45).collect();
    assert_eq!(names(&found(dir.path(), 8)), left);
}

#[test]
fn what_is_forgotten_is_not_found_again() {
    let dir = TempDir::new().unwrap();
    let rig = Rig::with_segments(dir.path(), 8);
    (0..6).for_each(|name| drop(rig.write(name)));
    rig.tier.forget(&[BlockName(2), BlockName(4), BlockName(99)]);
    assert_eq!(rig.read(2), Err(TierError::Missing));
    rig.check_reads([0, 1, 3, 5]);
    rig.write(4);
    rig.check_reads([4]);
    rig.close();
    assert_eq!(names(&found(dir.path(), 8)), [0, 1, 3, 4, 5]);
}

#[test]
fn a_tenants_flood_leaves_the_others_blocks_on_disk() {
    let dir = TempDir::new().unwrap();
    let settings = DiskSettings { tenant_share_percent: Some(50), ..settings(dir.path(), 8) };
    let rig = Rig::open(settings.clone(), FORM).unwrap();
    (0..8).for_each(|name| drop(rig.write(name)));
    let flood = TenantKey(7);
    for name in 100..200_u128 {
        let slot = SlotId(name as u32 % SLOTS);
        let kv = kv(name, BLOCK_BYTES);
        rig.arena.write(slot, &kv);
        let block = Block { tenant: flood, ..block(name) };
        rig.tier.write(TierWrite { block, slot, checksum: checksum(block.name, &kv) });
        while !matches!(rig.report(), TierReport::Written { result: Ok(()), .. }) {}
    }
    rig.check_reads((0..8).chain(184..200));
    assert_eq!(rig.read(183), Err(TierError::Missing));
    rig.close();
    let rig = Rig::open(settings, FORM).unwrap();
    rig.check_reads((0..8).chain(184..200));
}
