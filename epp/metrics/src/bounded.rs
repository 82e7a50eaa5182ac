//! Bounds on the number of values of a label.

use parking_lot::RwLock;
use rustc_hash::FxHashSet;

/// Label value that stands for all values above the bound.
pub(crate) const OTHER: &str = "other";
/// Longest value that is kept, in bytes; a longer one becomes [`OTHER`]. Without it, the values
/// that a client may choose would be few but not small.
pub(crate) const VALUE_BYTES_MAX: usize = 256;

/// The values that a label has taken: at most `max` in the life of the process.
///
/// Source: `BoundedLabel` of the llm-d router.
#[derive(Debug)]
pub(crate) struct BoundedValues {
    values: RwLock<Values>,
    max: usize,
}

#[derive(Debug, Default)]
struct Values {
    admitted: FxHashSet<Box<str>>,
    pinned: FxHashSet<Box<str>>,
}

impl BoundedValues {
    /// Keeps the first `max` values.
    pub(crate) fn new(max: usize) -> Self {
        Self { values: RwLock::default(), max }
    }

    /// Keeps a value in any case, beside the bound. For values that an operator configures.
    pub(crate) fn pin(&self, value: &str) {
        if self.is_pinned(value) {
            return;
        }
        let mut values = self.values.write();
        values.admitted.remove(value);
        values.pinned.insert(value.into());
    }

    /// Whether a value was pinned.
    pub(crate) fn is_pinned(&self, value: &str) -> bool {
        self.values.read().pinned.contains(value)
    }

    /// The value, or [`OTHER`]. No value at all is always kept.
    pub(crate) fn bound<'a>(&self, value: &'a str) -> &'a str {
        if value.is_empty() || self.values.read().has(value) {
            return value;
        }
        if value.len() > VALUE_BYTES_MAX {
            return OTHER;
        }
        let mut values = self.values.write();
        // Somebody else may have admitted it between the locks.
        if values.has(value) {
            return value;
        }
        if values.admitted.len() >= self.max {
            return OTHER;
        }
        values.admitted.insert(value.into());
        value
    }
}

impl Values {
    fn has(&self, value: &str) -> bool {
        self.admitted.contains(value) || self.pinned.contains(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Pin(String),
        Bound(String),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            1 => "[a-e]{0,2}".prop_map(Step::Pin),
            4 => "[a-e]{0,2}".prop_map(Step::Bound),
        ]
    }

    proptest! {
        /// The first so many values stay, pinned ones stay beside them, all others fold.
        #[test]
        fn agrees_with_two_lists(steps in vec(step(), 0..100), max in 0_usize..6) {
            let bounded = BoundedValues::new(max);
            let (mut admitted, mut pinned) = (Vec::<String>::new(), Vec::<String>::new());
            for step in steps {
                match step {
                    Step::Pin(value) => {
                        bounded.pin(&value);
                        admitted.retain(|known| *known != value);
                        pinned.push(value);
                    }
                    Step::Bound(value) => {
                        let known = admitted.contains(&value) || pinned.contains(&value);
                        if !known && !value.is_empty() && admitted.len() < max {
                            admitted.push(value.clone());
                        }
                        let kept = value.is_empty()
                            || admitted.contains(&value)
                            || pinned.contains(&value);
                        prop_assert_eq!(bounded.bound(&value), if kept { &value } else { OTHER });
                    }
                }
                prop_assert!(admitted.len() <= max);
            }
        }
    }

    #[test]
    fn long_values_fold_unless_pinned() {
        let (long, longest) = ("x".repeat(VALUE_BYTES_MAX + 1), "x".repeat(VALUE_BYTES_MAX));
        let bounded = BoundedValues::new(10);
        assert_eq!(bounded.bound(&long), OTHER);
        assert_eq!(bounded.bound(&longest), longest);
        bounded.pin(&long);
        assert_eq!(bounded.bound(&long), long);
    }
}
