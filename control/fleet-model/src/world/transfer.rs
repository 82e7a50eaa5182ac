//! KV on its way from the worker that computed a prompt to the one that answers.

use super::World;
use super::flight::HandOver;
use crate::policy::{WorkerNews, WorkerNumber};
use crate::time::{Ps, from_seconds};

impl World<'_> {
    /// The prompt is computed: what the worker that answers lacks of its KV goes there.
    pub(super) fn hand_over(&mut self, request: u32) {
        let flight = &self.flights[request as usize];
        let (Some(prefill), Some(main)) = (flight.prefill, flight.main) else { return };
        let tokens = self.tokens(request);
        let mut ids = std::mem::take(&mut self.scratch.blocks);
        self.workload.blocks(request, &mut ids);
        let block_size = self.settings.limits.block_size;
        ids.truncate((tokens / block_size) as usize);
        let held = self.life(&main).map_or(0, |at| at.engine.pool().lookup(&ids).blocks);
        self.scratch.blocks = ids;
        let lacking = tokens - held * block_size;
        let took = self.send(prefill.worker, main.worker, lacking);
        let (from, blocks) = (prefill.worker, lacking / block_size);
        self.flights[request as usize].hand_over = Some(HandOver { from, blocks, took });
        self.start_main(request, Some(took));
    }

    /// The answer began: the KV is there, and whoever placed the request learns how long it took.
    pub(super) fn arrived(&mut self, request: u32) {
        let Some(hand_over) = self.flights[request as usize].hand_over.take() else { return };
        let Some(main) = self.flights[request as usize].main else { return };
        let (now, HandOver { from, blocks, took }) = (self.now, hand_over);
        let news = WorkerNews::Transferred { from, blocks, took };
        self.policy_of(request).hear(main.worker, news, now);
    }

    /// Time that the KV of `tokens` takes from one worker to another, with the wait for earlier
    /// transfers: a worker sends one at a time.
    fn send(&mut self, from: WorkerNumber, to: WorkerNumber, tokens: u32) -> Ps {
        let transfer = &self.settings.transfer;
        let host = |worker: u32| worker / transfer.host_workers;
        let gigabytes = match host(from) == host(to) {
            true => transfer.local_gb_s,
            false => transfer.remote_gb_s,
        };
        let bytes = f64::from(tokens) * self.settings.kv_token_bytes;
        let sender = &mut self.workers[from as usize];
        let start = sender.link_free.max(self.now);
        sender.link_free = start + from_seconds(bytes / (gigabytes * 1e9));
        sender.link_free - self.now + transfer.latency
    }
}
