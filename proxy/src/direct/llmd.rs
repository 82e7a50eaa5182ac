//! Flags of llm-d's routing sidecar that have no name of ours: those that mean nothing here are
//! taken all the same, so that a deployment's arguments can stay, and are told at start.
//!
//! What differs from that sidecar: the list of allowed prefill targets is in force unless switched
//! off, and says which by addresses, not by an InferencePool; plain HTTP is served unless
//! `--secure-proxy` asks for TLS; where prefill fails, the engine computes the prompt, unless
//! `--prefill-fallback=false`; media are encoded where the prompt is computed; the KV of third
//! engines is not pulled; decode is not cut into chunks; MoRI-IO is not supported.
//!
//! Source: `pkg/sidecar/proxy/options.go` of llm-d's router.

use clap::{ArgAction, Args};
use std::time::Duration;

/// Longest pause between two attempts.
const BACKOFF_MAX: Duration = Duration::from_secs(60);

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
    #[arg(long, env = "INFERENCE_POOL", hide = true)]
    inference_pool: Option<String>,
    #[arg(long, hide = true)]
    pool_group: Option<String>,
    #[arg(long, hide = true)]
    ec_connector: Option<String>,
    #[arg(long, hide = true)]
    decode_chunk_size: Option<u32>,
    #[arg(long, hide = true)]
    max_idle_conns_per_host: Option<u32>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = boolean, action = ArgAction::Set)]
    enable_p2p_pull: Option<bool>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = boolean, action = ArgAction::Set)]
    tracing: Option<bool>,
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "true")]
    zap_devel: Option<String>,
    #[arg(long, hide = true)]
    zap_encoder: Option<String>,
    #[arg(long, hide = true)]
    zap_log_level: Option<String>,
    #[arg(long, hide = true)]
    zap_stacktrace_level: Option<String>,
    #[arg(long, hide = true)]
    zap_time_encoding: Option<String>,
    #[arg(long, hide = true)]
    configuration: Option<String>,
    #[arg(long, hide = true)]
    configuration_file: Option<String>,
    #[command(flatten)]
    moriio: MoriioArgs,
}

/// Flags of a connector that is not supported; that sidecar's own releases refuse them too.
#[derive(Args, Clone, Debug, Default)]
struct MoriioArgs {
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = boolean, action = ArgAction::Set)]
    moriio_write_mode: Option<bool>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = boolean, action = ArgAction::Set)]
    moriio_parallel_dispatch: Option<bool>,
    #[arg(long, hide = true)]
    moriio_decode_notify_port: Option<String>,
    #[arg(long, hide = true)]
    moriio_decode_handshake_port: Option<String>,
    #[arg(long, hide = true)]
    moriio_prefill_notify_port: Option<String>,
    #[arg(long, hide = true)]
    moriio_prefill_handshake_port: Option<String>,
    #[arg(long, hide = true)]
    moriio_local_pod_ip: Option<String>,
    #[arg(long, hide = true)]
    moriio_tp_size: Option<String>,
    #[arg(long, hide = true)]
    moriio_dp_size: Option<String>,
    #[arg(long, hide = true)]
    moriio_dp_size_local: Option<String>,
    #[arg(long, hide = true)]
    moriio_remote_hosts: Option<String>,
    #[arg(long, hide = true)]
    moriio_decode_hosts: Option<String>,
}

impl LlmdArgs {
    /// What would be another proxy if it were passed over.
    pub(crate) fn faults(&self) -> Vec<String> {
        let MoriioArgs { moriio_write_mode, moriio_parallel_dispatch, .. } = &self.moriio;
        let refused = [
            ("configuration", self.configuration.is_some(), "give each of its keys as a flag"),
            ("configuration-file", self.configuration_file.is_some(), "give each key as a flag"),
            ("moriio-write-mode", *moriio_write_mode == Some(true), "MoRI-IO is not supported"),
            (
                "moriio-parallel-dispatch",
                *moriio_parallel_dispatch == Some(true),
                "MoRI-IO is not supported",
            ),
        ];
        let refused = refused.into_iter().filter(|(_, given, _)| *given);
        refused.map(|(flag, _, why)| format!("{flag}: {why}")).collect()
    }

    /// What was asked for and means nothing here, and why.
    pub(crate) fn notes(&self) -> Vec<String> {
        let own_flag = "prefill-allow says where prompts may be sent to be computed";
        let logs = "RUST_LOG says what is logged";
        let zap = [
            &self.zap_devel,
            &self.zap_encoder,
            &self.zap_log_level,
            &self.zap_stacktrace_level,
            &self.zap_time_encoding,
        ];
        let MoriioArgs {
            moriio_write_mode: _,
            moriio_parallel_dispatch: _,
            moriio_decode_notify_port,
            moriio_decode_handshake_port,
            moriio_prefill_notify_port,
            moriio_prefill_handshake_port,
            moriio_local_pod_ip,
            moriio_tp_size,
            moriio_dp_size,
            moriio_dp_size_local,
            moriio_remote_hosts,
            moriio_decode_hosts,
        } = &self.moriio;
        let moriio = [
            moriio_decode_notify_port,
            moriio_decode_handshake_port,
            moriio_prefill_notify_port,
            moriio_prefill_handshake_port,
            moriio_local_pod_ip,
            moriio_tp_size,
            moriio_dp_size,
            moriio_dp_size_local,
            moriio_remote_hosts,
            moriio_decode_hosts,
        ];
        let has = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        let given = [
            ("inference-pool", has(&self.inference_pool), own_flag),
            ("pool-group", has(&self.pool_group), own_flag),
            (
                "ec-connector",
                has(&self.ec_connector),
                "media are encoded where the prompt is computed",
            ),
            (
                "decode-chunk-size",
                self.decode_chunk_size.is_some_and(|size| size > 0),
                "decode is one request",
            ),
            (
                "max-idle-conns-per-host",
                self.max_idle_conns_per_host.is_some(),
                "1024 are kept, to all engines together",
            ),
            (
                "enable-p2p-pull",
                self.enable_p2p_pull == Some(true),
                "the KV of third engines is not pulled",
            ),
            ("tracing", self.tracing.is_some(), "OTEL_EXPORTER_OTLP_ENDPOINT turns traces on"),
            ("zap-*", zap.into_iter().any(has), logs),
            ("moriio-*", moriio.into_iter().any(has), "MoRI-IO is not supported"),
        ];
        let given = given.into_iter().filter(|(_, given, _)| *given);
        given.map(|(flag, _, why)| format!("{flag}: it has no effect, {why}")).collect()
    }
}

/// A boolean as Go reads it.
fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("{text:?} is neither true nor false")),
    }
}

/// A pause as Go writes it: `200ms`, `1.5s`; up to a minute.
pub(crate) fn backoff(text: &str) -> Result<Duration, String> {
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
    let pause = Duration::try_from_secs_f64(seconds).ok().filter(|pause| *pause <= BACKOFF_MAX);
    pause.ok_or_else(|| format!("{text:?} is longer than {} s", BACKOFF_MAX.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::super::config::tests::settings;
    use super::*;

    #[test]
    fn what_means_nothing_here_is_taken_and_told() {
        let flags = [
            "--inference-pool=default/pool",
            "--pool-group=inference.networking.k8s.io",
            "--ec-connector=ec-example",
            "--decode-chunk-size=128",
            "--max-idle-conns-per-host=300",
            "--enable-p2p-pull",
            "--tracing",
            "--zap-log-level=debug",
            "--moriio-dp-size=2",
            "--enable-tls=encoder",
            "--tls-insecure-skip-verify=encoder",
        ];
        let notes = settings(&flags).expect("they are taken").notes;
        let named: Vec<_> = notes.iter().filter_map(|note| note.split(':').next()).collect();
        let expected = [
            "inference-pool",
            "pool-group",
            "ec-connector",
            "decode-chunk-size",
            "max-idle-conns-per-host",
            "enable-p2p-pull",
            "tracing",
            "zap-*",
            "moriio-*",
            "enable-tls",
            "secure-serving",
        ];
        assert_eq!(named, expected, "{notes:?}");
        let notes = settings(&["--secure-proxy", "--decode-chunk-size=0"]).expect("fine").notes;
        assert_eq!(notes, [""; 0]);
    }

    #[test]
    fn what_would_be_another_proxy_is_refused() {
        let flags = ["--configuration={port: 1}", "--moriio-write-mode"];
        let faults = settings(&flags).expect_err("neither can be");
        assert!(faults.contains("configuration: give each"), "{faults}");
        assert!(faults.contains("moriio-write-mode: MoRI-IO is not supported"), "{faults}");
        let faults = settings(&["--configuration-file=/x"]).expect_err("nor this");
        assert!(faults.contains("configuration-file: "), "{faults}");
    }

    #[test]
    fn pauses_are_as_go_writes_them() {
        let ms = |text| backoff(text).map(|pause| pause.as_millis());
        assert_eq!(
            (ms("200ms"), ms("1.5s"), ms("1m"), ms("0")),
            (Ok(200), Ok(1500), Ok(60_000), Ok(0))
        );
        for text in ["", "5", "ms", "-1s", "1h", "2m", "1.2.3s"] {
            assert!(backoff(text).is_err(), "{text}");
        }
    }
}
