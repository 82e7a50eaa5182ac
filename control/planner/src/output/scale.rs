//! Replicas of Kubernetes objects, through their `scale` subresource.

use super::object::ScaleObject;
use super::order::{GraphReplicas, OutputError};
use crate::replicas::Replicas;
use http::Method;
use serde_json::Value;
use stator_kube::{ApiError, Cluster};
use std::path::PathBuf;

/// Objects of a cluster.
pub(crate) struct Scaler {
    cluster: Cluster,
    namespace: String,
    objects: Vec<ScaleObject>,
}

/// The answer that an object's scale got instead.
fn fault(object: &ScaleObject, reason: impl ToString) -> OutputError {
    OutputError::Scale { object: object.title(), reason: reason.to_string() }
}

impl Scaler {
    pub(super) async fn connect(
        objects: Vec<ScaleObject>,
        namespace: Option<String>,
        kubeconfig: Option<PathBuf>,
    ) -> anyhow::Result<Self> {
        let cluster = Cluster::connect(kubeconfig.as_deref()).await?;
        let namespace = namespace.unwrap_or_else(|| cluster.namespace.clone());
        Ok(Self { cluster, namespace, objects })
    }

    pub(super) async fn read(&self, model: &str) -> Result<Replicas, OutputError> {
        let mut replicas = Replicas::default();
        for object in self.objects.iter().filter(|object| object.model == model) {
            let (_, count) = self.scale(object).await?;
            replicas.set(object.role, count);
        }
        Ok(replicas)
    }

    pub(super) async fn write(&self, wanted: &GraphReplicas) -> Result<(), OutputError> {
        for object in &self.objects {
            let Some(wanted) = wanted.get(&object.model).map(|of| of.of(object.role)) else {
                continue;
            };
            let (mut scale, count) = self.scale(object).await?;
            if count == wanted {
                continue;
            }
            scale["spec"]["replicas"] = wanted.into();
            let path = object.path(&self.namespace);
            match self.cluster.api.call(Method::PUT, &path, scale.to_string().into()).await {
                // Somebody else was first: the next tick reads what they want.
                Ok(_) | Err(ApiError::Conflict(_)) => {}
                Err(error) => return Err(fault(object, error)),
            }
        }
        Ok(())
    }

    /// The scale of an object, and its wanted replicas.
    async fn scale(&self, object: &ScaleObject) -> Result<(Value, u32), OutputError> {
        let path = object.path(&self.namespace);
        let answer = self.cluster.api.call(Method::GET, &path, Vec::new()).await;
        let answer = answer.map_err(|error| fault(object, error))?;
        let scale: Value = serde_json::from_slice(&answer).map_err(|error| fault(object, error))?;
        // An object at zero may leave the field out.
        let count = scale["spec"]["replicas"].as_u64().unwrap_or(0);
        let count = u32::try_from(count).map_err(|_| fault(object, "too many replicas"))?;
        Ok((scale, count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use stator_kube_testkit::{Mood, Server};

    const ADAPTERS: &str =
        "/apis/nvidia.com/v1alpha1/namespaces/n/dynamographdeploymentscalingadapters";

    fn scaler(server: &Server) -> Scaler {
        let objects = ["prefill=deployment/p", "decode=dgdsa/d"];
        let parse =
            |text: &&str| ScaleObject::parse(text, &["m".into()]).expect("it is well-formed");
        Scaler {
            cluster: server.cluster(),
            namespace: "n".into(),
            objects: objects.iter().map(parse).collect(),
        }
    }

    fn object(name: &str, replicas: u32) -> Value {
        json!({"metadata": {"name": name}, "spec": {"replicas": replicas}})
    }

    #[tokio::test]
    async fn replicas_of_both_roles_are_read_and_set() {
        let server = Server::start().await;
        server.put("/apis/apps/v1/namespaces/n/deployments", object("p", 1));
        server.put(ADAPTERS, object("d", 2));
        let scaler = scaler(&server);
        let had = Replicas { prefill: 1, decode: 2, aggregated: 0 };
        assert_eq!(scaler.read("m").await.expect("the server answers"), had);
        let wanted = Replicas { prefill: 1, decode: 5, aggregated: 0 };
        let all = GraphReplicas::from([("m".to_owned(), wanted)]);
        scaler.write(&all).await.expect("the server answers");
        assert_eq!(scaler.read("m").await.expect("the server answers"), wanted);
    }

    #[tokio::test]
    async fn a_server_that_fails_is_a_fault_with_the_objects_name() {
        let server = Server::start().await;
        server.put("/apis/apps/v1/namespaces/n/deployments", object("p", 1));
        server.mood(ADAPTERS, Mood::Failing);
        let fault = scaler(&server).read("m").await.expect_err("the server fails");
        let text = fault.to_string();
        assert!(text.contains("scalingadapters/d") && text.contains("503"), "{text}");
    }
}
