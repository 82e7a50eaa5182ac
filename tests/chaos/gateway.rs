//! A gateway in front of two of the proxies: a real Envoy that asks two replicas of the picker
//! through links.

use crate::plan::Fault;
use crate::relay::{Link, Weather};
use crate::replicas::{Replicas, listens_for_replicas};
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
    /// From Envoy to each picker.
    links: Vec<Link>,
    replicas: Replicas,
    _endpoints: EndpointsFile,
}

impl Gateway {
    /// Starts a gateway over these proxies. Its pickers find them by `flags`, or where there are
    /// none in a file. `None`, and said so, where there is no Envoy.
    pub(crate) async fn begin(
        proxies: Vec<SocketAddr>,
        flags: Option<Vec<String>>,
    ) -> Option<Self> {
        let endpoints = EndpointsFile::of(&proxies);
        let file = format!("--endpoints-file={}", endpoints.path().display());
        let flags = flags.unwrap_or_else(|| vec![file]);
        let replicas = Replicas::begin(PICKERS).await;
        let (mut pickers, mut links) = (Vec::new(), Vec::new());
        for number in 0..PICKERS {
            let mut flags: Vec<_> = flags.iter().map(String::as_str).collect();
            let peers = replicas.flags(number);
            flags.extend(peers.iter().map(String::as_str));
            flags.push("--secure-serving=false");
            let mut picker = Picker::start(&flags).await;
            replicas.is_at(number, listens_for_replicas(&mut picker.process).await);
            let link = Link::begin().await;
            link.leads_to(picker.address());
            pickers.push(picker);
            links.push(link);
        }
        for picker in &mut pickers {
            picker.ready().await;
        }
        // A gateway that goes on without its pickers has to hold the body until one has answered.
        let settings = EnvoySettings {
            pickers: links.iter().map(Link::address).collect(),
            health_checks: true,
            fail_open: true,
            request_body: BodyMode::Buffered,
            response_body: BodyMode::None,
            routing: Routing::OverrideHost(proxies),
            ..EnvoySettings::new(pickers[0].address())
        };
        let envoy = Envoy::start(&settings).await?;
        let pickers = pickers.into_iter().map(Mutex::new).collect();
        Some(Self { envoy, pickers, links, replicas, _endpoints: endpoints })
    }

    /// A client of the gateway.
    pub(crate) fn client(&self) -> Client {
        self.envoy.client()
    }

    /// Lets a fault of a picker happen, and undoes it.
    pub(crate) async fn suffer(&self, fault: Fault, hold: Duration) {
        match fault {
            Fault::KillPicker(number) => self.kill_picker(number, hold).await,
            Fault::StopPicker(number) => {
                let picker = self.pickers[number].lock().await;
                signal(picker.process.id(), "STOP");
                sleep(hold).await;
                signal(picker.process.id(), "CONT");
            }
            Fault::CutPicker(number) => self.links[number].suffer(Weather::Cut, hold).await,
            Fault::StallPicker(number) => self.links[number].suffer(Weather::Stalled, hold).await,
            Fault::SlowPicker(number) => self.links[number].suffer(Weather::Slow, hold).await,
            fault => panic!("a gateway has no {fault:?}"),
        }
    }

    /// The links between the pickers.
    pub(crate) fn replicas(&self) -> &Replicas {
        &self.replicas
    }

    /// Process ids of the pickers.
    pub(crate) async fn processes(&self) -> Vec<u32> {
        let mut processes = Vec::new();
        for picker in &self.pickers {
            processes.push(picker.lock().await.process.id());
        }
        processes
    }

    /// Kills a picker and starts it again after `hold`, at the same address.
    async fn kill_picker(&self, number: usize, hold: Duration) {
        let mut picker = self.pickers[number].lock().await;
        picker.process.kill().await;
        sleep(hold).await;
        picker.restart().await;
        self.replicas.is_at(number, listens_for_replicas(&mut picker.process).await);
        picker.ready().await;
    }
}
