//! Settings of the proxy beside an engine.

use super::allow::{AllowList, PRIVATE, Rule};
use super::args::{DirectArgs, ENCODE_TIMEOUT_MS, SidecarArgs, Stage};
use super::encode::EncodeSettings;
use super::moriio_args::MoriioSettings;
use crate::door::DoorSettings;
use crate::ending::Ending;
use crate::upstream::passage::Passage;
use crate::upstream::settings::{EngineTls, UpstreamSettings};
use crate::upstream::target::Target;
use clap::ValueEnum;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use stator_api::UnknownFields;
use stator_handover::Connector;
use stator_runtime::config::ConfigError;
use stator_runtime::tls;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::time::Duration;

/// Checked settings of the proxy beside an engine.
#[derive(Clone, Debug)]
pub struct DirectSettings {
    /// The first rank's address; the others' ports follow.
    pub(crate) listen: SocketAddr,
    pub(crate) metrics_listen: SocketAddr,
    pub(crate) tls: Option<tls::ServerSettings>,
    /// Limits of a client's request on its way to engines.
    pub(crate) passage: Passage,
    /// Treatment of fields that no engine gets.
    pub(crate) unknown_fields: UnknownFields,
    /// Whether clients may operate the engine.
    pub(crate) pass_operations: bool,
    pub(crate) door: DoorSettings,
    pub(crate) ending: Ending,
    /// Ranks of the engine, in order.
    pub(crate) engines: Vec<SocketAddr>,
    pub(crate) upstream: UpstreamSettings,
    pub(crate) prefill: PrefillSettings,
    /// Tokens of a chunk, where chats are decoded in chunks.
    pub(crate) decode_chunk_size: Option<NonZeroU32>,
    /// Media encoding on other engines, if configured.
    pub(crate) encode: Option<EncodeSettings>,
    /// Notes for the operator at start.
    pub(crate) notes: Vec<String>,
}

/// Settings for prompts computed on other engines.
#[derive(Clone, Debug)]
pub(crate) struct PrefillSettings {
    pub connector: Connector,
    pub allow: AllowList,
    pub sampling: bool,
    pub fallback: bool,
    /// Whether prompts are computed here for decode engines elsewhere.
    pub serves: bool,
    /// Longest wait for the prompt and its KV.
    pub timeout: Duration,
    pub retries: u32,
    pub backoff: Duration,
    pub bootstrap_port: u16,
    /// Port for the first rank's peers; the other ranks' ports follow.
    pub p2p_port: u16,
    /// Whether an engine that computes a prompt can pull KV from one of the same kind.
    pub pulls: bool,
    /// Addresses and setup of MoRI-IO's engines.
    pub moriio: MoriioSettings,
    /// The first rank's port of pods like this one, and how many follow it.
    pub ranks: (u16, u16),
}

impl PrefillSettings {
    /// Port for peers of this engine, by the port of its rank.
    pub(crate) fn p2p_port(&self, engine: &Target) -> u16 {
        let (first, count) = self.ranks;
        let rank = engine.port.checked_sub(first).filter(|rank| *rank < count);
        self.p2p_port + rank.unwrap_or(0)
    }
}

impl TryFrom<SidecarArgs> for DirectSettings {
    type Error = ConfigError;

    fn try_from(args: SidecarArgs) -> Result<Self, ConfigError> {
        let SidecarArgs { http, passage, direct, metrics } = args;
        let mut faults = Vec::new();
        faults.extend(http.faults_beside_an_engine());
        let passage = passage.passage(true, &mut faults);
        let door = http.door.settings(&mut faults);
        let listen = http.listen(Ipv4Addr::UNSPECIFIED);
        check_ports(listen, &direct, &mut faults);
        let tls = http.tls(&mut faults);
        check_tls(&direct, &mut faults);
        check_effects(&direct, &mut faults);
        faults.extend(direct.llmd.faults());
        direct.moriio.check(direct.connector, direct.data_parallel_size, &mut faults);
        let allow = allow_list(&direct, &mut faults);
        // All flags are checked first, so that an operator sees every fault at once.
        if !faults.is_empty() {
            return Err(ConfigError(faults));
        }
        let (notes, bootstrap_port) = (notes(&direct, tls.is_some()), bootstrap_port(&direct));
        let connector = direct.moriio.connector(direct.connector);
        let timeout = Duration::from_millis(direct.prefill_timeout_ms);
        let encode = direct.ec_connector.map(|connector| EncodeSettings {
            connector,
            timeout: Duration::from_millis(direct.encode_timeout_ms),
            tls: engine_tls(&direct, Stage::Encoder),
        });
        let engine = |rank| SocketAddr::new(direct.engine_host, direct.engine_port + rank);
        Ok(Self {
            listen,
            metrics_listen: metrics.listen(),
            tls,
            passage,
            unknown_fields: http.api.unknown_fields.into(),
            pass_operations: direct.pass_operations,
            door,
            ending: http.ending(),
            engines: (0..direct.data_parallel_size).map(engine).collect(),
            upstream: UpstreamSettings {
                head_timeout: Duration::from_millis(http.first_token_timeout_ms),
                idle_timeout: Duration::from_millis(http.idle_timeout_ms),
                decoder_tls: engine_tls(&direct, Stage::Decoder),
                prefiller_tls: engine_tls(&direct, Stage::Prefiller),
                ca_file: direct.engine_ca_file,
            },
            prefill: PrefillSettings {
                connector,
                allow,
                sampling: direct.llmd.enable_prefiller_sampling.unwrap_or(direct.prefill_sampling),
                fallback: direct.prefill_fallback,
                serves: direct.serve_prefill,
                timeout: direct.moriio.timeout(connector, timeout),
                retries: direct.prefill_max_retries,
                backoff: direct.prefill_retry_backoff,
                bootstrap_port,
                p2p_port: direct.p2p_connector_port,
                pulls: connector.pulls(direct.enable_p2p_pull),
                moriio: direct.moriio.settings(),
                ranks: (http.http_port, direct.data_parallel_size),
            },
            decode_chunk_size: NonZeroU32::new(direct.decode_chunk_size),
            encode,
            notes,
        })
    }
}

/// Ports of ranks end where ports do, and this proxy is not its own engine.
fn check_ports(listen: SocketAddr, direct: &DirectArgs, faults: &mut Vec<String>) {
    let ranks = direct.data_parallel_size;
    for (flag, port) in [
        ("engine-port", direct.engine_port),
        ("http-port", listen.port()),
        ("p2p-connector-port", direct.p2p_connector_port),
    ] {
        if port.checked_add(ranks - 1).is_none() {
            faults.push(format!("{flag}: {port} leaves no ports for {ranks} ranks"));
        }
    }
    let own = listen.port()..listen.port().saturating_add(ranks);
    let everywhere = listen.ip().is_unspecified() && direct.engine_host.is_loopback();
    let is_here = everywhere || direct.engine_host == listen.ip();
    if is_here && own.contains(&direct.engine_port) {
        faults.push(format!("engine-port: {} is this proxy's own", direct.engine_port));
    }
}

fn check_tls(direct: &DirectArgs, faults: &mut Vec<String>) {
    for stage in &direct.tls_insecure_skip_verify {
        if !direct.enable_tls.contains(stage) {
            let name = stage.to_possible_value().map(|value| value.get_name().to_owned());
            let name = name.unwrap_or_default();
            faults.push(format!("tls-insecure-skip-verify: {name} needs enable-tls={name}"));
        }
    }
    let Some(file) = &direct.engine_ca_file else { return };
    let certificates =
        CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match certificates {
        Ok(certificates) if certificates.is_empty() => {
            faults.push(format!("engine-ca-file: {file:?} holds no certificate"));
        }
        Ok(_) => {}
        Err(error) => faults.push(format!("engine-ca-file: cannot read {file:?}: {error}")),
    }
}

/// Refuses flags of our own that have no effect beside the others. Flags of llm-d's sidecar are
/// told of instead, so that a deployment's arguments can stay.
fn check_effects(direct: &DirectArgs, faults: &mut Vec<String>) {
    if !direct.enable_ssrf_protection && direct.prefill_allow != PRIVATE {
        faults.push("prefill-allow: it has no effect with enable-ssrf-protection=false".to_owned());
    }
    if direct.ec_connector.is_none() && direct.encode_timeout_ms != ENCODE_TIMEOUT_MS {
        faults.push("encode-timeout-ms: it has no effect without ec-connector".to_owned());
    }
    if direct.serve_prefill && direct.connector != Connector::Nixlv2 {
        let connector = direct.connector.name();
        faults.push(format!("serve-prefill: it has no effect with connector={connector}"));
    }
    if direct.engine_ca_file.is_some() && direct.enable_tls.is_empty() {
        faults.push("engine-ca-file: it has no effect without enable-tls".to_owned());
    }
}

/// Notes on flags that have no effect here, or another one than in llm-d's sidecar.
fn notes(direct: &DirectArgs, is_secure: bool) -> Vec<String> {
    let mut notes = direct.llmd.notes();
    notes.extend(direct.moriio.notes());
    if direct.enable_tls.contains(&Stage::Encoder) && direct.ec_connector.is_none() {
        notes.push("enable-tls: encoder has no effect without ec-connector".to_owned());
    }
    if direct.enable_p2p_pull && !direct.moriio.connector(direct.connector).pulls(true) {
        let why = "only engines of nixlv2 and offloading can pull, and of MoRI-IO those that write";
        notes.push(format!("enable-p2p-pull: it has no effect, {why}"));
    }
    if !is_secure {
        notes.push("secure-serving: off, requests come over plain HTTP".to_owned());
    }
    notes
}

/// The port by its own name, or by that of the engine whose connector it is.
fn bootstrap_port(direct: &DirectArgs) -> u16 {
    let named = match direct.connector {
        Connector::Sglang => direct.llmd.sglang_bootstrap_port,
        Connector::Mooncake => direct.llmd.mooncake_bootstrap_port,
        _ => None,
    };
    named.unwrap_or(direct.bootstrap_port)
}

fn allow_list(direct: &DirectArgs, faults: &mut Vec<String>) -> AllowList {
    if !direct.enable_ssrf_protection {
        return AllowList::Everything;
    }
    let rules = direct.prefill_allow.iter().filter_map(|text| {
        let rule = text.trim().parse::<Rule>();
        rule.map_err(|error| faults.push(format!("prefill-allow: {error}"))).ok()
    });
    AllowList::Some(rules.collect())
}

fn engine_tls(direct: &DirectArgs, stage: Stage) -> EngineTls {
    match (direct.enable_tls.contains(&stage), direct.tls_insecure_skip_verify.contains(&stage)) {
        (false, _) => EngineTls::Plain,
        (true, false) => EngineTls::Checked,
        (true, true) => EngineTls::Unchecked,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::encode::EcConnector;
    use super::*;
    use clap::{ArgMatches, Command, CommandFactory, FromArgMatches, Parser};
    use stator_runtime::config;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        sidecar: SidecarArgs,
    }

    /// The settings that a command line makes, or its faults.
    pub(crate) fn settings(flags: &[&str]) -> Result<DirectSettings, String> {
        let words = std::iter::once("sidecar").chain(flags.iter().copied());
        settings_of(&Line::command().try_get_matches_from(words).map_err(|e| e.to_string())?)
    }

    /// The settings that a command line with a configuration makes, or the faults of these.
    pub(crate) fn configured(flags: &[&str]) -> Result<DirectSettings, String> {
        let role = Line::command().name("sidecar");
        let words = ["stator", "sidecar"].iter().chain(flags).map(Into::into).collect();
        let matches = config::parse(Command::new("stator").subcommand(role), words);
        let matches = matches.map_err(|error| error.to_string())?;
        settings_of(matches.subcommand_matches("sidecar").expect("there is no other"))
    }

    fn settings_of(matches: &ArgMatches) -> Result<DirectSettings, String> {
        let line = Line::from_arg_matches(matches).map_err(|error| error.to_string())?;
        line.sidecar.try_into().map_err(|error: ConfigError| error.to_string())
    }

    #[test]
    fn a_pod_is_served_on_all_addresses() {
        let listen = |flags: &[&str]| settings(flags).expect("they are valid").listen.to_string();
        assert_eq!(listen(&["--port=8001"]), "0.0.0.0:8001");
        assert_eq!(listen(&["--http-host=10.0.0.1"]), "10.0.0.1:8000");
    }

    #[test]
    fn defaults_are_safe() {
        let settings = settings(&[]).expect("defaults are valid");
        assert_eq!(settings.engines, ["127.0.0.1:8200".parse().expect("an address")]);
        assert_eq!(settings.prefill.connector, Connector::Nixlv2);
        assert!(settings.prefill.fallback && settings.tls.is_none());
        let allows =
            |target: &str| settings.prefill.allow.allows(&target.parse().expect("a target"));
        assert!(allows("10.0.0.1:8000") && !allows("127.0.0.1:8000"));
    }

    #[test]
    fn the_flags_of_llm_d_are_understood() {
        let flags = [
            "--port=8000",
            "--vllm-port=8200",
            "--kv-connector=mooncake",
            "--secure-proxy=false",
            "--data-parallel-size=2",
            "--enable-ssrf-protection",
            "--enable-prefiller-sampling",
            "--mooncake-bootstrap-port=9",
            "--sglang-bootstrap-port=10",
            "--prefill-max-retries=2",
            "--prefill-retry-backoff=500ms",
            "--enable-tls=prefiller,decoder",
            "--tls-insecure-skip-verify=prefiller",
            "--ec-connector=ec-nixl",
            "--p2p-connector-port=5710",
        ];
        let settings = settings(&flags).expect("they are valid");
        assert_eq!(settings.engines.len(), 2);
        assert_eq!(settings.engines[1].port(), 8201);
        assert_eq!(settings.prefill.connector, Connector::Mooncake);
        assert_eq!(settings.upstream.prefiller_tls, EngineTls::Unchecked);
        assert_eq!(settings.upstream.decoder_tls, EngineTls::Checked);
        assert!(settings.prefill.sampling && settings.prefill.bootstrap_port == 9);
        let again = (settings.prefill.retries, settings.prefill.backoff);
        assert_eq!(again, (2, Duration::from_millis(500)));
        let encode = settings.encode.expect("media are encoded elsewhere");
        assert_eq!(encode.connector, EcConnector::EcNixl);
        assert_eq!(encode.timeout, Duration::from_secs(30));
        let port = |target: &str| settings.prefill.p2p_port(&target.parse().expect("a target"));
        let ports = ["10.0.0.1:8001", "10.0.0.1:8000", "10.0.0.1:8002", "10.0.0.1:7"].map(port);
        assert_eq!(ports, [5711, 5710, 5710, 5710]);
    }

    #[test]
    fn only_engines_that_can_pull_do() {
        for (flags, pulls) in [
            (&["--connector=offloading"][..], true),
            (&["--connector=nixlv2"], false),
            (&["--connector=nixlv2", "--enable-p2p-pull"], true),
            (&["--connector=mooncake", "--enable-p2p-pull"], false),
        ] {
            let settings = settings(flags).expect("they are valid");
            assert_eq!(settings.prefill.pulls, pulls, "{flags:?}");
            let noted = settings.notes.iter().any(|note| note.starts_with("enable-p2p-pull: "));
            assert_eq!(noted, flags[0].contains("mooncake"), "{flags:?}");
        }
    }

    #[test]
    fn every_fault_is_named_at_once() {
        let flags = [
            "--api-key=k",
            "--http-port=65535",
            "--engine-port=65535",
            "--p2p-connector-port=65535",
            "--data-parallel-size=2",
            "--prefill-allow=10.0.0.0/99,nonsense",
            "--cert-path=/nowhere",
            "--tls-insecure-skip-verify=decoder",
            "--engine-ca-file=/nowhere/ca.pem",
        ];
        let faults = settings(&flags).expect_err("much is wrong");
        let named = [
            "api-key: ",
            "http-port: 65535",
            "engine-port: 65535 leaves",
            "p2p-connector-port: 65535 leaves",
            "prefill-allow: \"10.0.0.0/99\"",
            "prefill-allow: \"nonsense\"",
            "cert-path: ",
            "tls-insecure-skip-verify: decoder",
            "engine-ca-file: cannot read",
        ];
        for name in named {
            assert!(faults.contains(name), "{name} is not in {faults}");
        }
        let own = settings(&["--http-port=8200"]).expect_err("a circle");
        assert!(own.contains("this proxy's own"), "{own}");
    }

    #[test]
    fn protection_ends_only_by_its_flag() {
        let open = settings(&["--enable-ssrf-protection=false"]).expect("it is valid");
        assert_eq!(open.prefill.allow, AllowList::Everything);
    }
}
