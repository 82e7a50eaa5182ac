//! The placement core's index, as event feeds, metrics and traces see it: told and asked without
//! the pool's lock.
//!
//! Source: names of spans of the llm-d router.

use crate::Program;
use crate::cycle::SPANS;
use crate::plugin::LookupMeter;
use stator_placement::{Blocks, EventEffect, PromptOverlaps, Time, WorkerHoldings};
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::{KvEvent, Medium};
use stator_protos::{Generation, WorkerRank};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tracing::field::Empty;
use tracing::{Span, info_span};

/// Blocks that the endpoints of a pool hold. Calls about one worker come one after the other.
pub struct Prefixes {
    blocks: Arc<Blocks>,
    lookup_meter: Option<Arc<dyn LookupMeter>>,
    wanted: bool,
    admitted_blocks: AtomicU64,
}

impl Prefixes {
    pub(crate) fn new(blocks: &Arc<Blocks>, program: &Program) -> Self {
        Self {
            blocks: blocks.clone(),
            lookup_meter: program.lookup_meter.clone(),
            wanted: program.uses_kv,
            admitted_blocks: AtomicU64::new(0),
        }
    }

    /// Follows KV events of a worker's life.
    pub fn apply(&self, rank: WorkerRank, generation: Generation, events: &[KvEvent]) {
        for event in events {
            let (span, stored) = indexed(event);
            let _entered = span.enter();
            if self.blocks.apply(rank, generation, std::slice::from_ref(event)) == EventEffect::Yes
            {
                self.admitted_blocks.fetch_add(stored, Ordering::Relaxed);
            }
        }
    }

    /// Replaces what is known of a worker's blocks.
    pub fn replace(
        &self,
        rank: WorkerRank,
        generation: Generation,
        blocks: Vec<(SequenceHash, Medium)>,
    ) {
        self.add(blocks, |blocks| self.blocks.replace(rank, generation, blocks));
    }

    /// Takes over what another replica knows of a worker that [`Scheduler::expects`] it; true if
    /// its own feed has not told of its state meanwhile. May come at once with what that tells.
    ///
    /// [`Scheduler::expects`]: crate::Scheduler::expects
    pub fn restore(&self, rank: WorkerRank, held: WorkerHoldings) -> bool {
        let WorkerHoldings { generation, blocks } = held;
        self.add(blocks, |blocks| self.blocks.index().restore(rank, generation, blocks))
    }

    fn add(
        &self,
        blocks: Vec<(SequenceHash, Medium)>,
        add: impl FnOnce(Vec<(SequenceHash, Medium)>) -> EventEffect,
    ) -> bool {
        let span = info_span!(target: SPANS, "index_add", snapshot = true);
        let _entered = span.enter();
        let stored = blocks.len() as u64;
        let applied = add(blocks) == EventEffect::Yes;
        if applied {
            self.admitted_blocks.fetch_add(stored, Ordering::Relaxed);
        }
        applied
    }

    /// Blocks that workers reported to hold, for each worker whose blocks are known: see
    /// [`stator_placement::Index::held_by`].
    pub fn held_by(&self, ranks: &[WorkerRank]) -> Vec<(WorkerRank, WorkerHoldings)> {
        let held = self.blocks.index().held_by(ranks).into_iter().zip(ranks);
        held.filter_map(|(held, rank)| Some((*rank, held?))).collect()
    }

    /// Events of a worker were lost: it counts as holding nothing until they are replaced.
    pub fn unknown(&self, rank: WorkerRank) {
        self.blocks.unknown(rank);
    }

    /// Blocks of a prompt that each endpoint holds, for [`crate::Prompt::overlaps`]; nothing if no
    /// plug-in asks for them. The lookup is measured.
    pub fn look_up(&self, sequence: &[SequenceHash]) -> PromptOverlaps {
        if !self.wanted {
            return PromptOverlaps::default();
        }
        let blocks = sequence.len();
        let span = info_span!(
            target: SPANS, "produce_precise_prefix_cache",
            llm_d.epp.producer.total_blocks = blocks, llm_d.epp.producer.max_match_blocks = Empty,
        );
        let _entered = span.enter();
        let mut found = PromptOverlaps::default();
        // The spans within each other are those of the llm-d router.
        let mut lookup = || {
            let _scoring = info_span!(target: SPANS, "score_tokens", blocks).entered();
            found = info_span!(target: SPANS, "index_lookup", blocks)
                .in_scope(|| self.blocks.look_up(sequence));
            let best = info_span!(target: SPANS, "compute_scores")
                .in_scope(|| found.iter().map(|(_, overlap)| overlap.blocks()).max());
            let best = best.unwrap_or(0);
            span.record("llm_d.epp.producer.max_match_blocks", best);
            best
        };
        match &self.lookup_meter {
            Some(meter) => meter.measure(&mut lookup),
            None => {
                lookup();
            }
        }
        found
    }

    /// Predicts that a worker holds a prompt that it was sent, until it reports the blocks or
    /// `until`.
    /// No effect where no plug-in asks for that.
    pub fn predict(&self, rank: WorkerRank, sequence: &[SequenceHash], until: Time) {
        if self.wanted {
            self.blocks.predict(rank, sequence, until);
        }
    }

    /// A part of the blocks that workers count as holding because prompts were sent to them, see
    /// [`stator_placement::Index::predictions`].
    pub fn predictions(&self, from: usize, most: usize) -> Option<Vec<(WorkerRank, SequenceHash)>> {
        self.blocks.index().predictions(from, most)
    }

    /// Ends the predictions that last until `now`.
    pub fn expire(&self, now: Time) {
        self.blocks.expire(now);
    }

    /// Takes a part of what ended out of memory; true while there is more to do, see
    /// [`Blocks::maintain`].
    pub fn maintain(&self) -> bool {
        self.blocks.maintain()
    }

    /// Blocks that events and snapshots told of, since the start.
    pub(crate) fn admitted_blocks(&self) -> u64 {
        self.admitted_blocks.load(Ordering::Relaxed)
    }
}

/// The span of an event's way into the index, and how many blocks it stores.
fn indexed(event: &KvEvent) -> (Span, u64) {
    match event {
        KvEvent::Stored(stored) => {
            let blocks = stored.hashes.len() as u64;
            (info_span!(target: SPANS, "index_add", blocks), blocks)
        }
        KvEvent::Removed(removed) => {
            (info_span!(target: SPANS, "index_evict", blocks = removed.hashes.len()), 0)
        }
        KvEvent::Cleared => (info_span!(target: SPANS, "index_evict"), 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::{program, rank};
    use crate::{Scheduler, SchedulerSettings};
    use stator_protos::kv_event::{Removed, Stored};
    use std::fmt::{Debug, Write};
    use std::sync::Mutex;
    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id};
    use tracing_subscriber::Layer;
    use tracing_subscriber::layer::{Context, SubscriberExt};

    /// The spans of traces that begin, each with its fields.
    #[derive(Clone, Default)]
    struct Begun(Arc<Mutex<Vec<String>>>);

    /// A span as `name field=value`.
    struct Line(String);

    impl Visit for Line {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            write!(self.0, " {field}={value:?}").expect("a text takes all");
        }
    }

    impl<S: tracing::Subscriber> Layer<S> for Begun {
        fn on_new_span(&self, span: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
            if span.metadata().target() == SPANS {
                let mut line = Line(span.metadata().name().to_owned());
                span.record(&mut line);
                self.0.lock().expect("no test panics with it").push(line.0);
            }
        }
    }

    #[test]
    fn what_workers_tell_is_in_traces() {
        let scheduler = Scheduler::new(program(), SchedulerSettings::default());
        let (prefixes, worker, life) = (scheduler.prefixes(), rank(1), Generation(1));
        let (hashes, medium) = (vec![7, 8, 9], Medium::Device);
        let (parent, tokens, lora_name) = (None, Vec::new(), None);
        let stored = Stored { hashes, parent, tokens, block_size: 16, medium, lora_name };
        let removed = Removed { hashes: vec![8, 9], medium };
        let events = [KvEvent::Stored(stored), KvEvent::Removed(removed), KvEvent::Cleared];
        let begun = Begun::default();
        tracing::subscriber::with_default(
            tracing_subscriber::registry().with(begun.clone()),
            || {
                prefixes.apply(worker, life, &events);
                prefixes.replace(worker, life, vec![(SequenceHash(7), medium)]);
            },
        );
        let wanted = [
            "index_add blocks=3",
            "index_evict blocks=2",
            "index_evict",
            "index_add snapshot=true",
        ];
        assert_eq!(*begun.0.lock().expect("no test panics with it"), wanted);
    }
}
