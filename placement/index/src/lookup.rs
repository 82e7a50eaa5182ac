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
use crate::layout::Layout;
use crate::overlap::{Found, Overlap, Overlaps};
use crate::table::{self, Bucket, Path};
use crate::view::View;
use stator_protos::hash::SequenceHash;

/// Places looked at in one round: about what a core can have under way at once.
const LOOKS: usize = 16;
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
    looks: Vec<Look>,
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

/// Where a block is looked for.
#[derive(Clone, Copy, Default)]
struct Search<'v> {
    table: &'v [Bucket],
    path: Path,
    key: u64,
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
    let Scratch { ends, gaps, next_gaps, looks, .. } = scratch;
    ends.clear();
    gaps.clear();
    looks.clear();
    let last = sequence.len() as u32;
    looks.push(Look::at(1));
    looks.extend(between(1, last, LOOKS - 2));
    looks.extend((last > 1).then(|| Look::at(last)));
    let to = Look::at(last + 1);
    let mut searches = [Search::default(); LOOKS];
    gaps.push(Gap { from: Look::default(), to, looks: looks.len() });
    while !looks.is_empty() {
        for looks in looks.chunks_mut(LOOKS) {
            let searches = &mut searches[..looks.len()];
            for (search, look) in searches.iter_mut().zip(&*looks) {
                *search = Search::new(&shared.layout, view, sequence[look.depth as usize - 1]);
            }
            find(searches, looks);
        }
        next_gaps.clear();
        let mut found = &looks[..];
        for gap in &*gaps {
            let (own, others) = found.split_at(gap.looks);
            narrow(gap, own, ends, next_gaps);
            found = others;
        }
        std::mem::swap(gaps, next_gaps);
        looks.clear();
        let most = looks_per_gap(gaps);
        for gap in &mut *gaps {
            let known = looks.len();
            looks.extend(between(gap.from.depth, gap.to.depth, most));
            gap.looks = looks.len() - known;
        }
    }
    ends.sort_unstable_by_key(|end| end.depth);
}

/// Divides a gap by what was found in it. A block that nobody was found to hold counts as the next
/// deeper one.
#[inline]
fn narrow(gap: &Gap, found: &[Look], ends: &mut Vec<Look>, gaps: &mut Vec<Gap>) {
    let mut to = gap.to;
    for &(mut from) in found.iter().rev().chain([&gap.from]) {
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
#[inline]
fn between(from: u32, to: u32, most: usize) -> impl Iterator<Item = Look> {
    let count = (most as u32).min((to - from).saturating_sub(1));
    // A fixed-point number, so that one division is enough.
    let stride = (u64::from(to - from) << 32) / u64::from(count + 1);
    (1..=count).map(move |number| Look::at(from + ((u64::from(number) * stride) >> 32) as u32))
}

/// Looks for each gap: as few as end the search as soon as [`LOOKS`] for all together do.
fn looks_per_gap(gaps: &[Gap]) -> usize {
    let width = gaps.iter().map(|gap| gap.to.depth - gap.from.depth).max().unwrap_or(0);
    let most = (LOOKS / gaps.len().max(1)).max(1);
    let (mut reach, mut rounds) = (1, 0);
    while reach < u64::from(width) {
        reach *= most as u64 + 1;
        rounds += 1;
    }
    let is_enough = |looks: &usize| (*looks as u64 + 1).pow(rounds) >= u64::from(width);
    (1..most).find(is_enough).unwrap_or(most)
}

/// Finds who holds blocks. First all are fetched from memory with loads that wait for nothing and
/// stand close to each other, so that the processor waits once and not for each.
fn find(searches: &[Search<'_>], looks: &mut [Look]) {
    let touch = |search: &Search<'_>| table::touch_pair(search.table, search.path);
    std::hint::black_box(searches.iter().fold(0, |touched, search| touched ^ touch(search)));
    for (look, search) in looks.iter_mut().zip(searches) {
        look.set = table::find(search.table, search.path, search.key);
    }
}

/// Sums up per worker, from the deepest block to the first; false if a set is gone.
fn collect(shared: &Shared, view: &View, out: &mut Overlaps) -> bool {
    out.scratch.start(view.slots());
    let Overlaps { found, scratch } = out;
    let (mut complete, mut missing) = (true, 0);
    for number in (0..scratch.ends.len()).rev() {
        let Look { depth, set } = scratch.ends[number];
        let before = if number > 0 { scratch.ends[number - 1].depth } else { 0 };
        if shared.sets.copy(set, &mut scratch.elements) {
            missing += add(view, found, scratch, depth, depth - before);
        } else {
            complete = false;
        }
    }
    if missing > 0 {
        fill_holes(found);
    }
    complete
}

/// Counts `blocks` blocks, the last of them the `depth`th, for all elements in the scratch.
/// Returns by how many more blocks are missing, of all workers together.
#[inline(never)]
fn add(view: &View, found: &mut Vec<Found>, scratch: &mut Scratch, depth: u32, blocks: u32) -> i64 {
    let Scratch { elements, ranks, lookup, .. } = scratch;
    let (mut counted, mut missing) = (NOBODY, 0);
    for &element in &*elements {
        let (slot, medium) = (elements::slot(element), elements::medium(element));
        // What was reported stands before what was predicted, and says more.
        if std::mem::replace(&mut counted, slot) == slot {
            continue;
        }
        let Some(rank) = ranks.get_mut(slot as usize) else { continue };
        if rank.lookup == *lookup {
            let Some(found) = found.get_mut(rank.at as usize) else { continue };
            found.overlap.count(medium, blocks);
        } else {
            *rank = Rank { lookup: *lookup, at: NOBODY };
            let Some(worker) = view.worker(slot) else { continue };
            rank.at = found.len() as u32;
            found.push(Found { worker, overlap: Overlap::of(medium, blocks), depth });
            missing += i64::from(depth);
        }
        missing -= i64::from(blocks);
    }
    missing
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

impl<'v> Search<'v> {
    #[inline]
    fn new(layout: &Layout, view: &'v View, SequenceHash(key): SequenceHash) -> Self {
        let (shard, place) = layout.place(key);
        let table = view.table(shard);
        Self { table, path: Path::new(place, table), key }
    }
}

impl Look {
    fn at(depth: u32) -> Self {
        Self { depth, set: SetRef::EMPTY }
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
