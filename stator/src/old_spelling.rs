//! The sidecar's old name, `stator proxy --mode direct`, on the command line, in the environment and
//! in configuration files.

use clap::{Arg, Command};
use stator_runtime::config;
use std::ffi::OsString;

/// Commands that take the old flag.
pub(crate) const ROLES: [&str; 2] = ["proxy", "sidecar"];

/// The flag that chose between today's two commands.
pub(crate) fn mode_arg() -> Arg {
    let arg = Arg::new("mode").long("mode").env("STATOR_MODE").hide(true);
    arg.value_parser(["standalone", "direct"])
}

/// The command line with today's name of the sidecar, and whether it had the old one.
pub(crate) fn renew(command: &Command, mut args: Vec<OsString>) -> (Vec<OsString>, bool) {
    let role = args.get(1).is_some_and(|role| role == "proxy");
    let is_old = role && config::peek(command, &args, "mode").as_deref() == Some("direct");
    if is_old {
        args[1] = "sidecar".into();
    }
    (args, is_old)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;

    fn renewed(words: &[&str]) -> (String, bool) {
        let words = words.iter().map(Into::into).collect();
        let (args, is_old) = renew(&cli::command(), words);
        (args[1].to_string_lossy().into_owned(), is_old)
    }

    #[test]
    fn the_old_name_still_starts_the_sidecar() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "mode: direct\nengine-port: 8200").unwrap();
        let config = format!("--config={}", file.path().display());
        for old in
            [["--mode", "direct"], ["--mode=direct", "--http-port=0"], [&config, "--tracing"]]
        {
            let line = ["stator", "proxy", old[0], old[1]];
            assert_eq!(renewed(&line), ("sidecar".to_owned(), true), "{line:?}");
        }
        assert_eq!(renewed(&["stator", "sidecar", &config]), ("sidecar".to_owned(), false));
        assert_eq!(renewed(&["stator", "proxy", "--mode=standalone"]), ("proxy".to_owned(), false));
    }
}
