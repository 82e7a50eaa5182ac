//! Settings of the precise prefix index.

use super::Settings;
use crate::context::BuildContext;
use crate::params::{Bound, Params};
use stator_epp_scheduler::plugin::Built;
use std::time::Duration;

/// Settings of `precise-prefix-cache-producer`.
#[derive(Clone, Debug, PartialEq)]
pub struct Precise {
    /// Tokens of a block; `None` where configuration leaves it open.
    pub block_size: Option<u32>,
    /// What a block counts for by the tier that it lies in, by the tier's name in lower case.
    pub tier_weights: Vec<(String, f64)>,
    /// Most blocks that the index keeps; `None` where configuration leaves it open.
    pub max_blocks: Option<u64>,
    /// Where events come from.
    pub events: KvEvents,
    /// How long a placed prompt counts as held before events say so; `None` is not at all.
    pub speculative_ttl: Option<Duration>,
}

/// Where engines publish what they hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvEvents {
    /// Beginning of the topics that are followed.
    pub topic_filter: String,
    /// What encodes the events.
    pub engine: EngineKind,
    /// Address to bind for engines that connect to the picker; `None` where it connects to them.
    pub bind: Option<String>,
    /// Whether to connect to each endpoint.
    pub discover: bool,
    /// Label selector of the pods that publish, as text.
    pub pod_selector: Option<String>,
    /// Namespace of these pods.
    pub pod_namespace: Option<String>,
    /// Port of an endpoint's first rank; others follow.
    pub port: u16,
    /// Port that repeats events; `None` where there is none.
    pub replay_port: Option<u16>,
}

/// What encodes KV events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineKind {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
}

/// `precise-prefix-cache-producer`: what engines report to hold of a prompt. The index is the
/// placement core's; the scheduler asks it for each request.
pub(crate) fn precise_producer(params: &mut Params<'_>, context: &mut BuildContext) -> Built {
    let precise = precise(params);
    context.new_precise_source();
    context.settle(Settings::Precise(precise))
}

/// Reads the parameters of `precise-prefix-cache-producer`.
///
/// Blocks are hashed as in the rest of this program, so that seeds and algorithms of hashes are
/// accepted and have no effect; nor do sizes of structures that are not there.
pub(crate) fn precise(params: &mut Params<'_>) -> Precise {
    let block_size = params.within("tokenProcessorConfig", token_processor);
    let (nested, max_blocks, tier_weights) = params.within("indexerConfig", indexer);
    let block_size = block_size.or(nested);
    let events = params.within("kvEventsConfig", kv_events);
    let speculates = params.flag("speculativeIndexing", false);
    let ttl = params.duration("speculativeTTL", Duration::from_secs(2));
    let speculative_ttl = speculates.then_some(ttl);
    Precise { block_size, tier_weights, max_blocks, events, speculative_ttl }
}

fn token_processor(params: &mut Params<'_>) -> Option<u32> {
    params.ignore("hashSeed");
    params.choice("hashAlgorithm", &[("cbor-fnv", ()), ("xxh64", ())]);
    let (old, new) = (params.has("blockSize"), params.has("blockSizeTokens"));
    let by_old_name = params.whole("blockSize", 16, 1..=65_536) as u32;
    let by_new_name = params.whole("blockSizeTokens", 16, 1..=65_536) as u32;
    if new { Some(by_new_name) } else { old.then_some(by_old_name) }
}

/// Block size, which older configurations have here, most blocks, and weights of tiers.
fn indexer(params: &mut Params<'_>) -> (Option<u32>, Option<u64>, Vec<(String, f64)>) {
    let block_size = params.within("tokenProcessorConfig", token_processor);
    params.ignore("tokenizersPoolConfig");
    params.ignore("prefixStoreConfig");
    let max_blocks = params.within("kvBlockIndexConfig", |params| {
        params.flag("enableMetrics", false);
        params.ignore("metricsLoggingInterval");
        if params.has("redisConfig") {
            params.wrong("redisConfig", "is not supported, the index is in this process");
        }
        params.ignore("redisConfig");
        params.within("costAwareMemoryConfig", |params| params.text("size"));
        params.within("inMemoryConfig", |params| {
            params.ignore("podCacheSize");
            params.has("size").then(|| params.whole("size", 1, 1..=u64::MAX))
        })
    });
    let weights = params.list("kvCacheBackendConfigs", |params| {
        let name = params.required_text("name").to_ascii_lowercase();
        (name, params.number("weight", 1.0, Bound::Within(0.0, 1.0)))
    });
    let defaults = || vec![("gpu".to_owned(), 1.0), ("cpu".to_owned(), 0.8)];
    (block_size, max_blocks, if weights.is_empty() { defaults() } else { weights })
}

fn kv_events(params: &mut Params<'_>) -> KvEvents {
    let engines = [("vllm", EngineKind::Vllm), ("sglang", EngineKind::Sglang)];
    params.ignore("concurrency");
    let (pod_selector, pod_namespace, port, replay_port) =
        params.within("podDiscoveryConfig", |params| {
            let replays = params.has("replaySocketPort");
            let replay_port = params.whole("replaySocketPort", 5558, 1..=65535) as u16;
            (
                params.text("podLabelSelector"),
                params.text("podNamespace"),
                params.whole("socketPort", 5557, 1..=65535) as u16,
                replays.then_some(replay_port),
            )
        });
    KvEvents {
        topic_filter: params.text("topicFilter").unwrap_or_else(|| "kv@".to_owned()),
        engine: params.choice("engineType", &engines),
        bind: params.text("zmqEndpoint"),
        discover: params.flag("discoverPods", true),
        pod_selector,
        pod_namespace,
        port,
        replay_port,
    }
}
