//! Files that run inside engines, for agents that start these.

/// Modules for vLLM 0.32 by their file names, for a folder on its Python path.
pub const VLLM_0_32: [(&str, &str); 3] = [
    ("stator_link.py", include_str!("../shims/stator_link.py")),
    ("vllm_0_32.py", include_str!("../shims/vllm_0_32.py")),
    ("vllm_0_32_worker.py", include_str!("../shims/vllm_0_32_worker.py")),
];
