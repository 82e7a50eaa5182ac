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
}

/// A model that clients are told of.
#[derive(Clone)]
struct Known {
    kind: Kind,
    /// When it was first seen, in seconds since 1970.
    created: u64,
}

#[derive(Clone)]
enum Kind {
    /// This proxy speaks for it.
    Spoken(Arc<Served>),
    /// Its engines speak for themselves.
    Passed(Arc<Pool>),
}

impl Known {
    fn pool(&self) -> &Arc<Pool> {
        match &self.kind {
            Kind::Spoken(served) => &served.pool,
            Kind::Passed(pool) => pool,
        }
    }

    /// What clients are told of the model, or of one of its adapters.
    fn entry(&self, name: &str) -> listing::Entry {
        let record = self.pool().record();
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
#[derive(Default)]
pub(crate) struct Catalog {
    models: ArcSwap<BTreeMap<String, Known>>,
}

impl Catalog {
    /// The body of the list of all models, each followed by its adapters.
    pub(crate) fn list(&self) -> Vec<u8> {
        let models = self.models.load();
        let mut entries = Vec::new();
        for (name, known) in models.iter() {
            entries.push(known.entry(name));
            // The name of a model is that model's, whatever adapters are called.
            let adapters = known.pool().adapters().into_iter();
            let adapters = adapters.filter(|adapter| !models.contains_key(&**adapter));
            entries.extend(adapters.map(|adapter| known.entry(&adapter)));
        }
        listing::list(&entries)
    }

    /// The body that describes a model or an adapter.
    ///
    /// # Errors
    ///
    /// 404 when there is none of this name.
    pub(crate) fn describe(&self, name: &str) -> Result<Vec<u8>, ApiError> {
        let known = self.known(name).ok_or_else(|| ApiError::unknown_model(name))?;
        Ok(listing::one(&known.entry(name)))
    }

    /// The model of this name that this proxy speaks for.
    ///
    /// # Errors
    ///
    /// 404 when there is none.
    pub(crate) fn find(&self, name: &str) -> Result<Arc<Served>, ApiError> {
        match self.known(name) {
            Some(Known { kind: Kind::Spoken(served), .. }) => Ok(served),
            _ => Err(ApiError::unknown_model(name)),
        }
    }

    /// Whether there is any model whose engines speak for themselves.
    pub(crate) fn passes(&self) -> bool {
        self.models.load().values().any(|known| matches!(known.kind, Kind::Passed(_)))
    }

    /// The engines of the model of this name, where they speak for themselves.
    pub(crate) fn passed(&self, name: &str) -> Option<Arc<Pool>> {
        match self.known(name)?.kind {
            Kind::Passed(pool) => Some(pool),
            Kind::Spoken(_) => None,
        }
    }

    /// The model of this name, or the first that has a loaded adapter of this name.
    fn known(&self, name: &str) -> Option<Known> {
        let models = self.models.load();
        let with_adapter = || models.values().find(|known| known.pool().has_adapter(name));
        models.get(name).or_else(with_adapter).cloned()
    }

    /// What there is now of workers, blocks and waiting prompts.
    pub(crate) fn gauges(&self) -> FleetGauges {
        let mut gauges = FleetGauges::default();
        for known in self.models.load().values() {
            let pool = known.pool();
            gauges.workers += pool.accepting();
            let stats = pool.stats();
            gauges.index_blocks += stats.index_blocks;
            gauges.index_dropped += stats.dropped_blocks;
            gauges.requests_waiting += pool.waiting();
        }
        gauges
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
            if !pool.record().takes_tokens() {
                self.insert(&name, Kind::Passed(pool));
                up(&name, &readiness, address);
                continue;
            }
            let loading = tokio::task::spawn_blocking({
                let name = name.clone();
                move || Model::load(&name, &shared(files))
            });
            match loading.await {
                Ok(Ok(model)) => {
                    let model = Arc::new(model);
                    self.insert(&name, Kind::Spoken(Arc::new(Served { model, pool })));
                    up(&name, &readiness, address);
                }
                Ok(Err(error)) => {
                    tracing::error!(model = name, %error, "cannot load a model's files")
                }
                Err(error) => tracing::error!(model = name, %error, "loading a model failed"),
            }
        }
    }

    fn insert(&self, name: &str, kind: Kind) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let mut models = BTreeMap::clone(&self.models.load());
        let created = models.get(name).map_or(now, |known| known.created);
        models.insert(name.to_owned(), Known { kind, created });
        self.models.store(Arc::new(models));
    }
}

/// A model is there: the proxy is ready.
fn up(model: &str, readiness: &Readiness, address: SocketAddr) {
    readiness.set(true);
    tracing::info!(model, url = %format_args!("http://{address}/v1"), "serving a model");
}

fn shared(files: Vec<(String, Vec<u8>)>) -> Vec<(String, Bytes)> {
    files.into_iter().map(|(name, content)| (name, content.into())).collect()
}
