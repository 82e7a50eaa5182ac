//! Cost of scheduling a request with the default configuration, by the number of endpoints: `cargo
//! bench -p stator-epp-config`.
//!
//! Conversations of 64 blocks, of which all but the last four were seen before; 64 requests are in
//! flight. Nanoseconds of one [`Scheduler::schedule`], on average over the quickest of many batches.
//! With `--small` it is one batch of each, to count instructions: `valgrind --tool=callgrind
//! --toggle-collect='*::counted'` with the program, `--bench --small` and the number of endpoints,
//! by [`BATCH`].

use stator_epp_config::{LoadOptions, load};
use stator_epp_scheduler::plugin::RequestProgress;
use stator_epp_scheduler::{
    Call, Decision, Endpoint, Prompt, Request, Roles, Scheduler, SchedulerSettings, Time,
};
use stator_protos::hash::SequenceHash;
use stator_protos::{WorkerId, WorkerRank};
use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Decisions of one batch.
const BATCH: u64 = 1000;
const BATCHES: usize = 200;
const CONVERSATIONS: u64 = 64;
const IN_FLIGHT: usize = 64;

fn main() {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let batches = if args.iter().any(|arg| arg == "--small") { 1 } else { BATCHES };
    let mut sizes: Vec<u32> = args.iter().filter_map(|arg| arg.parse().ok()).collect();
    if sizes.is_empty() {
        sizes = vec![8, 64, 256, 1000];
    }
    for endpoints in sizes {
        println!("{endpoints:>4} endpoints {:>8.0} ns", measure(endpoints, batches));
    }
}

fn measure(endpoints: u32, batches: usize) -> f64 {
    let program = load("", LoadOptions::default()).expect("the default is sound").plan.program;
    let mut scheduler = Scheduler::new(program, SchedulerSettings::default());
    let all: Vec<_> = (0..endpoints).map(endpoint).collect();
    scheduler.set_endpoints(&all);
    let (mut tickets, mut best, mut number) = (VecDeque::new(), f64::MAX, 0);
    for _ in 0..batches {
        let mut took = Duration::ZERO;
        for _ in 0..BATCH {
            number += 1;
            let sequence = prompt(number);
            let prefixes = scheduler.prefixes().clone();
            let found = prefixes.look_up(&sequence);
            let prompt = Prompt {
                tokens: 1030,
                sequence: &sequence,
                overlaps: Some(&found),
                ..Prompt::default()
            };
            let request = Request { prompt, ..Request::default() };
            let now = Time::from_millis(number);
            let started = Instant::now();
            let decision = counted(&mut scheduler, &request, now);
            took += started.elapsed();
            decision
                .holders
                .iter()
                .for_each(|&(worker, end)| prefixes.predict(worker, &sequence, end));
            tickets.push_back(decision.ticket);
            if tickets.len() > IN_FLIGHT {
                scheduler.ended(&over(tickets.pop_front().expect("there are many")), now);
            }
        }
        best = best.min(took.as_secs_f64() * 1e9 / BATCH as f64);
    }
    best
}

#[inline(never)]
fn counted(scheduler: &mut Scheduler, request: &Request<'_>, now: Time) -> Decision {
    let call = Call { now, seed: now.0.as_millis() as u64, watched: true, scores: false };
    scheduler.schedule(request, call).expect("endpoints take requests")
}

fn over(ticket: u64) -> RequestProgress<'static> {
    RequestProgress {
        ticket,
        output_tokens: None,
        cached_tokens: None,
        answered: true,
        served: None,
    }
}

fn endpoint(number: u32) -> Arc<Endpoint> {
    Arc::new(Endpoint {
        worker: WorkerRank { worker: WorkerId(number.into()), rank: 0 },
        uid: "1".into(),
        name: format!("pod{number}-rank-0").into(),
        pod: format!("pod{number}").into(),
        namespace: "default".into(),
        address: (Ipv4Addr::from_bits(10 << 24 | number), 8000).into(),
        labels: Arc::default(),
        roles: Roles { decode: true, ..Roles::default() },
    })
}

/// A prompt that begins as all of its conversation do, and ends as no other does.
fn prompt(number: u64) -> Vec<SequenceHash> {
    let block = |place: u64| match place {
        0..60 => number % CONVERSATIONS * 64 + place,
        _ => number << 32 | place,
    };
    let hash = |place| SequenceHash((block(place) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (0..64).map(hash).collect()
}
