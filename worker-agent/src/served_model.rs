//! The model that an agent serves, and the engines that run it, ready for registration.

use crate::kv::tiers::{TierDesk, WorkerTiers};
use crate::stock;
use stator_engine::Engine;
use stator_engine::transfer::KvForm;
use stator_guide::{Guide, GuideError, GuideFactory, ThoughtGuard};
use stator_protos::discovery::{ModelRecord, ProfileRecord};
use stator_protos::worker::ThoughtLimit;
use stator_protos::worker::guide::Form;
use std::sync::Arc;

/// A model, and engines that run it.
pub struct LoadedModel {
    /// Record of the model for the fleet.
    pub model: ModelRecord,
    /// Files that proxies ask for, by base name.
    pub files: Vec<(String, Vec<u8>)>,
    /// Engines, one per worker.
    pub engines: Vec<LoadedEngine>,
    /// Maker of the rules that the engines hold answers to, if they do.
    pub rules: Option<Arc<dyn RuleMaker>>,
}

/// Makes rules of answers for one vocabulary.
pub trait RuleMaker: Send + Sync {
    /// A guide for answers of a form. It may take as long as many steps of an engine.
    ///
    /// # Errors
    ///
    /// [`GuideError`] for a form that has no guide.
    fn compile(&self, form: &Form) -> Result<Guide, GuideError>;

    /// A guard of one answer's thoughts.
    fn guard(&self, limit: &ThoughtLimit) -> ThoughtGuard;
}

impl RuleMaker for GuideFactory {
    fn compile(&self, form: &Form) -> Result<Guide, GuideError> {
        Self::compile(self, form)
    }

    fn guard(&self, limit: &ThoughtLimit) -> ThoughtGuard {
        Self::guard(self, limit)
    }
}

/// One worker's engine.
pub struct LoadedEngine {
    /// The engine.
    pub engine: Box<dyn Engine>,
    /// KV blocks it can hold.
    pub total_blocks: u32,
    /// Whether its steps compute, for which the engine gets a thread of its own. Other engines only
    /// model time.
    pub computes: bool,
}

/// A model and its engines, with what the fleet must know of both.
pub(crate) struct ServedModel {
    /// The model.
    pub(crate) model: ModelRecord,
    /// Files that proxies ask for, by base name.
    pub(crate) files: Vec<(String, Vec<u8>)>,
    /// The workers, in order.
    pub(crate) workers: Vec<WorkerSlot>,
    /// The engines' profile for the fleet.
    pub(crate) profile: ProfileRecord,
    /// Operators' access to the tiers of the engines.
    pub(crate) desk: TierDesk,
    /// The engines.
    pub(crate) engines: ModelEngines,
    /// Maker of the rules that engines of our own hold answers to.
    pub(crate) rules: Option<Arc<dyn RuleMaker>>,
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

/// A worker in the agent's own process.
pub(crate) struct OwnWorker {
    /// Its engine.
    pub(crate) loaded: LoadedEngine,
    /// Tiers that keep the engine's blocks, too.
    pub(crate) tiers: Option<WorkerTiers>,
}

/// Engines of an agent.
pub(crate) enum ModelEngines {
    /// In its own process, one per worker.
    Own(Vec<OwnWorker>),
    /// A process of its own, whose ranks are the workers.
    Stock(Box<stock::StockEngine>),
}

impl ServedModel {
    /// Form of the KV of engines of our own. All are alike.
    pub(crate) fn kv_form(&mut self) -> Option<KvForm> {
        let ModelEngines::Own(workers) = &mut self.engines else { return None };
        Some(workers.first_mut()?.loaded.engine.kv().form())
    }
}

impl ServedModel {
    /// A model whose engines have these tiers: as many as engines, or none.
    /// `pins` says whether clients may pin prompts.
    pub(crate) fn with_tiers(
        loaded: LoadedModel,
        tiers: Vec<WorkerTiers>,
        desk: TierDesk,
        pins: bool,
    ) -> Self {
        let LoadedModel { model, files, engines, rules } = loaded;
        let slot = |(number, engine): (u32, &LoadedEngine)| WorkerSlot {
            engine: number,
            rank: 0,
            total_blocks: engine.total_blocks,
        };
        let workers = (0..).zip(&engines).map(slot).collect();
        let tiers = tiers.into_iter().map(Some).chain(std::iter::repeat_with(|| None));
        let own = engines.into_iter().zip(tiers);
        let own = own.map(|(loaded, tiers)| OwnWorker { loaded, tiers }).collect();
        let bounds_thoughts = rules.is_some();
        let profile =
            ProfileRecord { embeds: true, bounds_thoughts, pins, ..ProfileRecord::default() };
        Self { model, files, workers, profile, desk, engines: ModelEngines::Own(own), rules }
    }
}
