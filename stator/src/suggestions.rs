//! Commands that people type by the names of other programs. clap finds misspelt commands by itself.

use clap::Command;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use std::ffi::OsString;

/// Names that people type, and the commands that they look for.
const MEANT: [(&str, &str); 14] = [
    ("serve", "up"),
    ("run", "up"),
    ("start", "up"),
    ("server", "up"),
    ("launch", "up"),
    ("frontend", "proxy"),
    ("router", "proxy"),
    ("direct", "sidecar"),
    ("picker", "epp"),
    ("gateway", "epp"),
    ("worker", "agent"),
    ("engine", "agent"),
    ("benchmark", "bench"),
    ("completion", "completions"),
];

/// The error for another program's command, with the command of ours.
pub(crate) fn refusal(command: &Command, args: &[OsString]) -> Option<Error> {
    let word = args.get(1)?.to_str()?;
    let (_, meant) = MEANT.iter().find(|(typed, _)| *typed == word)?;
    let mut error = Error::new(ErrorKind::InvalidSubcommand).with_cmd(command);
    error.insert(ContextKind::InvalidSubcommand, ContextValue::String(word.to_owned()));
    let meant = vec![(*meant).to_owned()];
    error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(meant));
    Some(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;

    #[test]
    fn near_misses_are_answered_with_a_command() {
        let command = cli::command();
        for (typed, meant) in MEANT {
            assert!(command.find_subcommand(meant).is_some(), "{meant}");
            let error = refusal(&command, &["stator".into(), typed.into()]).unwrap().to_string();
            assert!(error.contains(typed) && error.contains(&format!("'{meant}'")), "{error}");
        }
        assert!(refusal(&command, &["stator".into(), "up".into()]).is_none());
    }

    #[test]
    fn misspelt_commands_are_found() {
        let error = cli::command().try_get_matches_from(["stator", "simulat"]).unwrap_err();
        assert!(error.to_string().contains("'simulate'"), "{error}");
    }
}
