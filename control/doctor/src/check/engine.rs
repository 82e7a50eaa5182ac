//! Engines: whether there is one, and whether stator is tested with it.

use crate::args::EngineName;
use crate::facts::EngineFacts;
use crate::finding::Finding;

/// Version that stator's tests run; `None` where there is only documentation.
fn tested(engine: EngineName) -> Option<&'static str> {
    match engine {
        EngineName::Vllm => Some("0.32.0"),
        EngineName::Sglang => Some("0.5.23"),
        EngineName::Trtllm => None,
    }
}

pub(crate) fn check(engine: EngineName, found: &EngineFacts) -> Finding {
    let (usual, package) = engine.names();
    let version = match (&found.program, &found.version) {
        (None, _) => {
            let says = format!("the program {usual} is not there");
            let advice = format!("`pip install {package}`, or name it with --engine-program");
            return Finding::wrong("engine", says, advice);
        }
        (Some(program), Err(error)) => {
            let says = format!("{} tells no version: {error}", program.display());
            let advice = format!("`pip install {package}` into the environment of that program");
            return Finding::wrong("engine", says, advice);
        }
        (Some(_), Ok(version)) => version,
    };
    let says = format!("{package} {version}");
    let Some(tested) = tested(engine) else {
        let advice = "stator speaks to it as its documents say; see docs/compatibility.md";
        return Finding::note("engine", format!("{says}, with which no test runs"), advice);
    };
    match minor(version) == minor(tested) {
        true => Finding::fine("engine", says),
        false => Finding::warning(
            "engine",
            format!("{says}; stator is tested with {tested}"),
            "try it with a request before it serves; see docs/compatibility.md",
        ),
    }
}

/// The first two parts of a version.
fn minor(version: &str) -> Vec<&str> {
    version.split('.').take(2).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Severity;

    fn check_version(engine: EngineName, version: Result<&str, &str>) -> Severity {
        let version = version.map(str::to_owned).map_err(str::to_owned);
        check(engine, &EngineFacts { program: Some("/p".into()), version }).severity
    }

    #[test]
    fn a_version_of_another_minor_is_untested() {
        assert_eq!(check_version(EngineName::Vllm, Ok("0.32.1+cpu")), Severity::Fine);
        assert_eq!(check_version(EngineName::Vllm, Ok("0.33.0")), Severity::Warning);
        assert_eq!(check_version(EngineName::Trtllm, Ok("1.3.0")), Severity::Note);
        assert_eq!(check_version(EngineName::Sglang, Err("no package")), Severity::Wrong);
        let nothing = EngineFacts { program: None, version: Err(String::new()) };
        assert_eq!(check(EngineName::Vllm, &nothing).severity, Severity::Wrong);
    }
}
