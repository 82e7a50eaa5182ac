//! A static list: a file that names the request planes of agents.
//!
//! ```yaml
//! agents:
//!   - http://10.0.0.1:7000
//!   - unix:///run/agent.sock
//! ```
//!
//! The agents themselves tell their records, as they change. One that is silent is believed to be
//! as it last was: only a line that is gone takes an agent away.

use crate::look::{FileStamp, interval, stamp};
use crate::record::{AGENTS_MAX, RECORD_BYTES_MAX, decode_unleased};
use crate::roster::{Absence, RecordResult, Sight, Sighting};
use crate::{DiscoveryError, Registry, Watch};
use serde::Deserialize;
use stator_protos::discovery::AgentRecord;
use stator_protos::worker::DescribeRequest;
use stator_protos::worker::worker_client::WorkerClient;
use stator_runtime::dial::{Dial, DialTarget};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Interval, timeout};
use tonic::transport::Endpoint;

/// Largest file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Interval of questions to a silent agent.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Longest wait for its answer.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval of probes of a silent connection, and longest time of a probe.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// Answers that may wait to be looked at.
const ANSWERS_MAX: usize = 256;

/// An agent in a static list is known by it: there is nothing to register.
pub(crate) struct Nowhere;

#[async_trait::async_trait]
impl Registry for Nowhere {
    async fn previous(&mut self, _: &str) -> Result<Option<AgentRecord>, DiscoveryError> {
        Ok(None)
    }

    async fn publish(&mut self, _: &AgentRecord) -> Result<(), DiscoveryError> {
        Ok(())
    }

    async fn renew(&mut self) -> Result<(), DiscoveryError> {
        Ok(())
    }

    async fn withdraw(&mut self) -> Result<(), DiscoveryError> {
        Ok(())
    }
}

/// Follows the file and asks who is in it.
pub(crate) struct ListWatcher {
    path: PathBuf,
    poll: Interval,
    dial: Dial,
    /// The file that was read last, and whether it could be.
    read: Option<(FileStamp, bool)>,
    agents: BTreeMap<String, ListedAgent>,
    answers: (mpsc::Sender<Answer>, mpsc::Receiver<Answer>),
    askers: JoinSet<()>,
    sight: Sight,
}

/// An agent of the list.
struct ListedAgent {
    asker: AbortHandle,
    /// Its name and what it last said, once it has.
    read: Option<(String, RecordResult)>,
}

/// Answer of an endpoint: the endpoint, the agent's name, and its record.
type Answer = (String, String, RecordResult);

impl ListWatcher {
    pub(crate) fn new(path: PathBuf, poll: Duration, dial: Dial) -> Self {
        Self {
            path,
            dial,
            poll: interval(poll),
            read: None,
            agents: BTreeMap::new(),
            answers: mpsc::channel(ANSWERS_MAX),
            askers: JoinSet::new(),
            sight: Sight::default(),
        }
    }

    /// Reads the file where it has changed. One that cannot be read changes nothing.
    async fn look(&mut self) {
        let found = match tokio::fs::metadata(&self.path).await {
            Ok(metadata) => stamp(&metadata),
            Err(error) => return self.lost(FileStamp::default(), &error.to_string()),
        };
        if self.read.is_some_and(|(known, _)| known == found) {
            return;
        }
        match list(&self.path).await {
            Ok(endpoints) => {
                self.read = Some((found, true));
                self.ask(endpoints);
            }
            Err(fault) => self.lost(found, &fault),
        }
    }

    fn lost(&mut self, found: FileStamp, fault: &str) {
        if self.read != Some((found, false)) {
            let path = self.path.display();
            tracing::warn!(%path, fault, "cannot read the list of agents, keeping what is known");
        }
        self.read = Some((found, false));
    }

    fn ask(&mut self, endpoints: BTreeSet<String>) {
        self.agents.retain(|endpoint, listed| {
            let stays = endpoints.contains(endpoint);
            if !stays {
                listed.asker.abort();
            }
            stays
        });
        for endpoint in endpoints {
            let Self { askers, answers, dial, .. } = self;
            let target = match dial.target(&endpoint) {
                Ok(target) => target,
                Err(error) => {
                    tracing::warn!(%error, "a listed agent cannot be reached");
                    continue;
                }
            };
            let asker =
                |endpoint: &String| askers.spawn(ask(endpoint.clone(), target, answers.0.clone()));
            self.agents
                .entry(endpoint)
                .or_insert_with_key(|endpoint| ListedAgent { asker: asker(endpoint), read: None });
        }
        // Those that were aborted need no owner any more.
        while self.askers.try_join_next().is_some() {}
    }

    fn answered(&mut self, (endpoint, agent, read): Answer) {
        if let Some(listed) = self.agents.get_mut(&endpoint) {
            listed.read = Some((agent, read));
        }
    }
}

#[async_trait::async_trait]
impl Watch for ListWatcher {
    async fn next(&mut self) -> Sighting {
        tokio::select! {
            _ = self.poll.tick() => self.look().await,
            Some(answer) = self.answers.1.recv() => self.answered(answer),
        }
        while let Ok(answer) = self.answers.1.try_recv() {
            self.answered(answer);
        }
        let reads = self.agents.values().filter_map(|listed| listed.read.as_ref());
        let seen = self.sight.of(reads.map(|(agent, read)| (agent.as_str(), read)));
        let pending = self.agents.values().any(|listed| listed.read.is_none());
        let stale = !self.read.is_some_and(|(_, is_read)| is_read);
        Sighting { stale, pending, absence: Absence::Departure, ..seen }
    }
}

/// The endpoints in the file.
async fn list(path: &PathBuf) -> Result<BTreeSet<String>, String> {
    let size = tokio::fs::metadata(path).await.map_err(|error| error.to_string())?.len();
    if size > FILE_BYTES_MAX {
        return Err(format!("{size} bytes, limit {FILE_BYTES_MAX}"));
    }
    let text = tokio::fs::read_to_string(path).await.map_err(|error| error.to_string())?;
    decode(&text)
}

fn decode(text: &str) -> Result<BTreeSet<String>, String> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        agents: Vec<String>,
    }
    let file: File = stator_runtime::yaml::from_str(text)?;
    if file.agents.len() > AGENTS_MAX {
        return Err(format!("agents: {} entries, limit {AGENTS_MAX}", file.agents.len()));
    }
    for endpoint in &file.agents {
        let kinds = ["http://", "https://", "unix:///"];
        let known = kinds.iter().any(|kind| endpoint.starts_with(kind));
        if !known || Endpoint::from_shared(endpoint.clone()).is_err() {
            return Err(format!(
                "agents: {endpoint:?} is neither http(s)://host:port nor unix:///path"
            ));
        }
    }
    Ok(file.agents.into_iter().collect())
}

/// Follows an agent's record until nobody listens, and passes changes on.
async fn ask(endpoint: String, target: DialTarget, answers: mpsc::Sender<Answer>) {
    let target = target.with(|target| {
        let probing = target.http2_keep_alive_interval(KEEPALIVE).keep_alive_timeout(KEEPALIVE);
        probing.keep_alive_while_idle(true).connect_timeout(ASK_TIMEOUT)
    });
    let channel = target.connect_lazy();
    let mut client = WorkerClient::new(channel).max_decoding_message_size(RECORD_BYTES_MAX);
    let mut every = interval(ASK_EVERY);
    let mut told = None;
    loop {
        every.tick().await;
        let Ok(Ok(answer)) = timeout(ASK_TIMEOUT, client.describe(DescribeRequest {})).await else {
            tracing::debug!(endpoint, "a listed agent does not say what it is");
            continue;
        };
        let mut descriptions = answer.into_inner();
        while let Ok(Some(said)) = descriptions.message().await {
            if told.as_ref() == Some(&said.record_json) {
                continue;
            }
            let record = decode_unleased(said.record_json.as_bytes(), &said.agent_id);
            // The list's address is the one that works from here.
            let record = record.map(|record| AgentRecord { endpoint: endpoint.clone(), ..record });
            let answer = (endpoint.clone(), said.agent_id, record.map(Arc::new));
            if answers.send(answer).await.is_err() {
                return;
            }
            told = Some(said.record_json);
        }
    }
}

#[cfg(test)]
mod tests;
