//! TLS for clients: whom to trust, and who we are.

use super::material::{CHAIN, KEY, PemPair, read};
use super::suites::provider;
use super::{TlsError, certificate};
use rustls::client::WebPkiServerVerifier;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{InvalidDnsNameError, ServerName};
use std::path::PathBuf;
use std::sync::Arc;

/// The files of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientFiles {
    /// PEM file with the authorities of servers.
    pub ca: PathBuf,
    /// Folder with our `tls.crt` and `tls.key`, for servers that ask for a certificate.
    pub certificate: Option<PathBuf>,
    /// The name that servers' certificates must be for, whatever their addresses.
    pub server_name: Option<String>,
}

impl ClientFiles {
    /// Reads the files. HTTP/2 is the one protocol that is spoken.
    ///
    /// # Errors
    ///
    /// When one cannot be read, or does not hold what it should.
    pub(crate) fn config(&self) -> Result<Arc<ClientConfig>, TlsError> {
        let pem = read(self.ca.clone())?;
        let mut roots = RootCertStore::empty();
        for authority in certificate::parse_chain(&self.ca, &pem)? {
            roots.add(authority)?;
        }
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider());
        let verifier =
            verifier.build().map_err(|error| rustls::Error::General(error.to_string()))?;
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_webpki_verifier(verifier);
        let mut config = match &self.certificate {
            None => builder.with_no_client_auth(),
            Some(folder) => {
                let (chain, key) = (read(folder.join(CHAIN))?, read(folder.join(KEY))?);
                let (chain, key) =
                    certificate::parse_parts(&PemPair { folder: folder.clone(), chain, key })?;
                builder.with_client_auth_cert(chain, key)?
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Arc::new(config))
    }

    /// The name that the certificate of the server at `host` must be for.
    ///
    /// # Errors
    ///
    /// When it is no name.
    pub(crate) fn server_name(
        &self,
        host: &str,
    ) -> Result<ServerName<'static>, InvalidDnsNameError> {
        let name = self.server_name.as_deref().unwrap_or(host);
        ServerName::try_from(name.to_owned())
    }
}
