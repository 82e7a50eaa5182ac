//! TLS: where a server's certificate comes from, who may connect, and how both change while the
//! process runs; and whom a client trusts.
//!
//! [`server_config`] turns checked [`ServerSettings`] into a rustls configuration that any server can
//! use. [`Listener`] accepts connections with it, or plain ones, so that a server has one path.

mod certificate;
mod client;
mod listener;
mod reload;
mod suites;
#[cfg(test)]
pub(crate) mod testkit;
#[cfg(test)]
mod tests;

pub(crate) use client::ClientFiles;
pub use listener::{Connection, HANDSHAKE_LIMIT, HANDSHAKES_MAX, Handshake, Listener, TlsPeer};
pub use reload::{RELOAD_INTERVAL, Reload};
pub use suites::{CipherSuites, UnsupportedSuites};

use reload::{Certificate, Clients, Material};
use rustls::crypto::{CryptoProvider, ring};
use rustls::server::NoServerSessionStorage;
use rustls::{ServerConfig, SupportedProtocolVersion, version};
use rustls_pki_types::ServerName;
use std::path::PathBuf;
use std::sync::Arc;

/// TLS settings of a server.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// The server's own certificate.
    pub certificate: CertificateSource,
    /// A PEM file with the authorities of clients. If given, a client without a certificate from
    /// one of them is refused (mTLS).
    pub client_ca: Option<PathBuf>,
    /// Whether to look at the files again every [`RELOAD_INTERVAL`].
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
    /// What Go calls older ones is taken for this, the oldest that is spoken at all.
    #[default]
    #[value(name = "1.2", aliases = ["VersionTLS12", "VersionTLS11", "VersionTLS10"])]
    Tls12,
    /// TLS 1.3.
    #[value(name = "1.3", alias = "VersionTLS13")]
    Tls13,
}

/// Why a server cannot speak TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {path:?}: {error}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// A file is not the PEM that it should be.
    #[error("{path:?} holds no {what}: {error}")]
    Pem {
        /// The file.
        path: PathBuf,
        /// Its expected content.
        what: &'static str,
        /// The parser's error.
        error: rustls_pki_types::pem::Error,
    },
    /// Certificate and key do not belong together, or are of a kind that is not supported.
    #[error("certificate and key are refused: {0}")]
    Refused(#[from] rustls::Error),
    /// The authorities of clients make no verifier.
    #[error("client authorities in {path:?} are refused: {error}")]
    ClientCa {
        /// The file.
        path: PathBuf,
        /// Why.
        error: String,
    },
    /// No certificate could be made for these names.
    #[error("cannot make a certificate for {names:?}: {error}")]
    SelfSigned {
        /// The names that were asked for.
        names: Vec<String>,
        /// Why.
        error: rcgen::Error,
    },
}

/// TLS configuration of a server.
pub type ServerTls = Arc<ServerConfig>;

/// Whether a certificate could be for this name.
pub fn is_name(text: &str) -> bool {
    ServerName::try_from(text).is_ok()
}

/// Makes ring the cryptography of every TLS library in the process. Call it once at start, before
/// clients of other libraries are built; calling it again does nothing.
pub fn install_provider() {
    // An error means that a provider is installed already.
    let _ = ring::default_provider().install_default();
}

/// The rustls configuration for `settings`, and the task that keeps its files fresh where
/// [`ServerSettings::reload`] asks for one and there are files.
///
/// # Errors
///
/// When a file cannot be read, or does not hold what it should.
pub fn server_config(
    settings: &ServerSettings,
) -> Result<(Arc<ServerConfig>, Option<Reload>), TlsError> {
    server_config_with(settings, &CipherSuites::default())
}

/// As [`server_config`], with only the given cipher suites.
///
/// # Errors
///
/// When a file cannot be read, or does not hold what it should.
pub fn server_config_with(
    settings: &ServerSettings,
    suites: &CipherSuites,
) -> Result<(Arc<ServerConfig>, Option<Reload>), TlsError> {
    let material = Material::read(settings)?;
    let certificate =
        Arc::new(Certificate::new(certificate::certified(settings.names(), &material)?));
    let clients = match material.client_ca(settings) {
        Some((path, pem)) => Some(Arc::new(Clients::new(certificate::verifier(path, pem)?))),
        None => None,
    };

    let builder = ServerConfig::builder_with_provider(suites.provider(&settings.certificate))
        .with_protocol_versions(settings.min_version.and_newer())?;
    let builder = match &clients {
        Some(clients) => builder.with_client_cert_verifier(clients.clone()),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(certificate.clone());
    config.alpn_protocols = settings.alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    if clients.is_some() {
        // A resumed session is not checked again: it would outlive the authority that let it in.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    let reload = Reload::new(settings.clone(), material, certificate, clients);
    Ok((Arc::new(config), reload))
}

impl ServerSettings {
    /// The names for a certificate of our own making.
    fn names(&self) -> &[String] {
        match &self.certificate {
            CertificateSource::SelfSigned { names } => names,
            CertificateSource::Folder(_) => &[],
        }
    }
}

impl Version {
    fn and_newer(self) -> &'static [&'static SupportedProtocolVersion] {
        match self {
            Self::Tls12 => rustls::ALL_VERSIONS,
            Self::Tls13 => NEWEST,
        }
    }
}

/// TLS 1.3 and what will follow it.
static NEWEST: &[&SupportedProtocolVersion] = &[&version::TLS13];

/// The cryptography of our own servers: named outright, so that it does not depend on what is
/// installed for others.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
