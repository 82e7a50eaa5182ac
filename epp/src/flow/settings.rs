//! From what a configuration says of flow control to the settings of the queues.

use stator_epp_config::{Band, FlowControl};
use stator_epp_plugins::settings::{Fairness, Ordering, ProgramAware, TurnPriority, UsageLimit};
use stator_queue::{
    BandPolicy, BandSettings, Bounds, Ceilings, CheckedSettings, InvalidSettings, QueueSettings,
};
use std::time::Duration;

/// The longest wait there is: where a configuration sets no limit, the client's patience does.
const LONGEST: Duration = Duration::from_secs(86_400);

/// The settings of a pool's queues.
///
/// # Errors
///
/// [`InvalidSettings`] for more bands than there can be.
pub(super) fn queues(flow: &FlowControl) -> Result<CheckedSettings, InvalidSettings> {
    let bands: Vec<_> = flow
        .bands
        .iter()
        .map(|band| BandSettings { priority: band.priority, policy: policy(band) })
        .collect();
    CheckedSettings::new(QueueSettings {
        bands_max: 32.max(bands.len() as u32 + 8).min(64),
        bands,
        default_band: policy(&flow.default_band),
        default_negative_band: policy(&flow.default_negative_band),
        total: bounds(flow.max_requests, flow.max_bytes, flow.max_tokens),
        ttl_max: LONGEST,
        // What cannot be placed now says so for all: the pool is full, or too full for the band.
        ..QueueSettings::default()
    })
}

/// The band of a priority.
pub(super) fn band(flow: &FlowControl, priority: i32) -> &Band {
    let listed = flow.bands.iter().find(|band| band.priority == priority);
    let template = if priority < 0 { &flow.default_negative_band } else { &flow.default_band };
    listed.unwrap_or(template)
}

/// Saturation of the pool up to which each band dispatches.
///
/// # Errors
///
/// [`InvalidSettings`] for limits that cannot be.
pub(super) fn ceilings(flow: &FlowControl) -> Result<Ceilings, InvalidSettings> {
    Ceilings::new(match flow.usage_limit {
        UsageLimit::Static { threshold } => stator_queue::UsageLimit::Static { threshold },
        UsageLimit::PriorityHoldback { by_value, min, max, .. } => {
            stator_queue::UsageLimit::PriorityHoldback { by_value, min, max }
        }
        UsageLimit::SoftReflective => stator_queue::UsageLimit::SoftReflective,
    })
}

fn policy(band: &Band) -> BandPolicy {
    BandPolicy {
        bounds: bounds(Some(band.max_requests), Some(band.max_bytes), band.max_tokens),
        // A request without a limit waits as long as its client; the queue wants a number.
        ttl: band.ttl.unwrap_or(LONGEST).clamp(Duration::from_millis(1), LONGEST),
        fairness: match band.fairness {
            Fairness::GlobalStrict => stator_queue::Fairness::GlobalStrict,
            Fairness::RoundRobin => stator_queue::Fairness::RoundRobin,
            Fairness::ProgramAware(ProgramAware {
                service_weight,
                head_wait_weight,
                half_life,
                idle_ttl: idle,
            }) => stator_queue::Fairness::Las {
                service_weight: thousandths(service_weight),
                wait_weight: thousandths(head_wait_weight),
                half_life,
                idle,
            },
            Fairness::TurnPriority(TurnPriority {
                turns_per_second,
                inactivity,
                idle_ttl: idle,
            }) => stator_queue::Fairness::TurnPriority {
                wait_weight: thousandths(turns_per_second),
                inactivity,
                idle,
            },
            Fairness::DeficitRoundRobin { quantum_tokens } => {
                stator_queue::Fairness::Drr { quantum_tokens }
            }
            Fairness::VirtualTokens { input_weight, output_weight } => {
                stator_queue::Fairness::Vtc { input_weight, output_weight }
            }
        },
        ordering: match band.ordering {
            Ordering::FirstCome => stator_queue::Ordering::Fcfs,
            Ordering::EarliestDeadline => stator_queue::Ordering::Deadline,
            Ordering::SloDeadline => stator_queue::Ordering::SloDeadline,
            Ordering::ShortestPrompt { ageing_tokens_per_s } => {
                stator_queue::Ordering::ShortestPrompt { ageing_tokens_per_s }
            }
        },
    }
}

fn thousandths(weight: f64) -> u32 {
    (weight * 1e3).round() as u32
}

/// Bounds; no more requests than the queues can be set to hold.
fn bounds(requests: Option<u64>, bytes: Option<u64>, tokens: Option<u64>) -> Bounds {
    let most = Bounds::MAX;
    let requests = requests.map_or(most.requests, |requests| {
        u32::try_from(requests).unwrap_or(most.requests).clamp(1, most.requests)
    });
    Bounds { requests, bytes, tokens }
}
