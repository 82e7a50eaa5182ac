//! Client streams, as a driver sees them.

use crate::request_plane::outbox::Outbox;
use stator_protos::worker;
use std::sync::Arc;

/// A client stream with requests here, and what the present step has for it.
pub(super) struct Stream {
    pub(super) outbox: Arc<Outbox>,
    pub(super) live: usize,
    pub(super) outputs: Vec<worker::Output>,
    pub(super) ended: Vec<u64>,
}

impl Stream {
    pub(super) fn new(outbox: Arc<Outbox>) -> Self {
        Self { outbox, live: 0, outputs: Vec::new(), ended: Vec::new() }
    }

    /// Notes, before something is added for it, that the stream has something to send.
    pub(super) fn touch(&mut self, touched: &mut Vec<u64>, id: u64) {
        if self.outputs.is_empty() && self.ended.is_empty() {
            touched.push(id);
        }
    }
}
