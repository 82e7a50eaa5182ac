//! Processor time to plan copies of pages: for all pages, and for each piece that is copied. Needs no GPU; takes a
//! few seconds.
//!
//! `cargo bench -p stator-cuda --bench plan [part of a line's name]`
//!
//! A page is 16 tokens of a model of 32 layers, whose keys and values count as layers of their own, with 8 heads of
//! 128 numbers of two bytes: 2 MiB. Pages in order follow one another on both sides, so that pieces join; shuffled
//! ones do not. Every line is the median of repetitions that alternate with those of the other lines.

use std::hint::black_box;
use std::time::Instant;

use stator_cuda::fold::{FoldedPage, PagePair, plan};
use stator_cuda::layout::{KvLayout, PageOrder, PageShape};

const SHAPE: PageShape = PageShape { layers: 64, heads: 8, tokens: 16, content_bytes: 256 };
const PAGES: u32 = 4_096;
const REPETITIONS: usize = 31;

/// Pages that are copied from a layout to another.
struct PlanCase {
    what: String,
    from: KvLayout,
    to: KvLayout,
    pairs: Vec<PagePair>,
}

impl PlanCase {
    /// Pieces that the pages are copied in, if none of them join.
    fn pieces(&self) -> usize {
        let page = FoldedPage::new(&self.from, &self.to).expect("pages are of one shape");
        page.runs() * self.pairs.len()
    }
}

fn main() {
    let only = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let wanted = |case: &PlanCase| only.as_ref().is_none_or(|only| case.what.contains(only));
    let cases: Vec<_> = cases().into_iter().filter(wanted).collect();
    let mut times = vec![Vec::with_capacity(REPETITIONS); cases.len()];
    for _ in 0..REPETITIONS {
        for (case, times) in cases.iter().zip(&mut times) {
            let started = Instant::now();
            let runs = plan(&case.from, &case.to, black_box(&case.pairs));
            let took = started.elapsed();
            black_box(runs.expect("all pages are there"));
            times.push(took);
        }
    }
    println!("{:<44} {:>9} {:>9} {:>9} {:>9}", "", "pieces", "runs", "us", "ns/piece");
    for (case, mut times) in cases.iter().zip(times) {
        times.sort_unstable();
        let us = times[REPETITIONS / 2].as_secs_f64() * 1e6;
        let runs = plan(&case.from, &case.to, &case.pairs).map_or(0, |runs| runs.len());
        let pieces = case.pieces();
        let each = us * 1e3 / pieces as f64;
        println!("{:<44} {pieces:>9} {runs:>9} {us:>9.1} {each:>9.1}", case.what);
    }
}

fn cases() -> Vec<PlanCase> {
    let layout = |order| KvLayout::packed(order, SHAPE, PAGES).expect("it has an address");
    let [blocks, layers, tokens] =
        [PageOrder::Blhnc, PageOrder::Lbhnc, PageOrder::Lbnhc].map(layout);
    let kinds = [
        ("2 MiB blocks", blocks, blocks, 1_024),
        ("32 KiB pieces, LBHNC to BLHNC", layers, blocks, 64),
        ("32 KiB pieces, BLHNC to LBHNC", blocks, layers, 64),
        ("256 byte pieces, LBNHC to BLHNC", tokens, blocks, 4),
    ];
    let mut cases = Vec::new();
    for (what, from, to, pages) in kinds {
        let in_order: Vec<_> = (0..pages).map(|page| PagePair { from: page, to: page }).collect();
        let pairs = [("in order", in_order), ("shuffled", shuffled(pages))];
        cases.extend(pairs.map(|(order, pairs)| PlanCase {
            what: format!("{what}, {order}"),
            from,
            to,
            pairs,
        }));
    }
    cases
}

/// Pages in no order on either side.
fn shuffled(pages: u32) -> Vec<PagePair> {
    // An odd factor visits each page of a power of two once.
    let page = |at: u32, factor: u32| at.wrapping_mul(factor) % PAGES;
    (0..pages).map(|at| PagePair { from: page(at, 1_327), to: page(at, 2_689) }).collect()
}
