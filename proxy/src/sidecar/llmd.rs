//! Flags of llm-d's routing sidecar that have no name of ours: those that mean nothing here are
//! taken all the same, so that a deployment's arguments can stay, and are told at start.
//!
//! What differs from that sidecar: the list of allowed prefill targets is in force unless switched
//! off, and says which by addresses, not by an InferencePool; plain HTTP is served unless
//! `--secure-proxy` asks for TLS; `/health` is the engine's, `/healthz` this proxy's own; where
//! prefill fails, the engine computes the prompt, unless
//! `--prefill-fallback=false`; an encoder that fails costs no request, its items are encoded where
//! the prompt is computed; of chats only those are decoded in chunks that bear it; names of
//! MoRI-IO's pods may be unknown at start; where prefill fails beside decode, the engine computes the
//! prompt; what the environment says wins over what the configuration does. Only paths that serve
//! requests, listed fields of bodies and listed headers reach the engine, where that sidecar passes
//! everything: `pass-operations`, `pass-fields` and `pass-headers` let more pass.
//!
//! Source: `pkg/sidecar/proxy/options.go` of llm-d's router.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use stator_runtime::config::{FOREIGN_FILE_FLAG, FOREIGN_TEXT_FLAG};
use std::time::Duration;

/// Longest pause between two attempts.
const BACKOFF_MAX: Duration = Duration::from_secs(60);
/// Longest wait for prefill.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// Flags, and variables of the environment, of llm-d's sidecar alone.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct LlmdArgs {
    /// As `prefill-sampling`.
    #[arg(long, env = "ENABLE_PREFILLER_SAMPLING", hide = true, num_args = 0..=1,
          require_equals = true, default_missing_value = "true", value_parser = boolean,
          action = ArgAction::Set)]
    pub(crate) enable_prefiller_sampling: Option<bool>,
    /// As `bootstrap-port`, for `sglang`.
    #[arg(long, env = "SGLANG_BOOTSTRAP_PORT", hide = true,
          value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) sglang_bootstrap_port: Option<u16>,
    /// As `bootstrap-port`, for `mooncake`.
    #[arg(long, env = "MOONCAKE_BOOTSTRAP_PORT", hide = true,
          value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) mooncake_bootstrap_port: Option<u16>,
    #[command(flatten)]
    foreign: Foreign,
}

/// Flags without which it would be another proxy, and what to write instead.
const REFUSED: [(&str, &str); 3] = [
    ("tls-min-version", OWN_TLS),
    ("tls-cipher-suites", OWN_TLS),
    ("metrics-cert-dir", "metrics go over plain HTTP, to metrics-host alone"),
];
/// Flags that mean nothing here, what they are told as, and why.
const UNUSED: [(&str, &str, &str); 10] = [
    ("inference-pool", "inference-pool", OWN_RULES),
    ("pool-group", "pool-group", OWN_RULES),
    (
        "max-idle-conns-per-host",
        "max-idle-conns-per-host",
        "1024 are kept, to all engines together",
    ),
    ("enable-speculative-prefill", "enable-speculative-prefill", "the engine is asked by clients"),
    ("tracing", "tracing", "OTEL_EXPORTER_OTLP_ENDPOINT turns traces on"),
    ("zap-devel", "zap-*", OWN_LOG),
    ("zap-encoder", "zap-*", OWN_LOG),
    ("zap-log-level", "zap-*", OWN_LOG),
    ("zap-stacktrace-level", "zap-*", OWN_LOG),
    ("zap-time-encoding", "zap-*", OWN_LOG),
];
const OWN_RULES: &str = "prefill-allow says where prompts may be sent to be computed";
const OWN_LOG: &str = "--log-level and --log-format say what is logged";
const OWN_TLS: &str = "TLS 1.2 and 1.3 are served, with suites that are forward secret";

/// Those of [`REFUSED`] and [`UNUSED`] that ask for something.
#[derive(Clone, Debug, Default)]
struct Foreign(Vec<&'static str>);

impl Foreign {
    fn names() -> impl Iterator<Item = &'static str> {
        REFUSED.iter().map(|(flag, _)| *flag).chain(UNUSED.iter().map(|(flag, ..)| *flag))
    }
}

impl Args for Foreign {
    fn augment_args(command: Command) -> Command {
        let arg = |name| Arg::new(name).long(name).hide(true);
        let args = Self::names().map(|name| {
            let arg = arg(name).num_args(0..=1).default_missing_value("true");
            // The configuration has lists.
            arg.action(ArgAction::Append)
        });
        // Read before all others: the configuration says what they are by default.
        let command = command.args([FOREIGN_FILE_FLAG, FOREIGN_TEXT_FLAG].map(arg));
        // The only one that is taken from the environment too.
        command.args(args).mut_arg("inference-pool", |arg| arg.env("INFERENCE_POOL"))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Foreign {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let asks = |name: &&str| {
            let value = matches.get_one::<String>(name);
            value.is_some_and(|value| !value.is_empty() && boolean(value) != Ok(false))
        };
        Ok(Self(Self::names().filter(asks).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl LlmdArgs {
    /// Faults of flags that cannot be ignored without changing the proxy's behaviour.
    pub(crate) fn faults(&self) -> Vec<String> {
        let refused = REFUSED.iter().filter(|(flag, _)| self.foreign.0.contains(flag));
        refused.map(|(flag, why)| format!("{flag}: {why}")).collect()
    }

    /// Notes on flags that have no effect here, with the reason.
    pub(crate) fn notes(&self) -> Vec<String> {
        let unused = UNUSED.iter().filter(|(flag, ..)| self.foreign.0.contains(flag));
        let mut notes: Vec<_> =
            unused.map(|(_, told, why)| format!("{told}: it has no effect, {why}")).collect();
        notes.dedup();
        notes
    }
}

/// A boolean as Go reads it.
pub(crate) fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("{text:?} is neither true nor false")),
    }
}

/// A pause as Go writes it: `200ms`, `1.5s`; up to a minute.
pub(crate) fn backoff(text: &str) -> Result<Duration, String> {
    duration(text, BACKOFF_MAX)
}

/// A wait as Go writes it, up to an hour.
pub(crate) fn wait(text: &str) -> Result<Duration, String> {
    duration(text, WAIT_MAX)
}

fn duration(text: &str, max: Duration) -> Result<Duration, String> {
    let number_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(number_end);
    let second = match unit {
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        _ if text == "0" => 1.0,
        _ => return Err(format!("{text:?} has none of the units ms, s and m")),
    };
    let seconds = number.parse::<f64>().map_err(|_| format!("{text:?} has no number"))? * second;
    let duration = Duration::try_from_secs_f64(seconds).ok().filter(|it| *it <= max);
    duration.ok_or_else(|| format!("{text:?} is longer than {} s", max.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::super::config::tests::{configured, settings};
    use super::*;
    use crate::upstream::settings::EngineTls;
    use stator_handover::Connector;

    /// Treatment of a flag.
    enum Flag {
        /// It does what it does there.
        Obeyed,
        /// It has no effect, and a note says so.
        Told,
        /// It stops the start, and says what to do instead.
        Refused,
    }

    #[test]
    fn every_flag_of_llm_d_is_obeyed_told_or_refused_by_its_name() {
        use Flag::{Obeyed, Refused, Told};
        // The last flag of a line is the one in question.
        const WRITES: &str = "--moriio-write-mode=true";
        const OWN: &str = "--moriio-local-pod-ip=10.0.0.1";
        let lines: [(&[&str], Flag); 59] = [
            (&["--port=8000"], Obeyed),
            (&["--model-server-port=8200"], Obeyed),
            (&["--vllm-port=8200"], Obeyed),
            (&["--data-parallel-size=2"], Obeyed),
            (&["--kv-connector=nixlv2"], Obeyed),
            (&["--kv-connector=shared-storage"], Obeyed),
            (&["--kv-connector=sglang"], Obeyed),
            (&["--kv-connector=mooncake"], Obeyed),
            (&["--kv-connector=offloading"], Obeyed),
            (&["--ec-connector=ec-example"], Obeyed),
            (&["--ec-connector=ec-nixl"], Obeyed),
            (&["--secure-serving=true"], Obeyed),
            (&["--secure-proxy=true"], Obeyed),
            (&["--secure-proxy", "--cert-path=/certs"], Obeyed),
            (&["--enable-tls=prefiller"], Obeyed),
            (&["--enable-tls=decoder", "--tls-insecure-skip-verify=decoder"], Obeyed),
            (&["--ec-connector=ec-nixl", "--enable-tls=encoder"], Obeyed),
            (&["--enable-ssrf-protection=false"], Obeyed),
            (&["--enable-prefiller-sampling=true"], Obeyed),
            (&["--prefill-max-retries=3"], Obeyed),
            (&["--prefill-retry-backoff=200ms"], Obeyed),
            (&["--decode-chunk-size=512"], Obeyed),
            (&["--mooncake-bootstrap-port=8998"], Obeyed),
            (&["--p2p-connector-port=7777"], Obeyed),
            (&["--enable-p2p-pull=true"], Obeyed),
            (&["--metrics-port=9091"], Obeyed),
            (&["--inference-pool=default/pool"], Told),
            (&["--pool-group=inference.networking.k8s.io"], Told),
            (&["--max-idle-conns-per-host=64"], Told),
            (&["--enable-speculative-prefill=true"], Told),
            (&["--tracing=true"], Told),
            (&["--zap-log-level=debug"], Told),
            (&["--moriio-decode-notify-port=6301"], Told),
            (&["--moriio-decode-handshake-port=6301"], Told),
            (&["--moriio-prefill-notify-port=6301"], Told),
            (&["--moriio-prefill-handshake-port=6301"], Told),
            (&["--moriio-parallel-decode-wait-timeout=30s"], Told),
            (&["--moriio-local-pod-ip=10.0.0.1"], Told),
            (&["--moriio-tp-size=2"], Told),
            (&["--moriio-dp-size=2"], Obeyed),
            (&["--moriio-dp-size-local=2"], Told),
            (&["--moriio-remote-hosts=a"], Told),
            (&["--moriio-decode-hosts=a"], Told),
            (&["--moriio-parallel-dispatch=true"], Refused),
            (&["--moriio-remote-hosts=a,b"], Refused),
            (&["--kv-connector=moriio"], Obeyed),
            (&[OWN, WRITES], Obeyed),
            (&[WRITES, OWN], Obeyed),
            (&[WRITES, OWN, "--moriio-parallel-dispatch=true"], Obeyed),
            (&[WRITES, OWN, "--moriio-decode-notify-port=6301"], Obeyed),
            (&[WRITES, OWN, "--moriio-decode-handshake-port=6301"], Obeyed),
            (&[WRITES, OWN, "--moriio-prefill-notify-port=6301"], Obeyed),
            (&[WRITES, OWN, "--moriio-prefill-handshake-port=6301"], Obeyed),
            (&[WRITES, OWN, "--moriio-tp-size=2"], Obeyed),
            (&[WRITES, OWN, "--moriio-dp-size=4", "--moriio-dp-size-local=2"], Obeyed),
            (&[WRITES, OWN, "--moriio-decode-hosts=a"], Obeyed),
            (&["--tls-min-version=VersionTLS13"], Refused),
            (&["--tls-cipher-suites=TLS_AES_128_GCM_SHA256"], Refused),
            (&["--metrics-cert-dir=/certs"], Refused),
        ];
        for (line, becomes) in lines {
            let name = line[line.len() - 1].trim_start_matches('-');
            let name = name.split('=').next().expect("a name");
            let family = format!("{}-*: ", name.split('-').next().expect("a word"));
            let named =
                |note: &String| note.starts_with(&format!("{name}: ")) || note.starts_with(&family);
            for settings in [settings(line), configured(&[&configuration(line)])] {
                let became = settings.map(|settings| settings.notes.iter().any(named));
                let expected = match becomes {
                    Obeyed => Ok(false),
                    Told => Ok(true),
                    Refused => {
                        let fault = became.expect_err(name);
                        assert!(fault.contains(&format!("{name}: ")), "{fault}");
                        continue;
                    }
                };
                assert_eq!(became, expected, "{line:?}");
            }
        }
    }

    /// The same as a configuration.
    fn configuration(line: &[&str]) -> String {
        let keys = line.iter().map(|flag| flag.trim_start_matches('-'));
        let keys = keys.map(|flag| flag.split_once('=').unwrap_or((flag, "true")));
        keys.fold("--configuration=".to_owned(), |text, (key, value)| {
            format!("{text}{key}: {value}\n")
        })
    }

    #[test]
    fn a_configuration_is_a_file_or_a_text_and_flags_win_over_it() {
        let text = "{port: 8085, model-server-port: 8203, kv-connector: mooncake,
            enable-tls: [prefiller, decoder], prefill-retry-backoff: 500ms, secure-serving: true}";
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("it can be written");
        let path = file.path().display();
        for flag in [format!("--configuration={text}"), format!("--configuration-file={path}")] {
            let settings = configured(&[&flag, "--vllm-port=8204", "--secure-proxy=false"]);
            let settings = settings.expect("they are valid");
            assert_eq!(settings.listen.port(), 8085);
            assert_eq!(settings.engines[0].port(), 8204);
            assert_eq!(settings.prefill.connector, Connector::Mooncake);
            assert_eq!(settings.prefill.backoff, Duration::from_millis(500));
            assert_eq!(settings.upstream.prefiller_tls, EngineTls::Checked);
            assert_eq!(settings.upstream.decoder_tls, EngineTls::Checked);
            assert!(settings.tls.is_none());
        }
    }

    #[test]
    fn what_a_configuration_may_not_say_is_named_at_once() {
        let text = "{prot: 1, port: 70000, enable-tls: [all], tls-cipher-suites: [a],
            vllm-port: 1, model-server-port: 2, configuration: x}";
        let faults = configured(&["--configuration", text]).expect_err("much is wrong");
        let named = ["prot: no such", "port: ", "70000", "enable-tls: ", "vllm-port: another name"];
        for name in named.into_iter().chain(["configuration: no such"]) {
            assert!(faults.contains(name), "{name} is not in {faults}");
        }
        let lists = "--configuration={tls-cipher-suites: [a, b], port: 8001}";
        let faults = configured(&[lists]).expect_err("suites are not chosen");
        assert!(faults.starts_with("tls-cipher-suites: TLS 1.2 and 1.3"), "{faults}");
        let both = ["--configuration={}", "--configuration-file=/nowhere"];
        let fault = configured(&both).expect_err("one of them is too many");
        assert!(fault.contains("configuration: configuration-file says"), "{fault}");
        let fault = configured(&both[1..]).expect_err("it is not there");
        assert!(fault.starts_with("configuration-file: cannot read \"/nowhere\""), "{fault}");
    }

    #[test]
    fn what_means_nothing_here_is_taken_and_told() {
        let flags = [
            "--inference-pool=default/pool",
            "--pool-group=inference.networking.k8s.io",
            "--max-idle-conns-per-host=300",
            "--tracing",
            "--zap-log-level=debug",
            "--moriio-tp-size=2",
            "--enable-tls=encoder",
            "--tls-insecure-skip-verify=encoder",
        ];
        let notes = settings(&flags).expect("they are taken").notes;
        let named: Vec<_> = notes.iter().filter_map(|note| note.split(':').next()).collect();
        let expected = [
            "inference-pool",
            "pool-group",
            "max-idle-conns-per-host",
            "tracing",
            "zap-*",
            "moriio-tp-size",
            "enable-tls",
            "secure-serving",
        ];
        assert_eq!(named, expected, "{notes:?}");
        let notes = settings(&["--secure-proxy", "--tracing=false"]).expect("fine").notes;
        assert_eq!(notes, [""; 0]);
    }

    #[test]
    fn what_would_be_another_proxy_is_refused() {
        let flags = ["--tls-min-version=VersionTLS13", "--metrics-cert-dir=/certs"];
        let faults = settings(&flags).expect_err("neither can be");
        assert!(faults.contains("tls-min-version: TLS 1.2 and 1.3 are served"), "{faults}");
        assert!(faults.contains("metrics-cert-dir: metrics go over plain HTTP"), "{faults}");
    }

    #[test]
    fn pauses_are_as_go_writes_them() {
        let ms = |text| backoff(text).map(|pause| pause.as_millis());
        assert_eq!(
            (ms("200ms"), ms("1.5s"), ms("1m"), ms("0")),
            (Ok(200), Ok(1500), Ok(60_000), Ok(0))
        );
        assert_eq!(wait("60m"), Ok(WAIT_MAX));
        assert!(wait("61m").is_err());
        for text in ["", "5", "ms", "-1s", "1h", "2m", "1.2.3s"] {
            assert!(backoff(text).is_err(), "{text}");
        }
    }
}
