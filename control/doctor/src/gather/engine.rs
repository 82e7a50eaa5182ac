//! Version of an installed engine.

use crate::args::EngineName;
use crate::facts::EngineFacts;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::process::Command;

/// Longest first line of a script, bytes.
const LINE_BYTES_MAX: u64 = 512;
/// Longest wait for an interpreter, which may start from a slow disk.
const TIMEOUT: Duration = Duration::from_secs(30);

impl EngineName {
    /// Program of the engine, and the Python package that it comes with.
    pub(crate) fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Vllm => ("vllm", "vllm"),
            // Its agent starts `python3 -m sglang.launch_server`.
            Self::Sglang => ("python3", "sglang"),
            Self::Trtllm => ("trtllm-serve", "tensorrt_llm"),
        }
    }
}

pub(crate) async fn gather(engine: EngineName, program: Option<&Path>) -> EngineFacts {
    let (usual, package) = engine.names();
    let program = match program {
        Some(program) => program.exists().then(|| program.to_owned()),
        None => in_path(usual),
    };
    let version = match &program {
        Some(program) => version(&interpreter(program), package).await,
        None => Err(format!("no program {usual}")),
    };
    EngineFacts { program, version }
}

fn in_path(name: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// The interpreter that a script names in its first line, or else the program itself.
fn interpreter(program: &Path) -> PathBuf {
    let mut start = Vec::new();
    if let Ok(file) = File::open(program) {
        // What was read before an error is as good.
        let _ = file.take(LINE_BYTES_MAX).read_to_end(&mut start);
    }
    let text = String::from_utf8_lossy(&start);
    match text.lines().next().and_then(|line| line.strip_prefix("#!")).map(str::trim) {
        Some(line) if line.ends_with("env python3") => "python3".into(),
        Some(line) if !line.contains(' ') => line.into(),
        _ => program.to_owned(),
    }
}

/// Asks the interpreter for the version of a package, which imports nothing of it.
async fn version(interpreter: &Path, package: &str) -> Result<String, String> {
    let ask = format!("from importlib.metadata import version; print(version({package:?}))");
    let mut command = Command::new(interpreter);
    command.args(["-c", &ask]).kill_on_drop(true);
    let answer = tokio::time::timeout(TIMEOUT, command.output()).await;
    let answer = answer.map_err(|_| format!("no answer within {} s", TIMEOUT.as_secs()))?;
    let answer = answer.map_err(|error| format!("{}: {error}", interpreter.display()))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match answer.status.success() {
        true => Ok(text(&answer.stdout)),
        false => Err(text(&answer.stderr).lines().last().unwrap_or("no answer").to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// Python as far as it is asked for a version.
    fn program(folder: &Path, name: &str, script: &str) -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        path
    }

    #[tokio::test]
    async fn the_interpreter_of_the_program_knows_the_version() {
        let folder = tempfile::tempdir().unwrap();
        let python = program(folder.path(), "python", "#!/bin/sh\necho 0.32.0\n");
        let vllm = format!("#!{}\nimport vllm\n", python.display());
        let vllm = program(folder.path(), "vllm", &vllm);
        let facts = gather(EngineName::Vllm, Some(&vllm)).await;
        assert_eq!(facts, EngineFacts { program: Some(vllm), version: Ok("0.32.0".into()) });
    }

    #[tokio::test]
    async fn an_interpreter_without_the_package_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let script =
            "#!/bin/sh\necho Traceback >&2\necho PackageNotFoundError: sglang >&2\nexit 1\n";
        let python = program(folder.path(), "python3", script);
        let wrapper = format!("#!{}\n", python.display());
        let wrapper = program(folder.path(), "wrapper", &wrapper);
        let facts = gather(EngineName::Sglang, Some(&wrapper)).await;
        assert_eq!(facts.version, Err("PackageNotFoundError: sglang".into()));
        let facts = gather(EngineName::Vllm, Some(Path::new("/nowhere/vllm"))).await;
        assert_eq!(facts, EngineFacts { program: None, version: Err("no program vllm".into()) });
    }
}
