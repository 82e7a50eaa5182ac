//! Agents in etcd: one key for each, with a lease. The only place here that knows etcd.

mod client;
mod entry;
#[cfg(test)]
mod tests;
mod watcher;

pub(crate) use entry::Entry;
pub(crate) use watcher::Watcher;

use crate::source::EtcdSource;

/// The generated client.
#[allow(missing_docs, unreachable_pub, clippy::all)]
mod wire {
    tonic::include_proto!("etcdserverpb");
}

/// What the keys of agents begin with.
fn directory(source: &EtcdSource) -> String {
    format!("{}/agents/", source.prefix)
}
