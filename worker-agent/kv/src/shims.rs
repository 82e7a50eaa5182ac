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

    #[test]
    fn pip_installs_all_modules_under_the_version_of_the_agent() {
        let package = include_str!("../shims/pyproject.toml");
        for (name, _) in MODULES {
            let module = name.strip_suffix(".py").expect("a Python module");
            assert!(package.contains(&format!("    \"{module}\",\n")), "{module} is not installed");
        }
        let version = env!("CARGO_PKG_VERSION");
        assert!(package.contains(&format!("\nversion = \"{version}\"\n")), "not {version}");
    }
}
