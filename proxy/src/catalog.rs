//! The models that this proxy speaks for.

use crate::listing;
use crate::metrics::FleetGauges;
use arc_swap::ArcSwap;
use bytes::Bytes;
use stator_fleet::{FleetEvent, Pool};
use stator_model::Model;
use stator_model::openai::ApiError;
use stator_model::openai::models::ModelEntry;
use stator_runtime::admin::Readiness;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc;

/// A model: how to speak for it, and who computes it.
pub(crate) struct Served {
    pub model: Arc<Model>,
    pub pool: Arc<Pool>,
    /// When it was first seen, in seconds since 1970.
    pub created: u64,
}

impl Served {
    /// What clients are told of the model, or of one of its adapters.
    fn entry(&self, name: &str) -> listing::Entry {
        let record = self.pool.record();
        listing::Entry {
            model: ModelEntry {
                id: name.to_owned(),
                created: self.created,
                max_model_len: record.context_length,
            },
            parent: (name != record.name).then(|| record.name.clone()),
        }
    }
}

/// All models by name. Reading takes no lock.
pub(crate) struct Catalog {
    models: ArcSwap<BTreeMap<String, Arc<Served>>>,
    gauges: FleetGauges,
}

impl Catalog {
    pub(crate) fn new(gauges: FleetGauges) -> Self {
        Self { models: ArcSwap::default(), gauges }
    }

    /// The body of the list of all models, each followed by its adapters.
    pub(crate) fn list(&self) -> Vec<u8> {
        let models = self.models.load();
        let mut entries = Vec::new();
        for (name, served) in models.iter() {
            entries.push(served.entry(name));
            // The name of a model is that model's, whatever adapters are called.
            let adapters = served.pool.adapters().into_iter();
            let adapters = adapters.filter(|adapter| !models.contains_key(&**adapter));
            entries.extend(adapters.map(|adapter| served.entry(&adapter)));
        }
        listing::list(&entries)
    }

    /// The body that describes a model or an adapter.
    ///
    /// # Errors
    ///
    /// 404 when there is none of this name.
    pub(crate) fn describe(&self, name: &str) -> Result<Vec<u8>, ApiError> {
        Ok(listing::one(&self.find(name)?.entry(name)))
    }

    /// The model of this name, or the first that has a loaded adapter of this name.
    ///
    /// # Errors
    ///
    /// 404 when there is none.
    pub(crate) fn find(&self, name: &str) -> Result<Arc<Served>, ApiError> {
        let models = self.models.load();
        let with_adapter = || models.values().find(|served| served.pool.has_adapter(name));
        let found = models.get(name).or_else(with_adapter).cloned();
        found.ok_or_else(|| ApiError::unknown_model(name))
    }

    /// Brings the gauges up to date; called when somebody reads them.
    pub(crate) fn observe(&self) {
        let (mut workers, mut blocks, mut waiting) = (0, 0, 0);
        for served in self.models.load().values() {
            workers += served.pool.accepting();
            blocks += served.pool.stats().index_blocks;
            waiting += served.pool.waiting();
        }
        self.gauges.workers.set(workers as i64);
        self.gauges.index_blocks.set(blocks as i64);
        self.gauges.requests_waiting.set(waiting as i64);
    }

    /// Loads models as the fleet announces them; the first one makes the proxy ready.
    /// `address` is where clients find them.
    pub(crate) async fn follow(
        &self,
        mut events: mpsc::Receiver<FleetEvent>,
        readiness: Readiness,
        address: SocketAddr,
    ) {
        while let Some(FleetEvent::ModelUp { pool, files }) = events.recv().await {
            let name = pool.record().name.clone();
            let loading = tokio::task::spawn_blocking({
                let name = name.clone();
                move || Model::load(&name, &shared(files))
            });
            match loading.await {
                Ok(Ok(model)) => {
                    self.insert(&name, model, pool);
                    readiness.set(true);
                    tracing::info!(model = name, url = %format_args!("http://{address}/v1"), "serving a model");
                }
                Ok(Err(error)) => {
                    tracing::error!(model = name, %error, "cannot load a model's files")
                }
                Err(error) => tracing::error!(model = name, %error, "loading a model failed"),
            }
        }
    }

    fn insert(&self, name: &str, model: Model, pool: Arc<Pool>) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let mut models = BTreeMap::clone(&self.models.load());
        let created = models.get(name).map_or(now, |served| served.created);
        models.insert(name.to_owned(), Arc::new(Served { model: Arc::new(model), pool, created }));
        self.models.store(Arc::new(models));
    }
}

fn shared(files: Vec<(String, Vec<u8>)>) -> Vec<(String, Bytes)> {
    files.into_iter().map(|(name, content)| (name, content.into())).collect()
}
