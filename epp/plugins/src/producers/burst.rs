//! `burst-prefix-cache-producer`.

use super::approximate::blocks::chain;
use crate::context::{BuildContext, PrefixSource};
use crate::expiring::Expiring;
use crate::params::Params;
use parking_lot::Mutex;
use stator_epp_scheduler::plugin::{
    Observer, PlacedRequest, PluginParts, Producer, RequestProgress,
};
use stator_epp_scheduler::{Candidate, PrefixMatch, Request, Time};
use stator_protos::WorkerRank;
use stator_protos::hash::SequenceHash;
use std::sync::Arc;
use std::time::Duration;

/// Most prompts that are remembered at once where a configuration sets no limit.
const PROMPTS_MAX: usize = 100_000;
/// Most blocks of a prompt that are looked at unless configured otherwise.
const MAX_BLOCKS: u64 = 2048;

/// `burst-prefix-cache-producer`: believes that an endpoint holds a prompt that it was sent within
/// the last `windowDurationMs`, so that requests for the same prompt that come at once are computed
/// once.
///
/// The first request of a burst goes where the scorers send it, the others follow: until
/// `maxPerReplica` of them (−1: any number) went to an endpoint, and then to the next. With
/// `minColocateBlocks` prompts that share so many leading blocks of `blockSizeTokens` follow each
/// other too. As many as `maxBatchSize` prompts are remembered.
///
/// The llm-d router holds requests back for the window instead and places them together; here none
/// waits, and `balanceBy` is left to the scorers.
pub(crate) fn burst(params: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    let block_size = params.whole("blockSizeTokens", 64, 1..=65_536) as u32;
    let max_tokens = params.whole("maxPrefixTokensToMatch", 0, 0..=1 << 32);
    let by_tokens = Some(max_tokens / u64::from(block_size)).filter(|_| max_tokens > 0);
    let window = params.whole("windowDurationMs", 100, 1..=60_000);
    params.choice("balanceBy", &[("requests", ()), ("tokens", ())]);
    params.without_effect("balanceBy");
    let prompts = limit(params, "maxBatchSize", 1000).unwrap_or(PROMPTS_MAX as u64);
    let (window, prompts) = (Duration::from_millis(window), prompts.min(PROMPTS_MAX as u64));
    let plugin = Arc::new(Burst {
        block_size,
        max_blocks: by_tokens.unwrap_or(MAX_BLOCKS).clamp(1, MAX_BLOCKS) as usize,
        max_per_replica: limit(params, "maxPerReplica", -1),
        colocate: params.whole("minColocateBlocks", 0, 0..=MAX_BLOCKS) as usize,
        source: context.new_approximate_source(),
        state: Mutex::new(State {
            prompts: Expiring::new(prompts as usize, window),
            beginnings: Expiring::new(prompts as usize, window),
        }),
    });
    PluginParts { producer: Some(plugin.clone()), observer: Some(plugin), ..PluginParts::default() }
}

/// A number above 0, or −1 for none.
fn limit(params: &mut Params<'_>, name: &'static str, default: i64) -> Option<u64> {
    let value = params.integer(name, default);
    if value < 1 && value != -1 {
        params.wrong(name, format!("{value} is neither -1 nor above 0"));
    }
    u64::try_from(value).ok()
}

struct Burst {
    block_size: u32,
    max_blocks: usize,
    /// `None` is any number.
    max_per_replica: Option<u64>,
    /// Leading blocks that prompts must share to follow each other; 0 follows equal ones alone.
    colocate: usize,
    source: PrefixSource,
    state: Mutex<State>,
}

struct State {
    /// The endpoints that prompts went to, by the hash of all their blocks.
    prompts: Expiring<SequenceHash, Placements>,
    /// The endpoint that prompts with the same beginning went to last.
    beginnings: Expiring<SequenceHash, WorkerRank>,
}

/// The endpoint that a prompt went to last, and how often.
#[derive(Clone, Copy)]
struct Placements {
    worker: WorkerRank,
    count: u64,
}

impl Burst {
    fn chain(&self, request: &Request<'_>) -> Vec<SequenceHash> {
        chain(request, self.block_size, self.max_blocks)
    }

    /// The block up to which a prompt must equal others to follow them.
    fn beginning(&self, chain: &[SequenceHash]) -> Option<SequenceHash> {
        chain.get(self.colocate.checked_sub(1)?).copied()
    }

    /// The endpoint that a prompt is to follow others to.
    fn followed(&self, chain: &[SequenceHash], now: Time) -> Option<WorkerRank> {
        let state = self.state.lock();
        if let Some(went) = state.prompts.get(chain.last()?, now) {
            let room = self.max_per_replica.is_none_or(|max| went.count < max);
            return room.then_some(went.worker);
        }
        state.beginnings.get(&self.beginning(chain)?, now).copied()
    }
}

impl Producer for Burst {
    fn produce(&self, request: &Request<'_>, candidates: &mut [Candidate<'_>], now: Time) {
        let chain = self.chain(request);
        let followed = self.followed(&chain, now);
        let total_blocks = chain.len() as u32;
        for candidate in candidates {
            let follows = followed == Some(candidate.endpoint.worker);
            let matched_blocks = if follows { total_blocks } else { 0 };
            let found = PrefixMatch {
                matched_blocks,
                total_blocks,
                block_size: self.block_size,
                weighted_blocks: matched_blocks.into(),
            };
            self.source.write(candidate, found);
        }
    }
}

impl Observer for Burst {
    fn placed(&self, request: &Request<'_>, placed: &PlacedRequest<'_>, now: Time) {
        let chain = self.chain(request);
        let target = placed.routing.primary.targets.first();
        let (Some(target), Some(whole)) = (target, chain.last().copied()) else { return };
        let worker = target.endpoint.worker;
        let state = &mut *self.state.lock();
        match state.prompts.get_mut(&whole, now) {
            // The window is that of the first: a burst without end would never spread.
            Some(went) if went.worker == worker => went.count += 1,
            Some(went) => *went = Placements { worker, count: 1 },
            None => state.prompts.insert(whole, Placements { worker, count: 1 }, now),
        }
        if let Some(beginning) = self.beginning(&chain) {
            state.beginnings.insert(beginning, worker, now);
        }
    }

    fn first_token(&self, _: &RequestProgress<'_>, _: Time) {}

    fn ended(&self, _: &RequestProgress<'_>, _: Time) {}
}

#[cfg(test)]
mod tests {
    use crate::testing::{Fleet, check_errors, made, routed};
    use serde_json::{Value, json};
    use stator_epp_scheduler::plugin::{PlacedRequest, PluginParts};
    use stator_epp_scheduler::{Prompt, Request, Time};
    use std::time::Duration;

    const TYPE: &str = "burst-prefix-cache-producer";

    fn at(ms: u64) -> Time {
        Time(Duration::from_millis(ms))
    }

    /// Numbers of the endpoints that are believed to hold a prompt of this text.
    fn holders(burst: &PluginParts, fleet: &Fleet, text: &str, ms: u64) -> Vec<usize> {
        let text = [text.as_bytes()];
        let request =
            Request { prompt: Prompt { text: &text, ..Prompt::default() }, ..Request::default() };
        let mut candidates = fleet.candidates();
        burst.producer.as_ref().expect("it produces").produce(&request, &mut candidates, at(ms));
        let share =
            |at: &usize| candidates[*at].approximate.is_some_and(|found| found.share() == 1.0);
        (0..candidates.len()).filter(share).collect()
    }

    fn place(burst: &PluginParts, fleet: &Fleet, text: &str, (endpoint, ms): (usize, u64)) {
        let text = [text.as_bytes()];
        let request =
            Request { prompt: Prompt { text: &text, ..Prompt::default() }, ..Request::default() };
        let routing = routed(&fleet.candidates()[endpoint]);
        let placed = PlacedRequest { ticket: 1, routing: &routing };
        burst.observer.as_ref().expect("it observes").placed(&request, &placed, at(ms));
    }

    fn prompt(name: &str) -> String {
        format!("{}{name}", "the same beginning of all prompts ".repeat(20))
    }

    #[test]
    fn a_burst_follows_its_first_request_for_a_while() {
        let (burst, fleet) = (made(TYPE, Value::Null), Fleet::of(3));
        assert!(holders(&burst, &fleet, &prompt("a"), 0).is_empty());
        place(&burst, &fleet, &prompt("a"), (1, 0));
        assert_eq!(holders(&burst, &fleet, &prompt("a"), 50), [1]);
        assert!(holders(&burst, &fleet, &prompt("b"), 50).is_empty(), "another prompt");
        assert!(holders(&burst, &fleet, &prompt("a"), 101).is_empty(), "the burst is over");
        assert!(holders(&burst, &fleet, "", 50).is_empty(), "no prompt");
    }

    #[test]
    fn a_burst_spreads_as_it_is_to() {
        let (burst, fleet) = (made(TYPE, json!({"maxPerReplica": 2})), Fleet::of(3));
        let next = || holders(&burst, &fleet, &prompt("a"), 10);
        place(&burst, &fleet, &prompt("a"), (1, 0));
        assert_eq!(next(), [1]);
        place(&burst, &fleet, &prompt("a"), (1, 1));
        assert!(next().is_empty(), "it has two");
        place(&burst, &fleet, &prompt("a"), (2, 2));
        assert_eq!(next(), [2]);
    }

    #[test]
    fn prompts_with_the_same_beginning_follow_each_other_where_they_are_to() {
        let (burst, fleet) = (made(TYPE, json!({"minColocateBlocks": 2})), Fleet::of(3));
        place(&burst, &fleet, &prompt("a"), (2, 0));
        assert_eq!(holders(&burst, &fleet, &prompt("b"), 10), [2]);
        assert!(holders(&burst, &fleet, "short", 10).is_empty());
    }

    #[test]
    fn limits_that_cannot_be_are_refused() {
        check_errors(
            TYPE,
            json!({"maxPerReplica": 0, "windowDurationMs": 0, "maxBatchSize": -2}),
            &[
                "windowDurationMs: 0 is not in 1..=60000",
                "maxBatchSize: -2 is neither -1 nor above 0",
                "maxPerReplica: 0 is neither -1 nor above 0",
            ],
        );
    }
}
