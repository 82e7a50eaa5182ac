//! llm-d's picker as it comes.

use super::adapters::LoadedAdapters;
use super::approximate::Approximate;
use super::{
    Choice, NoPick, PickQuery, Policy, PolicyTicket, RequestProgress, WorkerNews, WorkerNumber,
};
use crate::random::{Purpose, Random};
use crate::time::Ps;
use rustc_hash::FxHashSet;
use stator_protos::load::Load;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;

const QUEUE_WEIGHT: f64 = 2.0;
const KV_UTILISATION_WEIGHT: f64 = 2.0;
const PREFIX_WEIGHT: f64 = 3.0;
/// Blocks of 16 tokens remembered per worker.
const CAPACITY_TOKENS: u32 = 31_250 * 16;

/// The weighted sum of three scores from 0 to 1: the waiting queue between the longest and the
/// shortest, the share of KV blocks that is not in use, both from the last report, and the share
/// of the prompt that the worker was sent before. Equal sums by chance.
///
/// Source: the default configuration of llm-d's router: `queue-scorer` 2,
/// `kv-cache-utilization-scorer` 2, `prefix-cache-scorer` 3, `max-score-picker`; the approximate
/// producer sizes its memory by the engine's own number of blocks.
pub(super) struct LlmD {
    block_size: NonZeroU32,
    known: Approximate,
    loaded: LoadedAdapters,
    workers: Vec<Option<Seen>>,
    scores: Vec<(f64, WorkerNumber)>,
    tickets: FxHashSet<PolicyTicket>,
    next_ticket: PolicyTicket,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    load: Load,
    capacity: u32,
}

impl LlmD {
    pub(super) fn new(block_size: NonZeroU32) -> Self {
        Self {
            block_size,
            known: Approximate::default(),
            loaded: LoadedAdapters::default(),
            workers: Vec::new(),
            scores: Vec::new(),
            tickets: FxHashSet::default(),
            next_ticket: 0,
        }
    }

    fn score(&mut self, query: &PickQuery<'_>) {
        let matched = self.known.matched(query.sequence, self.workers.len());
        let queues = || self.workers.iter().flatten().map(|seen| seen.load.waiting);
        let (shortest, longest) = (queues().min().unwrap_or(0), queues().max().unwrap_or(0));
        self.scores.clear();
        for (worker, seen) in (0..).zip(&self.workers) {
            let Some(seen) = seen.filter(|_| self.loaded.allows(worker, query.adapter)) else {
                continue;
            };
            let queue = match longest - shortest {
                0 => 1.0,
                range => f64::from(longest - seen.load.waiting) / f64::from(range),
            };
            let total = f64::from(seen.load.total_blocks.max(1));
            let free = 1.0 - f64::from(seen.load.used_blocks) / total;
            let all = query.sequence.len().max(1) as f64;
            let prefix = f64::from(matched[worker as usize]) / all;
            let score =
                QUEUE_WEIGHT * queue + KV_UTILISATION_WEIGHT * free + PREFIX_WEIGHT * prefix;
            self.scores.push((score, worker));
        }
    }
}

impl Policy for LlmD {
    fn hear(&mut self, worker: WorkerNumber, news: WorkerNews<'_>, _: Ps) {
        match news {
            WorkerNews::Up { member, .. } => {
                if self.workers.len() <= worker as usize {
                    self.workers.resize(worker as usize + 1, None);
                }
                let capacity = member.total_blocks.max(CAPACITY_TOKENS / self.block_size);
                self.loaded.up(worker, member);
                self.workers[worker as usize] = Some(Seen { load: Load::default(), capacity });
            }
            WorkerNews::Draining { .. } | WorkerNews::Down => {
                self.workers[worker as usize] = None;
                self.known.clear(worker);
            }
            WorkerNews::Load { load, .. } => {
                if let Some(Some(seen)) = self.workers.get_mut(worker as usize) {
                    seen.load = *load;
                }
            }
            _ => {}
        }
    }

    fn pick(&mut self, query: &PickQuery<'_>, _: Ps) -> Result<Choice, NoPick> {
        self.score(query);
        let best = self.scores.iter().map(|score| score.0).max_by(f64::total_cmp);
        let best = best.ok_or(NoPick::NoWorkers)?;
        self.scores.retain(|score| score.0 == best);
        let chosen = Random::new(query.seed, Purpose::Picks).below(self.scores.len() as u32);
        let worker = self.scores[chosen as usize].1;
        let capacity = self.workers[worker as usize].map_or(0, |seen| seen.capacity);
        self.known.sent(worker, query.sequence, capacity);
        self.next_ticket += 1;
        self.tickets.insert(self.next_ticket);
        Ok(Choice { worker, ticket: self.next_ticket, prefill: None, holder: None })
    }

    fn progress(&mut self, ticket: PolicyTicket, progress: RequestProgress, _: Ps) {
        if progress == RequestProgress::End {
            self.tickets.remove(&ticket);
        }
    }

    fn in_flight(&self) -> RangeInclusive<usize> {
        self.tickets.len()..=self.tickets.len()
    }
}
