//! Throughput from one agent's arena to another's over loopback, beside plain TCP.
//!
//! `cargo bench -p stator-kv --bench transfer`
//!
//! Each line alternates, in one process, between the transfer and its floor: as many plain TCP
//! streams that copy as many bytes. Speeds are medians; the CPU time is of both sides together.

use futures::future::{BoxFuture, ready};
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use stator_kv::arena::Arena;
use stator_kv::peer::{PeerSettings, PeerTier};
use stator_kv::tier::{Tier, TierRead, TierReport, Urgency};
use stator_kv::transfer::{
    FleetKey, Lender, LendingStore, LentBlock, LentBlocks, LoanWish, TransferServer,
};
use stator_kv::{Block, BlockForm, SlotId};
use stator_protos::name::BlockName;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};

const BLOCK_BYTES: usize = 2 << 20;
const BLOCKS: u32 = 128;
const BYTES: usize = BLOCK_BYTES * BLOCKS as usize;
const REPETITIONS: usize = 7;
/// Ticks of `/proc/self/stat` in a second, on all systems with Linux.
const TICKS: f64 = 100.0;

fn main() {
    hashes();
    println!(
        "{:<24} {:>8} {:>10} {:>10} {:>7} {:>11} {:>11}",
        "", "streams", "GB/s", "floor", "ratio", "CPU s/GB", "floor"
    );
    for (what, key) in [
        ("no secret: XXH3", FleetKey::default()),
        ("secret: XXH3, AES-GCM", FleetKey::of_secret(b"correct-horse-battery")),
    ] {
        for streams in [1, 2, 4] {
            line(what, &key, streams);
        }
    }
}

fn line(what: &str, key: &FleetKey, streams: usize) {
    let pair = Pair::new(key.clone(), streams);
    let mut floor = PlainStreams::new(streams);
    pair.pull();
    floor.copy();
    let mut times = [Vec::new(), Vec::new()];
    let mut cpu = [0.0, 0.0];
    for _ in 0..REPETITIONS {
        let runs: [&mut dyn FnMut(); 2] = [&mut || pair.pull(), &mut || floor.copy()];
        for (at, run) in runs.into_iter().enumerate() {
            let (before, started) = (cpu_seconds(), Instant::now());
            run();
            times[at].push(started.elapsed());
            cpu[at] += cpu_seconds() - before;
        }
    }
    let gb = BYTES as f64 / 1e9;
    let [speed, floor] = times.map(|times| gb / median(times).as_secs_f64());
    let [cpu, floor_cpu] = cpu.map(|cpu| cpu / (gb * REPETITIONS as f64));
    let ratio = speed / floor;
    println!(
        "{what:<24} {streams:>8} {speed:>10.2} {floor:>10.2} {ratio:>7.2} {cpu:>11.2} {floor_cpu:>11.2}"
    );
}

/// Two agents in one process.
struct Pair {
    tier: PeerTier,
    reports: Receiver<TierReport>,
    peer: SocketAddr,
    _runtimes: [Runtime; 2],
}

impl Pair {
    fn new(key: FleetKey, streams: usize) -> Self {
        let form = BlockForm { fingerprint: [1; 32], block_bytes: BLOCK_BYTES };
        let runtime = || {
            let runtime = Builder::new_multi_thread().worker_threads(streams).enable_all().build();
            runtime.expect("the machine has threads")
        };
        let runtimes = [runtime(), runtime()];
        let held = arena();
        let names = (0..BLOCKS).map(|block| BlockName(block.into()));
        let blocks = names.map(|name| {
            let slot = SlotId(name.0 as u32);
            (name, LentBlock { slot, checksum: held.checksum(slot, name) })
        });
        let lender = Arc::new(Shelf(blocks.collect()));
        let listener = runtimes[0].block_on(tokio::net::TcpListener::bind("127.0.0.1:0"));
        let listener = listener.expect("the loopback interface is there");
        let peer = listener.local_addr().expect("a listener has an address");
        let store = LendingStore { arena: held, lender, form, key: key.clone(), direct: None };
        let server = TransferServer::new(Arc::new(store));
        runtimes[0].spawn(server.run(listener));
        let (sender, reports) = channel();
        let listener = Arc::new(move |report| drop(sender.send(report)));
        let settings = PeerSettings {
            streams,
            read_deadline: Duration::from_secs(60),
            ..PeerSettings::default()
        };
        let handle = runtimes[1].handle().clone();
        let tier = PeerTier::new(arena(), form, key, settings, handle, listener);
        Self { tier, reports, peer, _runtimes: runtimes }
    }

    /// Reads all blocks.
    fn pull(&self) {
        let names = (0..BLOCKS).map(|block| BlockName(block.into()));
        let block = |name| Block {
            name,
            hash: None,
            parent: None,
            depth: 0,
            tenant: stator_kv::TenantKey::default(),
        };
        self.tier.hint(self.peer, &names.clone().map(block).collect::<Vec<_>>());
        for name in names {
            let slot = SlotId(name.0 as u32);
            self.tier.read(TierRead { name, slot, urgency: Urgency::Demand });
        }
        let mut missing = BLOCKS;
        while missing > 0 {
            if let TierReport::Read { result, .. } = self.reports.recv().expect("the tier is there")
            {
                result.expect("blocks come");
                missing -= 1;
            }
        }
    }
}

struct Shelf(BTreeMap<BlockName, LentBlock>);

impl Lender for Shelf {
    fn lend(&self, _: u64, wish: LoanWish) -> BoxFuture<'static, LentBlocks> {
        let lent = wish.names.iter().map(|name| self.0[name]);
        Box::pin(ready(lent.collect::<Vec<_>>().into()))
    }

    fn release(&self, _: u64) {}
}

fn arena() -> Arc<Arena> {
    let arena = Arena::new(BLOCKS, BLOCK_BYTES).expect("the machine has 512 MiB");
    for slot in 0..BLOCKS {
        arena.write(SlotId(slot), &vec![slot as u8; BLOCK_BYTES]);
    }
    Arc::new(arena)
}

/// Plain TCP streams and the memory at both ends, which is touched before anything is timed.
struct PlainStreams(Vec<PlainStream>);

struct PlainStream {
    from: (TcpStream, Vec<u8>),
    to: (TcpStream, Vec<u8>),
}

impl PlainStreams {
    fn new(streams: usize) -> Self {
        let share = BYTES / streams;
        let stream = |_| {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
            let address = listener.local_addr().expect("a listener has an address");
            let from = TcpStream::connect(address).expect("somebody listens");
            let (to, _) = listener.accept().expect("somebody connects");
            PlainStream { from: (from, vec![1; share]), to: (to, vec![1; share]) }
        };
        Self((0..streams).map(stream).collect())
    }

    /// Copies all bytes, with a thread at each end of each stream.
    fn copy(&mut self) {
        thread::scope(|scope| {
            for PlainStream { from: (sender, from), to: (receiver, to) } in &mut self.0 {
                scope.spawn(|| sender.write_all(from).expect("the other side reads"));
                scope.spawn(|| receiver.read_exact(to).expect("the other side writes"));
            }
        });
    }
}

/// Speed of the hashes by themselves, on one core. The tag is made as frames have theirs: of pieces
/// that are copied first.
fn hashes() {
    let arena = arena();
    let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &[1; 16]).expect("16 bytes"));
    let mut speeds = [Vec::new(), Vec::new()];
    let (mut kv, mut piece) = (vec![0; BLOCK_BYTES], [0; 16 << 10]);
    for slot in 0..BLOCKS {
        let started = Instant::now();
        std::hint::black_box(arena.checksum(SlotId(slot), BlockName(1)));
        speeds[0].push(started.elapsed());
        arena.read(SlotId(slot), &mut kv);
        let started = Instant::now();
        for (at, bytes) in kv.chunks_exact(piece.len()).enumerate() {
            piece.copy_from_slice(bytes);
            let mut nonce = [0; 12];
            nonce[..8].copy_from_slice(&at.to_le_bytes());
            let nonce = Nonce::assume_unique_for_key(nonce);
            let tag = key.seal_in_place_separate_tag(nonce, Aad::empty(), &mut piece);
            std::hint::black_box(tag.expect("a short piece").as_ref());
        }
        speeds[1].push(started.elapsed());
    }
    let [xxh3, gcm] = speeds.map(|of| BLOCK_BYTES as f64 / 1e9 / median(of).as_secs_f64());
    println!("one core: XXH3 {xxh3:.1} GB/s, AES-128-GCM {gcm:.1} GB/s");
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// CPU time of all threads of the process so far, in seconds; 0 where the system does not tell.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the program, in parentheses, may have spaces.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks = |at| fields.split_whitespace().nth(at).and_then(|ticks| ticks.parse().ok());
    let (user, system): (Option<f64>, Option<f64>) = (ticks(11), ticks(12));
    (user.unwrap_or(0.0) + system.unwrap_or(0.0)) / TICKS
}
