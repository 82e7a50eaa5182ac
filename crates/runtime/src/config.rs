//! Configuration: command line over environment over file over default.
//!
//! A role's settings are one `clap` struct. The file is YAML with the same names as the flags
//! (`http-port: 8000`), so there is one vocabulary and one place that documents it. Unknown keys
//! and values that do not fit are all reported at once.
//!
//! A role that takes another program's command line may name its file by [`FOREIGN_FILE_FLAG`], or
//! hold its text in [`FOREIGN_TEXT_FLAG`].

use clap::builder::Resettable;
use clap::{Arg, ArgAction, ArgMatches, Command, Id};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

/// The flag that names the configuration file.
pub const CONFIG_FLAG: &str = "config";
/// The environment variable that names the configuration file.
pub const CONFIG_ENV: &str = "STATOR_CONFIG";

/// Other flag that may name the configuration file, in roles that have it.
pub const FOREIGN_FILE_FLAG: &str = "configuration-file";
/// Flag that may hold the configuration itself, in roles that have it.
pub const FOREIGN_TEXT_FLAG: &str = "configuration";
/// All these flags; none of them is a setting.
const SOURCES: [&str; 3] = [CONFIG_FLAG, FOREIGN_FILE_FLAG, FOREIGN_TEXT_FLAG];

/// Why the configuration was refused; every fault that could be found, one a line.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct ConfigError(pub Vec<String>);

/// The flag for a configuration file, to be added to every role's command.
pub fn config_arg() -> Arg {
    Arg::new(CONFIG_FLAG)
        .long(CONFIG_FLAG)
        .env(CONFIG_ENV)
        .value_name("FILE")
        .help("YAML file with the same names as the flags, for example `http-port: 8000`")
}

/// Parses `args` for `command`, whose subcommands are the roles, with the file that `--config`
/// or `STATOR_CONFIG` names underneath.
///
/// # Errors
///
/// [`ConfigError`] for what the file holds. Faults on the command line end the process with
/// `clap`'s own message, as `--help` does.
pub fn parse(mut command: Command, args: Vec<OsString>) -> Result<ArgMatches, ConfigError> {
    let words: Vec<String> = args.iter().map(|a| a.to_string_lossy().into_owned()).collect();
    let role = words.iter().skip(1).find_map(|word| command.find_subcommand(word));
    if let Some(role) = role
        && let Some((source, text)) = config_text(role, &words)?
    {
        let role = role.get_name().to_owned();
        command = with_defaults(command, &role, (source, &text))?;
    }
    Ok(command.get_matches_from(args))
}

/// The value that `args` gives to one setting of the role that they name, or else the environment,
/// or else the file. Faults are left to [`parse`], which reports them.
pub fn peek(command: &Command, args: &[OsString], setting: &str) -> Option<String> {
    let words: Vec<String> = args.iter().map(|a| a.to_string_lossy().into_owned()).collect();
    let role = words.iter().skip(1).find_map(|word| command.find_subcommand(word))?;
    let arg = role.get_arguments().find(|arg| arg.get_long() == Some(setting))?;
    let written = word_after(&words, setting);
    let environment = || std::env::var(arg.get_env()?).ok();
    let file = || {
        let (_, text) = config_text(role, &words).ok()??;
        let values: BTreeMap<String, serde_yaml_ng::Value> = crate::yaml::from_str(&text).ok()?;
        Some(values.get(setting)?.as_str()?.to_owned())
    };
    written.or_else(environment).or_else(file)
}

/// The value of a flag, as the command line has it: `--flag value` or `--flag=value`.
fn word_after(words: &[String], flag: &str) -> Option<String> {
    let flag = format!("--{flag}");
    let spaced = words.iter().position(|w| *w == flag).and_then(|i| words.get(i + 1)).cloned();
    let joined = || words.iter().find_map(|w| w.strip_prefix(&flag)?.strip_prefix('='));
    spaced.or_else(|| joined().map(String::from))
}

/// The configuration, and the flag that it comes by, if there is one. Reads no more of the command
/// line than that.
fn config_text(
    role: &Command,
    words: &[String],
) -> Result<Option<(&'static str, String)>, ConfigError> {
    let said = |source: &'static str| {
        role.get_arguments().find(|arg| arg.get_long() == Some(source))?;
        Some((source, word_after(words, source)?))
    };
    let mut said: Vec<_> = SOURCES.into_iter().filter_map(said).collect();
    if said.is_empty() {
        said.extend(std::env::var(CONFIG_ENV).ok().map(|file| (CONFIG_FLAG, file)));
    }
    let refuse = |fault: String| Err(ConfigError(vec![fault]));
    match said.as_slice() {
        [] => Ok(None),
        [(FOREIGN_TEXT_FLAG, text)] => Ok(Some((FOREIGN_TEXT_FLAG, text.clone()))),
        [(source, file)] => match std::fs::read_to_string(Path::new(file)) {
            Ok(text) => Ok(Some((source, text))),
            Err(error) => refuse(format!("{source}: cannot read {file:?}: {error}")),
        },
        [(one, _), (other, _), ..] => refuse(format!("{other}: {one} says what is configured")),
    }
}

/// Makes the values of a configuration file the defaults of the role's flags.
fn with_defaults(
    command: Command,
    role: &str,
    (source, text): (&str, &str),
) -> Result<Command, ConfigError> {
    let refuse = |fault: String| ConfigError(vec![fault]);
    let values: BTreeMap<String, serde_yaml_ng::Value> = if text.trim().is_empty() {
        BTreeMap::new()
    } else {
        crate::yaml::from_str(text).map_err(|error| refuse(format!("{source}: {error}")))?
    };
    let found = command.find_subcommand(role).expect("the role was found by its name");
    let mut faults = Vec::new();
    let mut defaults = BTreeMap::new();
    for (key, value) in values {
        let arg = found.get_arguments().find(|arg| is_named(arg, &key));
        match arg.filter(|arg| !arg.get_long().is_some_and(|long| SOURCES.contains(&long))) {
            None => faults.push(format!("{key}: no such setting of `{role}`")),
            Some(arg) if defaults.contains_key(arg.get_id()) => {
                faults.push(format!("{key}: another name of the same setting is there too"));
            }
            Some(arg) => match words_of(arg, &value).and_then(|w| check(arg, &key, w)) {
                Ok(words) => drop(defaults.insert(arg.get_id().clone(), words)),
                Err(fault) => faults.push(format!("{key}: {fault}")),
            },
        }
    }
    // All faults at once, so that an operator mends the file in one go.
    if !faults.is_empty() {
        return Err(ConfigError(faults));
    }
    Ok(command.mut_subcommand(role, |mut found| {
        for (id, words) in defaults {
            found = found.mut_arg(id, |arg| arg.default_values(words));
        }
        found
    }))
}

/// Whether a flag has this name, or has it too.
fn is_named(arg: &Arg, name: &str) -> bool {
    let aliases = arg.get_all_aliases().unwrap_or_default();
    arg.get_long() == Some(name) || aliases.contains(&name)
}

/// The words that a value would be on the command line.
fn words_of(arg: &Arg, value: &serde_yaml_ng::Value) -> Result<Vec<String>, String> {
    use serde_yaml_ng::Value;
    match value {
        Value::Bool(b) => Ok(vec![b.to_string()]),
        Value::Number(n) => Ok(vec![n.to_string()]),
        Value::String(s) => Ok(vec![s.clone()]),
        Value::Sequence(items) if matches!(arg.get_action(), ArgAction::Append) => {
            items.iter().map(|item| words_of(arg, item).map(|w| w.concat())).collect()
        }
        other => Err(format!("expected one plain value, got {other:?}")),
    }
}

/// Lets the flag's own parser judge the words, alone.
fn check(arg: &Arg, key: &str, words: Vec<String>) -> Result<Vec<String>, String> {
    let arg = arg
        .clone()
        .required(false)
        // What it needs and what it excludes is judged with the others.
        .requires(Resettable::<Id>::Reset)
        .conflicts_with(Resettable::<Id>::Reset);
    let is_switch = matches!(arg.get_action(), ArgAction::SetTrue | ArgAction::SetFalse);
    if is_switch {
        return match words.as_slice() {
            [word] if word == "true" || word == "false" => Ok(words),
            _ => Err(format!("expected true or false, got {:?}", words.concat())),
        };
    }
    let id = arg.get_id().clone();
    let alone = Command::new("config").no_binary_name(true).arg(arg);
    let line = words.iter().map(|word| format!("--{key}={word}"));
    match alone.try_get_matches_from(line) {
        Ok(matches) if matches.contains_id(id.as_str()) => Ok(words),
        Ok(_) => Err("expected a value".into()),
        Err(error) => {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            Err(first.trim_start_matches("error: ").to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::value_parser;

    fn command() -> Command {
        let port = Arg::new("http_port").long("http-port").alias("port");
        let port = port.value_parser(value_parser!(u16));
        let tag = Arg::new("tag").long("tag").action(ArgAction::Append);
        let quiet = Arg::new("quiet").long("quiet").action(ArgAction::SetTrue);
        let role =
            Command::new("proxy").args([port.default_value("8000"), tag, quiet, config_arg()]);
        Command::new("stator").subcommand(role)
    }

    fn check_file(text: &str, args: &[&str]) -> Result<ArgMatches, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let mut line: Vec<OsString> = vec!["stator".into(), "proxy".into()];
        line.push(format!("--config={}", file.path().display()).into());
        line.extend(args.iter().map(OsString::from));
        let matches = parse(command(), line).map_err(|error| error.to_string())?;
        Ok(matches.subcommand().unwrap().1.clone())
    }

    #[test]
    fn the_command_line_wins_over_the_file_and_the_file_over_the_default() {
        let port = |text, args: &[&str]| {
            *check_file(text, args).unwrap().get_one::<u16>("http_port").unwrap()
        };
        assert_eq!(port("", &[]), 8000);
        assert_eq!(port("http-port: 9000", &[]), 9000);
        assert_eq!(port("http-port: 9000", &["--http-port=7000"]), 7000);
    }

    #[test]
    fn lists_and_switches_are_read() {
        let matches = check_file("tag: [a, b]\nquiet: true", &[]).unwrap();
        let tags: Vec<&String> = matches.get_many("tag").unwrap().collect();
        assert_eq!(tags, ["a", "b"]);
        assert!(matches.get_flag("quiet"));
    }

    #[test]
    fn a_setting_is_found_by_its_other_names_and_said_once() {
        let matches = check_file("port: 9000", &[]).unwrap();
        assert_eq!(matches.get_one("http_port"), Some(&9000u16));
        let error = check_file("port: 9000\nhttp-port: 9001", &[]).unwrap_err();
        assert!(error.contains("port: another name"), "{error}");
    }

    #[test]
    fn a_setting_is_read_ahead_from_the_command_line_or_the_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "tag: file").unwrap();
        let config = format!("--config={}", file.path().display());
        let peek = |words: &[&str]| {
            let line: Vec<_> = words.iter().chain([&config.as_str()]).map(Into::into).collect();
            super::peek(&command(), &line, "tag")
        };
        assert_eq!(peek(&["stator", "proxy", "--tag", "line"]).as_deref(), Some("line"));
        assert_eq!(peek(&["stator", "proxy", "--tag=line"]).as_deref(), Some("line"));
        assert_eq!(peek(&["stator", "proxy"]).as_deref(), Some("file"));
        assert_eq!(peek(&["stator", "other"]), None);
    }

    #[test]
    fn every_fault_of_a_file_is_reported_at_once() {
        let error = check_file("http-port: 70000\nhttp-prot: 1\nquiet: 7", &[]).unwrap_err();
        for part in
            ["http-port:", "70000", "65535", "http-prot: no such setting", "quiet: expected"]
        {
            assert!(error.contains(part), "{error}");
        }
    }
}
