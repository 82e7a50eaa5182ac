//! An agent's model and engines, ready for registration.

use crate::agent::{Loaded, LoadedEngine};
use crate::config::KvTrust;
use crate::stock;
use crate::worker::Handover;
use stator_protos::discovery::{ModelRecord, ProfileRecord};

/// Engines, and what the fleet must know of them.
pub(crate) struct Crew {
    /// The model.
    pub(crate) model: ModelRecord,
    /// Files that proxies ask for, by base name.
    pub(crate) files: Vec<(String, Vec<u8>)>,
    /// The workers, in order.
    pub(crate) places: Vec<WorkerSlot>,
    /// The engines' profile for the fleet.
    pub(crate) profile: ProfileRecord,
    /// The engines.
    pub(crate) engines: Engines,
}

/// One worker.
pub(crate) struct WorkerSlot {
    /// Number of its engine in the agent.
    pub(crate) engine: u32,
    /// Its data-parallel rank.
    pub(crate) rank: u16,
    /// KV blocks it can hold.
    pub(crate) total_blocks: u32,
}

/// Engines of an agent.
pub(crate) enum Engines {
    /// In its own process, one per worker.
    Own(Vec<LoadedEngine>),
    /// A process of its own, whose ranks are the workers.
    Stock(Box<stock::Engine>),
}

impl Crew {
    /// Says what engines that decode must know of engines of our own that prefill, whose agent is
    /// at `endpoint`. All are alike. Nothing is offered that nobody would believe.
    pub(crate) fn offer_kv(&mut self, trust: &KvTrust, endpoint: &str) {
        let Engines::Own(engines) = &mut self.engines else { return };
        if !trust.covers(endpoint) {
            let advice =
                "give all agents one --fleet-secret-file, or their request planes mutual TLS";
            tracing::warn!(endpoint, advice, "KV is not shared with agents on other machines");
            return;
        }
        if let Some(first) = engines.first_mut() {
            let offer = Handover { kv: first.engine.kv().form().fingerprint };
            self.profile.handover = serde_json::to_string(&offer).ok();
        }
    }
}

impl From<Loaded> for Crew {
    fn from(loaded: Loaded) -> Self {
        let Loaded { model, files, engines } = loaded;
        let place = |(number, engine): (u32, &LoadedEngine)| WorkerSlot {
            engine: number,
            rank: 0,
            total_blocks: engine.total_blocks,
        };
        let places = (0..).zip(&engines).map(place).collect();
        let profile = ProfileRecord::default();
        Self { model, files, places, profile, engines: Engines::Own(engines) }
    }
}
