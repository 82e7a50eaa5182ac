//! Flags of those who place requests, and of what binds requests to workers.

use super::check::Faulty;
use clap::{Args, ValueEnum};
use serde::Serialize;
use stator_fleet_model::{Adapters, Edges, Exchange};
use stator_placement::{Affinity, SessionSettings};
use std::time::Duration;

/// Weight of a session's last worker in soft affinity.
const SESSION_WEIGHT: f64 = 1.0;
/// Sessions that are remembered, and for how long after their last request.
const SESSIONS_MAX: usize = 1 << 20;
const SESSION_TTL: Duration = Duration::from_secs(3_600);

/// Edges, which place requests.
#[derive(Args, Clone, Debug, Serialize)]
#[command(next_help_heading = "Edges")]
pub(crate) struct EdgeArgs {
    /// Edges that place requests, 1 to 64. Each gets its share of the requests at random and has a
    /// queue of its own. It hears of the others' requests only from reports of workers, unless
    /// --peer-interval-ms says otherwise.
    #[arg(long, default_value = "1", env = "STATOR_SIMULATE_EDGES")]
    pub(crate) edges: u32,
    /// Shortest time between two messages in which an edge tells the others what it has in flight,
    /// 1 to 60000 ms; the first goes at once. 0: never.
    #[arg(long, default_value = "0", env = "STATOR_SIMULATE_PEER_INTERVAL_MS")]
    pub(crate) peer_interval_ms: f64,
    /// Delay of these messages, 0 to 60000 ms.
    #[arg(long, default_value = "0.5", env = "STATOR_SIMULATE_PEER_DELAY_MS")]
    pub(crate) peer_delay_ms: f64,
    /// Binding of sessions to the worker of their last request, for the policies of this project's
    /// placement.
    #[arg(long, value_enum, default_value = "none", env = "STATOR_SIMULATE_SESSION_AFFINITY")]
    pub(crate) session_affinity: AffinityArg,
    /// LoRA adapters, 0 to 1000: every session of a made-up workload is for one of them, few of
    /// them for most. 0: none.
    #[arg(long, default_value = "0", env = "STATOR_SIMULATE_ADAPTERS")]
    pub(crate) adapters: u32,
    /// Workers of each role that have a given adapter loaded, at least 1.
    #[arg(long, default_value = "2", env = "STATOR_SIMULATE_ADAPTER_COPIES")]
    pub(crate) adapter_copies: u32,
}

/// Binding of sessions to workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum AffinityArg {
    /// Not at all.
    None,
    /// The worker of the last request is cheaper.
    Soft,
    /// The session's worker is the only candidate while it is there.
    Hard,
}

impl EdgeArgs {
    pub(super) fn edges(&self, faulty: &mut Faulty) -> Edges {
        let count = faulty.count("edges", self.edges, 1, 64);
        let delay = faulty.ms("peer_delay_ms", self.peer_delay_ms, 0.0, 60_000.0);
        let tells = self.peer_interval_ms != 0.0;
        let interval =
            tells.then(|| faulty.ms("peer_interval_ms", self.peer_interval_ms, 1.0, 60_000.0));
        Edges { count, exchange: interval.map(|interval| Exchange { interval, delay }) }
    }

    pub(super) fn sessions(&self) -> Option<SessionSettings> {
        let affinity = match self.session_affinity {
            AffinityArg::None => return None,
            AffinityArg::Soft => Affinity::Soft(SESSION_WEIGHT),
            AffinityArg::Hard => Affinity::Hard,
        };
        Some(SessionSettings::new(affinity, SESSION_TTL, SESSIONS_MAX))
    }

    pub(super) fn adapters(&self, traced: bool, faulty: &mut Faulty) -> Adapters {
        let count = faulty.count("adapters", self.adapters, 0, 1_000);
        if count > 0 && traced {
            faulty.fault(format!("adapters: {count}, but a trace names none"));
        }
        let copies = faulty.count("adapter_copies", self.adapter_copies, 1, 100_000);
        Adapters { count, copies }
    }
}
