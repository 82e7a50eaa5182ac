//! Trust in KV that another agent computed.

use clap::Args;
use stator_kv::transfer::FleetKey;
use stator_protos::name::NameKey;
use stator_runtime::secret::Secret;
use std::net::IpAddr;
use std::path::PathBuf;
use tonic::transport::Uri;

/// Purpose for which the key of an object store's blocks is derived.
const OBJECT_CONTEXT: &str = "stator 2026 tags of KV blocks in object stores";

/// Flags of the secret that agents of a fleet share.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Fleet")]
pub struct FleetArgs {
    /// File with the secret of the fleet, 16 to 4096 bytes of visible ASCII, read once at start.
    /// Built-in and simulated engines share KV with agents of the same secret. Default: no secret;
    /// then they share KV with agents on the same machine alone, or with all agents where the
    /// request plane has mutual TLS (`--request-tls-client-auth`). Other engines move KV themselves.
    #[arg(long, env = "STATOR_FLEET_SECRET_FILE", value_name = "FILE")]
    pub fleet_secret_file: Option<PathBuf>,
}

/// Keys of the KV that agents exchange, and whom they exchange it with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvTrust {
    /// Key of the names of blocks.
    pub name_key: NameKey,
    /// Key by which agents that lend or hand over KV and those that read it know each other.
    pub fleet_key: FleetKey,
    /// Key of the tags of blocks in an object store, which others may write to; `None` without a
    /// secret.
    pub object_key: Option<[u8; 32]>,
    /// Whether KV may come from other machines: a secret or mutual TLS vouches for its sender.
    pub beyond_this_machine: bool,
}

impl FleetArgs {
    /// Reads the flags, for a request plane with mutual TLS or without.
    ///
    /// # Errors
    ///
    /// A message that names the flag and the file.
    pub(super) fn trust(&self, has_mutual_tls: bool) -> Result<KvTrust, String> {
        let Some(file) = &self.fleet_secret_file else {
            return Ok(KvTrust { beyond_this_machine: has_mutual_tls, ..KvTrust::default() });
        };
        let secret = Secret::read(file).map_err(|fault| format!("fleet-secret-file: {fault}"))?;
        let secret = secret.reveal().as_bytes();
        Ok(KvTrust {
            name_key: NameKey::of_secret(secret),
            fleet_key: FleetKey::of_secret(secret),
            object_key: Some(blake3::derive_key(OBJECT_CONTEXT, secret)),
            beyond_this_machine: true,
        })
    }
}

impl KvTrust {
    /// Whether KV may be exchanged with the agent at this endpoint.
    pub(crate) fn covers(&self, endpoint: &str) -> bool {
        self.beyond_this_machine || is_on_this_machine(endpoint)
    }
}

/// Whether an endpoint is a Unix socket or of the loopback interface.
fn is_on_this_machine(endpoint: &str) -> bool {
    if endpoint.starts_with("unix:") {
        return true;
    }
    let uri = endpoint.parse::<Uri>().ok();
    let host = uri.as_ref().and_then(Uri::host).unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: [&str; 5] = [
        "unix:///run/a.sock",
        "http://127.0.0.1:7000",
        "https://127.9.9.9:7000",
        "http://[::1]:7000",
        "http://localhost:7000",
    ];
    const ELSEWHERE: [&str; 6] = [
        "http://10.0.0.1:7000",
        "https://agent-0.pool:7000",
        "http://[fd00::1]:7000",
        "http://127.0.0.1@10.0.0.1:7000",
        "http://127.0.0.1.example.com:7000",
        "nonsense",
    ];

    #[test]
    fn without_a_secret_or_mutual_tls_kv_stays_on_this_machine() {
        let trust = |has_mutual_tls| FleetArgs::default().trust(has_mutual_tls).unwrap();
        for endpoint in HERE {
            assert!(trust(false).covers(endpoint) && trust(true).covers(endpoint), "{endpoint}");
        }
        for endpoint in ELSEWHERE {
            assert!(!trust(false).covers(endpoint) && trust(true).covers(endpoint), "{endpoint}");
        }
    }

    #[test]
    fn a_secret_decides_all_keys_and_its_faults_name_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("fleet");
        let trust = || FleetArgs { fleet_secret_file: Some(file.clone()) }.trust(false);
        let fault = trust().unwrap_err();
        let path = file.display().to_string();
        assert!(fault.starts_with("fleet-secret-file: cannot read") && fault.contains(&path));
        std::fs::write(&file, "too short\n").unwrap();
        let expected = format!("fleet-secret-file: {path}: 9 bytes, 16 to 4096");
        assert_eq!(trust().unwrap_err(), expected);
        std::fs::write(&file, "correct-horse-battery\n").unwrap();
        let first = trust().unwrap();
        assert!(ELSEWHERE.iter().all(|endpoint| first.covers(endpoint)));
        assert!(!format!("{first:?}").contains("horse"));
        std::fs::write(&file, "correct-horse-batterY\n").unwrap();
        let second = trust().unwrap();
        assert_ne!(first.name_key, second.name_key);
        assert!(first.fleet_key != second.fleet_key);
        assert_ne!(first.name_key, KvTrust::default().name_key);
    }
}
