//! Carries out what the store decides.

use super::settings::{Progress, TierEventListener};
use super::shared::SharedStore;
use crate::metrics::HeldBlocks;
use crate::store::{Action, TierId};
use crate::tier::{Tier, TierEvent};
use crate::turns;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// Gives tiers their work and listeners their news. It owns the tiers: the store behind the lock
/// knows them by number only, so that tiers may keep the store.
pub(super) struct Dispatcher {
    pub(super) shared: Arc<SharedStore>,
    pub(super) tiers: Vec<Arc<dyn Tier>>,
    pub(super) events: TierEventListener,
    pub(super) held: HeldBlocks,
}

impl Dispatcher {
    /// Carries out decisions until the store is closed.
    fn run(mut self) {
        turns::shorten();
        while let Some(decisions) = self.shared.wait() {
            self.carry_out(decisions);
            self.held.publish(self.shared.status_to_publish());
        }
    }

    /// Carries out decisions in their order. Without the store's lock: tiers and listeners may call
    /// back.
    pub(super) fn carry_out(&mut self, decisions: VecDeque<Action>) {
        for action in decisions {
            match action {
                Action::Read { tier, read } => self.tier(tier).read(read),
                Action::Cancel { tier, name, slot } => self.tier(tier).cancel(name, slot),
                Action::Write { tier, write } => self.tier(tier).write(write),
                Action::Ready { owner, request, slots, pending } => {
                    let progress = Progress { request, slots, pending };
                    if let Some(news) = self.shared.news((owner, request), progress) {
                        (news.listener)(news.progress);
                    }
                }
                Action::Event(event) => {
                    match event {
                        TierEvent::Stored { medium, .. } => self.held.stored(medium),
                        TierEvent::Removed { medium, .. } => self.held.removed(medium),
                        TierEvent::Cleared => {
                            self.tiers.iter().for_each(|tier| tier.clear());
                            self.held.clear();
                        }
                    }
                    (self.events)(event);
                }
                Action::Forget { tier, names } => self.tier(tier).forget(&names),
                Action::Clear { tier } => self.tier(tier).clear(),
            }
        }
        if let Some(news) = self.shared.verify_next() {
            (news.listener)(news.progress);
        }
    }

    fn tier(&self, tier: TierId) -> &dyn Tier {
        &*self.tiers[usize::from(tier.0)]
    }
}

/// The thread of a dispatcher, which ends when this is dropped.
pub(super) struct DispatchThread {
    shared: Arc<SharedStore>,
    thread: Option<JoinHandle<()>>,
}

impl DispatchThread {
    pub(super) fn start(dispatcher: Dispatcher) -> io::Result<Self> {
        let shared = dispatcher.shared.clone();
        let thread = thread::Builder::new().name("kv-store".into());
        let thread = thread.spawn(move || dispatcher.run())?;
        Ok(Self { shared, thread: Some(thread) })
    }
}

impl Drop for DispatchThread {
    fn drop(&mut self) {
        self.shared.close();
        // A listener may drop the last client, in the thread itself.
        let thread = self.thread.take().filter(|of| of.thread().id() != thread::current().id());
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of the KV store panicked");
        }
    }
}
