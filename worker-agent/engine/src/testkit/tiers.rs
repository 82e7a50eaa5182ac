//! Tiers that keep blocks in a map, and misbehave as told.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::RequestKey;
use crate::tiers::{OuterBlock, OuterFound, OuterLookup, OuterTiers};
use stator_protos::name::BlockName;

/// Faults of a fake tier.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Temper {
    /// Times that a lookup says that its blocks are on their way.
    pub(crate) delay: usize,
    /// Every so manyth block cannot be loaded; 0 for none.
    pub(crate) bad_load: usize,
    /// Every so manyth block is not taken; 0 for none.
    pub(crate) lost: usize,
}

/// Blocks outside engines, all in a map.
#[derive(Debug, Default)]
pub(crate) struct Store {
    pub(crate) blocks: HashMap<BlockName, Vec<u8>>,
    pub(crate) temper: Temper,
    loads: usize,
    stores: usize,
    /// Lookups that are not dropped yet.
    pub(crate) open: usize,
}

/// The store that several engines share.
pub(crate) type SharedStore = Arc<Mutex<Store>>;

/// One engine's view of it.
pub(crate) struct FakeTiers(pub(crate) SharedStore);

#[derive(Debug)]
struct FakeLookup {
    store: SharedStore,
    names: Vec<BlockName>,
    delay: usize,
}

impl OuterTiers for FakeTiers {
    fn look_up(
        &mut self,
        _: RequestKey,
        names: &[BlockName],
        held: usize,
    ) -> Option<Box<dyn OuterLookup>> {
        let mut store = self.0.lock().unwrap();
        let found = names[held..].iter().take_while(|name| store.blocks.contains_key(name));
        let names: Vec<_> = found.copied().collect();
        if names.is_empty() {
            return None;
        }
        store.open += 1;
        let delay = store.temper.delay;
        Some(Box::new(FakeLookup { store: self.0.clone(), names, delay }))
    }

    fn store(&mut self, block: &OuterBlock, kv: &[u8]) {
        let mut store = self.0.lock().unwrap();
        store.stores += 1;
        assert_eq!(block.parent.is_some(), block.depth > 0);
        if store.temper.lost == 0 || !store.stores.is_multiple_of(store.temper.lost) {
            store.blocks.insert(block.key.name, kv.to_vec());
        }
    }
}

impl OuterLookup for FakeLookup {
    fn found(&mut self) -> OuterFound {
        let pending = self.names.len().min(self.delay);
        self.delay = self.delay.saturating_sub(1);
        OuterFound { ready: self.names.len() - pending, pending }
    }

    fn holds(&mut self, _: usize) -> bool {
        let mut store = self.store.lock().unwrap();
        store.loads += 1;
        let bad = store.temper.bad_load;
        bad == 0 || !store.loads.is_multiple_of(bad)
    }

    fn load(&mut self, block: usize, start: usize, kv: &mut [u8]) {
        let store = self.store.lock().unwrap();
        kv.copy_from_slice(&store.blocks[&self.names[block]][start..][..kv.len()]);
    }
}

impl Drop for FakeLookup {
    fn drop(&mut self) {
        self.store.lock().unwrap().open -= 1;
    }
}
