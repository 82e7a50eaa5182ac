//! TLS: where a server's certificate comes from, who may connect, and how both change while the
//! process runs; and whom a client trusts.
//!
//! [`server_config`] turns checked [`ServerSettings`] into a rustls configuration that any server can
//! use. [`Listener`] accepts connections with it, or plain ones, so that a server has one path.

mod certificate;
mod client;
mod error;
mod issued;
mod listener;
mod material;
mod reload;
mod settings;
mod suites;
#[cfg(test)]
pub(crate) mod testkit;
#[cfg(test)]
mod tests;

pub(crate) use client::ClientFiles;
pub use error::TlsError;
pub use issued::IssuedCertificate;
pub use listener::{Connection, HANDSHAKE_LIMIT, HANDSHAKES_MAX, Handshake, Listener, TlsPeer};
pub use reload::{RELOAD_INTERVAL, Reload};
pub use settings::{CertificateSource, ServerSettings, Version};
pub use suites::{CipherSuites, UnsupportedSuites};

use material::Material;
use reload::{Certificate, Clients};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::server::NoServerSessionStorage;
use rustls_pki_types::ServerName;
use std::sync::Arc;

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
