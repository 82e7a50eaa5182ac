//! Which flow of a band is next.
//!
//! Each policy gives each flow that has something waiting a rank, and the least rank is next.
//! A flow's rank changes only when its own head or its own account does, so that a heap of ranks
//! is always right and every step costs the logarithm of the number of flows.

use crate::invalid::Findings;

/// Which flow of a band is next.
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
}

impl Fairness {
    pub(crate) fn check(self, name: &str, findings: &mut Findings) {
        match self {
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
        }
    }
}

/// Where a flow stands; the least is next.
pub(crate) type Rank = (u64, u64);

/// The account of one flow.
#[derive(Debug, Default)]
pub(crate) struct Share {
    /// Place in the round, by the time of joining or, in turns, of the last service.
    place: u64,
    /// Deficit round robin: the last round whose credit is in `balance`.
    round: u64,
    /// Deficit round robin: credit in tokens. Virtual token counters: the counter.
    balance: u64,
}

/// The state that all flows of a band share.
#[derive(Debug)]
pub(crate) struct Turns {
    fairness: Fairness,
    /// Deficit round robin: round and place of the latest visit.
    cursor: Rank,
    /// The last place given.
    places: u64,
    /// Virtual token counters: the counter of the flow that left last.
    left: u64,
}

impl Turns {
    pub(crate) fn new(fairness: Fairness) -> Self {
        Self { fairness, cursor: (1, 0), places: 0, left: 0 }
    }

    /// A flow has something waiting, for the first time or again. `least` is the first rank of
    /// the others.
    pub(crate) fn joins(&mut self, share: &mut Share, least: Option<Rank>) {
        share.place = self.next_place();
        match self.fairness {
            Fairness::GlobalStrict | Fairness::RoundRobin => {}
            // The end of the present round is still to come.
            Fairness::Drr { .. } => (share.balance, share.round) = (0, self.cursor.0 - 1),
            Fairness::Vtc { .. } => {
                let floor = least.map_or(self.left, |(counter, _)| counter);
                share.balance = share.balance.max(floor);
            }
        }
    }

    /// A flow has nothing waiting any more.
    pub(crate) fn leaves(&mut self, share: &Share) {
        if let Fairness::Vtc { .. } = self.fairness {
            self.left = share.balance;
        }
    }

    /// Books the credit of rounds that went by. To be called before a flow's head changes, with
    /// the head as it was: credit was given for that.
    pub(crate) fn settle(&self, share: &mut Share, head_tokens: u32) {
        let Fairness::Drr { quantum_tokens } = self.fairness else { return };
        // Credit that suffices is not added to, or a flow that cannot be placed would save up.
        let went_by = self.last_visit(share).saturating_sub(share.round);
        let rounds = rounds_to_pay(share.balance, head_tokens, quantum_tokens).min(went_by);
        share.balance += rounds * u64::from(quantum_tokens.max(1));
        share.round += rounds;
    }

    /// Where a settled flow stands with a head of this key and these tokens.
    pub(crate) fn rank(&self, share: &mut Share, head: (u64, u64), head_tokens: u32) -> Rank {
        match self.fairness {
            Fairness::GlobalStrict => head,
            Fairness::RoundRobin => (share.place, 0),
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
    pub(crate) fn visits(&mut self, rank: Rank) {
        if let Fairness::Drr { .. } = self.fairness {
            self.cursor = self.cursor.max(rank);
        }
    }

    /// The head of a settled flow is served.
    pub(crate) fn served(&mut self, share: &mut Share, tokens: u32) {
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
        }
    }

    /// A flow's running requests have produced tokens; returns whether that counts here.
    pub(crate) fn charge(&self, share: &mut Share, tokens: u64) -> bool {
        let Fairness::Vtc { output_weight, .. } = self.fairness else { return false };
        add(&mut share.balance, output_weight, tokens);
        true
    }

    fn next_place(&mut self) -> u64 {
        self.places += 1;
        self.places
    }

    /// The last round in which a flow had its turn. In a round the places are visited in order.
    fn last_visit(&self, share: &Share) -> u64 {
        let (round, place) = self.cursor;
        if share.place <= place { round } else { round - 1 }
    }
}

/// What a request costs: one without tokens is not free.
fn cost(tokens: u32) -> u64 {
    u64::from(tokens.max(1))
}

fn rounds_to_pay(balance: u64, tokens: u32, quantum: u32) -> u64 {
    cost(tokens).saturating_sub(balance).div_ceil(u64::from(quantum.max(1)))
}

fn add(counter: &mut u64, weight: u32, tokens: u64) {
    *counter = counter.saturating_add(tokens.saturating_mul(u64::from(weight)));
}
