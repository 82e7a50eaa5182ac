//! Models of one namespace: adapters are loaded on every worker that has their base, and unloaded when
//! a model is deleted.
//!
//! Nothing remembers what was loaded. Every look asks all ready workers; one that has the adapter
//! says so at once. So a worker that was restarted gets its adapters as soon as it is ready.

use super::news::{LOOK_AGAIN, REPORTS_MAX, await_news, keep};
use super::store::resource;
use crate::condition::timed;
use crate::kinds::GROUP;
use crate::metrics::OperatorMetrics;
use crate::models::{
    BASE_MODEL, LoadOutcome, ModelWorker, adapter_path, is_adapter, status, workers,
};
use serde_json::{Value, json};
use stator_http::{Connection, Origin, request};
use stator_kube::meta::timestamp;
use stator_kube::{Api, ApiError, Cluster, Query, Report, Resource};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

const MODELS: Resource = resource(GROUP, "v1alpha1", "dynamomodels");
const SLICES: Resource = resource("discovery.k8s.io", "v1", "endpointslices");
const KIND: &str = "DynamoModel";
/// Name among those that change models, and the mark that holds a deletion until workers have
/// unloaded the adapter.
const MANAGER: &str = "stator-operator-models";
const FINALIZER: &str = "nvidia.com/finalizer";

/// Time in place of [`LOOK_AGAIN`] while a worker lacks an adapter.
const RETRY: Duration = Duration::from_secs(30);
/// Calls at once, the longest time of one, and of all those of one model.
const CALLS_MAX: usize = 10;
const CALL_LIMIT: Duration = Duration::from_secs(15);
const MODEL_LIMIT: Duration = Duration::from_secs(30);
/// Longest answer of a worker that is read.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Longest part of an answer that a status repeats.
const MESSAGE_BYTES_MAX: usize = 200;

/// News from the watches.
enum ModelNews {
    Model(Report<Value>),
    Slice(Report<Value>),
}

/// Keeps the adapters of a namespace where they should be.
pub(super) struct ModelOperator {
    api: Api,
    namespace: String,
    metrics: OperatorMetrics,
    news: mpsc::Receiver<ModelNews>,
    models: BTreeMap<String, Value>,
    slices: BTreeMap<String, Value>,
    _tasks: JoinSet<()>,
}

impl ModelOperator {
    pub(super) fn new(cluster: &Cluster, namespace: &str, metrics: OperatorMetrics) -> Self {
        let (sender, news) = mpsc::channel(REPORTS_MAX);
        let mut tasks = JoinSet::new();
        let query = |resource, labels: Option<&str>| Query {
            resource,
            namespace: Some(namespace.to_owned()),
            labels: labels.map(str::to_owned),
            fields: None,
        };
        let decode = || Box::new(|json: &str| serde_json::from_str(json).map(Some));
        let models = query(MODELS, None);
        let follower = cluster.follow(models, decode(), sender.clone(), Box::new(ModelNews::Model));
        tasks.spawn(follower.run());
        let slices = query(SLICES, Some(BASE_MODEL));
        tasks.spawn(cluster.follow(slices, decode(), sender, Box::new(ModelNews::Slice)).run());
        Self {
            api: cluster.api.clone(),
            namespace: namespace.to_owned(),
            metrics,
            news,
            models: BTreeMap::new(),
            slices: BTreeMap::new(),
            _tasks: tasks,
        }
    }

    /// Works until it is dropped.
    pub(super) async fn run(mut self) {
        let mut pause = LOOK_AGAIN;
        loop {
            // The followers end when this does.
            let Some(news) = await_news(&mut self.news, pause).await else { return };
            news.into_iter().for_each(|news| self.hear(news));
            self.metrics.counted(KIND, &self.namespace, self.models.len());
            pause = LOOK_AGAIN;
            for (name, model) in &self.models {
                let begun = Instant::now();
                let outcome = self.operate(name, model).await;
                let is_done = outcome.is_ok();
                self.metrics.reconciled(KIND, &self.namespace, is_done, begun.elapsed());
                match outcome {
                    Ok(true) => {}
                    Ok(false) => pause = RETRY,
                    Err(error) => {
                        tracing::warn!(name, %error, "a model is not as it should be");
                        pause = RETRY;
                    }
                }
            }
        }
    }

    fn hear(&mut self, news: ModelNews) {
        match news {
            ModelNews::Model(report) => keep(&mut self.models, report),
            ModelNews::Slice(report) => keep(&mut self.slices, report),
        }
    }

    /// Has the workers of a model load or unload its adapter. Returns whether all have it.
    async fn operate(&self, name: &str, model: &Value) -> Result<bool, ApiError> {
        let workers = workers(model, self.slices.values());
        let adapter = model["spec"]["modelName"].as_str().unwrap_or_default();
        let is_held = model["metadata"]["finalizers"]
            .as_array()
            .is_some_and(|all| all.iter().any(|finalizer| finalizer == FINALIZER));
        if !model["metadata"]["deletionTimestamp"].is_null() {
            if is_held {
                if is_adapter(model) && !self.is_elsewhere(name, adapter) {
                    self.unload(adapter, &workers).await;
                }
                self.hold(name, model, json!([])).await?;
            }
            return Ok(true);
        }
        let mut outcomes = BTreeMap::new();
        if is_adapter(model) {
            if !is_held {
                self.hold(name, model, json!([FINALIZER])).await?;
            }
            let source = &model["spec"]["source"];
            let body = json!({ "lora_name": adapter, "source": source }).to_string();
            outcomes = ask_all(&workers, "POST", "/v1/loras", Some(&body)).await;
        }
        let mut status = status(model, &workers, &outcomes);
        timed(&mut status, &model["status"], &timestamp(SystemTime::now()));
        if status != model["status"] {
            let body = json!({ "status": status });
            self.apply(name, model, "/status", body).await?;
        }
        Ok(!is_adapter(model)
            || outcomes.len() == workers.len() && outcomes.values().all(Result::is_ok))
    }

    /// Whether another model asks for the same adapter.
    fn is_elsewhere(&self, name: &str, adapter: &str) -> bool {
        let others = self.models.iter().filter(|(other, _)| *other != name);
        others.into_iter().any(|(_, other)| {
            is_adapter(other)
                && other["spec"]["modelName"] == adapter
                && other["metadata"]["deletionTimestamp"].is_null()
        })
    }

    /// Unloads an adapter. A worker that does not do so holds nothing up: its own end unloads all.
    async fn unload(&self, adapter: &str, workers: &[ModelWorker]) {
        let outcomes = ask_all(workers, "DELETE", &adapter_path(adapter), None).await;
        for (uid, outcome) in outcomes {
            if let Err(why) = outcome {
                tracing::warn!(adapter, pod = uid, why, "an adapter is not unloaded");
            }
        }
    }

    /// Sets or takes away the mark that holds a deletion.
    async fn hold(&self, name: &str, model: &Value, finalizers: Value) -> Result<(), ApiError> {
        let uid = &model["metadata"]["uid"];
        let body = json!({ "metadata": { "finalizers": finalizers, "uid": uid } });
        self.apply(name, model, "", body).await
    }

    async fn apply(
        &self,
        name: &str,
        model: &Value,
        part: &str,
        mut body: Value,
    ) -> Result<(), ApiError> {
        body["apiVersion"] = "nvidia.com/v1alpha1".into();
        body["kind"] = KIND.into();
        body["metadata"]["name"] = name.into();
        // One that is gone meanwhile is not made again.
        body["metadata"]["uid"] = model["metadata"]["uid"].clone();
        let path = format!("{}{part}", MODELS.path_of(&self.namespace, name));
        match self.api.apply(&path, MANAGER, body.to_string().into()).await {
            Ok(_) | Err(ApiError::Absent(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Asks all ready workers, and returns what each answered, by pod identity.
async fn ask_all(
    workers: &[ModelWorker],
    method: &'static str,
    path: &str,
    body: Option<&str>,
) -> BTreeMap<String, LoadOutcome> {
    let room = Arc::new(Semaphore::new(CALLS_MAX));
    let end = Instant::now() + MODEL_LIMIT;
    let mut calls = JoinSet::new();
    for worker in workers.iter().filter(|worker| worker.is_ready).cloned() {
        let (room, path, body) = (room.clone(), path.to_owned(), body.map(str::to_owned));
        calls.spawn(async move {
            let call = async {
                // The semaphore is never closed.
                let _room = room.acquire().await;
                let asked = timeout(CALL_LIMIT, ask(&worker, method, &path, body.as_deref())).await;
                asked.unwrap_or_else(|_| Err("no answer in time".to_owned()))
            };
            let outcome = timeout_at(end, call).await;
            let outcome = outcome.unwrap_or_else(|_| Err("not asked in time".to_owned()));
            (worker.uid, outcome)
        });
    }
    calls.join_all().await.into_iter().collect()
}

async fn ask(worker: &ModelWorker, method: &str, path: &str, body: Option<&str>) -> LoadOutcome {
    let origin = Origin { host: worker.host.clone(), port: worker.port, tls: None };
    let call = request(method, &origin, path, None, body.map(str::as_bytes));
    let mut connection = Connection::new(origin);
    let answer = connection.exchange(&call, ANSWER_BYTES_MAX).await;
    let answer = answer.map_err(|error| error.to_string())?;
    if (200..300).contains(&answer.status) {
        return Ok(());
    }
    let mut said = String::from_utf8_lossy(answer.body).trim().to_owned();
    said.truncate(said.floor_char_boundary(MESSAGE_BYTES_MAX));
    Err(format!("status {}: {said}", answer.status))
}
