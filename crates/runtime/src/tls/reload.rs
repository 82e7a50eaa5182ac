//! Certificates that change while the process runs.
//!
//! The files are compared by content, because Kubernetes renews a mounted secret by swapping a
//! symbolic link. New connections use what was read last; open ones go on with what they began
//! with.

use super::material::Material;
use super::{ServerSettings, TlsError, certificate};
use crate::Shutdown;
use arc_swap::ArcSwap;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, DistinguishedName, SignatureScheme};
use rustls_pki_types::{CertificateDer, UnixTime};
use std::sync::Arc;
use std::time::Duration;

/// Interval of looks at the files.
pub const RELOAD_INTERVAL: Duration = Duration::from_secs(3);

/// Keeps the certificate and the authorities of clients as fresh as their files.
pub struct Reload {
    settings: ServerSettings,
    /// Content of the files at the last look, or the fault: a fault is logged when it appears, not
    /// on every look.
    seen: Result<Material, String>,
    certificate: Arc<Certificate>,
    clients: Option<Arc<Clients>>,
}

/// The certificate that new connections are shown.
#[derive(Debug)]
pub(super) struct Certificate(ArcSwap<CertifiedKey>);

/// The authorities that certificates of new clients are checked against.
#[derive(Debug)]
pub(super) struct Clients(ArcSwap<Arc<dyn ClientCertVerifier>>);

impl Reload {
    /// None where there is nothing to look at.
    pub(super) fn new(
        settings: ServerSettings,
        seen: Material,
        certificate: Arc<Certificate>,
        clients: Option<Arc<Clients>>,
    ) -> Option<Self> {
        let files = seen.pair.is_some() || seen.client_ca.is_some();
        (settings.reload && files).then_some(Self {
            settings,
            seen: Ok(seen),
            certificate,
            clients,
        })
    }

    /// Looks at the files every [`RELOAD_INTERVAL`] until `shutdown`.
    pub async fn run(mut self, shutdown: Shutdown) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(RELOAD_INTERVAL) => {}
                () = shutdown.wait() => return,
            }
            self = match tokio::task::spawn_blocking(move || self.look()).await {
                Ok(looked) => looked,
                Err(error) => {
                    tracing::error!(%error, "certificates are no longer reloaded");
                    return;
                }
            };
        }
    }

    /// One look: where the files have changed and are sound, new connections get what they hold.
    /// Blocks for as long as reading them takes.
    pub(super) fn look(mut self) -> Self {
        let now = Material::read(&self.settings).map_err(|error| error.to_string());
        if now == self.seen {
            return self;
        }
        let applied = match &now {
            Ok(material) => self.apply(material).map_err(|error| error.to_string()),
            Err(error) => Err(error.clone()),
        };
        match applied {
            Ok(()) => tracing::info!("certificates reloaded"),
            Err(error) => tracing::warn!(error, "certificates not reloaded, the old ones stay"),
        }
        self.seen = now;
        self
    }

    /// All or nothing: a certificate never comes with the authorities of another time.
    fn apply(&self, material: &Material) -> Result<(), TlsError> {
        let certified = match &material.pair {
            Some(_) => Some(certificate::certified(&[], material)?),
            None => None,
        };
        let verifier = match material.client_ca(&self.settings) {
            Some((path, pem)) => Some(certificate::verifier(path, pem)?),
            None => None,
        };
        if let Some(certified) = certified {
            self.certificate.store(certified);
        }
        if let (Some(clients), Some(verifier)) = (&self.clients, verifier) {
            clients.0.store(Arc::new(verifier));
        }
        Ok(())
    }
}

impl Certificate {
    pub(super) fn new(certified: Arc<CertifiedKey>) -> Self {
        Self(ArcSwap::new(certified))
    }

    pub(super) fn store(&self, certified: Arc<CertifiedKey>) {
        self.0.store(certified);
    }
}

impl Clients {
    pub(super) fn new(verifier: Arc<dyn ClientCertVerifier>) -> Self {
        Self(ArcSwap::from_pointee(verifier))
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

impl ClientCertVerifier for Clients {
    /// No hints: they would have to live as long as this value, and clients do not need them.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.0.load().verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.load().verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.load().verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.load().supported_verify_schemes()
    }
}
