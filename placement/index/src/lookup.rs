//! Finding how deep each worker goes: no locks, no allocation, a few looks instead of all.
//!
//! A worker that holds a block holds all before it, and on the same medium or a nearer one. So
//! where two places of a sequence have the same holders, all places between have them too, and
//! only between places that differ there is more to find out: each round looks at a few places
//! spread over those gaps, all fetched from memory side by side.
//!
//! A block that nobody holds, with a deeper one that someone holds, was dropped for room. It
//! counts as held by those who hold the deeper one: they held it when they reported that one, and
//! have not reported it gone.

use crate::cell::SetRef;
use crate::elements::{self, State};
use crate::lane::Shared;
use crate::overlap::{Found, Overlaps};
use crate::table::{self, Path};
use crate::view::View;
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::Medium;

/// Places looked at in one round: about what a core can have under way at once.
const LOOKS: usize = 16;
/// Times that a lookup starts over because what it read was freed meanwhile. The last one passes
/// over what is gone.
const ATTEMPTS: usize = 8;

/// Memory that a lookup reuses.
#[derive(Default)]
pub(crate) struct Scratch {
    looks: Vec<Look>,
    next: Vec<Look>,
    elements: Vec<u32>,
    /// By slot: which place in the result it has in this lookup.
    ranks: Vec<Rank>,
    lookup: u32,
}

/// Who holds one place of the sequence.
#[derive(Clone, Copy)]
struct Look {
    position: u32,
    set: SetRef,
    /// False until it was looked at.
    is_done: bool,
}

#[derive(Clone, Copy, Default)]
struct Rank {
    lookup: u32,
    at: u32,
}

/// In the place of a rank: the slot belongs to nobody.
const NOBODY: u32 = u32::MAX;

/// Brings `out` to the overlaps of `sequence`.
pub(crate) fn overlap(shared: &Shared, sequence: &[SequenceHash], out: &mut Overlaps) {
    out.found.clear();
    if sequence.is_empty() {
        return;
    }
    for attempt in 1..=ATTEMPTS {
        let reuses = shared.published.reuses();
        let view = shared.published.view();
        look_everywhere(shared, &view, sequence, &mut out.scratch);
        let complete = collect(shared, &view, out);
        // Where a slot was given away meanwhile, its blocks may be another worker's.
        let unmixed = shared.published.reuses() == reuses;
        if unmixed && (complete || attempt == ATTEMPTS) {
            return;
        }
        out.found.clear();
    }
}

/// Looks at places until neighbours have the same holders or no place between them.
fn look_everywhere(shared: &Shared, view: &View, sequence: &[SequenceHash], scratch: &mut Scratch) {
    let last = sequence.len() as u32 - 1;
    let Scratch { looks, next, .. } = scratch;
    looks.clear();
    let look = |position| Look { position, set: SetRef::EMPTY, is_done: false };
    looks.push(look(0));
    spread(looks, 0, last, LOOKS as u32 - 2);
    if last > 0 {
        looks.push(look(last));
    }
    loop {
        find(shared, view, sequence, looks);
        let gaps = looks.windows(2).filter(|pair| is_gap(pair)).count();
        if gaps == 0 {
            return;
        }
        let most = (LOOKS / gaps).max(1) as u32;
        next.clear();
        for pair in looks.windows(2) {
            next.push(pair[0]);
            if is_gap(pair) {
                spread(next, pair[0].position, pair[1].position, most);
            }
        }
        next.extend(looks.last());
        std::mem::swap(looks, next);
    }
}

/// Whether something is to be found out between two neighbours.
fn is_gap(pair: &[Look]) -> bool {
    pair[0].set != pair[1].set && pair[1].position - pair[0].position > 1
}

/// Adds up to `most` places between two, at even distances.
fn spread(looks: &mut Vec<Look>, from: u32, to: u32, most: u32) {
    let between = (to - from).saturating_sub(1);
    let count = most.min(between);
    for number in 1..=count {
        let step = u64::from(to - from) * u64::from(number) / u64::from(count + 1);
        looks.push(Look { position: from + step as u32, set: SetRef::EMPTY, is_done: false });
    }
}

/// Looks at all places that were not looked at yet.
fn find(shared: &Shared, view: &View, sequence: &[SequenceHash], looks: &mut [Look]) {
    let place = |look: &Look| {
        let key = sequence[look.position as usize].0;
        let (shard, place) = shared.layout.place(key);
        let table = &*view.tables[shard];
        (table, Path::new(place, table.len()), key)
    };
    table::fetch(looks.iter().filter(|look| !look.is_done).map(place), false);
    let mut deeper = SetRef::EMPTY;
    for look in looks.iter_mut().rev() {
        if !look.is_done {
            let (table, path, key) = place(look);
            look.set = table::find(table, path, key);
            look.is_done = true;
        }
        if look.set == SetRef::EMPTY {
            look.set = deeper;
        }
        deeper = look.set;
    }
}

/// Sums up per worker, from the deepest place to the first; false if a set is gone.
fn collect(shared: &Shared, view: &View, out: &mut Overlaps) -> bool {
    out.scratch.start(view.slots());
    let Overlaps { found, scratch } = out;
    let (mut complete, mut end) = (true, scratch.looks.len());
    while end > 0 {
        let deepest = scratch.looks[end - 1];
        let same = |look: &Look| look.set == deepest.set;
        let first = scratch.looks[..end].iter().rposition(|look| !same(look));
        let (first, before) = first.map_or((0, 0), |at| (at + 1, scratch.looks[at].position + 1));
        end = first;
        if deepest.set == SetRef::EMPTY {
            continue;
        }
        if !shared.sets.copy(deepest.set, &mut scratch.elements) {
            complete = false;
            continue;
        }
        add(view, found, scratch, deepest.position + 1, deepest.position + 1 - before);
    }
    fill_holes(found);
    complete
}

/// Counts `blocks` blocks, the last of them the `depth`th, for all elements in the scratch.
fn add(view: &View, found: &mut Vec<Found>, scratch: &mut Scratch, depth: u32, blocks: u32) {
    let mut counted = None;
    for &element in &scratch.elements {
        let slot = elements::slot(element);
        let medium = match elements::state(element) {
            State::Reported(medium) => medium,
            // What was reported, and stands before it, says more.
            State::Predicted if counted == Some(slot) => continue,
            State::Predicted => Medium::Device,
        };
        counted = Some(slot);
        let Some(rank) = scratch.ranks.get_mut(slot as usize) else { continue };
        if rank.lookup != scratch.lookup {
            let at = view.worker(slot).map_or(NOBODY, |worker| {
                found.push(Found { worker, overlap: Default::default(), depth });
                found.len() as u32 - 1
            });
            *rank = Rank { lookup: scratch.lookup, at };
        }
        if let Some(found) = found.get_mut(rank.at as usize) {
            found.overlap.count(medium, blocks);
        }
    }
}

/// What was missing before a block that a worker holds counts as the farthest of what it has.
fn fill_holes(found: &mut [Found]) {
    for found in found {
        let missing = found.depth.saturating_sub(found.overlap.blocks());
        if missing > 0 {
            found.overlap.count(found.overlap.farthest(), missing);
        }
    }
}

impl Scratch {
    /// Makes all ranks those of an earlier lookup.
    fn start(&mut self, slots: usize) {
        self.lookup = self.lookup.wrapping_add(1);
        if self.lookup == 0 {
            self.ranks.clear();
            self.lookup = 1;
        }
        if self.ranks.len() < slots {
            self.ranks.resize(slots, Rank::default());
        }
    }
}
