//! Pages that two layouts share, folded into as few loops and as long runs as both allow.

use crate::layout::{KvLayout, LayoutError};
use crate::runs::CopyRun;

/// One dimension that both layouts step through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FoldedLoop {
    /// Steps.
    pub count: u32,
    /// Bytes from step to step in the source.
    pub from: usize,
    /// Bytes from step to step in the target.
    pub to: usize,
}

/// A page to copy, as runs of equal length that lie alike in source and target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoldedPage {
    /// Bytes of a run.
    pub run_bytes: usize,
    /// Loops around the runs, the longest steps of the target first. At most three.
    pub loops: Vec<FoldedLoop>,
}

/// A page of the source and the page of the target that it is copied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagePair {
    /// Page of the source.
    pub from: u32,
    /// Page of the target.
    pub to: u32,
}

impl FoldedPage {
    /// Folds layer, head and token of both layouts.
    ///
    /// # Errors
    ///
    /// The pages have other sizes.
    pub fn new(from: &KvLayout, to: &KvLayout) -> Result<Self, LayoutError> {
        let shape = from.shape();
        if shape != to.shape() {
            return Err(LayoutError::Unlike { from: shape, to: to.shape() });
        }
        let (source, target) = (from.strides(), to.strides());
        let mut loops = vec![
            FoldedLoop { count: shape.layers, from: source.layer, to: target.layer },
            FoldedLoop { count: shape.heads, from: source.head, to: target.head },
            FoldedLoop { count: shape.tokens, from: source.token, to: target.token },
        ];
        loops.retain(|dimension| dimension.count > 1);
        loops.sort_by_key(|dimension| std::cmp::Reverse(dimension.to));
        let mut run_bytes = shape.content_bytes as usize;
        // A dimension whose neighbours touch in both layouts makes the run longer. The next one can
        // only touch after that, so the search begins anew.
        let touches = |run, of: &FoldedLoop| (of.from, of.to) == (run, run);
        while let Some(at) = loops.iter().position(|dimension| touches(run_bytes, dimension)) {
            run_bytes *= loops.remove(at).count as usize;
        }
        Ok(Self { run_bytes, loops })
    }

    /// Runs of a page.
    pub fn runs(&self) -> usize {
        self.loops.iter().map(|dimension| dimension.count as usize).product()
    }
}

/// Runs that copy pages, in the order of the source. Runs that touch on both sides are one.
///
/// # Errors
///
/// The pages have other sizes, or there is no such page.
pub fn plan(
    from: &KvLayout,
    to: &KvLayout,
    pairs: &[PagePair],
) -> Result<Vec<CopyRun>, LayoutError> {
    let page = FoldedPage::new(from, to)?;
    let mut runs = Vec::with_capacity(page.runs() * pairs.len());
    for pair in pairs {
        add_page(&page, from.page(pair.from)?, to.page(pair.to)?, &mut runs);
    }
    Ok(crate::runs::coalesce(runs))
}

fn add_page(page: &FoldedPage, from: usize, to: usize, runs: &mut Vec<CopyRun>) {
    let nothing = FoldedLoop { count: 1, from: 0, to: 0 };
    let [a, b, c] = [0, 1, 2].map(|at| page.loops.get(at).copied().unwrap_or(nothing));
    let bytes = page.run_bytes;
    for (x, y) in (0..a.count as usize).flat_map(|x| (0..b.count as usize).map(move |y| (x, y))) {
        let (from, to) = (from + x * a.from + y * b.from, to + x * a.to + y * b.to);
        let step = |z: usize| CopyRun { from: from + z * c.from, to: to + z * c.to, bytes };
        runs.extend((0..c.count as usize).map(step));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{PageOrder, PageShape};

    const SHAPE: PageShape = PageShape { layers: 3, heads: 2, tokens: 4, content_bytes: 16 };

    fn check(from: PageOrder, to: PageOrder, run_bytes: usize, runs: usize) {
        let layout = |order| KvLayout::packed(order, SHAPE, 8).unwrap();
        let page = FoldedPage::new(&layout(from), &layout(to)).unwrap();
        assert_eq!((page.run_bytes, page.runs()), (run_bytes, runs), "{from:?} -> {to:?}");
    }

    #[test]
    fn what_touches_on_both_sides_is_one_run() {
        use PageOrder::{Blhnc, Blnhc, Lbhnc, Lbnhc};
        check(Blhnc, Blhnc, 384, 1);
        check(Lbhnc, Blhnc, 128, 3);
        check(Lbhnc, Lbhnc, 128, 3);
        check(Lbnhc, Blhnc, 16, 24);
        check(Blnhc, Blhnc, 16, 24);
    }

    #[test]
    fn neighbouring_pages_are_one_run() {
        let layout = KvLayout::packed(PageOrder::Lbhnc, SHAPE, 8).unwrap();
        let pairs = [2, 3, 4].map(|page| PagePair { from: page, to: page + 1 });
        // One run for each layer.
        assert_eq!(plan(&layout, &layout, &pairs).unwrap().len(), 3);
    }

    #[test]
    fn a_page_that_is_not_there_is_refused() {
        let layout = KvLayout::packed(PageOrder::Blhnc, SHAPE, 8).unwrap();
        let plan = |from, to| plan(&layout, &layout, &[PagePair { from, to }]);
        assert_eq!(plan(8, 0), Err(LayoutError::NoPage { page: 8, pages: 8 }));
        assert_eq!(plan(0, 9), Err(LayoutError::NoPage { page: 9, pages: 8 }));
    }
}
