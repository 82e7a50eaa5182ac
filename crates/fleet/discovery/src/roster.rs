//! Roster of agents, judged from the sightings of back-ends. Pure.

use crate::record::{AGENTS_MAX, lease};
use stator_protos::discovery::AgentRecord;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Result of a look at a back-end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sighting {
    /// Whether all records could be read. If not, nothing is known of who left.
    pub complete: bool,
    /// Whether the back-end is out of reach, so that this is what it said before.
    pub stale: bool,
    /// Whether agents are named of which nothing else is known yet.
    pub pending: bool,
    /// The records, by agent.
    pub records: BTreeMap<String, Arc<AgentRecord>>,
    /// Agents whose records are there but cannot be understood.
    pub malformed: BTreeSet<String>,
    /// Of these, those that were not so at the last look, and what is wrong.
    pub newly_malformed: Vec<(String, String)>,
    /// Agents whose records are there, although the back-end takes the agents for dead.
    pub doubted: BTreeSet<String>,
    /// The meaning of a record that disappears.
    pub absence: Absence,
}

/// The meaning of a record that a readable back-end no longer has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Absence {
    /// Perhaps nothing: keys end with their leases, and directories are emptied by mistake.
    #[default]
    Doubt,
    /// The operator, or the orchestrator, took the agent away.
    Departure,
}

/// Record of an agent, or the fault in it.
pub(crate) type RecordResult = Result<Arc<AgentRecord>, String>;

/// Makes sightings of what a back-end has, and tells of each fault once.
#[derive(Debug, Default)]
pub(crate) struct Sight {
    faults: BTreeMap<String, String>,
}

impl Sight {
    /// A complete sighting of these agents.
    pub(crate) fn of<'a>(
        &mut self,
        reads: impl Iterator<Item = (&'a str, &'a RecordResult)>,
    ) -> Sighting {
        let mut seen = Sighting { complete: true, ..Sighting::default() };
        let mut faults = BTreeMap::new();
        for (agent, read) in reads {
            match read {
                Ok(record) => drop(seen.records.insert(agent.to_owned(), record.clone())),
                Err(fault) => {
                    seen.malformed.insert(agent.to_owned());
                    if self.faults.get(agent) != Some(fault) {
                        seen.newly_malformed.push((agent.to_owned(), fault.clone()));
                    }
                    faults.insert(agent.to_owned(), fault.clone());
                }
            }
        }
        self.faults = faults;
        seen
    }
}

/// A change of who is there.
#[derive(Clone, Debug, PartialEq)]
pub enum AgentChange {
    /// An agent came, its record says something new beside its lease, or its lease holds again.
    Up(Arc<AgentRecord>),
    /// Nobody vouches for an agent any more: its lease ended, or its record disappeared. Whether
    /// the agent lives, only the agent itself can say.
    Lapsed(Arc<AgentRecord>),
    /// An agent was taken away.
    Down(String),
}

/// The agents that are there.
#[derive(Debug, Default)]
pub struct Roster {
    agents: BTreeMap<String, Entry>,
}

/// An agent that is there.
#[derive(Debug)]
struct Entry {
    record: Arc<AgentRecord>,
    /// The time at which the record last changed, or could not be seen.
    changed_at: Duration,
    lapsed: bool,
}

impl Entry {
    /// Takes in what a look found of the agent; returns what that changes.
    fn see(&mut self, found: Option<&Arc<AgentRecord>>, look: &Look) -> Option<AgentChange> {
        let renewed = found.is_some_and(|found| !Arc::ptr_eq(found, &self.record));
        let mut says_new = false;
        if let Some(found) = found.filter(|_| renewed) {
            says_new = !says_the_same(found, &self.record);
            self.record = found.clone();
        }
        // A back-end that cannot be read could not be written either.
        if renewed || (look.stale && found.is_none()) {
            self.changed_at = look.now;
        }
        let age = look.now.saturating_sub(self.changed_at);
        let lapsed = look.doubted || age >= lease(&self.record);
        let was_lapsed = std::mem::replace(&mut self.lapsed, lapsed);
        match (was_lapsed, lapsed) {
            (false, true) => Some(AgentChange::Lapsed(self.record.clone())),
            (true, false) => Some(AgentChange::Up(self.record.clone())),
            (false, false) if says_new => Some(AgentChange::Up(self.record.clone())),
            _ => None,
        }
    }

    /// The change that follows from a record that disappeared.
    fn vanish(self, agent: String, absence: Absence) -> Option<AgentChange> {
        match absence {
            Absence::Departure => Some(AgentChange::Down(agent)),
            Absence::Doubt if self.lapsed => None,
            Absence::Doubt => Some(AgentChange::Lapsed(self.record)),
        }
    }
}

/// The outcome of a look for one agent.
struct Look {
    now: Duration,
    stale: bool,
    doubted: bool,
}

impl Roster {
    /// Judges a sighting at a time on the reader's own clock.
    ///
    /// An agent lapses when its record has not changed for the length of its lease, or is gone
    /// from a back-end that can be read. A record that makes no sense proves nothing before that,
    /// and a back-end that is out of reach nothing at all: its agents could not renew their leases
    /// either.
    pub fn update(&mut self, seen: &Sighting, now: Duration) -> Vec<AgentChange> {
        let mut changes = Vec::new();
        let look =
            |agent: &String| Look { now, stale: seen.stale, doubted: seen.doubted.contains(agent) };
        // Only a complete look proves that a record is gone; an unreadable one is still there.
        let gone = |agent: &String, _: &mut Entry| {
            let known = seen.records.contains_key(agent)
                || seen.malformed.contains(agent)
                || seen.doubted.contains(agent);
            seen.complete && !known
        };
        for (agent, entry) in self.agents.extract_if(.., gone) {
            changes.extend(entry.vanish(agent, seen.absence));
        }
        for (agent, entry) in &mut self.agents {
            changes.extend(entry.see(seen.records.get(agent), &look(agent)));
        }
        for (agent, found) in &seen.records {
            if self.agents.contains_key(agent) || self.agents.len() >= AGENTS_MAX {
                continue;
            }
            let (record, lapsed) = (found.clone(), look(agent).doubted);
            self.agents.insert(agent.clone(), Entry { record, changed_at: now, lapsed });
            changes.push(if lapsed {
                AgentChange::Lapsed(found.clone())
            } else {
                AgentChange::Up(found.clone())
            });
        }
        changes
    }

    /// Number of agents.
    pub fn len(&self) -> usize {
        self.agents.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.agents.is_empty()
    }
}

/// Whether two records of an agent differ in nothing but the ends of their leases.
fn says_the_same(a: &Arc<AgentRecord>, b: &Arc<AgentRecord>) -> bool {
    let lease_expires_unix_ms = b.lease_expires_unix_ms;
    Arc::ptr_eq(a, b) || AgentRecord { lease_expires_unix_ms, ..AgentRecord::clone(a) } == **b
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::sample;
    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;

    /// A record with a lease of 100 ms, as it was renewed for the n-th time.
    fn record(agent: &str, renewal: u64) -> AgentRecord {
        AgentRecord { lease_ms: 100, ..sample(agent, renewal) }
    }

    fn found(records: &[AgentRecord]) -> Sighting {
        let records =
            records.iter().map(|record| (record.agent_id.clone(), Arc::new(record.clone())));
        Sighting { complete: true, records: records.collect(), ..Sighting::default() }
    }

    fn doubting(agent: &str, seen: Sighting) -> Sighting {
        Sighting { doubted: [agent.to_owned()].into(), ..seen }
    }

    fn ms(time: u64) -> Duration {
        Duration::from_millis(time)
    }

    fn up(record: AgentRecord) -> AgentChange {
        AgentChange::Up(Arc::new(record))
    }

    fn lapsed(record: AgentRecord) -> AgentChange {
        AgentChange::Lapsed(Arc::new(record))
    }

    #[test]
    fn a_renewed_lease_is_no_change_and_another_word_is() {
        let mut roster = Roster::default();
        assert_eq!(roster.update(&found(&[record("a", 1)]), ms(0)), [up(record("a", 1))]);
        assert_eq!(roster.update(&found(&[record("a", 2)]), ms(50)), []);
        let draining = AgentRecord { accepting: false, ..record("a", 3) };
        let seen = found(std::slice::from_ref(&draining));
        assert_eq!(roster.update(&seen, ms(140)), [up(draining)]);
    }

    #[test]
    fn a_lease_is_measured_from_the_last_change_whatever_the_agents_clock_says() {
        for clock in [0, 1, u64::MAX - 9] {
            let mut roster = Roster::default();
            let (first, second) = (found(&[record("a", clock)]), found(&[record("a", clock + 1)]));
            assert_eq!(roster.update(&first, ms(1000)).len(), 1);
            assert_eq!(roster.update(&first, ms(1099)), []);
            assert_eq!(roster.update(&second, ms(1099)), []);
            assert_eq!(roster.update(&second, ms(1198)), []);
            assert_eq!(roster.update(&second, ms(1199)), [lapsed(record("a", clock + 1))]);
            assert_eq!(roster.update(&second, ms(9999)), [], "it is told once");
            let third = found(&[record("a", clock + 2)]);
            assert_eq!(roster.update(&third, ms(10_000)), [up(record("a", clock + 2))]);
        }
    }

    #[test]
    fn a_record_without_the_length_of_its_lease_has_the_usual_one() {
        let mut roster = Roster::default();
        let seen = found(&[sample("a", 0)]);
        roster.update(&seen, ms(0));
        assert_eq!(roster.update(&seen, ms(5999)), []);
        assert_eq!(roster.update(&seen, ms(6000)), [lapsed(sample("a", 0))]);
    }

    #[test]
    fn a_record_that_disappears_is_doubted_or_gone_as_the_back_end_means_it() {
        for absence in [Absence::Doubt, Absence::Departure] {
            let mut roster = Roster::default();
            roster.update(&found(&[record("a", 1), record("b", 1)]), ms(0));
            let seen = Sighting { absence, ..found(&[record("a", 2)]) };
            let expected = match absence {
                Absence::Doubt => lapsed(record("b", 1)),
                Absence::Departure => AgentChange::Down("b".into()),
            };
            assert_eq!(roster.update(&seen, ms(1)), [expected]);
            assert_eq!(roster.update(&seen, ms(2)), []);
            assert_eq!(roster.len(), 1);
            assert_eq!(
                roster.update(&found(&[record("b", 2)]), ms(3)).last(),
                Some(&up(record("b", 2)))
            );
        }
    }

    #[test]
    fn who_lapsed_before_its_record_disappeared_is_told_of_once() {
        let mut roster = Roster::default();
        let seen = found(&[record("a", 1)]);
        roster.update(&seen, ms(0));
        assert_eq!(roster.update(&seen, ms(100)).len(), 1);
        assert_eq!(roster.update(&found(&[]), ms(101)), []);
        assert!(roster.is_empty());
    }

    #[test]
    fn a_back_end_that_is_down_ends_no_lease() {
        let mut roster = Roster::default();
        roster.update(&found(&[record("a", 1), record("b", 1)]), ms(0));
        let out_of_reach = Sighting { stale: true, ..Sighting::default() };
        assert_eq!(roster.update(&out_of_reach, ms(50)), []);
        assert_eq!(roster.update(&out_of_reach, ms(1000)), []);
        // What could be read of it is as old as it looks.
        let partly = Sighting { complete: false, stale: true, ..found(&[record("a", 2)]) };
        assert_eq!(roster.update(&partly, ms(1001)), []);
        assert_eq!(roster.update(&partly, ms(1101)), [lapsed(record("a", 2))]);
        // It is back: its agents have a lease's time to renew.
        let both = found(&[record("a", 3), record("b", 1)]);
        let back: Vec<_> = roster.update(&both, ms(1102));
        assert_eq!(back, [up(record("a", 3))]);
    }

    #[test]
    fn whom_the_back_end_doubts_is_doubted_until_it_does_no_more() {
        let mut roster = Roster::default();
        let seen = found(&[record("a", 1)]);
        // One that was never seen alive too: a file that nobody writes any more.
        assert_eq!(roster.update(&doubting("a", seen.clone()), ms(0)), [lapsed(record("a", 1))]);
        assert_eq!(roster.update(&seen, ms(1)), [up(record("a", 1))]);
        assert_eq!(roster.update(&doubting("a", found(&[])), ms(2)), [lapsed(record("a", 1))]);
        assert_eq!(roster.update(&doubting("b", seen), ms(3)), [up(record("a", 1))]);
        assert_eq!(roster.len(), 1, "of who is doubted and has no record nothing is known");
    }

    #[test]
    fn a_record_that_makes_no_sense_counts_until_its_lease_ends() {
        let mut roster = Roster::default();
        roster.update(&found(&[record("a", 1)]), ms(0));
        let malformed = Sighting { malformed: ["a".into()].into(), ..found(&[]) };
        assert_eq!(roster.update(&malformed, ms(60)), []);
        assert_eq!(roster.update(&malformed, ms(100)), [lapsed(record("a", 1))]);
    }

    #[test]
    fn faults_are_told_once_until_they_change() {
        let mut sight = Sight::default();
        let told = |sight: &mut Sight, fault: &str| {
            let read: RecordResult = Err(fault.into());
            let seen = sight.of([("a", &read)].into_iter());
            assert_eq!(seen.malformed, ["a".to_owned()].into());
            seen.newly_malformed.len()
        };
        assert_eq!(told(&mut sight, "x"), 1);
        assert_eq!(told(&mut sight, "x"), 0);
        assert_eq!(told(&mut sight, "y"), 1);
        sight.of(std::iter::empty());
        assert_eq!(told(&mut sight, "y"), 1);
    }

    #[test]
    fn no_more_agents_than_the_limit_are_followed() {
        let mut roster = Roster::default();
        let names = |from: usize| (from..from + AGENTS_MAX).map(|n| record(&format!("{n:05}"), 9));
        let first: Vec<_> = names(0).collect();
        assert_eq!(roster.update(&found(&first), ms(0)).len(), AGENTS_MAX);
        let more: Vec<_> = names(0).chain(names(AGENTS_MAX)).collect();
        assert_eq!(roster.update(&found(&more), ms(0)), []);
        assert_eq!(roster.len(), AGENTS_MAX);
    }

    proptest! {
        /// Applied one after the other, the changes lead to what a plain map says: of each agent
        /// its last word and when that was heard, forgotten with its record, and kept with all
        /// that an unreadable back-end last said.
        #[test]
        fn changes_agree_with_a_plain_map(
            looks in vec((any::<bool>(), btree_map("[a-c]", (0u64..3, any::<bool>()), 0..3)), 1..12),
        ) {
            let mut roster = Roster::default();
            let mut model: BTreeMap<String, (AgentRecord, u64)> = BTreeMap::new();
            let mut told: BTreeMap<String, (bool, bool)> = BTreeMap::new();
            let mut kept: BTreeMap<(String, u64, bool), Arc<AgentRecord>> = BTreeMap::new();
            for (now, (complete, agents)) in (0..).map(|look| look * 40).zip(looks) {
                let records: BTreeMap<_, _> = agents
                    .iter()
                    .map(|(agent, &(renewal, accepting))| {
                        let made = || Arc::new(AgentRecord { accepting, ..record(agent, renewal) });
                        // Back-ends give what has not changed as they gave it before.
                        let key = (agent.clone(), renewal, accepting);
                        (agent.clone(), kept.entry(key).or_insert_with(made).clone())
                    })
                    .collect();
                if complete {
                    model.retain(|agent, _| agents.contains_key(agent));
                }
                for (agent, found) in &records {
                    let known = model.entry(agent.clone()).or_insert_with(|| (AgentRecord::clone(found), now));
                    if known.0 != **found {
                        *known = (AgentRecord::clone(found), now);
                    }
                }
                for (agent, known) in &mut model {
                    if !records.contains_key(agent) {
                        known.1 = now;
                    }
                }
                let seen = Sighting { complete, stale: !complete, records, ..Sighting::default() };
                for change in roster.update(&seen, ms(now)) {
                    match change {
                        AgentChange::Up(r) => drop(told.insert(r.agent_id.clone(), (true, r.accepting))),
                        AgentChange::Lapsed(r) => {
                            let was = told.insert(r.agent_id.clone(), (false, r.accepting));
                            prop_assert!(was.is_some_and(|(held, _)| held));
                        }
                        AgentChange::Down(_) => prop_assert!(false, "absence is only doubted"),
                    }
                }
                let holding = told.iter().filter(|(_, (held, _))| *held);
                let told: Vec<_> = holding.map(|(agent, (_, accepting))| (agent.clone(), *accepting)).collect();
                let holding = model.iter().filter(|(_, (_, at))| now - at < 100);
                let model: Vec<_> = holding.map(|(agent, (r, _))| (agent.clone(), r.accepting)).collect();
                prop_assert_eq!(told, model);
            }
        }
    }
}
