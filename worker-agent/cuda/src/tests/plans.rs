//! Plans against the byte-by-byte model.

use super::{any_layout, any_pairs, any_shape, model, pattern};
use crate::fake::copy_runs;
use crate::fold::{PagePair, plan};
use crate::layout::{KvLayout, PageOrder, PageShape};
use crate::reshard::{heads_of, reshard};
use crate::runs::CopyRun;
use proptest::prelude::*;

const PAGES: u32 = 6;

pub(super) fn pairs_of(pairs: &[(u32, u32)]) -> Vec<PagePair> {
    pairs.iter().map(|&(from, to)| PagePair { from, to }).collect()
}

proptest! {
    #[test]
    fn plans_copy_what_the_model_copies(
        (from, to, pairs) in any_shape().prop_flat_map(|shape| {
            (any_layout(shape, PAGES), any_layout(shape, PAGES), any_pairs(PAGES))
        })
    ) {
        let source = pattern(1, from.end());
        let (mut target, mut expected) = (pattern(2, to.end()), pattern(2, to.end()));
        let runs = plan(&from, &to, &pairs_of(&pairs)).unwrap();
        copy_runs(&runs, &source, &mut target);
        model((&from, &source), (&to, &mut expected), &pairs);
        prop_assert!(target == expected);
        // No run could be longer: none of them continues the one before it.
        let continues = |two: &[CopyRun]| {
            let [a, b] = [two[0], two[1]];
            (a.from + a.bytes, a.to + a.bytes) == (b.from, b.to)
        };
        prop_assert!(!runs.windows(2).any(continues));
    }

    #[test]
    fn ranks_get_their_heads_from_any_number_of_ranks(
        (heads, from_ranks, to_ranks) in (0u32..4, 0u32..4, 0u32..4)
            .prop_map(|(heads, from, to)| (1 << heads, 1 << from, 1 << to)),
        layers in 1u32..3,
    ) {
        // One page of all heads, and of each rank, in the order that the arena has.
        let shape = |heads| PageShape { layers, heads, tokens: 2, content_bytes: 4 };
        let layout = |heads| KvLayout::packed(PageOrder::Blhnc, shape(heads), 1).unwrap();
        let whole = layout(heads);
        let kv = pattern(3, whole.end());
        let part = |ranks, rank| {
            let held = heads_of(heads, ranks, rank).unwrap();
            let own = layout(held.len() as u32);
            let mut bytes = vec![0; own.end()];
            let heads = whole.heads(held).unwrap();
            copy_runs(&plan(&heads, &own, &pairs_of(&[(0, 0)])).unwrap(), &kv, &mut bytes);
            (own, bytes)
        };
        let sources: Vec<_> = (0..from_ranks).map(|rank| part(from_ranks, rank)).collect();
        let expected: Vec<_> = (0..to_ranks).map(|rank| part(to_ranks, rank)).collect();
        let mut targets: Vec<_> = expected.iter().map(|(own, kv)| (*own, vec![0; kv.len()])).collect();
        for step in reshard(heads, from_ranks, to_ranks).unwrap() {
            let (from, source) = &sources[step.from_rank as usize];
            let (to, target) = &mut targets[step.to_rank as usize];
            let (from, to) = (from.heads(step.from).unwrap(), to.heads(step.to).unwrap());
            copy_runs(&plan(&from, &to, &pairs_of(&[(0, 0)])).unwrap(), source, target);
        }
        prop_assert_eq!(targets, expected);
    }
}
