//! The models that this proxy speaks for.

use super::Pool;
use super::glance::ModelGlance;
use super::listing;
use super::markup_args::MarkupChoices;
use super::metrics::FleetGauges;
use arc_swap::ArcSwap;
use bytes::Bytes;
use stator_api::openai::ApiError;
use stator_api::openai::models::ModelEntry;
use stator_fleet::FleetEvent;
use stator_markup::{ReasoningFamily, ToolFamily};
use stator_model::{MarkupChoice, Model, ModelError};
use stator_runtime::admin::Readiness;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc;

/// A model: how to speak for it, and who computes it.
pub(crate) struct ServedModel {
    pub model: Arc<Model>,
    pub pool: Arc<Pool>,
}

/// A model that clients are told of.
#[derive(Clone)]
struct Known {
    kind: Kind,
    /// Time at which it was first seen, in seconds since 1970.
    created: u64,
}

#[derive(Clone)]
enum Kind {
    /// This proxy speaks for it.
    Spoken(Arc<ServedModel>),
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

    /// The listing of the model, or of one of its adapters.
    fn entry(&self, name: &str) -> listing::Entry {
        let record = self.pool().record();
        listing::Entry {
            model: ModelEntry {
                id: name.to_owned(),
                created: self.created,
                max_model_len: record.context_length,
                is_text: matches!(self.kind, Kind::Spoken(_)),
            },
            parent: (name != record.name).then(|| record.name.clone()),
        }
    }
}

/// All models by name. Reading takes no lock.
#[derive(Default)]
pub(crate) struct Catalog {
    /// Families of markup that the operator chose.
    markup: MarkupChoices,
    models: ArcSwap<BTreeMap<String, Known>>,
    /// Whether a model that is not here is nowhere: the fleet was looked at, and has had a model.
    complete: AtomicBool,
}

/// Wait that a proxy asks of clients while it does not know the fleet yet.
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl Catalog {
    /// An empty catalog, whose models' answers are read with these families.
    pub(crate) fn new(markup: MarkupChoices) -> Self {
        Self { markup, ..Self::default() }
    }

    /// The listings of all models, each followed by its adapters.
    ///
    /// # Errors
    ///
    /// 503 before all of them are known.
    pub(crate) fn list(&self) -> Result<Vec<listing::Entry>, ApiError> {
        if !self.complete.load(Ordering::Acquire) {
            return Err(not_known_yet());
        }
        let models = self.models.load();
        let mut entries = Vec::new();
        for (name, known) in models.iter() {
            entries.push(known.entry(name));
            // The name of a model is that model's, whatever adapters are called.
            let adapters = known.pool().adapters().into_iter();
            let adapters = adapters.filter(|adapter| !models.contains_key(&**adapter));
            entries.extend(adapters.map(|adapter| known.entry(&adapter)));
        }
        Ok(entries)
    }

    /// The listing of a model or an adapter.
    ///
    /// # Errors
    ///
    /// As [`Catalog::find`].
    pub(crate) fn describe(&self, name: &str) -> Result<listing::Entry, ApiError> {
        let known = self.known(name).ok_or_else(|| self.unknown(name))?;
        Ok(known.entry(name))
    }

    /// The model of this name that this proxy speaks for; without a name the only one.
    ///
    /// # Errors
    ///
    /// As [`Catalog::find`]; 400 where there are several models and no name.
    pub(crate) fn find_or_only(&self, name: Option<&str>) -> Result<Arc<ServedModel>, ApiError> {
        if let Some(name) = name {
            return self.find(name);
        }
        let models = self.models.load();
        let mut spoken = models.values().filter_map(|known| match &known.kind {
            Kind::Spoken(served) => Some(served),
            Kind::Passed(_) => None,
        });
        match (spoken.next(), spoken.next()) {
            (Some(only), None) => Ok(only.clone()),
            _ => Err(ApiError::missing("model")),
        }
    }

    /// Whether the model or adapter of this name has a worker that takes requests.
    ///
    /// # Errors
    ///
    /// As [`Catalog::find`].
    pub(crate) fn is_ready(&self, name: &str) -> Result<bool, ApiError> {
        let known = self.known(name).ok_or_else(|| self.unknown(name))?;
        Ok(known.pool().accepting() > 0)
    }

    /// The model of this name that this proxy speaks for.
    ///
    /// # Errors
    ///
    /// 404 when there is none, and 503 before that is known.
    pub(crate) fn find(&self, name: &str) -> Result<Arc<ServedModel>, ApiError> {
        match self.known(name) {
            Some(Known { kind: Kind::Spoken(served), .. }) => Ok(served),
            _ => Err(self.unknown(name)),
        }
    }

    /// The error for a name that no model has, or that the proxy does not know yet.
    fn unknown(&self, name: &str) -> ApiError {
        match self.complete.load(Ordering::Acquire) {
            true => ApiError::unknown_model(name),
            false => not_known_yet(),
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

    /// All models and their workers at a glance.
    pub(super) fn glance(&self) -> Vec<ModelGlance> {
        let models = self.models.load();
        let glance = models.iter().map(|(name, known)| ModelGlance {
            name: name.clone(),
            waiting: known.pool().waiting(),
            workers: known.pool().glance(),
        });
        glance.collect()
    }

    /// Present numbers of workers, blocks and waiting prompts.
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

    /// Loads models as the fleet announces them, and forgets them with it. The proxy is ready once
    /// the fleet was looked at and there is a model. `announce` gets the name of each that is served.
    pub(crate) async fn follow(
        &self,
        mut events: mpsc::Receiver<FleetEvent<Pool>>,
        readiness: Readiness,
        announce: impl Fn(&str),
    ) {
        // Models that came before the look was over: who sees one announced expects the others.
        let (mut settled, mut loaded) = (false, Vec::new());
        while let Some(event) = events.recv().await {
            match event {
                FleetEvent::ModelUp { pool, files } => {
                    let name = pool.record().name.clone();
                    if let Some(kind) = load(&name, pool, files, self.markup.of(&name)).await {
                        self.insert(&name, kind);
                        loaded.push(name);
                    }
                }
                FleetEvent::Settled => settled = true,
                FleetEvent::ModelDown { pool } => self.remove(&pool),
            }
            if settled && !loaded.is_empty() {
                self.complete.store(true, Ordering::Release);
                readiness.set(true);
                loaded.drain(..).for_each(|model| announce(&model));
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

    /// Forgets the model of a pool, unless another pool serves it by now.
    fn remove(&self, pool: &Arc<Pool>) {
        let mut models = BTreeMap::clone(&self.models.load());
        models.retain(|_, known| !Arc::ptr_eq(known.pool(), pool));
        self.models.store(Arc::new(models));
    }
}

/// The way in which requests of a model are answered; `None` where the model's files are unusable.
async fn load(
    name: &str,
    pool: Arc<Pool>,
    files: Vec<(String, Vec<u8>)>,
    markup: MarkupChoice,
) -> Option<Kind> {
    if !pool.record().takes_tokens() {
        return Some(Kind::Passed(pool));
    }
    let loading = tokio::task::spawn_blocking({
        let (name, context) = (name.to_owned(), pool.record().context_length);
        move || {
            let model = Model::load_with(&name, &shared(files), markup)?;
            Ok::<_, ModelError>(model.with_context_length(context))
        }
    });
    match loading.await {
        Ok(Ok(model)) => {
            let markup = model.markup();
            let tools = markup.tools().map_or("none", ToolFamily::name);
            let reasoning = markup.reasoning().map_or("none", ReasoningFamily::name);
            tracing::info!(
                model = name,
                tool_call_parser = tools,
                reasoning_parser = reasoning,
                "parsers"
            );
            Some(Kind::Spoken(Arc::new(ServedModel { model: Arc::new(model), pool })))
        }
        Ok(Err(error)) => {
            tracing::error!(model = name, %error, "cannot load a model's files");
            None
        }
        Err(error) => {
            tracing::error!(model = name, %error, "loading a model failed");
            None
        }
    }
}

/// The answer to clients while the models of the fleet are not known yet.
fn not_known_yet() -> ApiError {
    ApiError::unavailable("the models of the fleet are not known yet", RETRY_AFTER)
}

fn shared(files: Vec<(String, Vec<u8>)>) -> Vec<(String, Bytes)> {
    files.into_iter().map(|(name, content)| (name, content.into())).collect()
}
