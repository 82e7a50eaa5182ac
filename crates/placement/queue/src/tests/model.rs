//! The obvious slow model: a list of requests that every question walks through.

use crate::flows::HEADS_PER_FLOW;
use crate::{
    Eviction, Fairness, FlowId, HeadOfLine, Ordering, QueueEntry, QueueRefusal, QueueSettings,
    QueueUsage, Verdict,
};
use std::cmp;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

/// A waiting request; its entry's payload names it.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) entry: QueueEntry<u32>,
    pub(super) band: i32,
    arrival: Duration,
    deadline: Duration,
    /// Those that came earlier have lower ones.
    number: usize,
}

#[derive(Default)]
struct FlowShare {
    counter: u64,
    deficit: u64,
    /// In this round.
    visited: bool,
    last_visit: u64,
    /// The visit since which it may be served.
    since: u64,
    /// Weighted tokens that it got, and when.
    got: Vec<(f64, Duration)>,
    /// Requests served since it was last inactive, and when it was last active.
    turns: u32,
    active: Duration,
    /// Those that joined earlier have lower ones.
    joined: usize,
}

struct Band {
    fairness: Fairness,
    ordering: Ordering,
    shares: HashMap<FlowId, FlowShare>,
    /// Flows with something waiting, in the order of their turns.
    ring: Vec<FlowId>,
    visits: u64,
    left: u64,
}

pub(super) struct Model {
    settings: QueueSettings,
    bands: BTreeMap<i32, Band>,
    pub(super) items: Vec<Item>,
    /// While heads are offered, those that are passed over.
    held: HashSet<u32>,
    pub(super) now: Duration,
    arrivals: usize,
}

impl Model {
    pub(super) fn new(settings: QueueSettings) -> Self {
        let band = |band: &crate::BandSettings| {
            let (fairness, ordering) = (band.policy.fairness, band.policy.ordering);
            let (shares, ring) = (HashMap::new(), Vec::new());
            (band.priority, Band { fairness, ordering, shares, ring, visits: 0, left: 0 })
        };
        let bands = settings.bands.iter().map(band).collect();
        let (items, held) = Default::default();
        Self { settings, bands, items, held, now: Duration::ZERO, arrivals: 0 }
    }

    pub(super) fn push(&mut self, entry: QueueEntry<u32>) -> (Vec<u32>, Result<(), QueueRefusal>) {
        let distance = |band: &i32| (band.abs_diff(entry.priority), *band);
        let band = *self.bands.keys().min_by_key(|band| distance(band)).expect("there are bands");
        let mut policies = self.settings.bands.iter().filter(|b| b.priority == band);
        let policy = policies.next().expect("it is one of them").policy;
        let deadline = entry.deadline.unwrap_or(self.now + policy.ttl);
        let deadline = deadline.min(self.now + self.settings.ttl_max);
        if deadline <= self.now {
            return (vec![], Err(QueueRefusal::Deadline));
        }
        let one = QueueUsage::one(entry.bytes, entry.tokens);
        let within = |usage: QueueUsage, bounds: crate::Bounds, reasons: [QueueRefusal; 3]| {
            let sum = usage.plus(one);
            let over = [
                sum.requests > u64::from(bounds.requests),
                bounds.bytes.is_some_and(|limit| sum.bytes > limit),
                bounds.tokens.is_some_and(|limit| sum.tokens > limit),
            ];
            over.iter().zip(reasons).find(|(over, _)| **over).map_or(Ok(()), |(_, why)| Err(why))
        };
        if let Err(why) = within(self.usage(Some(band)), policy.bounds, QueueRefusal::BAND) {
            return (vec![], Err(why));
        }
        let mut gone = Vec::new();
        let before = self.items.clone();
        let first = within(self.usage(None), self.settings.total, QueueRefusal::TOTAL);
        while within(self.usage(None), self.settings.total, QueueRefusal::TOTAL).is_err() {
            let lower = self.items.iter().filter(|item| item.band < band);
            let last = lower.max_by_key(|item| (cmp::Reverse(item.band), item.number));
            let Some(last) = last.filter(|_| self.settings.displace) else {
                self.items = before;
                return (vec![], first);
            };
            gone.push(last.entry.payload);
            let at = gone[gone.len() - 1];
            self.items.retain(|item| item.entry.payload != at);
        }
        // It was only tried so far: what is gone leaves its flow too.
        self.items = before;
        gone.iter().for_each(|payload| self.remove(*payload));
        self.arrivals += 1;
        self.joins(band, entry.flow);
        let (arrival, number) = (self.now, self.arrivals);
        self.items.push(Item { entry, band, arrival, deadline, number });
        self.settle();
        (gone, Ok(()))
    }

    /// The heads that are offered, in order, and those that go.
    pub(super) fn pop(&mut self, verdict: impl Fn(u32) -> Verdict) -> (Vec<u32>, Vec<u32>) {
        let mut tries = match self.settings.head_of_line {
            HeadOfLine::Strict => 0,
            HeadOfLine::Skip { tries } => tries,
        };
        let (mut offered, mut gone) = (Vec::new(), Vec::new());
        let bands: Vec<i32> = self.bands.keys().rev().copied().collect();
        for band in bands {
            let mut out = HashSet::new();
            while let Some(item) = self.next(band, &out) {
                let (payload, flow) = (item.entry.payload, item.entry.flow);
                offered.push(payload);
                match verdict(payload) {
                    Verdict::Go => {
                        gone.push(payload);
                        self.serve(&item);
                    }
                    Verdict::Leave => {
                        gone.push(payload);
                        self.remove(payload);
                    }
                    Verdict::Wait if tries > 0 => {
                        tries -= 1;
                        self.held.insert(payload);
                        let of_flow = |item: &&Item| item.band == band && item.entry.flow == flow;
                        let own = self.items.iter().filter(of_flow);
                        let held = own.filter(|item| self.held.contains(&item.entry.payload));
                        if held.count() == HEADS_PER_FLOW as usize {
                            out.insert(flow);
                        }
                        self.settle();
                    }
                    Verdict::Wait | Verdict::Stop => {
                        self.resume();
                        return (offered, gone);
                    }
                }
            }
            self.resume();
        }
        (offered, gone)
    }

    fn resume(&mut self) {
        self.held.clear();
        self.settle();
    }

    pub(super) fn expire(&mut self) -> Vec<(u32, Eviction)> {
        let mut due: Vec<&Item> =
            self.items.iter().filter(|item| item.deadline <= self.now).collect();
        due.sort_by_key(|item| (cmp::Reverse(item.band), item.deadline, item.number));
        let due: Vec<u32> = due.iter().map(|item| item.entry.payload).collect();
        due.iter().for_each(|payload| self.remove(*payload));
        due.into_iter().map(|payload| (payload, Eviction::Deadline)).collect()
    }

    pub(super) fn charge(&mut self, band: i32, flow: FlowId, tokens: u64) {
        let Some(band) = self.bands.get_mut(&band) else { return };
        let Some(share) = band.shares.get_mut(&flow) else { return };
        match band.fairness {
            Fairness::Vtc { output_weight, .. } => {
                share.counter += u64::from(output_weight) * tokens;
            }
            Fairness::Las { .. } => share.got.push((2.0 * tokens as f64, self.now)),
            Fairness::TurnPriority { .. } => share.active = self.now,
            _ => {}
        }
    }

    /// Takes a request out that is not served.
    pub(super) fn remove(&mut self, payload: u32) {
        let at = self.items.iter().position(|item| item.entry.payload == payload);
        let item = self.items.remove(at.expect("it waits"));
        self.leaves(item.band, item.entry.flow);
        self.settle();
    }

    pub(super) fn usage(&self, band: Option<i32>) -> QueueUsage {
        let of_band = |item: &&Item| band.is_none_or(|band| item.band == band);
        let items = self.items.iter().filter(of_band);
        items.fold(QueueUsage::default(), |sum, item| {
            sum.plus(QueueUsage::one(item.entry.bytes, item.entry.tokens))
        })
    }

    pub(super) fn oldest_wait(&self, band: i32) -> Duration {
        let waits = self.items.iter().filter(|item| item.band == band);
        waits.map(|item| self.now - item.arrival).max().unwrap_or_default()
    }

    pub(super) fn next_event(&self) -> Option<Duration> {
        self.items.iter().map(|item| item.deadline).min()
    }

    fn head(&self, band: i32, flow: FlowId) -> Option<&Item> {
        let ordering = self.bands[&band].ordering;
        let own = self.items.iter().filter(|item| item.band == band && item.entry.flow == flow);
        let free = own.filter(|item| !self.held.contains(&item.entry.payload));
        free.min_by(|a, b| compare(ordering, a, b))
    }

    fn next(&mut self, band: i32, out: &HashSet<FlowId>) -> Option<Item> {
        let ring = self.bands[&band].ring.iter().filter(|flow| !out.contains(flow));
        let free: Vec<FlowId> =
            ring.filter(|flow| self.head(band, **flow).is_some()).copied().collect();
        let flow = match self.bands[&band].fairness {
            Fairness::GlobalStrict => {
                let ordering = self.bands[&band].ordering;
                let heads = free.iter().filter_map(|flow| self.head(band, *flow));
                heads.min_by(|a, b| compare(ordering, a, b))?.entry.flow
            }
            Fairness::RoundRobin => *free.first()?,
            Fairness::Vtc { .. } => {
                *free.iter().min_by_key(|flow| self.bands[&band].shares[flow].counter)?
            }
            Fairness::Las { service_weight, wait_weight, half_life, .. } => {
                let shares = &self.bands[&band].shares;
                let attained = |flow: &FlowId| {
                    let sum = shares[flow].got.iter().fold(0.0, |sum, (tokens, at)| {
                        let half_lives = (self.now - *at).div_duration_f64(half_life);
                        sum + tokens * 0.5f64.powf(half_lives)
                    });
                    (sum * 1e3).round()
                };
                let waited = |flow: &FlowId| {
                    self.head(band, *flow)
                        .map_or(0.0, |head| (self.now - head.arrival).as_nanos() as f64)
                };
                let scaled = |all: Vec<f64>| {
                    let least = all.iter().copied().fold(f64::INFINITY, f64::min);
                    let width = all.iter().copied().fold(0.0, f64::max) - least;
                    let scale =
                        move |one: f64| if width > 0.0 { (one - least) / width } else { 0.5 };
                    all.into_iter().map(scale).collect::<Vec<_>>()
                };
                let services = scaled(free.iter().map(attained).collect());
                let waits = scaled(free.iter().map(waited).collect());
                let scores = services.iter().zip(waits).map(|(service, wait)| {
                    let score =
                        f64::from(service_weight) * (1.0 - service) + f64::from(wait_weight) * wait;
                    (score * 1e6).round()
                });
                let scored = free.iter().zip(scores);
                let best = scored.max_by(|(a, one), (b, other)| {
                    one.total_cmp(other).then(shares[*b].joined.cmp(&shares[*a].joined))
                });
                *best?.0
            }
            Fairness::TurnPriority { wait_weight, inactivity, .. } => {
                let shares = &self.bands[&band].shares;
                let score = |flow: &FlowId| {
                    let share = &shares[flow];
                    let active = self.now - share.active <= inactivity;
                    let turns = if active { f64::from(share.turns) } else { 0.0 };
                    let waited = self.head(band, *flow).map(|head| self.now - head.arrival);
                    let waited = waited.unwrap_or_default().as_nanos() as f64 / 1e9;
                    ((turns * 1e3 + f64::from(wait_weight) * waited) * 1e6).round()
                };
                let best = free.iter().max_by(|a, b| {
                    let by_score = score(a).total_cmp(&score(b));
                    by_score.then(shares[*b].joined.cmp(&shares[*a].joined))
                });
                *best?
            }
            Fairness::Drr { quantum_tokens } => loop {
                let payable = free.iter().filter(|flow| self.payable(band, **flow));
                let since = |flow: &&FlowId| self.bands[&band].shares[flow].since;
                match payable.min_by_key(since) {
                    Some(flow) => break *flow,
                    None if free.is_empty() => return None,
                    None => self.visit(band, u64::from(quantum_tokens)),
                }
            },
        };
        self.head(band, flow).cloned()
    }

    fn cost(&self, band: i32, flow: FlowId) -> u64 {
        self.head(band, flow).map_or(0, |item| u64::from(item.entry.tokens.max(1)))
    }

    fn payable(&self, band: i32, flow: FlowId) -> bool {
        self.bands[&band].shares[&flow].deficit >= self.cost(band, flow)
    }

    /// One step of deficit round robin: the next flow of this round, or the first of another.
    fn visit(&mut self, number: i32, quantum: u64) {
        let band = self.bands.get_mut(&number).expect("there is such a band");
        let Some(flow) = band.ring.iter().find(|flow| !band.shares[flow].visited).copied() else {
            band.shares.values_mut().for_each(|share| share.visited = false);
            return;
        };
        let payable = self.payable(number, flow);
        let band = self.bands.get_mut(&number).expect("there is such a band");
        band.visits += 1;
        let share = band.shares.get_mut(&flow).expect("it is in the ring");
        (share.visited, share.last_visit) = (true, band.visits);
        if !payable {
            share.deficit += quantum;
            share.since = band.visits;
        }
    }

    /// Flows that cannot be served have no turn to keep.
    fn settle(&mut self) {
        let numbers: Vec<i32> = self.bands.keys().copied().collect();
        for number in numbers {
            for flow in self.bands[&number].ring.clone() {
                let payable = self.payable(number, flow);
                let band = self.bands.get_mut(&number).expect("there is such a band");
                let share = band.shares.get_mut(&flow).expect("it is in the ring");
                if !payable {
                    share.since = share.last_visit;
                }
            }
        }
    }

    fn joins(&mut self, band: i32, flow: FlowId) {
        let band = self.bands.get_mut(&band).expect("there is such a band");
        if band.ring.contains(&flow) {
            return;
        }
        let floor = band.ring.iter().map(|other| band.shares[other].counter).min();
        let share = band.shares.entry(flow).or_default();
        let counter = share.counter.max(floor.unwrap_or(band.left));
        let got = std::mem::take(&mut share.got);
        let (turns, active) = (share.turns, share.active);
        let joined = self.arrivals;
        *share = FlowShare { counter, got, turns, active, joined, ..FlowShare::default() };
        band.ring.push(flow);
    }

    fn leaves(&mut self, number: i32, flow: FlowId) {
        let empty = !self.items.iter().any(|item| item.band == number && item.entry.flow == flow);
        let band = self.bands.get_mut(&number).expect("there is such a band");
        if empty {
            band.ring.retain(|other| *other != flow);
            band.left = band.shares[&flow].counter;
        }
    }

    fn serve(&mut self, item: &Item) {
        let (cost, flow) = (u64::from(item.entry.tokens.max(1)), item.entry.flow);
        let band = self.bands.get_mut(&item.band).expect("there is such a band");
        let share = band.shares.get_mut(&flow).expect("it is in the ring");
        match band.fairness {
            Fairness::GlobalStrict => {}
            Fairness::RoundRobin => {
                band.ring.retain(|other| *other != flow);
                band.ring.push(flow);
            }
            Fairness::Drr { .. } => {
                share.deficit -= cost;
                share.since = share.last_visit;
            }
            Fairness::Vtc { input_weight, .. } => share.counter += u64::from(input_weight) * cost,
            Fairness::Las { .. } => share.got.push((cost as f64, self.now)),
            Fairness::TurnPriority { inactivity, .. } => {
                let active = self.now - share.active <= inactivity;
                share.turns = if active { share.turns + 1 } else { 1 };
                share.active = self.now;
            }
        }
        self.remove(item.entry.payload);
    }
}

fn compare(ordering: Ordering, a: &Item, b: &Item) -> cmp::Ordering {
    let jump = |item: &Item| Duration::from_secs(u64::from(item.entry.jump));
    let by = match ordering {
        Ordering::Fcfs => (a.arrival + jump(b)).cmp(&(b.arrival + jump(a))),
        Ordering::Lcfs => (b.arrival + jump(b)).cmp(&(a.arrival + jump(a))),
        Ordering::ShortestPrompt { ageing_tokens_per_s } => {
            let aged = |item: &Item| {
                item.arrival.as_nanos() * u128::from(ageing_tokens_per_s)
                    + u128::from(item.entry.tokens) * 1_000_000_000
            };
            aged(a).cmp(&aged(b))
        }
        Ordering::WeightedShortest => {
            let product = |tokens: &Item, weight: &Item| {
                u64::from(tokens.entry.tokens.max(1)) * (1 + u64::from(weight.entry.jump))
            };
            product(a, b).cmp(&product(b, a))
        }
        Ordering::Deadline => a.deadline.cmp(&b.deadline),
        Ordering::SloDeadline => {
            let due = |item: &Item| match item.entry.objective {
                Some(objective) => (0, item.arrival + objective),
                None => (1, Duration::ZERO),
            };
            due(a).cmp(&due(b))
        }
    };
    by.then(a.number.cmp(&b.number))
}
