//! The agent's planes: its sockets, and what its record says of them.

use crate::config::{AgentSettings, ServerTls, ZmqListen};
use crate::identity;
use crate::request_plane::listen::{self, Listener};
use crate::served_model::ServedModel;
use anyhow::Context;
use stator_protos::discovery::{AgentRecord, ProfileRecord, WorkerRecord};
use stator_protos::{Generation, WorkerRank};
use stator_runtime::tls::{self, Reload};
use stator_zmtp::{Publisher, Router};

/// The agent's sockets, bound.
pub(super) struct Planes {
    pub(super) listener: Listener,
    /// Keeps the request plane's certificate fresh.
    pub(super) reload: Option<Reload>,
    pub(super) publisher: Option<Publisher>,
    pub(super) replayer: Option<Router>,
    pub(super) endpoint: String,
    /// Endpoints of the ZMQ sockets; empty where there is none.
    events_endpoint: String,
    replay_endpoint: String,
}

impl Planes {
    /// Binds what the settings name.
    ///
    /// # Errors
    ///
    /// An error if an address is taken or not ours, or the certificate cannot be used.
    pub(super) async fn bind(settings: &AgentSettings) -> anyhow::Result<Self> {
        let host = settings.advertise_host.as_deref();
        let (config, reload) = settings.access.tls.as_ref().map(server_tls).transpose()?.unzip();
        let (listener, endpoint) = listen::request_plane(&settings.listen, host, config)?;
        let ZmqListen { events, replay } = &settings.zmq;
        let publisher = match events {
            Some(at) => Some(listen::event_plane("events-listen", at, Publisher::bind).await?),
            None => None,
        };
        let replayer = match replay {
            Some(at) => Some(listen::event_plane("replay-listen", at, Router::bind).await?),
            None => None,
        };
        let reached = |bound: Option<&str>| {
            bound.map_or_else(String::new, |bound| listen::event_endpoint(bound, host))
        };
        Ok(Self {
            listener,
            reload: reload.flatten(),
            endpoint,
            events_endpoint: reached(publisher.as_ref().map(Publisher::endpoint)),
            replay_endpoint: reached(replayer.as_ref().map(Router::endpoint)),
            publisher,
            replayer,
        })
    }

    /// The identity of the agent.
    pub(super) fn agent_id(&self, settings: &AgentSettings) -> String {
        let made = || identity::agent_id(&settings.listen, &self.endpoint);
        settings.agent_id.clone().unwrap_or_else(made)
    }

    /// The agent's discovery record, without a lease yet.
    pub(super) fn record(
        &self,
        settings: &AgentSettings,
        served: &ServedModel,
        agent_id: String,
        generation: Generation,
    ) -> AgentRecord {
        // The identities of workers follow from the agent's, so that a restarted agent has the same.
        let workers = served.workers.iter().map(|place| WorkerRecord {
            worker: WorkerRank {
                worker: identity::worker_id(&agent_id, place.engine),
                rank: place.rank,
            },
            generation,
            total_blocks: place.total_blocks,
        });
        AgentRecord {
            workers: workers.collect(),
            endpoint: self.endpoint.clone(),
            serves_events: true,
            events_endpoint: self.events_endpoint.clone(),
            replay_endpoint: self.replay_endpoint.clone(),
            model: served.model.clone(),
            profile: ProfileRecord {
                adapters: served.profile.adapters.clone(),
                batch_tokens: served.profile.batch_tokens,
                handover: served.profile.handover.clone(),
                kv_transfer: served.profile.kv_transfer.clone(),
                needs_prefill: served.profile.needs_prefill,
                embeds: served.profile.embeds,
                classifies: served.profile.classifies,
                only_pools: served.profile.only_pools,
                bounds_thoughts: served.profile.bounds_thoughts,
                pins: served.profile.pins,
                api: served.profile.api.clone(),
                ..settings.profile.clone()
            },
            accepting: true,
            lease_ms: 0,
            lease_expires_unix_ms: 0,
            agent_id,
        }
    }
}

/// The TLS configuration of the request plane.
fn server_tls(files: &ServerTls) -> anyhow::Result<(tls::ServerTls, Option<Reload>)> {
    let settings = tls::ServerSettings {
        certificate: tls::CertificateSource::Folder(files.certificate.clone()),
        client_ca: files.client_ca.clone(),
        reload: true,
        min_version: tls::Version::Tls13,
        alpn: vec!["h2".into()],
    };
    tls::server_config(&settings).context("request-tls-cert-dir")
}
