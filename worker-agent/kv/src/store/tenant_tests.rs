//! Quotas of tenants in host memory.

use super::tests::{Bench, block, names};
use super::*;
use crate::{Block, Checksum, TenantKey};
use stator_protos::hash::SequenceHash;

const FLOOD: TenantKey = TenantKey(1);

fn bench(slots: u32, quota: usize) -> Bench {
    let mut settings = StoreSettings::new(slots, 4096, Vec::new());
    settings.granted_max = slots as usize;
    settings.tenant_slots_max = Some(quota);
    let mut store = BlockStore::new(settings);
    let owner = store.connect();
    Bench { store, owner, now: Now::ZERO }
}

fn fill(bench: &mut Bench, name: u128, tenant: TenantKey) -> Filled {
    let slot = bench.store.grant(bench.owner, 1, bench.now)[0];
    let block = Block { tenant, ..block(name) };
    bench.store.filled(bench.owner, slot, block, Checksum(0), bench.now)
}

#[test]
fn a_flood_evicts_its_own_blocks_first() {
    let mut bench = bench(8, 4);
    assert_eq!(bench.fill(0..3), [Filled::Registered; 3]);
    for name in 100..150 {
        assert_eq!(fill(&mut bench, name, FLOOD), Filled::Registered);
    }
    assert_eq!(bench.ask(1, 0..3).ready.len(), 3, "the other tenant's blocks are there");
    assert_eq!(bench.ask(2, 146..150).ready.len(), 4, "and the flood's last ones");
    assert_eq!(bench.ask(3, 145..146), Found::default());
}

#[test]
fn a_tenant_whose_blocks_are_all_in_use_gets_no_more() {
    let mut bench = bench(8, 2);
    fill(&mut bench, 100, FLOOD);
    fill(&mut bench, 101, FLOOD);
    assert_eq!(bench.ask(1, 100..102).ready.len(), 2);
    let slot = bench.store.grant(bench.owner, 1, bench.now)[0];
    let more = |name| Block { tenant: FLOOD, ..block(name) };
    let filled = bench.store.filled(bench.owner, slot, more(102), Checksum(0), bench.now);
    assert_eq!(filled, Filled::OverQuota);
    bench.end(1);
    let filled = bench.store.filled(bench.owner, slot, more(102), Checksum(0), bench.now);
    assert_eq!(filled, Filled::Registered);
    assert_eq!(bench.ask(2, 100..101).ready.len() + bench.ask(3, 101..102).ready.len(), 1);
    bench.store.forget(&names(100..103));
    assert_eq!(bench.store.status(bench.now).host.pinned, 1);
}

#[test]
fn a_block_whose_tenant_is_learned_late_counts_for_it_from_then_on() {
    let mut bench = bench(8, 2);
    assert_eq!(bench.fill(0..1), [Filled::Registered]);
    fill(&mut bench, 100, FLOOD);
    fill(&mut bench, 101, FLOOD);
    let unnamed = Block { hash: None, tenant: TenantKey::default(), ..block(7) };
    let slot = bench.store.grant(bench.owner, 1, bench.now)[0];
    let filled = bench.store.filled(bench.owner, slot, unnamed, Checksum(0), bench.now);
    assert_eq!(filled, Filled::Registered);
    let named = Block { hash: Some(SequenceHash(7)), tenant: FLOOD, ..unnamed };
    bench.store.learn(named, bench.now);
    assert_eq!(bench.ask(1, 100..101), Found::default(), "the flood's oldest made room");
    bench.store.learn(named, bench.now);
    assert_eq!((bench.ask(2, 101..102).ready.len(), bench.ask(3, 7..8).ready.len()), (1, 1));
    bench.end(2);
    bench.end(3);
    fill(&mut bench, 102, FLOOD);
    assert_eq!(bench.ask(4, 101..102), Found::default());
    assert_eq!(bench.ask(5, 0..1).ready.len(), 1, "the other tenant's block is there");
}
