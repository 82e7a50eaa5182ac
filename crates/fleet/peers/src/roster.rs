//! Roster of peers' addresses, and a task that listens to each.

use crate::dial::{self, ListenEnd};
use crate::hub::Hub;
use crate::{PEERS_MAX, PeersSettings};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::lookup_host;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Listens to all peers, as far as they are known, until dropped.
pub(crate) async fn run(hub: Arc<Hub>, settings: Arc<PeersSettings>) {
    let mut names = PeerNames::default();
    // Whether an address is still a peer's, for the task that listens to it.
    let mut listed: BTreeMap<SocketAddr, watch::Sender<bool>> = BTreeMap::new();
    let mut tasks = JoinSet::new();
    loop {
        let found = names.look_up(&settings.peers).await;
        for (address, still) in &listed {
            still.send_if_modified(|still| {
                let now = found.contains(address);
                std::mem::replace(still, now) != now
            });
        }
        for address in found {
            if listed.len() == PEERS_MAX && !listed.contains_key(&address) {
                tracing::warn!(%address, limit = PEERS_MAX, "more peers than are listened to");
                continue;
            }
            listed.entry(address).or_insert_with(|| {
                let (sender, still) = watch::channel(true);
                tasks.spawn(follow(hub.clone(), settings.clone(), address, still));
                sender
            });
        }
        tokio::time::sleep(settings.resolve).await;
        while let Some(ended) = tasks.try_join_next() {
            match ended {
                Ok(address) => drop(listed.remove(&address)),
                Err(error) => tracing::error!(%error, "a task that listens to a peer failed"),
            }
        }
    }
}

/// Addresses of each name at its last successful look-up: a name server that is away for a while
/// takes no peer away.
#[derive(Default)]
pub(crate) struct PeerNames(BTreeMap<String, BTreeSet<SocketAddr>>);

impl PeerNames {
    /// All addresses of the peers.
    pub(crate) async fn look_up(&mut self, peers: &[String]) -> BTreeSet<SocketAddr> {
        for peer in peers {
            match lookup_host(peer).await {
                Ok(found) => drop(self.0.insert(peer.clone(), found.collect())),
                Err(error) => tracing::debug!(peer, %error, "a peer's name was not found"),
            }
        }
        self.0.values().flatten().copied().collect()
    }
}

/// Listens to one address for as long as it is listed, and for as long as somebody speaks there:
/// a replica that drains has left its Service, and its requests still count.
async fn follow(
    hub: Arc<Hub>,
    settings: Arc<PeersSettings>,
    address: SocketAddr,
    mut listed: watch::Receiver<bool>,
) -> SocketAddr {
    let mut backoff = settings.backoff_min;
    while *listed.borrow() {
        let wait = match dial::listen(&hub, address, &settings).await {
            Ok(ListenEnd::Known) => settings.resolve,
            Ok(ListenEnd::Lost(reason)) => {
                tracing::info!(%address, %reason, "a peer is heard no more");
                backoff = settings.backoff_min;
                backoff
            }
            Err(error) => {
                tracing::debug!(%address, %error, "no connection to a peer");
                let wait = backoff;
                backoff = (backoff * 2).min(settings.backoff_max);
                wait
            }
        };
        // Ends early when the address is listed no more, or nobody lists addresses any more.
        let _ = tokio::time::timeout(wait, listed.wait_for(|listed| !listed)).await;
    }
    address
}
