//! The files of a server's or client's identity, as text.

use super::error::TlsError;
use super::settings::{CertificateSource, ServerSettings};
use std::path::{Path, PathBuf};

/// The file of a folder that holds the certificate and its chain.
pub(super) const CHAIN: &str = "tls.crt";
/// The file of a folder that holds the private key.
pub(super) const KEY: &str = "tls.key";

/// The text of all files. Holds the private key, hence no `Debug`.
#[derive(PartialEq)]
pub(super) struct Material {
    /// None where the certificate is of our own making.
    pub pair: Option<PemPair>,
    pub(super) client_ca: Option<Vec<u8>>,
}

/// Certificate and key as a folder holds them.
#[derive(PartialEq)]
pub(super) struct PemPair {
    pub folder: PathBuf,
    pub chain: Vec<u8>,
    pub key: Vec<u8>,
}

impl Material {
    pub(super) fn read(settings: &ServerSettings) -> Result<Self, TlsError> {
        let pair = match &settings.certificate {
            CertificateSource::Folder(folder) => Some(PemPair {
                folder: folder.clone(),
                chain: read(folder.join(CHAIN))?,
                key: read(folder.join(KEY))?,
            }),
            CertificateSource::SelfSigned { .. } => None,
        };
        let client_ca = settings.client_ca.clone().map(read).transpose()?;
        Ok(Self { pair, client_ca })
    }

    /// Path and text of the authorities of clients.
    pub(super) fn client_ca<'a>(
        &'a self,
        settings: &'a ServerSettings,
    ) -> Option<(&'a Path, &'a [u8])> {
        Some((settings.client_ca.as_deref()?, self.client_ca.as_deref()?))
    }
}

pub(super) fn read(path: PathBuf) -> Result<Vec<u8>, TlsError> {
    std::fs::read(&path).map_err(|error| TlsError::Read { path, error })
}
