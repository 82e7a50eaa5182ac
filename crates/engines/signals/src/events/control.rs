//! Control of a running follower by other tasks.

use stator_placement::Closure;
use stator_protos::Generation;
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::Medium;
use tokio::sync::{mpsc, oneshot};

/// Most commands that wait; senders are held up beyond them.
pub(super) const COMMANDS_MAX: usize = 16;

/// Handle to a running follower. Cheap to clone.
///
/// # Cancel safety
///
/// A command may run although its sender no longer waits.
#[derive(Clone, Debug)]
pub struct Control(mpsc::Sender<Command>);

type Look = Box<dyn FnOnce(&View<'_>) + Send>;

/// A command that the follower runs between two messages.
pub(super) enum Command {
    Look(Look),
    /// Forgets the cache, then answers.
    Cleared(oneshot::Sender<()>),
    Restarted(oneshot::Sender<()>),
    /// Follows changes of the blocks outside the engine.
    OuterChanged,
}

/// The follower's knowledge between two messages of its engine.
pub struct View<'a> {
    /// The engine's current life.
    pub generation: Generation,
    /// Whether the engine's blocks are known, as far as it reported them. If not, there are no
    /// blocks.
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
    /// Blocks that the sink knows and that still exist; the start of a sequence comes before its
    /// continuation.
    pub fn blocks(&self) -> impl Iterator<Item = (SequenceHash, Medium)> {
        self.closure.blocks()
    }

    /// The medium that holds a block, if the sink knows the block.
    pub fn medium(&self, hash: SequenceHash) -> Option<Medium> {
        self.closure.medium(hash)
    }
}

impl Control {
    pub(super) fn new() -> (Self, mpsc::Receiver<Command>) {
        let (sender, receiver) = mpsc::channel(COMMANDS_MAX);
        (Self(sender), receiver)
    }

    /// Runs `look` on the follower's knowledge, in order with the calls of the sink: the view has
    /// all that the sink was told before, and nothing else. `look` runs in the follower's task,
    /// which waits for it. `None` once the follower has ended.
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

    /// Reports that the engine's cache was reset: the follower forgets its blocks and no longer
    /// believes replays from before. The life goes on. vLLM itself reports the reset only with its
    /// next step.
    pub async fn cleared(&self) {
        self.tell(Command::Cleared).await;
    }

    /// Reports that the engine's process was replaced or has ended: another life begins. Messages
    /// that wait are dropped. The sink hears at once of a new life with unknown blocks, and of yet
    /// another once the connection stands, where the follower makes one.
    pub async fn restarted(&self) {
        self.tell(Command::Restarted).await;
    }

    /// Reports that the blocks outside the engine changed, see [`super::OuterBlocks`].
    pub async fn outer_changed(&self) {
        // A follower that has ended publishes nothing any more.
        let _ = self.0.send(Command::OuterChanged).await;
    }

    async fn tell(&self, command: impl FnOnce(oneshot::Sender<()>) -> Command) {
        let (done, answer) = oneshot::channel();
        // A follower that has ended knows nothing, so that there is nothing to be forgotten.
        if self.0.send(command(done)).await.is_ok() {
            let _ = answer.await;
        }
    }
}
