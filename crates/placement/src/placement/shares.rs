//! Workers' shares of one prompt.

use stator_kv_index::Overlap;

/// A worker's share of a prompt.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PromptShare {
    slot: u32,
    /// Blocks that it holds, reported or predicted.
    pub(super) overlap: Overlap,
    /// Leading blocks that requests in flight there use.
    pub(super) active_blocks: u32,
}

/// Shares of the workers that hold or use any of a prompt. Shares of the last prompt are cleared
/// one by one: a prompt that no worker holds costs nothing, however many workers there are.
#[derive(Default)]
pub(super) struct Shares {
    found: Vec<PromptShare>,
    /// By slot, one more than the place in `found`; 0 is none.
    places: Vec<u32>,
}

impl Shares {
    /// Begins with another prompt; slots are below `slots`.
    pub(super) fn reset(&mut self, slots: usize) {
        for share in self.found.drain(..) {
            self.places[share.slot as usize] = 0;
        }
        if self.places.len() < slots {
            self.places.resize(slots, 0);
        }
    }

    pub(super) fn entry(&mut self, slot: u32) -> &mut PromptShare {
        let place = &mut self.places[slot as usize];
        if *place == 0 {
            self.found.push(PromptShare { slot, ..PromptShare::default() });
            *place = self.found.len() as u32;
        }
        &mut self.found[*place as usize - 1]
    }

    /// Slots of the workers that have any.
    pub(super) fn slots(&self) -> impl Iterator<Item = u32> {
        self.found.iter().map(|share| share.slot)
    }

    pub(super) fn of(&self, slot: u32) -> PromptShare {
        match self.places.get(slot as usize) {
            None | Some(0) => PromptShare { slot, ..PromptShare::default() },
            Some(&place) => self.found[place as usize - 1],
        }
    }
}
