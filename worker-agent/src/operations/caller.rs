//! The side of `stator operate` that speaks to an agent.

use super::access::HEADER;
use anyhow::Context;
use stator_protos::discovery::AgentRecord;
use stator_protos::worker::operate_request::Operation as WireOperation;
use stator_protos::worker::operations_client::OperationsClient;
use stator_protos::worker::worker_client::WorkerClient;
use stator_protos::worker::{DescribeRequest, OperateRequest};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Request, Status};

/// Most bytes of a model's files.
const MODEL_BYTES_MAX: usize = 256 << 20;

/// A connection to an agent, and what shows that this operator may operate it.
pub(super) struct Caller {
    pub(super) channel: Channel,
    pub(super) token: Option<MetadataValue<Ascii>>,
}

impl Caller {
    /// A request that shows the secret.
    pub(super) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert(HEADER, token.clone());
        }
        request
    }

    /// The agent's service for operators.
    pub(super) fn operations(&self) -> OperationsClient<Channel> {
        OperationsClient::new(self.channel.clone())
    }

    /// The agent's service for proxies, which tells of its model.
    pub(super) fn worker(&self) -> WorkerClient<Channel> {
        WorkerClient::new(self.channel.clone()).max_decoding_message_size(MODEL_BYTES_MAX)
    }

    /// The agent's record.
    ///
    /// # Errors
    ///
    /// The agent does not answer, or not as an agent does.
    pub(super) async fn record(&self) -> anyhow::Result<AgentRecord> {
        let described = self.worker().describe(self.request(DescribeRequest {})).await;
        let refused = |status: Status| anyhow::anyhow!("{}", status.message());
        let mut described = described.map_err(refused)?.into_inner();
        let first = described.message().await.map_err(refused)?;
        let record = first.context("the agent says nothing of itself")?.record_json;
        serde_json::from_str(&record).context("the agent's record")
    }

    /// Has the agent's engine do something.
    ///
    /// # Errors
    ///
    /// The agent refuses, or its engine does not do it.
    pub(super) async fn operate(&self, operation: WireOperation) -> anyhow::Result<()> {
        let request = self.request(OperateRequest { operation: Some(operation) });
        let asked = self.operations().operate(request).await;
        asked.map(drop).map_err(|status| anyhow::anyhow!("{}", status.message()))
    }
}
