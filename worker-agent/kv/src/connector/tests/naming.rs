//! Blocks get the names by which routers know them, from their tokens.

use super::super::EngineChange;
use super::super::wire::*;
use super::kit::{Agent, hello, key, until};
use crate::Block;
use stator_protos::hash::{HashSeed, SequenceHash, sequence_hashes};
use std::num::NonZeroU32;

/// The fleet's hashes of a sequence of blocks whose tokens are their numbers.
fn hashes(blocks: &[u32]) -> Vec<SequenceHash> {
    let tokens: Vec<u32> = blocks.iter().flat_map(|block| [*block; 16]).collect();
    let mut out = Vec::new();
    sequence_hashes(&tokens, NonZeroU32::new(16).unwrap(), HashSeed::default(), &mut out);
    out
}

/// Waits until so many blocks are told to routers; these and the ones before them.
fn stored(agent: &Agent, count: usize) -> Vec<(Option<SequenceHash>, Option<SequenceHash>)> {
    until("events", || agent.heard.lock().stored.len() >= count);
    agent.heard.lock().stored.clone()
}

#[test]
fn blocks_are_told_to_routers_by_the_hashes_of_their_tokens() {
    let agent = Agent::new(16);
    let mut shim = agent.shim("a");
    shim.tell(0, None);
    shim.fill(0);
    // In any order within a message.
    let slots = [3, 1, 2].map(|depth| FilledSlot { key: key(depth), slot: shim.slot(), depth });
    (1..4).for_each(|block| shim.tell(block, Some(block - 1)));
    shim.wire.send(&ShimMessage::Filled(slots.to_vec()));
    let chain = hashes(&[0, 1, 2, 3]);
    let named = |at: usize| (Some(chain[at]), at.checked_sub(1).map(|before| chain[before]));
    assert_eq!(stored(&agent, 4), [0, 1, 2, 3].map(named), "each after the one before it");
}

#[test]
fn a_block_after_an_unknown_one_has_no_name_until_that_is_known() {
    let agent = Agent::new(16);
    let mut shim = agent.shim("a");
    shim.tell(1, Some(0));
    shim.fill(1);
    shim.fill(0);
    assert_eq!(stored(&agent, 2), [(None, None); 2]);
    // They are there already: only their names are news.
    for (block, before) in [(0, None), (1, Some(0))] {
        shim.tell(block, before);
        shim.fill(block);
    }
    let chain = hashes(&[0, 1]);
    let named = [(Some(chain[0]), None), (Some(chain[1]), Some(chain[0]))];
    assert_eq!(stored(&agent, 4)[2..], named);
}

#[test]
fn blocks_of_a_shim_without_tokens_are_named_by_the_book_now_or_later() {
    let agent = Agent::new(16);
    let mut shim = agent.shim("a");
    let chain = hashes(&[0, 1]);
    agent.book.names.lock().insert(0, chain[0]);
    shim.fill(0);
    shim.fill(1);
    assert_eq!(stored(&agent, 2), [(Some(chain[0]), None), (None, None)]);
    until("one has no name", || agent.book.unnamed.lock().len() == 1);
    let block = agent.book.unnamed.lock()[0];
    agent.cache.learn(&[Block { hash: Some(chain[1]), parent: Some(chain[0]), ..block }]);
    // Routers hear of it where it is, and not twice.
    agent.cache.learn(&[Block { hash: Some(chain[0]), parent: None, ..block }]);
    assert_eq!(stored(&agent, 3)[2..], [(Some(chain[1]), Some(chain[0]))]);
}

#[test]
fn a_salt_takes_the_place_of_its_own_blocks_beyond_its_quota() {
    let agent = Agent::with_quota(16, Some(25));
    let mut shim = agent.shim("a");
    shim.store(&[0, 1]);
    shim.tell_salted(2, None, "quiet");
    shim.store(&[2]);
    for block in 100..110 {
        shim.tell_salted(block, None, "flood");
        shim.store(&[block]);
    }
    assert_eq!(shim.ask(&[0, 1, 2]).slots.len(), 3, "blocks of others are there");
    assert_eq!(shim.ask(&[106, 107, 108, 109]).slots.len(), 4, "and the flood's last ones");
    assert!(shim.ask(&[105]).slots.is_empty());
}

#[test]
fn after_a_reset_blocks_have_no_names() {
    let agent = Agent::new(16);
    let mut shim = agent.shim("a");
    shim.wire.send(&ShimMessage::Reset { namespace: [3; 16] });
    shim.tell(0, None);
    shim.fill(0);
    assert_eq!(stored(&agent, 1), [(None, None)]);
    let joined = EngineChange::Joined { block_tokens: 16 };
    assert_eq!(agent.heard.lock().engines, [joined, EngineChange::Reset]);
    drop(shim);
    let left = EngineChange::Left { was_reset: true };
    until("it left", || agent.heard.lock().engines.last() == Some(&left));
}

#[test]
fn tokens_that_are_too_many_end_the_connection() {
    let tokens = |count: usize, of_block: usize| {
        let block = BlockTokens { key: key(1), before: [0; 32], tokens: vec![7; of_block] };
        let (lora, salt) = Default::default();
        ShimMessage::Tokens(TokensFrame { lora, salt, blocks: vec![block; count] })
    };
    let is_disconnected = |messages: &[ShimMessage]| {
        let agent = Agent::new(8);
        let shim = super::kit::Shim::join(&agent.socket(), &hello("a"));
        messages.iter().for_each(|message| shim.wire.send(message));
        let pulse = ShimPulse { boot: shim.welcome.boot, ..ShimPulse::default() };
        shim.wire.send(&ShimMessage::Pulse(pulse));
        let mut wire = shim.wire;
        std::iter::from_fn(|| wire.receive())
            .all(|said| !matches!(said, AgentMessage::Pulse { .. }))
    };
    assert!(is_disconnected(&[tokens(1, 15)]), "blocks have 16");
    assert!(!is_disconnected(&[tokens(512, 16), tokens(512, 16)]));
}
