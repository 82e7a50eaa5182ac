//! TLS settings of a server.

use rustls::{SupportedProtocolVersion, version};
use std::path::PathBuf;

/// TLS settings of a server.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// The server's own certificate.
    pub certificate: CertificateSource,
    /// A PEM file with the authorities of clients. If given, a client without a certificate from
    /// one of them is refused (mTLS).
    pub client_ca: Option<PathBuf>,
    /// Whether to look at the files again every [`RELOAD_INTERVAL`](super::RELOAD_INTERVAL).
    pub reload: bool,
    /// The oldest version that is spoken.
    pub min_version: Version,
    /// Application protocols, the best first: `h2` for gRPC. None: the protocol is not negotiated.
    pub alpn: Vec<String>,
}

/// Source of a server's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateSource {
    /// Made at start and kept in memory, for `localhost` and these host names or addresses.
    SelfSigned {
        /// Names besides `localhost`.
        names: Vec<String>,
    },
    /// The files `tls.crt` (chain, PEM) and `tls.key` (private key, PEM) in this folder, as a
    /// Kubernetes secret of type `kubernetes.io/tls` is mounted.
    Folder(PathBuf),
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Version {
    /// TLS 1.2: the default, because Envoy offers nothing newer to its upstreams unless told to.
    /// Go's names for older versions mean this one too: nothing older is spoken.
    #[default]
    #[value(name = "1.2", aliases = ["VersionTLS12", "VersionTLS11", "VersionTLS10"])]
    Tls12,
    /// TLS 1.3.
    #[value(name = "1.3", alias = "VersionTLS13")]
    Tls13,
}

impl ServerSettings {
    /// The names for a certificate of our own making.
    pub(super) fn names(&self) -> &[String] {
        match &self.certificate {
            CertificateSource::SelfSigned { names } => names,
            CertificateSource::Folder(_) => &[],
        }
    }
}

impl Version {
    pub(super) fn and_newer(self) -> &'static [&'static SupportedProtocolVersion] {
        match self {
            Self::Tls12 => rustls::ALL_VERSIONS,
            Self::Tls13 => NEWEST,
        }
    }
}

/// TLS 1.3 and what will follow it.
static NEWEST: &[&SupportedProtocolVersion] = &[&version::TLS13];
