//! Plans against the byte-by-byte model.

use super::{any_layout, any_pairs, any_shape, model, pattern};
use crate::fake::copy_runs;
use crate::fold::{PagePair, plan};
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
}
