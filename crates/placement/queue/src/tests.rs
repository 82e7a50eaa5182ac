//! The queue against its obvious model, and what it promises.

mod agreement;
mod behaviour;
mod endurance;
mod fair;
mod model;

use crate::{BandPolicy, BandSettings, CheckedSettings, FlowId, QueueEntry, QueueSettings, Queues};
use std::time::Duration;

/// A queue with one band of priority 0, of this policy.
fn queues(policy: BandPolicy) -> Queues<u32> {
    queues_of(QueueSettings {
        bands: vec![BandSettings { priority: 0, policy }],
        ..QueueSettings::default()
    })
}

fn queues_of(settings: QueueSettings) -> Queues<u32> {
    Queues::new(CheckedSettings::new(settings).expect("the settings are valid"))
}

fn entry(flow: u64, tokens: u32, payload: u32) -> QueueEntry<u32> {
    QueueEntry { flow: FlowId(flow), tokens, payload, ..QueueEntry::default() }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
