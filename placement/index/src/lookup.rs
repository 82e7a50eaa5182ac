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
use crate::elements;
use crate::lane::Shared;
use crate::overlap::{Found, Overlap, Overlaps};
use crate::table::{self, MAX_PROBES, Path};
use crate::view::View;
use stator_protos::hash::SequenceHash;

/// Places looked at in one round: about what a core can have under way at once.
const LOOKS: usize = 8;
/// Times that a lookup starts over because what it read was freed meanwhile. The last one passes
/// over what is gone.
const ATTEMPTS: usize = 8;

/// Memory that a lookup reuses.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Where runs of equal holders end, from the first to the deepest.
    ends: Vec<Look>,
    gaps: Vec<Gap>,
    next_gaps: Vec<Gap>,
    searches: Vec<Search>,
    elements: Vec<u32>,
    /// By slot: which place in the result it has in this lookup.
    ranks: Vec<Rank>,
    lookup: u32,
}

/// Who holds one block of the sequence.
#[derive(Clone, Copy, Default)]
struct Look {
    /// Number of the block, the first being 1; 0 stands before it and is held by everyone.
    depth: u32,
    set: SetRef,
}

/// Blocks between two that have unlike holders.
#[derive(Clone, Copy)]
struct Gap {
    from: Look,
    to: Look,
    /// How many of them are looked at next.
    looks: usize,
}

/// A look under way.
#[derive(Clone, Copy, Default)]
struct Search {
    look: Look,
    key: u64,
    path: Path,
    shard: u32,
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

/// Looks at blocks until neighbours have the same holders or no block between them.
fn look_everywhere(shared: &Shared, view: &View, sequence: &[SequenceHash], scratch: &mut Scratch) {
    let Scratch { ends, gaps, next_gaps, searches, .. } = scratch;
    ends.clear();
    gaps.clear();
    searches.clear();
    let last = sequence.len() as u32;
    let add = |depth| searches.push(Search::at(depth));
    [1].into_iter().chain(between(1, last, LOOKS - 2)).for_each(add);
    searches.extend((last > 1).then(|| Search::at(last)));
    let to = Look { depth: last + 1, set: SetRef::EMPTY };
    gaps.push(Gap { from: Look::default(), to, looks: searches.len() });
    while !searches.is_empty() {
        find(shared, view, sequence, searches);
        next_gaps.clear();
        let mut found = &searches[..];
        for gap in &*gaps {
            let (own, others) = found.split_at(gap.looks);
            narrow(gap, own, ends, next_gaps);
            found = others;
        }
        std::mem::swap(gaps, next_gaps);
        searches.clear();
        let most = LOOKS.checked_div(gaps.len()).unwrap_or(0).max(1);
        for gap in &mut *gaps {
            let known = searches.len();
            searches.extend(between(gap.from.depth, gap.to.depth, most).map(Search::at));
            gap.looks = searches.len() - known;
        }
    }
    ends.sort_unstable_by_key(|end| end.depth);
}

/// Divides a gap by what was found in it. A block that nobody was found to hold counts as the next
/// deeper one.
fn narrow(gap: &Gap, found: &[Search], ends: &mut Vec<Look>, gaps: &mut Vec<Gap>) {
    let mut to = gap.to;
    let found = found.iter().rev().map(|search| search.look);
    for mut from in found.chain([gap.from]) {
        if from.set == SetRef::EMPTY {
            from.set = to.set;
        }
        // Everyone is before the first block, whatever set stands there.
        if from.depth > 0 && from.set != to.set {
            match to.depth - from.depth {
                1 => ends.push(from),
                _ => gaps.push(Gap { from, to, looks: 0 }),
            }
        }
        to = from;
    }
}

/// Up to `most` blocks between two, at even distances.
fn between(from: u32, to: u32, most: usize) -> impl Iterator<Item = u32> {
    let count = (most as u32).min((to - from).saturating_sub(1));
    // A fixed-point number, so that one division is enough.
    let stride = (u64::from(to - from) << 32) / u64::from(count + 1);
    (1..=u64::from(count)).map(move |number| from + ((number * stride) >> 32) as u32)
}

/// Finds who holds blocks, a step of all searches at a time, so that the processor waits
/// for memory once for each step and not for each place.
fn find(shared: &Shared, view: &View, sequence: &[SequenceHash], searches: &mut [Search]) {
    let mut touched = 0;
    for search in &mut *searches {
        search.key = sequence[search.look.depth as usize - 1].0;
        let (shard, place) = shared.layout.place(search.key);
        let table = view.table(shard);
        search.path = Path::new(place, table);
        search.shard = shard as u32;
        touched ^= table::touch(table, search.path, 0);
    }
    for step in 0..MAX_PROBES {
        std::hint::black_box(std::mem::take(&mut touched));
        let mut all_done = true;
        for search in searches.iter_mut().filter(|search| !search.is_done) {
            let table = view.table(search.shard as usize);
            match table::look(table, search.path, search.key, step) {
                table::Look::Here(set) => search.look.set = set,
                table::Look::Absent => {}
                table::Look::Further => {
                    touched ^= table::touch(table, search.path, step + 1);
                    all_done = false;
                    continue;
                }
            }
            search.is_done = true;
        }
        if all_done {
            return;
        }
    }
}

/// Sums up per worker, from the deepest block to the first; false if a set is gone.
fn collect(shared: &Shared, view: &View, out: &mut Overlaps) -> bool {
    out.scratch.start(view.slots());
    let Overlaps { found, scratch } = out;
    let mut complete = true;
    for number in (0..scratch.ends.len()).rev() {
        let Look { depth, set } = scratch.ends[number];
        let before = if number > 0 { scratch.ends[number - 1].depth } else { 0 };
        if shared.sets.copy(set, &mut scratch.elements) {
            add(view, found, scratch, depth, depth - before);
        } else {
            complete = false;
        }
    }
    fill_holes(found);
    complete
}

/// Counts `blocks` blocks, the last of them the `depth`th, for all elements in the scratch.
fn add(view: &View, found: &mut Vec<Found>, scratch: &mut Scratch, depth: u32, blocks: u32) {
    let (lookup, mut counted) = (scratch.lookup, NOBODY);
    for &element in &scratch.elements {
        let slot = elements::slot(element);
        // What was reported stands before what was predicted, and says more.
        if std::mem::replace(&mut counted, slot) == slot {
            continue;
        }
        let Some(rank) = scratch.ranks.get_mut(slot as usize) else { continue };
        if rank.lookup != lookup {
            *rank = Rank { lookup, at: NOBODY };
            let Some(worker) = view.worker(slot) else { continue };
            rank.at = found.len() as u32;
            found.push(Found { worker, overlap: Overlap::default(), depth });
        }
        if let Some(found) = found.get_mut(rank.at as usize) {
            found.overlap.count(elements::medium(element), blocks);
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

impl Search {
    fn at(depth: u32) -> Self {
        Self { look: Look { depth, set: SetRef::EMPTY }, ..Self::default() }
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
