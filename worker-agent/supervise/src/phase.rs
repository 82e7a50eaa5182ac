//! Phases of an engine's start, recognised in its output.

use std::fmt;

/// Phase of a start. Later phases compare greater; an engine may skip some.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// The process runs and has printed nothing of interest: it imports and reads its
    /// configuration.
    #[default]
    Launching,
    /// The engine reads the model.
    LoadingWeights,
    /// The engine compiles kernels.
    Compiling,
    /// The engine measures the free memory, and takes it for KV.
    AllocatingKv,
    /// The engine captures graphs or runs the first batches.
    WarmingUp,
    /// The engine has opened its port.
    Serving,
}

/// Texts that mark the phases; the first match in this list counts.
///
/// Source: logs of vLLM 0.32.0 and SGLang 0.5.23; for graphs, which need a GPU, their sources.
const MARKS: [(&str, Phase); 18] = [
    ("Application startup complete", Phase::Serving),
    ("The server is fired up and ready to roll", Phase::Serving),
    ("Capturing CUDA graph", Phase::WarmingUp),
    ("Capture cuda graph begin", Phase::WarmingUp),
    ("Graph capturing finished", Phase::WarmingUp),
    ("init engine (profile, create kv cache, warmup model) took", Phase::WarmingUp),
    ("KV cache size:", Phase::AllocatingKv),
    ("Available KV cache memory", Phase::AllocatingKv),
    ("KV Cache is allocated", Phase::AllocatingKv),
    ("Memory pool end", Phase::AllocatingKv),
    ("torch.compile takes", Phase::Compiling),
    ("Dynamo bytecode transform time", Phase::Compiling),
    ("Start compiling function", Phase::Compiling),
    ("Starting to load model", Phase::LoadingWeights),
    ("Loading safetensors checkpoint shards", Phase::LoadingWeights),
    ("Loading weights", Phase::LoadingWeights),
    ("Load weight begin", Phase::LoadingWeights),
    ("Multi-thread loading shards", Phase::LoadingWeights),
];

impl Phase {
    /// The phase that a line marks, if it marks one.
    pub fn of(line: &str) -> Option<Self> {
        MARKS.iter().find(|(mark, _)| line.contains(mark)).map(|(_, phase)| *phase)
    }

    /// A short name, for logs and pages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Launching => "launching",
            Self::LoadingWeights => "loading_weights",
            Self::Compiling => "compiling",
            Self::AllocatingKv => "allocating_kv",
            Self::WarmingUp => "warming_up",
            Self::Serving => "serving",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What vLLM 0.32.0 printed on a CPU, shortened.
    const VLLM: [(&str, Option<Phase>); 7] = [
        ("(APIServer pid=1) INFO 11-22 06:45:27 [model.py:2152] Using max model len 2048", None),
        (
            "(EngineCore pid=2) INFO 11-22 06:45:44 [cpu_model_runner.py:68] Starting to load model /m...",
            Some(Phase::LoadingWeights),
        ),
        (
            "Loading safetensors checkpoint shards: 100% Completed | 1/1 [00:00<00:00, 151.17it/s]",
            Some(Phase::LoadingWeights),
        ),
        (
            "(EngineCore pid=2) INFO 11-22 06:45:44 [default_loader.py:501] Loading weights took 0.01 seconds",
            Some(Phase::LoadingWeights),
        ),
        (
            "(EngineCore pid=2) INFO 11-22 06:45:45 [kv_cache_utils.py:2327] CPU KV cache size: 65,536 tokens",
            Some(Phase::AllocatingKv),
        ),
        (
            "(EngineCore pid=2) INFO 11-22 06:45:45 [core.py:402] init engine (profile, create kv cache, warmup model) took 0.06 s",
            Some(Phase::WarmingUp),
        ),
        ("INFO:     Application startup complete.", Some(Phase::Serving)),
    ];

    #[test]
    fn a_start_of_vllm_goes_through_its_phases_in_order() {
        let phases: Vec<_> = VLLM.iter().filter_map(|(line, _)| Phase::of(line)).collect();
        assert!(phases.is_sorted(), "{phases:?}");
        for (line, phase) in VLLM {
            assert_eq!(Phase::of(line), phase, "{line}");
        }
    }

    #[test]
    fn a_start_of_sglang_ends_with_serving() {
        let line = "[2026-11-22 06:45:45] The server is fired up and ready to roll!";
        assert_eq!(Phase::of(line), Some(Phase::Serving));
    }
}
