//! The operator of one namespace.

use super::models::ModelOperator;
use super::news::{LOOK_AGAIN, REPORTS_MAX, await_news};
use super::request::RequestOperator;
use super::store::{CLIQUES, COMPONENTS, GRAPHS, ObjectStore, called, followed};
use super::view::WITHOUT_NODE;
use crate::condition::{failed, timed};
use crate::convert::{FormVersion, convert};
use crate::events::DocumentEvent;
use crate::metrics::OperatorMetrics;
use crate::objects::{OperatorSettings, label};
use crate::plan::{DocumentPlan, OWNER, plan_component, plan_graph};
use parking_lot::Mutex;
use serde_json::Value;
use stator_kube::meta::timestamp;
use stator_kube::{ApiError, Cluster, PODS, Query, Report, Resource};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Selector of what Grove makes of sets of cliques.
const OF_GROVE: &str = "app.kubernetes.io/managed-by=grove-operator";
/// Time in place of [`LOOK_AGAIN`] after a step that failed.
const RETRY: Duration = Duration::from_secs(2);

/// News from the watches.
enum OperatorNews {
    /// Of documents: graphs, and components with or without a graph.
    Document(&'static str, Report<Value>),
    /// Of something that a plan depends on.
    Changed,
}

/// Follows a namespace, and takes the steps of its documents' plans.
pub(super) struct NamespaceOperator {
    store: ObjectStore,
    settings: OperatorSettings,
    metrics: OperatorMetrics,
    news: mpsc::Receiver<OperatorNews>,
    /// Documents by kind and name. Kubernetes deletes the objects of one that is gone.
    documents: BTreeMap<(&'static str, String), Value>,
    _tasks: JoinSet<()>,
}

const GRAPH: &str = "DynamoGraphDeployment";
const COMPONENT: &str = "DynamoComponentDeployment";

/// Parts that the operators of all namespaces share.
#[derive(Clone)]
pub(super) struct OperatorParts {
    pub(super) settings: OperatorSettings,
    pub(super) metrics: OperatorMetrics,
    /// Folder with the `config.json` of models, by their names.
    pub(super) model_configs: Option<PathBuf>,
    /// Turn of a request's profile: each takes all cores for seconds.
    pub(super) turn: Arc<Mutex<()>>,
}

/// Operates a namespace whenever this replica leads there, until it is dropped.
pub(super) async fn operate_namespace(
    cluster: Cluster,
    namespace: String,
    parts: OperatorParts,
    mut leading: watch::Receiver<bool>,
) {
    parts.metrics.led(&namespace, false);
    // The other end lives as long as the election, which outlives this.
    while leading.wait_for(|is_leading| *is_leading).await.is_ok() {
        tracing::info!(namespace, "operating");
        parts.metrics.led(&namespace, true);
        let OperatorParts { settings, metrics, model_configs, turn } = parts.clone();
        let store = ObjectStore::new(cluster.api.clone(), namespace.clone(), metrics.clone());
        let requests =
            RequestOperator::new(&cluster, store.clone(), settings.clone(), model_configs, turn);
        let models = ModelOperator::new(&cluster, &namespace, metrics.clone());
        let graphs = NamespaceOperator::new(&cluster, store, settings, metrics);
        // A step that is under way when another replica leads may be taken twice: steps are the
        // same for both.
        tokio::select! {
            _ = leading.wait_for(|is_leading| !*is_leading) => {}
            () = graphs.run() => return,
            () = models.run() => return,
            () = requests.run() => return,
        }
        tracing::info!(namespace, "another replica operates");
        parts.metrics.led(&namespace, false);
    }
}

impl NamespaceOperator {
    fn new(
        cluster: &Cluster,
        store: ObjectStore,
        settings: OperatorSettings,
        metrics: OperatorMetrics,
    ) -> Self {
        let (sender, news) = mpsc::channel(REPORTS_MAX);
        let mut tasks = JoinSet::new();
        let query = |resource: Resource, labels: Option<String>| Query {
            resource,
            namespace: Some(store.namespace.clone()),
            labels,
            fields: None,
        };
        for (kind, resource) in [(GRAPH, GRAPHS), (COMPONENT, COMPONENTS)] {
            let wrap = Box::new(move |report| OperatorNews::Document(kind, report));
            let decode = Box::new(|json: &str| serde_json::from_str(json).map(Some));
            let follower = cluster.follow(query(resource, None), decode, sender.clone(), wrap);
            tasks.spawn(follower.run());
        }
        let owned = followed().map(|resource| query(resource, Some(OWNER.to_owned())));
        let grove = |(_, resource): (&str, Resource)| query(resource, Some(OF_GROVE.to_owned()));
        // Pods come and go with their workloads; only those without a node say something of their own.
        let fields = Some(WITHOUT_NODE.to_owned());
        let waiting = Query { fields, ..query(PODS, Some(label("dynamo-component"))) };
        for query in owned.chain(CLIQUES.map(grove)).chain([waiting]) {
            let wrap = Box::new(|_: Report<()>| OperatorNews::Changed);
            let decode = Box::new(|_: &str| Ok(Some(())));
            tasks.spawn(cluster.follow(query, decode, sender.clone(), wrap).run());
        }
        Self { store, settings, metrics, news, documents: BTreeMap::new(), _tasks: tasks }
    }

    /// Works until it is dropped.
    async fn run(mut self) {
        let mut pause = LOOK_AGAIN;
        loop {
            // The followers end when this does.
            let Some(news) = await_news(&mut self.news, pause).await else { return };
            news.into_iter().for_each(|news| self.hear(news));
            for kind in [GRAPH, COMPONENT] {
                let number = self.documents.keys().filter(|(known, _)| *known == kind).count();
                self.metrics.counted(kind, &self.store.namespace, number);
            }
            pause = if self.pass().await { LOOK_AGAIN } else { RETRY };
        }
    }

    fn hear(&mut self, news: OperatorNews) {
        match news {
            OperatorNews::Document(kind, Report::Listed(all)) => {
                self.documents.retain(|(known, _), _| *known != kind);
                self.documents.extend(all.into_iter().map(|(name, of)| ((kind, name), of)));
            }
            OperatorNews::Document(kind, Report::Set(name, Some(document))) => {
                self.documents.insert((kind, name), document);
            }
            OperatorNews::Document(kind, Report::Set(name, None)) => {
                self.documents.remove(&(kind, name));
            }
            // The watches say so in the log; what is known still holds.
            OperatorNews::Document(_, Report::Lost | Report::Found) | OperatorNews::Changed => {}
        }
    }

    /// Takes the steps of all documents. Returns whether all succeeded.
    async fn pass(&self) -> bool {
        let mut is_done = true;
        for ((kind, name), document) in self.documents.iter().filter(|(_, of)| is_own(of)) {
            let begun = Instant::now();
            let outcome = self.operate(document, kind).await;
            let namespace = &self.store.namespace;
            self.metrics.reconciled(kind, namespace, outcome.is_ok(), begun.elapsed());
            if let Err(error) = outcome {
                tracing::warn!(kind, name, %error, "a step failed, it is tried again");
                is_done = false;
            }
        }
        is_done
    }

    /// Takes the steps of one document, and reports its state.
    async fn operate(&self, document: &Value, kind: &str) -> Result<(), ApiError> {
        let graph = convert(document, FormVersion::Beta);
        let view = match self.store.view(document).await {
            Ok(view) => view,
            Err(error) => return self.unseen(&graph, error).await,
        };
        let plan = if kind == GRAPH { plan_graph } else { plan_component };
        let (plan, mut faults) = match plan(&graph, &view, &self.settings) {
            Ok(plan) => (plan, Vec::new()),
            Err(fault) => (DocumentPlan::failed(&graph), vec![fault]),
        };
        let (mut failure, mut events) = (None, Vec::new());
        for step in &plan.steps {
            let name = called(step.object());
            match self.store.take(step).await {
                Ok(()) => {
                    tracing::info!(step = step.word(), object = name, "operating");
                    events.extend(DocumentEvent::of_step(step, &view.objects));
                }
                Err(error) => {
                    faults.push(format!("{} {name}: {error}", step.word()));
                    failure = Some(error);
                }
            }
        }
        let mut status = plan.status;
        if !faults.is_empty() {
            failed(&mut status, &faults);
        }
        events.extend(DocumentEvent::of_status(&graph["status"], &status));
        self.report(&graph, status).await?;
        for (component, status) in plan.components.into_iter().filter(|_| kind == GRAPH) {
            self.report(&component, status).await?;
        }
        self.store.tell(document, &events).await;
        failure.map_or(Ok(()), Err)
    }

    /// Reports that the objects of a document cannot be seen, where the API server says why: the rule
    /// that the operator lacks.
    async fn unseen(&self, document: &Value, error: ApiError) -> Result<(), ApiError> {
        if matches!(error, ApiError::Refused { .. }) {
            let mut status = DocumentPlan::failed(document).status;
            failed(&mut status, &[error.to_string()]);
            self.report(document, status).await?;
        }
        Err(error)
    }

    /// Reports a state that differs from the one that the document has.
    async fn report(&self, document: &Value, mut status: Value) -> Result<(), ApiError> {
        let known = &document["status"];
        timed(&mut status, known, &timestamp(SystemTime::now()));
        if status == *known { Ok(()) } else { self.store.report(document, &status).await }
    }
}

/// Whether a document is nobody's object and is to stay.
fn is_own(document: &Value) -> bool {
    let metadata = &document["metadata"];
    metadata["labels"][OWNER].is_null() && metadata["deletionTimestamp"].is_null()
}
