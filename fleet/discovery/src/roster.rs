//! Who is there, judged from what back-ends see. Pure.

use crate::record::AGENTS_MAX;
use stator_protos::discovery::AgentRecord;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What a look at a back-end found.
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
}

/// What was read of an agent.
pub(crate) type Read = Result<Arc<AgentRecord>, String>;

/// Makes sightings of what a back-end has, and tells of each fault once.
#[derive(Debug, Default)]
pub(crate) struct Sight {
    faults: BTreeMap<String, String>,
}

impl Sight {
    /// A complete sighting of these agents.
    pub(crate) fn of<'a>(&mut self, reads: impl Iterator<Item = (&'a str, &'a Read)>) -> Sighting {
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
pub enum Change {
    /// An agent came, or its record says something new beside its lease.
    Up(Arc<AgentRecord>),
    /// An agent left, or let its lease run out.
    Down(String),
}

/// The agents that are there.
#[derive(Debug, Default)]
pub struct Roster {
    agents: BTreeMap<String, Arc<AgentRecord>>,
}

impl Roster {
    /// Judges a sighting at a time in milliseconds since the Unix epoch.
    ///
    /// An agent leaves when its record is gone from a back-end that can be read, or when its
    /// lease has run out. A record that makes no sense proves nothing before that, and a back-end
    /// that is out of reach nothing at all: its agents could not renew their leases either.
    pub fn update(&mut self, seen: &Sighting, now_unix_ms: u64) -> Vec<Change> {
        let mut changes = Vec::new();
        self.agents.retain(|agent, record| {
            let found = seen.records.get(agent);
            let gone = seen.complete && found.is_none() && !seen.malformed.contains(agent);
            let lease = found.unwrap_or(record).lease_expires_unix_ms;
            let unknown = seen.stale && found.is_none();
            let stays = !gone && (unknown || lease > now_unix_ms);
            if !stays {
                changes.push(Change::Down(agent.clone()));
            } else if let Some(found) = found.filter(|found| says_the_same(found, record)) {
                *record = found.clone();
            }
            stays
        });
        for (agent, found) in &seen.records {
            let known = self.agents.get(agent);
            let is_new = known.is_none_or(|known| !Arc::ptr_eq(known, found));
            let has_room = known.is_some() || self.agents.len() < AGENTS_MAX;
            if found.lease_expires_unix_ms > now_unix_ms && is_new && has_room {
                self.agents.insert(agent.clone(), found.clone());
                changes.push(Change::Up(found.clone()));
            }
        }
        changes
    }

    /// How many agents there are.
    pub fn len(&self) -> usize {
        self.agents.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.agents.is_empty()
    }
}

/// Whether two records of an agent differ in nothing but their leases.
fn says_the_same(a: &Arc<AgentRecord>, b: &Arc<AgentRecord>) -> bool {
    let lease_expires_unix_ms = b.lease_expires_unix_ms;
    Arc::ptr_eq(a, b) || AgentRecord { lease_expires_unix_ms, ..AgentRecord::clone(a) } == **b
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::sample as record;
    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;

    fn found(records: &[AgentRecord]) -> Sighting {
        let records =
            records.iter().map(|record| (record.agent_id.clone(), Arc::new(record.clone())));
        Sighting { complete: true, records: records.collect(), ..Sighting::default() }
    }

    fn up(record: AgentRecord) -> Change {
        Change::Up(Arc::new(record))
    }

    fn down(agent: &str) -> Change {
        Change::Down(agent.into())
    }

    #[test]
    fn a_renewed_lease_is_no_change_and_another_word_is() {
        let mut roster = Roster::default();
        let first = record("a", 100);
        assert_eq!(roster.update(&found(std::slice::from_ref(&first)), 0), [up(first)]);
        assert_eq!(roster.update(&found(&[record("a", 200)]), 50), []);
        let draining = AgentRecord { accepting: false, ..record("a", 300) };
        assert_eq!(roster.update(&found(std::slice::from_ref(&draining)), 150), [up(draining)]);
    }

    #[test]
    fn an_agent_leaves_with_its_record_or_its_lease() {
        let mut roster = Roster::default();
        roster.update(&found(&[record("a", 100), record("b", 100)]), 0);
        assert_eq!(roster.update(&found(&[record("a", 100)]), 1), [down("b")]);
        assert_eq!(roster.update(&found(&[record("a", 100)]), 100), [down("a")]);
        assert_eq!(roster.update(&found(&[record("a", 100)]), 101), []);
    }

    #[test]
    fn a_back_end_that_is_down_empties_nothing() {
        let mut roster = Roster::default();
        roster.update(&found(&[record("a", 100), record("b", 100), record("c", 100)]), 0);
        let out_of_reach = Sighting { stale: true, ..Sighting::default() };
        assert_eq!(roster.update(&out_of_reach, 50), []);
        assert_eq!(roster.update(&out_of_reach, 1000), []);
        let partly = Sighting { complete: false, stale: true, ..found(&[record("a", 100)]) };
        assert_eq!(roster.update(&partly, 1001), [down("a")], "it was read, and is late");
        let again = found(&[record("b", 2000)]);
        assert_eq!(roster.update(&again, 1002), [down("c")]);
    }

    #[test]
    fn a_record_that_makes_no_sense_counts_until_its_lease_ends() {
        let mut roster = Roster::default();
        roster.update(&found(&[record("a", 100)]), 0);
        let malformed = Sighting { malformed: ["a".into()].into(), ..found(&[]) };
        assert_eq!(roster.update(&malformed, 60), []);
        assert_eq!(roster.update(&malformed, 100), [down("a")]);
    }

    #[test]
    fn faults_are_told_once_until_they_change() {
        let mut sight = Sight::default();
        let told = |sight: &mut Sight, fault: &str| {
            let read: Read = Err(fault.into());
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
        assert_eq!(roster.update(&found(&first), 0).len(), AGENTS_MAX);
        let more: Vec<_> = names(0).chain(names(AGENTS_MAX)).collect();
        assert_eq!(roster.update(&found(&more), 0), []);
        assert_eq!(roster.len(), AGENTS_MAX);
    }

    proptest! {
        /// Applied one after the other, the changes lead to exactly those whose leases hold: a
        /// plain map that forgets what is gone, and keeps what an unreadable back-end last said.
        #[test]
        fn changes_agree_with_a_plain_map(
            looks in vec((any::<bool>(), btree_map("[a-c]", (0u64..8, any::<bool>()), 0..3)), 1..9),
        ) {
            let mut roster = Roster::default();
            let mut model: BTreeMap<String, AgentRecord> = BTreeMap::new();
            let mut told: BTreeMap<String, Arc<AgentRecord>> = BTreeMap::new();
            for (now, (complete, agents)) in (0..).zip(looks) {
                let records: Vec<_> = agents
                    .iter()
                    .map(|(a, (lease, accepting))| {
                        AgentRecord { accepting: *accepting, ..record(a, *lease) }
                    })
                    .collect();
                if complete {
                    model.clear();
                }
                model.extend(records.iter().map(|r| (r.agent_id.clone(), r.clone())));
                model.retain(|agent, record| {
                    let unknown = !complete && !agents.contains_key(agent);
                    unknown || record.lease_expires_unix_ms > now
                });
                let seen = Sighting { complete, stale: !complete, ..found(&records) };
                for change in roster.update(&seen, now) {
                    match change {
                        Change::Up(record) => drop(told.insert(record.agent_id.clone(), record)),
                        Change::Down(agent) => prop_assert!(told.remove(&agent).is_some()),
                    }
                }
                let told: Vec<_> = told.iter().map(|(a, r)| (a.clone(), r.accepting)).collect();
                let kept: Vec<_> = model.iter().map(|(a, r)| (a.clone(), r.accepting)).collect();
                prop_assert_eq!(told, kept);
            }
        }
    }
}
