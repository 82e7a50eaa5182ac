//! `approx-prefix-cache-producer`.

pub(in crate::producers) mod blocks;
mod index;

use super::PREFILL;
use crate::context::{BuildContext, PrefixSource};
use crate::params::Params;
use blocks::Chains;
use index::Index;
use parking_lot::Mutex;
use stator_epp_scheduler::plugin::{
    IndexListener, Observer, PlacedRequest, PluginParts, PrefixIndex, Producer, RequestProgress,
    SharedIndex,
};
use stator_epp_scheduler::{Candidate, Endpoint, EngineLoad, PrefixMatch, Request, Time};
use stator_protos::WorkerRank;
use stator_protos::hash::SequenceHash;
use std::sync::{Arc, OnceLock};

/// Smaller blocks cost more than they tell.
const MIN_BLOCK_SIZE: u32 = 64;
/// Most blocks of a prompt that are looked at, however small they are.
const MAX_BLOCKS: u64 = 65_536;

/// `approx-prefix-cache-producer`: believes that endpoints hold the prompts that they were sent,
/// until as many blocks came after as fit in their cache.
///
/// A prompt is cut into blocks of `blockSizeTokens` tokens (at least 64), or of four bytes of text
/// for each token where there is no tokenizer; each block's hash covers all before it, the model
/// and the cache salt. Blocks of a prompt are recorded for the endpoint that answers and for the
/// one of the prefill profile. With `autoTune`, block and cache size follow what each engine
/// reports, and `lruCapacityPerServer` is for those that report nothing. What other replicas
/// record counts as what is recorded here. With `prefixHashSource: metadata` the hashes are not
/// computed but come with the request, in the data plane's metadata.
pub(crate) fn approximate(params: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    if params.has("blockSize") {
        params.wrong("blockSize", "is in characters and not supported; use blockSizeTokens");
    }
    params.ignore("blockSize");
    let block_size = params.whole("blockSizeTokens", 16, 1..=65_536) as u32;
    let max_tokens = params.whole("maxPrefixTokensToMatch", 131_072, 0..=1 << 32);
    let max_blocks = params.whole("maxPrefixBlocksToMatch", 2048, 0..=MAX_BLOCKS);
    let settings = Settings {
        auto_tune: params.flag("autoTune", true),
        block_size: block_size.max(MIN_BLOCK_SIZE),
        max_tokens: (max_tokens > 0).then_some(max_tokens),
        max_blocks: if max_blocks > 0 { max_blocks } else { MAX_BLOCKS },
        capacity: params.whole("lruCapacityPerServer", 31_250, 1..=100_000_000) as usize,
        given: params.choice("prefixHashSource", &[("body", false), ("metadata", true)]),
    };
    // Of several producers each has its own place in candidates.
    let source = context.new_approximate_source();
    let (state, listener) = Default::default();
    let plugin = Arc::new(Approximate { settings, source, state, listener });
    PluginParts {
        producer: Some(plugin.clone()),
        observer: Some(plugin.clone()),
        prefixes: Some(plugin.clone()),
        shared: Some(plugin),
        ..PluginParts::default()
    }
}

struct Approximate {
    settings: Settings,
    source: PrefixSource,
    state: Mutex<State>,
    /// Listener that tells other replicas of the records made here.
    listener: OnceLock<Arc<dyn IndexListener>>,
}

#[derive(Clone, Copy)]
struct Settings {
    auto_tune: bool,
    block_size: u32,
    max_tokens: Option<u64>,
    max_blocks: u64,
    capacity: usize,
    /// Whether the hashes of blocks come with the request.
    given: bool,
}

#[derive(Default)]
struct State {
    index: Index,
    /// The blocks of the request seen last: what is placed was looked up just before.
    chains: Chains,
}

impl Settings {
    fn block_size(&self, load: &EngineLoad) -> u32 {
        let reported = load.cache.filter(|_| self.auto_tune).map(|cache| cache.block_size);
        reported.map_or(self.block_size, |size| size.max(MIN_BLOCK_SIZE))
    }

    /// Blocks, of our size, that fit into an engine's cache.
    fn capacity(&self, load: &EngineLoad) -> usize {
        let reported = load.cache.filter(|_| self.auto_tune).map(|cache| {
            let tokens = u64::from(cache.blocks) * u64::from(cache.block_size);
            (tokens / u64::from(self.block_size(load))) as usize
        });
        reported.filter(|blocks| *blocks > 0).unwrap_or(self.capacity)
    }

    fn max_blocks(&self, block_size: u32) -> usize {
        let by_tokens = self.max_tokens.map(|tokens| tokens / u64::from(block_size));
        by_tokens.unwrap_or(self.max_blocks).clamp(1, MAX_BLOCKS) as usize
    }
}

impl Producer for Approximate {
    fn produce(&self, request: &Request<'_>, candidates: &mut [Candidate<'_>], _: Time) {
        let State { index, chains } = &mut *self.state.lock();
        chains.begin(request, self.settings.given);
        let mut sizes: Vec<_> =
            candidates.iter().map(|c| self.settings.block_size(c.load)).collect();
        sizes.sort_unstable();
        sizes.dedup();
        for block_size in sizes {
            let chain = chains.of(request, block_size, self.settings.max_blocks(block_size));
            let alike = |c: &&mut Candidate<'_>| self.settings.block_size(c.load) == block_size;
            let mut alike: Vec<_> = candidates.iter_mut().filter(alike).collect();
            let matched = index.matches(chain, alike.iter().map(|c| c.endpoint));
            for (candidate, matched_blocks) in alike.iter_mut().zip(matched) {
                let found = PrefixMatch {
                    matched_blocks,
                    total_blocks: chain.len() as u32,
                    block_size,
                    weighted_blocks: matched_blocks.into(),
                };
                self.source.write(candidate, found);
            }
        }
    }
}

impl PrefixIndex for Approximate {
    fn entries(&self) -> usize {
        self.state.lock().index.len()
    }

    fn found(&self, candidate: &Candidate<'_>) -> Option<PrefixMatch> {
        self.source.read(candidate)
    }
}

impl Observer for Approximate {
    fn placed(&self, request: &Request<'_>, placed: &PlacedRequest<'_>, _: Time) {
        let State { index, chains } = &mut *self.state.lock();
        chains.continue_or_begin(request, self.settings.given);
        let others = placed.routing.others.iter();
        let prefill = others.filter(|(profile, _)| profile == PREFILL).map(|(_, pick)| pick);
        for pick in std::iter::once(&placed.routing.primary).chain(prefill) {
            let Some(target) = pick.targets.first() else { continue };
            let block_size = self.settings.block_size(target.load);
            let chain = chains.of(request, block_size, self.settings.max_blocks(block_size));
            index.record(target.endpoint, self.settings.capacity(target.load), chain);
            if let Some(listener) = self.listener.get() {
                listener.sent(target.endpoint.worker, chain);
            }
        }
    }

    fn first_token(&self, _: &RequestProgress<'_>, _: Time) {}

    fn ended(&self, _: &RequestProgress<'_>, _: Time) {}

    fn left(&self, worker: WorkerRank) {
        self.state.lock().index.forget(worker);
    }
}

impl SharedIndex for Approximate {
    fn tell(&self, listener: Arc<dyn IndexListener>) {
        // The first listener stays: there is one for the life of the process.
        let _ = self.listener.set(listener);
    }

    fn sent(&self, endpoint: &Endpoint, load: &EngineLoad, chain: &[SequenceHash], _: Time) {
        self.state.lock().index.record(endpoint, self.settings.capacity(load), chain);
    }

    fn predictions(&self, from: usize, most: usize) -> Option<Vec<(WorkerRank, SequenceHash)>> {
        self.state.lock().index.part(from, most)
    }
}

#[cfg(test)]
mod tests;
