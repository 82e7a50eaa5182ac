//! A sidecar for tests, between the engines and clients of [`crate::upstream::testkit`].

use super::config::tests::settings;
use super::metrics::{Cause, Metrics};
use super::service::{OperatorState, Sidecar};
use crate::server::{Serving, serve};
use crate::upstream::testkit::{Engine, Peer};
use prometheus_client::registry::Registry;
use stator_runtime::Shutdown;
use stator_runtime::admin::Readiness;
use stator_runtime::shutdown::Trigger;
use stator_runtime::tls::Listener;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// A proxy beside an engine.
pub(crate) struct Proxy {
    pub address: SocketAddr,
    pub metrics: Metrics,
    pub stop: Trigger,
    pub task: JoinHandle<()>,
}

impl Proxy {
    /// Starts one beside `engines`, which are ranks, with these flags.
    pub(crate) async fn start(engines: &[&Engine], flags: &[&str]) -> Self {
        let mut settings = settings(flags).expect("the flags are valid");
        settings.engines = engines.iter().map(|engine| engine.address()).collect();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a listener has an address");
        // Ranks but the first are reached by the header alone here.
        let ports: Vec<u16> = (0..engines.len() as u16).map(|rank| address.port() + rank).collect();
        let metrics = Metrics::register(&mut Registry::default(), "test".to_owned());
        let own = OperatorState { metrics: metrics.clone(), readiness: Readiness::default() };
        let mut listeners = [Listener::plain(listener)];
        let door =
            crate::listeners::open_door(settings.door.clone(), &mut listeners, &own.readiness);
        let sidecar = Sidecar::new(settings, &ports, door, own);
        let serving = Serving::Sidecar { sidecar: Arc::new(sidecar), rank: 0 };
        let (stop, stopped) = Shutdown::new();
        let [listener] = listeners;
        let task = tokio::spawn(serve(listener, Arc::new(serving), stopped));
        Self { address, metrics, stop, task }
    }

    /// Starts one that may ask `prefiller` for prompts, with a connector.
    pub(crate) async fn pair(
        engine: &Engine,
        prefiller: &Engine,
        connector: &str,
        flags: &[&str],
    ) -> Self {
        let allow = format!("--prefill-allow={}", prefiller.address());
        let connector = format!("--connector={connector}");
        let flags: Vec<_> =
            [&*allow, &*connector].into_iter().chain(flags.iter().copied()).collect();
        Self::start(&[engine], &flags).await
    }

    /// Sends a request with these further header lines.
    pub(crate) async fn post(&self, path: &str, headers: &str, body: &str) -> Peer {
        let mut client = Peer::connect(self.address).await;
        client.post(path, headers, body).await;
        client
    }

    /// Sends a request whose prompt `prefiller` is to compute.
    pub(crate) async fn ask(&self, prefiller: &Engine, body: &str) -> Peer {
        let header = format!("x-prefiller-host-port: {}\r\n", prefiller.address());
        self.post("/v1/completions", &header, body).await
    }

    /// How often hand-overs failed for this reason.
    pub(crate) fn fallbacks(&self, reason: &'static str) -> u64 {
        self.metrics.fallbacks.get_or_create(&Cause { reason }).get()
    }
}
