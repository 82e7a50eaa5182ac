//! Start-up times of workers: learnt apart for nodes that recently ran a worker of the graph, whose
//! image and weights are there, and for nodes that did not.

use std::collections::VecDeque;

/// Start-up times that are remembered of each kind.
const SAMPLES_MAX: usize = 16;

/// Expected start-up times, until the fleet shows its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WarmupSettings {
    /// On a node that has neither image nor weights, seconds.
    pub cold_s: f64,
    /// On a node that recently ran a worker, seconds.
    pub cached_s: f64,
    /// Time for which a node keeps image and weights after its worker left, seconds.
    pub cache_life_s: f64,
}

/// State of a node before a worker starts there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodeState {
    Cold,
    Cached,
}

/// Start-up times of one role's workers.
#[derive(Clone, Debug)]
pub(crate) struct Warmups {
    settings: WarmupSettings,
    /// Learnt times of cold and of cached nodes, seconds.
    learnt: [VecDeque<f64>; 2],
    /// Times when workers left, the first first.
    left: VecDeque<f64>,
    /// Workers on their way: the time of their order and the node that they are taken to get.
    ordered: VecDeque<(f64, NodeState)>,
}

impl Warmups {
    /// Nothing is learnt yet.
    pub(crate) fn new(settings: WarmupSettings) -> Self {
        Self {
            settings,
            learnt: Default::default(),
            left: VecDeque::new(),
            ordered: VecDeque::new(),
        }
    }

    /// The number of ordered workers changed.
    pub(crate) fn resized(&mut self, from: u32, to: u32, at_s: f64) {
        for _ in from..to {
            let node = self.next_node(at_s);
            if node == NodeState::Cached {
                self.left.pop_back();
            }
            self.ordered.push_back((at_s, node));
        }
        for _ in to..from {
            // A worker that is still on its way is the first to be called off.
            match self.ordered.pop_back() {
                Some((_, NodeState::Cached)) => self.left.push_back(at_s),
                Some((_, NodeState::Cold)) => {}
                None => self.left.push_back(at_s),
            }
        }
    }

    /// So many workers came up.
    pub(crate) fn came(&mut self, workers: u32, at_s: f64) {
        for _ in 0..workers {
            // A worker that nobody ordered came back after a death.
            let Some((ordered_s, node)) = self.ordered.pop_front() else { return };
            let learnt = &mut self.learnt[node as usize];
            learnt.push_back(at_s - ordered_s);
            if learnt.len() > SAMPLES_MAX {
                learnt.pop_front();
            }
        }
    }

    /// Start-up time to expect of the next worker, seconds.
    pub(crate) fn expected_s(&self, at_s: f64) -> f64 {
        let node = self.next_node(at_s);
        let mut learnt: Vec<f64> = self.learnt[node as usize].iter().copied().collect();
        learnt.sort_by(f64::total_cmp);
        // Three of four are faster; the mean would make every other worker late.
        match (learnt.get(learnt.len() * 3 / 4), node) {
            (Some(seconds), _) => *seconds,
            (None, NodeState::Cold) => self.settings.cold_s,
            (None, NodeState::Cached) => self.settings.cached_s,
        }
    }

    /// The longest time that a worker is on its way, seconds; 0 if none is.
    pub(crate) fn waited_s(&self, at_s: f64) -> f64 {
        self.ordered.front().map_or(0.0, |(ordered_s, _)| at_s - ordered_s)
    }

    fn next_node(&self, at_s: f64) -> NodeState {
        let fresh = |left: &f64| at_s - left <= self.settings.cache_life_s;
        match self.left.back().is_some_and(fresh) {
            true => NodeState::Cached,
            false => NodeState::Cold,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: WarmupSettings =
        WarmupSettings { cold_s: 180.0, cached_s: 30.0, cache_life_s: 600.0 };

    #[test]
    fn times_are_learnt_apart_for_cold_and_cached_nodes() {
        let mut warmups = Warmups::new(SETTINGS);
        assert_eq!(warmups.expected_s(0.0), 180.0);
        warmups.resized(1, 3, 0.0);
        warmups.came(2, 100.0);
        assert_eq!(warmups.expected_s(100.0), 100.0);
        warmups.resized(3, 2, 200.0);
        assert_eq!(warmups.expected_s(201.0), 30.0);
        warmups.resized(2, 4, 300.0);
        assert_eq!(warmups.waited_s(310.0), 10.0);
        warmups.came(1, 320.0);
        warmups.came(1, 400.0);
        // The first of the two got the cached node.
        assert_eq!(warmups.expected_s(400.0), 100.0);
        warmups.resized(4, 3, 410.0);
        assert_eq!(warmups.expected_s(420.0), 20.0);
        // Caches do not last.
        assert_eq!(warmups.expected_s(1_100.0), 100.0);
    }

    #[test]
    fn a_worker_that_came_back_by_itself_says_nothing_of_starts() {
        let mut warmups = Warmups::new(SETTINGS);
        warmups.came(3, 10.0);
        assert_eq!((warmups.expected_s(10.0), warmups.waited_s(10.0)), (180.0, 0.0));
    }
}
