//! Reasons why TLS cannot be spoken.

use std::path::PathBuf;

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
