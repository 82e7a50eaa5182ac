//! The engines of a running agent: their workers, and the task that follows other agents as sources
//! of KV.

use super::admin::AdminServer;
use super::kv_ways::KvWays;
use crate::availability::Availability;
use crate::config::AgentSettings;
use crate::kv::fetch::Pairing;
use crate::metrics::PairMetrics;
use crate::operations;
use crate::prefill::agents::PrefillAgents;
use crate::prefill::registered::RegisteredAgents;
use crate::request_plane::service::WorkerHandle;
use crate::served_model::ModelEngines;
use crate::stock::{self, Keeper};
use crate::workers::{self, Reports, Workers};
use stator_discovery::DiscoveryMetrics;
use stator_protos::discovery::Role;
use stator_runtime::Lane;
use stator_runtime::metrics::Metrics;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// The engines, running.
pub(super) struct RunningEngines {
    /// Workers and their lane, which outlives the drivers and the server.
    workers: Workers,
    /// Present for a stock engine.
    keeper: Option<Keeper>,
    /// The task that follows other agents, if this one decodes. It does not end by itself.
    following: Option<JoinHandle<()>>,
    /// Ways of KV, which end after the engines.
    _ways: KvWays,
}

impl RunningEngines {
    /// Starts a worker per record of the reports, in their order.
    ///
    /// # Errors
    ///
    /// An error if a thread cannot be started.
    pub(super) fn start(
        engines: ModelEngines,
        ways: KvWays,
        settings: &AgentSettings,
        admin: &AdminServer,
        reports: &Reports,
    ) -> anyhow::Result<Self> {
        let record = reports.record.borrow().clone();
        let (prefill_agents, following) =
            prefill_agents(settings, &record.model.name, &admin.metrics);
        let (workers, keeper) = match engines {
            ModelEngines::Own(engines) => {
                let pairing = pairing(settings, prefill_agents, &ways, &admin.metrics);
                (Workers::start(engines, &record.workers, reports, &pairing)?, None)
            }
            ModelEngines::Stock(engine) => {
                let (workers, keeper) = engine.run(&record.workers, reports, prefill_agents)?;
                (workers, Some(keeper))
            }
        };
        Ok(Self { workers, keeper, following, _ways: ways })
    }

    /// The engines for operations.
    pub(super) fn operated(&self, availability: &Availability) -> operations::OperatedEngines {
        match &self.keeper {
            None => operations::OperatedEngines::Own {
                drivers: self.workers.handles.iter().map(|h| h.commands.clone()).collect(),
                availability: availability.clone(),
            },
            Some(keeper) => operations::OperatedEngines::Stock(keeper.orders()),
        }
    }

    /// The handles of the workers, once. A driver ends when its handle is dropped.
    pub(super) fn take_handles(&mut self) -> Vec<WorkerHandle> {
        std::mem::take(&mut self.workers.handles)
    }

    /// The runtime that hands tokens on: a task there wakes no other thread for them.
    pub(super) fn serving(&self) -> Handle {
        self.workers.lane.as_ref().map_or_else(Handle::current, Lane::handle)
    }

    /// Waits until a stock engine is given up; for ever if the engines are our own.
    pub(super) async fn gave_up(&mut self) -> anyhow::Error {
        stock::gave_up(&mut self.keeper).await
    }

    /// Stops following other agents.
    pub(super) fn unfollow(&self) {
        if let Some(following) = &self.following {
            following.abort();
        }
    }

    /// Waits at most `limit` for the drivers, then ends a stock engine.
    pub(super) async fn end(self, limit: Duration) {
        let Workers { drivers, lane, .. } = self.workers;
        workers::ended(drivers, limit).await;
        if let Some(keeper) = self.keeper {
            keeper.stop().await;
        }
        drop(lane);
    }
}

/// The agents to ask for prompts, and the task that follows them: only an agent that decodes asks
/// any.
fn prefill_agents(
    settings: &AgentSettings,
    model: &str,
    metrics: &Metrics,
) -> (Arc<PrefillAgents>, Option<JoinHandle<()>>) {
    let dial = &settings.access.dial;
    let (registered, following) = match settings.profile.role {
        Role::Decode => {
            let followed = DiscoveryMetrics::default();
            metrics.register(|registry| {
                followed.register(registry.sub_registry_with_prefix("stator_agent"));
            });
            let (agents, task) = RegisteredAgents::follow(&settings.discovery, dial, followed);
            (agents, Some(task))
        }
        Role::Aggregated | Role::Prefill | Role::Encode => (RegisteredAgents::default(), None),
    };
    let prefill_agents =
        PrefillAgents::new(dial.clone(), registered, model.to_owned(), settings.prefill_silence);
    (Arc::new(prefill_agents), following)
}

/// The pairing of engines here with those of other agents.
fn pairing(
    settings: &AgentSettings,
    prefill_agents: Arc<PrefillAgents>,
    ways: &KvWays,
    metrics: &Metrics,
) -> Pairing {
    let counted = PairMetrics::default();
    metrics.register(|registry| counted.register(registry));
    Pairing {
        handovers: ways.handovers.clone(),
        prefill_agents,
        room: ways.room.clone(),
        trust: settings.access.kv.clone(),
        timeout: settings.prefill_timeout,
        silence: settings.prefill_silence,
        metrics: counted,
    }
}
