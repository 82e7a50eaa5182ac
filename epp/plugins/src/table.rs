//! Every type of plug-in that is known.
//!
//! Source: the plug-ins that the llm-d router registers; `kv-aware` is our own.

use crate::kind::{Make, Need, PluginKind, PluginPlace, Stability};
use crate::scorers::{
    context_length, header_label, kv_aware, latency, lmetric, load, lora, no_hit_lru, prefix,
    tokens,
};
use crate::{admitters, filters, handlers, hub, pickers, producers, reporter, session, settings};
use PluginPlace::{
    Admitter, DataSource, Decider, Discovery, EvictionFilter, EvictionOrder, Extractor,
    FairnessPolicy, Filter, OrderingPolicy, Parser, Picker, Producer, ProfileHandler, Reporter,
    SaturationDetector, Scorer, Screener, Syncer, UsageLimitPolicy,
};

const PREFIX: Need = need("approx-prefix-cache-producer", "prefixMatchInfoProducerName");
const LATENCY: Need = need("predicted-latency-producer", "latencyPredictionInfoProducerName");
const IN_FLIGHT: Need = need("inflight-load-producer", "inFlightLoadProducerName");
const TOKENS: Need = Need { producer: "token-producer", unless: None, when: None };
const MULTIMODAL: Need =
    Need { producer: "mm-embeddings-cache-producer", unless: None, when: None };
const MULTIMODAL_IF_USED: Need =
    Need { when: Some(("useEncoderCacheFeatures", "true")), ..MULTIMODAL };
const LATENCY_IF_SOURCE: Need = Need { when: Some(("ttftSource", "latencyPredictor")), ..LATENCY };

const fn need(producer: &'static str, unless: &'static str) -> Need {
    Need { producer, unless: Some(unless), when: None }
}

const fn kind(type_name: &'static str, places: &'static [PluginPlace], make: Make) -> PluginKind {
    let (aliases, needs): (&[_], &[_]) = (&[], &[]);
    PluginKind { type_name, aliases, stability: Stability::Stable, places, needs, make }
}

/// The reason why this program lacks a type that others have.
pub fn why_missing(type_name: &str) -> &'static str {
    match type_name {
        "dcgm-data-source" | "dcgm-extractor" => {
            "it reads pages of GPU metrics, and this program reads those of engines alone"
        }
        "endpoint-attribute-filter" | "endpoint-attribute-scorer" => {
            "it reads numbers that other plug-ins find, and none hands them on here"
        }
        _ => {
            "it goes by what pickers of other clusters tell of prefixes and sessions, and they tell nothing here"
        }
    }
}

/// A type that others have and this program does not.
const fn missing(type_name: &'static str, places: &'static [PluginPlace]) -> PluginKind {
    PluginKind { stability: Stability::Missing, ..kind(type_name, places, settings::plain) }
}

impl PluginKind {
    const fn alpha(self) -> Self {
        Self { stability: Stability::Alpha, ..self }
    }

    const fn deprecated(self) -> Self {
        Self { stability: Stability::Deprecated, ..self }
    }

    const fn needs(self, needs: &'static [Need]) -> Self {
        Self { needs, ..self }
    }

    const fn aliases(self, aliases: &'static [&'static str]) -> Self {
        Self { aliases, ..self }
    }
}

pub(crate) const KINDS: &[PluginKind] = &[
    kind("active-request-scorer", &[Scorer], tokens::active_request).needs(&[IN_FLIGHT]),
    kind("agent-identity", &[Producer], session::agent_identity).alpha(),
    kind("always-disagg-multimodal-decider", &[Decider], handlers::deciders::multimodal),
    kind("always-disagg-pd-decider", &[Decider], handlers::deciders::always),
    kind("anthropic-parser", &[Parser], settings::plain),
    kind("approx-prefix-cache-producer", &[Producer], producers::approximate::approximate)
        .needs(&[TOKENS]),
    kind("burst-prefix-cache-producer", &[Producer], producers::burst::burst)
        .needs(&[TOKENS])
        .alpha(),
    kind("by-label", &[Filter], filters::labels::by_label).aliases(&["label-filter"]).deprecated(),
    kind("by-label-selector", &[Filter], filters::labels::by_label_selector).deprecated(),
    kind("concurrency-detector", &[SaturationDetector, Filter], filters::detectors::concurrency)
        .needs(&[IN_FLIGHT]),
    kind("context-length-aware", &[Filter, Scorer], context_length::context_length_aware)
        .needs(&[TOKENS]),
    kind("core-metrics-extractor", &[Extractor], settings::metrics_extractor),
    kind(
        "data-parallel-profile-handler",
        &[ProfileHandler],
        handlers::data_parallel::data_parallel,
    ),
    missing("dcgm-data-source", &[DataSource]),
    missing("dcgm-extractor", &[Extractor]),
    kind("decode-filter", &[Filter], filters::roles::decode),
    kind("deficit-round-robin-fairness-policy", &[FairnessPolicy], settings::deficit_round_robin),
    kind("destination-endpoint-served-verifier", &[Reporter], settings::plain),
    kind("disagg-headers-handler", &[Reporter], settings::plain)
        .aliases(&["prefill-header-handler"])
        .deprecated(),
    kind("disagg-profile-handler", &[ProfileHandler], handlers::disagg::disagg),
    kind("disaggregatedset-rollout-screener", &[Screener, Reporter], filters::rollout::rollout)
        .alpha(),
    kind("edf-ordering-policy", &[OrderingPolicy], settings::edf),
    kind("encode-filter", &[Filter], filters::roles::encode),
    missing("endpoint-attribute-filter", &[Filter]),
    missing("endpoint-attribute-scorer", &[Scorer]),
    kind("endpoint-notification-source", &[DataSource], settings::plain),
    kind("fcfs-ordering-policy", &[OrderingPolicy], settings::fcfs),
    kind("file-discovery", &[Discovery], settings::file_discovery),
    kind("global-strict-fairness-policy", &[FairnessPolicy], settings::global_strict),
    kind("header-based-testing-filter", &[Filter], filters::testing::header_based_testing),
    kind("header-label-affinity-scorer", &[Scorer, Reporter], header_label::header_label_affinity)
        .alpha(),
    kind("header-profile-handler", &[ProfileHandler], handlers::header_profile::header_profile)
        .alpha(),
    kind("inflight-load-producer", &[Producer], settings::in_flight_load),
    kind("k8s-notification-source", &[DataSource], settings::k8s_source),
    kind("kv-aware", &[Scorer], kv_aware::kv_aware)
        .aliases(&["dyn-decode-scorer", "dyn-prefill-scorer"]),
    kind("kv-cache-utilization-scorer", &[Scorer], load::kv_cache_utilization),
    kind("label-selector-filter", &[Filter], filters::labels::label_selector),
    kind("latency-observation-scorer-hub", &[Scorer], hub::latency_observation)
        .needs(&[IN_FLIGHT])
        .alpha(),
    kind("latency-observer-producer-hub", &[Producer, DataSource], hub::latency_observer)
        .needs(&[IN_FLIGHT])
        .alpha(),
    kind("latency-scorer", &[Scorer], latency::latency).needs(&[LATENCY, PREFIX]),
    kind("latency-slo-admitter", &[Admitter], admitters::latency_slo).needs(&[LATENCY]),
    kind("lmetric-scorer", &[Scorer], lmetric::lmetric).needs(&[PREFIX, IN_FLIGHT]),
    kind("load-aware-scorer", &[Scorer], load::load_aware),
    kind("local-syncer", &[Syncer], settings::plain),
    kind("lora-affinity-scorer", &[Scorer], lora::lora_affinity),
    kind("max-score-picker", &[Picker], pickers::max_score),
    kind("metrics-data-source", &[DataSource], settings::metrics_source),
    kind("mm-embeddings-cache-producer", &[Producer], producers::multimodal::multimodal),
    kind("mm-embeddings-cache-scorer", &[Scorer], prefix::multimodal).needs(&[MULTIMODAL]),
    kind("models-data-extractor", &[Extractor], settings::plain),
    kind("models-data-source", &[DataSource], settings::models_source),
    missing("multicluster-approx-prefix-cache-producer", &[Producer]),
    kind("multicluster-file-discovery", &[Discovery], settings::file_discovery).alpha(),
    kind("multicluster-kv-cache-utilization-scorer", &[Scorer], load::kv_cache_utilization).alpha(),
    kind("multicluster-metrics-data-source", &[DataSource], settings::cluster_metrics_source)
        .alpha(),
    kind("multicluster-metrics-extractor", &[Extractor], settings::cluster_metrics_extractor)
        .alpha(),
    missing("multicluster-prefix-cache-scorer", &[Scorer]),
    kind("multicluster-queue-scorer", &[Scorer], load::queue).alpha(),
    missing("multicluster-session-affinity-filter", &[Filter]),
    kind("no-hit-lru-scorer", &[Scorer], no_hit_lru::no_hit_lru).needs(&[PREFIX]),
    kind("openai-parser", &[Parser], settings::plain),
    kind("p2p-source-producer", &[Producer], producers::p2p::p2p_source).needs(&[PREFIX]).alpha(),
    kind("passthrough-parser", &[Parser], settings::plain),
    kind("pd-profile-handler", &[ProfileHandler], handlers::disagg::pd).deprecated(),
    kind("peer-label-filter", &[Filter], filters::labels::peer_label),
    kind("precise-prefix-cache-producer", &[Producer], settings::precise_producer).needs(&[TOKENS]),
    kind("precise-prefix-cache-scorer", &[Scorer, Producer], prefix::precise_prefix_cache)
        .needs(&[TOKENS])
        .deprecated(),
    kind("predicted-latency-producer", &[Producer], producers::latency::predicted)
        .needs(&[MULTIMODAL_IF_USED]),
    kind("prefill-filter", &[Filter], filters::roles::prefill),
    kind("prefix-based-pd-decider", &[Decider], handlers::deciders::prefix_based)
        .needs(&[PREFIX, TOKENS]),
    kind("prefix-cache-affinity-filter", &[Filter], filters::affinity::prefix_cache_affinity)
        .needs(&[PREFIX, IN_FLIGHT, LATENCY_IF_SOURCE]),
    kind("prefix-cache-scorer", &[Scorer], prefix::prefix_cache).needs(&[PREFIX]),
    kind("priority-holdback-policy", &[UsageLimitPolicy], settings::priority_holdback).alpha(),
    kind("priority-then-time-eviction-order-policy", &[EvictionOrder], settings::plain),
    kind("probabilistic-admitter", &[Admitter], admitters::probabilistic),
    kind("program-aware-fairness", &[FairnessPolicy], settings::program_aware),
    kind("queue-scorer", &[Scorer], load::queue),
    kind("random-picker", &[Picker], pickers::random),
    kind("request-attribute-reporter", &[Reporter], reporter::reporter),
    kind("round-robin-fairness-policy", &[FairnessPolicy], settings::round_robin),
    kind("running-requests-size-scorer", &[Scorer], load::running),
    kind("session-affinity-filter", &[Filter, Reporter], session::affinity_filter).alpha(),
    kind("session-affinity-scorer", &[Scorer, Reporter], session::affinity_scorer).alpha(),
    kind("session-id-producer", &[Producer], session::session_id),
    kind("sglanghttp-parser", &[Parser], settings::plain),
    kind("sheddable-eviction-filter", &[EvictionFilter], settings::plain),
    kind("shortest-prompt-ordering-policy", &[OrderingPolicy], settings::shortest_prompt),
    kind("single-profile-handler", &[ProfileHandler], handlers::single::single),
    kind("slo-deadline-ordering-policy", &[OrderingPolicy], settings::slo_deadline),
    kind("slo-headroom-tier-filter", &[Filter], filters::headroom::headroom_tier).needs(&[LATENCY]),
    kind("soft-reflective-ceiling-policy", &[UsageLimitPolicy], settings::soft_reflective).alpha(),
    kind("static-usage-limit-policy", &[UsageLimitPolicy], settings::static_limit),
    kind("token-load-scorer", &[Scorer], tokens::token_load).needs(&[IN_FLIGHT]),
    kind("token-producer", &[Producer], settings::token_producer).aliases(&["tokenizer"]),
    kind("topology-affinity-filter", &[Filter], crate::topology::affinity_filter).alpha(),
    kind("topology-affinity-scorer", &[Scorer], crate::topology::affinity_scorer).alpha(),
    kind("topology-extractor", &[Extractor], crate::topology::extractor).alpha(),
    kind("utilization-detector", &[SaturationDetector, Filter], filters::detectors::utilization),
    kind("utilization-filter", &[Filter], filters::utilization::utilization).alpha(),
    kind("vertexai-parser", &[Parser], settings::plain),
    kind("virtual-token-fairness-policy", &[FairnessPolicy], settings::virtual_tokens),
    kind("vllmgrpc-parser", &[Parser], settings::plain),
    kind("vllmhttp-parser", &[Parser], settings::plain),
    kind("weighted-random-picker", &[Picker], pickers::weighted_random),
];
