//! An answer of etcd gives records of the agents that its keys name, or what is wrong with them.

use stator_discovery::fuzz::etcd_range;

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    for (agent, record) in etcd_range(input) {
        if let Ok(record) = record {
            assert_eq!(record.agent_id, agent);
        }
    }
}
