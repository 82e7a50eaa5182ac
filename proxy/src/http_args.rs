//! Flags of the HTTP server, whatever stands behind it.

use crate::api_args::ApiArgs;
use crate::door::{DoorArgs, KEY_SHARE_PERCENT};
use crate::ending::Ending;
use crate::keys::KeyArgs;
use crate::standalone::given::GivenFlags;
use clap::{ArgAction, Args};
use stator_runtime::tls;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Time for which a proxy takes requests after it has become unready, if no flag says another: two
/// failed probes of the readiness in `manifests`, and the way of the news to whoever balances.
const LAME_DUCK: Duration = Duration::from_secs(5);

/// Address, clients and limits of the HTTP server.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "HTTP")]
pub struct HttpArgs {
    // First, because the others take their values out of what was parsed.
    #[command(flatten)]
    pub(crate) given: GivenFlags,

    /// Address to serve on. Default: 127.0.0.1; 0.0.0.0 for the sidecar, which other pods have to
    /// reach. Use 0.0.0.0 to be reachable from other machines, and :: for IPv6.
    #[arg(long, env = "STATOR_HTTP_HOST", value_name = "IP")]
    pub http_host: Option<IpAddr>,

    /// Port to serve on; 0 picks a free one and logs it.
    #[arg(
        long,
        env = "STATOR_HTTP_PORT",
        alias = "port",
        default_value_t = 8000,
        value_name = "PORT"
    )]
    pub http_port: u16,

    /// API keys.
    #[command(flatten)]
    pub keys: KeyArgs,

    /// Treatment of requests.
    #[command(flatten)]
    pub api: ApiArgs,

    /// Serve clients over TLS, with the certificate in `cert-path`, or a certificate that the proxy
    /// signs itself.
    #[arg(long, env = "STATOR_SECURE_SERVING", alias = "secure-proxy", default_value_t = false,
          num_args = 0..=1, require_equals = true, default_missing_value = "true",
          action = ArgAction::Set, value_name = "BOOL")]
    pub secure_serving: bool,

    /// Folder with tls.crt and tls.key, which are read again when they change.
    #[arg(long, env = "STATOR_CERT_PATH", value_name = "DIR")]
    pub cert_path: Option<PathBuf>,

    /// PEM file with certificate authorities: a client without a certificate from one of them is
    /// refused at its connection (mTLS). The file is read again when it changes. Needs
    /// `secure-serving`.
    #[arg(long, env = "STATOR_CLIENT_CA_FILE", value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,

    /// Limits of clients: sizes, connections and waits.
    #[command(flatten)]
    pub door: DoorArgs,

    /// Longest wait for the first token, in milliseconds. Later ones end with 504.
    #[arg(long, env = "STATOR_FIRST_TOKEN_TIMEOUT_MS", default_value_t = 600_000, value_name = "MS",
          value_parser = clap::value_parser!(u64).range(1..=86_400_000))]
    pub first_token_timeout_ms: u64,

    /// Longest wait between tokens, in milliseconds. An answer that stalls longer ends with an
    /// error.
    #[arg(long, env = "STATOR_IDLE_TIMEOUT_MS", default_value_t = 120_000, value_name = "MS",
          value_parser = clap::value_parser!(u64).range(1..=86_400_000))]
    pub idle_timeout_ms: u64,

    /// Time for which the process still takes requests after it was told to end and has become
    /// unready, in milliseconds: load balancers need it to notice. Answers close their connections
    /// in the meantime. Default: 5 s, and none under `stator up`, which nothing balances.
    #[arg(long, env = "STATOR_LAME_DUCK_MS", value_name = "MS",
          value_parser = clap::value_parser!(u64).range(0..=3_600_000))]
    pub lame_duck_ms: Option<u64>,

    /// Longest wait for running requests when the process no longer takes new ones, in seconds. A
    /// second signal ends the process at once.
    #[arg(long, env = "STATOR_DRAIN_TIMEOUT_S", default_value_t = 30, value_name = "S",
          value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub drain_timeout_s: u64,
}

/// Flags of the address that serves operators.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Metrics")]
pub struct MetricsArgs {
    /// Address that serves metrics and health for operators.
    #[arg(long, env = "STATOR_METRICS_HOST", default_value = "127.0.0.1", value_name = "IP")]
    pub metrics_host: IpAddr,

    /// Port that serves metrics and health; 0 takes a free one. The HTTP port serves both too.
    #[arg(long, env = "STATOR_METRICS_PORT", default_value_t = 9090, value_name = "PORT")]
    pub metrics_port: u16,
}

impl MetricsArgs {
    /// The address that serves operators.
    pub(crate) fn listen(&self) -> SocketAddr {
        SocketAddr::new(self.metrics_host, self.metrics_port)
    }
}

impl HttpArgs {
    /// Faults of flags that a proxy beside an engine cannot obey.
    pub(crate) fn faults_beside_an_engine(&self) -> impl Iterator<Item = String> {
        let shares = self.door.key_share_percent != KEY_SHARE_PERCENT;
        let fault = "key-share-percent: the engine beside a sidecar checks keys".to_owned();
        let own = self.api.faults_beside_an_engine().chain(shares.then_some(fault));
        self.keys.faults_beside_an_engine().chain(own)
    }

    /// The address to serve on, at `host` unless a flag names another.
    pub(crate) fn listen(&self, host: Ipv4Addr) -> SocketAddr {
        SocketAddr::new(self.http_host.unwrap_or(host.into()), self.http_port)
    }

    /// Settings of TLS on the client port; `None` for plain HTTP.
    pub(crate) fn tls(&self, faults: &mut Vec<String>) -> Option<tls::ServerSettings> {
        if self.cert_path.is_some() && !self.secure_serving {
            faults.push("cert-path: needs secure-serving".to_owned());
        }
        if self.client_ca_file.is_some() && !self.secure_serving {
            faults.push("client-ca-file: needs secure-serving".to_owned());
        }
        let own = tls::CertificateSource::SelfSigned { names: Vec::new() };
        self.secure_serving.then(|| tls::ServerSettings {
            certificate: self.cert_path.clone().map_or(own, tls::CertificateSource::Folder),
            client_ca: self.client_ca_file.clone(),
            reload: true,
            min_version: tls::Version::default(),
            alpn: vec!["h2".to_owned(), "http/1.1".to_owned()],
        })
    }

    /// Phases and deadlines of the proxy's end.
    pub(crate) fn ending(&self) -> Ending {
        Ending {
            lame_duck: self.lame_duck_ms.map_or(LAME_DUCK, Duration::from_millis),
            drain_timeout: Duration::from_secs(self.drain_timeout_s),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Command, FromArgMatches};

    fn args(flags: &[&str]) -> HttpArgs {
        let command = HttpArgs::augment_args(Command::new("proxy").no_binary_name(true));
        let matches = command.try_get_matches_from(flags).expect("flags that exist");
        HttpArgs::from_arg_matches(&matches).expect("sound values")
    }

    #[test]
    fn flags_of_tls_need_tls() {
        let tls = |flags: &[&str]| {
            let mut faults = Vec::new();
            let tls = args(flags).tls(&mut faults);
            (tls, faults)
        };
        let (secure, faults) = tls(&["--secure-serving", "--client-ca-file=ca.pem"]);
        assert_eq!(secure.and_then(|tls| tls.client_ca), Some("ca.pem".into()));
        assert!(faults.is_empty(), "{faults:?}");
        let (plain, faults) = tls(&["--client-ca-file=ca.pem", "--cert-path=dir"]);
        assert!(plain.is_none());
        assert_eq!(
            faults,
            ["cert-path: needs secure-serving", "client-ca-file: needs secure-serving"]
        );
    }
}
