//! Spans of requests on stock engines, and the trace context sent to engines.

use crate::kv::tiers::TierUse;
use crate::request_plane::metadata::RequestMetadata;
use crate::request_plane::trace;
use stator_dialect::Trace;
use stator_engine::Request;
use stator_runtime::trace::{Stages, parent_from};

/// A request's span, from its beginning until this is dropped.
#[derive(Debug)]
pub(super) struct TracedRequest {
    stages: Stages,
    /// The trace context that came with the request, where it is valid.
    given: Option<Trace>,
}

impl TracedRequest {
    /// Begins the span, a child of the one that came with the request. Costs next to nothing where
    /// traces are off.
    pub(super) fn begin(name: &'static str, request: &Request, metadata: &RequestMetadata) -> Self {
        let RequestMetadata { traceparent, tracestate, .. } = metadata;
        let state = Some(tracestate).filter(|state| !state.is_empty());
        let parent = parent_from(traceparent, state.map(String::as_str));
        let given = parent.map(|_| Trace { parent: traceparent.clone(), state: state.cloned() });
        Self { stages: trace::request(name, request, metadata), given }
    }

    /// Whether anybody gets the span.
    pub(super) fn is_sampled(&self) -> bool {
        self.stages.is_sampled()
    }

    /// Begins a stage.
    pub(super) fn enter(&self, stage: &'static str) {
        self.stages.enter(stage);
    }

    /// Tells in the stage what the request got from the tiers, if that is known.
    pub(super) fn tell_tiers(&self, used: Option<TierUse>) {
        if let Some(used) = used {
            self.stages.event("kv tiers", used.attributes());
        }
    }

    /// The trace context for an engine: the span here where traces are kept, else what came.
    pub(super) fn told(&self) -> Option<Trace> {
        match self.stages.headers() {
            Some((parent, state)) => Some(Trace { parent, state }),
            None => self.given.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stator_engine::{AnswerRules, RequestKey};
    use stator_protos::worker::Sampling;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn check(traceparent: &str, tracestate: &str) -> Option<Trace> {
        let metadata = RequestMetadata {
            traceparent: traceparent.into(),
            tracestate: tracestate.into(),
            ..RequestMetadata::default()
        };
        let request = Request {
            key: RequestKey(1),
            tokens: vec![1],
            resumed: 0,
            first_choice: 0,
            choices: 1,
            sampling: Sampling::neutral().into(),
            cache_salt: None,
            named: None,
            rules: AnswerRules::default(),
        };
        TracedRequest::begin("worker.generate", &request, &metadata).told()
    }

    #[test]
    fn without_traces_what_came_is_told_if_it_is_valid() {
        let trace = |state: Option<&str>| {
            Some(Trace { parent: PARENT.into(), state: state.map(str::to_owned) })
        };
        assert_eq!(check(PARENT, ""), trace(None));
        assert_eq!(check(PARENT, "vendor=a"), trace(Some("vendor=a")));
        assert_eq!(check("", "vendor=a"), None);
        assert_eq!(check("00-nothing", ""), None);
    }
}
