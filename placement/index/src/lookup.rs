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
use crate::table::{Search, ones};
use crate::view::View;
use stator_protos::hash::SequenceHash;
use std::ops::Range;

/// Places looked at in one round: about what a core can have under way at once.
const LOOKS: usize = 32;
// A round keeps a bit for each.
const _: () = assert!(LOOKS <= u32::BITS as usize);
/// Times that a lookup starts over because what it read was freed meanwhile. The last one passes
/// over what is gone.
const ATTEMPTS: usize = 8;

/// Memory that a lookup reuses.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Where runs of equal holders end, from the first to the deepest.
    ends: Vec<Look>,
    gaps: Vec<Gap>,
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
#[derive(Clone, Copy, Default)]
struct Gap {
    from: Look,
    to: Look,
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
    let Scratch { ends, gaps, .. } = scratch;
    ends.clear();
    gaps.clear();
    let mut round = Round::new(&shared.layout, view, sequence);
    round.begin();
    loop {
        round.find();
        round.narrow(ends, gaps);
        if gaps.is_empty() {
            break;
        }
        round.take(gaps);
    }
    ends.sort_unstable_by_key(|end| end.depth);
}

/// Gaps, and the looks that are taken into them together.
struct Round<'v> {
    layout: &'v Layout,
    view: &'v View,
    sequence: &'v [SequenceHash],
    gaps: [Gap; LOOKS],
    /// Where the looks into each gap end.
    ends: [usize; LOOKS],
    gap_count: usize,
    looks: [Look; LOOKS],
    searches: [Search<'v>; LOOKS],
}

impl<'v> Round<'v> {
    fn new(layout: &'v Layout, view: &'v View, sequence: &'v [SequenceHash]) -> Self {
        Self {
            layout,
            view,
            sequence,
            gaps: [Gap::default(); LOOKS],
            ends: [0; LOOKS],
            gap_count: 0,
            looks: [Look::default(); LOOKS],
            searches: [Search::default(); LOOKS],
        }
    }

    /// The whole sequence: its first block, its last, and more at even distances.
    fn begin(&mut self) {
        let last = self.sequence.len() as u32;
        self.look_at(0, 1);
        let mut count = self.look_between(1, 1, last, LOOKS - 2);
        if last > 1 {
            self.look_at(count, last);
            count += 1;
        }
        self.gaps[0] = Gap { from: Look::default(), to: Look::at(last + 1) };
        self.ends[0] = count;
        self.gap_count = 1;
    }

    /// The last of `gaps`, as many as can be.
    fn take(&mut self, gaps: &mut Vec<Gap>) {
        let first = gaps.len().saturating_sub(LOOKS);
        let (most, mut count) = (looks_per_gap(&gaps[first..]), 0);
        self.gap_count = gaps.len() - first;
        for (number, gap) in gaps.drain(first..).enumerate() {
            count = self.look_between(count, gap.from.depth, gap.to.depth, most);
            self.gaps[number] = gap;
            self.ends[number] = count;
        }
    }

    /// Up to `most` looks between two blocks, at even distances, from the look of number `first`
    /// on. Returns the number of the next.
    #[inline]
    fn look_between(&mut self, first: usize, from: u32, to: u32, most: usize) -> usize {
        let count = most.min((to - from).saturating_sub(1) as usize);
        // A fixed-point number, so that one division is enough.
        let stride = (u64::from(to - from) << 32) / (count as u64 + 1);
        let mut at = u64::from(from) << 32;
        for number in first..first + count {
            at += stride;
            self.look_at(number, (at >> 32) as u32);
        }
        first + count
    }

    /// Starts to fetch the block from memory too, so that the processor waits once for all looks
    /// of a round and not for each.
    #[inline(always)]
    fn look_at(&mut self, number: usize, depth: u32) {
        let SequenceHash(key) = self.sequence[depth as usize - 1];
        let (shard, place) = self.layout.place(key);
        let search = Search::new(self.view.table(shard), place, key);
        search.fetch();
        self.looks[number] = Look::at(depth);
        self.searches[number] = search;
    }

    /// Finds who holds the blocks, as far as that matters.
    fn find(&mut self) {
        let (mut first, mut farther) = (0, 0);
        for number in 0..self.gap_count {
            let (Gap { from, to }, end) = (self.gaps[number], self.ends[number]);
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

    /// Looks of which the places where their blocks should be do not tell, given what was found
    /// before and after them: whoever holds both holds these blocks too. Where they differ, starts
    /// to fetch the next places, and returns a bit for each look.
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
        for (gap, &end) in self.gaps[..self.gap_count].iter().zip(&self.ends) {
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
    let most = LOOKS / gaps.len().max(1);
    // So many divide a gap into parts so wide that as many again leave nothing of them.
    let two_rounds = width.saturating_sub(1).isqrt();
    if most + 1 < width && most > two_rounds { two_rounds } else { most }
}

/// Sums up per worker, from the first block to the deepest; false if a set is gone.
fn collect(shared: &Shared, view: &View, out: &mut Overlaps) -> bool {
    out.scratch.start(view.slots());
    let Overlaps { found, scratch } = out;
    let (mut complete, mut missing, mut before) = (true, 0, 0);
    for number in 0..scratch.ends.len() {
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

/// Counts the blocks after the `before`th up to the `depth`th for all elements in the scratch.
/// Returns how many blocks before them are missing, of all workers together.
#[inline(never)]
fn add(view: &View, found: &mut Vec<Found>, scratch: &mut Scratch, before: u32, depth: u32) -> u64 {
    let Scratch { elements, ranks, lookup, .. } = scratch;
    let mut missing = 0;
    for &element in &*elements {
        let (slot, medium) = (elements::slot(element), elements::medium(element));
        let Some(rank) = ranks.get_mut(slot as usize) else { continue };
        if rank.lookup != *lookup {
            *rank = Rank { lookup: *lookup, at: NOBODY };
            let Some(worker) = view.worker(slot) else { continue };
            rank.at = found.len() as u32;
            found.push(Found { worker, overlap: Overlap::of(medium, depth - before), depth });
            missing += u64::from(before);
        } else if let Some(found) = found.get_mut(rank.at as usize)
            // What was reported stands before what was predicted, and says more.
            && found.depth != depth
        {
            found.overlap.count(medium, depth - before);
            missing += u64::from(before - found.depth);
            found.depth = depth;
        }
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
