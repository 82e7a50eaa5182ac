//! TLS of the picker's ports.

use super::EppArgs;
use super::args::TlsArgs;
use stator_runtime::config::ConfigError;
use stator_runtime::tls::{CertificateSource, CipherSuites, ServerSettings, server_config_with};
use std::path::PathBuf;

/// TLS of the picker's ports.
#[derive(Clone, Debug)]
pub struct TlsSettings {
    /// TLS of the ext-proc ports; `None` is plain text.
    pub ext_proc: Option<ServerSettings>,
    /// TLS of the metrics port; `None` is plain text.
    pub metrics: Option<ServerSettings>,
    /// Cipher suites of both.
    pub cipher_suites: CipherSuites,
}

impl TlsSettings {
    /// Reads what the ports are served with, so that all faults are told before anything starts.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] with each port whose files are not there, or not what they should be.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let refused = |(port, settings): (&str, &Option<ServerSettings>)| {
            let error = server_config_with(settings.as_ref()?, &self.cipher_suites).err()?;
            Some(format!("TLS of {port}: {error}"))
        };
        let ports = [("ext-proc", &self.ext_proc), ("metrics", &self.metrics)];
        let faults: Vec<_> = ports.into_iter().filter_map(refused).collect();
        if faults.is_empty() { Ok(()) } else { Err(ConfigError(faults)) }
    }
}

/// TLS settings from the flags; faults are appended.
pub(super) fn ports(all: &EppArgs, faults: &mut Vec<String>) -> TlsSettings {
    let args = &all.tls;
    let cipher_suites = CipherSuites::named(&args.tls_cipher_suites).unwrap_or_else(|error| {
        faults.push(format!("--tls-cipher-suites: {error}"));
        CipherSuites::default()
    });
    let metrics = metrics(args);
    faults.extend(unused(all));
    TlsSettings { ext_proc: args.secure_serving.then(|| ext_proc(args)), metrics, cipher_suites }
}

fn ext_proc(args: &TlsArgs) -> ServerSettings {
    ServerSettings {
        certificate: match &args.cert_path {
            Some(folder) => CertificateSource::Folder(folder.clone()),
            None => CertificateSource::SelfSigned { names: Vec::new() },
        },
        client_ca: args.client_ca_file.clone(),
        reload: args.enable_cert_reload,
        min_version: args.tls_min_version,
        alpn: vec!["h2".into()],
    }
}

fn metrics(args: &TlsArgs) -> Option<ServerSettings> {
    let folder = args.metrics_cert_dir.clone()?;
    Some(ServerSettings {
        certificate: CertificateSource::Folder(folder),
        client_ca: args.metrics_client_ca_file.clone(),
        reload: true,
        min_version: args.tls_min_version,
        alpn: vec!["http/1.1".into()],
    })
}

/// Flags that name files for a port that does not read them. An operator who gives them would take
/// the port for safer than it is.
fn unused(all: &EppArgs) -> Vec<String> {
    let args = &all.tls;
    let given = |file: &Option<PathBuf>, flag: &'static str| file.is_some().then_some(flag);
    let mut faults = Vec::new();
    if !args.secure_serving {
        let flags = [
            given(&args.cert_path, "--cert-path"),
            given(&args.client_ca_file, "--client-ca-file"),
        ];
        let fault = |flag| format!("{flag}: has no use with --secure-serving=false");
        faults.extend(flags.into_iter().flatten().map(fault));
    }
    if all.serving.no_metrics {
        let flags = [
            given(&args.metrics_cert_dir, "--metrics-cert-dir"),
            given(&args.metrics_client_ca_file, "--metrics-client-ca-file"),
        ];
        let fault = |flag| format!("{flag}: has no use with --no-metrics");
        faults.extend(flags.into_iter().flatten().map(fault));
    } else if args.metrics_client_ca_file.is_some() && args.metrics_cert_dir.is_none() {
        faults.push("--metrics-client-ca-file: needs --metrics-cert-dir".into());
    }
    faults
}
