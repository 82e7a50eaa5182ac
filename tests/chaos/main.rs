//! Chaos: agents, engines, proxies, pickers, links, disks and registries fail from a seed, while
//! clients with known answers ask without a pause.
//!
//! `tests/chaos/run` runs it longer and with other seeds; a failing seed is its command line.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod disk;
mod engines;
mod fleet;
mod footprint;
mod gateway;
mod links;
mod load;
mod meeting;
mod plan;
mod relay;
mod replicas;

use engines::Engines;
use fleet::{Fleet, PACE, PROXIES};
use footprint::Footprint;
use load::{Question, Tally};
use meeting::Meeting;
use plan::{AGENTS, Lane, Schedule, WITH_DIRECTORY, WITH_ENGINES, WITH_REGISTRY};
use stator_tests::http::Client;
use stator_tests::process::Process;
use stator_tests::within;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Clients that ask at once.
const CLIENTS: u64 = 8;
/// Time in which everything is as it should be again after the last fault.
const CONVERGED_WITHIN: Duration = Duration::from_secs(10);
/// Descriptors that a proxy may have more at the end than at the start: connections of probes.
const DESCRIPTORS_SPARE: usize = 32;
/// Resident memory that a proxy may have gained by the end, in MiB.
const MEMORY_SPARE_MIB: u64 = 64;

/// Descriptors that any process may have.
const DESCRIPTORS_MAX: usize = 512;
/// Resident memory that any process may have, in MiB.
const MEMORY_MAX_MIB: u64 = 256;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_fault_of_directory_fails_a_request() {
    let home = tempfile::tempdir().unwrap();
    let meeting = Meeting::directory(home.path()).await;
    let fleet = Fleet::begin(home.path().to_owned(), meeting, Engines::Simulated).await;
    survives("directory", Arc::new(fleet), &WITH_DIRECTORY).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_fault_of_pairs_fails_a_request() {
    let home = tempfile::tempdir().unwrap();
    let Some(meeting) = Meeting::etcd().await else { return };
    let fleet = Fleet::begin(home.path().to_owned(), meeting, Engines::Pairs).await;
    survives("pairs", Arc::new(fleet), &WITH_REGISTRY).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_fault_of_cluster_fails_a_request() {
    let home = tempfile::tempdir().unwrap();
    let Some(meeting) = Meeting::cluster(home.path()).await else { return };
    let fleet = Fleet::begin(home.path().to_owned(), meeting, Engines::Simulated).await;
    survives("cluster", Arc::new(fleet), &WITH_REGISTRY).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_fault_of_engines_fails_a_request() {
    let home = tempfile::tempdir().unwrap();
    let meeting = Meeting::directory(home.path()).await;
    let fleet = Fleet::begin(home.path().to_owned(), meeting, Engines::Processes).await;
    survives("engines", Arc::new(fleet), &WITH_ENGINES).await;
}

/// Attacks a fleet under load, and checks that nobody noticed.
async fn survives(name: &str, fleet: Arc<Fleet>, lanes: &[Lane]) {
    let seed = setting("STATOR_CHAOS_SEED", 1);
    let length = Duration::from_secs(setting("STATOR_CHAOS_SECONDS", 15));
    let again =
        format!("tests/chaos/run --fleet {name} --seed {seed} --seconds {}", length.as_secs());
    // Before anything can fail, so that whatever does has a command line.
    println!("{again}");
    let questions = Arc::new(calm_answers(&fleet).await);
    let lasting = fleet.lasting().await;
    let tally = Arc::new(watch::Sender::new(Tally::default()));
    let (stop_clients, clients_stop) = watch::channel(false);
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let (questions, tally) = (questions.clone(), tally.clone());
        let seed = seed ^ (client << 32);
        clients.spawn(load::ask(fleet.clone(), questions, seed, tally, clients_stop.clone()));
    }
    // The first answers open the connections and fill the buffers that everybody keeps.
    let enough = 4 * CLIENTS;
    let mut answers = tally.subscribe();
    let first = answers.wait_for(|tally| tally.right >= enough);
    drop(within(Duration::from_secs(60), "the first answers", first).await.unwrap());
    let before = lasting.map(Footprint::of);

    attack(&fleet, lanes, seed, length).await;
    stop_clients.send_replace(true);
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    let converged = timeout(CONVERGED_WITHIN, converged(&fleet)).await.is_ok();

    let tally = tally.borrow().clone();
    let (after, peak) = (lasting.map(Footprint::of), fleet.peak().await);
    println!(
        "{name}, seed {seed}, {length:?}: {} right, {} died with their proxy, {} failed, longest silence \
         {:?}, proxies before {before:?} and after {after:?}, others {peak:?} at most",
        tally.right, tally.died_with_proxy, tally.failed, tally.silence,
    );
    assert!(tally.failed == 0, "{:#?}\n{}\nagain: {again}", tally.faults, fleet.logs().await);
    assert!(converged, "not as it should be after {CONVERGED_WITHIN:?}; again: {again}");
    for (before, after) in before.iter().zip(&after) {
        let descriptors = before.descriptors + DESCRIPTORS_SPARE;
        assert!(after.descriptors <= descriptors, "{before:?} became {after:?}; again: {again}");
        let memory = before.resident_mib + MEMORY_SPARE_MIB;
        assert!(after.resident_mib <= memory, "{before:?} became {after:?}; again: {again}");
    }
    let is_small = peak.descriptors <= DESCRIPTORS_MAX && peak.resident_mib <= MEMORY_MAX_MIB;
    assert!(is_small, "an agent or a picker took {peak:?}; again: {again}");
}

/// A whole number from the environment.
fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(value) => value.parse().unwrap_or_else(|_| panic!("{name}: {value:?} is no number")),
        Err(_) => default,
    }
}

/// The questions, with the answers of a fleet that nothing happens to.
async fn calm_answers(fleet: &Fleet) -> Vec<Question> {
    if fleet.engines() == Engines::Processes {
        // Nothing happens to this one yet, and the engine's answers do not depend on who answers.
        return Question::all(&fleet.backends()[0].1.client).await;
    }
    let mut calm = Process::start(&[
        "up",
        "--http-port=0",
        "--engine=sim",
        "--sim-preset=none",
        "--workers=1",
    ]);
    let listening = calm.event("listening").await;
    calm.event("serving a model").await;
    let client = Client::new(listening["address"].as_str().unwrap().parse().unwrap());
    Question::all(&client).await
}

/// Lets every lane's faults happen until the time is over; all of them are undone then.
async fn attack(fleet: &Arc<Fleet>, lanes: &[Lane], seed: u64, length: Duration) {
    let end = Instant::now() + length;
    let mut running = JoinSet::new();
    for lane in lanes.iter().copied() {
        let fleet = fleet.clone();
        running.spawn(async move {
            let began = Instant::now();
            for step in Schedule::new(seed, lane) {
                if Instant::now() + step.pause > end {
                    return;
                }
                tokio::time::sleep(step.pause).await;
                println!("{:8.3} s {step}", began.elapsed().as_secs_f64());
                fleet.suffer(&step).await;
            }
        });
    }
    while let Some(lane) = running.join_next().await {
        lane.unwrap();
    }
}

/// Waits until every proxy sees all workers and runs nothing any more.
async fn converged(fleet: &Fleet) {
    loop {
        let mut all = true;
        for backend in fleet.ready_proxies() {
            let page = backend.client.get("/metrics").await.body;
            let page = String::from_utf8(page.to_vec()).unwrap();
            let is_idle = value(&page, "stator_proxy_requests_running") == 0.0;
            all &= is_idle && value(&page, "stator_proxy_workers") == AGENTS as f64;
        }
        if all && fleet.ready_proxies().len() == PROXIES.len() {
            return;
        }
        tokio::time::sleep(PACE).await;
    }
}

/// The value of a metric without labels.
fn value(page: &str, name: &str) -> f64 {
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in\n{page}")).trim().parse().unwrap()
}
