//! Filters drop endpoints.

pub(crate) mod affinity;
pub(crate) mod detectors;
pub(crate) mod headroom;
pub(crate) mod labels;
pub(crate) mod roles;
pub(crate) mod rollout;
pub(crate) mod testing;
pub(crate) mod utilization;

use stator_epp_scheduler::Candidate;
use stator_epp_scheduler::plugin::{Filter, PluginParts};
use std::sync::Arc;

/// A plug-in that is a filter and nothing else.
pub(crate) fn filter(filter: impl Filter + 'static) -> PluginParts {
    PluginParts { filter: Some(Arc::new(filter)), ..PluginParts::default() }
}

/// Keeps candidates for which `keep` holds; all of them if it holds for none.
pub(crate) fn prefer(
    candidates: &mut Vec<&Candidate<'_>>,
    mut keep: impl FnMut(&Candidate<'_>) -> bool,
) {
    let kept: Vec<_> = candidates.iter().copied().map(&mut keep).collect();
    retain(candidates, &kept, true);
}

/// Keeps candidates that are marked; where none is, all of them if `or_all`.
pub(crate) fn retain(candidates: &mut Vec<&Candidate<'_>>, kept: &[bool], or_all: bool) {
    if or_all && !kept.contains(&true) {
        return;
    }
    let mut kept = kept.iter();
    candidates.retain(|_| kept.next().is_some_and(|kept| *kept));
}
