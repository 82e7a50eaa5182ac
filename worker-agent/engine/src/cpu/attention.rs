//! Attention over paged KV.
//!
//! A row is one query head of one token. Its scores are computed block by block into a row of
//! memory, in the order of positions, so that each score has a fixed lane; the greatest is found,
//! the weights are summed lane by lane, and the values are added position by position. None of
//! this depends on which rows are computed together.

use rayon::prelude::*;

use super::config::Config;
use super::kernel::{self, Isa, Out, Rows};
use super::kv::Kv;
use crate::compute::Item;
use crate::pool::BlockId;

/// Rows computed together: as many as the kernel keeps in registers.
const TILE_ROWS: usize = 8;
/// Tokens of one task.
const SPAN_TOKENS: usize = 16;
/// Attention over fewer pairs of row and position than this runs on the calling thread.
const SERIAL_PAIRS: usize = 1 << 14;

/// Attention of one layer.
pub(super) struct Attention<'a> {
    pub(super) config: &'a Config,
    pub(super) isa: Isa,
    pub(super) kv: &'a Kv,
    pub(super) layer: usize,
}

/// Consecutive tokens of one sequence.
struct Span<'a> {
    blocks: &'a [BlockId],
    /// Position of the first token in its sequence.
    position: usize,
    tokens: usize,
    /// Their projections, and where their results go.
    projected: &'a [f32],
    out: &'a mut [f32],
}

/// Memory of one task.
#[derive(Default)]
struct Scratch {
    queries: Vec<f32>,
    scores: Vec<f32>,
    sums: Vec<f32>,
    mixed: Vec<f32>,
}

impl Attention<'_> {
    /// Computes all tokens of a step. `projected` has a row of `stride` values per token, of which
    /// the queries come first; `out` gets the heads' results, a row per token.
    pub(super) fn run(
        &self,
        items: &[Item<'_>],
        projected: &[f32],
        stride: usize,
        out: &mut [f32],
    ) {
        let out_stride = self.config.heads * self.config.head_dim;
        let (mut projected, mut out) = (projected, out);
        let (mut spans, mut pairs) = (Vec::new(), 0);
        for item in items {
            for position in (item.start..item.end).step_by(SPAN_TOKENS) {
                let tokens = SPAN_TOKENS.min(item.end - position);
                let (here, rest) = projected.split_at(tokens * stride);
                let (here_out, rest_out) = out.split_at_mut(tokens * out_stride);
                (projected, out) = (rest, rest_out);
                pairs += tokens * self.config.heads * (position + tokens);
                let blocks = item.blocks;
                spans.push(Span { blocks, position, tokens, projected: here, out: here_out });
            }
        }
        // Handing few pairs to other threads costs more than computing them here.
        if pairs < SERIAL_PAIRS {
            let mut scratch = Scratch::default();
            spans.iter_mut().for_each(|span| self.span(span, stride, &mut scratch));
        } else {
            let task =
                |scratch: &mut Scratch, span: &mut Span<'_>| self.span(span, stride, scratch);
            spans.par_iter_mut().for_each_init(Scratch::default, task);
        }
    }

    fn span(&self, span: &mut Span<'_>, stride: usize, scratch: &mut Scratch) {
        let tile_tokens = (TILE_ROWS / self.config.group()).max(1);
        for first in (0..span.tokens).step_by(tile_tokens) {
            let tokens = tile_tokens.min(span.tokens - first);
            for kv_head in 0..self.config.kv_heads {
                self.gather(span, stride, kv_head, first..first + tokens, scratch);
                self.tile(span.blocks, span.position + first, kv_head, scratch);
                self.scatter(span, kv_head, first, scratch);
            }
        }
    }

    /// Brings the queries of a tile together, scaled.
    fn gather(
        &self,
        span: &Span<'_>,
        stride: usize,
        kv_head: usize,
        tokens: std::ops::Range<usize>,
        scratch: &mut Scratch,
    ) {
        let width = self.config.group() * self.config.head_dim;
        let scale = 1.0 / (self.config.head_dim as f32).sqrt();
        scratch.queries.clear();
        for token in tokens {
            let queries = &span.projected[token * stride + kv_head * width..][..width];
            scratch.queries.extend(queries.iter().map(|query| query * scale));
        }
    }

    /// Attention of the rows in `scratch.queries`, those of a token after those of the one before.
    fn tile(&self, blocks: &[BlockId], position: usize, kv_head: usize, scratch: &mut Scratch) {
        let (layout, group) = (self.kv.layout(), self.config.group());
        let count = scratch.queries.len() / self.config.head_dim;
        let last = position + count / group - 1;
        let blocks = &blocks[..=last / layout.block_size];
        let stride = blocks.len() * layout.slots();
        scratch.scores.resize(count * stride, 0.0);
        let queries = Rows { values: &scratch.queries, stride: self.config.head_dim, count };
        for (i, &block) in blocks.iter().enumerate() {
            let out =
                Out { values: &mut scratch.scores[i * layout.slots()..], stride, keep: false };
            kernel::multiply(self.isa, queries, self.kv.keys(block, self.layer, kv_head), out);
        }
        scratch.sums.clear();
        for (row, scores) in scratch.scores.chunks_exact_mut(stride).enumerate() {
            self.mask(scores, position + row / group);
            scratch.sums.push(kernel::softmax(self.isa, scores));
        }
        scratch.mixed.clear();
        scratch.mixed.resize(count * layout.elements(), 0.0);
        for (i, &block) in blocks.iter().enumerate() {
            self.mix(block, i, position, kv_head, stride, scratch);
        }
    }

    /// Leaves only the scores of positions up to `position`.
    fn mask(&self, scores: &mut [f32], position: usize) {
        let layout = self.kv.layout();
        scores[layout.score(position) + 1..].fill(f32::NEG_INFINITY);
        if layout.slots() > layout.block_size {
            for block in scores.chunks_exact_mut(layout.slots()) {
                block[layout.block_size..].fill(f32::NEG_INFINITY);
            }
        }
    }

    /// Adds block `i`'s values, weighted: all rows together as far as all attend to them, then
    /// each row alone.
    fn mix(
        &self,
        block: BlockId,
        i: usize,
        position: usize,
        kv_head: usize,
        stride: usize,
        scratch: &mut Scratch,
    ) {
        let (layout, group) = (self.kv.layout(), self.config.group());
        let (before, elements) = (i * layout.block_size, layout.elements());
        let slots_up_to =
            |position: usize| (position + 1).saturating_sub(before).min(layout.block_size);
        let scores = &scratch.scores[i * layout.slots()..];
        let common = slots_up_to(position);
        if common > 0 {
            let values = self.kv.values(block, self.layer, kv_head, 0..common);
            let rows = Rows { values: scores, stride, count: scratch.sums.len() };
            let out = Out { values: &mut scratch.mixed, stride: elements, keep: true };
            kernel::multiply(self.isa, rows, values, out);
        }
        // Later tokens of the span see a few slots more than its first.
        for row in group..scratch.sums.len() {
            let end = slots_up_to(position + row / group);
            if end > common {
                let values = self.kv.values(block, self.layer, kv_head, common..end);
                let weights = &scores[row * stride + common..];
                let rows = Rows { values: weights, stride, count: 1 };
                let mixed = &mut scratch.mixed[row * elements..];
                let out = Out { values: mixed, stride: elements, keep: true };
                kernel::multiply(self.isa, rows, values, out);
            }
        }
    }

    /// Divides by the sums of the weights and brings the results to their places.
    fn scatter(&self, span: &mut Span<'_>, kv_head: usize, first: usize, scratch: &Scratch) {
        let (head_dim, group) = (self.config.head_dim, self.config.group());
        let stride = self.config.heads * head_dim;
        let mixed = scratch.mixed.chunks_exact(self.kv.layout().elements());
        for (row, (mixed, sum)) in mixed.zip(&scratch.sums).enumerate() {
            let token = first + row / group;
            let head = kv_head * group + row % group;
            let out = &mut span.out[token * stride + head * head_dim..][..head_dim];
            for (out, value) in out.iter_mut().zip(mixed) {
                *out = value / sum;
            }
        }
    }
}
