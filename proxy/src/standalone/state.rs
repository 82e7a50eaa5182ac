//! The workers of a pool as their agents tell of them, and the placement that is told the same.

use super::no_split::NoSplitReason;
use rustc_hash::FxHashMap;
use stator_fleet::AgentClient;
use stator_placement::{Placement, SplitReason, Worker, profile};
use stator_protos::WorkerRank;
use stator_protos::discovery::{ProfileRecord, Role};
use std::sync::Arc;
use std::time::Instant;

/// Adapters of workers that left which are remembered at most.
const FORMER_ADAPTERS_MAX: usize = 4096;

/// Members and the placement's workers change together.
pub(crate) struct PoolState {
    pub(crate) placement: Placement,
    members: FxHashMap<WorkerRank, Member>,
    parts: Parts,
    abilities: Abilities,
    /// Adapters that members who answer have loaded, and how many of these.
    adapters: FxHashMap<Arc<str>, usize>,
    /// Adapters that such members had when they left, and until when these are still known.
    former_adapters: FxHashMap<Arc<str>, Instant>,
}

/// A worker as its agent's task sees it.
struct Member {
    worker: Worker,
    client: Arc<AgentClient>,
    profile: Arc<ProfileRecord>,
    suspected_until: Option<Instant>,
}

/// Number of members that do only a part of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Parts {
    all: usize,
    prefill: usize,
    /// Of those for prompts, who do not say how others get the KV.
    mute: usize,
}

/// Numbers of members who answer requests, by what their engines do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Abilities {
    embedding: usize,
    classifying: usize,
    bounding: usize,
    pinning: usize,
    /// Members whose engine answers prompts, and members whose engine does not.
    answering: usize,
    pooling: usize,
}

impl Abilities {
    /// The counters of what an engine with this profile does.
    fn of(&mut self, profile: &ProfileRecord) -> impl Iterator<Item = &mut usize> {
        let counters = [
            (&mut self.embedding, profile.embeds),
            (&mut self.classifying, profile.classifies),
            (&mut self.bounding, profile.bounds_thoughts),
            (&mut self.pinning, profile.pins),
            (&mut self.answering, !profile.only_pools),
            (&mut self.pooling, profile.only_pools),
        ];
        counters.into_iter().filter_map(|(counter, does)| does.then_some(counter))
    }
}

/// Whether the engines of a pool answer prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answering {
    /// All do, as far as is known.
    All,
    /// Some do, and some only make vectors or classes.
    Some,
    /// None does.
    None,
}

impl PoolState {
    pub(crate) fn new(placement: Placement) -> Self {
        Self {
            placement,
            members: FxHashMap::default(),
            parts: Parts::default(),
            abilities: Abilities::default(),
            adapters: FxHashMap::default(),
            former_adapters: FxHashMap::default(),
        }
    }

    /// Client of a worker's agent.
    pub(crate) fn client(&self, worker: WorkerRank) -> Option<&Arc<AgentClient>> {
        self.members.get(&worker).map(|member| &member.client)
    }

    /// A worker is there, or something about it changed. False if another agent has it, in the
    /// same life or a later one.
    pub(crate) fn enter(
        &mut self,
        worker: Worker,
        client: &Arc<AgentClient>,
        now: Instant,
    ) -> bool {
        let rank = worker.worker;
        let known = self.members.get(&rank);
        let keeps = |known: &Member| known.worker.generation >= worker.generation;
        if known.is_some_and(|known| !Arc::ptr_eq(&known.client, client) && keeps(known)) {
            return false;
        }
        let profile = client.profile();
        let is_new = known.is_none_or(|known| !Arc::ptr_eq(&known.profile, &profile));
        // What an earlier life failed says nothing of this one.
        let same_life = known.filter(|known| known.worker.generation == worker.generation);
        let suspected_until = same_life.and_then(|known| known.suspected_until);
        if is_new {
            self.unlist(rank);
            self.list(&profile);
        }
        let member =
            Member { worker, client: client.clone(), profile: profile.clone(), suspected_until };
        self.members.insert(rank, member);
        self.refresh(rank, now);
        if is_new {
            self.placement.set_profile(rank, profile::profile(&profile));
        }
        true
    }

    /// A worker is gone, unless another agent has it. Its adapters are known until `until`, because
    /// a worker that restarts has them again.
    pub(crate) fn leave(&mut self, worker: WorkerRank, client: &Arc<AgentClient>, until: Instant) {
        if let Some(member) = self.members.get(&worker)
            && Arc::ptr_eq(&member.client, client)
        {
            if profile::answers(&member.profile) {
                let room = FORMER_ADAPTERS_MAX.saturating_sub(self.former_adapters.len());
                let names = member.profile.adapters.iter().take(room);
                self.former_adapters.extend(names.map(|name| (name.as_str().into(), until)));
            }
            self.unlist(worker);
            self.members.remove(&worker);
            self.placement.worker_down(worker);
        }
    }

    /// A worker gets no new requests before `until`.
    pub(crate) fn suspect(&mut self, worker: WorkerRank, now: Instant, until: Instant) {
        if let Some(member) = self.members.get_mut(&worker) {
            member.suspected_until = Some(until);
            self.refresh(worker, now);
        }
    }

    /// Tells the placement whether a member takes requests now.
    pub(crate) fn refresh(&mut self, worker: WorkerRank, now: Instant) {
        let Some(member) = self.members.get_mut(&worker) else { return };
        member.suspected_until = member.suspected_until.filter(|until| *until > now);
        let accepting = member.worker.accepting
            && member.suspected_until.is_none()
            && profile::is_usable(&member.profile);
        self.placement.worker_up(Worker { accepting, ..member.worker });
    }

    /// Why a worker computes a prompt itself; `None` where all members do everything.
    pub(crate) fn no_split(&self, reason: SplitReason) -> Option<NoSplitReason> {
        let Parts { all, prefill, mute } = self.parts;
        (all > 0).then(|| NoSplitReason::new(reason, prefill > 0 && prefill == mute))
    }

    /// Whether a member who answers makes vectors of prompts.
    pub(crate) fn embeds(&self) -> bool {
        self.abilities.embedding > 0
    }

    /// Whether a member who answers makes the probabilities of classes of prompts.
    pub(crate) fn classifies(&self) -> bool {
        self.abilities.classifying > 0
    }

    /// Whether the members' engines answer prompts.
    pub(crate) fn answering(&self) -> Answering {
        match self.abilities {
            Abilities { pooling: 0, .. } => Answering::All,
            Abilities { answering: 0, .. } => Answering::None,
            _ => Answering::Some,
        }
    }

    /// Whether a member who answers ends thoughts that are too long.
    pub(crate) fn bounds_thoughts(&self) -> bool {
        self.abilities.bounding > 0
    }

    /// Whether a member who answers keeps prompts cached for a time.
    pub(crate) fn pins(&self) -> bool {
        self.abilities.pinning > 0
    }

    /// Whether a member who answers has this adapter loaded, or had when it left.
    pub(crate) fn has_adapter(&self, name: &str, now: Instant) -> bool {
        let was_there = || self.former_adapters.get(name).is_some_and(|until| now < *until);
        self.adapters.contains_key(name) || was_there()
    }

    /// All such adapters, in order.
    pub(crate) fn adapters(&mut self, now: Instant) -> Vec<Arc<str>> {
        self.former_adapters.retain(|_, until| now < *until);
        let mut names: Vec<_> =
            self.adapters.keys().chain(self.former_adapters.keys()).cloned().collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Counts a profile in.
    fn list(&mut self, profile: &ProfileRecord) {
        self.parts.all += usize::from(profile::is_partial(profile));
        self.parts.prefill += usize::from(profile.role == Role::Prefill);
        self.parts.mute += usize::from(!profile::is_usable(profile));
        if !profile::answers(profile) {
            return;
        }
        self.abilities.of(profile).for_each(|counter| *counter += 1);
        for name in &profile.adapters {
            match self.adapters.get_mut(name.as_str()) {
                Some(count) => *count += 1,
                None => drop(self.adapters.insert(name.as_str().into(), 1)),
            }
        }
    }

    /// Counts a member's profile out again, if it is known.
    fn unlist(&mut self, worker: WorkerRank) {
        let Some(profile) = self.members.get(&worker).map(|member| member.profile.clone()) else {
            return;
        };
        self.parts.all -= usize::from(profile::is_partial(&profile));
        self.parts.prefill -= usize::from(profile.role == Role::Prefill);
        self.parts.mute -= usize::from(!profile::is_usable(&profile));
        if !profile::answers(&profile) {
            return;
        }
        self.abilities.of(&profile).for_each(|counter| *counter -= 1);
        for name in &profile.adapters {
            let count = self.adapters.get_mut(name.as_str()).expect("it was counted in");
            *count -= 1;
            if *count == 0 {
                self.adapters.remove(name.as_str());
            }
        }
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
