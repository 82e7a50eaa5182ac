//! Fairness among the flows of a band.
//!
//! Each policy ranks every flow that has a request waiting, and the least rank is next. A flow's
//! rank changes only when its own head or its own account does, so that a heap of ranks is always
//! right and every step costs the logarithm of the number of flows. The exceptions are least
//! attained service and turn priority, which compare each flow with all others at every turn.

use crate::invalid::{LONGEST, MS, SECOND, SettingFindings};
use crate::nanos;
use std::time::Duration;

/// Policy that chooses the next flow of a band.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fairness {
    /// The one with the best head: no isolation between flows.
    #[default]
    GlobalStrict,
    /// One request of each in turn.
    RoundRobin,
    /// Deficit round robin: each flow in turn is credited `quantum_tokens` and served while the
    /// credit pays for its head's tokens, at least 1 each. Two flows that both have something
    /// waiting differ by at most `quantum_tokens` and one request. Rounds in which no credit
    /// suffices are counted, not walked through.
    ///
    /// Source: Shreedhar and Varghese, "Efficient fair queueing using deficit round robin".
    Drr {
        /// At least 1.
        quantum_tokens: u32,
    },
    /// Virtual token counters: the flow that has got least, by weighted tokens of prompts as they
    /// are dispatched and of answers as they are charged. A flow that comes, or comes back, starts
    /// at the least counter of those that wait, so that nothing is saved up.
    ///
    /// Source: Sheng et al., "Fairness in serving large language models".
    Vtc {
        /// Weight of a prompt's token, 1 to 1000.
        input_weight: u32,
        /// Weight of an answer's token, 0 to 1000.
        output_weight: u32,
    },
    /// Least attained service: the flow of the highest sum of two parts, each weighted and scaled
    /// to 0..1 over the flows that wait. One is how little it has got, in tokens, an answer's
    /// counting twice, of which half is forgotten every `half_life`; the other how long its head
    /// has waited. A turn takes time in proportion to the flows that wait.
    ///
    /// Source: `program-aware-fairness` of the llm-d router.
    Las {
        /// Weight of what it has got, in thousandths, up to 1,000,000.
        service_weight: u32,
        /// Weight of its head's wait, in thousandths, up to 1,000,000.
        wait_weight: u32,
        /// 1 ms to 24 h.
        half_life: Duration,
        /// Time for which a flow with nothing waiting is remembered, 1 s to 24 h.
        idle: Duration,
    },
    /// Turn priority: the flow of the highest sum of its turns (its requests dispatched so far) and
    /// the weighted seconds that its head has waited. KV that a session has computed in many turns
    /// is likely still cached, and serving the session on soon frees its room. A turn takes time in
    /// proportion to the flows that wait.
    ///
    /// Source: the strategy `turn-priority` of `program-aware-fairness` of the llm-d router.
    TurnPriority {
        /// Turns that a second of waiting counts for, in thousandths, up to 1,000,000.
        wait_weight: u32,
        /// A flow that got nothing for so long begins anew; 1 ms to 24 h.
        inactivity: Duration,
        /// Time for which a flow with nothing waiting is remembered, 1 s to 24 h.
        idle: Duration,
    },
}

/// Weight of an answer's token in [`Fairness::Las`]; a prompt's token weighs 1.
pub const LAS_OUTPUT_WEIGHT: f64 = 2.0;

impl Fairness {
    pub(crate) fn check(self, name: &str, findings: &mut SettingFindings) {
        match self {
            // They have nothing to set.
            Self::GlobalStrict | Self::RoundRobin => {}
            Self::Drr { quantum_tokens } => {
                let name = format!("{name}.quantum_tokens");
                findings.range(&name, u64::from(quantum_tokens), 1..=u64::from(u32::MAX));
            }
            Self::Vtc { input_weight, output_weight } => {
                let input = format!("{name}.input_weight");
                findings.range(&input, u64::from(input_weight), 1..=1000);
                let output = format!("{name}.output_weight");
                findings.range(&output, u64::from(output_weight), 0..=1000);
            }
            Self::Las { service_weight, wait_weight, half_life, idle } => {
                for (field, weight) in [("service", service_weight), ("wait", wait_weight)] {
                    findings.range(&format!("{name}.{field}_weight"), weight.into(), 0..=1_000_000);
                }
                findings.duration(&format!("{name}.half_life"), half_life, MS..=LONGEST);
                findings.duration(&format!("{name}.idle"), idle, SECOND..=LONGEST);
            }
            Self::TurnPriority { wait_weight, inactivity, idle } => {
                findings.range(&format!("{name}.wait_weight"), wait_weight.into(), 0..=1_000_000);
                findings.duration(&format!("{name}.inactivity"), inactivity, MS..=LONGEST);
                findings.duration(&format!("{name}.idle"), idle, SECOND..=LONGEST);
            }
        }
    }

    /// Whether the tokens of answers count.
    pub fn counts_answers(self) -> bool {
        matches!(self, Self::Vtc { .. } | Self::Las { .. } | Self::TurnPriority { .. })
    }

    /// Whether requests that need not wait count too.
    pub fn counts_turns(self) -> bool {
        matches!(self, Self::TurnPriority { .. })
    }

    /// Time for which a flow with nothing waiting is remembered; `None` where the policy has no
    /// such time.
    pub(crate) fn idle(self) -> Option<Duration> {
        match self {
            Self::Las { idle, .. } | Self::TurnPriority { idle, .. } => Some(idle),
            _ => None,
        }
    }
}

/// Rank of a flow; the least is next.
pub(crate) type FlowRank = (u64, u64);

/// The account of one flow.
#[derive(Debug, Default)]
pub(crate) struct FlowShare {
    /// Place in the round, by the time of joining or, in turns, of the last service.
    place: u64,
    /// Deficit round robin: the last round whose credit is in `balance`.
    round: u64,
    /// Deficit round robin: credit in tokens. Virtual token counters: the counter.
    balance: u64,
    /// Least attained service: what it had got at the time `as_of`, in weighted tokens.
    attained: f64,
    as_of: u64,
    /// Turn priority: requests that were dispatched since it was last inactive; `as_of` is when it
    /// last got something.
    turns: u64,
}

impl FlowShare {
    /// Weighted tokens that it has got and that are not forgotten.
    pub(crate) fn attained(&self, half_life: Duration, now: u64) -> f64 {
        let half_lives = now.saturating_sub(self.as_of) as f64 / half_life.as_nanos() as f64;
        self.attained * (-half_lives).exp2()
    }

    fn gets(&mut self, weighted_tokens: f64, half_life: Duration, now: u64) {
        self.attained = self.attained(half_life, now) + weighted_tokens;
        self.as_of = now;
    }

    /// Turns that count: none after a long inactivity.
    fn turns(&self, inactivity: Duration, now: u64) -> u64 {
        let inactive = now.saturating_sub(self.as_of) > nanos(inactivity);
        if inactive { 0 } else { self.turns }
    }
}

/// The state that all flows of a band share.
#[derive(Debug)]
pub(crate) struct FlowTurns {
    fairness: Fairness,
    /// Deficit round robin: round and place of the latest visit.
    cursor: FlowRank,
    /// The last place given.
    places: u64,
    /// Virtual token counters: the counter of the flow that left last.
    left: u64,
}

impl FlowTurns {
    pub(crate) fn new(fairness: Fairness) -> Self {
        Self { fairness, cursor: (1, 0), places: 0, left: 0 }
    }

    /// A flow has something waiting, for the first time or again. `least` is the first rank of
    /// the others.
    pub(crate) fn joins(&mut self, share: &mut FlowShare, least: Option<FlowRank>) {
        share.place = self.next_place();
        match self.fairness {
            Fairness::GlobalStrict
            | Fairness::RoundRobin
            | Fairness::Las { .. }
            | Fairness::TurnPriority { .. } => {}
            // The end of the present round is still to come.
            Fairness::Drr { .. } => (share.balance, share.round) = (0, self.cursor.0 - 1),
            Fairness::Vtc { .. } => {
                let floor = least.map_or(self.left, |(counter, _)| counter);
                share.balance = share.balance.max(floor);
            }
        }
    }

    /// A flow has nothing waiting any more.
    pub(crate) fn leaves(&mut self, share: &FlowShare) {
        if let Fairness::Vtc { .. } = self.fairness {
            self.left = share.balance;
        }
    }

    /// Books the credit of rounds that went by. To be called before a flow's head changes, with
    /// the head as it was: credit was given for that.
    pub(crate) fn settle(&self, share: &mut FlowShare, head_tokens: u32) {
        let Fairness::Drr { quantum_tokens } = self.fairness else { return };
        // Credit that suffices is not added to, or a flow that cannot be placed would save up.
        let went_by = self.last_visit(share).saturating_sub(share.round);
        let rounds = rounds_to_pay(share.balance, head_tokens, quantum_tokens).min(went_by);
        share.balance += rounds * u64::from(quantum_tokens.max(1));
        share.round += rounds;
    }

    /// Rank of a settled flow with a head of this key and these tokens.
    pub(crate) fn rank(
        &self,
        share: &mut FlowShare,
        head: (u64, u64),
        head_tokens: u32,
    ) -> FlowRank {
        match self.fairness {
            Fairness::GlobalStrict => head,
            Fairness::RoundRobin | Fairness::Las { .. } | Fairness::TurnPriority { .. } => {
                (share.place, 0)
            }
            Fairness::Drr { quantum_tokens } => {
                let rounds = rounds_to_pay(share.balance, head_tokens, quantum_tokens);
                if rounds > 0 {
                    // Visits while an earlier head could be paid for brought no credit.
                    share.round = share.round.max(self.last_visit(share));
                }
                (share.round + rounds, share.place)
            }
            Fairness::Vtc { .. } => (share.balance, share.place),
        }
    }

    /// The flow of this rank has its turn.
    pub(crate) fn visits(&mut self, rank: FlowRank) {
        if let Fairness::Drr { .. } = self.fairness {
            self.cursor = self.cursor.max(rank);
        }
    }

    /// The head of a settled flow is served.
    pub(crate) fn served(&mut self, share: &mut FlowShare, tokens: u32, now: u64) {
        match self.fairness {
            Fairness::GlobalStrict => {}
            Fairness::RoundRobin => share.place = self.next_place(),
            Fairness::Drr { .. } => {
                share.balance = share.balance.saturating_sub(cost(tokens));
                // Visits that it missed because it could not be placed bring no credit.
                share.round = share.round.max(self.last_visit(share));
            }
            Fairness::Vtc { input_weight, .. } => {
                add(&mut share.balance, input_weight, cost(tokens))
            }
            Fairness::Las { half_life, .. } => share.gets(cost(tokens) as f64, half_life, now),
            Fairness::TurnPriority { inactivity, .. } => {
                share.turns = share.turns(inactivity, now) + 1;
                share.as_of = now;
            }
        }
    }

    /// A flow's running requests have produced tokens; returns whether that counts here.
    pub(crate) fn charge(&self, share: &mut FlowShare, tokens: u64, now: u64) -> bool {
        match self.fairness {
            Fairness::Vtc { output_weight, .. } => add(&mut share.balance, output_weight, tokens),
            Fairness::Las { half_life, .. } => {
                share.gets(LAS_OUTPUT_WEIGHT * tokens as f64, half_life, now);
            }
            // It was active for as long as its answer took.
            Fairness::TurnPriority { .. } => share.as_of = now,
            Fairness::GlobalStrict | Fairness::RoundRobin | Fairness::Drr { .. } => return false,
        }
        true
    }

    /// The comparison of all waiting flows that finds the next, for policies without ranks.
    pub(crate) fn compares(&self) -> Option<Comparison> {
        match self.fairness {
            Fairness::Las { service_weight, wait_weight, half_life, .. } => {
                let [service_weight, wait_weight] = [service_weight, wait_weight].map(f64::from);
                Some(Comparison::Service { service_weight, wait_weight, half_life })
            }
            Fairness::TurnPriority { wait_weight, inactivity, .. } => {
                Some(Comparison::Turns { wait_weight: wait_weight.into(), inactivity })
            }
            _ => None,
        }
    }

    fn next_place(&mut self) -> u64 {
        self.places += 1;
        self.places
    }

    /// The last round in which a flow had its turn. In a round the places are visited in order.
    fn last_visit(&self, share: &FlowShare) -> u64 {
        let (round, place) = self.cursor;
        if share.place <= place { round } else { round - 1 }
    }
}

/// The order between two flows. Weights are in thousandths.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Comparison {
    /// By what they got, and how long their heads have waited.
    Service { service_weight: f64, wait_weight: f64, half_life: Duration },
    /// By their turns, and how long their heads have waited.
    Turns { wait_weight: f64, inactivity: Duration },
}

impl Comparison {
    /// The best of some flows, each with its account and when its head came; of equal ones the one
    /// that joined first.
    pub(crate) fn best<'s>(
        self,
        flows: impl Iterator<Item = (u32, &'s FlowShare, u64)> + Clone,
        now: u64,
    ) -> Option<u32> {
        let wait = |arrival: u64| now.saturating_sub(arrival) as f64;
        match self {
            Self::Service { service_weight, wait_weight, half_life } => {
                // Rounded, so that what differs by errors of arithmetic alone is equal.
                let service = |share: &FlowShare| (share.attained(half_life, now) * 1e3).round();
                let services = Span::of(flows.clone().map(|(_, share, _)| service(share)));
                let waits = Span::of(flows.clone().map(|(.., arrival)| wait(arrival)));
                highest(flows, |share, arrival| {
                    service_weight * (1.0 - services.scale(service(share)))
                        + wait_weight * waits.scale(wait(arrival))
                })
            }
            Self::Turns { wait_weight, inactivity } => highest(flows, |share, arrival| {
                share.turns(inactivity, now) as f64 * 1e3 + wait_weight * wait(arrival) / 1e9
            }),
        }
    }
}

/// The flow of the highest score, rounded to millionths; of equal ones the one that joined first.
fn highest<'s>(
    flows: impl Iterator<Item = (u32, &'s FlowShare, u64)>,
    score: impl Fn(&FlowShare, u64) -> f64,
) -> Option<u32> {
    let scored = flows
        .map(|(flow, share, arrival)| ((score(share, arrival) * 1e6).round(), share.place, flow));
    scored.max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1))).map(|(.., flow)| flow)
}

/// The least and the greatest of some numbers.
#[derive(Clone, Copy, Debug)]
struct Span {
    least: f64,
    greatest: f64,
}

impl Span {
    fn of(numbers: impl Iterator<Item = f64>) -> Self {
        let nothing = Self { least: f64::INFINITY, greatest: f64::NEG_INFINITY };
        numbers.fold(nothing, |span, number| Self {
            least: span.least.min(number),
            greatest: span.greatest.max(number),
        })
    }

    /// 0 for the least, 1 for the greatest; one half where all are equal.
    fn scale(self, number: f64) -> f64 {
        let width = self.greatest - self.least;
        if width > 0.0 { (number - self.least) / width } else { 0.5 }
    }
}

/// Cost of a request: one without tokens is not free.
fn cost(tokens: u32) -> u64 {
    u64::from(tokens.max(1))
}

fn rounds_to_pay(balance: u64, tokens: u32, quantum: u32) -> u64 {
    cost(tokens).saturating_sub(balance).div_ceil(u64::from(quantum.max(1)))
}

fn add(counter: &mut u64, weight: u32, tokens: u64) {
    *counter = counter.saturating_add(tokens.saturating_mul(u64::from(weight)));
}
