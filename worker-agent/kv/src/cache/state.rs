//! The state of a cache behind its lock.

use super::questions::{QuestionKey, Questions};
use super::settings::ProgressListener;
use crate::cost::EnginePace;
use crate::metrics::TierWay;
use crate::store::{Action, BlockStore, Found, LoanTerms, OwnerId, RequestId, SlotContent, TierId};
use crate::{Now, SlotId};
use rustc_hash::FxHashMap;
use stator_protos::name::BlockName;
use std::collections::VecDeque;

/// Blocks that are evicted at a time where more slots are in use than may be.
const SHRINK_BLOCKS: usize = 256;

/// The store with its decisions that have not been carried out, and who waits for what.
pub(super) struct StoreState {
    pub(super) store: BlockStore,
    /// Decisions in their order.
    pub(super) outbox: VecDeque<Action>,
    pub(super) questions: Questions,
    /// Ends of answers whose blocks have not been compared with their checksums.
    pub(super) unverified: VecDeque<UnverifiedBlocks>,
    pub(super) listeners: FxHashMap<OwnerId, ClientListener>,
    /// Times at which tiers were given their work.
    pub(super) started: FxHashMap<(TierId, TierWay, SlotId), Now>,
    /// Whether more slots are in use than may be, and there are blocks to evict.
    pub(super) has_excess: bool,
    /// When the state was published last.
    pub(super) published: Option<Now>,
    pub(super) is_closed: bool,
}

/// A client's way to hear of progress.
#[derive(Clone)]
pub(super) struct ClientListener {
    pub(super) tell: ProgressListener,
    /// Whether the client lends blocks to other agents, and is no engine.
    pub(super) is_lender: bool,
}

/// A question for the leading blocks of a prompt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question<'n> {
    pub(super) owner: OwnerId,
    pub(super) request: RequestId,
    pub(super) names: &'n [BlockName],
    pub(super) purpose: QuestionPurpose,
}

/// The use of the blocks that are asked for.
#[derive(Clone, Copy, Debug)]
pub(super) enum QuestionPurpose {
    /// An engine of this pace loads them.
    Load(EnginePace),
    /// Another agent reads them.
    Lend(LoanTerms),
}

/// The end of an answer: blocks in host memory that are to be compared with their checksums.
pub(super) struct UnverifiedBlocks {
    pub(super) key: QuestionKey,
    /// Number of the question.
    pub(super) number: u64,
    pub(super) slots: Vec<SlotId>,
    /// Blocks behind them that are on their way from a tier.
    pub(super) pending: usize,
}

impl StoreState {
    pub(super) fn new(store: BlockStore) -> Self {
        Self {
            store,
            outbox: VecDeque::new(),
            questions: Questions::default(),
            unverified: VecDeque::new(),
            listeners: FxHashMap::default(),
            started: FxHashMap::default(),
            has_excess: false,
            published: None,
            is_closed: false,
        }
    }

    pub(super) fn ask(&mut self, question: Question<'_>, now: Now) -> (Found, Vec<SlotContent>) {
        let Question { owner, request, names, purpose } = question;
        // Progress of an earlier question would be taken for progress of this one.
        self.outbox.retain(|action| {
            !matches!(action, Action::Ready { owner: of, request: number, .. }
                if (*of, *number) == (owner, request))
        });
        self.questions.ask((owner, request));
        let found = match purpose {
            QuestionPurpose::Load(pace) => self.store.ask(owner, request, names, pace, now),
            QuestionPurpose::Lend(terms) => self.store.lend(owner, request, names, terms, now),
        };
        let contents = self.contents(&found.ready);
        (found, contents)
    }

    /// The answer to a question stands: progress may follow.
    pub(super) fn answered(&mut self, key: QuestionKey, pending: usize) {
        let held = self.questions.answered(key, pending);
        self.outbox.extend(held);
    }

    /// The beginning of an answer stands: these blocks in host memory are still to be compared.
    pub(super) fn answered_in_part(
        &mut self,
        key: QuestionKey,
        slots: Vec<SlotId>,
        pending: usize,
    ) {
        match self.questions.number(key).filter(|_| !slots.is_empty()) {
            Some(number) => {
                self.unverified.push_back(UnverifiedBlocks { key, number, slots, pending });
            }
            None => self.answered(key, pending),
        }
    }

    pub(super) fn contents(&self, slots: &[SlotId]) -> Vec<SlotContent> {
        slots.iter().filter_map(|slot| self.store.content(*slot)).collect()
    }

    /// Decisions that are carried out from now on.
    pub(super) fn take(&mut self, now: Now) -> VecDeque<Action> {
        self.store.expire(now);
        self.has_excess = self.store.shrink(SHRINK_BLOCKS, now);
        self.collect();
        for action in &self.outbox {
            let work = match action {
                Action::Read { tier, read } => (*tier, TierWay::read, read.slot),
                Action::Write { tier, write } => (*tier, TierWay::write, write.slot),
                _ => continue,
            };
            self.started.insert(work, now);
        }
        std::mem::take(&mut self.outbox)
    }

    /// Takes over what the store has decided.
    pub(super) fn collect(&mut self) {
        while let Some(action) = self.store.next_action() {
            self.outbox.extend(self.questions.hold(action));
        }
    }
}
