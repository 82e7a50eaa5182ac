//! Invariants that hold for any behaviour of engines.

use super::super::wire::*;
use super::kit::{Agent, BLOCK_BYTES, FORM, Shim, ShimWire, hello, key, until};
use crate::SlotId;
use crate::tier::TierError;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::{HashMap, HashSet};

/// Slots and answers that the agent has given one shim.
#[derive(Default)]
struct Given {
    granted: HashSet<SlotId>,
    filled: HashSet<SlotId>,
    pinned: HashMap<u64, Vec<SlotId>>,
}

/// Takes the grants of a shim; nobody else may have the slots.
fn take_grants(at: usize, shims: &mut [Shim], given: &mut [Given]) {
    shims[at].pulse();
    for slot in std::mem::take(&mut shims[at].granted) {
        let own = &mut given[at];
        // DUP gives back a slot that was filled.
        own.filled.remove(&slot);
        for (of, given) in given.iter().enumerate() {
            assert!(!given.granted.contains(&slot), "{slot:?} is granted to {of} already");
            let is_pinned = given.pinned.values().any(|slots| slots.contains(&slot));
            assert!(!is_pinned, "{slot:?} is read by {of}");
        }
        given[at].granted.insert(slot);
    }
}

#[test]
fn a_slot_has_one_writer() {
    let agent = Agent::new(24);
    let mut shims = [agent.shim("a"), agent.shim("b")];
    let mut given = [Given::default(), Given::default()];
    let mut random = SmallRng::seed_from_u64(1);
    for _ in 0..2000 {
        let at = random.random_range(0..2);
        take_grants(at, &mut shims, &mut given);
        match random.random_range(0..3) {
            0 => {
                let Some(slot) = given[at].granted.iter().next().copied() else { continue };
                given[at].granted.remove(&slot);
                let block = random.random_range(0..40);
                shims[at].arena.write(slot, &[block as u8; BLOCK_BYTES]);
                let filled = FilledSlot { key: key(block), slot, depth: block };
                shims[at].wire.send(&ShimMessage::Filled(vec![filled]));
            }
            1 => {
                let block = random.random_range(0..40);
                let found = shims[at].ask(&[block, block + 1, block + 2]);
                for (nth, slot) in found.slots.iter().enumerate() {
                    assert_eq!(shims[at].content(*slot), block as u8 + nth as u8);
                    assert!(given.iter().all(|given| !given.granted.contains(slot)));
                }
                // GRANT may have come before FOUND: its slots are others.
                given[at].pinned.insert(found.request, found.slots);
            }
            _ => {
                let Some(request) = given[at].pinned.keys().next().copied() else { continue };
                given[at].pinned.remove(&request);
                shims[at].end(request);
            }
        }
    }
}

#[test]
fn a_key_is_visible_only_after_filled() {
    let agent = Agent::new(16);
    let (mut writer, mut reader) = (agent.shim("a"), agent.shim("b"));
    let slot = writer.slot();
    writer.arena.write(slot, &[5; BLOCK_BYTES]);
    writer.pulse();
    assert_eq!(reader.ask(&[5]).slots, []);
    writer.granted.push_front(slot);
    writer.store(&[5]);
    let found = reader.ask(&[5, 6]);
    assert_eq!((found.slots.len(), found.pending), (1, 0));
    assert_eq!(found.slots, [slot]);
    assert_eq!(reader.content(slot), 5);
}

#[test]
fn a_pinned_slot_is_not_evicted() {
    let agent = Agent::new(8);
    let (mut reader, mut writer) = (agent.shim("a"), agent.shim("b"));
    writer.store(&[1]);
    let pinned = reader.ask(&[1]).slots;
    (2..40).for_each(|block| writer.store(&[block]));
    assert_eq!(reader.content(pinned[0]), 1);
    let again = reader.ask(&[1]);
    assert_eq!(again.slots, pinned);
    assert_eq!(reader.ask(&[2]).slots, [], "evicted, not pinned");
}

#[test]
fn pins_and_grants_go_with_the_engine_that_says_bye() {
    let agent = Agent::new(8);
    let mut shim = agent.shim("a");
    shim.store(&[1]);
    shim.ask(&[1]);
    assert!(agent.free() < 8);
    shim.wire.send(&ShimMessage::Bye);
    assert_eq!(shim.next(), AgentMessage::Bye);
    until("all slots are free", || agent.free() == 8);
    assert_eq!(agent.quarantined(), 0);
}

#[test]
fn slots_of_a_lost_but_living_engine_are_set_apart() {
    let agent = Agent::new(8);
    let mut shim = agent.shim("a");
    shim.store(&[1]);
    let pinned = shim.ask(&[1]).slots;
    let Shim { wire, arena, granted, .. } = shim;
    drop(wire);
    until("the loss is seen", || agent.quarantined() == 1);

    let held = pinned.len() + granted.len();
    assert_eq!(agent.free(), 8 - held.max(3), "one pinned, two granted");
    // Another start of the engine promises nothing of this one.
    let other = Shim::join(&agent.socket(), &Hello { incarnation: [9; 16], ..hello("a") });
    let mut buffer = [0; BLOCK_BYTES];
    arena.read(pinned[0], &mut buffer);
    assert_eq!((buffer, agent.quarantined()), ([1; BLOCK_BYTES], 1));
    other.wire.send(&ShimMessage::Bye);

    let again = agent.shim("a");
    assert_eq!(agent.quarantined(), 0);
    again.wire.send(&ShimMessage::Bye);
    until("all slots are free", || agent.free() == 8);
}

#[test]
fn every_ask_is_answered() {
    let agent = Agent::new(8);
    let mut shim = agent.shim("a");
    assert_eq!(shim.ask(&[]).slots, []);
    let long: Vec<u32> = (0..ASK_KEYS_MAX as u32).collect();
    assert_eq!(shim.ask(&long).slots, []);
    shim.store(&[0, 1]);
    let found = shim.ask(&long);
    assert_eq!((found.slots.len(), found.pending), (2, 0));
}

#[test]
fn more_slots_than_a_message_has_come_in_several() {
    let slots = 2 * KEYS_MAX as u32 + 2000;
    let agent = Agent::new(slots);
    let client = agent.cache.connect(std::sync::Arc::new(|_| ()));
    let names = super::super::names::KeyNames::new(&FORM.fingerprint, &[0; 16]);
    let blocks: Vec<u32> = (0..2 * KEYS_MAX as u32 + 1).collect();
    let mut granted = Vec::new();
    for block in &blocks {
        if granted.is_empty() {
            granted = client.grant(64);
        }
        let name = names.name(&key(*block));
        let block = crate::Block {
            name,
            hash: None,
            parent: None,
            depth: *block,
            tenant: crate::TenantKey::default(),
        };
        assert_eq!(client.filled(&[(granted.pop().unwrap(), block)]), []);
    }
    assert_eq!(agent.shim("a").ask(&blocks).slots.len(), blocks.len());
}

#[test]
fn a_key_whose_load_failed_is_a_miss_for_its_request() {
    let agent = Agent::new(16);
    (0..3).for_each(|block| agent.tier.has(block));
    let mut shim = agent.shim("a");
    let found = shim.ask(&[0, 1, 2]);
    assert_eq!((found.slots.len(), found.pending), (0, 3));
    agent.tier.end_reads(agent.cache.arena(), 1, Ok(0));
    let ready = shim.ready();
    assert_eq!((ready.request, ready.slots.len(), ready.pending), (found.request, 1, 2));
    assert_eq!(shim.content(ready.slots[0]), 0);
    agent.tier.end_reads(agent.cache.arena(), 1, Err(TierError::Corrupt));
    let ready = shim.ready();
    assert_eq!((ready.slots, ready.pending), (vec![], 0), "the third is behind a miss");
}

#[test]
fn the_arena_has_no_name() {
    let agent = Agent::new(8);
    let shim = agent.shim("a");
    let link = rustix::path::DecInt::from_fd(&shim.file);
    let target = std::fs::read_link(std::path::Path::new("/proc/self/fd").join(link)).unwrap();
    let target = target.to_str().unwrap();
    assert!(target.starts_with("/memfd:") && target.ends_with("(deleted)"), "{target}");
}

#[test]
fn agent_restart_between_heartbeats_rejoins() {
    let mut agent = Agent::new(8);
    let mut shim = agent.shim("a");
    shim.pulse();
    agent.start();
    assert_eq!(shim.next(), AgentMessage::Bye);
    assert_eq!(shim.wire.receive(), None);
    let mut again = agent.shim("a");
    assert_ne!(again.welcome.boot, shim.welcome.boot);
    again.pulse();
    // A shim that has not seen the restart is sent to see it.
    let pulse = ShimPulse { boot: shim.welcome.boot, ..ShimPulse::default() };
    let stale = agent.shim("b");
    stale.wire.send(&ShimMessage::Pulse(pulse));
    until("it is disconnected", || agent.connections() == 1);
}

#[test]
fn only_the_user_reaches_the_socket() {
    use std::os::unix::fs::PermissionsExt;
    let mut agent = Agent::new(8);
    let mode = std::fs::metadata(agent.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    drop(agent.server.take());
    assert!(!agent.socket().exists());
}

#[test]
fn garbage_ends_one_connection() {
    let agent = Agent::new(8);
    let mut good = agent.shim("good");
    let mut random = SmallRng::seed_from_u64(2);
    let whole = ShimMessage::Hello(hello("bad")).encode();
    for round in 0..200 {
        let mut wire = ShimWire::connect(&agent.socket());
        let mut packet = match round % 3 {
            0 => (0..random.random_range(1..200)).map(|_| random.random()).collect(),
            1 => whole[..random.random_range(1..whole.len())].to_vec(),
            _ => vec![0; MESSAGE_BYTES_MAX + 1],
        };
        if round % 2 == 0 {
            wire.send_bytes(&whole);
            assert!(matches!(wire.receive(), Some(AgentMessage::Welcome(_))));
            packet[0] |= 0x10;
        }
        wire.send_bytes(&packet);
        // Until the end: grants may come before.
        while wire.receive().is_some() {}
    }
    good.store(&[1]);
    assert_eq!(good.ask(&[1]).slots.len(), 1);
}
