//! Settings of the precise prefix index.

use super::PluginSettings;
use crate::context::BuildContext;
use crate::params::{Bound, Params};
use stator_epp_scheduler::plugin::PluginParts;
use stator_epp_scheduler::{Endpoint, LabelSelector, TierWeights};
use std::net::SocketAddr;
use std::time::Duration;

/// Bytes that a block of the index takes.
const BLOCK_BYTES: u64 = 20;

/// Settings of `precise-prefix-cache-producer`.
#[derive(Clone, Debug, PartialEq)]
pub struct Precise {
    /// Tokens of a block; `None` where configuration leaves it open.
    pub block_size: Option<u32>,
    /// Worth of a block by the tier that it lies in.
    pub tier_weights: TierWeights,
    /// Most blocks that the index keeps, from their number or from bytes; `None` where
    /// configuration leaves it open.
    pub max_blocks: Option<u64>,
    /// Source of events.
    pub events: KvEvents,
    /// Time for which a placed prompt counts as held before events confirm it; `None` is not at
    /// all.
    pub speculative_ttl: Option<Duration>,
}

/// Addresses at which engines publish the blocks that they hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvEvents {
    /// Beginning of the topics that are followed; all are where configuration leaves it open.
    pub topic_filter: String,
    /// Address to bind for engines that connect to the picker, `tcp://address:port`; `None` where
    /// `None` where the picker connects to engines alone.
    pub bind: Option<String>,
    /// Whether to connect to each endpoint.
    pub discover: bool,
    /// Endpoints that publish.
    pub pods: PodFilter,
    /// Port of an endpoint's first rank; others follow.
    pub port: u16,
    /// Port that repeats events; `None` where there is none.
    pub replay_port: Option<u16>,
}

/// Selection of endpoints; all by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodFilter {
    /// By their labels.
    pub labels: LabelSelector,
    /// By their namespace; `None` is any.
    pub namespace: Option<String>,
}

impl PodFilter {
    /// Whether an endpoint is one of them.
    pub fn selects(&self, endpoint: &Endpoint) -> bool {
        let here =
            self.namespace.as_ref().is_none_or(|namespace| **namespace == *endpoint.namespace);
        here && self.labels.selects(|label| endpoint.label(label))
    }
}

/// `precise-prefix-cache-producer`: what engines report to hold of a prompt. The index is the
/// placement core's; the scheduler asks it for each request.
pub(crate) fn precise_producer(params: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    let precise = precise(params);
    context.new_precise_source();
    context.settle(PluginSettings::Precise(precise))
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
fn indexer(params: &mut Params<'_>) -> (Option<u32>, Option<u64>, TierWeights) {
    let block_size = params.within("tokenProcessorConfig", token_processor);
    params.ignore("tokenizersPoolConfig");
    params.ignore("prefixStoreConfig");
    let max_blocks = params.within("kvBlockIndexConfig", |params| {
        params.flag("enableMetrics", false);
        params.ignore("metricsLoggingInterval");
        // Prompts are looked up whole.
        params.ignore("maxPrefixTokensToMatch");
        if params.has("redisConfig") {
            params.note("redisConfig", "has no effect here: replicas share the index with --peers");
        }
        params.ignore("redisConfig");
        let by_bytes = params.within("costAwareMemoryConfig", |params| params.bytes("size"));
        let by_number = params.within("inMemoryConfig", |params| {
            params.ignore("podCacheSize");
            params.has("size").then(|| params.whole("size", 1, 1..=u64::MAX))
        });
        by_number.or(by_bytes.map(|bytes| bytes / BLOCK_BYTES))
    });
    let mut weights = TierWeights::default();
    params.list("kvCacheBackendConfigs", |params| {
        let name = params.required_text("name");
        let weight = params.number("weight", 1.0, Bound::Within(0.0, 1.0));
        if !name.is_empty() && !weights.set(&name, weight) {
            params.note("name", format!("no engine has a tier {name:?}: its weight has no effect"));
        }
    });
    (block_size, max_blocks, weights)
}

fn kv_events(params: &mut Params<'_>) -> KvEvents {
    // Each engine's encoding is told from its messages.
    params.choice("engineType", &[("vllm", ()), ("sglang", ())]);
    params.ignore("concurrency");
    let (pods, port, replay_port) = params.within("podDiscoveryConfig", |params| {
        let replays = params.has("replaySocketPort");
        let replay_port = params.whole("replaySocketPort", 5558, 1..=65535) as u16;
        (
            pod_filter(params),
            params.whole("socketPort", 5557, 1..=65535) as u16,
            replays.then_some(replay_port),
        )
    });
    KvEvents {
        topic_filter: params.text("topicFilter").unwrap_or_default(),
        bind: bound(params),
        discover: params.flag("discoverPods", true),
        pods,
        port,
        replay_port,
    }
}

fn pod_filter(params: &mut Params<'_>) -> PodFilter {
    let text = params.text("podLabelSelector").unwrap_or_default();
    let labels = LabelSelector::parse(&text).unwrap_or_else(|part| {
        params.wrong("podLabelSelector", format!("{part:?} is no part of a label selector"));
        LabelSelector::default()
    });
    PodFilter { labels, namespace: params.text("podNamespace") }
}

/// The address to bind; of any address of this machine `*` may stand for.
fn bound(params: &mut Params<'_>) -> Option<String> {
    let text = params.text("zmqEndpoint")?;
    let address = text.strip_prefix("tcp://").map(|address| match address.strip_prefix("*:") {
        Some(port) => format!("0.0.0.0:{port}"),
        None => address.to_owned(),
    });
    match address.filter(|address| address.parse::<SocketAddr>().is_ok()) {
        Some(address) => Some(format!("tcp://{address}")),
        None => {
            params.wrong("zmqEndpoint", format!("{text:?} is not tcp://ADDRESS:PORT to listen at"));
            None
        }
    }
}
