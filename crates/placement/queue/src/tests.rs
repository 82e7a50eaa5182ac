//! The queue against its obvious model, and what it promises.

mod agreement;
mod behaviour;
mod endurance;
mod fair;
mod model;

use crate::{BandPolicy, BandSettings, Entry, FlowId, QueueSettings, Queues, Settings};
use std::time::Duration;

/// A queue with one band of priority 0, of this policy.
fn queues(policy: BandPolicy) -> Queues<u32> {
    queues_of(QueueSettings {
        bands: vec![BandSettings { priority: 0, policy }],
        ..QueueSettings::default()
    })
}

fn queues_of(settings: QueueSettings) -> Queues<u32> {
    Queues::new(Settings::new(settings).expect("the settings are valid"))
}

fn entry(flow: u64, tokens: u32, payload: u32) -> Entry<u32> {
    Entry { flow: FlowId(flow), tokens, payload, ..Entry::default() }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
