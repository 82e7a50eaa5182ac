//! Producers find out about requests and endpoints, before and after requests are placed.

pub(crate) mod approximate;
pub(crate) mod burst;
pub(crate) mod latency;
pub(crate) mod multimodal;
pub(crate) mod p2p;

use stator_epp_scheduler::plugin::{Pick, Routing};

/// The profile whose pick computes the prompt where prompts are computed apart.
const PREFILL: &str = "prefill";

/// The pick that computes the prompt: the prefill profile's, or the one that answers.
fn computes<'r, 'a>(routing: &'r Routing<'a>, prefill: &str) -> &'r Pick<'a> {
    let apart = routing.others.iter().find(|(profile, _)| profile == prefill);
    apart.map_or(&routing.primary, |(_, pick)| pick)
}
