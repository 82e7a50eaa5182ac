//! Media of blocks, for an engine that keeps each block once.

use rustc_hash::FxHashMap;
use stator_protos::kv_event::{Detail, EngineEvent, KvEvent, Medium, Removed, Stored};

/// Name of layers that forget the start of a prompt.
const NARROW: &str = "sliding_window";

/// Turns the events of such an engine into those of one that counts copies, as translation needs: a
/// block stored again is no new copy, a block stored elsewhere has moved, and a removed block
/// leaves whichever medium it was on.
///
/// Of several attention windows the widest is followed, which keeps the whole prompt.
#[derive(Debug)]
pub(crate) struct Places {
    blocks_max: usize,
    media: FxHashMap<u64, Medium>,
    widest: Option<u32>,
}

impl Places {
    /// Starts without blocks, and tracks at most `blocks_max`.
    pub(crate) fn new(blocks_max: usize) -> Self {
        Self { blocks_max, media: FxHashMap::default(), widest: None }
    }

    /// Forgets all blocks.
    pub(crate) fn forget(&mut self) {
        self.media.clear();
    }

    /// Resets for another process of the engine.
    pub(crate) fn restart(&mut self) {
        self.forget();
        self.widest = None;
    }

    /// Turns events into copy-counting ones.
    pub(crate) fn settle(&mut self, events: &[EngineEvent]) -> Vec<EngineEvent> {
        let mut out = Vec::with_capacity(events.len());
        for EngineEvent { event, detail } in events {
            if self.is_narrow(detail, &mut out) {
                let detail = Detail { spec_kind: Some(NARROW.to_owned()), ..detail.clone() };
                out.push(EngineEvent { event: event.clone(), detail });
                continue;
            }
            let detail = Detail { group: None, ..detail.clone() };
            let mut tell = |event| out.push(EngineEvent { event, detail: detail.clone() });
            match event {
                KvEvent::Stored(stored) => self.store(stored, &mut tell),
                KvEvent::Removed(removed) => self.remove(&removed.hashes, &mut tell),
                KvEvent::Cleared => {
                    self.forget();
                    tell(KvEvent::Cleared);
                }
            }
        }
        out
    }

    /// Whether an event is of a narrower window, which is not followed. The first event of a wider
    /// window drops the blocks of the narrower one.
    fn is_narrow(&mut self, detail: &Detail, out: &mut Vec<EngineEvent>) -> bool {
        if detail.group < self.widest {
            return detail.group.is_some();
        }
        if detail.group > self.widest {
            if self.widest.is_some() {
                self.forget();
                out.push(EngineEvent { event: KvEvent::Cleared, detail: Detail::default() });
            }
            self.widest = detail.group;
        }
        false
    }

    fn store(&mut self, stored: &Stored, tell: &mut impl FnMut(KvEvent)) {
        let size = stored.block_size as usize;
        let is_move = stored.tokens.is_empty();
        let Stored { block_size, medium, .. } = *stored;
        let run = |parent| {
            let (hashes, tokens, lora_name) = (Vec::new(), Vec::new(), stored.lora_name.clone());
            Stored { hashes, parent, tokens, block_size, medium, lora_name }
        };
        let (mut new, mut left) = (run(stored.parent), Vec::new());
        for (at, &hash) in stored.hashes.iter().enumerate() {
            let before = self.media.get(&hash).copied();
            if before == Some(medium) {
                let done = std::mem::replace(&mut new, run(Some(hash)));
                tell_stored(done, tell);
                continue;
            }
            // A move carries no tokens, so a block that is not known yet cannot be reported.
            if before.is_none() && (is_move || self.media.len() >= self.blocks_max) {
                break;
            }
            left.extend(before.map(|medium| (hash, medium)));
            self.media.insert(hash, medium);
            new.hashes.push(hash);
            new.tokens.extend(stored.tokens.iter().skip(at * size).take(size));
        }
        tell_stored(new, tell);
        tell_removed(&left, tell);
    }

    fn remove(&mut self, hashes: &[u64], tell: &mut impl FnMut(KvEvent)) {
        let there = |hash: &u64| Some((*hash, self.media.remove(hash)?));
        let left: Vec<_> = hashes.iter().filter_map(there).collect();
        tell_removed(&left, tell);
    }
}

fn tell_stored(stored: Stored, tell: &mut impl FnMut(KvEvent)) {
    if !stored.hashes.is_empty() {
        tell(KvEvent::Stored(stored));
    }
}

fn tell_removed(left: &[(u64, Medium)], tell: &mut impl FnMut(KvEvent)) {
    for medium in Medium::ALL {
        let on = left.iter().filter(|(_, left)| *left == medium);
        let hashes: Vec<_> = on.map(|(hash, _)| *hash).collect();
        if !hashes.is_empty() {
            tell(KvEvent::Removed(Removed { hashes, medium }));
        }
    }
}
