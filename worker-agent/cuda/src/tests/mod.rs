//! Copies against obvious models, streams in any order, a driver that fails, the kernel on the
//! processor, and a GPU.

mod gpu;
mod kernel;
mod order;
mod plans;
mod routes;

use crate::layout::{KvLayout, PageShape};
use proptest::prelude::*;
use std::fmt::Display;
use std::io::Write;

/// Says that a test did not run, past the test harness, which hides what passing tests print.
pub(super) fn not_run(test: &str, why: impl Display) {
    let _ = writeln!(std::io::stderr().lock(), "not run: {test}: {why}");
}

/// Bytes of a memory, unlike those of others.
pub(super) fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let word = |at: usize| (at as u64 ^ seed << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24;
    (0..bytes).map(|at| word(at) as u8).collect()
}

/// Copies pages byte by byte: the obvious model.
pub(super) fn model(
    (from, source): (&KvLayout, &[u8]),
    (to, target): (&KvLayout, &mut [u8]),
    pairs: &[(u32, u32)],
) {
    let PageShape { layers, heads, tokens, content_bytes } = from.shape();
    let place = |layout: &KvLayout, page: u32, at: [u32; 4]| {
        let steps = layout.strides();
        let [layer, head, token, byte] = at.map(|at| at as usize);
        layout.first()
            + page as usize * steps.page
            + layer * steps.layer
            + head * steps.head
            + token * steps.token
            + byte
    };
    for &(source_page, target_page) in pairs {
        for layer in 0..layers {
            for (head, token) in (0..heads).flat_map(|h| (0..tokens).map(move |t| (h, t))) {
                for byte in 0..content_bytes {
                    let at = [layer, head, token, byte];
                    target[place(to, target_page, at)] = source[place(from, source_page, at)];
                }
            }
        }
    }
}

pub(super) fn any_shape() -> impl Strategy<Value = PageShape> {
    let content = prop_oneof![Just(16u32), Just(32), Just(1), Just(24)];
    (1u32..4, 1u32..5, 1u32..5, content).prop_map(|(layers, heads, tokens, content_bytes)| {
        PageShape { layers, heads, tokens, content_bytes }
    })
}

/// A layout of a shape with some order and perhaps gaps, and the bytes of its memory.
pub(super) fn any_layout(shape: PageShape, pages: u32) -> impl Strategy<Value = KvLayout> {
    use crate::layout::PageOrder::{Blhnc, Blnhc, Lbhnc, Lbnhc};
    let order = prop_oneof![Just(Lbhnc), Just(Lbnhc), Just(Blhnc), Just(Blnhc)];
    (order, 0usize..3, 0usize..3).prop_map(move |(order, gap, first)| {
        let packed = KvLayout::packed(order, shape, pages).unwrap();
        let mut strides = packed.strides();
        // A gap of the outermost dimension overlaps nothing.
        let is_layer_first = matches!(order, Lbhnc | Lbnhc);
        if is_layer_first {
            strides.layer += 16 * gap
        } else {
            strides.page += 16 * gap
        }
        KvLayout::new(shape, pages, 16 * first, strides).unwrap()
    })
}

/// Pairs in which no target occurs twice.
pub(super) fn any_pairs(pages: u32) -> impl Strategy<Value = Vec<(u32, u32)>> {
    let targets = Just((0..pages).collect::<Vec<_>>()).prop_shuffle();
    (targets, prop::collection::vec(0..pages, 0..=pages as usize))
        .prop_map(|(targets, sources)| sources.into_iter().zip(targets).collect())
}
