//! Copies of each generation of a worker component while one generation replaces others.
//!
//! A generation *serves* if every one of its components has a copy that is available. Until the
//! wanted generation serves, the newest older one that does keeps a copy of each of its components,
//! so that some generation always has both halves of a pair.

/// Copies of one generation of a component.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct GenerationCopies {
    /// Copies that were asked for last.
    pub(super) asked: i32,
    /// Copies that take requests.
    pub(super) available: i32,
    /// Whether one copy that is available has to stay.
    pub(super) is_needed: bool,
}

/// A worker component in all generations.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ComponentCopies {
    /// Copies that the graph asks for.
    pub(super) desired: i32,
    pub(super) new: GenerationCopies,
    /// Older generations, the oldest first.
    pub(super) old: Vec<GenerationCopies>,
}

/// Copies to ask for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CopyTargets {
    pub(super) new: i32,
    pub(super) old: Vec<i32>,
}

impl ComponentCopies {
    /// Copies to ask for next.
    ///
    /// Source: the rolling update of Dynamo's operator, with a surge and an absence of a quarter.
    pub(super) fn targets(&self) -> CopyTargets {
        let sum = |of: fn(&GenerationCopies) -> i32| self.old.iter().map(of).sum::<i32>();
        let (old, old_available) = (sum(|copies| copies.asked), sum(|copies| copies.available));
        if self.old.is_empty() {
            return CopyTargets { new: self.desired, old: Vec::new() };
        }
        let (surge, absent) = ((self.desired + 3) / 4, self.desired / 4);
        let surge = if surge + absent == 0 { 1 } else { surge };
        let least = self.desired - absent;
        let starting = (self.new.asked - self.new.available).max(0);
        let down_max = (old + self.new.asked - least - starting).max(0);
        let broken = (old - old_available).max(0);
        let spare = (old_available + self.new.available - least).max(0);
        let old_total = (old - down_max.min(broken + spare)).max(0);
        let room = (self.desired + surge - old - self.new.asked).max(0);
        let new = self.desired.min(self.new.asked + room);
        CopyTargets { new, old: self.share(old_total) }
    }

    /// Whether the older generations may go.
    pub(super) fn is_updated(&self) -> bool {
        let is_drained = self.old.iter().all(|copies| copies.asked == 0 && copies.available == 0);
        self.new.available >= self.desired && is_drained
    }

    /// Divides copies among older generations: the oldest lose theirs first.
    fn share(&self, total: i32) -> Vec<i32> {
        let running = |copies: &GenerationCopies| copies.asked.min(copies.available).max(0);
        let mut targets: Vec<_> = self.old.iter().map(running).collect();
        let mut more = targets.iter().sum::<i32>() - total;
        for (target, copies) in targets.iter_mut().zip(&self.old) {
            let least = if copies.is_needed { running(copies).min(1) } else { 0 };
            let taken = more.clamp(0, *target - least);
            *target -= taken;
            more -= taken;
        }
        // Copies that are not available come back at the newest.
        for (target, copies) in targets.iter_mut().zip(&self.old).rev() {
            let given = (-more).clamp(0, copies.asked - *target);
            *target += given;
            more += given;
        }
        targets
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn copies(asked: i32, available: i32) -> GenerationCopies {
        GenerationCopies { asked, available, is_needed: false }
    }

    fn check(
        desired: i32,
        new: GenerationCopies,
        old: &[GenerationCopies],
        expected: (i32, &[i32]),
    ) {
        let component = ComponentCopies { desired, new, old: old.to_vec() };
        let CopyTargets { new, old } = component.targets();
        assert_eq!((new, &old[..]), expected, "{component:?}");
    }

    #[test]
    fn a_first_generation_starts_at_once() {
        check(3, copies(0, 0), &[], (3, &[]));
    }

    #[test]
    fn one_copy_is_replaced_after_its_successor_is_available() {
        check(1, copies(0, 0), &[copies(1, 1)], (1, &[1]));
        check(1, copies(1, 0), &[copies(1, 1)], (1, &[1]));
        check(1, copies(1, 1), &[copies(1, 1)], (1, &[0]));
    }

    #[test]
    fn four_copies_are_replaced_one_by_one() {
        check(4, copies(0, 0), &[copies(4, 4)], (1, &[3]));
        check(4, copies(1, 0), &[copies(3, 3)], (2, &[3]));
        check(4, copies(1, 1), &[copies(3, 3)], (2, &[2]));
    }

    #[test]
    fn copies_that_never_started_go_first_and_the_oldest_before_the_newer() {
        check(2, copies(2, 2), &[copies(1, 0), copies(1, 1)], (2, &[0, 0]));
        check(4, copies(1, 1), &[copies(2, 2), copies(1, 1)], (2, &[1, 1]));
        check(2, copies(2, 2), &[copies(1, 1), copies(1, 1)], (2, &[0, 0]));
    }

    proptest! {
        /// Available copies are never below what may be absent, by the plan's own doing.
        #[test]
        fn enough_copies_stay(
            desired in 0..9,
            new in (0..9, 0..9),
            old in vec((0..9, 0..9), 1..3),
            is_needed in any::<bool>(),
        ) {
            let of = |(asked, available): (i32, i32)| {
                GenerationCopies { asked, available: available.min(asked), is_needed }
            };
            let component =
                ComponentCopies { desired, new: of(new), old: old.into_iter().map(of).collect() };
            let targets = component.targets();
            let running = |target: i32, copies: &GenerationCopies| target.min(copies.available);
            let before: i32 = component.old.iter().map(|copies| copies.available).sum();
            let after: i32 =
                targets.old.iter().zip(&component.old).map(|(t, copies)| running(*t, copies)).sum();
            let least = desired - desired / 4;
            let there = component.new.available;
            prop_assert!(after + there >= least.min(before + there), "{component:?} {targets:?}");
            prop_assert!(targets.new <= desired.max(component.new.asked));
            if is_needed {
                for (target, copies) in targets.old.iter().zip(&component.old) {
                    prop_assert!(*target >= copies.available.min(1), "{component:?} {targets:?}");
                }
            }
        }
    }
}
