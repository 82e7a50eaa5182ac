//! Agents in etcd: one key for each, with a lease. The only place here that knows etcd.

mod client;
mod entry;
#[cfg(test)]
mod tests;
mod watcher;

pub(crate) use entry::EtcdEntry;
pub(crate) use watcher::EtcdWatcher;

use crate::record::decode_unleased;
use crate::source::EtcdSource;
use prost::Message;
use stator_protos::discovery::AgentRecord;

/// The generated client.
#[allow(missing_docs, unreachable_pub, clippy::all)]
mod wire {
    tonic::include_proto!("etcdserverpb");
}

/// Reads an answer to a question for keys: the names of agents with what their keys hold. For fuzz
/// targets.
pub(crate) fn range(bytes: &[u8]) -> Vec<(String, Result<AgentRecord, String>)> {
    let answer = wire::RangeResponse::decode(bytes).unwrap_or_default();
    let named = answer.kvs.into_iter().filter_map(|entry| {
        let name = client::below("/stator/agents/", &entry.key)?;
        let record = decode_unleased(&entry.value, &name);
        Some((name, record))
    });
    named.collect()
}

/// Prefix of the keys of agents.
fn directory(source: &EtcdSource) -> String {
    format!("{}/agents/", source.prefix)
}
