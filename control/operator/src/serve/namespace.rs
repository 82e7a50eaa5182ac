//! The operator of one namespace.

use super::store::{COMPONENTS, GRAPHS, ObjectStore, called, followed};
use crate::condition::{failed, timed};
use crate::convert::{FormVersion, convert};
use crate::objects::OperatorSettings;
use crate::plan::{DocumentPlan, OWNER, ObjectStep, owner_label, plan_component, plan_graph};
use serde_json::Value;
use stator_kube::meta::timestamp;
use stator_kube::{ApiError, Cluster, Query, Report, Resource};
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Reports that may wait; the watches are held up beyond them.
const REPORTS_MAX: usize = 256;
/// Time after which all is looked at again without news.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// As [`LOOK_AGAIN`], after a step that failed.
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
    news: mpsc::Receiver<OperatorNews>,
    /// Documents by kind and name. Kubernetes deletes the objects of one that is gone.
    documents: BTreeMap<(&'static str, String), Value>,
    _tasks: JoinSet<()>,
}

const GRAPH: &str = "DynamoGraphDeployment";
const COMPONENT: &str = "DynamoComponentDeployment";

impl NamespaceOperator {
    pub(super) fn new(cluster: &Cluster, store: ObjectStore, settings: OperatorSettings) -> Self {
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
        for resource in followed() {
            let wrap = Box::new(|_: Report<()>| OperatorNews::Changed);
            let decode = Box::new(|_: &str| Ok(Some(())));
            let owned = query(resource, Some(OWNER.to_owned()));
            tasks.spawn(cluster.follow(owned, decode, sender.clone(), wrap).run());
        }
        Self { store, settings, news, documents: BTreeMap::new(), _tasks: tasks }
    }

    /// Works until it is dropped.
    pub(super) async fn run(mut self) {
        let mut pause = LOOK_AGAIN;
        loop {
            match timeout(pause, self.news.recv()).await {
                // The followers end when this does.
                Ok(None) => return,
                Ok(Some(news)) => self.hear(news),
                Err(_) => {}
            }
            while let Ok(news) = self.news.try_recv() {
                self.hear(news);
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
            if let Err(error) = self.operate(document, kind).await {
                tracing::warn!(kind, name, %error, "a step failed, it is tried again");
                is_done = false;
            }
        }
        is_done
    }

    /// Takes the steps of one document, and reports its state.
    async fn operate(&self, document: &Value, kind: &str) -> Result<(), ApiError> {
        let observed = self.store.owned(&owner_label(document)).await?;
        let graph = convert(document, FormVersion::Beta);
        let plan = if kind == GRAPH { plan_graph } else { plan_component };
        let (plan, mut faults) = match plan(&graph, &observed, &self.settings) {
            Ok(plan) => (plan, Vec::new()),
            Err(fault) => (DocumentPlan::failed(&graph), vec![fault]),
        };
        let mut failure = None;
        for step in &plan.steps {
            let (word, object) = match step {
                ObjectStep::Apply(object) => ("apply", object),
                ObjectStep::Delete(object) => ("delete", object),
            };
            let object = called(object);
            match self.store.take(step).await {
                Ok(()) => tracing::info!(step = word, object, "operating"),
                Err(error) => {
                    faults.push(format!("{word} {object}: {error}"));
                    failure = Some(error);
                }
            }
        }
        let mut status = plan.status;
        if !faults.is_empty() {
            failed(&mut status, &faults);
        }
        self.report(document, status).await?;
        for (component, status) in plan.components.into_iter().filter(|_| kind == GRAPH) {
            self.report(&component, status).await?;
        }
        failure.map_or(Ok(()), Err)
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
