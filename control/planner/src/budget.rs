//! One GPU budget for several graphs.
//!
//! The upper limit is hard. The lower limit may be missed by less than the GPUs of the largest
//! worker, because workers come whole. Between the graphs' own minima and what they want, GPUs are
//! shared in proportion: the role that has the smallest part of what it wants is next.

use crate::replicas::{ROLES, Replicas};
use stator_protos::discovery::Role;

/// Limits on the GPUs of all graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GpuBudget {
    /// Most GPUs; none without a limit.
    pub(crate) max: Option<u32>,
    /// Fewest GPUs; 0 without a limit.
    pub(crate) min: u32,
}

/// Workers that one graph wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GraphDemand {
    /// Wanted workers.
    pub(crate) wanted: Replicas,
    /// Fewest workers.
    pub(crate) min: Replicas,
    /// Most workers.
    pub(crate) max: Replicas,
    /// GPUs of one worker of each role.
    pub(crate) gpus: Replicas,
}

/// The minima of all graphs need more GPUs than there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the fewest workers need {needed} GPUs, max_gpu_budget is {max}")]
pub(crate) struct BudgetTooSmall {
    /// GPUs of the minima.
    pub(crate) needed: u32,
    /// GPUs that there are.
    pub(crate) max: u32,
}

impl GpuBudget {
    /// Workers of each graph, in order. Both roles of a graph are decided together.
    ///
    /// # Errors
    ///
    /// [`BudgetTooSmall`]: the budget does not hold the minima.
    pub(crate) fn share(&self, graphs: &[GraphDemand]) -> Result<Vec<Replicas>, BudgetTooSmall> {
        let least = |graph: &GraphDemand| {
            // A graph that wants nothing keeps nothing but its minimum.
            Replicas::from_fn(|role| graph.min.of(role).min(graph.wanted.of(role)))
        };
        let mut given: Vec<Replicas> = graphs.iter().map(least).collect();
        let max = self.max.unwrap_or(u32::MAX);
        let needed = gpus(graphs, &given);
        if needed > max {
            return Err(BudgetTooSmall { needed, max });
        }
        let wanted: Vec<Replicas> = graphs.iter().map(|graph| graph.wanted).collect();
        grow(graphs, &mut given, &wanted, max);
        if gpus(graphs, &given) < self.min {
            let most: Vec<Replicas> = graphs.iter().map(|graph| graph.max).collect();
            grow(graphs, &mut given, &most, self.min.min(max));
        }
        Ok(given)
    }
}

fn gpus(graphs: &[GraphDemand], replicas: &[Replicas]) -> u32 {
    graphs.iter().zip(replicas).map(|(graph, given)| given.gpus(&graph.gpus)).sum()
}

/// Gives workers one by one, up to `limits` of each role and `max` GPUs in all.
fn grow(graphs: &[GraphDemand], given: &mut [Replicas], limits: &[Replicas], max: u32) {
    let mut free = max.saturating_sub(gpus(graphs, given));
    loop {
        let mut next: Option<(f64, usize, Role)> = None;
        for (at, graph) in graphs.iter().enumerate() {
            for role in ROLES {
                let (has, limit) = (given[at].of(role), limits[at].of(role));
                if has >= limit || graph.gpus.of(role) > free {
                    continue;
                }
                let part = f64::from(has) / f64::from(graph.wanted.of(role).max(1));
                if next.is_none_or(|(least, _, _)| part < least) {
                    next = Some((part, at, role));
                }
            }
        }
        let Some((_, at, role)) = next else { return };
        free -= graphs[at].gpus.of(role);
        given[at].set(role, given[at].of(role) + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};

    fn graph(wanted: (u32, u32), gpus: (u32, u32)) -> GraphDemand {
        let pair = |(prefill, decode)| Replicas { prefill, decode, aggregated: 0 };
        GraphDemand { wanted: pair(wanted), min: pair((1, 1)), max: pair((9, 9)), gpus: pair(gpus) }
    }

    #[test]
    fn graphs_share_in_proportion_to_what_they_want() {
        let budget = GpuBudget { max: Some(12), min: 0 };
        let graphs = [graph((4, 8), (1, 1)), graph((4, 8), (1, 1))];
        let given = budget.share(&graphs).expect("the minima fit");
        let expected = Replicas { prefill: 2, decode: 4, aggregated: 0 };
        assert_eq!(given, [expected, expected]);
    }

    #[test]
    fn a_budget_below_the_minima_is_told_with_both_numbers() {
        let budget = GpuBudget { max: Some(5), min: 0 };
        let refused = budget.share(&[graph((2, 2), (2, 4))]).expect_err("6 GPUs are needed");
        assert_eq!(refused, BudgetTooSmall { needed: 6, max: 5 });
    }

    #[test]
    fn the_lower_limit_is_reached_within_one_worker() {
        let budget = GpuBudget { max: Some(32), min: 15 };
        let given = budget.share(&[graph((1, 1), (2, 4))]).expect("the minima fit");
        let gpus = given[0].gpus(&Replicas { prefill: 2, decode: 4, aggregated: 0 });
        assert!((12..=15).contains(&gpus), "{given:?}");
    }

    proptest! {
        #[test]
        fn the_upper_limit_is_never_passed_and_no_more_is_given_than_wanted(
            wanted in vec(((1_u32..9, 1_u32..9), (1_u32..5, 1_u32..9)), 1..5), spare in 0_u32..60,
        ) {
            let graphs: Vec<_> = wanted.iter().map(|(want, gpus)| graph(*want, *gpus)).collect();
            let minima: u32 = graphs.iter().map(|graph| graph.min.gpus(&graph.gpus)).sum();
            let budget = GpuBudget { max: Some(minima + spare), min: 0 };
            let given = budget.share(&graphs).expect("the minima fit");
            let used: u32 = given.iter().zip(&graphs).map(|(of, graph)| of.gpus(&graph.gpus)).sum();
            prop_assert!(used <= minima + spare);
            let all: u32 = graphs.iter().map(|graph| graph.wanted.gpus(&graph.gpus)).sum();
            for (graph, given) in graphs.iter().zip(&given) {
                for role in ROLES {
                    prop_assert!((graph.min.of(role)..=graph.wanted.of(role)).contains(&given.of(role)));
                }
            }
            // All that is wanted is given if it fits.
            prop_assert!(all > minima + spare || used == all);
        }
    }
}
