//! The built-in engine: Hugging Face models, computed on the CPU.
//!
//! **Same request, same tokens**: the logits of a token depend on the tokens before it alone, to
//! the bit. The modules `kernel` and `attention` keep the order of every sum fixed, so that it does not
//! matter what else a step computes, how a prompt is divided into chunks, whether its KV was
//! computed now or reused, or how many threads there are.

mod attention;
mod config;
mod error;
mod kernel;
mod kv;
mod matrix;
mod model;
mod parallel;
#[cfg(test)]
mod pooling_tests;
#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod revision_tests;
mod rope;
mod tensor;
#[cfg(test)]
mod tests;
mod weights;

use std::sync::Arc;
use std::time::Duration;

use rayon::prelude::*;

pub use error::ModelError;
pub use kv::OutOfMemory;
pub use model::Model;

use self::config::Config;
use self::kv::{Kv, Layout};
use self::model::{Activations, Logits};
use super::compute::{Compute, Item, ItemResult, PoolItem};
use super::memory::BlockMemory;
use super::options::{EngineOptions, InvalidOption, ModelInfo, Pooling};
use super::pool::BlockId;
use super::sampling::{self, Scratch};
use super::scheduler::Scheduler;
use super::tiers::KvCopies;
use super::transfer::KvForm;
use crate::model_files::ModelFiles;

/// Drawing from fewer logits than this is done on the calling thread.
const SERIAL_LOGITS: usize = 1 << 17;

/// An engine that computes on the CPU.
pub type CpuEngine = Scheduler<CpuCompute>;

/// Why a CPU engine was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CpuError {
    /// A limit is out of its range.
    #[error(transparent)]
    Option(#[from] InvalidOption),
    /// The KV blocks are too many.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
}

/// An idle engine with its own KV blocks; the weights are shared.
///
/// # Errors
///
/// [`CpuError`] when an option is out of its range or the KV does not fit the memory.
pub fn engine(model: Arc<Model>, options: EngineOptions) -> Result<CpuEngine, CpuError> {
    options.check()?;
    let layout = Layout::new(&model.config, options.block_size as usize);
    let info = model.info().clone();
    let kv = Kv::new(layout, options.total_blocks)?;
    let compute = CpuCompute { model, kv, activations: Activations::default() };
    Ok(Scheduler::new(compute, info, options)?)
}

/// Reads the facts of a model that the rest of the system needs, without loading its weights.
///
/// # Errors
///
/// [`ModelError`] names the file and the field that is missing, wrong or not supported.
pub fn model_info(files: &ModelFiles) -> Result<ModelInfo, ModelError> {
    Ok(Config::load(files)?.info)
}

/// A model and the KV of one engine.
pub struct CpuCompute {
    model: Arc<Model>,
    kv: Kv,
    activations: Activations,
}

impl CpuCompute {
    /// The shares of items in vectors of their prompts, with the items' numbers.
    fn pool(&self, items: &[Item<'_>]) -> Vec<(usize, Vec<f32>)> {
        let (mut pooled, mut normed, mut row) = (Vec::new(), Vec::new(), 0);
        for (number, item) in items.iter().enumerate() {
            let rows = row..row + (item.end - item.start);
            row = rows.end;
            let Some(PoolItem { pooling, sum }) = item.pool else { continue };
            let vector = match pooling {
                Pooling::Last if item.end < item.tokens.len() => continue,
                Pooling::Last => {
                    self.model.normed_row(rows.end - 1, &self.activations, &mut normed);
                    normed.clone()
                }
                Pooling::Mean => {
                    let mut sum = sum.to_vec();
                    for row in rows {
                        self.model.normed_row(row, &self.activations, &mut normed);
                        sum.resize(normed.len(), 0.0);
                        sum.iter_mut().zip(&normed).for_each(|(sum, value)| *sum += value);
                    }
                    sum
                }
            };
            pooled.push((number, vector));
        }
        pooled
    }

    fn reserve(&mut self) {
        self.kv.reserve().expect("the memory was there before the engine slept");
    }
}

impl Compute for CpuCompute {
    fn run(
        &mut self,
        items: &[Item<'_>],
        copies: KvCopies<'_>,
        results: &mut Vec<ItemResult>,
    ) -> Duration {
        self.reserve();
        let mut wanted = Vec::new();
        // Each item's first row of logits.
        let mut starts = Vec::with_capacity(items.len());
        let mut row = 0;
        for item in items {
            starts.push(wanted.len());
            let tokens = item.end - item.start;
            // The last token's logits draw the next token, all others tell of the prompt.
            let first = if item.prompt_logprobs.is_some() { 0 } else { tokens - 1 };
            let known = item.prompt_logprobs.is_some() || item.draw.is_some();
            wanted.extend((row + first..row + tokens).filter(|_| known));
            row += tokens;
        }
        self.model.forward(items, &mut self.kv, copies, &mut self.activations);
        let pooled = self.pool(items);
        let logits = self.model.project_to_vocabulary(&wanted, &mut self.activations);
        let draw = |scratch: &mut Scratch, (item, start): (&Item<'_>, &usize)| {
            result(item, *start, logits, scratch)
        };
        if wanted.len() * (self.model.info().vocab_size as usize) < SERIAL_LOGITS {
            let mut scratch = Scratch::default();
            results.extend(items.iter().zip(&starts).map(|item| draw(&mut scratch, item)));
        } else {
            let parallel = items.par_iter().zip(&starts).map_init(Scratch::default, draw);
            results.par_extend(parallel);
        }
        pooled.into_iter().for_each(|(item, vector)| results[item].pooled = vector);
        Duration::ZERO
    }

    fn release(&mut self) {
        self.kv.release();
    }

    fn form(&self) -> KvForm {
        let block_bytes = self.kv.layout().block_bytes();
        // A block is copied as it lies in memory, so engines of the other byte order cannot use it.
        let byte_order = u64::from(cfg!(target_endian = "big"));
        KvForm { fingerprint: self.model.fingerprint ^ byte_order, block_bytes }
    }
}

impl BlockMemory for CpuCompute {
    fn kv(&self, block: BlockId) -> &[u8] {
        self.kv.kv(block)
    }

    fn kv_mut(&mut self, block: BlockId) -> &mut [u8] {
        self.reserve();
        self.kv.kv_mut(block)
    }
}

/// The result of one item, from its rows of logits, the first of which is `start`.
fn result(item: &Item<'_>, start: usize, logits: Logits<'_>, scratch: &mut Scratch) -> ItemResult {
    let mut computed = ItemResult::default();
    if let Some(alternatives) = item.prompt_logprobs {
        let following = &item.tokens[item.start + 1..item.tokens.len().min(item.end + 1)];
        let entries = following
            .iter()
            .enumerate()
            .map(|(i, &token)| sampling::logprobs(logits.row(start + i), token, alternatives));
        computed.prompt_logprobs = entries.collect();
    }
    if let Some(draw) = &item.draw {
        let last = if item.prompt_logprobs.is_some() { item.end - item.start - 1 } else { 0 };
        let row = logits.row(start + last);
        let token = sampling::sample(row, draw, scratch);
        let wanted = draw.sampling.logprobs;
        computed.logprobs = wanted.map(|count| sampling::logprobs(row, token, count));
        computed.token = Some(token);
    }
    computed
}
