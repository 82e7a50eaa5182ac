//! Links between replicas: each reaches the others through a relay that can break.

use crate::relay::{Link, Weather};
use stator_tests::process::Process;
use std::net::SocketAddr;
use std::time::Duration;

/// A link to each of several replicas.
pub(crate) struct Replicas {
    links: Vec<Link>,
}

impl Replicas {
    /// Links to replicas that have not started yet.
    pub(crate) async fn begin(replicas: usize) -> Self {
        let mut links = Vec::new();
        for _ in 0..replicas {
            links.push(Link::begin().await);
        }
        Self { links }
    }

    /// Flags with which a replica knows the others.
    pub(crate) fn flags(&self, replica: usize) -> Vec<String> {
        let others = self.links.iter().enumerate().filter(|(number, _)| *number != replica);
        let mut flags: Vec<_> =
            others.map(|(_, link)| format!("--peers={}", link.address())).collect();
        flags.push("--peers-port=0".to_owned());
        flags
    }

    /// Says where a replica listens for the others now.
    pub(crate) fn is_at(&self, replica: usize, address: SocketAddr) {
        self.links[replica].leads_to(address);
    }

    /// The link to a replica has this weather during the hold.
    pub(crate) async fn suffer(&self, replica: usize, weather: Weather, hold: Duration) {
        self.links[replica].suffer(weather, hold).await;
    }
}

/// Waits until a process listens for other replicas, and returns where.
pub(crate) async fn listens_for_replicas(process: &mut Process) -> SocketAddr {
    let event = process.event("listening for other replicas").await;
    let address = event["address"].as_str().expect("the event has an address");
    address.parse().expect("an address and a port")
}
