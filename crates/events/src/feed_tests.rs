use super::*;
use proptest::prelude::*;
use std::collections::{BTreeSet, VecDeque};

type Events = Vec<u32>;

fn check(inputs: Vec<Input<Events>>) -> Vec<Action<Events>> {
    let mut actions = Vec::new();
    let mut feed = Feed::start(&mut actions);
    actions.clear();
    for input in inputs {
        feed.take(input, &mut actions);
    }
    actions
}

fn batch(number: u64) -> Input<Events> {
    Input::Batch { number, batch: vec![number as u32] }
}

fn apply(number: u64) -> Action<Events> {
    Action::Apply(vec![number as u32])
}

fn replayed(numbers: std::ops::Range<u64>) -> Input<Events> {
    Input::Replayed(numbers.map(|number| (number, vec![number as u32])).collect())
}

#[test]
fn a_feed_starts_unknown_and_with_a_snapshot() {
    let mut actions: Vec<Action<Events>> = Vec::new();
    Feed::start(&mut actions);
    assert_eq!(actions, [Action::Unknown, Action::AskSnapshot]);
}

#[test]
fn what_came_before_the_snapshot_is_applied_after_it_and_only_if_it_is_newer() {
    let actions = check(vec![batch(3), batch(4), batch(5), Input::Snapshot { next: 4 }, batch(6)]);
    assert_eq!(actions, [Action::Replace, apply(4), apply(5), apply(6)]);
}

#[test]
fn duplicates_are_ignored() {
    let actions = check(vec![Input::Snapshot { next: 0 }, batch(0), batch(0), batch(1), batch(0)]);
    assert_eq!(actions, [Action::Replace, apply(0), apply(1)]);
}

#[test]
fn a_gap_is_filled_by_replay() {
    let actions =
        check(vec![Input::Snapshot { next: 0 }, batch(2), batch(3), replayed(0..3), batch(4)]);
    let expected =
        [Action::Replace, Action::AskReplay(0), apply(0), apply(1), apply(2), apply(3), apply(4)];
    assert_eq!(actions, expected);
}

#[test]
fn a_replay_that_starts_too_late_makes_the_worker_unknown_first() {
    let actions = check(vec![Input::Snapshot { next: 0 }, batch(5), replayed(3..6)]);
    let expected = [Action::Replace, Action::AskReplay(0), Action::Unknown, Action::AskSnapshot];
    assert_eq!(actions, expected);
}

#[test]
fn a_silent_loss_shows_in_the_workers_next_number() {
    let actions = check(vec![Input::Snapshot { next: 7 }, Input::Next(7), Input::Next(8)]);
    assert_eq!(actions, [Action::Replace, Action::AskReplay(7)]);
}

#[test]
fn a_failed_replay_leads_to_a_snapshot_and_a_failed_snapshot_to_another() {
    let inputs =
        vec![Input::Snapshot { next: 0 }, batch(1), Input::ReplayFailed, Input::SnapshotFailed];
    let expected = [
        Action::Replace,
        Action::AskReplay(0),
        Action::Unknown,
        Action::AskSnapshot,
        Action::AskSnapshot,
    ];
    assert_eq!(check(inputs), expected);
}

#[test]
fn the_buffer_is_bounded_while_replaying_and_while_syncing() {
    let mut inputs = vec![Input::Snapshot { next: 0 }];
    inputs.extend((1..BUFFER_MAX as u64 + 2).map(batch));
    let actions = check(inputs.clone());
    assert_eq!(actions[1..], [Action::AskReplay(0), Action::Unknown, Action::AskSnapshot]);

    let mut actions = Vec::new();
    let mut feed = Feed::start(&mut actions);
    for input in inputs.drain(1..) {
        feed.take(input, &mut actions);
    }
    assert_eq!(feed.buffer.len(), BUFFER_MAX);
}

/// What the network and the worker may do.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// The worker stores or removes a block and publishes that.
    Change(u32),
    /// It says its next number.
    Beat,
    /// The message at this place arrives, and is gone or stays (a duplicate).
    Deliver { place: usize, stays: bool },
    /// The message at this place is lost.
    Lose { place: usize },
    /// A question is answered, if one is asked.
    Answer,
    /// A question is lost.
    Fail,
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0u32..8).prop_map(Event::Change),
        1 => Just(Event::Beat),
        4 => (0usize..4, prop::bool::weighted(0.1))
            .prop_map(|(place, stays)| Event::Deliver { place, stays }),
        1 => (0usize..4).prop_map(|place| Event::Lose { place }),
        2 => Just(Event::Answer),
        1 => Just(Event::Fail),
    ]
}

/// A worker, a network that does as it likes, and the feed.
struct World {
    /// The worker's blocks before each number.
    history: Vec<BTreeSet<u32>>,
    changes: Vec<u32>,
    /// Batches that the log still has.
    log_length: usize,
    wire: VecDeque<Input<Events>>,
    questions: VecDeque<Action<Events>>,
    feed: Feed<Events>,
    /// What the feed's user believes; `None` is unknown.
    believed: Option<BTreeSet<u32>>,
    /// The number up to which it believes it.
    applied: usize,
    /// What the snapshot that is being handed over contains.
    snapshot: (BTreeSet<u32>, usize),
}

impl World {
    fn new(log_length: usize) -> Self {
        let mut actions = Vec::new();
        let feed = Feed::start(&mut actions);
        let mut world = Self {
            history: vec![BTreeSet::new()],
            changes: vec![],
            log_length,
            wire: VecDeque::new(),
            questions: VecDeque::new(),
            feed,
            believed: None,
            applied: 0,
            snapshot: (BTreeSet::new(), 0),
        };
        world.act(actions);
        world
    }

    fn give(&mut self, input: Input<Events>) {
        let mut actions = Vec::new();
        self.feed.take(input, &mut actions);
        self.act(actions);
    }

    fn act(&mut self, actions: Vec<Action<Events>>) {
        for action in actions {
            match action {
                Action::Unknown => self.believed = None,
                Action::Replace => {
                    self.believed = Some(self.snapshot.0.clone());
                    self.applied = self.snapshot.1;
                }
                Action::Apply(events) => {
                    let believed =
                        self.believed.as_mut().expect("an unknown state is not followed");
                    events.into_iter().for_each(|block| toggle(believed, block));
                    self.applied += 1;
                }
                Action::AskReplay(_) | Action::AskSnapshot => self.questions.push_back(action),
            }
            // Whatever is served is what the worker had at some time.
            if let Some(believed) = &self.believed {
                assert_eq!(believed, &self.history[self.applied]);
            }
        }
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Change(block) => {
                let mut blocks = self.history.last().unwrap().clone();
                toggle(&mut blocks, block);
                let number = self.changes.len() as u64;
                self.changes.push(block);
                self.history.push(blocks);
                self.wire.push_back(Input::Batch { number, batch: vec![block] });
            }
            Event::Beat => self.wire.push_back(Input::Next(self.changes.len() as u64)),
            Event::Deliver { place, stays } => {
                let Some(input) = self.wire.get(place).cloned() else { return };
                if !stays {
                    self.wire.remove(place);
                }
                self.give(input);
            }
            Event::Lose { place } => drop(self.wire.remove(place)),
            Event::Answer => match self.questions.pop_front() {
                Some(Action::AskReplay(from)) => {
                    let held = self.changes.len().saturating_sub(self.log_length);
                    let batches = (held.max(from as usize)..self.changes.len())
                        .map(|number| (number as u64, vec![self.changes[number]]));
                    let input = Input::Replayed(batches.collect());
                    self.give(input);
                }
                Some(_) => {
                    let next = self.changes.len();
                    self.snapshot = (self.history[next].clone(), next);
                    self.give(Input::Snapshot { next: next as u64 });
                }
                None => {}
            },
            Event::Fail => match self.questions.pop_front() {
                Some(Action::AskReplay(_)) => self.give(Input::ReplayFailed),
                Some(_) => self.give(Input::SnapshotFailed),
                None => {}
            },
        }
    }

    /// Nothing is lost any more; everything is answered.
    fn settle(&mut self) {
        self.step(Event::Beat);
        for _ in 0..1000 {
            if self.wire.is_empty() && self.questions.is_empty() {
                return;
            }
            self.step(Event::Deliver { place: 0, stays: false });
            self.step(Event::Answer);
        }
        panic!("the feed never comes to rest: {:?}", self.questions);
    }
}

fn toggle(blocks: &mut BTreeSet<u32>, block: u32) {
    if !blocks.remove(&block) {
        blocks.insert(block);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Whatever is lost, duplicated, reordered or fails: what is served was true at some time, and
    /// at rest it is what the worker has.
    #[test]
    fn ends_where_the_worker_is(
        events in prop::collection::vec(any_event(), 0..200),
        log_length in 0usize..6,
    ) {
        let mut world = World::new(log_length);
        for event in events {
            world.step(event);
        }
        world.settle();
        prop_assert_eq!(world.believed.as_ref(), world.history.last());
        prop_assert!(world.feed.buffer.is_empty());
    }
}
