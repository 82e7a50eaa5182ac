//! Follows the numbered events of one life of one worker, and finds out when it cannot.
//!
//! Pure: what arrives goes in, what is to be done comes out; the task that owns the feed does it.
//!
//! A feed starts with a snapshot, follows live batches by their numbers, asks for a replay when
//! numbers are missing, and takes a new snapshot when the replay cannot fill the hole; before
//! that it says that the worker is unknown, so that nobody decides by blocks that may be gone.

use std::collections::BTreeMap;

/// Batches kept while a replay or a snapshot is on its way; more make the feed start over.
pub const BUFFER_MAX: usize = 4096;

/// An input of the feed. `B` is a batch of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input<B> {
    /// A live batch.
    Batch {
        /// Its number.
        number: u64,
        /// Its events.
        batch: B,
    },
    /// The worker says which number its next batch will have.
    Next(u64),
    /// The answer to [`Action::AskReplay`], whole and in order.
    Replayed(Vec<(u64, B)>),
    /// The replay did not come, or could not be read.
    ReplayFailed,
    /// The answer to [`Action::AskSnapshot`].
    Snapshot {
        /// Number of the first batch that is not in it.
        next: u64,
    },
    /// The snapshot did not come.
    SnapshotFailed,
}

/// Steps for the feed's owner, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<B> {
    /// Forget the worker's blocks.
    Unknown,
    /// Replace them by the snapshot that was just given.
    Replace,
    /// Follow these events.
    Apply(B),
    /// Ask for the batches from this number on.
    AskReplay(u64),
    /// Ask for a snapshot.
    AskSnapshot,
}

/// The state of one worker's feed.
#[derive(Debug)]
pub struct Feed<B> {
    state: State,
    /// Batches that are ahead of what could be applied.
    buffer: BTreeMap<u64, B>,
    /// Batches below this number are known to exist.
    target: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The blocks are unknown; a snapshot is on its way.
    Syncing,
    /// All batches before `next` are applied, and no later one is known.
    Following { next: u64 },
    /// All batches before `next` are applied, later ones exist; a replay is on its way.
    Replaying { next: u64 },
}

impl<B> Feed<B> {
    /// A feed of which nothing is known, and what it needs first.
    pub fn start(actions: &mut Vec<Action<B>>) -> Self {
        actions.extend([Action::Unknown, Action::AskSnapshot]);
        Self { state: State::Syncing, buffer: BTreeMap::new(), target: 0 }
    }

    /// Takes in what arrived; appends what is to be done.
    pub fn take(&mut self, input: Input<B>, actions: &mut Vec<Action<B>>) {
        match input {
            Input::Batch { number, batch } => self.batch(number, batch, actions),
            Input::Next(next) => {
                self.target = self.target.max(next);
                self.advance(actions);
            }
            Input::Replayed(batches) => self.replayed(batches, actions),
            // An answer that comes after the state moved on belongs to a question of the past.
            Input::ReplayFailed => {
                if let State::Replaying { .. } = self.state {
                    self.resync(actions);
                }
            }
            Input::Snapshot { next } => {
                if self.state == State::Syncing {
                    actions.push(Action::Replace);
                    self.state = State::Following { next };
                    self.advance(actions);
                }
            }
            Input::SnapshotFailed => {
                if self.state == State::Syncing {
                    actions.push(Action::AskSnapshot);
                }
            }
        }
    }

    fn batch(&mut self, number: u64, batch: B, actions: &mut Vec<Action<B>>) {
        self.target = self.target.max(number.saturating_add(1));
        self.buffer.insert(number, batch);
        if self.buffer.len() > BUFFER_MAX {
            match self.state {
                // The snapshot will most likely have the oldest; if not, their absence shows.
                State::Syncing => drop(self.buffer.pop_first()),
                State::Following { .. } | State::Replaying { .. } => return self.resync(actions),
            }
        }
        self.advance(actions);
    }

    fn replayed(&mut self, batches: Vec<(u64, B)>, actions: &mut Vec<Action<B>>) {
        let State::Replaying { next: before } = self.state else { return };
        for (number, batch) in batches {
            self.target = self.target.max(number.saturating_add(1));
            if number >= before {
                self.buffer.insert(number, batch);
            }
        }
        let next = self.drain(before, actions);
        self.state = if next == before && self.target > next {
            // It did not have what was missing: the log has forgotten it.
            return self.resync(actions);
        } else {
            State::Following { next }
        };
        self.advance(actions);
    }

    /// Applies what can be applied, and asks for what is then missing.
    fn advance(&mut self, actions: &mut Vec<Action<B>>) {
        match self.state {
            State::Syncing => {}
            State::Following { next } => {
                let next = self.drain(next, actions);
                self.state = if self.target > next {
                    actions.push(Action::AskReplay(next));
                    State::Replaying { next }
                } else {
                    State::Following { next }
                };
            }
            State::Replaying { next } => {
                self.state = State::Replaying { next: self.drain(next, actions) };
            }
        }
    }

    /// Applies the buffered batches from `next` on without a gap; returns the next number.
    fn drain(&mut self, mut next: u64, actions: &mut Vec<Action<B>>) -> u64 {
        while let Some(entry) = self.buffer.first_entry() {
            let number = *entry.key();
            if number > next {
                break;
            }
            let batch = entry.remove();
            // What is below was applied before: a duplicate.
            if number == next {
                actions.push(Action::Apply(batch));
                next = next.saturating_add(1);
            }
        }
        next
    }

    /// Gives up what is known and starts over.
    fn resync(&mut self, actions: &mut Vec<Action<B>>) {
        self.buffer.clear();
        // The snapshot has everything that was told of so far, and a number that was told wrongly
        // must not make it seem incomplete for ever.
        self.target = 0;
        self.state = State::Syncing;
        actions.extend([Action::Unknown, Action::AskSnapshot]);
    }
}

#[cfg(test)]
#[path = "feed_tests.rs"]
mod tests;
