//! Prefix affinity as SGLang's router does it.

use super::adapters::LoadedAdapters;
use super::approximate::Approximate;
use super::{
    Choice, NoPick, PickQuery, Policy, PolicyTicket, RequestProgress, WorkerNews, WorkerNumber,
};
use crate::time::Ps;
use rustc_hash::FxHashMap;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;

/// A prefix leads to the worker that was sent it if it is more than this share of the prompt.
const MATCH_THRESHOLD: f64 = 0.3;
/// Loads differ too much when they differ by more requests than this,
const BALANCE_ABSOLUTE: u32 = 64;
/// and the largest is more than so many times the smallest.
const BALANCE_RELATIVE: f64 = 1.5;
/// Tokens remembered per worker: 2^26 characters, of which a token has about four.
const CAPACITY_TOKENS: u32 = 1 << 24;

/// While loads are even, the worker with the longest match if it is long enough, otherwise the
/// one that holds least; while they are not, the one with the fewest requests.
///
/// Source: the cache-aware policy of SGLang's router (`sgl-router/src/policies/cache_aware.rs`),
/// with the defaults of its launcher (`router_args.py`): `cache_threshold` 0.3,
/// `balance_abs_threshold` 64, `balance_rel_threshold` 1.5, `max_tree_size` 2^26. Blocks stand for
/// characters, and of workers that match or hold alike that with the fewest requests is taken.
pub(super) struct PrefixHash {
    known: Approximate,
    loaded: LoadedAdapters,
    /// Blocks remembered per worker.
    capacity: u32,
    /// Requests in flight; `None` where the worker is gone.
    requests: Vec<Option<u32>>,
    tickets: FxHashMap<PolicyTicket, WorkerNumber>,
    next_ticket: PolicyTicket,
}

impl PrefixHash {
    pub(super) fn new(block_size: NonZeroU32) -> Self {
        Self {
            known: Approximate::default(),
            loaded: LoadedAdapters::default(),
            capacity: CAPACITY_TOKENS / block_size,
            requests: Vec::new(),
            tickets: FxHashMap::default(),
            next_ticket: 0,
        }
    }

    fn choose(&mut self, query: &PickQuery<'_>) -> Option<WorkerNumber> {
        let matched = self.known.matched(query.sequence, self.requests.len()).to_vec();
        let usable = |(worker, requests): (usize, &Option<u32>)| {
            let worker = worker as WorkerNumber;
            requests.filter(|_| self.loaded.allows(worker, query.adapter)).map(|n| (n, worker))
        };
        let workers = || self.requests.iter().enumerate().filter_map(usable);
        let (least, shortest) = workers().min()?;
        let (most, _) = workers().max()?;
        let uneven = most - least > BALANCE_ABSOLUTE
            && f64::from(most) > f64::from(least) * BALANCE_RELATIVE;
        if uneven {
            return Some(shortest);
        }
        let (longest, _, best) = workers()
            .map(|(n, worker)| (matched[worker as usize], std::cmp::Reverse(n), worker))
            .max()?;
        if f64::from(longest) > MATCH_THRESHOLD * query.sequence.len() as f64 {
            return Some(best);
        }
        workers().map(|(n, worker)| (self.known.held(worker), n, worker)).min().map(|least| least.2)
    }
}

impl Policy for PrefixHash {
    fn hear(&mut self, worker: WorkerNumber, news: WorkerNews<'_>, _: Ps) {
        match news {
            WorkerNews::Up { member, .. } => {
                self.loaded.up(worker, member);
                if self.requests.len() <= worker as usize {
                    self.requests.resize(worker as usize + 1, None);
                }
                self.requests[worker as usize] = Some(0);
            }
            WorkerNews::Draining { .. } => {
                self.requests[worker as usize] = None;
                self.known.clear(worker);
            }
            WorkerNews::Down => {
                self.requests[worker as usize] = None;
                self.tickets.retain(|_, at| *at != worker);
                self.known.clear(worker);
            }
            _ => {}
        }
    }

    fn pick(&mut self, query: &PickQuery<'_>, _: Ps) -> Result<Choice, NoPick> {
        let worker = self.choose(query).ok_or(NoPick::NoWorkers)?;
        if let Some(requests) = &mut self.requests[worker as usize] {
            *requests += 1;
        }
        self.known.sent(worker, query.sequence, self.capacity);
        self.next_ticket += 1;
        self.tickets.insert(self.next_ticket, worker);
        Ok(Choice { worker, ticket: self.next_ticket, prefill: None, holder: None })
    }

    fn progress(&mut self, ticket: PolicyTicket, progress: RequestProgress, _: Ps) {
        if progress == RequestProgress::End
            && let Some(worker) = self.tickets.remove(&ticket)
            && let Some(requests) = &mut self.requests[worker as usize]
        {
            *requests -= 1;
        }
    }

    fn in_flight(&self) -> RangeInclusive<usize> {
        self.tickets.len()..=self.tickets.len()
    }
}
