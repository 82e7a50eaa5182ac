//! Settings of peers, for operators.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

/// Port on which replicas listen to each other, unless told otherwise.
pub(crate) const PORT_DEFAULT: u16 = 9004;

/// Peers listened to at once, and listeners at once; further ones are left out.
pub const PEERS_MAX: usize = 64;

/// Addresses of the peers, and time limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeersSettings {
    /// Address that peers connect to.
    pub listen: SocketAddr,
    /// `host:port` of each peer. A host is an address, or a name that stands for all of its
    /// addresses, as that of a headless Service does. This replica may be among them.
    pub peers: Vec<String>,
    /// A secret that all replicas share; who does not know it is refused. Without TLS it can be
    /// read on the way.
    pub token: Option<String>,
    /// TLS settings for dialling peers; `None` dials them in the clear.
    pub tls: Option<PeerTls>,
    /// From one telling to the next at least, 2 ms by default, 1 ms or more: what changes is told
    /// at once where nothing was told just before.
    pub interval: Duration,
    /// Interval of heartbeats of a replica with nothing to say; 400 ms by default.
    pub heartbeat: Duration,
    /// Silence after which a peer's requests count no more; 1.5 s by default.
    pub silence: Duration,
    /// Interval of name look-ups, and of new attempts at addresses that are no peers; 5 s by
    /// default.
    pub resolve: Duration,
    /// Longest wait for a connection; 1 s by default.
    pub connect_timeout: Duration,
    /// Wait after the first failed attempt to connect, doubled each time; 50 ms by default.
    pub backoff_min: Duration,
    /// Longest wait between attempts to connect; 1 s by default.
    pub backoff_max: Duration,
    /// Longest time for [`crate::Peers::warm_start`]; 2 s by default.
    pub warm_start: Duration,
    /// Blocks of prompts that may wait for one peer, 8 bytes each and more for short prompts;
    /// 1,048,576 by default. Beyond them the oldest prompts are lost.
    pub queue_hashes_max: usize,
}

impl Default for PeersSettings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), PORT_DEFAULT),
            peers: Vec::new(),
            token: None,
            tls: None,
            interval: Duration::from_millis(2),
            heartbeat: Duration::from_millis(400),
            silence: Duration::from_millis(1500),
            resolve: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(1),
            backoff_min: Duration::from_millis(50),
            backoff_max: Duration::from_secs(1),
            warm_start: Duration::from_secs(2),
            queue_hashes_max: 1 << 20,
        }
    }
}

/// Whom to trust when dialling peers, and who we are. Files are read at each connection, so that
/// renewed certificates count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerTls {
    /// PEM file with the authorities of peers.
    pub ca_file: PathBuf,
    /// Folder with our `tls.crt` and `tls.key`, which peers ask for (mTLS).
    pub certificate: PathBuf,
    /// The name that peers' certificates must be for, whatever their addresses.
    pub server_name: String,
}

impl PeerTls {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// When one cannot be read.
    pub(crate) async fn config(&self) -> std::io::Result<ClientTlsConfig> {
        let authorities = tokio::fs::read(&self.ca_file).await?;
        let config = ClientTlsConfig::new()
            .domain_name(&self.server_name)
            .ca_certificate(Certificate::from_pem(authorities));
        let chain = tokio::fs::read(self.certificate.join("tls.crt")).await?;
        let key = tokio::fs::read(self.certificate.join("tls.key")).await?;
        Ok(config.identity(Identity::from_pem(chain, key)))
    }
}
