//! Finds the tokenizer of the model that a pool serves, and keeps it up to date.
//!
//! With a tokenizer, prompts are hashed as engines hash them and the index of reported blocks can
//! be asked. Without one a picker falls back to blocks of text, and [`TokenizerState`] says why.
//! [`Renderer`] is the third way: a server that turns requests into token ids.

mod files;
mod hub;
mod render;
mod source;

pub use files::SourceError;
pub use hub::HubSource;
pub use render::{RenderError, RenderSettings, Renderer};
pub use source::{AgentSource, TokenizerSource};

use crate::SignalMetrics;
use stator_model::Model;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Waits after a failure, from the first to the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// State of a tokenizer.
#[derive(Clone, Debug, Default)]
pub enum TokenizerState {
    /// Not loaded yet; loading goes on.
    #[default]
    Loading,
    /// Loaded.
    Ready(Arc<Model>),
    /// Loading failed, or loading its successor did; tried again now and then.
    Failed {
        /// The reason.
        reason: String,
        /// The model before it, if there was one.
        previous: Option<Arc<Model>>,
    },
}

impl TokenizerState {
    /// The tokenizer, if there is one.
    pub fn model(&self) -> Option<&Arc<Model>> {
        match self {
            Self::Loading => None,
            Self::Ready(model) => Some(model),
            Self::Failed { previous, .. } => previous.as_ref(),
        }
    }
}

/// Gets a model's tokenizer in the background, and again when its source changes. Dropping it
/// ends that.
#[derive(Debug)]
pub struct Provision {
    state: watch::Receiver<TokenizerState>,
    _task: JoinSet<()>,
}

impl Provision {
    /// Starts to get the tokenizer of the model that clients call `name`. The source is looked at
    /// every `poll`; 5 s is a good value. Must be called within a Tokio runtime.
    pub fn start(
        name: &str,
        source: TokenizerSource,
        poll: Duration,
        metrics: SignalMetrics,
    ) -> Self {
        let (sender, state) = watch::channel(TokenizerState::default());
        let keeper = Keeper { name: name.into(), source, state: sender, stamp: None, metrics };
        let mut task = JoinSet::new();
        task.spawn(keeper.run(poll));
        Self { state, _task: task }
    }

    /// The state now, and its changes.
    pub fn state(&self) -> watch::Receiver<TokenizerState> {
        self.state.clone()
    }

    /// The tokenizer, if there is one.
    pub fn model(&self) -> Option<Arc<Model>> {
        self.state.borrow().model().cloned()
    }
}

struct Keeper {
    name: String,
    source: TokenizerSource,
    state: watch::Sender<TokenizerState>,
    /// Stamp of the source when it was last loaded.
    stamp: Option<String>,
    metrics: SignalMetrics,
}

impl Keeper {
    async fn run(mut self, poll: Duration) {
        let mut backoff = BACKOFF.0.min(poll);
        loop {
            let wait = match self.look().await {
                Ok(()) => {
                    backoff = BACKOFF.0.min(poll);
                    poll
                }
                Err(error) => {
                    self.failed(&error);
                    let wait = backoff;
                    backoff = (backoff * 2).min(BACKOFF.1);
                    wait
                }
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// Loads what is new.
    async fn look(&mut self) -> Result<(), SourceError> {
        let stamp = self.source.stamp().await?;
        if self.stamp.as_ref() == Some(&stamp) {
            return Ok(());
        }
        let files = self.source.files().await?;
        let name = self.name.clone();
        // Building a vocabulary takes up to a second.
        let loading = tokio::task::spawn_blocking(move || Model::load(&name, &files));
        let model = loading.await.map_err(|error| SourceError::Crashed(error.to_string()))??;
        tracing::info!(model = self.name, "tokenizer loaded");
        self.stamp = Some(stamp);
        self.metrics.tokenizers.inc();
        self.metrics.tokenizer_ready.set(1);
        self.state.send_replace(TokenizerState::Ready(Arc::new(model)));
        Ok(())
    }

    fn failed(&mut self, error: &SourceError) {
        self.metrics.tokenizers_failed.inc();
        tracing::warn!(model = self.name, %error, "cannot load the tokenizer");
        // It is loaded again even if it turns back into what it was.
        self.stamp = None;
        let previous = self.state.borrow().model().cloned();
        self.state.send_replace(TokenizerState::Failed { reason: error.to_string(), previous });
    }
}

#[cfg(test)]
mod tests;
