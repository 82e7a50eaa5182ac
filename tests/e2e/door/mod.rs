//! The proxy's front door under clients that send too slowly, too much, or do not read.

mod bodies;
mod heads;
mod places;
pub(crate) mod raw;
mod readers;

use raw::Raw;
use stator_tests::process::Process;
use std::net::SocketAddr;

/// A proxy without agents: enough for what happens before a model is asked.
pub(crate) struct Door {
    pub process: Process,
    pub address: SocketAddr,
    _dir: tempfile::TempDir,
}

impl Door {
    pub(crate) async fn start(flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let discovery = format!("--discovery-dir={}", dir.path().display());
        let mut args = vec!["proxy", "--http-port=0", "--metrics-port=0", &discovery];
        args.extend(flags);
        let mut process = Process::start(&args);
        let listening = process.event("listening").await;
        let address = listening["address"].as_str().unwrap().parse().unwrap();
        Self { process, address, _dir: dir }
    }

    async fn connect(&self) -> Raw {
        Raw::connect(self.address).await
    }

    /// The answer to bytes that are sent on a connection of their own.
    async fn ask(&self, request: &str) -> raw::Answer {
        let mut client = self.connect().await;
        client.send(request).await;
        client.answer().await
    }

    /// The value of a metric on the client's port; 0 where it has none.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let page = self.ask(&get("/metrics")).await.body;
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0.0, |value| value.parse().unwrap())
    }
}

/// A request without a body.
fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: t\r\n\r\n")
}

/// The head of a completion request, with further lines.
fn post(lines: &str) -> String {
    format!(
        "POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\n{lines}\r\n"
    )
}
