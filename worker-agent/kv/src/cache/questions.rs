//! Questions of requests for which progress may come.

use crate::store::{Action, OwnerId, RequestId};
use std::collections::BTreeMap;

/// A request of an owner.
pub(super) type QuestionKey = (OwnerId, RequestId);

/// Questions whose blocks are partly on their way, each the latest of its request.
#[derive(Debug, Default)]
pub(super) struct Questions {
    open: BTreeMap<QuestionKey, OpenQuestion>,
    last: u64,
}

#[derive(Debug)]
struct OpenQuestion {
    /// Tells it from other questions of the same request.
    number: u64,
    /// Progress that has to wait, while the question is not answered.
    held: Option<Vec<Action>>,
}

impl Questions {
    /// A request asks. Progress of its earlier question is of no use any more, and that of this one
    /// waits for the answer.
    pub(super) fn ask(&mut self, key: QuestionKey) {
        self.last += 1;
        self.open.insert(key, OpenQuestion { number: self.last, held: Some(Vec::new()) });
    }

    /// The question is answered. Returns the progress that came before.
    pub(super) fn answered(&mut self, key: QuestionKey, pending: usize) -> Vec<Action> {
        if pending == 0 {
            self.open.remove(&key);
            return Vec::new();
        }
        let held = self.open.get_mut(&key).and_then(|question| question.held.take());
        held.unwrap_or_default()
    }

    /// Keeps progress until its question is answered. Returns all else.
    pub(super) fn hold(&mut self, action: Action) -> Option<Action> {
        let Action::Ready { owner, request, .. } = &action else { return Some(action) };
        match self.open.get_mut(&(*owner, *request)).and_then(|of| of.held.as_mut()) {
            Some(held) => {
                held.push(action);
                None
            }
            None => Some(action),
        }
    }

    /// The number of a request's question, if there may be progress.
    pub(super) fn number(&self, key: QuestionKey) -> Option<u64> {
        Some(self.open.get(&key)?.number)
    }

    /// No progress of the request is of use any more.
    pub(super) fn close(&mut self, key: QuestionKey) {
        self.open.remove(&key);
    }

    /// No progress of the owner's requests is of use any more.
    pub(super) fn close_all(&mut self, owner: OwnerId) {
        self.open.retain(|(of, _), _| *of != owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tier::TierEvent;

    const KEY: QuestionKey = (OwnerId(1), RequestId(2));

    fn progress(pending: usize) -> Action {
        Action::Ready { owner: KEY.0, request: KEY.1, slots: Vec::new(), pending }
    }

    #[test]
    fn progress_waits_for_the_answer() {
        let mut questions = Questions::default();
        assert_eq!(questions.hold(progress(1)), Some(progress(1)));
        questions.ask(KEY);
        assert_eq!(questions.hold(progress(1)), None);
        assert_eq!(
            questions.hold(Action::Event(TierEvent::Cleared)),
            Some(Action::Event(TierEvent::Cleared))
        );
        assert_eq!(questions.answered(KEY, 2), [progress(1)]);
        assert_eq!(questions.hold(progress(0)), Some(progress(0)));
    }

    #[test]
    fn a_new_question_forgets_the_progress_of_the_old_one() {
        let mut questions = Questions::default();
        questions.ask(KEY);
        let number = questions.number(KEY);
        questions.hold(progress(1));
        questions.ask(KEY);
        assert_ne!(questions.number(KEY), number);
        assert_eq!(questions.answered(KEY, 1), []);
    }

    #[test]
    fn questions_are_open_only_while_blocks_are_on_their_way() {
        let mut questions = Questions::default();
        questions.ask(KEY);
        questions.answered(KEY, 0);
        assert_eq!(questions.number(KEY), None);
        questions.ask(KEY);
        questions.answered(KEY, 1);
        questions.close_all(OwnerId(2));
        assert!(questions.number(KEY).is_some());
        questions.close_all(KEY.0);
        assert_eq!(questions.number(KEY), None);
    }
}
