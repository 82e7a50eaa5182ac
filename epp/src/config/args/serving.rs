//! Ports, and TLS of these.

use super::values::{delay, duration, size};
use clap::{ArgAction, Args};
use stator_runtime::tls::Version;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Ports, and how streams begin and end there.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Serving")]
pub struct ServingArgs {
    /// Address to serve on.
    #[arg(long, env = "STATOR_HOST", default_value = "0.0.0.0", value_name = "IP")]
    pub host: IpAddr,

    /// Port of the ext-proc server; 0 picks a free one and logs it.
    #[arg(long, env = "STATOR_GRPC_PORT", default_value_t = 9002, value_name = "PORT")]
    pub grpc_port: u16,

    /// Port of gRPC health checks, plain text. `liveness` is healthy while the process answers;
    /// `readiness`, the ext-proc service's name and the empty one while picks of one of the pools
    /// would succeed, and `NAMESPACE/NAME` while those of that pool would. The port of a pool
    /// answers as well, for that pool alone.
    #[arg(long, env = "STATOR_GRPC_HEALTH_PORT", default_value_t = 9003, value_name = "PORT")]
    pub grpc_health_port: u16,

    /// Port of `/metrics`.
    #[arg(long, env = "STATOR_METRICS_PORT", default_value_t = 9090, value_name = "PORT")]
    pub metrics_port: u16,

    /// Serves no metrics.
    #[arg(long, env = "STATOR_NO_METRICS")]
    pub no_metrics: bool,

    /// Asks the cluster whether a reader may see metrics (TokenReview, SubjectAccessReview). No
    /// effect without a cluster.
    #[arg(long, env = "STATOR_METRICS_ENDPOINT_AUTH", default_value_t = true,
          action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = "BOOL")]
    pub metrics_endpoint_auth: bool,

    /// Largest gRPC message from a data plane, for example `10MiB`. Only data planes that buffer
    /// bodies send large ones.
    #[arg(long, env = "STATOR_GRPC_MAX_RECV_MSG_SIZE", default_value = "4MiB", value_name = "SIZE",
          value_parser = size)]
    pub grpc_max_recv_msg_size: u64,

    /// Most ext-proc streams at once on one connection of a data plane, 1 to 1000000. Envoy opens
    /// no more than its circuit breaker allows, 1024 unless told otherwise.
    #[arg(long, env = "STATOR_MAX_CONCURRENT_STREAMS", default_value_t = 100_000,
          value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_concurrent_streams: u32,

    /// Longest wait for open streams when the process is told to end.
    #[arg(long, env = "STATOR_DRAIN_TIMEOUT", default_value = "30s", value_name = "DURATION",
          value_parser = duration)]
    pub drain_timeout: Duration,

    /// Time for which requests are still taken after the process was told to end and became
    /// unready, so that data planes notice. 0s takes none.
    #[arg(long, env = "STATOR_SHUTDOWN_DELAY", default_value = "5s", value_name = "DURATION",
          value_parser = delay)]
    pub shutdown_delay: Duration,
}

/// TLS of the ports for data planes and for readers of metrics.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "TLS")]
pub struct TlsArgs {
    /// Serves ext-proc over TLS.
    #[arg(long, env = "STATOR_SECURE_SERVING", default_value_t = true, action = ArgAction::Set,
          num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_name = "BOOL")]
    pub secure_serving: bool,

    /// Folder with `tls.crt` and `tls.key`. Without it a certificate is made at start.
    #[arg(long, env = "STATOR_CERT_PATH", value_name = "DIR")]
    pub cert_path: Option<PathBuf>,

    /// Follows changes of the certificate's files.
    #[arg(long, env = "STATOR_ENABLE_CERT_RELOAD", default_value_t = false,
          action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = "BOOL")]
    pub enable_cert_reload: bool,

    /// PEM file with the authorities of data planes; others are refused (mTLS).
    #[arg(long, env = "STATOR_CLIENT_CA_FILE", value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,

    /// Oldest TLS version.
    #[arg(long, env = "STATOR_TLS_MIN_VERSION", default_value = "1.2", value_name = "VERSION")]
    pub tls_min_version: Version,

    /// Cipher suites of TLS 1.2 by their IANA names, as Go has them, for example
    /// `TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256`; all that are supported without it. TLS 1.3 has
    /// its own, which are always spoken. The certificate that is made at start is ECDSA: for it a
    /// suite with RSA means the same suite with ECDSA.
    #[arg(long, env = "STATOR_TLS_CIPHER_SUITES", value_name = "NAME", value_delimiter = ',')]
    pub tls_cipher_suites: Vec<String>,

    /// Folder with `tls.crt` and `tls.key` of the metrics port, whose changes are followed.
    /// Without it that port is plain text.
    #[arg(long, env = "STATOR_METRICS_CERT_DIR", value_name = "DIR")]
    pub metrics_cert_dir: Option<PathBuf>,

    /// PEM file with the authorities of readers of metrics; others are refused (mTLS).
    #[arg(long, env = "STATOR_METRICS_CLIENT_CA_FILE", value_name = "FILE")]
    pub metrics_client_ca_file: Option<PathBuf>,
}
