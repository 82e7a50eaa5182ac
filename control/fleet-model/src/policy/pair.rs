//! Two policies for a split fleet: one chooses who answers, the other who computes the prompt.

use super::{
    Choice, NoPick, PickQuery, Policy, PolicyTicket, RequestProgress, Role, WorkerNews,
    WorkerNumber,
};
use crate::time::Ps;
use std::ops::RangeInclusive;

/// Every prompt is computed by a worker for prompts, if there is one.
///
/// Source: llm-d's disaggregated profile with its decider that always splits.
pub(super) struct PairedPolicies {
    prefill: Box<dyn Policy>,
    decode: Box<dyn Policy>,
    roles: Vec<Role>,
}

impl PairedPolicies {
    pub(super) fn new(prefill: Box<dyn Policy>, decode: Box<dyn Policy>) -> Self {
        Self { prefill, decode, roles: Vec::new() }
    }
}

impl Policy for PairedPolicies {
    fn hear(&mut self, worker: WorkerNumber, news: WorkerNews<'_>, now: Ps) {
        let place = worker as usize;
        if let WorkerNews::Up { member, .. } = news {
            self.roles.resize(self.roles.len().max(place + 1), Role::Aggregated);
            self.roles[place] = member.role;
        }
        match self.roles.get(place) {
            Some(Role::Prefill) => self.prefill.hear(worker, news, now),
            _ => self.decode.hear(worker, news, now),
        }
    }

    fn pick(&mut self, query: &PickQuery<'_>, now: Ps) -> Result<Choice, NoPick> {
        let decode = self.decode.pick(query, now)?;
        // Where nobody computes prompts for others, the answering worker does, as one of no side.
        let takes = self.roles.get(decode.worker as usize) == Some(&Role::Decode);
        let prefill = takes.then(|| self.prefill.pick(query, now).ok()).flatten();
        let prefill = prefill.map(|choice| (choice.worker, 2 * choice.ticket + 1));
        let (worker, ticket, holder) = (decode.worker, 2 * decode.ticket, decode.holder);
        Ok(Choice { worker, ticket, prefill, holder })
    }

    fn progress(&mut self, ticket: PolicyTicket, progress: RequestProgress, now: Ps) {
        match ticket % 2 {
            0 => self.decode.progress(ticket / 2, progress, now),
            _ => self.prefill.progress(ticket / 2, progress, now),
        }
    }

    fn in_flight(&self) -> RangeInclusive<usize> {
        let (prefill, decode) = (self.prefill.in_flight(), self.decode.in_flight());
        prefill.start() + decode.start()..=prefill.end() + decode.end()
    }
}
