//! TLS towards engines, endpoints and hubs.

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Files of trusted certificates on common systems.
const SYSTEM_ROOTS: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// Trusted authorities, and our own identity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// Trust any certificate, for pods that sign their own.
    pub insecure_skip_verify: bool,
    /// Trust these authorities (PEM) instead of the system's.
    pub ca_path: Option<PathBuf>,
    /// Our certificate and its key (PEM), for servers that ask for one.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Reason why TLS cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or is malformed.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// The fault.
        reason: String,
    },
    /// No file with authorities was found or given.
    #[error("no trusted certificates were found; give a file with them")]
    NoRoots,
    /// Certificate and key do not match or cannot be used.
    #[error("{0}")]
    Rustls(#[from] rustls::Error),
}

impl TlsOptions {
    /// A configuration that offers HTTP/1.1. Reads files.
    ///
    /// # Errors
    ///
    /// [`TlsError`] names the file.
    pub fn config(&self) -> Result<Arc<ClientConfig>, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()?;
        let builder = if self.insecure_skip_verify {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody(provider)))
        } else {
            builder.with_root_certificates(self.roots()?)
        };
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let key_der = PrivateKeyDer::from_pem_file(key).map_err(|e| fault(key, &e))?;
                builder.with_client_auth_cert(certificates(certificate)?, key_der)?
            }
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    fn roots(&self) -> Result<RootCertStore, TlsError> {
        let system = || SYSTEM_ROOTS.iter().map(PathBuf::from).find(|path| path.exists());
        // As OpenSSL and its kin have it.
        let named = || std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
        let path = self.ca_path.clone().or_else(named).or_else(system);
        let path = path.ok_or(TlsError::NoRoots)?;
        let mut roots = RootCertStore::empty();
        // A system's bundle may have some that rustls does not take.
        let (added, _) = roots.add_parsable_certificates(certificates(&path)?);
        if added == 0 {
            return Err(fault(&path, &"no certificate in it can be used"));
        }
        Ok(roots)
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_file_iter(path).map_err(|error| fault(path, &error))?;
    read.collect::<Result<_, _>>().map_err(|error| fault(path, &error))
}

fn fault(path: &Path, reason: &dyn std::fmt::Display) -> TlsError {
    TlsError::File { path: path.display().to_string(), reason: reason.to_string() }
}

/// Accepts every certificate whose key the server holds.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
