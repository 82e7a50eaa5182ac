use super::*;
use proptest::{collection::vec, prelude::*};
use stator_fleet::ClientSettings;
use stator_placement::{PlacementRequest, PlacementSettings, Split, Time};
use stator_protos::discovery::WorkerRecord;
use stator_protos::{Generation, WorkerId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const ROLES: [Role; 4] = [Role::Aggregated, Role::Prefill, Role::Decode, Role::Encode];
const CLIENTS: usize = 3;

/// What happens to a pool.
#[derive(Clone, Debug)]
enum Step {
    /// An agent's record says something new.
    Tell {
        client: usize,
        role: usize,
        handover: bool,
        needs_prefill: bool,
        adapters: Vec<u8>,
    },
    Enter {
        worker: u64,
        client: usize,
        generation: u64,
        accepting: bool,
    },
    Leave {
        worker: u64,
        client: usize,
    },
}

fn any_step() -> impl Strategy<Value = Step> {
    let said = (any::<bool>(), any::<bool>(), vec(0u8..3, 0..3));
    let tell = (0..CLIENTS, 0..ROLES.len(), said).prop_map(
        |(client, role, (handover, needs_prefill, adapters))| Step::Tell {
            client,
            role,
            handover,
            needs_prefill,
            adapters,
        },
    );
    let enter = (0u64..5, 0..CLIENTS, 0u64..3, any::<bool>()).prop_map(
        |(worker, client, generation, accepting)| Step::Enter {
            worker,
            client,
            generation,
            accepting,
        },
    );
    let leave = (0u64..5, 0..CLIENTS).prop_map(|(worker, client)| Step::Leave { worker, client });
    prop_oneof![2 => tell, 5 => enter, 1 => leave]
}

/// Who is there, by worker: the agent, the life, whether it takes requests, and its profile.
type Model = BTreeMap<u64, (usize, u64, bool, ProfileRecord)>;

fn rank(worker: u64) -> WorkerRank {
    WorkerRank { worker: WorkerId(worker), rank: 0 }
}

fn worker(number: u64, generation: u64, accepting: bool) -> Worker {
    let record = WorkerRecord {
        worker: rank(number),
        generation: Generation(generation),
        total_blocks: 100,
    };
    Worker::new(&record, accepting)
}

fn told(role: usize, (handover, needs_prefill): (bool, bool), adapters: &[u8]) -> ProfileRecord {
    ProfileRecord {
        role: ROLES[role],
        needs_prefill,
        adapters: adapters.iter().map(|number| format!("adapter-{number}")).collect(),
        handover: handover.then(|| "{}".to_owned()),
        ..ProfileRecord::default()
    }
}

fn step(state: &mut PoolState, model: &mut Model, clients: &[Arc<AgentClient>], step: &Step) {
    let now = Instant::now();
    match *step {
        Step::Tell { client, role, handover, needs_prefill, ref adapters } => {
            clients[client].set_profile(&told(role, (handover, needs_prefill), adapters));
        }
        Step::Enter { worker: number, client, generation, accepting } => {
            let known = model.get(&number).map(|known| (known.0, known.1));
            // An agent's lives only go up.
            if known.is_some_and(|known| known.0 == client && known.1 > generation) {
                return;
            }
            let refused = known.is_some_and(|known| known.0 != client && known.1 >= generation);
            let entered = state.enter(worker(number, generation, accepting), &clients[client], now);
            assert_eq!(entered, !refused);
            if entered {
                let profile = ProfileRecord::clone(&clients[client].profile());
                model.insert(number, (client, generation, accepting, profile));
            }
        }
        Step::Leave { worker, client } => {
            state.leave(rank(worker), &clients[client], Instant::now());
            if model.get(&worker).is_some_and(|known| known.0 == client) {
                model.remove(&worker);
            }
        }
    }
}

/// Whether a worker may take its part of requests.
fn takes(known: &(usize, u64, bool, ProfileRecord)) -> bool {
    known.2 && (known.3.role != Role::Prefill || known.3.handover.is_some())
}

fn check(state: &mut PoolState, model: &Model) {
    let found: Vec<_> = state.placement.fleet().workers().collect();
    let found = found
        .iter()
        .map(|seen| (seen.worker.worker.worker.0, seen.worker.accepting, seen.profile.clone()));
    let wanted =
        model.iter().map(|(number, known)| (*number, takes(known), profile::profile(&known.3)));
    assert_eq!(found.collect::<Vec<_>>(), wanted.collect::<Vec<_>>());

    let profiles = || model.values().map(|known| &known.3);
    let with = |role| profiles().filter(move |profile| profile.role == role);
    let answering = with(Role::Aggregated).chain(with(Role::Decode));
    let adapters: BTreeSet<&str> =
        answering.flat_map(|profile| profile.adapters.iter().map(String::as_str)).collect();
    let names = state.adapters(Instant::now());
    assert_eq!(names.iter().map(|name| &**name).collect::<Vec<_>>(), Vec::from_iter(adapters));
    assert!(names.iter().all(|name| state.has_adapter(name, Instant::now())));

    let mute = with(Role::Prefill).count() > 0
        && with(Role::Prefill).all(|profile| profile.handover.is_none());
    let partial = with(Role::Prefill).count() + with(Role::Decode).count();
    let kept = if mute { NoSplitReason::NoHandover } else { NoSplitReason::NoPrefillWorker };
    assert_eq!(state.no_split(SplitReason::NoPrefillWorkers), (partial > 0).then_some(kept));

    let placed = state.placement.pick(&PlacementRequest::default(), Time::default(), 0);
    let able = |role: Role| model.values().any(|known| known.3.role == role && takes(known));
    let alone = |known: &(usize, u64, bool, ProfileRecord)| match known.3.role {
        Role::Aggregated => takes(known),
        Role::Decode => takes(known) && !known.3.needs_prefill,
        Role::Prefill | Role::Encode => false,
    };
    let shared = able(Role::Prefill) && able(Role::Decode);
    assert_eq!(placed.is_ok(), model.values().any(alone) || shared);
    let Ok(decision) = placed else { return };
    assert_eq!(decision.prefill.is_some(), shared);
    let role = |worker: WorkerRank| model[&worker.worker.0].3.role;
    assert!(matches!(role(decision.worker), Role::Aggregated | Role::Decode));
    if let Some(leg) = decision.prefill {
        assert_eq!((role(leg.worker), role(decision.worker)), (Role::Prefill, Role::Decode));
    }
    state.placement.release_all(&decision);
    assert_eq!(state.placement.stats().bookings, 0);
}

#[test]
fn what_agents_say_of_their_workers_is_what_placement_knows() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _entered = runtime.enter();
    // Nobody listens there; what matters is who they are.
    let connect = |_| AgentClient::connect("http://127.0.0.1:9", &ClientSettings::default());
    let clients: Vec<_> = (0..CLIENTS).map(|n| Arc::new(connect(n).unwrap())).collect();
    proptest!(|(steps in vec(any_step(), 0..60))| {
        let settings = PlacementSettings { split: Split::Always, ..PlacementSettings::default() };
        let mut state = PoolState::new(Placement::new(settings));
        let mut model = Model::new();
        for client in &clients {
            client.set_profile(&ProfileRecord::default());
        }
        for one in &steps {
            step(&mut state, &mut model, &clients, one);
            check(&mut state, &model);
        }
        for number in 0..5 {
            for client in &clients {
                state.leave(rank(number), client, Instant::now());
            }
        }
        assert_eq!((state.parts, state.adapters(Instant::now())), (Parts::default(), vec![]));
        assert_eq!(state.placement.stats().workers, 0);
    });
}

fn placed(state: &mut PoolState) -> bool {
    state.placement.pick(&PlacementRequest::default(), Time::default(), 0).is_ok()
}

#[test]
fn a_suspected_worker_gets_nothing_until_the_moment_has_passed() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _entered = runtime.enter();
    let client = AgentClient::connect("http://127.0.0.1:9", &ClientSettings::default());
    let client = Arc::new(client.unwrap());
    let mut state = PoolState::new(Placement::new(PlacementSettings::default()));
    let now = Instant::now();
    let until = now + Duration::from_secs(1);
    assert!(state.enter(worker(1, 0, true), &client, now));
    state.suspect(rank(1), now, until);
    assert!(!placed(&mut state));
    // What its record says of it does not end the suspicion.
    assert!(state.enter(worker(1, 0, true), &client, now));
    state.refresh(rank(1), now);
    assert!(!placed(&mut state));
    state.refresh(rank(1), until);
    assert!(placed(&mut state));
}

#[test]
fn a_pool_knows_what_the_engines_of_its_members_do() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _entered = runtime.enter();
    let client = |profile: ProfileRecord| {
        let client = AgentClient::connect("http://127.0.0.1:9", &ClientSettings::default());
        let client = Arc::new(client.unwrap());
        client.set_profile(&profile);
        client
    };
    let (now, answers) = (Instant::now(), client(ProfileRecord::default()));
    let embeds = client(ProfileRecord { embeds: true, only_pools: true, ..Default::default() });
    let classifies =
        client(ProfileRecord { classifies: true, only_pools: true, ..Default::default() });
    let mut state = PoolState::new(Placement::new(PlacementSettings::default()));
    let does = |state: &PoolState| (state.embeds(), state.classifies(), state.answering());
    assert_eq!(does(&state), (false, false, Answering::All), "nobody says otherwise");
    assert!(state.enter(worker(1, 0, true), &embeds, now));
    assert_eq!(does(&state), (true, false, Answering::None));
    assert!(state.enter(worker(2, 0, true), &answers, now));
    assert!(state.enter(worker(3, 0, true), &classifies, now));
    assert_eq!(does(&state), (true, true, Answering::Some));
    state.leave(rank(1), &embeds, now);
    state.leave(rank(3), &classifies, now);
    assert_eq!(does(&state), (false, false, Answering::All));
    assert_eq!(state.abilities, Abilities { answering: 1, ..Abilities::default() });
}
