//! Rules of answers, made beside the engines: compiling a form may take as long as many steps.

use crate::request_plane::outbox::Outbox;
use crate::request_plane::translate;
use crate::served_model::RuleMaker;
use crate::worker::Submission;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use stator_engine::{AnswerRules, RequestKey};
use stator_guide::Guide;
use stator_protos::worker::Sampling;
use stator_protos::worker::guide::Form;
use std::fmt;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};

/// Forms that are compiled at once. The others wait, and each holds a place of its client's stream.
const AT_ONCE: usize = 2;
/// Compiled forms that are kept for the requests to come; the one that was not used for longest goes.
const KEPT: usize = 32;

/// Makes the rules of answers for the requests of one agent.
pub(crate) struct RuleDesk {
    /// None for an engine that is told of rules and makes them itself, or has none.
    maker: Option<Arc<dyn RuleMaker>>,
    turns: Arc<Semaphore>,
    /// Compiled forms, the one that was used last at the end.
    kept: Mutex<Vec<(Form, Guide)>>,
}

impl fmt::Debug for RuleDesk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuleDesk").field("makes", &self.maker.is_some()).finish_non_exhaustive()
    }
}

impl RuleDesk {
    /// A desk that has rules made by `maker`.
    pub(crate) fn new(maker: Option<Arc<dyn RuleMaker>>) -> Self {
        Self { maker, turns: Arc::new(Semaphore::new(AT_ONCE)), kept: Mutex::default() }
    }

    /// The rules of an answer; none if its form must be compiled first.
    pub(crate) fn ready(&self, sampling: &Sampling) -> Option<AnswerRules> {
        let Some(maker) = &self.maker else { return Some(AnswerRules::default()) };
        let guide = match sampling.form() {
            Some(form) => Some(self.find(form)?),
            None => None,
        };
        let thoughts = sampling.thought_limit.as_ref().map(|limit| maker.guard(limit));
        Some(AnswerRules { guide, thoughts })
    }

    /// Makes the rules of an answer.
    ///
    /// # Errors
    ///
    /// A message for a form that cannot be compiled.
    ///
    /// # Cancel safety
    ///
    /// A form that is being compiled is kept for the next request.
    pub(crate) async fn make(
        self: Arc<Self>,
        sampling: Arc<Sampling>,
    ) -> Result<AnswerRules, String> {
        if let Some(rules) = self.ready(&sampling) {
            return Ok(rules);
        }
        let turn = self.turns.clone().acquire_owned().await.expect("nobody closes it");
        // Other requests may have had the same form compiled meanwhile.
        if let Some(rules) = self.ready(&sampling) {
            return Ok(rules);
        }
        let compiling = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            self.compile(&sampling)
        });
        compiling.await.map_err(|_| "guide: compiling the form failed".to_owned())?
    }

    /// Compiles the form of an answer and keeps it.
    fn compile(&self, sampling: &Sampling) -> Result<AnswerRules, String> {
        let mut rules = AnswerRules::default();
        let Some(maker) = &self.maker else { return Ok(rules) };
        rules.thoughts = sampling.thought_limit.as_ref().map(|limit| maker.guard(limit));
        let Some(form) = sampling.form() else { return Ok(rules) };
        let guide = maker.compile(form).map_err(|error| format!("guide: {error}"))?;
        rules.guide = Some(guide.clone());
        let mut kept = self.kept.lock();
        if kept.len() >= KEPT {
            kept.remove(0);
        }
        kept.push((form.clone(), guide));
        Ok(rules)
    }

    /// A guide at the beginning of an answer of this form, if the form was compiled.
    fn find(&self, form: &Form) -> Option<Guide> {
        let mut kept = self.kept.lock();
        let at = kept.iter().position(|(known, _)| known == form)?;
        let used = kept.remove(at);
        let guide = used.1.clone();
        kept.push(used);
        Some(guide)
    }
}

/// Requests of one stream whose rules are being made. Dropping it gives them up.
#[derive(Default)]
pub(crate) struct PendingRules {
    making: JoinSet<ReadySubmission>,
    by_key: FxHashMap<RequestKey, PendingEnd>,
}

/// A submission whose rules were made, or not.
pub(crate) struct ReadySubmission {
    /// Index of its worker in the agent.
    pub(crate) worker: usize,
    /// The submission, with its rules.
    pub(crate) submission: Submission,
    /// Why there are no rules.
    pub(crate) ruled: Result<(), String>,
}

/// The end of a request that is given up before it has its rules.
struct PendingEnd {
    making: AbortHandle,
    request_id: u64,
    first_choice: u32,
}

impl ReadySubmission {
    fn key(&self) -> RequestKey {
        self.submission.request.key
    }
}

impl PendingRules {
    /// Has the rules of a submission made.
    pub(crate) fn begin(&mut self, desk: Arc<RuleDesk>, worker: usize, mut submission: Submission) {
        let (key, sampling) = (submission.request.key, submission.request.sampling.clone());
        let (request_id, first_choice) = (submission.request_id, submission.request.first_choice);
        let making = self.making.spawn(async move {
            let rules = desk.make(sampling).await;
            let ruled = rules.map(|rules| submission.request.rules = rules);
            ReadySubmission { worker, submission, ruled }
        });
        self.by_key.insert(key, PendingEnd { making, request_id, first_choice });
    }

    /// The next submission that has its rules; waits for ever if there is none to come.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> ReadySubmission {
        loop {
            match self.making.join_next().await {
                // A request that was given up may have had its rules by then.
                Some(Ok(ruled)) if self.by_key.remove(&ruled.key()).is_some() => return ruled,
                Some(_) => {}
                None => std::future::pending().await,
            }
        }
    }

    /// Gives a request up, and says so on its stream; false if its rules are not being made.
    pub(crate) fn cancel(&mut self, key: RequestKey, outbox: &Outbox) -> bool {
        let Some(PendingEnd { making, request_id, first_choice }) = self.by_key.remove(&key) else {
            return false;
        };
        making.abort();
        outbox.push_last(translate::cancelled(request_id, first_choice));
        true
    }
}
