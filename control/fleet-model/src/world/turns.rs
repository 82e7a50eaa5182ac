//! Whether flows that wait side by side are served alike, as far as the queue promises it.

use stator_queue::Fairness;
use std::collections::BTreeMap;

/// A flow that waits: the priority of a band, and a tenant in it.
pub(super) type TenantFlow = (i32, u32);

/// Lead of each flow over each other flow, since both have something waiting.
pub(super) struct TurnCheck {
    fairness: Fairness,
    waiting: BTreeMap<TenantFlow, u32>,
    /// By how much the first of two is ahead of the second.
    ahead: BTreeMap<(TenantFlow, TenantFlow), i64>,
    /// Tokens of the largest request so far.
    largest: u32,
    /// Tokens of the answers of each flow that are on their way, and the most that were at once.
    due: BTreeMap<TenantFlow, u64>,
    most_due: u64,
}

impl TurnCheck {
    /// Nobody waits for such a queue.
    pub(super) fn new(fairness: Fairness) -> Self {
        let (waiting, ahead, due) = Default::default();
        Self { fairness, waiting, ahead, largest: 1, due, most_due: 0 }
    }

    /// A request of so many tokens waits.
    pub(super) fn came(&mut self, flow: TenantFlow, tokens: u32) {
        *self.waiting.entry(flow).or_default() += 1;
        self.largest = self.largest.max(tokens);
    }

    /// A request waits no more. A flow of which none does is neither ahead nor behind.
    pub(super) fn left(&mut self, flow: TenantFlow) {
        let Some(waiting) = self.waiting.get_mut(&flow) else { return };
        *waiting -= 1;
        if *waiting == 0 {
            self.waiting.remove(&flow);
            self.ahead.retain(|(one, other), _| *one != flow && *other != flow);
        }
    }

    /// The turn is that of a request which still counts as waiting and gets so long an answer. The
    /// rule that this breaks.
    ///
    /// Over any time in which two flows have something waiting their shares differ by a quantum
    /// and two requests at most with deficit round robin, by two requests and twice what was being
    /// answered at once with token counters, and by two turns with round robin.
    ///
    /// Source: Shreedhar and Varghese, "Efficient fair queueing using deficit round robin", the
    /// fairness measure; Sheng et al., "Fairness in serving large language models", whose counters
    /// are at most one request apart, before and after.
    pub(super) fn served(&mut self, flow: TenantFlow, tokens: u32, answer: u32) -> Option<String> {
        let due = self.due.entry(flow).or_default();
        *due += u64::from(answer);
        self.most_due = self.most_due.max(*due);
        let largest = i64::from(self.largest);
        let (share, limit) = match self.fairness {
            // What is forgotten, and how long heads wait, decide as well.
            Fairness::GlobalStrict | Fairness::Las { .. } | Fairness::TurnPriority { .. } => {
                return None;
            }
            Fairness::RoundRobin => (1, 2),
            Fairness::Drr { quantum_tokens } => {
                (tokens.max(1).into(), i64::from(quantum_tokens) + 2 * largest)
            }
            Fairness::Vtc { input_weight, output_weight } => {
                let weight = i64::from(input_weight);
                let answers = i64::from(output_weight) * self.most_due as i64;
                (weight * i64::from(tokens.max(1)), 2 * (weight * largest + answers))
            }
        };
        self.ahead_by(flow, share, limit)
    }

    /// Counts `tokens` of the flow's answers that came.
    pub(super) fn charged(&mut self, flow: TenantFlow, tokens: u32) {
        if let Some(due) = self.due.get_mut(&flow) {
            *due = due.saturating_sub(tokens.into());
        }
        if let Fairness::Vtc { output_weight, .. } = self.fairness
            && self.waiting.contains_key(&flow)
        {
            self.ahead_by(flow, i64::from(output_weight) * i64::from(tokens), i64::MAX);
        }
    }

    /// A flow got so much more than the others that wait. The rule that this breaks.
    fn ahead_by(&mut self, flow: TenantFlow, share: i64, limit: i64) -> Option<String> {
        let (band, mut broken) = (flow.0, None);
        for (&other, _) in self.waiting.range((band, 0)..=(band, u32::MAX)) {
            let (pair, share) = match flow.cmp(&other) {
                std::cmp::Ordering::Less => ((flow, other), share),
                std::cmp::Ordering::Greater => ((other, flow), -share),
                std::cmp::Ordering::Equal => continue,
            };
            let ahead = self.ahead.entry(pair).or_default();
            *ahead += share;
            if ahead.abs() > limit {
                let (one, two) = (flow.1, other.1);
                broken = Some(format!(
                    "tenant {one} got {} more than tenant {two}, limit {limit}",
                    ahead.abs()
                ));
            }
        }
        broken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUANTUM: u32 = 100;

    /// Serves requests of 10 tokens of flows that never run dry; the first broken rule.
    fn serve(fairness: Fairness, order: &[TenantFlow]) -> Option<String> {
        let mut turns = TurnCheck::new(fairness);
        for flow in [(0, 1), (0, 2), (-1, 3)] {
            (0..1000).for_each(|_| turns.came(flow, 10));
        }
        order.iter().find_map(|flow| {
            let broken = turns.served(*flow, 10, 0);
            turns.left(*flow);
            broken
        })
    }

    #[test]
    fn turns_that_are_shared_break_nothing_and_those_that_are_kept_do() {
        let drr = Fairness::Drr { quantum_tokens: QUANTUM };
        let vtc = Fairness::Vtc { input_weight: 1, output_weight: 2 };
        let shared = [(0, 1), (0, 2)].repeat(40);
        for (fairness, turns) in [(drr, 12), (vtc, 2), (Fairness::RoundRobin, 2)] {
            assert_eq!(serve(fairness, &shared), None, "{fairness:?}");
            assert_eq!(serve(fairness, &[(0, 1)].repeat(turns)), None, "{fairness:?}");
            let broken = serve(fairness, &[(0, 2)].repeat(turns + 1)).expect("one got all");
            assert!(broken.contains("tenant 2 got") && broken.contains("tenant 1"), "{broken}");
            // Another band is no matter of fairness.
            assert_eq!(serve(fairness, &[(-1, 3)].repeat(40)), None, "{fairness:?}");
        }
        assert_eq!(serve(Fairness::GlobalStrict, &[(0, 1)].repeat(900)), None);
    }

    #[test]
    fn what_is_answered_counts_with_token_counters_within_what_is_on_its_way() {
        let fairness = Fairness::Vtc { input_weight: 1, output_weight: 2 };
        let check = |answer, charged, fine| {
            let mut turns = TurnCheck::new(fairness);
            for flow in [(0, 1), (0, 2)] {
                (0..9).for_each(|_| turns.came(flow, 10));
            }
            assert_eq!(turns.served((0, 1), 10, answer), None);
            turns.charged((0, 1), charged);
            turns.charged((0, 3), 1000);
            assert_eq!(turns.served((0, 1), 10, 0).is_none(), fine);
        };
        // Limits of 2 * 10, and of 2 * (10 + 2 * 100).
        check(0, 0, true);
        check(0, 1, false);
        check(100, 200, true);
        check(100, 201, false);
    }

    #[test]
    fn who_had_nothing_waiting_has_missed_nothing() {
        let mut turns = TurnCheck::new(Fairness::RoundRobin);
        turns.came((0, 1), 10);
        for _ in 0..40 {
            turns.came((0, 2), 10);
            assert_eq!(turns.served((0, 2), 10, 0), None);
            turns.left((0, 2));
        }
        assert!(turns.ahead.is_empty());
    }
}
