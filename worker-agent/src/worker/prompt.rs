//! The prompt of a request: pinned, found at other agents, or computed by one.

use super::Driver;
use crate::request_plane::metadata::{PrefillWorker, RequestMetadata};
use stator_engine::Request;
use stator_engine::named::NamedBlocks;

impl Driver {
    /// Pins the blocks of a prompt, if its client wishes it. Returns the tokens that are pinned.
    pub(super) fn pin(&mut self, request: &mut Request, metadata: &RequestMetadata) -> Option<u32> {
        let time = metadata.pin?;
        let outcome = match &self.tiers {
            Some(tiers) => tiers.pin(&mut self.engine, request, time),
            None => {
                let now = self.origin.elapsed();
                let pinned = self.engine.call(|engine| engine.kv().pin(request, time, now));
                pinned.unwrap_or_default()
            }
        };
        self.end_if_failed();
        self.metrics.pins(outcome);
        let block_size = request.named.as_ref().map_or(0, NamedBlocks::block_size);
        Some((outcome.pinned * block_size) as u32)
    }

    /// Tells the tiers which agents hold a prompt that is computed here.
    pub(super) fn hint(&mut self, request: &mut Request, metadata: &RequestMetadata) {
        if let Some(tiers) = &self.tiers {
            tiers.hint(&mut self.engine, request, &metadata.kv_holders);
            self.end_if_failed();
        }
    }

    /// Has a prompt computed elsewhere, or here where its KV there is of no use.
    pub(super) fn fetch_prompt(
        &mut self,
        request: Request,
        metadata: &RequestMetadata,
        peer: PrefillWorker,
    ) {
        let key = request.key;
        let here = self.fetches.begin(&mut self.engine, request, metadata, peer);
        self.end_if_failed();
        match here {
            Some(mut request) => {
                self.hint(&mut request, metadata);
                self.run_request(request);
            }
            None => self.enter(key, "transfer"),
        }
    }
}
