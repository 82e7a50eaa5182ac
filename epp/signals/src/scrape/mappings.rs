//! The engine behind an endpoint.
//!
//! Source: the core metrics extractor of the llm-d router.

use stator_epp_scheduler::Endpoint;
use stator_signals::page::{Mapping, builtin};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Labels of a pod that name its engine, canonical first.
pub const ENGINE_LABELS: [&str; 2] =
    ["llm-d.ai/engine-type", "inference.networking.k8s.io/engine-type"];
/// The engine of a pod without such a label.
pub const DEFAULT_ENGINE: &str = "vllm";

/// The engines that are known by name, and how an endpoint's name is found.
#[derive(Clone, Debug)]
pub struct Mappings {
    label_keys: Vec<String>,
    default: String,
    engines: BTreeMap<String, Arc<Mapping>>,
}

impl Default for Mappings {
    fn default() -> Self {
        let engines = builtin().map(|(name, mapping)| (name.to_owned(), Arc::new(mapping)));
        Self {
            label_keys: ENGINE_LABELS.map(str::to_owned).to_vec(),
            default: DEFAULT_ENGINE.into(),
            engines: engines.into(),
        }
    }
}

impl Mappings {
    /// Finds engines by this label alone.
    pub fn set_label(&mut self, key: &str) {
        self.label_keys = vec![key.into()];
    }

    /// Takes this engine for endpoints that name none. False, and without effect, if there is no
    /// such engine.
    pub fn set_default(&mut self, engine: &str) -> bool {
        let known = self.engines.contains_key(engine);
        if known {
            self.default = engine.into();
        }
        known
    }

    /// Adds an engine, in place of one of the same name.
    pub fn add(&mut self, engine: &str, mapping: Mapping) {
        self.engines.insert(engine.into(), Arc::new(mapping));
    }

    /// The engine that an endpoint names by its label, if it is known; else the default one.
    pub fn engine<'a>(&'a self, endpoint: &'a Endpoint) -> &'a str {
        let named = self.label_keys.iter().find_map(|key| endpoint.label(key));
        named.filter(|name| self.engines.contains_key(*name)).unwrap_or(&self.default)
    }

    /// The mapping of an endpoint's engine.
    pub fn of(&self, endpoint: &Endpoint) -> Arc<Mapping> {
        let engine = self.engines.get(self.engine(endpoint));
        engine.expect("the default is one of the engines").clone()
    }
}
