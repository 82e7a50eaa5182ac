//! The flags that name replicas, alike for all whose replicas share.

use crate::settings::{PORT_DEFAULT, PeerTls, PeersSettings};
use clap::Args;
use stator_runtime::secret::Secret;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

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

    /// Secret that replicas show each other. On the command line other users of the machine can see
    /// it.
    #[arg(
        long,
        env = "STATOR_PEERS_TOKEN",
        default_value = "",
        hide_env_values = true,
        hide_default_value = true,
        value_name = "SECRET"
    )]
    pub peers_token: String,

    /// File with the secret that replicas show each other, 16 to 4096 bytes. It is read at the
    /// start.
    #[arg(
        long,
        env = "STATOR_PEERS_TOKEN_FILE",
        conflicts_with = "peers_token",
        value_parser = secret,
        value_name = "FILE"
    )]
    pub peers_token_file: Option<Secret>,

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
    /// The settings that the flags ask for; `None` without peers. Others connect to `host`, and
    /// certificates are for `server_name` unless a flag says otherwise.
    pub fn settings(self, host: IpAddr, server_name: &str) -> Option<PeersSettings> {
        let given = Some(self.peers_token).filter(|token| !token.is_empty());
        let from_file = self.peers_token_file.map(|token| token.reveal().to_owned());
        let files = self.peers_ca_file.zip(self.peers_cert_path);
        let server_name = self.peers_server_name.unwrap_or_else(|| server_name.to_owned());
        (!self.peers.is_empty()).then(|| PeersSettings {
            listen: SocketAddr::new(host, self.peers_port),
            peers: self.peers,
            token: from_file.or(given),
            tls: files.map(|(ca_file, certificate)| PeerTls { ca_file, certificate, server_name }),
            ..PeersSettings::default()
        })
    }
}

fn secret(file: &str) -> Result<Secret, String> {
    Secret::read(Path::new(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Command, FromArgMatches};
    use std::net::Ipv4Addr;

    fn token(flags: &[&str]) -> Result<Option<String>, String> {
        let command = PeersArgs::augment_args(Command::new("proxy").no_binary_name(true));
        let matches = command.try_get_matches_from([&["--peers=a:1"], flags].concat());
        let matches = matches.map_err(|error| error.to_string())?;
        let args = PeersArgs::from_arg_matches(&matches).map_err(|error| error.to_string())?;
        let settings = args.settings(Ipv4Addr::LOCALHOST.into(), "stator-proxy");
        Ok(settings.expect("there are peers").token)
    }

    #[test]
    fn the_secret_comes_from_a_flag_or_a_file_and_not_from_both() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, "correct-horse-battery\n").unwrap();
        let file = format!("--peers-token-file={}", path.display());
        assert_eq!(token(&[]), Ok(None));
        assert_eq!(token(&["--peers-token=hush"]), Ok(Some("hush".into())));
        assert_eq!(token(&[&file]), Ok(Some("correct-horse-battery".into())));
        assert!(token(&[&file, "--peers-token=hush"]).unwrap_err().contains("cannot be used with"));
        let fault = token(&["--peers-token-file=/nowhere/token"]).unwrap_err();
        assert!(fault.contains("cannot read /nowhere/token"), "{fault}");
    }
}
