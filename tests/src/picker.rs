//! Runs `stator epp`.

use crate::http::Client;
use crate::process::Process;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::PathBuf;
use tempfile::TempDir;

/// A running endpoint picker.
pub struct Picker {
    /// Its process.
    pub process: Process,
    /// Where data planes connect, by pool in the order of the flags.
    pub pools: Vec<SocketAddr>,
    /// Where health is asked, by gRPC.
    pub health: SocketAddr,
    /// Where metrics and `/health` are.
    pub side: Client,
    options: Options,
}

/// What a picker is started with.
#[derive(Clone, Debug, Default)]
struct Options {
    flags: Vec<String>,
    environment: Vec<(String, String)>,
}

impl Picker {
    /// Starts one with these flags, on free ports of 127.0.0.1, and waits until it listens.
    ///
    /// # Panics
    ///
    /// When it does not.
    pub async fn start(flags: &[&str]) -> Self {
        Self::start_with(flags, &[]).await
    }

    /// As [`Picker::start`], with further environment variables.
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub async fn start_with(flags: &[&str], environment: &[(&str, &str)]) -> Self {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let flags = flags.iter().copied().map(String::from).collect();
        let environment = environment.iter().map(owned).collect();
        Self::on_ports(Options { flags, environment }, 0, 0).await
    }

    /// Kills it, where it still runs, and starts it on the same ports.
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub async fn restart(&mut self) {
        self.process.kill().await;
        let options = std::mem::take(&mut self.options);
        *self = Self::on_ports(options, self.address().port(), self.health.port()).await;
    }

    async fn on_ports(options: Options, grpc_port: u16, health_port: u16) -> Self {
        let Options { flags, environment } = &options;
        let ports =
            [format!("--grpc-port={grpc_port}"), format!("--grpc-health-port={health_port}")];
        let mut args = vec!["epp", "--host=127.0.0.1", "--metrics-port=0"];
        if !flags.iter().any(|flag| flag.starts_with("--metrics-endpoint-auth")) {
            args.push("--metrics-endpoint-auth=false");
        }
        args.extend(ports.iter().chain(flags).map(String::as_str));
        let environment: Vec<_> =
            environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let mut process = Process::start_with(&args, &environment);
        let health = address(&process.event("health checks").await);
        let side = Client::new(address(&process.event("side server listening").await));
        let mut pools = Vec::new();
        let first = ["--pool-name=", "--endpoints-file=", "--endpoint-selector=", "--pool="];
        let is_pool = |flag: &&String| first.iter().any(|prefix| flag.starts_with(prefix));
        for n in 0..flags.iter().filter(is_pool).count() {
            pools.push(address(&process.nth_event("ext-proc listening", n).await));
        }
        Self { process, pools, health, side, options }
    }

    /// Where data planes of its only, or first, pool connect.
    pub fn address(&self) -> SocketAddr {
        self.pools[0]
    }

    /// Waits until it is ready for the first time.
    ///
    /// # Panics
    ///
    /// When it is not within the deadline.
    pub async fn ready(&mut self) {
        self.process.event("readiness").await;
    }

    /// The sum of a metric over all its labels; 0 where it has no samples. Counters have
    /// `_total` in their name.
    ///
    /// # Panics
    ///
    /// When the picker does not answer.
    pub async fn metric(&self, name: &str) -> f64 {
        let page = self.side.get("/metrics").await.body;
        let page = String::from_utf8_lossy(&page).into_owned();
        let samples = page.lines().filter_map(|line| {
            let rest = line.strip_prefix(name).filter(|rest| rest.starts_with([' ', '{']))?;
            rest.rsplit_once(' ')?.1.parse::<f64>().ok()
        });
        samples.sum()
    }
}

fn address(event: &Value) -> SocketAddr {
    let address = event["address"].as_str().expect("the event has an address");
    address.parse().expect("an address and a port")
}

/// A file of endpoints that a picker follows.
#[derive(Debug)]
pub struct EndpointsFile {
    directory: TempDir,
}

impl EndpointsFile {
    /// Writes a file with these endpoints and nothing else.
    ///
    /// # Panics
    ///
    /// When it cannot be written.
    pub fn of(addresses: &[SocketAddr]) -> Self {
        let file = Self { directory: TempDir::new().expect("a temporary directory") };
        file.write(&endpoints(addresses));
        file
    }

    /// Replaces its content at once, as JSON, which is YAML too.
    ///
    /// # Panics
    ///
    /// When it cannot be written.
    pub fn write(&self, content: &Value) {
        let next = self.directory.path().join("next");
        std::fs::write(&next, content.to_string()).expect("a writable directory");
        std::fs::rename(next, self.path()).expect("a writable directory");
    }

    /// Where it is.
    pub fn path(&self) -> PathBuf {
        self.directory.path().join("endpoints.yaml")
    }
}

/// The content of a file with these endpoints.
pub fn endpoints(addresses: &[SocketAddr]) -> Value {
    let entry = |address: &SocketAddr| {
        let name = format!("engine-{}", address.to_string().replace([':', '.', '[', ']'], "-"));
        json!({ "name": name, "address": address.ip(), "port": address.port() })
    };
    json!({ "endpoints": addresses.iter().map(entry).collect::<Vec<_>>() })
}
