//! Choice among the workers that may take a request.

use super::Placement;
use super::stage::Stage;
use crate::constraint::Constraint;
use crate::cost;
use crate::decision::{PickError, PlacementRequest, Reason};
use crate::mode::Mode;
use crate::random::Random;
use crate::sessions::Affinity;
use crate::split::Nearness;
use stator_protos::WorkerRank;

/// A worker that was chosen.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkerChoice {
    pub(super) slot: u32,
    /// Its cost; 0 in modes that weigh no costs.
    pub(super) cost: f64,
    pub(super) reason: Reason,
}

/// Why a worker may not take a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// It takes no requests, or not this one, or does something else.
    Absent,
    /// It lacks what the request needs.
    Unfit(Constraint),
    Busy,
}

impl Placement {
    /// Finds what workers have of the prompt, and what the request's needs say of their labels.
    pub(super) fn look_up(&mut self, request: &PlacementRequest<'_>) {
        let super::Scratch { overlaps, shares, verdicts, .. } = &mut self.scratch;
        shares.reset(self.fleet.slots_end());
        let overlaps = match request.overlaps {
            Some(known) => known,
            None => {
                self.blocks.expire(self.now);
                self.blocks.index().overlap(request.sequence, overlaps);
                overlaps
            }
        };
        for (worker, overlap) in overlaps.iter() {
            if let Some(slot) = self.fleet.slot(worker) {
                shares.entry(slot).overlap = overlap;
            }
        }
        self.tracker.running().overlaps(request.sequence, |slot, blocks| {
            shares.entry(slot).active_blocks = blocks;
        });
        if let Some(needs) = request.needs {
            self.fleet.labels().judge(needs, verdicts);
        }
    }

    /// Leaves in `scratch.eligible` the workers that may take the request, at least one.
    pub(super) fn find_eligible(
        &mut self,
        request: &PlacementRequest<'_>,
        stage: Stage,
    ) -> Result<(), PickError> {
        let mut eligible = std::mem::take(&mut self.scratch.eligible);
        eligible.clear();
        let result = self.collect(request, stage, &mut eligible);
        if self.fleet.shuns_suspects() && !eligible.iter().all(|slot| self.fleet.is_suspect(*slot))
        {
            eligible.retain(|slot| !self.fleet.is_suspect(*slot));
        }
        self.scratch.eligible = eligible;
        result
    }

    fn collect(
        &self,
        request: &PlacementRequest<'_>,
        stage: Stage,
        eligible: &mut Vec<u32>,
    ) -> Result<(), PickError> {
        if let Some(worker) = stage.pinned(request) {
            eligible.push(self.pinned(request, stage, worker)?);
            return Ok(());
        }
        let bound = self.bound(request, stage);
        if let (Some(slot), Some(Affinity::Hard)) = (bound, self.affinity()) {
            match self.refusal(request, stage, slot) {
                None => {
                    eligible.push(slot);
                    return Ok(());
                }
                Some(Refusal::Busy) => return Err(PickError::AllBusy { workers: 1 }),
                // The session goes on elsewhere.
                Some(Refusal::Absent | Refusal::Unfit(_)) => {}
            }
        }
        let order = self.fleet.order();
        if self.is_plain(request, stage) {
            let takes = |slot: &u32| self.fleet.open(*slot).is_some_and(|role| stage.is_for(role));
            eligible.extend(order.iter().copied().filter(takes));
        }
        if !eligible.is_empty() {
            return Ok(());
        }
        let mut busy = 0;
        for &slot in order {
            match self.refusal(request, stage, slot) {
                None => eligible.push(slot),
                Some(refusal) => busy += usize::from(refusal == Refusal::Busy),
            }
        }
        match (eligible.is_empty(), busy) {
            (false, _) => Ok(()),
            (true, 1..) => Err(PickError::AllBusy { workers: busy }),
            (true, 0) => Err(self.why_nobody(request, stage)),
        }
    }

    /// Finds who may take the request, and chooses one of them.
    ///
    /// # Errors
    ///
    /// [`PickError`] says why there is nobody.
    pub(super) fn select(
        &mut self,
        request: &PlacementRequest<'_>,
        stage: Stage,
        random: &mut Random,
    ) -> Result<WorkerChoice, PickError> {
        if let Some(chosen) = self.select_plain(request, stage, random) {
            return Ok(chosen);
        }
        self.find_eligible(request, stage)?;
        Ok(self.choose(request, stage, random))
    }

    /// Selects by cost alone if every worker that takes requests may take this one; `None` if not
    /// so, or if no worker takes requests.
    fn select_plain(
        &mut self,
        request: &PlacementRequest<'_>,
        stage: Stage,
        random: &mut Random,
    ) -> Option<WorkerChoice> {
        let plain = self.settings.mode == Mode::Kv
            && stage == Stage::Whole
            && !request.explain
            && self.is_open_to_all(request, stage);
        let weights = request.weights.unwrap_or(&self.settings.weights).settings();
        if !plain || weights.temperature > 0.0 {
            return None;
        }
        let takers = self.score_all(request, stage)?;
        let slot = cost::choose(&self.scratch.costs, 0.0, random)?;
        let cost = self.scratch.costs[slot];
        let reason = if takers == 1 { Reason::OnlyOne } else { Reason::Cost };
        Some(WorkerChoice { slot: slot as u32, cost, reason })
    }

    /// Whether every worker that takes requests may take this one.
    fn is_plain(&self, request: &PlacementRequest<'_>, stage: Stage) -> bool {
        request.excluded.is_empty()
            && request.needs.is_none()
            && request.adapter.is_none()
            && self.nearness(stage).is_none()
            && !self.settings.busy.are_set()
            && !self.fleet.shuns_suspects()
    }

    /// Whether every worker that takes requests may take this one, and nothing ties it to one.
    pub(super) fn is_open_to_all(&self, request: &PlacementRequest<'_>, stage: Stage) -> bool {
        stage.pinned(request).is_none()
            && self.is_plain(request, stage)
            && self.bound(request, stage).is_none()
    }

    /// The slot of a worker that the request names.
    fn pinned(
        &self,
        request: &PlacementRequest<'_>,
        stage: Stage,
        worker: WorkerRank,
    ) -> Result<u32, PickError> {
        let Some(slot) = self.fleet.slot(worker) else {
            return Err(PickError::PinnedUnavailable { worker });
        };
        match self.refusal(request, stage, slot) {
            None => Ok(slot),
            Some(Refusal::Busy) => Err(PickError::AllBusy { workers: 1 }),
            Some(Refusal::Absent) => Err(PickError::PinnedUnavailable { worker }),
            Some(Refusal::Unfit(other)) => {
                Err(PickError::Contradictory { one: Constraint::Pinned(worker), other })
            }
        }
    }

    /// Why the worker in `slot` may not take a request, if it may not.
    fn refusal(&self, request: &PlacementRequest<'_>, stage: Stage, slot: u32) -> Option<Refusal> {
        let row = self.fleet.row(slot);
        if !self.fleet.open(slot).is_some_and(|role| stage.is_for(role))
            || (!request.excluded.is_empty() && request.excluded.contains(&row.worker))
        {
            return Some(Refusal::Absent);
        }
        if request.needs.is_some() && self.scratch.verdicts[row.labels as usize].is_none() {
            let mut lacking = self.constraints(request, stage);
            let lacking = lacking.find(|&constraint| !self.meets(slot, constraint, stage));
            return lacking.map(Refusal::Unfit);
        }
        let others =
            [request.adapter.map(Constraint::Adapter), self.nearness(stage).map(Constraint::Near)];
        let lacking = others.into_iter().flatten().find(|&other| !self.meets(slot, other, stage));
        if let Some(lacking) = lacking {
            return Some(Refusal::Unfit(lacking));
        }
        let load = self.tracker.loads().total(slot);
        let busy = &self.settings.busy;
        let full = stage.answers() && busy.full(load.requests, load.blocks, row.total_blocks);
        let behind = stage.computes() && busy.behind(load.prefill_tokens, row.batch_tokens);
        (full || behind).then_some(Refusal::Busy)
    }

    /// All that rules workers out for a request, one by one.
    fn constraints<'a>(
        &self,
        request: &PlacementRequest<'a>,
        stage: Stage,
    ) -> impl Iterator<Item = Constraint> + use<'a> {
        let labels = request.needs.map_or(&[][..], |needs| needs.required());
        let adapter = request.adapter.map(Constraint::Adapter);
        let near = self.nearness(stage).map(Constraint::Near);
        labels.iter().copied().map(Constraint::Label).chain(adapter).chain(near)
    }

    /// Whether the worker in `slot` meets one constraint.
    fn meets(&self, slot: u32, constraint: Constraint, stage: Stage) -> bool {
        let row = self.fleet.row(slot);
        match (constraint, stage) {
            (Constraint::Label(label), _) => self.fleet.labels().has(row.labels, label),
            (Constraint::Adapter(adapter), _) => {
                row.adapter_room || self.fleet.with_adapter(adapter).binary_search(&slot).is_ok()
            }
            (Constraint::Pinned(worker), _) => row.worker == worker,
            (Constraint::Near(_), Stage::Decode { prefill }) => {
                let [one, other] = [prefill, slot].map(|slot| &self.fleet.state(slot).profile);
                self.settings.nearness.allows(&one.topology, &other.topology)
            }
            (Constraint::Near(_), _) => true,
        }
    }

    fn nearness(&self, stage: Stage) -> Option<crate::constraint::Level> {
        match (stage, self.settings.nearness) {
            (Stage::Decode { .. }, Nearness::Within(level)) => Some(level),
            _ => None,
        }
    }

    /// Names what no worker has, or the first two things that none has together.
    fn why_nobody(&self, request: &PlacementRequest<'_>, stage: Stage) -> PickError {
        let present: Vec<u32> = self
            .fleet
            .order()
            .iter()
            .copied()
            .filter(|&slot| self.refusal(request, stage, slot) != Some(Refusal::Absent))
            .collect();
        let all: Vec<_> = self.constraints(request, stage).collect();
        let meets = |slot: u32, constraint| self.meets(slot, constraint, stage);
        if present.is_empty() || all.is_empty() {
            return PickError::NoWorkers;
        }
        let alone = all.iter().find(|&&one| !present.iter().any(|&slot| meets(slot, one)));
        if let Some(&constraint) = alone {
            return PickError::Unsatisfied { constraint };
        }
        let both = |one, other| present.iter().any(|&slot| meets(slot, one) && meets(slot, other));
        for (place, &one) in all.iter().enumerate() {
            if let Some(&other) = all[place + 1..].iter().find(|&&other| !both(one, other)) {
                return PickError::Contradictory { one, other };
            }
        }
        // Each two can be had, but not all: the first and the last are as much to blame as any.
        PickError::Contradictory { one: all[0], other: all[all.len() - 1] }
    }

    /// The slot of the worker that the request's session is bound to.
    pub(super) fn bound(&self, request: &PlacementRequest<'_>, stage: Stage) -> Option<u32> {
        let key = request.session.filter(|_| stage.answers())?;
        self.fleet.slot(self.sessions.worker(key, self.now)?)
    }

    pub(super) fn affinity(&self) -> Option<Affinity> {
        self.settings.sessions.map(|settings| settings.affinity())
    }

    /// Chooses among the workers that may take the request.
    pub(super) fn choose(
        &mut self,
        request: &PlacementRequest<'_>,
        stage: Stage,
        random: &mut Random,
    ) -> WorkerChoice {
        // An explanation has the costs of all candidates, even where the mode ignores costs.
        if request.explain && stage == Stage::Whole {
            self.explain(request, stage);
        } else if self.settings.mode == Mode::Kv {
            self.score(request, stage);
        }
        let mode = if stage == Stage::Encode { Mode::LeastLoaded } else { self.settings.mode };
        let (place, reason) = match mode {
            Mode::Kv => {
                let weights = request.weights.unwrap_or(&self.settings.weights);
                let temperature = weights.settings().temperature;
                (cost::choose(&self.scratch.costs, temperature, random), Reason::Cost)
            }
            Mode::RoundRobin => (Some(self.next_in_turn(request, stage)), Reason::InTurn),
            Mode::Random => (Some(random.below(self.scratch.eligible.len())), Reason::Random),
            Mode::PowerOfTwo => (Some(self.less_loaded_of_two(random)), Reason::LeastLoaded),
            Mode::LeastLoaded => (self.least_loaded(random), Reason::LeastLoaded),
        };
        let place = place.expect("there is at least one worker that may take the request");
        let slot = self.scratch.eligible[place];
        let cost = if mode == Mode::Kv { self.scratch.costs[place] } else { 0.0 };
        let reason = match self.scratch.eligible.len() {
            1 if stage.pinned(request).is_some() => Reason::Pinned,
            1 if self.bound(request, stage) == Some(slot) => Reason::Session,
            1 => Reason::OnlyOne,
            _ => reason,
        };
        WorkerChoice { slot, cost, reason }
    }

    fn next_in_turn(&mut self, request: &PlacementRequest<'_>, stage: Stage) -> usize {
        let eligible = &self.scratch.eligible;
        let worker = |slot: u32| Some(self.fleet.row(slot).worker);
        if let Stage::Decode { .. } = stage {
            // Whose turn it is to answer was found before it was known who computes the prompt.
            return eligible.iter().position(|&slot| worker(slot) >= self.last).unwrap_or(0);
        }
        let last = if stage == Stage::Whole { &mut self.last } else { &mut self.last_prefill };
        let next = eligible.iter().position(|&slot| worker(slot) > *last).unwrap_or(0);
        // A pinned request is out of turn.
        if stage.pinned(request).is_none() {
            *last = worker(eligible[next]);
        }
        next
    }

    /// Two different workers at random, if there are two; of them the one with fewer requests.
    fn less_loaded_of_two(&self, random: &mut Random) -> usize {
        let eligible = &self.scratch.eligible;
        let first = random.below(eligible.len());
        let mut second = random.below(eligible.len() - 1);
        if second >= first && eligible.len() > 1 {
            second += 1;
        }
        let requests = |place: usize| self.tracker.loads().total(eligible[place]).requests;
        if requests(second) < requests(first) { second } else { first }
    }

    fn least_loaded(&mut self, random: &mut Random) -> Option<usize> {
        let super::Scratch { eligible, costs, .. } = &mut self.scratch;
        let loads = self.tracker.loads();
        costs.clear();
        costs.extend(eligible.iter().map(|&slot| loads.total(slot).requests as f64));
        cost::choose(costs, 0.0, random)
    }
}
