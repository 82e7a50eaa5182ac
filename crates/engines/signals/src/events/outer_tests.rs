//! Blocks outside an engine, beside those that it reports.

use super::testkit::*;
use super::*;
use parking_lot::Mutex;
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::{KvEvent, Medium, Removed, Stored};
use std::sync::Arc;

/// Tiers that hold what the test says.
#[derive(Default)]
struct Tiers(Mutex<TierState>);

#[derive(Default)]
struct TierState {
    held: Vec<KvEvent>,
    changes: Vec<KvEvent>,
}

impl OuterBlocks for Tiers {
    fn all(&self) -> Vec<KvEvent> {
        let mut state = self.0.lock();
        state.changes.clear();
        state.held.clone()
    }

    fn take_changes(&self) -> Vec<KvEvent> {
        std::mem::take(&mut self.0.lock().changes)
    }
}

fn on_host(chain: &[SequenceHash], at: usize) -> KvEvent {
    KvEvent::Stored(Stored {
        hashes: vec![chain[at].0],
        parent: at.checked_sub(1).map(|before| chain[before].0),
        tokens: vec![],
        block_size: BLOCK.get(),
        medium: Medium::Host,
        lora_name: None,
    })
}

/// Media of the blocks of a chain of which the sink was told.
fn media(state: &State, chain: &[SequenceHash]) -> Vec<Vec<Medium>> {
    let of = |hash: &SequenceHash| {
        let on = |medium: &Medium| state.blocks.contains_key(&(*hash, *medium));
        Medium::ALL.into_iter().filter(on).collect()
    };
    chain.iter().map(of).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_tiers_hold_stays_when_the_engine_forgets() {
    let tiers = Arc::new(Tiers::default());
    let chain = chain(3);
    tiers.0.lock().held = vec![on_host(&chain, 0), on_host(&chain, 1)];
    // The engine has said nothing yet, and nobody knows what it holds.
    let mut bed = Bed::start_beside(tiers.clone()).await;
    let (host, device) = (vec![Medium::Host], vec![Medium::Device]);
    bed.silent_until("the tiers are told", |state| {
        media(state, &chain) == [host.clone(), host.clone(), vec![]]
    })
    .await;

    (0..3).for_each(|block| bed.publish(stored(block)));
    let all_near = [device.clone(), device.clone(), device.clone()];
    bed.until("the engine has them", |state| media(state, &chain) == all_near).await;
    bed.publish(batch(&[Event::Cleared]));
    let outer_left = [host.clone(), host.clone(), vec![]];
    bed.until("the tiers keep them", |state| media(state, &chain) == outer_left).await;

    let gone = Removed { hashes: vec![chain[0].0], medium: Medium::Host };
    {
        let mut state = tiers.0.lock();
        state.held.remove(0);
        state.changes = vec![KvEvent::Removed(gone)];
    }
    bed.control.outer_changed().await;
    // What follows on a block that nobody has is of no use.
    bed.until("none is left", |state| media(state, &chain) == [vec![], vec![], vec![]]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_continues_what_its_tiers_hold() {
    let tiers = Arc::new(Tiers::default());
    let chain = chain(3);
    let mut bed = Bed::start_beside(tiers.clone()).await;
    (0..3).for_each(|block| bed.publish(stored(block)));
    bed.until_holds("the feed stands", &chain).await;
    bed.publish(batch(&[Event::Removed(0)]));
    bed.until("a gap", |state| media(state, &chain) == [vec![], vec![], vec![]]).await;
    {
        let mut state = tiers.0.lock();
        state.held = vec![on_host(&chain, 0)];
        state.changes = state.held.clone();
    }
    bed.control.outer_changed().await;
    // The way to the later ones leads over host memory.
    let host = vec![Medium::Host];
    bed.until("no gap", |state| media(state, &chain) == [host.clone(), host.clone(), host.clone()])
        .await;
}
