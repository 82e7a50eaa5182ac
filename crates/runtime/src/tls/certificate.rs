//! Certificates: made in memory, or parsed from the text of PEM files.

use super::error::TlsError;
use super::material::{CHAIN, KEY, Material, PemPair};
use super::suites::provider;
use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair};
use rustls::RootCertStore;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::{Error as PemError, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Validity of a self-signed certificate.
const SELF_SIGNED_FOR: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Clocks of clients may be behind by this much.
const CLOCK_SKEW: Duration = Duration::from_secs(24 * 3600);

/// The server's certificate: from `material` where it holds one, else made for `names`.
pub(super) fn certified(
    names: &[String],
    material: &Material,
) -> Result<Arc<CertifiedKey>, TlsError> {
    material.pair.as_ref().map_or_else(|| self_signed(names), parse_pair)
}

/// A checker of client certificates that accepts those of the authorities in `pem`.
pub(super) fn verifier(path: &Path, pem: &[u8]) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let refuse = |error: String| TlsError::ClientCa { path: path.to_owned(), error };
    let mut roots = RootCertStore::empty();
    for authority in parse_chain(path, pem)? {
        roots.add(authority).map_err(|error| refuse(error.to_string()))?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
        .build()
        .map_err(|error| refuse(error.to_string()))
}

/// ECDSA on P-256: clients of every age know it, and a handshake costs a fraction of RSA's.
fn self_signed(names: &[String]) -> Result<Arc<CertifiedKey>, TlsError> {
    let (certificate, key) =
        make(names).map_err(|error| TlsError::SelfSigned { names: names.to_vec(), error })?;
    let key = PrivateKeyDer::try_from(key.serialize_der())
        .map_err(|error| rustls::Error::General(error.to_owned()))?;
    let chain = vec![certificate.der().clone()];
    Ok(Arc::new(CertifiedKey::from_der(chain, key, &provider())?))
}

fn make(names: &[String]) -> Result<(rcgen::Certificate, KeyPair), rcgen::Error> {
    let mut all = vec!["localhost".to_owned()];
    all.extend(names.iter().filter(|name| *name != "localhost").cloned());
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(all)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "stator");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    // A clock before 1970 makes a certificate that starts there.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + now.saturating_sub(CLOCK_SKEW);
    params.not_after = epoch + now + SELF_SIGNED_FOR;
    Ok((params.self_signed(&key)?, key))
}

pub(super) fn parse_pair(pair: &PemPair) -> Result<Arc<CertifiedKey>, TlsError> {
    let (chain, key) = parse_parts(pair)?;
    Ok(Arc::new(CertifiedKey::from_der(chain, key, &provider())?))
}

/// Certificate with its chain, and key; whether they belong together is not checked.
pub(super) fn parse_parts(
    pair: &PemPair,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
    let chain = parse_chain(&pair.folder.join(CHAIN), &pair.chain)?;
    let key = PrivateKeyDer::from_pem_slice(&pair.key).map_err(|error| TlsError::Pem {
        path: pair.folder.join(KEY),
        what: "private key",
        error,
    })?;
    Ok((chain, key))
}

/// All certificates of a PEM file; at least one.
pub(super) fn parse_chain(
    path: &Path,
    pem: &[u8],
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let refuse = |error| TlsError::Pem { path: path.to_owned(), what: "certificate", error };
    let chain: Vec<_> =
        CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(refuse)?;
    if chain.is_empty() {
        return Err(refuse(PemError::NoItemsFound));
    }
    Ok(chain)
}
