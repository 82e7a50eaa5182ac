//! Blocks that arrive in frames, in any order and over several connections.

use std::cmp::min;

/// A part of a block that travels in one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameRange {
    /// Place of the block.
    pub place: u32,
    /// First byte within the block.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
}

/// Progress that a frame made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Nobody waits for this frame.
    Unexpected,
    /// The block lacks other frames.
    Part,
    /// The block is whole now.
    Whole,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrameState {
    Missing,
    Asked,
    Arrived,
}

/// Frames of the blocks of one transfer: which are missing, asked for, and there.
#[derive(Debug)]
pub struct Assembly {
    block_bytes: usize,
    frame_bytes: usize,
    /// The frames of all blocks, in order.
    frames: Vec<FrameState>,
    /// Frames that each block lacks.
    lacking: Vec<usize>,
    /// No frame before this one is missing.
    next: usize,
    asked: usize,
}

impl Assembly {
    /// Expects so many blocks, each in frames of `frame_bytes`; the last of a block may be shorter.
    ///
    /// # Panics
    ///
    /// Blocks or frames have no bytes.
    pub fn new(blocks: usize, block_bytes: usize, frame_bytes: usize) -> Self {
        assert!(block_bytes > 0 && frame_bytes > 0, "blocks and frames have bytes");
        let in_block = block_bytes.div_ceil(frame_bytes);
        Self {
            block_bytes,
            frame_bytes,
            frames: vec![FrameState::Missing; blocks * in_block],
            lacking: vec![in_block; blocks],
            next: 0,
            asked: 0,
        }
    }

    /// The first missing frame, which counts as asked for from now on.
    pub fn ask(&mut self) -> Option<FrameRange> {
        let missing = |state: &FrameState| *state == FrameState::Missing;
        let at = self.next + self.frames[self.next..].iter().position(missing)?;
        self.frames[at] = FrameState::Asked;
        self.asked += 1;
        self.next = at + 1;
        Some(self.range(at))
    }

    /// A frame that was asked for will not come: it is missing again.
    pub fn lost(&mut self, range: FrameRange) {
        if let Some(at) = self.asked_at(range) {
            self.frames[at] = FrameState::Missing;
            self.asked -= 1;
            self.next = min(self.next, at);
        }
    }

    /// A frame has arrived whole and genuine.
    pub fn arrived(&mut self, range: FrameRange) -> Arrival {
        let Some(at) = self.asked_at(range) else { return Arrival::Unexpected };
        self.frames[at] = FrameState::Arrived;
        self.asked -= 1;
        let lacking = &mut self.lacking[range.place as usize];
        *lacking -= 1;
        if *lacking == 0 { Arrival::Whole } else { Arrival::Part }
    }

    /// Forgets what has arrived of a block, none of whose frames is asked for.
    pub fn forget(&mut self, place: usize) {
        let in_block = self.in_block();
        let start = place * in_block;
        self.frames[start..start + in_block].fill(FrameState::Missing);
        self.lacking[place] = in_block;
        self.next = min(self.next, start);
    }

    /// Expects only the first `blocks` blocks any more.
    pub fn truncate(&mut self, blocks: usize) {
        self.frames.truncate(blocks * self.in_block());
        self.lacking.truncate(blocks);
        self.asked = self.frames.iter().filter(|state| **state == FrameState::Asked).count();
        self.next = min(self.next, self.frames.len());
    }

    /// Whether the block at this place is whole.
    pub fn is_whole(&self, place: usize) -> bool {
        self.lacking[place] == 0
    }

    /// Place of the first block that is not whole.
    pub fn first_lacking(&self) -> Option<usize> {
        self.lacking.iter().position(|lacking| *lacking > 0)
    }

    /// Frames that were asked for and have neither arrived nor been lost.
    pub fn asked(&self) -> usize {
        self.asked
    }

    fn in_block(&self) -> usize {
        self.block_bytes.div_ceil(self.frame_bytes)
    }

    fn range(&self, at: usize) -> FrameRange {
        let (place, frame) = (at / self.in_block(), at % self.in_block());
        let offset = frame * self.frame_bytes;
        let len = min(self.frame_bytes, self.block_bytes - offset);
        FrameRange { place: place as u32, offset: offset as u32, len: len as u32 }
    }

    /// Index of a frame that is asked for.
    fn asked_at(&self, range: FrameRange) -> Option<usize> {
        let frame = range.offset as usize / self.frame_bytes;
        let at = (range.place as usize).checked_mul(self.in_block())?.checked_add(frame)?;
        let asked = *self.frames.get(at)? == FrameState::Asked;
        (asked && self.range(at) == range).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Every byte of every block, in one of three sets.
    #[derive(Default)]
    struct Model {
        missing: BTreeSet<(u32, u32)>,
        asked: BTreeSet<(u32, u32)>,
        arrived: BTreeSet<(u32, u32)>,
    }

    fn bytes(range: FrameRange) -> impl Iterator<Item = (u32, u32)> {
        (range.offset..range.offset + range.len).map(move |byte| (range.place, byte))
    }

    #[test]
    fn frames_that_nobody_asked_for_are_unexpected() {
        let mut assembly = Assembly::new(1, 10, 4);
        let first = assembly.ask().unwrap();
        assert_eq!(first, FrameRange { place: 0, offset: 0, len: 4 });
        let wrong = [(0, 4, 4), (0, 0, 3), (0, 1, 4), (1, 0, 4), (u32::MAX, 0, 4)];
        for (place, offset, len) in wrong {
            let range = FrameRange { place, offset, len };
            assert_eq!(assembly.arrived(range), Arrival::Unexpected, "{range:?}");
        }
        assert_eq!(assembly.arrived(first), Arrival::Part);
        assert_eq!(assembly.arrived(first), Arrival::Unexpected);
    }

    #[test]
    fn a_forgotten_block_is_asked_for_again() {
        let mut assembly = Assembly::new(2, 4, 4);
        for _ in 0..2 {
            let range = assembly.ask().unwrap();
            assert_eq!(assembly.arrived(range), Arrival::Whole);
        }
        assembly.forget(0);
        assert_eq!(assembly.first_lacking(), Some(0));
        assert_eq!(assembly.ask().map(|range| range.place), Some(0));
        assert_eq!(assembly.ask(), None);
    }

    proptest! {
        /// Each byte is asked for until it arrives, whatever is lost on the way, once at a time and
        /// in order.
        #[test]
        fn agrees_with_a_set_of_bytes(
            blocks in 0..4_usize,
            block_bytes in 1..20_usize,
            frame_bytes in 1..24_usize,
            steps in vec((0..4_u8, any::<prop::sample::Index>()), 0..100),
        ) {
            let mut assembly = Assembly::new(blocks, block_bytes, frame_bytes);
            let mut model = Model::default();
            for place in 0..blocks as u32 {
                model.missing.extend((0..block_bytes as u32).map(|byte| (place, byte)));
            }
            let mut asked: Vec<FrameRange> = Vec::new();
            for (step, index) in steps {
                if step < 2 {
                    let range = assembly.ask();
                    prop_assert_eq!(range.is_none(), model.missing.is_empty());
                    let Some(range) = range else { continue };
                    prop_assert!(range.len as usize <= frame_bytes && range.len > 0);
                    prop_assert_eq!(bytes(range).next(), model.missing.first().copied());
                    for byte in bytes(range) {
                        prop_assert!(model.missing.remove(&byte));
                        model.asked.insert(byte);
                    }
                    asked.push(range);
                } else if !asked.is_empty() {
                    let range = asked.swap_remove(index.index(asked.len()));
                    let to = if step == 2 { &mut model.arrived } else { &mut model.missing };
                    to.extend(bytes(range));
                    model.asked.retain(|byte| !bytes(range).any(|gone| gone == *byte));
                    if step == 2 {
                        let there = model.arrived.iter().filter(|byte| byte.0 == range.place);
                        let is_whole = there.count() == block_bytes;
                        let expected = if is_whole { Arrival::Whole } else { Arrival::Part };
                        prop_assert_eq!(assembly.arrived(range), expected);
                    } else {
                        assembly.lost(range);
                    }
                }
                prop_assert_eq!(assembly.asked(), asked.len());
                let whole = |place: usize| {
                    model.arrived.iter().filter(|byte| byte.0 as usize == place).count() == block_bytes
                };
                prop_assert_eq!(assembly.first_lacking(), (0..blocks).find(|place| !whole(*place)));
                prop_assert!((0..blocks).all(|place| assembly.is_whole(place) == whole(place)));
            }
        }
    }
}
