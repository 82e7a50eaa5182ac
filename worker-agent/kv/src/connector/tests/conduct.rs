//! Tests of admission, and of messages that a shim may send.

use super::super::wire::*;
use super::super::{AskHint, NotedPlace};
use super::kit::{Agent, BLOCK_BYTES, Shim, ShimWire, hello, key, until};
use crate::SlotId;

fn refusal(agent: &Agent, hello: Hello) -> (RefusalCode, String) {
    let mut wire = ShimWire::connect(&agent.socket());
    wire.send(&ShimMessage::Hello(hello));
    let Some(AgentMessage::Refused { reason, text }) = wire.receive() else {
        panic!("not refused")
    };
    assert_eq!(wire.receive(), None);
    (reason, text)
}

#[test]
fn an_engine_of_another_form_is_refused_in_words() {
    let agent = Agent::new(8);
    let _first = agent.shim("a");
    let other = Hello { fingerprint: [2; 32], form: "large".into(), ..hello("b") };
    let expected = "the agent keeps KV of the form \"tiny\" (fingerprint 0101010101010101, 64 bytes \
                    a block); engine \"b\" has the form \"large\" (fingerprint 0202020202020202, 64 \
                    bytes a block)";
    assert_eq!(refusal(&agent, other), (RefusalCode::Form, expected.to_owned()));
    let other = Hello { row_bytes: 128, ..hello("b") };
    assert_eq!(refusal(&agent, other).0, RefusalCode::Form);
}

#[test]
fn a_cache_that_cannot_be_opened_is_refused_in_words_and_tried_again() {
    let agent = Agent::new(8);
    let large = Hello { row_bytes: 4 * BLOCK_BYTES as u64, ..hello("a") };
    let expected = (RefusalCode::NoCache, "no room for blocks of 256 bytes".to_owned());
    assert_eq!(refusal(&agent, large), expected);
    agent.shim("a").pulse();
}

#[test]
fn another_protocol_is_refused_in_words() {
    let agent = Agent::new(8);
    let mut wire = ShimWire::connect(&agent.socket());
    let mut packet = ShimMessage::Hello(hello("a")).encode();
    packet[16] = 1;
    wire.send_bytes(&packet);
    let text = "the agent speaks protocol 3, not 1".to_owned();
    assert_eq!(wire.receive(), Some(AgentMessage::Refused { reason: RefusalCode::Protocol, text }));
}

#[test]
fn more_engines_than_allowed_are_refused() {
    let agent = Agent::new(64);
    let shims: Vec<_> = (0..8).map(|at| agent.shim(&at.to_string())).collect();
    assert_eq!(
        refusal(&agent, hello("b")),
        (RefusalCode::Crowded, "more than 8 connections".into())
    );
    drop(shims);
    until("they have gone", || agent.connections() == 0);
    agent.shim("b").pulse();
}

#[test]
fn a_worker_gets_the_arena_and_nothing_else() {
    let agent = Agent::new(8);
    let worker = Hello { role: ShimRole::Worker, ..hello("a") };
    let mut worker = Shim::join(&agent.socket(), &worker);
    worker.pulse();
    assert!(worker.granted.is_empty());
    worker.end(1);
    assert_eq!(worker.wire.receive(), None);
}

#[test]
fn a_hint_is_passed_on_with_the_blocks_of_its_request_alone() {
    let agent = Agent::new(8);
    let mut shim = agent.shim("a");
    let holders = vec![NamedHolder { address: "10.0.0.1:7010".into(), blocks: 2 }];
    let [first, forgotten] = [70, 71].map(EngineHint::Noted);
    let last = EngineHint::Holders(holders);
    shim.wire.send(&ShimMessage::Hint { request: 1, hint: first.clone() });
    shim.ask(&[1, 2, 3]);
    shim.ask(&[1, 2]);
    // The hint for a request that asks for nothing is forgotten with the next one.
    shim.wire.send(&ShimMessage::Hint { request: 3, hint: forgotten });
    shim.wire.send(&ShimMessage::Hint { request: 3, hint: last.clone() });
    shim.ask(&[4]);
    // A request without a hint may be known by its first block.
    let [first, last] =
        [(first, 3), (last, 1)].map(|(hint, blocks)| (AskHint::Given(hint), blocks));
    assert_eq!(*agent.hinted.lock(), [first, (AskHint::FirstKey(key(1)), 2), last]);
}

#[test]
fn a_request_for_a_noted_prompt_is_told_what_it_got_from_where() {
    let agent = Agent::new(8);
    let mut shim = agent.shim("a");
    shim.store(&[1, 2]);
    agent.tier.has(3);
    let request = shim.next_request();
    shim.wire.send(&ShimMessage::Hint { request, hint: EngineHint::Noted(70) });
    let found = shim.ask(&[1, 2, 3, 4]);
    assert_eq!((found.slots.len(), found.pending), (2, 1));
    let place = NotedPlace { number: 70, first: 0 };
    let used = || agent.used.lock().get(&place).map(|of| (of.asked, of.host, of.ready));
    // It is told before the engine is.
    assert_eq!(used(), Some((4, 2, 2)));
    agent.tier.end_reads(agent.cache.arena(), 1, Ok(9));
    assert_eq!(shim.ready().slots.len(), 1);
    assert_eq!(used(), Some((4, 2, 3)));
    // Nobody has noted the others.
    shim.ask(&[1]);
    assert_eq!(agent.used.lock().len(), 1);
}

/// Whether a scheduler that sends this is disconnected.
fn is_disconnected(messages: &[ShimMessage]) -> bool {
    let agent = Agent::new(8);
    let shim = agent.shim("a");
    messages.iter().for_each(|message| shim.wire.send(message));
    let pulse = ShimPulse { boot: shim.welcome.boot, ..ShimPulse::default() };
    shim.wire.send(&ShimMessage::Pulse(pulse));
    let mut wire = shim.wire;
    std::iter::from_fn(|| wire.receive()).all(|said| !matches!(said, AgentMessage::Pulse { .. }))
}

#[test]
fn what_is_out_of_place_ends_the_connection() {
    let ask = |request, total, first, keys| {
        let keys = vec![key(1); keys];
        ShimMessage::Ask(AskFrame { request, prefill_us: 0, total, first, keys })
    };
    let filled = |slot, count| {
        ShimMessage::Filled(vec![FilledSlot { key: key(1), slot: SlotId(slot), depth: 0 }; count])
    };
    let reset = ShimMessage::Reset { namespace: [1; 16] };
    assert!(!is_disconnected(&[ask(1, 2, 0, 1), ask(1, 2, 1, 1), ask(2, 0, 0, 0)]));
    assert!(is_disconnected(&[ask(1, 1, 0, 1), ask(1, 1, 0, 1)]), "open already");
    assert!(is_disconnected(&[ask(1, 2, 1, 1)]), "no beginning");
    assert!(is_disconnected(&[ask(1, 3, 0, 1), ask(1, 3, 2, 1)]), "a gap");
    assert!(is_disconnected(&[ask(1, 3, 0, 1), ask(2, 1, 0, 1)]), "another between");
    assert!(is_disconnected(&[ask(1, 3, 0, 1), reset.clone()]), "another meaning between");
    assert!(is_disconnected(&[ShimMessage::Hello(hello("a"))]), "again");
    assert!(is_disconnected(&[filled(8, 1)]), "no such slot");
    assert!(is_disconnected(&[filled(0, 9)]), "more than there are");
    assert!(!is_disconnected(&[filled(7, 1), ShimMessage::End { request: 9 }, reset]));
}

#[test]
fn a_slot_that_is_not_granted_cannot_be_filled() {
    let agent = Agent::new(8);
    let (mut writer, mut other) = (agent.shim("a"), agent.shim("b"));
    let slot = writer.slot();
    other.wire.send(&ShimMessage::Filled(vec![FilledSlot { key: key(1), slot, depth: 0 }]));
    other.store(&[2]);
    assert_eq!(other.ask(&[1]).slots, []);
    writer.granted.push_front(slot);
    writer.store(&[3]);
}

#[test]
fn a_duplicate_gives_its_slot_back() {
    let agent = Agent::new(16);
    let mut shim = agent.shim("a");
    shim.store(&[1]);
    while shim.granted.len() < 4 {
        let slot = shim.slot();
        shim.granted.push_front(slot);
        shim.pulse();
    }
    let slot = shim.fill(1);
    until("DUP", || {
        shim.pulse();
        shim.granted.contains(&slot)
    });
    assert_eq!(shim.granted.len(), 4);
}

#[test]
fn a_reset_hides_what_was_before() {
    let agent = Agent::new(16);
    let mut shim = agent.shim("a");
    shim.store(&[1]);
    shim.wire.send(&ShimMessage::Reset { namespace: [3; 16] });
    assert_eq!(shim.ask(&[1]).slots, []);
    shim.store(&[1]);
    let mut other = agent.shim("b");
    let before = other.ask(&[1]).slots;
    other.wire.send(&ShimMessage::Reset { namespace: [3; 16] });
    let after = other.ask(&[1]).slots;
    assert_eq!((before.len(), after.len()), (1, 1));
    assert_ne!(before, after);
}

#[test]
fn an_engine_that_fills_fast_is_granted_more() {
    let agent = Agent::new(1024);
    let mut shim = agent.shim("a");
    assert_eq!(shim.welcome.credit, 256);
    let mut all = 0;
    for round in 0..8 {
        let slot = shim.slot();
        shim.granted.push_front(slot);
        shim.pulse();
        let slots: Vec<_> = shim.granted.drain(..).collect();
        all = slots.len();
        let filled: Vec<_> = slots
            .into_iter()
            .enumerate()
            .map(|(at, slot)| FilledSlot { key: key(1000 * round + at as u32), slot, depth: 0 })
            .collect();
        shim.wire.send(&ShimMessage::Filled(filled));
    }
    assert!(all > 64 && all <= 256, "{all}");
}

#[test]
fn the_agent_sees_what_engines_tell() {
    let agent = Agent::new(8);
    let mut shim = agent.shim("a");
    let boot = shim.welcome.boot;
    let pulse = ShimPulse { boot, prefill_us: 9, loaded: 1, stored: 2, ..ShimPulse::default() };
    shim.wire.send(&ShimMessage::Pulse(pulse));
    assert_eq!(shim.next(), AgentMessage::Pulse { boot });
    let report = agent.server.as_ref().unwrap().report();
    assert_eq!((report.connections, report.quarantined), (1, 0));
    assert_eq!((report.schedulers[0].engine.as_str(), report.schedulers[0].pulse), ("a", pulse));
}

/// A scheduler, and the message that it gets first.
fn scheduler(agent: &Agent, world: u32) -> ShimWire {
    let wire = ShimWire::connect(&agent.socket());
    wire.send(&ShimMessage::Hello(Hello { world, ..hello("a") }));
    wire
}

#[test]
fn a_scheduler_is_welcome_once_all_workers_have_mapped_the_arena() {
    let agent = Agent::new(8);
    let mut wire = scheduler(&agent, 2);
    let worker = |rank| {
        Shim::join(&agent.socket(), &Hello { role: ShimRole::Worker, rank, world: 2, ..hello("a") })
    };
    let (mut first, mut second) = (worker(0), worker(1));
    first.pulse();
    // Another engine's worker is no help.
    let other = Hello { role: ShimRole::Worker, ..hello("b") };
    Shim::join(&agent.socket(), &other).pulse();
    assert!(!wire.has_message());
    second.pulse();
    assert!(matches!(wire.receive(), Some(AgentMessage::Welcome(_))));
}

#[test]
fn a_scheduler_that_leaves_before_its_workers_come_is_forgotten() {
    let agent = Agent::new(8);
    drop(scheduler(&agent, 1));
    until("it is gone", || agent.connections() == 0);
    assert_eq!(agent.quarantined(), 0);
}

#[test]
fn slots_of_an_engine_without_one_of_its_workers_are_not_taken() {
    let agent = Agent::new(8);
    let worker = Hello { role: ShimRole::Worker, world: 1, ..hello("a") };
    let mut worker = Shim::join(&agent.socket(), &worker);
    worker.pulse();
    let mut shim = Shim::join(&agent.socket(), &Hello { world: 1, ..hello("a") });
    shim.store(&[1]);
    // It could not copy the next block, and says so by leaving.
    drop(worker);
    shim.fill(2);
    while shim.wire.receive().is_some() {}
    let mut other = agent.shim("b");
    assert_eq!(other.ask(&[2]).slots, []);
    assert_eq!(other.ask(&[1]).slots.len(), 1);
}
