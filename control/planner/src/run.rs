//! The process: looks at the fleet, decides, asks for workers, until it is told to end.

use crate::capacity::SlaTargets;
use crate::config::{RunSettings, demand};
use crate::metrics::PlannerMetrics;
use crate::observation::Observation;
use crate::output::{GraphReplicas, Output, replace};
use crate::planner::{Decision, DecisionReason, Planner};
use crate::replicas::{Replicas, role_name};
use crate::settings::Law;
use crate::signals::{AgentPools, TrafficReader};
use anyhow::Context;
use stator_fleet::{ClientSettings, Fleet, FleetEvent, FleetMetrics, FleetSettings};
use stator_runtime::Shutdown;
use stator_runtime::admin::{self, AdminContent, Readiness};
use stator_runtime::metrics::Metrics;
use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::time::MissedTickBehavior;

/// Plans until `shutdown`.
///
/// # Errors
///
/// If the metrics port cannot be bound, or there is no usable configuration of a cluster. Faults
/// that come later are logged and counted, and change nothing.
pub async fn run(settings: RunSettings, shutdown: Shutdown) -> anyhow::Result<()> {
    let registry = Metrics::default();
    let metrics = registry.register(PlannerMetrics::register);
    let fleet_metrics = FleetMetrics::default();
    registry.register(|registry| fleet_metrics.register(registry));
    let readiness = Readiness::default();
    let (_end, ended) = Shutdown::new();
    let content = AdminContent { metrics: registry, readiness: readiness.clone(), gate: None };
    let listen = settings.metrics_listen;
    admin::serve(listen, content, ended)
        .await
        .with_context(|| format!("cannot listen on {listen}"))?;
    let output = Output::open(settings.output.clone()).await?;
    let names = settings.graphs.iter().map(|graph| graph.graph.name.as_str());
    let agents = AgentPools::new(names);
    let fleet = FleetSettings {
        client: ClientSettings { dial: settings.dial.clone(), ..ClientSettings::default() },
        ..FleetSettings::new(settings.discovery.clone())
    };
    let (_fleet, mut events) = Fleet::start(fleet, fleet_metrics, agents.clone());
    let mut control = Control::new(settings, agents, output, metrics)?;
    let mut ticks = tokio::time::interval(control.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = shutdown.wait() => break,
            Some(event) = events.recv() => if matches!(event, FleetEvent::Settled) {
                // Before this, agents that are there may not have been found.
                tracing::info!("planning");
                readiness.set(true);
            },
            _ = ticks.tick(), if readiness.get() => control.tick().await,
        }
    }
    readiness.close();
    tracing::info!("the planner ends; the workers stay as they are");
    Ok(())
}

/// Planners of all models, with their sources and their receiver.
struct Control {
    settings: RunSettings,
    agents: AgentPools,
    traffic: TrafficReader,
    output: Output,
    metrics: PlannerMetrics,
    planners: BTreeMap<String, Planner>,
    interval: Duration,
    started: Instant,
    /// Unix time at the start, seconds: seasons begin at midnight.
    started_unix_s: f64,
    /// The fault that was logged last.
    fault: Option<String>,
}

impl Control {
    fn new(
        settings: RunSettings,
        agents: AgentPools,
        output: Output,
        metrics: PlannerMetrics,
    ) -> anyhow::Result<Self> {
        let planner = |of: &crate::PlannerSettings| {
            let mut planner = Planner::new(of.clone());
            planner.warm_up(settings.warmup.iter().copied());
            (of.graph.name.clone(), planner)
        };
        let seconds = settings.graphs.first().map_or(5.0, |graph| graph.interval_s);
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Self {
            planners: settings.graphs.iter().map(planner).collect(),
            traffic: TrafficReader::new(settings.pages.clone(), &settings.metrics_tls)?,
            interval: Duration::from_secs_f64(seconds),
            started: Instant::now(),
            started_unix_s: unix.as_secs_f64(),
            fault: None,
            settings,
            agents,
            output,
            metrics,
        })
    }

    /// Looks, decides and asks once.
    async fn tick(&mut self) {
        let decisions = match self.decide().await {
            Ok(decisions) => decisions,
            // An object that does not say how many workers it has is asked for none.
            Err(fault) => return self.lost(fault),
        };
        self.report(&decisions).await;
        let wanted: GraphReplicas = decisions
            .iter()
            .map(|(model, (decision, _))| (model.clone(), decision.wanted))
            .collect();
        if let Err(error) = self.output.order(&wanted).await {
            self.metrics.orders_failed.inc();
            tracing::warn!(%error, "workers could not be ordered");
        }
    }

    /// The decision for each model, with the replicas that were ordered before.
    async fn decide(&mut self) -> Result<BTreeMap<String, (Decision, Replicas)>, String> {
        let at_s = self.started_unix_s + self.started.elapsed().as_secs_f64();
        let targets = self.targets();
        let traffic = self.traffic.read(at_s, targets.as_ref()).await?;
        let mut observations = BTreeMap::new();
        for (model, planner) in &self.planners {
            let Some(workers) = self.agents.of(model) else { continue };
            let (sizes, workers) = workers.signals();
            let ordered = self.output.ordered(model).await.map_err(|error| error.to_string())?;
            let mut observation = Observation {
                at_s,
                sizes,
                held: traffic.map_or(0, |traffic| traffic.held),
                workers,
                ordered: Replicas::default(),
                traffic: traffic.map(|traffic| traffic.totals),
                latency: traffic.and_then(|traffic| traffic.latency),
            };
            // A fleet that nobody planned yet is taken as it is.
            let limits = &planner.settings().graph;
            observation.ordered = ordered.unwrap_or_else(|| {
                Replicas::from_fn(|role| observation.count_up(role).max(limits.min.of(role)))
            });
            observations.insert(model.clone(), observation);
        }
        Ok(self.within_budget(&observations))
    }

    fn within_budget(
        &mut self,
        observations: &BTreeMap<String, Observation>,
    ) -> BTreeMap<String, (Decision, Replicas)> {
        let mut decisions: Vec<(String, Decision, Replicas)> = Vec::new();
        for (model, observation) in observations {
            let Some(planner) = self.planners.get_mut(model) else { continue };
            let decision = planner.tick(observation);
            decisions.push((model.clone(), decision, observation.ordered));
        }
        let demands: Vec<_> = decisions
            .iter()
            .filter_map(|(model, decision, _)| {
                let planner = self.planners.get(model)?;
                Some(demand(planner.settings(), decision.wanted))
            })
            .collect();
        // The minima were checked at the start, so a share is always found.
        let granted = self.settings.budget.share(&demands).unwrap_or_default();
        for ((model, decision, _), granted) in decisions.iter_mut().zip(granted) {
            for of in &mut decision.roles {
                if of.wanted != granted.of(of.role) {
                    of.wanted = granted.of(of.role);
                    of.reason = DecisionReason::Budget;
                }
            }
            decision.wanted = granted;
            if let Some(planner) = self.planners.get_mut(model) {
                planner.granted(granted);
            }
        }
        let named = decisions.into_iter();
        named.map(|(model, decision, ordered)| (model, (decision, ordered))).collect()
    }

    /// Shows decisions in the log, in metrics and in the file of advice.
    async fn report(&mut self, decisions: &BTreeMap<String, (Decision, Replicas)>) {
        if self.fault.take().is_some() {
            tracing::info!("signals are back");
        }
        for (model, (decision, ordered)) in decisions {
            self.metrics.show(model, decision, ordered);
            for of in &decision.roles {
                let (role, from, to) = (role_name(of.role), ordered.of(of.role), of.wanted);
                if from != to {
                    let reason = of.reason.name();
                    tracing::info!(model, role, from, to, reason, "another number of workers");
                }
            }
        }
        let Some(path) = &self.settings.out else { return };
        let shown: BTreeMap<_, _> =
            decisions.iter().map(|(model, (decision, _))| (model, decision)).collect();
        let text = serde_json::to_string_pretty(&shown).unwrap_or_default() + "\n";
        if let Err(error) = replace(path, text).await {
            tracing::warn!(path = %path.display(), %error, "the advice could not be written");
        }
    }

    /// Leaves everything as it is, and says so once for each fault.
    fn lost(&mut self, fault: String) {
        self.metrics.signals_lost.inc();
        if self.fault.as_ref() != Some(&fault) {
            tracing::warn!(fault, "signals are lost; the workers stay as they are");
            self.fault = Some(fault);
        }
    }

    /// Latency targets, where latencies are planned for.
    fn targets(&self) -> Option<SlaTargets> {
        let law = self.settings.graphs.first().map(|graph| &graph.law);
        match law {
            Some(Law::Sla(law)) => Some(law.targets),
            _ => None,
        }
    }
}
