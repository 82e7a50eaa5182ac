//! Certificates that their owner issues and replaces while the process runs.

use super::certificate::parse_pair;
use super::material::PemPair;
use super::reload::Certificate;
use super::suites::provider;
use super::{ServerTls, TlsError};
use rustls::ServerConfig;
use std::path::PathBuf;
use std::sync::Arc;

/// Certificate of a server, whose owner replaces it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct IssuedCertificate(Arc<Certificate>);

impl IssuedCertificate {
    /// A certificate with its chain, and its key, PEM both.
    ///
    /// # Errors
    ///
    /// When they are not PEM, or do not belong together.
    pub fn new(chain: &str, key: &str) -> Result<Self, TlsError> {
        Ok(Self(Arc::new(Certificate::new(parse_pair(&pair(chain, key))?))))
    }

    /// Shows another certificate to new connections. Open ones go on with what they began with.
    ///
    /// # Errors
    ///
    /// The errors of [`IssuedCertificate::new`]; the old certificate stays then.
    pub fn replace(&self, chain: &str, key: &str) -> Result<(), TlsError> {
        self.0.store(parse_pair(&pair(chain, key))?);
        Ok(())
    }

    /// Configuration of a server of HTTP/1.1 that asks clients for no certificate.
    ///
    /// # Errors
    ///
    /// Never: the provider speaks the default versions.
    pub fn server_config(&self) -> Result<ServerTls, TlsError> {
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(self.0.clone());
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

fn pair(chain: &str, key: &str) -> PemPair {
    // Stands in error messages, where files have their folder.
    let folder = PathBuf::from("issued");
    PemPair { folder, chain: chain.into(), key: key.into() }
}
