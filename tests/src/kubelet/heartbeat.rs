//! The sign of life of a node: a lease that it renews.

use super::MANAGER;
use serde_json::json;
use stator_kube::meta::timestamp;
use stator_kube::{Api, LEASES};
use std::time::{Duration, SystemTime};
use tokio::time::{MissedTickBehavior, interval};

/// Namespace of the leases of nodes.
const NAMESPACE: &str = "kube-node-lease";
/// Pause between two renewals.
const PERIOD: Duration = Duration::from_secs(1);
/// Time for which a renewal holds, in seconds. The cluster goes by a limit of its own.
const LEASE_SECONDS: u32 = 15;

/// Renews the lease of a node until dropped. A renewal that fails is made up for by the next.
pub(super) async fn beat(api: Api, node: String) {
    let path = LEASES.path_of(NAMESPACE, &node);
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // Leases have microseconds.
        let now = timestamp(SystemTime::now()).replace('Z', ".000000Z");
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": { "name": node },
            "spec": { "holderIdentity": node, "leaseDurationSeconds": LEASE_SECONDS,
                "renewTime": now },
        });
        if let Err(error) = api.apply(&path, MANAGER, lease.to_string().into()).await {
            eprintln!("{path}: {error}");
        }
    }
}
