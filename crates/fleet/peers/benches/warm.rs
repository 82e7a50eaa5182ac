//! Time of a replica's warm start: `cargo bench -p stator-peers -- [BLOCKS] [WORKERS]`, 4 million
//! blocks of 1,000 workers by default.
//!
//! Two replicas in one process, over a socket of this machine, with real indexes: one that knows
//! all blocks and one that knows none. Half of each worker's blocks are those of all workers. CPU
//! is that of both replicas together.

use stator_peers::{Blocks, Peers, PeersSettings, PoolId, Replica, Seat};
use stator_placement::{Index, IndexSettings, PeerLoad, WorkerHoldings};
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::Medium;
use stator_protos::{Generation, WorkerId, WorkerRank};
use stator_runtime::Shutdown;
use stator_runtime::metrics::Metrics;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

const LIFE: Generation = Generation(1);

/// One pool with nothing in flight.
struct Pool {
    index: Index,
    workers: Vec<WorkerRank>,
}

impl Pool {
    fn of(workers: u64) -> Self {
        let index = Index::new(IndexSettings { max_bytes: 8 << 30, ..IndexSettings::default() });
        let rank = |number| WorkerRank { worker: WorkerId(number), rank: 0 };
        let workers: Vec<_> = (0..workers).map(rank).collect();
        for worker in &workers {
            assert!(index.insert(*worker, LIFE));
        }
        Self { index, workers }
    }
}

impl Replica for Pool {
    fn pools(&self) -> Vec<String> {
        vec!["pool".into()]
    }

    fn own(&self, _: PoolId, _: &mut u64, _: &mut Vec<(WorkerRank, PeerLoad)>) -> bool {
        false
    }

    fn set_others(&self, _: PoolId, _: &[(WorkerRank, PeerLoad)]) {}

    fn may_have_room(&self, _: PoolId) {}

    fn sent(&self, _: PoolId, _: WorkerRank, _: &[SequenceHash]) {}
}

impl Blocks for Pool {
    fn workers(&self, _: PoolId) -> Vec<WorkerRank> {
        self.workers.clone()
    }

    fn held(&self, _: PoolId, workers: &[WorkerRank]) -> Vec<(WorkerRank, WorkerHoldings)> {
        let held = self.index.held_by(workers).into_iter().zip(workers);
        held.filter_map(|(held, worker)| Some((*worker, held?))).collect()
    }

    fn predicted(&self, _: PoolId, _: usize, _: usize) -> Option<Vec<(WorkerRank, SequenceHash)>> {
        None
    }

    fn restore(&self, _: PoolId, worker: WorkerRank, held: WorkerHoldings) -> bool {
        self.index.restore(worker, held.generation, held.blocks);
        true
    }
}

async fn join(pool: &Arc<Pool>, peer: SocketAddr, ended: &Shutdown) -> (Peers, SocketAddr) {
    let settings = PeersSettings {
        listen: ([127, 0, 0, 1], 0).into(),
        peers: vec![peer.to_string()],
        warm_start: Duration::from_secs(600),
        ..PeersSettings::default()
    };
    let seat = Seat::take(settings, "bench", &Metrics::default()).await.expect("a free port");
    let address = seat.address().expect("it is bound");
    let (peers, tasks) = seat.join(pool.clone(), ended.clone());
    tokio::spawn(tasks.join_all());
    (peers, address)
}

/// CPU seconds of this process so far.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("this is Linux");
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let ticks = |at: usize| fields[at].parse::<f64>().expect("it is a number");
    // Fields 14 and 15, of which the third is the first here, in hundredths of a second.
    (ticks(11) + ticks(12)) / 100.0
}

#[tokio::main]
async fn main() {
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let blocks = numbers.first().copied().unwrap_or(4_000_000);
    let workers = numbers.get(1).copied().unwrap_or(1_000);
    let each = blocks / workers;
    let known = Arc::new(Pool::of(workers));
    for worker in &known.workers {
        let own = (worker.worker.0 + 1) << 32;
        let hash = |n: u64| if n < each / 2 { n } else { own + n };
        let hash = |n| SequenceHash(hash(n).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let held: Vec<_> = (0..each).map(|n| (hash(n), Medium::Device)).collect();
        known.index.replace(*worker, LIFE, held);
    }
    let (_end, ended) = Shutdown::new();
    let (peers, address) = join(&known, ([127, 0, 0, 1], 1).into(), &ended).await;
    peers.warm_start().await;
    println!("{:>10} {:>8} {:>9} {:>9}", "blocks", "workers", "seconds", "CPU s");
    for _ in 0..3 {
        let joining = Arc::new(Pool::of(workers));
        let (peers, _) = join(&joining, address, &ended).await;
        let before = cpu();
        let start = peers.warm_start().await;
        let took = cpu() - before;
        assert!(start.complete && start.workers as u64 == workers, "{start:?}");
        let seconds = start.elapsed.as_secs_f64();
        println!("{:>10} {:>8} {seconds:>9.2} {took:>9.2}", start.blocks, start.workers);
    }
}
