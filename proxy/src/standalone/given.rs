//! Flags that were set and have no effect without another flag. An operator who sets one expects
//! something of it, and TLS that is silently absent is worse than a proxy that does not start.
//!
//! The command line and the configuration file count. The environment does not: processes of other
//! roles share it.

use super::routing::PlacementArgs;
use crate::api_args::ApiArgs;
use crate::door::DoorArgs;
use crate::keys::KeyArgs;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use stator_peers::PeersArgs;

/// Flags about what API keys share.
const OF_KEYS: [&str; 2] = ["key-share-percent", "shared-prefixes"];
/// Flags about costs, which one way of choosing workers knows.
pub const COST_FLAGS: &[&str] = &[
    "router-cost",
    "router-kv-overlap-score-credit",
    "router-kv-overlap-score-credit-decay",
    "router-host-cache-hit-weight",
    "router-disk-cache-hit-weight",
    "router-shared-cache-multiplier",
    "router-prefill-load-scale",
    "router-decode-active-request-weight",
    "router-temperature",
    "router-output-block-decay",
];
/// Flags about responses that are kept.
const OF_RESPONSES: [&str; 3] = ["responses-max", "responses-store", "responses-ttl-s"];
/// Flags about sessions that have a worker.
const OF_SESSIONS: [&str; 1] = ["router-session-affinity-mode"];
/// Flags about clients without a share.
const OF_SHARES: [&str; 1] = ["trusted-gateways"];

/// Faults of the flags that were set and have no effect.
#[derive(Clone, Debug, Default)]
pub(crate) struct GivenFlags(Vec<String>);

impl GivenFlags {
    /// A fault for each flag that has no effect.
    pub(crate) fn faults(&self) -> Vec<String> {
        self.0.clone()
    }
}

/// The text of a flag's value, where it has one.
fn value<'m>(matches: &'m ArgMatches, id: &str) -> Option<&'m str> {
    matches.try_get_raw(id).ok()??.next()?.to_str()
}

/// Groups of flags, and what each has no effect without, where that is missing.
fn missing(matches: &ArgMatches) -> impl Iterator<Item = (&'static str, Vec<String>)> {
    let is = |id: &str, text: &str| value(matches, id) == Some(text);
    let has = |id: &str| matches.try_contains_id(id).unwrap_or_default();
    let of = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let has_keys = has("api_key") || has("api_keys_file");
    let mode = value(matches, "router_mode");
    [
        (!has("peers"), "peers", names(PeersArgs::augment_args)),
        (!has_keys, "API keys", of(&OF_KEYS)),
        (mode.is_some_and(|mode| mode != "kv"), "router-mode kv", of(COST_FLAGS)),
        (is("responses_max_bytes", "0"), "responses-max-bytes above 0", of(&OF_RESPONSES)),
        (
            is("router_session_affinity_ttl_s", "0"),
            "router-session-affinity-ttl-s above 0",
            of(&OF_SESSIONS),
        ),
        (is("address_share_percent", "100"), "address-share-percent below 100", of(&OF_SHARES)),
    ]
    .into_iter()
    .filter_map(|(is_missing, what, flags)| is_missing.then_some((what, flags)))
}

/// Names of a group of flags.
fn names(augment: fn(Command) -> Command) -> Vec<String> {
    let group = augment(Command::new("flags"));
    group.get_arguments().filter_map(Arg::get_long).map(str::to_owned).collect()
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
        let groups = PlacementArgs::augment_args(PeersArgs::augment_args(Command::new("flags")));
        let mut groups =
            ApiArgs::augment_args(KeyArgs::augment_args(DoorArgs::augment_args(groups)));
        let mut faults = Vec::new();
        // Switches get their default here.
        groups.build();
        for (what, flags) in missing(matches) {
            let flags = groups.get_arguments().filter(|flag| {
                flag.get_long().is_some_and(|long| flags.iter().any(|name| name == long))
            });
            let given = flags.filter(|flag| is_given(matches, flag)).filter_map(Arg::get_long);
            faults.extend(given.map(|flag| format!("{flag}: it has no effect without {what}")));
        }
        Ok(Self(faults))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Whether a flag is set to something else than its default.
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

    #[test]
    fn flags_of_what_is_switched_off_are_named() {
        for (flags, fault) in [
            (&["--shared-prefixes"][..], "shared-prefixes: it has no effect without API keys"),
            (
                &["--router-mode=random", "--router-temperature=1"],
                "router-temperature: it has no effect without router-mode kv",
            ),
            (
                &["--responses-max-bytes=0", "--responses-ttl-s=9"],
                "responses-ttl-s: it has no effect without responses-max-bytes above 0",
            ),
            (
                &["--router-session-affinity-mode=soft"],
                "router-session-affinity-mode: it has no effect without router-session-affinity-ttl-s above 0",
            ),
            (
                &["--trusted-gateways=10.0.0.1", "--address-share-percent=100"],
                "trusted-gateways: it has no effect without address-share-percent below 100",
            ),
        ] {
            assert_eq!(faults("", flags), fault);
            // Without the one that switches it off, or with the one that it needs.
            let others = ["--api-key=a", "--router-session-affinity-ttl-s=9"];
            let with = [&others[..], &flags[flags.len() - 1..]].concat();
            let with: Vec<_> = with.into_iter().filter(|flag| !flag.ends_with("=100")).collect();
            let with = match fault.starts_with("trusted") {
                true => vec![flags[0]],
                false => with,
            };
            assert_eq!(faults("", &with), "", "{with:?}");
        }
    }
}
