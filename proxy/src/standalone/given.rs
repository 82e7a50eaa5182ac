//! Flags that were set and have no effect without another flag. An operator who sets one expects
//! something of it, and TLS that is silently absent is worse than a proxy that does not start.
//!
//! The command line and the configuration file count. The environment does not: processes of other
//! roles share it.

use crate::door::DoorArgs;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use stator_peers::PeersArgs;

/// The only flag of the door that concerns API keys.
const KEY_SHARE: &str = "key-share-percent";

/// Names of the flags that were set, of those that need another one.
#[derive(Clone, Debug, Default)]
pub(crate) struct GivenFlags {
    /// Flags about other replicas, where no replica is named.
    peers: Vec<String>,
    /// Flags about API keys, where none is configured.
    keyless: Vec<String>,
}

impl GivenFlags {
    /// A fault for each flag that has no effect.
    pub(crate) fn faults(&self) -> Vec<String> {
        let missing = [("peers", &self.peers), ("API keys", &self.keyless)];
        let faults = missing.iter().flat_map(|(what, flags)| {
            flags.iter().map(move |flag| format!("{flag}: it has no effect without {what}"))
        });
        faults.collect()
    }
}

/// Reads the flags of the other groups, and has none of its own.
impl Args for GivenFlags {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

impl FromArgMatches for GivenFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let of = |augment: fn(Command) -> Command| {
            let mut group = augment(Command::new("flags"));
            // Switches get their default here.
            group.build();
            given(matches, &group)
        };
        let mut keyed = of(DoorArgs::augment_args);
        keyed.retain(|flag| flag == KEY_SHARE);
        let unless = |ids: &[&str], flags: Vec<String>| {
            let named = ids.iter().any(|id| matches.try_contains_id(id).unwrap_or_default());
            if named { Vec::new() } else { flags }
        };
        Ok(Self {
            peers: unless(&["peers"], of(PeersArgs::augment_args)),
            keyless: unless(&["api_key", "api_keys_file"], keyed),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Names of the flags of `group` that are set to something else than their default.
fn given(matches: &ArgMatches, group: &Command) -> Vec<String> {
    let flags = group.get_arguments().filter(|flag| is_given(matches, flag));
    flags.filter_map(Arg::get_long).map(str::to_owned).collect()
}

fn is_given(matches: &ArgMatches, flag: &Arg) -> bool {
    let id = flag.get_id().as_str();
    let Ok(Some(values)) = matches.try_get_raw(id) else { return false };
    match matches.value_source(id) {
        Some(ValueSource::CommandLine) => true,
        // A configuration file's values are the defaults of the flags.
        Some(ValueSource::DefaultValue) => {
            !values.eq(flag.get_default_values().iter().map(|value| value.as_os_str()))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use crate::standalone::config::{ProxyArgs, ProxySettings};
    use clap::{Command, CommandFactory, FromArgMatches, Parser};
    use stator_runtime::config;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        proxy: ProxyArgs,
    }

    /// The faults of a command line with a configuration file of this text.
    fn faults(text: &str, flags: &[&str]) -> String {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("it can be written");
        let config = format!("--config={}", file.path().display());
        let role = Line::command().name("proxy").arg(config::config_arg());
        let words = ["stator", "proxy", &config].into_iter().chain(flags.iter().copied());
        let words = words.map(Into::into).collect();
        let matches = config::parse(Command::new("stator").subcommand(role), words);
        let matches = matches.expect("the flags are known");
        let matches = matches.subcommand_matches("proxy").expect("there is no other");
        let line = Line::from_arg_matches(matches).expect("the values are sound");
        match ProxySettings::try_from(line.proxy) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn defaults_are_not_given() {
        assert_eq!(faults("", &[]), "");
        assert_eq!(faults("key-share-percent: 100", &[]), "");
    }

    #[test]
    fn flags_without_effect_are_named_all_at_once() {
        let found = faults("key-share-percent: 40", &["--peers-port=1", "--cert-path=/a"]);
        for fault in [
            "peers-port: it has no effect without peers",
            "key-share-percent: it has no effect without API keys",
            "cert-path: needs secure-serving",
        ] {
            assert!(found.contains(fault), "{fault} is not in {found}");
        }
        assert_eq!(faults("key-share-percent: 50", &["--api-key=a"]), "");
    }
}
