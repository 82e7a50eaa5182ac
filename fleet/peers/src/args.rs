//! The flags that name replicas, alike for all whose replicas share.

use crate::settings::{PORT_DEFAULT, PeerTls, PeersSettings};
use clap::Args;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// Flags that say who the other replicas are.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Replicas")]
pub struct PeersArgs {
    /// Other replicas, `host:port`; a DNS name may stand for many. They share what they sent and
    /// what they know.
    #[arg(long, env = "STATOR_PEERS", value_name = "HOST:PORT", value_delimiter = ',')]
    pub peers: Vec<String>,

    /// Port for other replicas, at the address that requests come to.
    #[arg(long, env = "STATOR_PEERS_PORT", default_value_t = PORT_DEFAULT, value_name = "PORT")]
    pub peers_port: u16,

    /// Secret that replicas show each other.
    #[arg(
        long,
        env = "STATOR_PEERS_TOKEN",
        default_value = "",
        hide_env_values = true,
        hide_default_value = true,
        value_name = "SECRET"
    )]
    pub peers_token: String,

    /// PEM file with the authorities of replicas, for TLS between them (mTLS).
    #[arg(long, env = "STATOR_PEERS_CA_FILE", value_name = "FILE", requires = "peers_cert_path")]
    pub peers_ca_file: Option<PathBuf>,

    /// Folder with `tls.crt` and `tls.key` that replicas show each other.
    #[arg(long, env = "STATOR_PEERS_CERT_PATH", value_name = "DIR", requires = "peers_ca_file")]
    pub peers_cert_path: Option<PathBuf>,

    /// Name that the certificates of replicas are for: `stator-epp` for pickers and
    /// `stator-proxy` for proxies, unless another is given.
    #[arg(long, env = "STATOR_PEERS_SERVER_NAME", value_name = "NAME")]
    pub peers_server_name: Option<String>,
}

impl PeersArgs {
    /// What was asked for; `None` without peers. Others connect to `host`, and certificates are for
    /// `server_name` where nothing else is said.
    pub fn settings(self, host: IpAddr, server_name: &str) -> Option<PeersSettings> {
        let files = self.peers_ca_file.zip(self.peers_cert_path);
        let server_name = self.peers_server_name.unwrap_or_else(|| server_name.to_owned());
        (!self.peers.is_empty()).then(|| PeersSettings {
            listen: SocketAddr::new(host, self.peers_port),
            peers: self.peers,
            token: Some(self.peers_token).filter(|token| !token.is_empty()),
            tls: files.map(|(ca_file, certificate)| PeerTls { ca_file, certificate, server_name }),
            ..PeersSettings::default()
        })
    }
}
