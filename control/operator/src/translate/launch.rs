//! Modules that containers run.

use super::shell;
use serde_json::Value;

/// Start of one of Dynamo's modules.
#[derive(Debug, PartialEq)]
pub(super) struct ModuleLaunch {
    /// Name, for example `dynamo.vllm`.
    pub(super) module: String,
    /// Words after the name.
    pub(super) words: Vec<String>,
}

/// The module that a container runs; `None` if it runs something else.
///
/// # Errors
///
/// The module that a script starts, and the obstacle to reading the script.
pub(super) fn launch(container: &Value) -> Option<Result<ModuleLaunch, (String, String)>> {
    let list = |name: &str| container[name].as_array().cloned().unwrap_or_default();
    let words = list("command").into_iter().chain(list("args"));
    let words: Vec<_> = words.filter_map(|word| word.as_str().map(str::to_owned)).collect();
    let shell = words.first().is_some_and(|program| is_called(program, &["sh", "bash"]));
    if !shell {
        return of_words(words).map(Ok);
    }
    let script = words.iter().skip(1).find(|word| !word.starts_with('-'))?;
    let module = mentioned(script)?;
    match shell::words(script) {
        Err(obstacle) => Some(Err((module, obstacle))),
        Ok(words) => {
            let words = words.into_iter().skip_while(|word| word == "exec").collect();
            let unread = || (module, "the script does not begin with it".to_owned());
            Some(of_words(words).ok_or_else(unread))
        }
    }
}

fn of_words(words: Vec<String>) -> Option<ModuleLaunch> {
    let mut words = words.into_iter();
    let program = words.next()?;
    let mut next = words.next()?;
    while next.starts_with('-') && next != "-m" {
        next = words.next()?;
    }
    let module = words.next().filter(|module| next == "-m" && module.starts_with("dynamo."))?;
    let python = is_called(&program, &["python", "python3"]);
    python.then(|| ModuleLaunch { module, words: words.collect() })
}

fn is_called(program: &str, names: &[&str]) -> bool {
    names.contains(&program.rsplit('/').next().unwrap_or(program))
}

/// The module that a script names after `-m`.
fn mentioned(script: &str) -> Option<String> {
    let mut words = script.split_whitespace().skip_while(|word| *word != "-m").skip(1);
    words.next().filter(|word| word.starts_with("dynamo.")).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(command: &[&str], args: &[&str], module: &str, words: &[&str]) {
        let found = launch(&json!({ "command": command, "args": args }));
        let found = found.expect("a module").expect("a readable script");
        assert_eq!(
            (found.module.as_str(), found.words),
            (module, words.iter().map(|word| (*word).to_owned()).collect())
        );
    }

    #[test]
    fn a_module_is_found_however_it_is_started() {
        check(&["python3", "-m", "dynamo.vllm"], &["--a", "b"], "dynamo.vllm", &["--a", "b"]);
        check(&["python3"], &["-m", "dynamo.vllm", "--a"], "dynamo.vllm", &["--a"]);
        check(&["/usr/bin/python3", "-u"], &["-m", "dynamo.mocker"], "dynamo.mocker", &[]);
        let script = "exec python3 -m dynamo.sglang --m $M";
        check(&["/bin/sh", "-c"], &[script], "dynamo.sglang", &["--m", "$(M)"]);
    }

    #[test]
    fn other_programs_are_no_modules() {
        for command in [
            json!(["nginx"]),
            json!(["python3", "-m", "http.server"]),
            json!(["sh", "-c"]),
            json!([]),
        ] {
            assert_eq!(launch(&json!({ "command": command })), None);
        }
        assert_eq!(launch(&json!({ "command": ["sh", "-c"], "args": ["sleep 1"] })), None);
    }

    #[test]
    fn a_script_that_needs_a_shell_names_its_module() {
        let container = json!({ "command": ["sh", "-c"], "args": ["a && python3 -m dynamo.vllm"] });
        let (module, _) = launch(&container).expect("a module").expect_err("two commands");
        assert_eq!(module, "dynamo.vllm");
    }
}
