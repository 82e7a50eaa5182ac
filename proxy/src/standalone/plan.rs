//! The plan of a request: how its prompts run on the fleet.

use stator_api::steering::Steering;
use stator_placement::Label;
use stator_protos::worker::Sampling;
use stator_queue::FlowId;
use std::sync::Arc;

/// The parameters that all prompts of a request have in common.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Completions of each prompt.
    pub choices: u32,
    pub sampling: Sampling,
    /// The salt of its prefix space.
    pub cache_salt: Option<String>,
    /// The LoRA adapter that it is for.
    pub adapter: Option<String>,
    pub request_id: String,
    pub traceparent: Option<String>,
    pub tracestate: Option<String>,
    /// The field that gives the answer a form, if one does.
    pub guided: Option<&'static str>,
    /// Most moves of a prompt to another worker.
    pub migration_limit: u32,
    /// Flow whose turn it takes in the queue.
    pub flow: FlowId,
    /// The session that it belongs to.
    pub session: Option<u64>,
    /// Time for which the prompts are to stay cached, in seconds; 0 for no wish.
    pub pin_seconds: u32,
    /// The request's wishes for its worker, and its priority.
    pub steering: Steering,
}

impl Plan {
    /// Wants a worker that has a label. Some agents of a fleet may be of a version that cannot do all
    /// that others do.
    pub(crate) fn require(&mut self, label: &str) {
        let needs = self.steering.needs.as_deref().cloned().unwrap_or_default();
        self.steering.needs = Some(Arc::new(needs.and(Label::new(label))));
        self.steering.labels.push(label.to_owned());
    }
}
