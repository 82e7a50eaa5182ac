//! Tests of answers that are too long to be compared with their checksums at once.

use super::testkit::*;
use super::*;

/// A cache of 16 blocks that compares two at a time, before and after its answers.
fn with_patience_for_two(blocks: u128, media: &[Media]) -> Rig {
    let settings = CacheSettings { verify_bytes: 2 * BLOCK, ..CacheSettings::new(16) };
    let mut rig = Rig::with(settings, media);
    names(0..blocks).into_iter().for_each(|name| assert!(rig.fill(rig.owner, name)));
    rig
}

#[test]
fn a_long_answer_is_verified_in_parts_that_come_in_order() {
    let mut rig = with_patience_for_two(7, &[]);
    let found = rig.ask(1, &names(0..8));
    assert_eq!((found.ready.len(), found.pending), (2, 5));
    let told = rig.told();
    let parts: Vec<_> = told.iter().map(|(_, of)| (of.slots.len(), of.pending)).collect();
    assert_eq!(parts, [(2, 3), (2, 1), (1, 0)]);
    let slots = found.ready.into_iter().chain(told.into_iter().flat_map(|(_, of)| of.slots));
    assert!(rig.is_right(&slots.collect::<Vec<_>>(), &names(0..7)));
    assert_eq!(rig.metric("stator_kv_hit_blocks_total{from=\"host\"}"), "7");
}

#[test]
fn a_spoiled_block_in_the_end_of_a_long_answer_is_a_miss() {
    let mut rig = with_patience_for_two(7, &[]);
    rig.ask(1, &names(0..7));
    let slots: Vec<_> = rig.told().into_iter().flat_map(|(_, of)| of.slots).collect();
    // The sixth block.
    rig.flip(slots[3], 9);
    assert_eq!(rig.ask(2, &names(0..7)).pending, 5);
    let told: Vec<_> = rig.told().into_iter().map(|(_, of)| (of.slots.len(), of.pending)).collect();
    assert_eq!(told, [(2, 3), (1, 0)]);
    assert_eq!(rig.ask(3, &names(0..7)).pending, 3, "it is forgotten");
}

#[test]
fn blocks_of_a_tier_come_behind_those_that_are_verified() {
    let mut rig = with_patience_for_two(0, &[Media::default()]);
    names(0..12).into_iter().for_each(|name| assert!(rig.fill(rig.owner, name)));
    rig.finish_all(0, Fault::None);
    // Other blocks take the slots of the last six.
    names(20..26).into_iter().for_each(|name| assert!(rig.fill(rig.owner, name)));
    rig.finish_all(0, Fault::None);
    let found = rig.ask(1, &names(0..12));
    assert_eq!(found.ready.len() + found.pending, 12);
    // The tier is faster than the comparison.
    let at_once = rig.shared.decisions().into_iter().flatten().collect();
    rig.dispatcher.carry_out(at_once);
    while rig.tiers[0].queued() > 0 {
        rig.tiers[0].finish(0, Fault::None);
    }
    rig.step();
    let slots = found.ready.into_iter().chain(rig.told().into_iter().flat_map(|(_, of)| of.slots));
    let slots: Vec<_> = slots.collect();
    assert!(slots.len() == 12 && rig.is_right(&slots, &names(0..12)));
}

#[test]
fn a_request_that_ended_or_asked_again_hears_nothing_of_its_long_answer() {
    let mut rig = with_patience_for_two(7, &[]);
    rig.ask(1, &names(0..7));
    rig.end(1);
    rig.ask(2, &names(0..7));
    assert_eq!(rig.ask(2, &names(0..2)).pending, 0);
    let told = rig.told();
    assert_eq!(told, []);
}
