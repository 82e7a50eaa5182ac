//! Workers of the fleet and their loads, as agents report them.

use crate::observation::{RequestSizes, WorkerSignal};
use parking_lot::Mutex;
use stator_events::KvSink;
use stator_fleet::{AgentClient, Members, Pools};
use stator_placement::Worker;
use stator_protos::discovery::{ModelRecord, Role};
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::{KvEvent, Medium};
use stator_protos::load::Load;
use stator_protos::{Generation, WorkerRank};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Workers of every model that is planned.
#[derive(Clone)]
pub(crate) struct AgentPools(BTreeMap<String, Arc<GraphWorkers>>);

/// Workers of one model.
#[derive(Default)]
pub(crate) struct GraphWorkers(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    sizes: RequestSizes,
    workers: BTreeMap<WorkerRank, SeenWorker>,
}

struct SeenWorker {
    role: Role,
    generation: Generation,
    accepting: bool,
    since: Instant,
    load: Load,
}

impl AgentPools {
    pub(crate) fn new<'a>(models: impl Iterator<Item = &'a str>) -> Self {
        Self(models.map(|model| (model.to_owned(), Arc::default())).collect())
    }

    /// The workers of a model.
    pub(crate) fn of(&self, model: &str) -> Option<&Arc<GraphWorkers>> {
        self.0.get(model)
    }
}

impl GraphWorkers {
    /// The workers as they are, and the sizes of their model.
    pub(crate) fn signals(&self) -> (RequestSizes, Vec<WorkerSignal>) {
        let seen = self.0.lock();
        let signal = |worker: &SeenWorker| WorkerSignal {
            role: worker.role,
            up_s: worker.since.elapsed().as_secs_f64(),
            draining: !worker.accepting,
            load: worker.load,
        };
        (seen.sizes, seen.workers.values().map(signal).collect())
    }
}

impl Pools for AgentPools {
    type Pool = GraphWorkers;

    /// Models that nobody plans have no pool.
    fn open(&self, model: &ModelRecord) -> Option<Arc<GraphWorkers>> {
        let pool = self.of(&model.name)?;
        pool.0.lock().sizes = RequestSizes {
            context_tokens: model.context_length.into(),
            block_tokens: model.block_size.into(),
        };
        Some(pool.clone())
    }

    fn maintain(&self, _: Arc<GraphWorkers>) -> impl Future<Output = ()> + Send + 'static {
        std::future::pending()
    }

    async fn ready(&self) {}

    fn close(&self, _: &GraphWorkers) {}
}

impl Members for GraphWorkers {
    fn join(&self, worker: Worker, client: &Arc<AgentClient>) -> bool {
        let mut seen = self.0.lock();
        let known = seen.workers.get(&worker.worker);
        let same = known.filter(|known| known.generation == worker.generation);
        // An earlier life gives way; a worker that comes back with another agent is the same one.
        let (since, load) =
            same.map_or((Instant::now(), None), |known| (known.since, Some(known.load)));
        let load = load.unwrap_or(Load { total_blocks: worker.total_blocks, ..Load::default() });
        let now = SeenWorker {
            role: client.profile().role,
            generation: worker.generation,
            accepting: worker.accepting,
            since,
            load,
        };
        seen.workers.insert(worker.worker, now);
        true
    }

    fn leave(&self, worker: WorkerRank, _: &Arc<AgentClient>) {
        self.0.lock().workers.remove(&worker);
    }

    fn refresh(&self, _: &mut dyn Iterator<Item = WorkerRank>) {}

    /// Seldom: nothing here depends on time.
    fn refresh_interval(&self) -> Duration {
        Duration::from_secs(60)
    }

    fn load(&self, worker: WorkerRank, generation: Generation, load: Load) {
        let mut seen = self.0.lock();
        let known = seen.workers.get_mut(&worker).filter(|known| known.generation == generation);
        known.into_iter().for_each(|known| known.load = load);
    }
}

/// Blocks are of no interest here: loads count them.
impl KvSink for GraphWorkers {
    fn apply(&self, _: WorkerRank, _: Generation, _: &[KvEvent]) {}

    fn replace(&self, _: WorkerRank, _: Generation, _: Vec<(SequenceHash, Medium)>) {}

    fn unknown(&self, _: WorkerRank) {}
}
