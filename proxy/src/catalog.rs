//! The models that this proxy speaks for.

use crate::metrics::FleetGauges;
use arc_swap::ArcSwap;
use bytes::Bytes;
use stator_fleet::{FleetEvent, Pool};
use stator_model::Model;
use stator_model::openai::ApiError;
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

/// All models by name. Reading takes no lock.
pub(crate) struct Catalog {
    models: ArcSwap<BTreeMap<String, Arc<Served>>>,
    gauges: FleetGauges,
}

impl Catalog {
    pub(crate) fn new(gauges: FleetGauges) -> Self {
        Self { models: ArcSwap::default(), gauges }
    }

    /// All models.
    pub(crate) fn all(&self) -> Arc<BTreeMap<String, Arc<Served>>> {
        self.models.load_full()
    }

    /// The model of this name.
    ///
    /// # Errors
    ///
    /// 404 when there is none.
    pub(crate) fn find(&self, name: &str) -> Result<Arc<Served>, ApiError> {
        self.models.load().get(name).cloned().ok_or_else(|| ApiError::unknown_model(name))
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
