//! Metrics of each engine by meaning.
//!
//! Source: pages of vLLM 0.32 and SGLang 0.5.23, and TensorRT-LLM's metrics collector around 1.2.

use super::Engine;
use crate::page::lines::{Labels, unescape};

/// The value that a series adds to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Running,
    Waiting,
    KvUsage,
    BlockSize,
    TotalBlocks,
    PrefixQueries,
    PrefixHits,
    /// Tokens looked up and not found.
    PrefixMisses,
    PromptTokens,
    GenerationTokens,
    /// Tokens that one rank produced, used where the engine reports nothing better for the rank.
    RankTokens,
    Preemptions,
    Steps,
    StepsSeconds,
    LastStepSeconds,
    TokenGaps,
    TokenGapsSeconds,
    Awake,
    Offloaded,
    Discarded,
    /// Block size and number of blocks, in labels.
    CacheInfo,
    /// Adapters, in labels.
    Adapters,
}

impl Field {
    /// Number of fields.
    pub(super) const COUNT: usize = Self::Adapters as usize + 1;
}

/// Adds the series of this name with these labels to these fields. A label that must be empty may
/// be missing.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) name: &'static str,
    labels: &'static [(&'static str, &'static str)],
    pub(super) fields: &'static [Field],
}

const fn rule(
    name: &'static str,
    labels: &'static [(&'static str, &'static str)],
    fields: &'static [Field],
) -> Rule {
    Rule { name, labels, fields }
}

impl Rule {
    pub(super) fn fits(&self, labels: Labels<'_>) -> bool {
        self.labels.iter().all(|(label, wanted)| {
            let found = labels.get(label.as_bytes());
            found.map_or(wanted.is_empty(), |value| *unescape(value) == *wanted.as_bytes())
        })
    }
}

/// The rules for a name.
pub(super) fn rules_of(engine: Engine, name: &[u8]) -> &'static [Rule] {
    let all = rules(engine);
    let from = all.partition_point(|rule| rule.name.as_bytes() < name);
    let count = all[from..].iter().take_while(|rule| rule.name.as_bytes() == name).count();
    &all[from..from + count]
}

/// All rules of an engine, in order of their names.
pub(super) fn rules(engine: Engine) -> &'static [Rule] {
    match engine {
        Engine::Vllm => &VLLM,
        Engine::Sglang => &SGLANG,
        Engine::TrtLlm => &TRTLLM,
    }
}

static VLLM: [Rule; 16] = [
    rule("vllm:cache_config_info", &[], &[Field::CacheInfo]),
    rule("vllm:engine_sleep_state", &[("sleep_state", "awake")], &[Field::Awake]),
    rule("vllm:engine_sleep_state", &[("sleep_state", "weights_offloaded")], &[Field::Offloaded]),
    rule("vllm:engine_sleep_state", &[("sleep_state", "discard_all")], &[Field::Discarded]),
    rule("vllm:generation_tokens_total", &[], &[Field::GenerationTokens]),
    rule("vllm:inter_token_latency_seconds_count", &[], &[Field::TokenGaps]),
    rule("vllm:inter_token_latency_seconds_sum", &[], &[Field::TokenGapsSeconds]),
    // A histogram of tokens per step, of which there is one entry for each step.
    rule("vllm:iteration_tokens_total_count", &[], &[Field::Steps]),
    rule("vllm:kv_cache_usage_perc", &[], &[Field::KvUsage]),
    rule("vllm:lora_requests_info", &[], &[Field::Adapters]),
    rule("vllm:num_preemptions_total", &[], &[Field::Preemptions]),
    rule("vllm:num_requests_running", &[], &[Field::Running]),
    rule("vllm:num_requests_waiting", &[], &[Field::Waiting]),
    rule("vllm:prefix_cache_hits_total", &[], &[Field::PrefixHits]),
    rule("vllm:prefix_cache_queries_total", &[], &[Field::PrefixQueries]),
    rule("vllm:prompt_tokens_total", &[], &[Field::PromptTokens]),
];

/// With priorities there is one gauge per priority beside the total, which has none; counters count
/// each priority alone.
static SGLANG: [Rule; 13] = [
    rule("sglang:cache_config_info", &[], &[Field::CacheInfo]),
    rule("sglang:cuda_graph_passes_total", &[], &[Field::Steps]),
    rule("sglang:generation_tokens_total", &[], &[Field::GenerationTokens]),
    rule("sglang:num_pages", &[("priority", "")], &[Field::TotalBlocks]),
    rule("sglang:num_queue_reqs", &[("priority", "")], &[Field::Waiting]),
    rule("sglang:num_running_reqs", &[("priority", "")], &[Field::Running]),
    rule("sglang:page_size", &[("priority", "")], &[Field::BlockSize]),
    // Each prompt that was computed gave a token, which is no decode's.
    rule(
        "sglang:per_stage_req_latency_seconds_count",
        &[("stage", "prefill_forward")],
        &[Field::RankTokens],
    ),
    rule("sglang:realtime_tokens_total", &[("mode", "decode")], &[Field::RankTokens]),
    rule(
        "sglang:realtime_tokens_total",
        &[("mode", "prefill_cache")],
        &[Field::PrefixHits, Field::PrefixQueries, Field::PromptTokens],
    ),
    rule(
        "sglang:realtime_tokens_total",
        &[("mode", "prefill_compute")],
        &[Field::PrefixMisses, Field::PromptTokens],
    ),
    rule(
        "sglang:scheduler_stage_seconds_total",
        &[("category", "run_batch")],
        &[Field::StepsSeconds],
    ),
    rule("sglang:token_usage", &[("priority", "")], &[Field::KvUsage]),
];

static TRTLLM: [Rule; 9] = [
    rule("trtllm_generation_tokens_total", &[], &[Field::GenerationTokens]),
    rule("trtllm_iteration_latency_seconds", &[], &[Field::LastStepSeconds]),
    rule("trtllm_kv_cache_max_blocks", &[], &[Field::TotalBlocks]),
    rule("trtllm_kv_cache_tokens_per_block", &[], &[Field::BlockSize]),
    rule("trtllm_kv_cache_utilization", &[], &[Field::KvUsage]),
    rule("trtllm_num_requests_running", &[], &[Field::Running]),
    rule("trtllm_num_requests_waiting", &[], &[Field::Waiting]),
    rule("trtllm_prompt_cached_tokens_total", &[], &[Field::PrefixHits]),
    rule("trtllm_prompt_tokens_total", &[], &[Field::PrefixQueries, Field::PromptTokens]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_is_found_by_its_name() {
        for engine in [Engine::Vllm, Engine::Sglang, Engine::TrtLlm] {
            for rule in rules(engine) {
                let found = rules_of(engine, rule.name.as_bytes());
                assert!(found.iter().any(|found| std::ptr::eq(found, rule)), "{}", rule.name);
            }
            assert!(rules_of(engine, b"").is_empty() && rules_of(engine, b"z").is_empty());
        }
    }
}
