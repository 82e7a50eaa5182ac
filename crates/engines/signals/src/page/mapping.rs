//! Metrics of each engine by meaning.
//!
//! Source: the core metrics extractor of the llm-d router; the names are the engines' own.

use super::spec::{Spec, SpecError};

/// Places of an engine's load on its page. Each list has alternatives: the first that a page has
/// counts, and stays while pages have it. An empty list stands for a value that the engine does not
/// report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mapping {
    /// Requests that wait for room; several series are summed.
    pub waiting: Vec<Spec>,
    /// Requests in the running batch; several series are summed.
    pub running: Vec<Spec>,
    /// Share of KV blocks in use, 0 to 1; several series are averaged.
    pub kv_usage: Vec<Spec>,
    /// Adapters, in the labels `max_lora`, `running_lora_adapters` and `waiting_lora_adapters`;
    /// the series with the largest value, a time, counts.
    pub lora: Vec<Spec>,
    /// Place of the size of the KV cache.
    pub cache: CacheMapping,
    /// 1 while the engine can answer, 0 while it sleeps; of several series one that is awake is
    /// enough.
    pub awake: Option<Spec>,
}

/// Place of the size of an engine's KV cache; unknown if both are empty. Of several series the
/// first counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CacheMapping {
    /// In labels of a series: `block_size` and `num_gpu_blocks`, or `page_size` and `num_pages`.
    pub labels: Option<Spec>,
    /// Names of these two labels, tokens per block first, where they differ.
    pub label_names: [Option<String>; 2],
    /// In values of their own: tokens per block, and blocks in all. Read where the labels are
    /// missing.
    pub values: Option<[Spec; 2]>,
}

/// One engine as a configuration describes it; an empty text stands for a value that it does not
/// report.
#[derive(Clone, Copy, Debug, Default)]
pub struct EngineSpecs<'a> {
    /// For [`Mapping::waiting`].
    pub waiting: &'a str,
    /// For [`Mapping::running`].
    pub running: &'a str,
    /// For [`Mapping::kv_usage`].
    pub kv_usage: &'a str,
    /// For [`Mapping::lora`].
    pub lora: &'a str,
    /// For [`CacheMapping::labels`].
    pub cache: &'a str,
}

impl EngineSpecs<'_> {
    /// The mapping that these texts describe.
    ///
    /// # Errors
    ///
    /// [`SpecError`] quotes the text.
    pub fn mapping(&self) -> Result<Mapping, SpecError> {
        let one = |text: &str| -> Result<Vec<Spec>, SpecError> {
            if text.is_empty() { Ok(Vec::new()) } else { Ok(vec![text.parse()?]) }
        };
        let cache = CacheMapping { labels: one(self.cache)?.pop(), ..CacheMapping::default() };
        Ok(Mapping {
            waiting: one(self.waiting)?,
            running: one(self.running)?,
            kv_usage: one(self.kv_usage)?,
            lora: one(self.lora)?,
            cache,
            awake: None,
        })
    }
}

fn specs(texts: &[&str]) -> Vec<Spec> {
    texts.iter().map(|text| spec(text)).collect()
}

fn spec(text: &str) -> Spec {
    text.parse().expect("the specifications below are valid")
}

fn values(texts: [&str; 2]) -> CacheMapping {
    CacheMapping { values: Some(texts.map(spec)), ..CacheMapping::default() }
}

/// The engines known by name.
pub fn builtin() -> [(&'static str, Mapping); 5] {
    let vllm = Mapping {
        waiting: specs(&["vllm:num_requests_waiting"]),
        running: specs(&["vllm:num_requests_running"]),
        // Versions before 0.10 have the second name.
        kv_usage: specs(&["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"]),
        lora: specs(&["vllm:lora_requests_info"]),
        cache: CacheMapping {
            labels: Some(spec("vllm:cache_config_info")),
            ..CacheMapping::default()
        },
        awake: Some(spec("vllm:engine_sleep_state{sleep_state=awake}")),
    };
    let sglang = Mapping {
        // With priorities there is a series for each beside the one for all, which has none.
        waiting: specs(&["sglang:num_queue_reqs{priority=}"]),
        running: specs(&["sglang:num_running_reqs{priority=}"]),
        kv_usage: specs(&["sglang:token_usage{priority=}"]),
        lora: Vec::new(),
        cache: CacheMapping {
            labels: Some(spec("sglang:cache_config_info")),
            // 0.5.23 has these instead.
            values: Some([spec("sglang:page_size"), spec("sglang:num_pages")]),
            ..CacheMapping::default()
        },
        awake: None,
    };
    let trtllm = Mapping {
        waiting: specs(&["trtllm_num_requests_waiting"]),
        running: specs(&["trtllm_num_requests_running"]),
        kv_usage: specs(&["trtllm_kv_cache_utilization"]),
        lora: Vec::new(),
        cache: values(["trtllm_kv_cache_tokens_per_block", "trtllm_kv_cache_max_blocks"]),
        awake: None,
    };
    let triton_trtllm = Mapping {
        waiting: specs(&["nv_trt_llm_request_metrics{request_type=waiting}"]),
        running: specs(&["nv_trt_llm_request_metrics{request_type=scheduled}"]),
        kv_usage: specs(&["nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=fraction}"]),
        lora: Vec::new(),
        cache: values([
            "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=tokens_per}",
            "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=max}",
        ]),
        awake: None,
    };
    let triton = Mapping {
        waiting: specs(&["nv_inference_pending_request_count"]),
        running: specs(&["nv_inference_exec_count"]),
        ..Mapping::default()
    };
    [
        ("vllm", vllm),
        ("sglang", sglang),
        ("trtllm-serve", trtllm),
        ("triton-tensorrt-llm", triton_trtllm),
        ("triton", triton),
    ]
}
