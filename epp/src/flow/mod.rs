//! Flow control: requests wait for room in the pool, by priority and by flow.
//!
//! The queues are those of `stator-queue` behind a gate; this module adds the pool's saturation,
//! the longest wait of each request, and metrics. Start reading at [`Flow::admit`].

mod lease;
mod reclaim;
mod settings;
#[cfg(test)]
mod tests;
mod visit;

use crate::place::{PlaceGuard, PlacementError, Placer, Ready};
use crate::pool::{Pool, WaitingRoom};
use lease::Leases;
pub(crate) use lease::{Lease, grace};
use parking_lot::Mutex;
use reclaim::Demand;
use stator_epp_config::FlowControl;
use stator_epp_metrics::{
    BandSnapshot, EppMetrics, FlowOutcome, FlowSnapshot, Program, RequestMetrics, Use,
};
use stator_epp_plugins::settings::Fairness;
use stator_epp_pool::PoolView;
use stator_gate::{Admission, AdmitError, Attempt, Gate, Grant};
use stator_protos::hash::name_hash;
use stator_queue::{
    BandPlace, Ceilings, CheckedSettings, Eviction, FlowId, InvalidSettings, LAS_OUTPUT_WEIGHT,
    QueueEntry, QueueRefusal, QueueUsage,
};
use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use visit::Visit;

/// The flow control of one pool.
pub(crate) struct Flow {
    gate: Gate<Valve>,
    control: FlowControl,
    queues: CheckedSettings,
    pool: Arc<Pool>,
    metrics: Arc<EppMetrics>,
    /// Running requests that may be revoked, where they may.
    leases: Option<Arc<Leases>>,
}

/// Lets requests through while the pool has room.
struct Valve {
    placer: Placer,
    ceilings: Mutex<Ceilings>,
    leases: Option<Arc<Leases>>,
}

/// Account to which the tokens of an answer are charged.
pub(crate) struct Account {
    flow: Arc<Flow>,
    band: i32,
    id: FlowId,
    /// Counter of the service that the flow got, if flows share by that.
    program: Option<Program>,
    /// The switch that revokes the request, if it may be revoked.
    pub(crate) lease: Option<Lease>,
}

impl Flow {
    /// Flow control that places requests with `placer`, and revokes running ones where `control`
    /// says so: at most once in `grace`, the time after which the saturation shows a revocation.
    ///
    /// # Errors
    ///
    /// [`InvalidSettings`] for what the queues cannot be set to.
    pub(crate) fn new(
        placer: Placer,
        control: &FlowControl,
        grace: Duration,
        metrics: Arc<EppMetrics>,
    ) -> Result<Arc<Self>, InvalidSettings> {
        let queues = settings::queues(control)?;
        let pool = placer.pool.clone();
        let leases = control.eviction.then(|| Leases::new(&pool, grace, &metrics));
        let ceilings = Mutex::new(settings::ceilings(control)?);
        let valve = Valve { placer, ceilings, leases: leases.clone() };
        let gate = Gate::new(valve, queues.clone());
        let control = control.clone();
        let flow = Arc::new(Self { gate, control, queues, pool, metrics, leases });
        let room = Arc::downgrade(&flow);
        flow.pool.wait_at(room);
        Ok(flow)
    }

    /// Gets a request its place, at once or after its wait, and the account of its answer.
    ///
    /// # Errors
    ///
    /// [`PlacementError`]: it may not wait, it waited in vain, or it can never be placed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the wait, or the place if that was granted meanwhile.
    pub(crate) async fn admit(
        self: &Arc<Self>,
        ready: &Arc<Ready>,
        of: &RequestMetrics,
    ) -> Result<(PlaceGuard, Account), PlacementError> {
        let bytes = ready.request.body.len() as u64;
        let mut visit = Visit::new(&self.metrics.flow, self.pool.label(), of, bytes);
        let mut views = self.pool.views();
        loop {
            let empty = self.pool.is_empty();
            let entry = self.entry(ready, empty, visit.age());
            let id = entry.flow;
            let mut admit = pin!(self.gate.admit(entry));
            let admitted = match futures::poll!(admit.as_mut()) {
                Poll::Ready(admitted) => admitted,
                Poll::Pending => {
                    visit.waits();
                    tokio::select! {
                        biased;
                        admitted = &mut admit => admitted,
                        // How long it may wait is another matter now, and begins anew.
                        () = turned(&mut views, empty) => continue,
                    }
                }
            };
            let outcome = outcome(&admitted, empty);
            visit.ends(outcome);
            return match admitted {
                Ok(Admission { place, band, .. }) => {
                    let half_life = self.half_life(band);
                    let program = half_life.map(|half| self.metrics.programs.of(of, half));
                    if let Some(program) = &program {
                        program.dispatched(visit.age());
                        program.served(ready.measured.tokens.max(1).into());
                    }
                    let lease = self.revocable(ready.request.priority);
                    let lease = lease.map(|leases| leases.begin(ready.request.priority));
                    Ok((place, Account { flow: self.clone(), band, id, program, lease }))
                }
                Err(AdmitError::Failed(denied)) => Err(denied),
                Err(AdmitError::Rejected { retry_after, .. })
                | Err(AdmitError::Evicted { retry_after, .. }) => {
                    Err(PlacementError::Dropped { outcome, retry_after })
                }
            };
        }
    }

    /// Whether a request of this priority may be revoked while it runs. Its stream is to stay open.
    pub(crate) fn revokes(&self, priority: i32) -> bool {
        self.revocable(priority).is_some()
    }

    fn revocable(&self, priority: i32) -> Option<&Arc<Leases>> {
        self.leases.as_ref().filter(|_| Leases::sheddable(priority))
    }

    /// Sends away all that wait, and lets nobody in any more.
    pub(crate) fn close(&self) {
        self.gate.close();
    }

    /// Time after which a flow's service counts half, if flows share by that.
    fn half_life(&self, priority: i32) -> Option<Duration> {
        match settings::band(&self.control, priority).fairness {
            Fairness::ProgramAware(program) => Some(program.half_life),
            _ => None,
        }
    }

    fn entry(&self, ready: &Arc<Ready>, empty: bool, age: Duration) -> QueueEntry<Arc<Ready>> {
        let Ready { request, measured, .. } = &**ready;
        let band_ttl = settings::band(&self.control, request.priority).ttl;
        let ttl = match empty {
            // A pool that is empty for now is worth waiting for, whatever the client said.
            true => self.control.no_endpoint_ttl,
            false => request.steering.ttl.into_iter().chain(band_ttl).min(),
        };
        let ttl = ttl.unwrap_or(self.queues.ttl_max).max(Duration::from_millis(1));
        QueueEntry {
            priority: request.priority,
            flow: FlowId(name_hash(&request.fairness_id)),
            tokens: measured.tokens,
            bytes: request.body.len() as u64,
            deadline: Some(self.gate.now().saturating_add(ttl)),
            objective: request.steering.objective,
            // One that enters again has not lost its turn.
            jump: u32::try_from(age.as_secs()).unwrap_or(u32::MAX),
            payload: ready.clone(),
        }
    }
}

impl WaitingRoom for Flow {
    fn kick(&self) {
        if self.gate.waiting() > 0 {
            let started = Instant::now();
            self.gate.kick();
            self.metrics.flow.cycled(started.elapsed());
        }
    }

    fn snapshot(&self) -> FlowSnapshot {
        let stats = self.gate.stats().queue;
        let bands = stats.bands.iter().map(|band| {
            let policy = settings::band(&self.control, band.priority);
            let used = used(band.waiting, Some(policy.max_requests), Some(policy.max_bytes));
            BandSnapshot { priority: band.priority.to_string(), used }
        });
        let (requests, bytes) = (self.control.max_requests, self.control.max_bytes);
        FlowSnapshot { bands: bands.collect(), global: used(stats.waiting, requests, bytes) }
    }
}

/// Looks at how full the pool is, while others make it fuller before the request is booked.
const ATTEMPTS: usize = 8;

impl Grant for Valve {
    type Request = Arc<Ready>;
    type Place = PlaceGuard;
    type Error = PlacementError;

    fn try_grant(
        &self,
        ready: &mut Arc<Ready>,
        band: &BandPlace,
    ) -> Attempt<PlaceGuard, PlacementError> {
        for _ in 0..ATTEMPTS {
            // Without endpoints everybody waits for the first.
            let Some(saturation) = self.placer.pool.saturation() else { return Attempt::Stop };
            if !self.ceilings.lock().admits(band, saturation) {
                self.blocked(ready.request.priority, band, saturation);
                return Attempt::Stop;
            }
            match self.placer.place_below(ready, saturation) {
                Some(Ok(placed)) => return Attempt::Granted(placed),
                Some(Err(denied)) => return Attempt::Failed(denied),
                // Others took of the room meanwhile, and will give it back.
                None => {}
            }
        }
        Attempt::Stop
    }
}

impl Valve {
    /// A request of this priority finds the pool too full: others may have to give way. A priority
    /// without a band of its own waits in another's.
    fn blocked(&self, priority: i32, band: &BandPlace, saturation: f64) {
        let Some(leases) = &self.leases else { return };
        leases.blocked(Demand {
            priority,
            saturation,
            ceiling: self.ceilings.lock().ceiling(band, saturation),
            in_flight: self.placer.pool.in_flight(),
        });
    }
}

impl Account {
    /// Charges the tokens of an answer.
    pub(crate) fn charge(&self, tokens: u64) {
        self.flow.gate.charge(self.band, self.id, tokens);
        if let Some(program) = &self.program {
            program.served(LAS_OUTPUT_WEIGHT * tokens as f64);
        }
    }
}

/// Returns when the pool is empty and was not, or the other way round.
async fn turned(views: &mut watch::Receiver<Arc<PoolView>>, empty: bool) {
    loop {
        if views.borrow_and_update().endpoints.is_empty() != empty {
            return;
        }
        if views.changed().await.is_err() {
            // Nobody watches the pool any more: the process ends.
            return pending().await;
        }
    }
}

/// Outcome of a request's wait.
///
/// Source: the outcomes of flow control in the llm-d router.
fn outcome<P>(admitted: &Result<P, AdmitError<PlacementError>>, empty: bool) -> FlowOutcome {
    let Err(error) = admitted else { return FlowOutcome::Dispatched };
    match (error, empty) {
        (AdmitError::Failed(_), _) => FlowOutcome::Dispatched,
        (AdmitError::Rejected { reason: QueueRefusal::Closed, .. }, _) => {
            FlowOutcome::RejectedOther
        }
        (AdmitError::Rejected { reason, .. }, _) if !reason.is_capacity() => {
            FlowOutcome::EvictedTtl
        }
        (AdmitError::Rejected { .. }, true) => FlowOutcome::RejectedNoEndpoints,
        (AdmitError::Rejected { .. }, false) => FlowOutcome::RejectedCapacity,
        (AdmitError::Evicted { reason: Eviction::Closed | Eviction::Displaced, .. }, _) => {
            FlowOutcome::EvictedOther
        }
        (AdmitError::Evicted { .. }, true) => FlowOutcome::EvictedNoEndpoints,
        (AdmitError::Evicted { .. }, false) => FlowOutcome::EvictedTtl,
    }
}

fn used(waiting: QueueUsage, requests: Option<u64>, bytes: Option<u64>) -> Use {
    let share = |used: u64, limit: Option<u64>| Some(used as f64 / limit?.max(1) as f64);
    Use { requests: share(waiting.requests, requests), bytes: share(waiting.bytes, bytes) }
}
