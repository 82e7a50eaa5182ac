//! A gateway in front of two of the proxies: a real Envoy that asks two replicas of the picker.

use stator_tests::envoy::{BodyMode, Envoy, EnvoySettings, Routing};
use stator_tests::http::Client;
use stator_tests::picker::{EndpointsFile, Picker};
use stator_tests::process::signal;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::sleep;

/// Replicas of the picker.
pub(crate) const PICKERS: usize = 2;

/// Envoy and its pickers.
pub(crate) struct Gateway {
    envoy: Envoy,
    pickers: Vec<Mutex<Picker>>,
    _endpoints: EndpointsFile,
}

impl Gateway {
    /// Starts a gateway over these proxies. `None`, and said so, where there is no Envoy.
    pub(crate) async fn begin(proxies: Vec<SocketAddr>) -> Option<Self> {
        let endpoints = EndpointsFile::of(&proxies);
        let file = format!("--endpoints-file={}", endpoints.path().display());
        let mut pickers = Vec::new();
        for _ in 0..PICKERS {
            let mut picker = Picker::start(&[&file, "--secure-serving=false"]).await;
            picker.ready().await;
            pickers.push(picker);
        }
        // A gateway that goes on without its pickers has to hold the body until one has answered.
        let settings = EnvoySettings {
            pickers: pickers.iter().map(Picker::address).collect(),
            health_checks: true,
            fail_open: true,
            request_body: BodyMode::Buffered,
            response_body: BodyMode::None,
            routing: Routing::OverrideHost(proxies),
            ..EnvoySettings::new(pickers[0].address())
        };
        let envoy = Envoy::start(&settings).await?;
        let pickers = pickers.into_iter().map(Mutex::new).collect();
        Some(Self { envoy, pickers, _endpoints: endpoints })
    }

    /// A client of the gateway.
    pub(crate) fn client(&self) -> Client {
        self.envoy.client()
    }

    /// Kills a picker and starts it again after `hold`, at the same address.
    pub(crate) async fn kill_picker(&self, number: usize, hold: Duration) {
        let mut picker = self.pickers[number].lock().await;
        picker.process.kill().await;
        sleep(hold).await;
        picker.restart().await;
        picker.ready().await;
    }

    /// Has a picker stand still for `hold`.
    pub(crate) async fn stop_picker(&self, number: usize, hold: Duration) {
        let picker = self.pickers[number].lock().await;
        signal(picker.process.id(), "STOP");
        sleep(hold).await;
        signal(picker.process.id(), "CONT");
    }
}
