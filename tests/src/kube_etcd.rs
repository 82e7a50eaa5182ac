//! The cluster's etcd on its own, as a place where agents register.

use crate::process::signal;
use crate::tooling::{Tool, installed};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A running etcd of one member.
pub struct Etcd {
    binaries: PathBuf,
    flags: Vec<String>,
    server: Option<Tool>,
    address: SocketAddr,
    directory: TempDir,
}

impl Etcd {
    /// Starts one. `flags` are those of `tests/kube`, for example `-etcd-password=secret`. `None`,
    /// and said so, where `tests/run` has not installed it.
    ///
    /// # Panics
    ///
    /// When it does not start, or is missing in continuous integration.
    pub async fn start(flags: &[String]) -> Option<Self> {
        let binaries = installed("STATOR_TEST_KUBE", "etcd")?;
        let directory = TempDir::new().expect("a temporary directory");
        let (server, address) = serve(&binaries, directory.path(), flags, 0).await;
        Some(Self { binaries, flags: flags.to_vec(), server: Some(server), address, directory })
    }

    /// Where it serves clients.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends it a signal by name, where it runs.
    ///
    /// # Panics
    ///
    /// The etcd has ended by itself.
    pub fn signal(&self, name: &str) {
        if let Some(server) = &self.server {
            signal(server.id(), name);
        }
    }

    /// Kills it, as the loss of its machine does. Keys and leases survive.
    pub fn stop(&mut self) {
        self.server = None;
    }

    /// Stops it, where it runs, and starts it at the same address.
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub async fn restart(&mut self) {
        self.stop();
        let (directory, port) = (self.directory.path(), self.address.port());
        let (server, _) = serve(&self.binaries, directory, &self.flags, port).await;
        self.server = Some(server);
    }
}

/// Starts it and waits until it serves.
async fn serve(
    binaries: &Path,
    directory: &Path,
    flags: &[String],
    port: u16,
) -> (Tool, SocketAddr) {
    let mut command = Command::new(binaries.join("kube"));
    command.arg("-etcd").arg("-dir").arg(directory).args(flags);
    let tool = Tool::start(command.arg("-port").arg(port.to_string()));
    let url = tool.line("etcd's URL", |line| line.starts_with("http")).await;
    let (_, address) = url.split_once("://").expect("a URL has a scheme");
    let address = address.parse().expect("an address and a port");
    (tool, address)
}
