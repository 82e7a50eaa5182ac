use super::*;
use crate::SlotId;
use crate::arena::Arena;
use proptest::prelude::*;

const BLOCKS: u32 = 6;

/// Layouts of blocks of 24 bytes, so that pieces of both sides end at different places.
fn layouts() -> impl Strategy<Value = RegionLayout> {
    prop_oneof![
        (24u64..40).prop_map(|stride| RegionLayout::contiguous(24, stride)),
        prop::sample::select(vec![1u32, 2, 3, 4, 6, 8, 12, 24])
            .prop_map(|layers| RegionLayout::layer_first(layers, BLOCKS, 24 / u64::from(layers))),
        // Pieces of one block with gaps, block after block.
        (prop::sample::select(vec![2u32, 4, 8]), 0u64..5, 0u64..9).prop_map(
            |(pieces, gap, start)| {
                let piece_bytes = 24 / u64::from(pieces);
                let piece_stride = piece_bytes + gap;
                let block_stride = u64::from(pieces) * piece_stride;
                RegionLayout { start, block_stride, pieces, piece_bytes, piece_stride }
            }
        ),
    ]
}

fn copies() -> impl Strategy<Value = Vec<BlockCopy>> {
    let order = || Just((0..BLOCKS).collect::<Vec<_>>()).prop_shuffle();
    (order(), order(), 0..=BLOCKS as usize).prop_map(|(from, to, count)| {
        let pairs = from.into_iter().zip(to).take(count);
        pairs.map(|(from, to)| BlockCopy { from, to }).collect()
    })
}

/// Offset of a byte of a block, the obvious way.
fn byte(layout: &RegionLayout, block: u32, at: u64) -> usize {
    let (piece, rest) = (at / layout.piece_bytes, at % layout.piece_bytes);
    (layout.start + u64::from(block) * layout.block_stride + piece * layout.piece_stride + rest)
        as usize
}

fn region(layouts: [&RegionLayout; 2]) -> usize {
    let end = |layout: &RegionLayout| byte(layout, BLOCKS - 1, 23) + 1;
    layouts.map(end).into_iter().max().unwrap()
}

struct SliceCopy<'m>(&'m [u8], &'m mut [u8]);

impl PlanExecutor for SliceCopy<'_> {
    fn run(&mut self, plan: &CopyPlan) {
        for run in plan.runs() {
            let from = &self.0[run.from as usize..][..run.bytes as usize];
            self.1[run.to as usize..][..run.bytes as usize].copy_from_slice(from);
        }
    }
}

proptest! {
    #[test]
    fn a_plan_copies_what_a_copy_of_each_byte_does(
        copies in copies(), from in layouts(), to in layouts(),
    ) {
        let bytes = region([&from, &to]);
        let source: Vec<u8> = (0..bytes).map(|at| at as u8 ^ 0x5a).collect();
        let mut expected = vec![0; bytes];
        for copy in &copies {
            for at in 0..24 {
                expected[byte(&to, copy.to, at)] = source[byte(&from, copy.from, at)];
            }
        }
        let plan = CopyPlan::new(&copies, &from, &to);
        let mut copied = vec![0; bytes];
        SliceCopy(&source, &mut copied).run(&plan);
        prop_assert_eq!(&copied, &expected);
        prop_assert_eq!(plan.bytes(), 24 * copies.len() as u64);
        // No two neighbours could be one run.
        for pair in plan.runs().windows(2) {
            let [a, b] = pair else { unreachable!() };
            prop_assert!(a.from + a.bytes != b.from || a.to + a.bytes != b.to);
        }
    }

    #[test]
    fn blocks_come_back_from_the_arena(copies in copies(), engine in layouts()) {
        let arena = Arena::new(BLOCKS, 24).unwrap();
        let slots = RegionLayout::contiguous(24, arena.stride() as u64);
        let source: Vec<u8> = (0..region([&engine, &engine])).map(|at| at as u8).collect();
        CopyIn { from: &source, to: &arena }.run(&CopyPlan::new(&copies, &engine, &slots));
        for copy in &copies {
            let mut row = [0; 24];
            arena.read(SlotId(copy.to), &mut row);
            let expected: Vec<_> = (0..24).map(|at| source[byte(&engine, copy.from, at)]).collect();
            prop_assert_eq!(&row[..], &expected);
        }
        let back: Vec<_> = copies.iter().map(|copy| BlockCopy { from: copy.to, to: copy.from }).collect();
        let mut copied = vec![0; source.len()];
        CopyOut { from: &arena, to: &mut copied }.run(&CopyPlan::new(&back, &slots, &engine));
        for copy in &copies {
            for at in 0..24 {
                let at = byte(&engine, copy.from, at);
                prop_assert_eq!(copied[at], source[at]);
            }
        }
    }
}

fn consecutive(count: u32) -> Vec<BlockCopy> {
    (0..count).rev().map(|block| BlockCopy { from: block, to: block + 1 }).collect()
}

#[test]
fn neighbours_are_one_run() {
    let contiguous = RegionLayout::contiguous(24, 24);
    assert_eq!(
        CopyPlan::new(&consecutive(5), &contiguous, &contiguous).runs(),
        [CopyRun { from: 0, to: 24, bytes: 120 }]
    );
    // Blocks side by side in each layer, on both sides.
    let layered = RegionLayout::layer_first(2, BLOCKS, 12);
    assert_eq!(
        CopyPlan::new(&consecutive(5), &layered, &layered).runs(),
        [CopyRun { from: 0, to: 12, bytes: 60 }, CopyRun { from: 72, to: 84, bytes: 60 }]
    );
}

#[test]
fn a_block_of_an_arena_row_is_a_run_for_each_layer() {
    let layered = RegionLayout::layer_first(3, BLOCKS, 8);
    let row = RegionLayout::contiguous(24, 4096);
    let plan = CopyPlan::new(&[BlockCopy { from: 2, to: 1 }], &layered, &row);
    let runs = [(16, 4096), (64, 4104), (112, 4112)];
    assert_eq!(plan.runs(), runs.map(|(from, to)| CopyRun { from, to, bytes: 8 }));
}

#[test]
#[should_panic(expected = "blocks of")]
fn blocks_of_two_sizes_are_refused() {
    CopyPlan::new(&[], &RegionLayout::contiguous(24, 24), &RegionLayout::contiguous(25, 25));
}
