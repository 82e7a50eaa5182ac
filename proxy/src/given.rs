//! Flags that were set and have no effect in the mode of the proxy. An operator who sets one expects
//! something of it, and TLS that is silently absent is worse than a proxy that does not start.
//!
//! The command line and the configuration file count. The environment does not: processes of other
//! roles share it.

use crate::config::Mode;
use crate::direct::args::DirectArgs;
use crate::door::DoorArgs;
use crate::routing::RouterArgs;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use stator_discovery::DiscoveryArgs;
use stator_peers::PeersArgs;
use stator_runtime::config::{FOREIGN_FILE_FLAG, FOREIGN_TEXT_FLAG};
use stator_runtime::dial::DialArgs;

/// The only flag of the door that concerns API keys.
const KEY_SHARE: &str = "key-share-percent";

/// Names of the flags that were set, of those that only one of the modes obeys.
#[derive(Clone, Debug, Default)]
pub(crate) struct GivenFlags {
    /// Flags about the engine beside the proxy.
    direct: Vec<String>,
    /// Flags about a fleet.
    fleet: Vec<String>,
    /// Flags about other replicas, where no replica is named.
    peers: Vec<String>,
    /// Flags about API keys, where none is configured.
    keyless: Vec<String>,
}

impl GivenFlags {
    /// A fault for each flag that has no effect in `mode`.
    pub(crate) fn faults(&self, mode: Mode) -> Vec<String> {
        let (useless, name) = match mode {
            Mode::Standalone => (&self.direct, "standalone"),
            Mode::Direct => (&self.fleet, "direct"),
        };
        let faults = useless.iter().map(|flag| format!("{flag}: it has no effect in {name} mode"));
        let missing = [("peers", &self.peers), ("API keys", &self.keyless)];
        let alone =
            missing.iter().filter(|_| mode == Mode::Standalone).flat_map(|(what, flags)| {
                flags.iter().map(move |flag| format!("{flag}: it has no effect without {what}"))
            });
        faults.chain(alone).collect()
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
        let peers = of(PeersArgs::augment_args);
        let mut fleet = of(RouterArgs::augment_args);
        fleet.extend(of(DiscoveryArgs::augment_args));
        fleet.extend(of(DialArgs::augment_args));
        fleet.extend(peers.iter().cloned());
        // The engine beside a sidecar checks the keys of clients.
        let mut keyed = of(DoorArgs::augment_args);
        keyed.retain(|flag| flag == KEY_SHARE);
        fleet.extend(keyed.iter().cloned());
        let unless = |ids: &[&str], flags: Vec<String>| {
            let named = ids.iter().any(|id| matches.try_contains_id(id).unwrap_or_default());
            if named { Vec::new() } else { flags }
        };
        Ok(Self {
            direct: of(DirectArgs::augment_args),
            fleet,
            peers: unless(&["peers"], peers),
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
    let names = flags.filter_map(Arg::get_long);
    // They name a configuration, whose settings are judged one by one.
    let names = names.filter(|name| ![FOREIGN_FILE_FLAG, FOREIGN_TEXT_FLAG].contains(name));
    names.map(str::to_owned).collect()
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
    use crate::config::{ProxyArgs, ProxyRole};
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
        match ProxyRole::try_from(line.proxy) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn defaults_are_not_given() {
        assert_eq!(faults("", &[]), "");
        assert_eq!(faults("", &["--mode=direct"]), "");
        assert_eq!(faults("mode: direct\nengine-port: 8200", &[]), "");
    }

    #[test]
    fn flags_without_effect_are_named_all_at_once() {
        let found = faults(
            "connector: sglang",
            &["--engine-port=8201", "--tracing", "--kv-connector=mooncake", "--peers-port=1"],
        );
        for flag in ["engine-port", "connector", "tracing"] {
            let fault = format!("{flag}: it has no effect in standalone mode");
            assert!(found.contains(&fault), "{fault} is not in {found}");
        }
        assert!(found.contains("peers-port: it has no effect without peers"), "{found}");
        let keyless = faults("", &["--key-share-percent=50"]);
        assert_eq!(keyless, "key-share-percent: it has no effect without API keys");
        assert_eq!(faults("key-share-percent: 50", &["--api-key=a"]), "");
        let found = faults(
            "router-mode: round-robin",
            &[
                "--mode=direct",
                "--peers=a:1",
                "--discovery-dir=/a",
                "--cert-path=/a",
                "--key-share-percent=50",
            ],
        );
        for flag in ["router-mode", "peers", "discovery-dir", "key-share-percent"] {
            let fault = format!("{flag}: it has no effect in direct mode");
            assert!(found.contains(&fault), "{fault} is not in {found}");
        }
        assert!(found.contains("cert-path: needs secure-serving"), "{found}");
    }
}
