//! Requests of one namespace: it follows them and their graphs, and takes the steps of
//! [`crate::request`].

use super::news::{LOOK_AGAIN, REPORTS_MAX, await_news, keep};
use super::store::{GRAPHS, ObjectStore, REQUESTS, called};
use crate::condition::timed;
use crate::convert::with_newer_spec;
use crate::objects::OperatorSettings;
use crate::plan::{ClusterView, ObjectStep, plan_graph};
use crate::request::{
    MODEL_CONFIG, RequestProfile, RequestScene, RequestStep, RequestSurroundings, generated,
    graph_faults, graph_name, of_nodes, plan_request, question,
};
use parking_lot::Mutex;
use serde_json::Value;
use stator_kube::meta::timestamp;
use stator_kube::{ApiError, Cluster, Query, Report, Resource};
use stator_timing::EngineProfile;
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Time in place of [`LOOK_AGAIN`] after a step that failed.
const RETRY: Duration = Duration::from_secs(2);
/// Largest file of a model that is read, bytes, and most of its files with measured times.
const FILE_BYTES_MAX: u64 = 1 << 20;
const PROFILES_MAX: usize = 64;

/// News for the operator of requests.
enum RequestNews {
    /// Of requests.
    Request(Report<Value>),
    /// Of graphs.
    Graph(Report<Value>),
    /// The profile of the request with this identity ended.
    Profiled(String, Result<Value, String>),
}

/// Measured times as a file has them, or what is wrong with it.
type EngineProfileFile = Result<EngineProfile, String>;

/// News of a watch's report.
type NewsOf = fn(Report<Value>) -> RequestNews;

/// Follows the requests of a namespace.
pub(super) struct RequestOperator {
    store: ObjectStore,
    settings: OperatorSettings,
    /// Folder with the `config.json` of models, by their names.
    configs: Option<PathBuf>,
    news: mpsc::Receiver<RequestNews>,
    sender: mpsc::Sender<RequestNews>,
    /// Documents by name; none before they were listed.
    requests: Option<BTreeMap<String, Value>>,
    graphs: Option<BTreeMap<String, Value>>,
    /// Profiles by the request's identity.
    profiles: BTreeMap<String, RequestProfile>,
    /// Turn of a profile: one at a time in a process, because each takes all cores for seconds.
    turn: Arc<Mutex<()>>,
    _tasks: JoinSet<()>,
}

impl RequestOperator {
    pub(super) fn new(
        cluster: &Cluster,
        store: ObjectStore,
        settings: OperatorSettings,
        configs: Option<PathBuf>,
        turn: Arc<Mutex<()>>,
    ) -> Self {
        let (sender, news) = mpsc::channel(REPORTS_MAX);
        let mut tasks = JoinSet::new();
        let query = |resource: Resource| Query {
            resource,
            namespace: Some(store.namespace.clone()),
            labels: None,
            fields: None,
        };
        for (resource, wrap) in
            [(REQUESTS, RequestNews::Request as NewsOf), (GRAPHS, RequestNews::Graph)]
        {
            let decode = Box::new(|json: &str| serde_json::from_str(json).map(Some));
            let follower = cluster.follow(query(resource), decode, sender.clone(), Box::new(wrap));
            tasks.spawn(follower.run());
        }
        Self {
            store,
            settings,
            configs,
            news,
            sender,
            requests: None,
            graphs: None,
            profiles: BTreeMap::new(),
            turn,
            _tasks: tasks,
        }
    }

    /// Works until it is dropped.
    pub(super) async fn run(mut self) {
        let mut pause = LOOK_AGAIN;
        loop {
            // The operator has a sender itself.
            let Some(news) = await_news(&mut self.news, pause).await else { return };
            news.into_iter().for_each(|news| self.hear(news));
            pause = if self.pass().await { LOOK_AGAIN } else { RETRY };
        }
    }

    fn hear(&mut self, news: RequestNews) {
        match news {
            RequestNews::Request(report) => keep_listed(&mut self.requests, report),
            RequestNews::Graph(report) => keep_listed(&mut self.graphs, report),
            RequestNews::Profiled(of, answer) => {
                // The request may be gone.
                if let Some(profile) = self.profiles.get_mut(&of) {
                    *profile = RequestProfile::Done(answer);
                }
            }
        }
    }

    /// Takes the steps of all requests. Returns whether all succeeded.
    async fn pass(&mut self) -> bool {
        // A graph that was not listed yet is not a graph that is gone.
        let (Some(requests), Some(_)) = (self.requests.clone(), &self.graphs) else { return true };
        self.profiles.retain(|of, _| requests.values().any(|request| identity(request) == *of));
        let mut is_done = true;
        for (name, request) in &requests {
            if !request["metadata"]["deletionTimestamp"].is_null() {
                continue;
            }
            if let Err(error) = self.operate(request).await {
                tracing::warn!(request = name, %error, "a step failed, it is tried again");
                is_done = false;
            }
        }
        is_done
    }

    /// Takes the steps of one request, and reports its state.
    async fn operate(&mut self, stored: &Value) -> Result<(), ApiError> {
        let document = &with_newer_spec(stored);
        let phase = document["status"]["phase"].as_str().unwrap_or_default();
        let of = identity(document);
        // The question costs a look at the cluster; only its asking does.
        let is_open = matches!(phase, "" | "Pending" | "Profiling");
        if !is_open {
            self.profiles.remove(&of);
        }
        let asks = is_open && !self.profiles.contains_key(&of);
        let question = if asks { Some(self.question(document).await) } else { None };
        let faults = match &question {
            Some(Err(faults)) => faults.clone(),
            _ => Vec::new(),
        };
        let profile = self.profiles.get(&of).unwrap_or(&RequestProfile::Absent);
        let graph = self.graphs.as_ref().and_then(|all| all.get(&graph_name(document)));
        let scene = RequestScene { document, faults: &faults, profile, graph };
        let plan = plan_request(scene);
        for step in plan.steps {
            match step {
                RequestStep::Profile => match &question {
                    Some(Ok(asked)) => self.profile(document, asked.clone()),
                    // The document changed since it was validated; the next pass says so.
                    _ => continue,
                },
                RequestStep::Apply(graph) => {
                    tracing::info!(step = "apply", object = called(&graph), "operating");
                    self.store.take(&ObjectStep::Apply(graph)).await?;
                }
                RequestStep::Annotate(annotations) => {
                    self.store.annotate(document, &annotations).await?;
                }
            }
        }
        let (mut status, known) = (plan.status, &document["status"]);
        timed(&mut status, known, &timestamp(SystemTime::now()));
        if status != *known {
            let (request, phase) = (called(document), status["phase"].as_str().unwrap_or_default());
            tracing::info!(request, phase, part = ?status["profilingPhase"].as_str(), "request");
            self.store.report(document, &status).await?;
        }
        Ok(())
    }

    /// The question of a request, or all its faults.
    async fn question(&self, document: &Value) -> Result<stator_plan::PlanRequest, Vec<String>> {
        let config = self.model_config(document).await;
        let hardware = &document["spec"]["hardware"];
        let says_all = hardware["gpuSku"].is_string() && hardware["totalGpus"].is_number();
        let nodes = if says_all { Vec::new() } else { self.store.nodes().await };
        let wanted = hardware["gpuSku"].as_str().and_then(crate::request::of_sku);
        let profiles = self.engine_profiles(document).await;
        let around = RequestSurroundings {
            model_config: config.as_deref(),
            cluster: of_nodes(&nodes, wanted),
            profiles: &profiles,
        };
        let asked = question(document, &around);
        let more = graph_faults(document);
        match asked {
            Ok(asked) if more.is_empty() => Ok(asked),
            Ok(_) => Err(more),
            Err(faults) => Err([faults, more].concat()),
        }
    }

    /// The `config.json` of a request's model: in an annotation, or in the operator's folder.
    async fn model_config(&self, document: &Value) -> Option<String> {
        if let Some(config) = document["metadata"]["annotations"][MODEL_CONFIG].as_str() {
            return Some(config.to_owned());
        }
        let folder = self.model_folder(document)?;
        read_bounded(&folder.join("config.json")).await.ok()
    }

    /// Times that were measured on workers of a request's model: its files `profile*.json` in the
    /// operator's folder.
    async fn engine_profiles(&self, document: &Value) -> Vec<(String, EngineProfileFile)> {
        let mut found = Vec::new();
        let Some(folder) = self.model_folder(document) else { return found };
        let Ok(mut entries) = tokio::fs::read_dir(&folder).await else { return found };
        while let Ok(Some(entry)) = entries.next_entry().await {
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_profile = name.starts_with("profile") && name.ends_with(".json");
            if is_profile && found.len() < PROFILES_MAX {
                let text = read_bounded(&entry.path()).await;
                found.push((name, text.and_then(|text| EngineProfile::parse(&text))));
            }
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
        found
    }

    /// The folder of a request's model among the operator's.
    fn model_folder(&self, document: &Value) -> Option<PathBuf> {
        model_folder(self.configs.as_deref()?, document["spec"]["model"].as_str()?)
    }

    /// Begins the profile of a request, in a thread of its own.
    fn profile(&mut self, document: &Value, asked: stator_plan::PlanRequest) {
        let of = identity(document);
        self.profiles.insert(of.clone(), RequestProfile::Running);
        let (document, settings) = (document.clone(), self.settings.clone());
        let (sender, turn) = (self.sender.clone(), self.turn.clone());
        let work = move || {
            let _turn = turn.lock();
            let answer = profiled(&document, &asked, &settings);
            // Without a receiver the operator has ended.
            let _ = sender.blocking_send(RequestNews::Profiled(of, answer));
        };
        // The process does not wait for the thread when it ends.
        thread::spawn(work);
    }
}

/// The graph of a request, which the operator understands.
fn profiled(
    document: &Value,
    asked: &stator_plan::PlanRequest,
    settings: &OperatorSettings,
) -> Result<Value, String> {
    let found = stator_plan::find(asked).map_err(|error| format!("{error:#}"))?;
    let graph = generated(document, asked, &found);
    plan_graph(&graph, &ClusterView::default(), settings)
        .map_err(|fault| format!("the generated graph: {fault}"))?;
    Ok(graph)
}

/// Takes a report in.
fn keep_listed(documents: &mut Option<BTreeMap<String, Value>>, report: Report<Value>) {
    if !matches!(report, Report::Lost | Report::Found) {
        keep(documents.get_or_insert_default(), report);
    }
}

/// Identity of a request: one of the same name later is another.
fn identity(document: &Value) -> String {
    document["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

/// The folder of a model below another; none for a name that leads out of it.
fn model_folder(folder: &Path, model: &str) -> Option<PathBuf> {
    let model = Path::new(model);
    let is_plain = model.components().all(|part| matches!(part, Component::Normal(_)));
    is_plain.then(|| folder.join(model))
}

/// The text of a file, unless it is too large.
async fn read_bounded(path: &Path) -> Result<String, String> {
    let size = tokio::fs::metadata(path).await.map_err(|error| error.to_string())?.len();
    if size > FILE_BYTES_MAX {
        return Err(format!("{size} bytes, limit {FILE_BYTES_MAX}"));
    }
    tokio::fs::read_to_string(path).await.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_name_leads_nowhere_but_into_the_folder() {
        let folder = Path::new("/configs");
        let found = model_folder(folder, "Qwen/Qwen3-0.6B");
        assert_eq!(found, Some(PathBuf::from("/configs/Qwen/Qwen3-0.6B")));
        for model in ["../secrets", "/etc", "a/../../b"] {
            assert_eq!(model_folder(folder, model), None, "{model}");
        }
    }
}
