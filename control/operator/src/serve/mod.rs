//! The operator at work in a cluster: it follows documents and their objects, and takes the steps of
//! [`crate::plan`].

mod namespace;
mod request;
mod store;

use crate::args::ServeArgs;
use crate::objects::OperatorSettings;
use anyhow::{Context, bail};
use namespace::NamespaceOperator;
use parking_lot::Mutex;
use request::RequestOperator;
use stator_kube::{ApiError, Cluster};
use stator_runtime::Shutdown;
use std::sync::Arc;
use store::{DEFINITIONS, ObjectStore};
use tokio::task::JoinSet;

/// Definition that says whose the kinds are.
const GRAPHS: &str = "dynamographdeployments.nvidia.com";

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
    check_definitions(&cluster).await?;
    let namespaces = match &args.namespaces[..] {
        [] => vec![cluster.namespace.clone()],
        said => said.to_vec(),
    };
    let mut tasks = JoinSet::new();
    let turn = Arc::new(Mutex::new(()));
    for namespace in namespaces {
        tracing::info!(namespace, "operating");
        let store = ObjectStore::new(cluster.api.clone(), namespace);
        let (configs, turn) = (args.model_configs.clone(), turn.clone());
        let requests =
            RequestOperator::new(&cluster, store.clone(), settings.clone(), configs, turn);
        tasks.spawn(requests.run());
        tasks.spawn(NamespaceOperator::new(&cluster, store, settings.clone()).run());
    }
    tokio::select! {
        () = shutdown.wait() => Ok(()),
        // The tasks work until they are dropped.
        ended = tasks.join_next() => bail!("operating ended: {ended:?}"),
    }
}

/// Checks that the kinds are there, and nobody else's.
async fn check_definitions(cluster: &Cluster) -> anyhow::Result<()> {
    let path = format!("{}/{GRAPHS}", DEFINITIONS.path(None));
    let answer = match cluster.api.call(http::Method::GET, &path, Vec::new()).await {
        Ok(answer) => answer,
        Err(ApiError::Absent(_)) => {
            bail!("the cluster has no {GRAPHS}: apply what `stator operator crds` prints")
        }
        Err(ApiError::Refused { status: 403, message }) => {
            tracing::warn!(message, "cannot see whose the definitions are");
            return Ok(());
        }
        Err(error) => return Err(error).context(GRAPHS),
    };
    let definition: serde_json::Value = serde_json::from_slice(&answer)?;
    let conversion = &definition["spec"]["conversion"];
    if conversion["strategy"] == "Webhook" {
        let service = &conversion["webhook"]["clientConfig"]["service"];
        bail!("{GRAPHS} belongs to the operator behind the webhook {service}: nothing is touched");
    }
    Ok(())
}
