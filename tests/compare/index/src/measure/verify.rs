//! Whether indexes give the same answers: every prompt of a corpus at its time, and some of them
//! beside a literal reference.

use super::{Values, counts};
use crate::corpus::{Change, Corpus, Request};
use crate::subject::{Depth, Lane, Subject};
use rustc_hash::FxHashSet;
use std::time::Instant;

/// One prompt in this many is answered by the reference too.
const SAMPLE: usize = 16;

/// What workers hold, taken down literally.
struct Reference(Vec<FxHashSet<u64>>);

impl Reference {
    fn apply(&mut self, change: &Change<'_>) {
        let held = &mut self.0[change.worker() as usize];
        match change {
            Change::Stored { chain, start, .. } => held.extend(&chain.sequence[*start..]),
            Change::Removed { sequence, .. } => {
                sequence.iter().for_each(|hash| _ = held.remove(hash));
            }
        }
    }

    /// How many leading blocks of a prompt each worker holds, found one by one.
    fn depths(&self, sequence: &[u64]) -> Vec<Depth> {
        let depth = |held: &FxHashSet<u64>| {
            sequence.iter().take_while(|hash| held.contains(hash)).count() as u32
        };
        let depths = (0..).zip(self.0.iter().map(depth));
        depths.filter(|&(_, depth)| depth > 0).collect()
    }
}

/// An index with what it answered wrongly.
struct Checked<S: Subject> {
    subject: S,
    buffers: S::Buffers,
    wrong: usize,
}

impl<S: Subject> Checked<S> {
    fn new(corpus: &Corpus) -> Self {
        Self { subject: S::new(corpus), buffers: S::Buffers::default(), wrong: 0 }
    }

    fn answer(&mut self, corpus: &Corpus, request: &Request) -> Vec<Depth> {
        let query = S::query(corpus.chain(request));
        let found = self.subject.lookup(&query, &mut self.buffers);
        S::depths(&found, &self.buffers)
    }

    fn apply(&mut self, corpus: &Corpus, request: &Request) {
        let counts = counts(corpus.workers, corpus.changes(request));
        if counts.iter().all(|&n| n == 0) {
            return;
        }
        let mut lane = self.subject.lane(Instant::now(), &counts);
        corpus.changes(request).for_each(|change| lane.send(S::event(&change)));
        lane.finish();
    }
}

/// Replays a corpus through two indexes and enters what differed; true if nothing did.
pub fn same_answers<A: Subject, B: Subject>(corpus: &Corpus, values: &mut Values) -> bool {
    let (mut a, mut b) = (Checked::<A>::new(corpus), Checked::<B>::new(corpus));
    let mut reference = Reference(vec![FxHashSet::default(); corpus.workers as usize]);
    let (mut differing, mut sampled) = (0, 0);
    for (number, request) in corpus.requests.iter().enumerate() {
        let (answer_a, answer_b) = (a.answer(corpus, request), b.answer(corpus, request));
        differing += usize::from(answer_a != answer_b);
        if number % SAMPLE == 0 {
            let expected = reference.depths(corpus.chain(request).sequence);
            a.wrong += usize::from(answer_a != expected);
            b.wrong += usize::from(answer_b != expected);
            sampled += 1;
        }
        a.apply(corpus, request);
        b.apply(corpus, request);
        corpus.changes(request).for_each(|change| reference.apply(&change));
    }
    let mut enter = |name: String, n: usize| values.insert(name, n as f64);
    enter("prompts compared".into(), corpus.requests.len());
    enter(format!("answers unlike those of {}", B::NAME), differing);
    enter("prompts compared with the reference".into(), sampled);
    enter("answers unlike the reference's".into(), a.wrong);
    enter(format!("answers of {} unlike the reference's", B::NAME), b.wrong);
    differing + a.wrong + b.wrong == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dynamo::{Crtc, Positional};
    use crate::fleet::{Fleet, serve};
    use crate::ours::Ours;
    use crate::trace::synthesise;

    #[track_caller]
    fn check<S: Subject>() {
        let fleet = Fleet { workers: 8, block_size: 64, capacity: Some(2_000), copies: 1 };
        let corpus = serve(fleet, &synthesise(2)[..400]);
        assert!(!corpus.removed.is_empty());
        let mut values = Values::new();
        assert!(same_answers::<S, Crtc>(&corpus, &mut values), "{values:?}");
        assert_eq!(values["prompts compared"], 400.0);
    }

    #[test]
    fn ours_answers_as_dynamos_tree_does() {
        check::<Ours>();
    }

    #[test]
    fn dynamos_positional_index_answers_as_its_tree_does() {
        check::<Positional>();
    }
}
