//! The pools of this process, as other replicas of the picker are told of them.

use crate::config::PeerSettings;
use crate::pool::Pool;
use anyhow::Context;
use stator_epp_peers::{Blocks, PeerTls, Peers, PeersMetrics, PeersSettings, PoolId, Replica};
use stator_epp_scheduler::InFlight;
use stator_placement::Held;
use stator_protos::WorkerRank;
use stator_protos::hash::SequenceHash;
use stator_runtime::Shutdown;
use stator_runtime::metrics::Metrics;
use stator_runtime::tls::{self, Listener, Reload};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The pools in the order of their numbers.
struct Pools(Vec<Arc<Pool>>);

impl Pools {
    fn of(&self, id: PoolId) -> Option<&Pool> {
        self.0.get(id.0 as usize).map(|pool| &**pool)
    }
}

impl Blocks for Pools {
    fn workers(&self, pool: PoolId) -> Vec<WorkerRank> {
        let endpoints = |pool: &Pool| {
            pool.with(|scheduler, _| {
                scheduler.endpoints().map(|(known, ..)| known.worker).collect()
            })
        };
        self.of(pool).map(endpoints).unwrap_or_default()
    }

    fn held(&self, pool: PoolId, worker: WorkerRank) -> Option<Held> {
        self.of(pool)?.with(|scheduler, _| scheduler.held(worker))
    }

    fn predicted(
        &self,
        pool: PoolId,
        from: usize,
        most: usize,
    ) -> Option<Vec<(WorkerRank, SequenceHash)>> {
        self.of(pool)?.predictions(from, most)
    }

    fn restore(&self, pool: PoolId, worker: WorkerRank, held: Held) -> bool {
        self.of(pool).is_some_and(|pool| pool.with(|scheduler, _| scheduler.restore(worker, held)))
    }
}

impl Replica for Pools {
    fn pools(&self) -> Vec<String> {
        self.0.iter().map(|pool| pool.name().to_owned()).collect()
    }

    fn own_in_flight(&self, pool: PoolId, out: &mut Vec<(WorkerRank, InFlight)>) {
        if let Some(pool) = self.of(pool) {
            pool.with(|scheduler, _| out.extend(scheduler.own_in_flight()));
        }
    }

    fn set_others_in_flight(&self, pool: PoolId, others: &[(WorkerRank, InFlight)]) {
        let Some(pool) = self.of(pool) else { return };
        pool.with(|scheduler, _| {
            for (worker, in_flight) in others {
                scheduler.set_others_in_flight(*worker, *in_flight);
            }
        });
    }

    fn sent(&self, pool: PoolId, worker: WorkerRank, sequence: &[SequenceHash]) {
        if let Some(pool) = self.of(pool) {
            pool.sent(worker, sequence);
        }
    }
}

/// The other replicas, not yet joined.
pub(crate) struct Replicas {
    settings: PeersSettings,
    metrics: PeersMetrics,
    listener: Listener,
    reload: Option<Reload>,
}

/// Opens the port for other replicas.
///
/// # Errors
///
/// When the address cannot be bound, or a certificate cannot be used.
pub(crate) async fn bind(settings: &PeerSettings, registry: &Metrics) -> anyhow::Result<Replicas> {
    let metrics = PeersMetrics::default();
    registry.register(|registry| metrics.register(registry));
    let listener = TcpListener::bind(settings.listen)
        .await
        .with_context(|| format!("cannot listen on {}", settings.listen))?;
    let (listener, reload) = match &settings.tls {
        None => (Listener::plain(listener), None),
        Some(files) => {
            let (config, reload) = tls::server_config(&tls::Settings {
                certificate: tls::Source::Folder(files.certificate.clone()),
                client_ca: Some(files.ca_file.clone()),
                reload: true,
                min_version: tls::Version::Tls13,
                alpn: vec!["h2".into()],
            })?;
            (Listener::tls(listener, config), reload)
        }
    };
    tracing::info!(address = %listener.address()?, "listening for other replicas");
    let settings = PeersSettings {
        peers: settings.peers.clone(),
        token: (!settings.token.is_empty()).then(|| settings.token.clone()),
        tls: settings.tls.as_ref().map(|files| PeerTls {
            ca_file: files.ca_file.clone(),
            certificate: Some(files.certificate.clone()),
            server_name: files.server_name.clone(),
        }),
        ..PeersSettings::default()
    };
    Ok(Replicas { settings, metrics, listener, reload })
}

impl Replicas {
    /// Joins them once the pools' endpoints are known, and takes over what one of them knows;
    /// `warm` becomes true then. Ends with `ended`, which is set after the last request.
    pub(crate) async fn run(
        self,
        pools: Vec<Arc<Pool>>,
        warm: watch::Sender<bool>,
        ended: Shutdown,
    ) {
        let mut tasks = JoinSet::new();
        if let Some(reload) = self.reload {
            tasks.spawn(reload.run(ended.clone()));
        }
        tokio::select! {
            () = known(&pools) => {}
            () = ended.wait() => return,
        }
        let peers = Peers::new(self.settings, Arc::new(Pools(pools.clone())), self.metrics);
        for (number, pool) in (0..).zip(&pools) {
            // What the scheduler knows of its endpoints is as new as the view that was awaited.
            pool.follow_view();
            pool.share(peers.outbox(), PoolId(number));
        }
        let serving = peers.clone();
        tasks.spawn(async move {
            if let Err(error) = serving.run(self.listener, ended).await {
                tracing::error!(%error, "the server for other replicas failed");
            }
        });
        let started = peers.warm_start().await;
        let (source, blocks, elapsed) = (started.source, started.blocks, started.elapsed);
        tracing::info!(?source, blocks, ?elapsed, "warm start");
        warm.send_replace(true);
        while tasks.join_next().await.is_some() {}
    }
}

/// Waits until the endpoints of all pools are known.
pub(crate) async fn known(pools: &[Arc<Pool>]) {
    for pool in pools {
        // A pool's source lives as long as the process; without one nothing is ever known.
        let _ = pool.views().wait_for(|view| view.synced).await;
    }
}
