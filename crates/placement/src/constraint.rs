//! Roles, labels and topology of workers, and requests' demands on them.

use crate::cost::{InvalidWeight, InvalidWeights, Weights};
use rustc_hash::FxHashMap;
use stator_protos::hash::name_hash;
use std::fmt;

/// A property of workers, such as `pool=batch` or `dynamo.topology/zone=a`, by the hash of its
/// text: equal texts, equal labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Label(pub u64);

impl Label {
    /// The label of a text, by convention `key=value`.
    pub fn new(text: &str) -> Self {
        Self(name_hash(text))
    }
}

/// A LoRA adapter, by the hash of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Adapter(pub u64);

impl Adapter {
    /// The adapter of this name.
    pub fn new(name: &str) -> Self {
        Self(name_hash(name))
    }
}

/// Part that a worker takes in serving requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// All of it.
    #[default]
    Aggregated,
    /// It computes prompts for others and answers nobody.
    Prefill,
    /// It answers; it can compute prompts too, but others may do so for it, and for no other role.
    Decode,
    /// It answers from prompts that others computed, and computes none.
    DecodeOnly,
    /// It encodes images and other media for others.
    Encode,
}

impl Role {
    /// Whether such a worker may be the one that answers.
    pub fn answers(self) -> bool {
        matches!(self, Self::Aggregated | Self::Decode | Self::DecodeOnly)
    }
}

/// Known location of a worker. Hosts of different racks have different labels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// Its machine.
    pub host: Option<Label>,
    /// Its rack, or whatever shares a fast network.
    pub rack: Option<Label>,
    /// Its zone or building.
    pub zone: Option<Label>,
}

/// Longest distance that a transfer may cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// Within one machine.
    Host,
    /// Within one rack.
    Rack,
    /// Within one zone.
    Zone,
}

impl Topology {
    /// The smallest part of the fleet that both stand in; `None` if they share none that is known.
    pub fn shared(&self, other: &Self) -> Option<Level> {
        let same = |one: Option<Label>, other| one.is_some() && one == other;
        if same(self.host, other.host) {
            Some(Level::Host)
        } else if same(self.rack, other.rack) {
            Some(Level::Rack)
        } else {
            same(self.zone, other.zone).then_some(Level::Zone)
        }
    }
}

/// Properties of a worker, beyond its identity, from an operator or from discovery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Its role.
    pub role: Role,
    /// Its labels, in any order.
    pub labels: Vec<Label>,
    /// Its location.
    pub topology: Topology,
    /// Adapters that it has loaded.
    pub adapters: Vec<Adapter>,
    /// Adapters that it can have loaded at once; 0 if it has no limit that is known.
    pub max_adapters: u32,
    /// Whether it has only what is loaded now: it loads no adapter because a request is for it.
    pub fixed_adapters: bool,
    /// Tokens that it computes in one step at most; 0 if unknown.
    pub batch_tokens: u32,
    /// The agent that lends what its tiers hold to other workers and fetches from theirs, by where it
    /// does so; `None` where there is none.
    pub lends: Option<Label>,
}

/// Demands of a request on its worker's labels. A value of this type is valid.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Needs {
    required: Vec<Label>,
    preferred: Vec<(Label, f64)>,
}

impl Needs {
    /// A worker must have all `required` labels; each of the `preferred` that it has makes it
    /// cheaper, see [`preference`], by its weight from 0 to [`Weights::MAX`].
    ///
    /// # Errors
    ///
    /// [`InvalidWeights`] if a weight is no such number.
    pub fn new(required: Vec<Label>, preferred: Vec<(Label, f64)>) -> Result<Self, InvalidWeights> {
        let limit = Weights::MAX;
        let invalid = preferred.iter().filter(|(_, value)| !(0.0..=limit).contains(value));
        let named = |&(_, value): &(_, f64)| InvalidWeight { name: "preferred", value, limit };
        let invalid: Vec<_> = invalid.map(named).collect();
        match invalid.is_empty() {
            true => Ok(Self { required, preferred }),
            false => Err(InvalidWeights(invalid)),
        }
    }

    /// The same demands, and this label.
    pub fn and(mut self, label: Label) -> Self {
        self.required.push(label);
        self
    }

    /// The labels that a worker must have.
    pub fn required(&self) -> &[Label] {
        &self.required
    }

    fn verdict(&self, labels: &[Label]) -> Option<f64> {
        let has = |label: &Label| labels.binary_search(label).is_ok();
        let matched = self.preferred.iter().filter(|(label, _)| has(label));
        self.required.iter().all(has).then(|| matched.map(|(_, weight)| weight).sum())
    }
}

/// Factor on the cost of a worker whose preferred labels weigh `weight` together: 1 without any,
/// and never below 1/e.
///
/// Source: Dynamo's preferred taints, `exp(-tanh(sum of weights))`.
pub fn preference(weight: f64) -> f64 {
    if weight == 0.0 { 1.0 } else { (-weight.tanh()).exp() }
}

/// Something that rules workers out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Constraint {
    /// It must have this label.
    Label(Label),
    /// It must have this adapter, or room for it.
    Adapter(Adapter),
    /// It must be this one.
    Pinned(stator_protos::WorkerRank),
    /// It must stand near enough to the one that computes the prompt.
    Near(Level),
}

impl fmt::Display for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Label(Label(hash)) => write!(f, "label {hash:016x}"),
            Self::Adapter(Adapter(hash)) => write!(f, "adapter {hash:016x}"),
            Self::Pinned(worker) => write!(f, "worker {worker}"),
            Self::Near(level) => write!(f, "the same {}", level.name()),
        }
    }
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Rack => "rack",
            Self::Zone => "zone",
        }
    }
}

/// The different sets of labels that workers have: a request judges each set once.
#[derive(Debug, Default)]
pub(crate) struct LabelSets {
    numbers: FxHashMap<Vec<Label>, u32>,
    sets: Vec<(Vec<Label>, u32)>,
    free: Vec<u32>,
}

impl LabelSets {
    /// The number of a set, which counts as used once more.
    pub(crate) fn enter(&mut self, mut labels: Vec<Label>) -> u32 {
        labels.sort_unstable();
        labels.dedup();
        if let Some(&number) = self.numbers.get(&labels) {
            self.sets[number as usize].1 += 1;
            return number;
        }
        let number = self.free.pop().unwrap_or_else(|| {
            self.sets.push((Vec::new(), 0));
            u32::try_from(self.sets.len() - 1).expect("fewer than 2^32 workers")
        });
        self.sets[number as usize] = (labels.clone(), 1);
        self.numbers.insert(labels, number);
        number
    }

    /// A set is used once less.
    pub(crate) fn leave(&mut self, number: u32) {
        let (labels, uses) = &mut self.sets[number as usize];
        *uses -= 1;
        if *uses == 0 {
            self.numbers.remove(labels);
            labels.clear();
            self.free.push(number);
        }
    }

    pub(crate) fn has(&self, number: u32, label: Label) -> bool {
        self.sets[number as usize].0.binary_search(&label).is_ok()
    }

    /// Writes for each set what `needs` say of it: the weight of what it has of the preferred
    /// labels, or that it lacks a required one.
    pub(crate) fn judge(&self, needs: &Needs, verdicts: &mut Vec<Option<f64>>) {
        verdicts.clear();
        verdicts.extend(self.sets.iter().map(|(labels, _)| needs.verdict(labels)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_a_label_and_labels_differ() {
        assert_eq!(Label::new("zone=a"), Label::new("zone=a"));
        assert_ne!(Label::new("zone=a"), Label::new("zone=b"));
        assert_eq!(Constraint::Label(Label(10)).to_string(), "label 000000000000000a");
        assert_eq!(Constraint::Near(Level::Rack).to_string(), "the same rack");
    }

    #[test]
    fn preferences_make_cheaper_within_a_bound() {
        assert_eq!(preference(0.0), 1.0);
        assert!((preference(0.5) - (-(0.5f64.tanh())).exp()).abs() < 1e-12);
        assert!(preference(Weights::MAX) >= (-1f64).exp() - 1e-12);
    }

    #[test]
    fn weights_of_preferences_are_checked() {
        let wrong = vec![(Label(1), f64::NAN), (Label(2), -1.0), (Label(3), 1.0)];
        let InvalidWeights(invalid) = Needs::new(Vec::new(), wrong).expect_err("two are wrong");
        assert_eq!(invalid.len(), 2);
    }

    #[test]
    fn sets_are_judged_once_and_forgotten_with_their_last_worker() {
        let mut sets = LabelSets::default();
        let one = sets.enter(vec![Label(2), Label(1), Label(2)]);
        assert_eq!(sets.enter(vec![Label(1), Label(2)]), one);
        let other = sets.enter(vec![Label(3)]);
        let needs = Needs::new(vec![Label(1)], vec![(Label(2), 0.5), (Label(3), 1.0)]);
        let mut verdicts = Vec::new();
        sets.judge(&needs.expect("the weights are right"), &mut verdicts);
        assert_eq!((verdicts[one as usize], verdicts[other as usize]), (Some(0.5), None));
        assert!(sets.has(one, Label(2)) && !sets.has(other, Label(2)));
        [one, one, other].into_iter().for_each(|number| sets.leave(number));
        assert!(sets.numbers.is_empty());
        assert_eq!(sets.enter(vec![Label(9)]), other, "its number is used again");
    }

    #[test]
    fn the_nearest_shared_part_counts() {
        let at = |host, rack, zone| Topology {
            host: Some(Label(host)),
            rack: Some(Label(rack)),
            zone: Some(Label(zone)),
        };
        let here = at(1, 2, 3);
        assert_eq!(here.shared(&at(1, 2, 3)), Some(Level::Host));
        assert_eq!(here.shared(&at(9, 2, 3)), Some(Level::Rack));
        assert_eq!(here.shared(&at(9, 9, 3)), Some(Level::Zone));
        assert_eq!(here.shared(&at(9, 9, 9)), None);
        assert_eq!(Topology::default().shared(&Topology::default()), None);
    }
}
