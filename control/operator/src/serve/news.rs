//! News from the watches of a namespace, and what they make known.

use serde_json::Value;
use stator_kube::Report;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;

/// Reports that may wait; the watches are held up beyond them.
pub(super) const REPORTS_MAX: usize = 256;
/// Time after which all is looked at again without news.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// Waits for news, for `pause` at most, and returns all that came; `None` once nobody can send any.
pub(super) async fn await_news<T>(news: &mut Receiver<T>, pause: Duration) -> Option<Vec<T>> {
    let mut all = Vec::new();
    match timeout(pause, news.recv_many(&mut all, REPORTS_MAX)).await {
        Ok(0) => None,
        Ok(_) | Err(_) => Some(all),
    }
}

/// Brings documents, by their names, up to date with a report.
pub(super) fn keep(documents: &mut BTreeMap<String, Value>, report: Report<Value>) {
    match report {
        Report::Listed(all) => *documents = all,
        Report::Set(name, Some(document)) => drop(documents.insert(name, document)),
        Report::Set(name, None) => drop(documents.remove(&name)),
        // The watches say so in the log; what is known still holds.
        Report::Lost | Report::Found => {}
    }
}
