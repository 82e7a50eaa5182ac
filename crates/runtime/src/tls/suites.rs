//! Cipher suites that an operator can choose.

use super::settings::CertificateSource;
use rustls::SupportedCipherSuite;
use rustls::crypto::{CryptoProvider, ring};
use std::sync::Arc;

/// The cipher suites of TLS 1.2 that a server speaks; all that are supported by default. Those of
/// TLS 1.3 are no choice: they are always spoken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CipherSuites(Option<Vec<String>>);

/// Names that are no supported cipher suites. The supported ones are forward secret and
/// authenticated; further suites of Go are for clients that nobody should serve any more.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} not supported, only these are: {}", .names.join(", "), supported().join(", "))]
pub struct UnsupportedSuites {
    /// The names.
    pub names: Vec<String>,
}

impl CipherSuites {
    /// The suites with these names, which are those of IANA and of Go:
    /// `TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256`. None at all is the default.
    ///
    /// # Errors
    ///
    /// [`UnsupportedSuites`] with all names that are of no suite here.
    pub fn named(names: &[String]) -> Result<Self, UnsupportedSuites> {
        let names: Vec<String> = names
            .iter()
            .map(|name| name.trim().to_owned())
            .filter(|name| !name.is_empty())
            .collect();
        let known = supported();
        let unsupported: Vec<_> =
            names.iter().filter(|name| !known.contains(name)).cloned().collect();
        match unsupported.is_empty() {
            true => Ok(Self((!names.is_empty()).then_some(names))),
            false => Err(UnsupportedSuites { names: unsupported }),
        }
    }

    /// The cryptography of a server with this certificate and no other suites.
    pub(super) fn provider(&self, certificate: &CertificateSource) -> Arc<CryptoProvider> {
        let mut provider = ring::default_provider();
        let own = matches!(certificate, CertificateSource::SelfSigned { .. });
        provider.cipher_suites.retain(|suite| suite.tls13().is_some() || self.allow(*suite, own));
        Arc::new(provider)
    }

    /// Whether a suite is allowed. Our own certificate is ECDSA: names of RSA suites then mean the
    /// cipher, since no client of TLS 1.2 could talk to the server otherwise.
    fn allow(&self, suite: SupportedCipherSuite, own_certificate: bool) -> bool {
        let Some(names) = &self.0 else { return true };
        let name = name(suite);
        let twin = own_certificate.then(|| name.replace("_ECDSA_", "_RSA_"));
        names.iter().any(|allowed| *allowed == name || Some(allowed) == twin.as_ref())
    }
}

/// Names of all suites that are supported, the best first.
fn supported() -> Vec<String> {
    ring::ALL_CIPHER_SUITES.iter().map(|suite| name(*suite)).collect()
}

/// IANA's name of a suite. The library's name differs for TLS 1.3: `TLS13_AES_…`.
fn name(suite: SupportedCipherSuite) -> String {
    let name = suite.suite().as_str().unwrap_or_default();
    name.strip_prefix("TLS13_").map_or_else(|| name.to_owned(), |rest| format!("TLS_{rest}"))
}

/// The cryptography of our own servers: named outright, so that it does not depend on what is
/// installed for others.
pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::testkit::{Authority, Echo, settings};
    use rustls::{ClientConfig, RootCertStore};
    use rustls_pki_types::CertificateDer;

    const AES_128: &str = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256";
    const AES_256: &str = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384";

    fn suites(names: &[&str]) -> Result<CipherSuites, String> {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        CipherSuites::named(&names).map_err(|error| error.to_string())
    }

    /// A client that offers one suite.
    fn client(root: &CertificateDer<'static>, suite: &str) -> ClientConfig {
        let mut provider = ring::default_provider();
        provider.cipher_suites.retain(|offered| name(*offered) == suite);
        let mut roots = RootCertStore::empty();
        roots.add(root.clone()).expect("it is a certificate");
        ClientConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()
            .expect("the suite is supported")
            .with_root_certificates(roots)
            .with_no_client_auth()
    }

    #[tokio::test]
    async fn only_clients_with_a_suite_of_the_list_get_in() {
        let (authority, dir) = (Authority::new(), tempfile::tempdir().expect("a folder"));
        authority.sign("localhost").write(dir.path());
        let settings = settings(CertificateSource::Folder(dir.path().to_owned()));
        let check = async |list: &[&str], offered: &str| {
            let suites = suites(list).expect("they are supported");
            let echo = Echo::start_with(&settings, &suites).await;
            echo.answers(client(&authority.der, offered)).await
        };
        assert!(check(&[AES_128], AES_128).await);
        assert!(!check(&[AES_128], AES_256).await);
        assert!(check(&[AES_128, AES_256], AES_256).await);
        assert!(check(&[], AES_256).await, "without a list there is no limit");
        assert!(check(&[AES_128], "TLS_AES_256_GCM_SHA384").await, "TLS 1.3 is always spoken");
        let rsa = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256";
        assert!(!check(&[rsa], AES_128).await, "a list is obeyed as it is for a given certificate");
    }

    #[test]
    fn a_list_for_rsa_means_the_same_ciphers_for_a_certificate_of_our_own() {
        let list = suites(&["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]).expect("it is supported");
        let provider = list.provider(&CertificateSource::SelfSigned { names: Vec::new() });
        let spoken: Vec<_> = provider.cipher_suites.iter().map(|suite| name(*suite)).collect();
        assert!(spoken.iter().any(|name| name == AES_128), "{spoken:?}");
        assert!(!spoken.iter().any(|name| name == AES_256), "{spoken:?}");
    }

    #[test]
    fn names_are_trimmed_and_empty_ones_skipped() {
        assert_eq!(suites(&["", " "]), Ok(CipherSuites::default()));
        let spaced = format!(" {AES_128} ");
        assert_eq!(suites(&[&spaced, ""]), suites(&[AES_128]));
    }

    #[test]
    fn unsupported_names_are_refused_with_those_that_are_supported() {
        let error = suites(&["TLS_X", AES_128, "TLS_RSA_WITH_AES_128_CBC_SHA"]);
        let expected = "TLS_X, TLS_RSA_WITH_AES_128_CBC_SHA not supported, only these are: \
                        TLS_AES_256_GCM_SHA384, TLS_AES_128_GCM_SHA256, \
                        TLS_CHACHA20_POLY1305_SHA256, TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, \
                        TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, \
                        TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, \
                        TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, \
                        TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, \
                        TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256";
        assert_eq!(error, Err(expected.to_owned()));
    }
}
