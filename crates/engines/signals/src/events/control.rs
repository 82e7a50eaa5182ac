//! What others may ask of a running follower.

use stator_placement::Closure;
use stator_protos::Generation;
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::Medium;
use tokio::sync::{mpsc, oneshot};

/// Questions that may wait; those who ask are held up beyond them.
pub(super) const COMMANDS_MAX: usize = 16;

/// Speaks to a follower that runs elsewhere. Cheap to clone.
///
/// # Cancel safety
///
/// What was asked may be done although nobody waits for it any more.
#[derive(Clone, Debug)]
pub struct Control(mpsc::Sender<Command>);

type Look = Box<dyn FnOnce(&View<'_>) + Send>;

/// What the follower is to do between two messages.
pub(super) enum Command {
    Look(Look),
    /// Then say so.
    Cleared(oneshot::Sender<()>),
    Restarted(oneshot::Sender<()>),
}

/// What a follower knows between two messages of its engine.
pub struct View<'a> {
    /// The life that is followed.
    pub generation: Generation,
    /// Whether what the engine holds is known, as far as it told of it. Where it is not, there are
    /// no blocks.
    pub known: bool,
    pub(super) closure: &'a Closure,
}

impl std::fmt::Debug for View<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { generation, known, .. } = self;
        f.debug_struct("View").field("generation", generation).field("known", known).finish()
    }
}

impl View<'_> {
    /// The blocks that the sink was told of and that are still there, those of the start of a
    /// sequence before those after them.
    pub fn blocks(&self) -> impl Iterator<Item = (SequenceHash, Medium)> {
        self.closure.blocks()
    }
}

impl Control {
    pub(super) fn new() -> (Self, mpsc::Receiver<Command>) {
        let (sender, receiver) = mpsc::channel(COMMANDS_MAX);
        (Self(sender), receiver)
    }

    /// Looks at what is known, in order with the calls of the sink: all that it was told before is
    /// in the view, and nothing else. `look` runs in the follower's task, which waits for it.
    /// `None` once the follower has ended.
    pub async fn look<R: Send + 'static>(
        &self,
        look: impl FnOnce(&View<'_>) -> R + Send + 'static,
    ) -> Option<R> {
        let (sender, answer) = oneshot::channel();
        // Whoever asked may be gone, which is no concern of the follower.
        let look = Box::new(move |view: &View<'_>| drop(sender.send(look(view))));
        self.0.send(Command::Look(look)).await.ok()?;
        answer.await.ok()
    }

    /// The engine's cache was reset: it holds nothing, from here on, and no replay of what was
    /// before is believed. The life goes on. vLLM itself says so only with its next step.
    pub async fn cleared(&self) {
        self.tell(Command::Cleared).await;
    }

    /// The engine's process was replaced, or is gone: another life begins. Messages that came and
    /// were not followed yet are dropped. The sink hears of a life and of what is not known; where
    /// there is a connection to be made, of another life once it stands.
    pub async fn restarted(&self) {
        self.tell(Command::Restarted).await;
    }

    async fn tell(&self, command: impl FnOnce(oneshot::Sender<()>) -> Command) {
        let (done, answer) = oneshot::channel();
        // A follower that has ended knows nothing, so that there is nothing to be forgotten.
        if self.0.send(command(done)).await.is_ok() {
            let _ = answer.await;
        }
    }
}
