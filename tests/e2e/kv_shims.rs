//! Python modules that run inside engines, without an engine.

use crate::vllm_tiers::SHIMS;
use stator_tests::tooling::installed;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Runs a module of tests, and ends without waiting for the threads of links: daemons, which Python
/// may meet in the middle of their work when it ends in order.
const UNITTEST: &str = "
import os, sys, unittest
result = unittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromName(sys.argv[1]))
sys.stderr.flush()
os._exit(0 if result.wasSuccessful() and result.testsRun else 1)
";

/// The shims' own tests: every method takes whatever there is, and no request waits for long. Those
/// of other engines speak to stand-ins of their interfaces.
#[test]
fn shim_never_raises() {
    let Some(vllm) = installed("STATOR_TEST_VLLM", "vllm") else { return };
    let python = vllm.with_file_name("python");
    let engines = ["test_vllm_0_32", "test_vllm_connector", "test_sglang_0_5", "test_trtllm_1_2"];
    for module in engines.into_iter().chain(["test_stator_device"]) {
        let mut tests = Command::new(&python);
        tests.args(["-B", "-c", UNITTEST, module]).current_dir(SHIMS);
        let result = tests.output().unwrap();
        assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
    }
}

/// `pip` takes the modules from the repository as they are: without network, compiler or tests.
#[test]
fn shims_install_by_pip() {
    let Some(vllm) = installed("STATOR_TEST_VLLM", "vllm") else { return };
    let home = tempfile::tempdir().unwrap();
    let (source, target) = (home.path().join("source"), home.path().join("target"));
    // A build leaves folders beside its source.
    std::fs::create_dir(&source).unwrap();
    let mut expected = modules(Path::new(SHIMS));
    expected.retain(|name, _| !name.starts_with("test_"));
    for (name, text) in &expected {
        std::fs::write(source.join(name), text).unwrap();
    }
    let project = "pyproject.toml";
    std::fs::copy(Path::new(SHIMS).join(project), source.join(project)).unwrap();

    let mut pip = Command::new(vllm.with_file_name("python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]);
    pip.args(["--no-deps", "--no-build-isolation", "--target"]).args([&target, &source]);
    let result = pip.current_dir(home.path()).output().unwrap();
    assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
    assert!(expected.contains_key("vllm_0_32.py"));
    assert_eq!(modules(&target), expected);
}

/// Python files of a folder, and what is in them.
fn modules(folder: &Path) -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let modules = entries.filter(|path| path.extension().is_some_and(|end| end == "py"));
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    modules.map(|path| (name(&path), std::fs::read_to_string(&path).unwrap())).collect()
}
