//! Files that run inside engines, for agents that start these.

/// Modules that engines load, by their file names, for a folder on the engines' Python path.
pub const MODULES: [(&str, &str); 6] = [
    ("sglang_0_5.py", include_str!("../shims/sglang_0_5.py")),
    ("stator_device.py", include_str!("../shims/stator_device.py")),
    ("stator_link.py", include_str!("../shims/stator_link.py")),
    ("stator_prompt.py", include_str!("../shims/stator_prompt.py")),
    ("trtllm_1_2.py", include_str!("../shims/trtllm_1_2.py")),
    ("vllm_0_32.py", include_str!("../shims/vllm_0_32.py")),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Code that runs inside engines is to be read in one go.
    #[test]
    fn a_module_has_300_lines_at_most() {
        for (name, text) in MODULES {
            let lines = text.lines().count();
            assert!(lines <= 300, "{name}: {lines} lines");
        }
    }
}
