//! Finding how deep each worker goes: no locks, no allocation, a few looks instead of all.
//!
//! A worker that holds a block holds all before it, and on the same medium or a nearer one. So
//! where two places of a sequence have the same holders, all places between have them too, and
//! only between places that differ there is more to find out: each round looks at a few places
//! spread over those gaps, all fetched from memory side by side. The first round looks at the ends
//! of the sequence and where the holders of one that began alike changed: mostly that is enough.
//!
//! A block that nobody holds, with a deeper one that someone holds, was dropped for room. It
//! counts as held by those who hold the deeper one: they held it when they reported that one, and
//! have not reported it gone.

use crate::cell::SetRef;
use crate::elements;
use crate::guesses::{Guess, Guesses};
use crate::lane::Shared;
use crate::layout::Layout;
use crate::overlap::{Overlap, WorkerOverlap};
use crate::table::{Search, ones};
use crate::view::View;
use arrayvec::ArrayVec;
use stator_protos::WorkerRank;
use stator_protos::hash::SequenceHash;
use std::fmt;
use std::iter::once;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// Places looked at in one round: about what a core can have under way at once.
const LOOKS: usize = 32;
/// Places looked at in one gap: more rounds cost less than looks in vain.
const LOOKS_PER_GAP: usize = 12;
// A round keeps a bit for each.
const _: () = assert!(LOOKS <= u32::BITS as usize);
/// Times that a lookup starts over because what it read was freed meanwhile. The last one passes
/// over what is gone.
const ATTEMPTS: usize = 8;

/// Overlaps of one request with every worker that holds its first block. Keep one and pass it
/// again: its memory is reused.
#[derive(Default)]
pub struct Overlaps {
    found: Vec<WorkerOverlap>,
    scratch: Scratch,
}

impl Overlaps {
    /// The workers that hold at least one block, in no order, each once.
    pub fn iter(&self) -> impl Iterator<Item = (WorkerRank, Overlap)> {
        self.found.iter().map(|found| (found.worker, found.overlap))
    }

    /// The overlap of one worker, all zero if it holds nothing. Takes a look at each in turn.
    pub fn of(&self, worker: WorkerRank) -> Overlap {
        self.iter().find(|(found, _)| *found == worker).map_or_else(Overlap::default, |(_, o)| o)
    }
}

impl fmt::Debug for Overlaps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl FromIterator<(WorkerRank, Overlap)> for Overlaps {
    fn from_iter<I: IntoIterator<Item = (WorkerRank, Overlap)>>(overlaps: I) -> Self {
        let found = |(worker, overlap): (_, Overlap)| WorkerOverlap {
            worker,
            overlap,
            depth: overlap.blocks(),
            element: 0,
        };
        Self { found: overlaps.into_iter().map(found).collect(), ..Self::default() }
    }
}

/// Memory that a lookup reuses.
#[derive(Default)]
struct Scratch {
    /// Ends of runs of equal holders, from the first to the deepest.
    ends: Vec<Look>,
    gaps: Vec<Gap>,
    guesses: Guesses,
    elements: Vec<u32>,
    /// By slot: its place in the result, if the worker there has it.
    ranks: Vec<u32>,
    /// By whom the first blocks were held in the lookup before, and how many they are in its
    /// result: they come first there.
    beginning: Option<(Beginning, usize)>,
}

/// A set, and all that it depends on who is in it.
#[derive(Clone, Copy, PartialEq)]
struct Beginning {
    view: u64,
    /// A set's name comes back after a thousand of these.
    collections: u64,
    set: SetRef,
}

/// Holders of one block of the sequence.
#[derive(Clone, Copy, Default)]
struct Look {
    /// Number of the block, the first being 1; 0 stands before it and is held by everyone.
    depth: u32,
    set: SetRef,
}

/// Blocks between two that have unlike holders.
#[derive(Clone, Copy, Default)]
struct Gap {
    from: Look,
    to: Look,
}

/// Brings `out` to the overlaps of `sequence`.
pub(crate) fn overlap(shared: &Shared, sequence: &[SequenceHash], out: &mut Overlaps) {
    if sequence.is_empty() {
        return out.clear();
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
        out.clear();
    }
}

/// Looks at blocks until neighbours have the same holders or no block between them.
fn look_everywhere(shared: &Shared, view: &View, sequence: &[SequenceHash], scratch: &mut Scratch) {
    let Scratch { ends, gaps, guesses, .. } = scratch;
    ends.clear();
    gaps.clear();
    let guess = guesses.of(sequence[0]);
    let mut round = Round::new(&shared.layout, view, sequence, guess);
    round.look(ends, gaps);
    if ends.is_empty() && gaps.is_empty() && shared.has_dropped.load(Relaxed) {
        round.spread();
        round.look(ends, gaps);
    }
    while !gaps.is_empty() {
        round.take(gaps);
        round.look(ends, gaps);
    }
    ends.sort_unstable_by_key(|end| end.depth);
    guesses.note(sequence[0], ends.iter().map(|end| end.depth));
}

/// Gaps, and the looks that are taken into them together.
struct Round<'v> {
    layout: &'v Layout,
    view: &'v View,
    sequence: &'v [SequenceHash],
    /// Each with where the looks into it end.
    gaps: ArrayVec<(Gap, usize), LOOKS>,
    looks: ArrayVec<Look, LOOKS>,
    searches: ArrayVec<Search<'v>, LOOKS>,
}

impl<'v> Round<'v> {
    /// The whole sequence: its first block, those at the guessed ends and right after them, and
    /// its last.
    fn new(layout: &'v Layout, view: &'v View, sequence: &'v [SequenceHash], guess: Guess) -> Self {
        let (gaps, looks, searches) = Default::default();
        let mut round = Self { layout, view, sequence, gaps, looks, searches };
        let last = sequence.len() as u32;
        let around = guess.ends.into_iter().flat_map(|end| [end, end + 1]);
        let mut before = 0;
        for depth in once(1).chain(around.filter(|depth| *depth < last)).chain(once(last)) {
            if depth > before {
                round.look_at(depth);
                before = depth;
            }
        }
        round.add(Gap { from: Look::default(), to: Look::at(last + 1) });
        round
    }

    /// The whole sequence again, at even distances: its beginning is what a full index drops first,
    /// and its end may be new.
    fn spread(&mut self) {
        self.clear();
        let last = self.sequence.len() as u32;
        self.look_between(1, last, LOOKS);
        self.add(Gap { from: Look::default(), to: Look::at(last + 1) });
    }

    /// The last of `gaps`, as many as can be.
    fn take(&mut self, gaps: &mut Vec<Gap>) {
        let first = gaps.len().saturating_sub(LOOKS);
        let most = looks_per_gap(&gaps[first..]);
        self.clear();
        for gap in gaps.drain(first..) {
            self.look_between(gap.from.depth, gap.to.depth, most);
            self.add(gap);
        }
    }

    fn clear(&mut self) {
        self.gaps.clear();
        self.looks.clear();
        self.searches.clear();
    }

    /// The gap that the looks since the one before it are taken into.
    fn add(&mut self, gap: Gap) {
        self.gaps.push((gap, self.looks.len()));
    }

    /// Up to `most` looks between two blocks, at even distances.
    #[inline]
    fn look_between(&mut self, from: u32, to: u32, most: usize) {
        let count = most.min((to - from).saturating_sub(1) as usize);
        // A fixed-point number, so that one division is enough.
        let stride = (u64::from(to - from) << 32) / (count as u64 + 1);
        let mut at = u64::from(from) << 32;
        for _ in 0..count {
            at += stride;
            self.look_at((at >> 32) as u32);
        }
    }

    /// Starts to fetch the block from memory too, so that the processor waits once for all looks
    /// of a round and not for each.
    #[inline(always)]
    fn look_at(&mut self, depth: u32) {
        let SequenceHash(key) = self.sequence[depth as usize - 1];
        let (shard, place) = self.layout.place(key);
        let search = Search::new(self.view.table(shard), place, key);
        search.fetch();
        self.looks.push(Look::at(depth));
        self.searches.push(search);
    }

    /// Finds who holds the blocks, and divides the gaps by it.
    fn look(&mut self, ends: &mut Vec<Look>, gaps: &mut Vec<Gap>) {
        self.find();
        self.narrow(ends, gaps);
    }

    /// Finds who holds the blocks, as far as that matters.
    fn find(&mut self) {
        let (mut first, mut farther) = (0, 0);
        for number in 0..self.gaps.len() {
            let (Gap { from, to }, end) = self.gaps[number];
            let (mut before, mut unknown) = (from.set, first);
            for number in first..end {
                if let Some(set) = self.searches[number].at_home() {
                    self.looks[number].set = set;
                    farther |= self.fill(unknown..number, before, set);
                    (before, unknown) = (set, number + 1);
                }
            }
            farther |= self.fill(unknown..end, before, to.set);
            first = end;
        }
        for number in ones(farther) {
            self.looks[number].set = self.searches[number].further();
        }
    }

    /// Settles looks whose blocks are not at their first places, given the holders before and after
    /// them: workers that hold both ends hold these blocks too. If the ends differ, starts to fetch
    /// the next places, and returns a bit for each look.
    #[inline(always)]
    fn fill(&mut self, looks: Range<usize>, before: SetRef, after: SetRef) -> u32 {
        let mut farther = 0;
        for number in looks {
            if before == after && before != SetRef::EMPTY {
                self.looks[number].set = before;
            } else {
                self.searches[number].fetch_further();
                farther |= 1 << number;
            }
        }
        farther
    }

    /// Divides the gaps by what was found in them. A block that nobody was found to hold counts
    /// as the next deeper one.
    fn narrow(&self, ends: &mut Vec<Look>, gaps: &mut Vec<Gap>) {
        let mut first = 0;
        for &(gap, end) in &self.gaps {
            let mut to = gap.to;
            for &look in self.looks[first..end].iter().rev() {
                to = divide(look, to, ends, gaps);
            }
            if gap.from.depth > 0 {
                divide(gap.from, to, ends, gaps);
            }
            first = end;
        }
    }
}

/// Notes what is between two neighbouring looks; returns the first, as it counts.
#[inline]
fn divide(from: Look, to: Look, ends: &mut Vec<Look>, gaps: &mut Vec<Gap>) -> Look {
    if from.set == to.set || from.set == SetRef::EMPTY {
        return Look { set: to.set, ..from };
    }
    match to.depth - from.depth {
        1 => ends.push(from),
        _ => gaps.push(Gap { from, to }),
    }
    from
}

/// Looks for each of some gaps: as few as end the search as soon as [`LOOKS`] for all do.
fn looks_per_gap(gaps: &[Gap]) -> usize {
    let width = gaps.iter().map(|gap| gap.to.depth - gap.from.depth).max().unwrap_or(0) as usize;
    let most = (LOOKS / gaps.len().max(1)).min(LOOKS_PER_GAP);
    // So many divide a gap into parts so wide that as many again leave nothing of them.
    let two_rounds = width.saturating_sub(1).isqrt();
    if most + 1 < width && most > two_rounds { two_rounds } else { most }
}

/// Sums up per worker, from the first block to the deepest; false if a set is gone.
fn collect(shared: &Shared, view: &View, out: &mut Overlaps) -> bool {
    let Some(&first) = out.scratch.ends.first() else {
        out.clear();
        return true;
    };
    let mut complete = start(shared, view, out, first);
    let Overlaps { found, scratch } = out;
    let (mut missing, mut before) = (0, first.depth);
    for number in 1..scratch.ends.len() {
        let Look { depth, set } = scratch.ends[number];
        if shared.sets.copy(set, &mut scratch.elements) {
            missing += add(view, found, scratch, before, depth);
        } else {
            complete = false;
        }
        before = depth;
    }
    if missing > 0 {
        fill_holes(found);
    }
    complete
}

/// Counts the blocks up to the first end. Prompts that begin alike are mostly held alike up to
/// there: who holds them is mostly known from the lookup before.
fn start(shared: &Shared, view: &View, out: &mut Overlaps, Look { depth, set }: Look) -> bool {
    let Overlaps { found, scratch } = out;
    let beginning = Beginning { view: view.number(), collections: shared.sets.collections(), set };
    if let Some((_, count)) = scratch.beginning.filter(|(known, _)| *known == beginning) {
        found.truncate(count);
        for found in found {
            found.overlap = Overlap::of(elements::medium(found.element), depth);
            found.depth = depth;
        }
        return true;
    }
    found.clear();
    scratch.beginning = None;
    scratch.ranks.resize(view.slots(), 0);
    let is_there = shared.sets.copy(set, &mut scratch.elements);
    if is_there {
        add(view, found, scratch, 0, depth);
        scratch.beginning = Some((beginning, found.len()));
    }
    is_there
}

/// Counts the blocks after the `before`th up to the `depth`th for all elements in the scratch.
/// Returns how many blocks before them are missing, of all workers together.
#[inline(never)]
fn add(
    view: &View,
    found: &mut Vec<WorkerOverlap>,
    scratch: &mut Scratch,
    before: u32,
    depth: u32,
) -> u64 {
    let Scratch { elements, ranks, .. } = scratch;
    let mut missing = 0;
    found.reserve(elements.len());
    for &element in &*elements {
        let (slot, medium) = (elements::slot(element), elements::medium(element));
        let Some(rank) = ranks.get_mut(slot as usize) else { continue };
        match found.get_mut(*rank as usize).filter(|found| elements::slot(found.element) == slot) {
            None => {
                let Some(worker) = view.worker(slot) else { continue };
                *rank = found.len() as u32;
                let overlap = Overlap::of(medium, depth - before);
                found.push(WorkerOverlap { worker, overlap, depth, element });
                missing += u64::from(before);
            }
            // What was reported stands before what was predicted, and says more.
            Some(found) if found.depth == depth => {}
            Some(found) => {
                found.overlap.count(medium, depth - before);
                missing += u64::from(before - found.depth);
                found.depth = depth;
            }
        }
    }
    missing
}

/// Counts missing blocks before a block that a worker holds as on the farthest of its media.
fn fill_holes(found: &mut [WorkerOverlap]) {
    for found in found {
        let missing = found.depth.saturating_sub(found.overlap.blocks());
        if missing > 0 {
            found.overlap.count(found.overlap.farthest(), missing);
        }
    }
}

impl Overlaps {
    fn clear(&mut self) {
        self.found.clear();
        self.scratch.beginning = None;
    }
}

impl Look {
    fn at(depth: u32) -> Self {
        Self { depth, set: SetRef::EMPTY }
    }
}
