//! An agent's record in the custom resource of its pod.

use super::objects::{Pod, published, resource};
use super::{METADATA, connect};
use crate::record::RECORD_BYTES_MAX;
use crate::source::KubernetesSource;
use crate::{DiscoveryError, Registry};
use http::Method;
use stator_kube::{Api, ApiError};
use stator_protos::discovery::AgentRecord;
use std::time::Duration;
use tokio::time::Instant;

/// Environment variables that tell an agent its pod.
const POD_NAME: &str = "POD_NAME";
const POD_UID: &str = "POD_UID";
/// Interval at which the resource is applied without need, in case somebody has taken it away.
const REPAIR: Duration = Duration::from_secs(60);
/// Largest record: the API server takes objects of 1.5 MiB.
const TEXT_BYTES_MAX: usize = 1 << 20;
const _: () = assert!(TEXT_BYTES_MAX <= RECORD_BYTES_MAX);
/// Longest name of who sets fields that the API server takes.
const MANAGER_BYTES_MAX: usize = 128;

/// One agent's part of its pod's resource.
pub(crate) struct KubernetesEntry {
    api: Api,
    namespace: String,
    pod: Pod,
    /// The record that the server has, or may have.
    published: Option<PublishedRecord>,
}

struct PublishedRecord {
    agent: String,
    text: String,
    at: Instant,
}

impl KubernetesEntry {
    pub(crate) async fn open(source: &KubernetesSource) -> Result<Self, DiscoveryError> {
        let told = |name: &str| {
            let value = std::env::var(name).ok().filter(|value| !value.is_empty());
            value.ok_or_else(|| {
                DiscoveryError::Unconfigured(format!(
                    "{name}: not set; an agent in Kubernetes learns its pod from there"
                ))
            })
        };
        let (name, uid) = match &source.pod {
            Some(pod) => pod.clone(),
            None => (told(POD_NAME)?, told(POD_UID)?),
        };
        let pod = Pod { name, uid };
        let (cluster, namespace) = connect(source).await?;
        Ok(Self::of(cluster.api, namespace, pod))
    }

    pub(super) fn of(api: Api, namespace: String, pod: Pod) -> Self {
        Self { api, namespace, pod, published: None }
    }

    async fn apply(&self, agent: &str, text: Option<&str>) -> Result<(), DiscoveryError> {
        let object = resource(&self.pod, text.map(|text| (agent, text.to_owned())));
        let path = METADATA.path_of(&self.namespace, &self.pod.name);
        self.api.apply(&path, &manager(agent), object).await?;
        Ok(())
    }
}

/// Field manager: every agent of a pod is another, so that none takes the others' fields away.
fn manager(agent: &str) -> String {
    let mut manager = format!("stator-agent.{agent}");
    manager.truncate(manager.floor_char_boundary(MANAGER_BYTES_MAX));
    manager
}

#[async_trait::async_trait]
impl Registry for KubernetesEntry {
    async fn previous(&mut self, agent_id: &str) -> Result<Option<AgentRecord>, DiscoveryError> {
        let path = METADATA.path_of(&self.namespace, &self.pod.name);
        let answer = match self.api.call(Method::GET, &path, Vec::new()).await {
            Err(ApiError::Absent(_)) => return Ok(None),
            answer => answer?,
        };
        let found = std::str::from_utf8(&answer).ok().and_then(|json| published(json).ok());
        let mut agents = found.flatten().unwrap_or_default().agents;
        let record = agents.remove(agent_id).and_then(Result::ok);
        Ok(record.map(|record| AgentRecord::clone(&record)))
    }

    async fn publish(&mut self, record: &AgentRecord) -> Result<(), DiscoveryError> {
        let text = serde_json::to_string(record)
            .map_err(|error| DiscoveryError::Refused(format!("the record: {error}")))?;
        if text.len() > TEXT_BYTES_MAX {
            let fault = format!("the record: {} bytes, limit {TEXT_BYTES_MAX}", text.len());
            return Err(DiscoveryError::Refused(fault));
        }
        let agent = record.agent_id.clone();
        // Before the attempt: a server that does not answer may have done as it was asked.
        let (named, told) = (agent.clone(), text.clone());
        self.published = Some(PublishedRecord { agent: named, text: told, at: Instant::now() });
        self.apply(&agent, Some(&text)).await
    }

    /// The pod's life is the lease.
    async fn renew(&mut self) -> Result<(), DiscoveryError> {
        let due = self.published.as_ref().filter(|published| published.at.elapsed() >= REPAIR);
        if let Some(PublishedRecord { agent, text, .. }) = due {
            self.apply(agent, Some(text)).await?;
            self.published.iter_mut().for_each(|published| published.at = Instant::now());
        }
        Ok(())
    }

    async fn withdraw(&mut self) -> Result<(), DiscoveryError> {
        let Some(published) = self.published.take() else { return Ok(()) };
        self.apply(&published.agent, None).await
    }
}

impl From<ApiError> for DiscoveryError {
    fn from(error: ApiError) -> Self {
        match error {
            ApiError::TimedOut(_) | ApiError::Unreachable(_) => {
                Self::Unreachable(error.to_string())
            }
            other => Self::Refused(other.to_string()),
        }
    }
}

#[cfg(test)]
mod entry_tests {
    use super::*;

    #[test]
    fn a_long_name_is_cut_to_what_the_server_takes() {
        assert_eq!(manager("a"), "stator-agent.a");
        assert_eq!(manager(&"é".repeat(99)).len(), 127);
    }
}
