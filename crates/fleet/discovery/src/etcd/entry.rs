//! An agent's key, which lasts as long as the agent renews its lease.

use super::client::{EtcdClient, Lease};
use super::directory;
use crate::record::decode_unleased;
use crate::source::EtcdSource;
use crate::{DiscoveryError, Registry};
use stator_protos::discovery::AgentRecord;
use std::time::Duration;

/// Largest record: members take requests of 1.5 MiB.
const VALUE_BYTES_MAX: usize = 1 << 20;

/// One agent's key.
pub(crate) struct EtcdEntry {
    client: EtcdClient,
    directory: String,
    length: Duration,
    lease: Option<Lease>,
    published: Option<(String, Vec<u8>)>,
}

impl EtcdEntry {
    pub(crate) async fn open(
        source: &EtcdSource,
        length: Duration,
    ) -> Result<Self, DiscoveryError> {
        let client = EtcdClient::open(source).await?;
        Ok(Self { client, directory: directory(source), length, lease: None, published: None })
    }

    /// Sets the key under the present lease, or under a new one where there is none.
    async fn put(&mut self) -> Result<(), DiscoveryError> {
        let Some((key, value)) = &self.published else { return Ok(()) };
        if let Some(lease) = self.lease
            && self.client.put(key, value.clone(), lease).await?
        {
            return Ok(());
        }
        self.lease = None;
        let lease = self.client.grant(self.length).await?;
        self.lease = Some(lease);
        if self.client.put(key, value.clone(), lease).await? {
            return Ok(());
        }
        Err(DiscoveryError::Refused("etcd: a new lease is gone already".into()))
    }
}

#[async_trait::async_trait]
impl Registry for EtcdEntry {
    async fn previous(&mut self, agent_id: &str) -> Result<Option<AgentRecord>, DiscoveryError> {
        let value = self.client.value(&format!("{}{agent_id}", self.directory)).await?;
        Ok(value.and_then(|value| decode_unleased(&value, agent_id).ok()))
    }

    async fn publish(&mut self, record: &AgentRecord) -> Result<(), DiscoveryError> {
        let value = serde_json::to_vec(record)
            .map_err(|error| DiscoveryError::Refused(format!("the record: {error}")))?;
        if value.len() > VALUE_BYTES_MAX {
            let fault = format!("the record: {} bytes, limit {VALUE_BYTES_MAX}", value.len());
            return Err(DiscoveryError::Refused(fault));
        }
        self.published = Some((format!("{}{}", self.directory, record.agent_id), value));
        self.put().await
    }

    async fn renew(&mut self) -> Result<(), DiscoveryError> {
        if let Some(lease) = self.lease
            && self.client.keep(lease).await?
        {
            return Ok(());
        }
        self.lease = None;
        self.put().await
    }

    async fn withdraw(&mut self) -> Result<(), DiscoveryError> {
        self.published = None;
        match self.lease.take() {
            Some(lease) => self.client.revoke(lease).await,
            None => Ok(()),
        }
    }
}
