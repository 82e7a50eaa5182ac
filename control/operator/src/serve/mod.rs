//! The operator at work in a cluster: it follows documents and their objects, and takes the steps of
//! [`crate::plan`].

mod models;
mod namespace;
mod news;
mod request;
pub(crate) mod store;
mod view;

use crate::args::{ServeArgs, WebhookArgs};
use crate::metrics::OperatorMetrics;
use crate::objects::OperatorSettings;
use crate::webhooks::{ConversionOwner, Upkeep, WebhookPlace, WebhookSettings, app};
use anyhow::{Context, bail};
use http::Method;
use namespace::{OperatorParts, operate_namespace};
use serde_json::{Value, json};
use stator_kube::{ApiError, Cluster, Election, Elector, Resource};
use stator_runtime::Shutdown;
use stator_runtime::admin::{self, AdminContent, Readiness};
use stator_runtime::metrics::Metrics;
use stator_runtime::tls::Listener;
use std::net::SocketAddr;
use std::sync::Arc;
use store::{DEFINITIONS, resource};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// Definition that says whose the kinds are.
const GRAPHS: &str = "dynamographdeployments.nvidia.com";
/// Advice where it is missing.
const MISSING: &str = "the cluster has no dynamographdeployments.nvidia.com: apply what `stator operator crds` prints";
/// Reviews of the client's own name.
const OWN_NAME: Resource = resource("authentication.k8s.io", "v1", "selfsubjectreviews");
/// Lease in each namespace, whose holder operates the namespace.
const LEASE: &str = "stator-operator";

/// Works until `shutdown`.
///
/// # Errors
///
/// Without a connection to a cluster, without the definitions, and where another operator owns them.
pub(crate) async fn serve(
    args: &ServeArgs,
    settings: OperatorSettings,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let cluster = Cluster::connect(args.kubeconfig.as_deref()).await?;
    let place = place(&args.webhooks, &cluster);
    check_definitions(&cluster, &place).await?;
    let registry = Metrics::default();
    let metrics = registry.register(OperatorMetrics::register);
    let readiness = Readiness::default();
    let content = AdminContent { metrics: registry, readiness: readiness.clone(), gate: None };
    let listen = SocketAddr::new(args.metrics_host, args.metrics_port);
    let (_end, ended) = Shutdown::new();
    admin::serve(listen, content, ended.clone())
        .await
        .with_context(|| format!("cannot listen on {listen}"))?;
    let mut tasks = match args.webhooks.webhooks {
        true => {
            let (settings, metrics) = (settings.clone(), metrics.clone());
            serve_webhooks(&args.webhooks, place, &cluster, settings, metrics, ended).await?
        }
        false => JoinSet::new(),
    };
    let namespaces = match &args.namespaces[..] {
        [] => vec![cluster.namespace.clone()],
        said => said.to_vec(),
    };
    let parts = OperatorParts {
        settings,
        metrics,
        model_configs: args.model_configs.clone(),
        turn: Arc::default(),
    };
    let identity = identity();
    let mut elections = Vec::new();
    for namespace in namespaces {
        let election = Elector::new(&cluster, &namespace, LEASE, &identity).start();
        let leading = election.leading();
        tasks.spawn(operate_namespace(cluster.clone(), namespace, parts.clone(), leading));
        elections.push(election);
    }
    readiness.set(true);
    let ended = tokio::select! {
        () = shutdown.wait() => Ok(()),
        // The tasks work until they are dropped.
        ended = tasks.join_next() => Err(anyhow::anyhow!("operating ended: {ended:?}")),
    };
    readiness.close();
    // A lease is given back only when nobody works under it.
    tasks.shutdown().await;
    for election in elections {
        Election::resign(election).await;
    }
    ended
}

/// Name of this replica among all: the pod's.
fn identity() -> String {
    std::env::var("POD_NAME").unwrap_or_else(|_| format!("{:016x}", rand::random::<u64>()))
}

fn place(args: &WebhookArgs, cluster: &Cluster) -> WebhookPlace {
    let (name, namespace) = (args.webhook_service.clone(), cluster.namespace.clone());
    match &args.webhook_host {
        Some(host) => WebhookPlace::Host(host.clone()),
        None => WebhookPlace::Service { name, namespace },
    }
}

/// Serves webhooks, and then leads the API server to them. Returns the tasks that do so.
async fn serve_webhooks(
    args: &WebhookArgs,
    place: WebhookPlace,
    cluster: &Cluster,
    settings: OperatorSettings,
    metrics: OperatorMetrics,
    ended: Shutdown,
) -> anyhow::Result<JoinSet<()>> {
    let mut tasks = JoinSet::new();
    let operator = own_name(cluster).await;
    let upkeep = WebhookSettings {
        place,
        name: args.webhook_service.clone(),
        namespace: cluster.namespace.clone(),
        certificates: args.webhook_certificates.clone(),
    };
    let (upkeep, tls, reload) = Upkeep::start(cluster.api.clone(), upkeep).await?;
    let listen = SocketAddr::from(([0, 0, 0, 0], args.webhook_port));
    let tcp = TcpListener::bind(listen).await;
    let tcp = tcp.with_context(|| format!("cannot listen on {listen}"))?;
    let port = tcp.local_addr()?.port();
    let listener = Listener::tls(tcp, tls);
    let app = app(settings, operator, metrics);
    let task = admin::serve_app(listener, app, ended.clone());
    tasks.spawn(async move { drop(task.await) });
    if let Some(reload) = reload {
        tasks.spawn(reload.run(ended));
    }
    upkeep.lead(port).await?;
    tracing::info!(port, "webhooks are served");
    tasks.spawn(upkeep.run(port));
    Ok(tasks)
}

/// Name of the operator at the API server; empty where that does not tell.
async fn own_name(cluster: &Cluster) -> String {
    let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview" });
    let body = review.to_string().into_bytes();
    let answer = cluster.api.call(Method::POST, &OWN_NAME.path(None), body).await;
    let answer = answer.ok().and_then(|answer| serde_json::from_slice::<Value>(&answer).ok());
    let name =
        answer.and_then(|of| of["status"]["userInfo"]["username"].as_str().map(str::to_owned));
    name.unwrap_or_default()
}

/// Checks that the kinds are there, without a look at their definitions.
async fn check_kinds(cluster: &Cluster) -> anyhow::Result<()> {
    let path = format!("/apis/{}/{}", store::GRAPHS.group, store::GRAPHS.version);
    let answer = match cluster.api.call(Method::GET, &path, Vec::new()).await {
        Err(ApiError::Absent(_)) => Value::Null,
        answer => serde_json::from_slice(&answer.context(GRAPHS)?)?,
    };
    let mut kinds = answer["resources"].as_array().into_iter().flatten();
    if kinds.any(|kind| kind["name"] == store::GRAPHS.plural) {
        return Ok(());
    }
    bail!("{MISSING}")
}

/// Checks that the kinds are there, and nobody else's.
async fn check_definitions(cluster: &Cluster, place: &WebhookPlace) -> anyhow::Result<()> {
    let path = format!("{}/{GRAPHS}", DEFINITIONS.path(None));
    let answer = match cluster.api.call(Method::GET, &path, Vec::new()).await {
        Ok(answer) => answer,
        Err(ApiError::Absent(_)) => bail!("{MISSING}"),
        // One that may read only its namespace asks what everybody may know: which kinds there are.
        Err(ApiError::Refused { status: 403, .. }) => return check_kinds(cluster).await,
        Err(error) => return Err(error).context(GRAPHS),
    };
    let definition: Value = serde_json::from_slice(&answer)?;
    if let ConversionOwner::Stranger(whose) = place.owner(&definition) {
        bail!("{GRAPHS} belongs to the operator behind the webhook {whose}: nothing is touched");
    }
    Ok(())
}
