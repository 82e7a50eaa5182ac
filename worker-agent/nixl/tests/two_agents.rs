//! Two processes and real NIXL: memory to memory, memory to file, and a holder that is killed.
//!
//! `STATOR_TEST_NIXL` names the library, as the package `nixl-cu13` installs it. Without it the tests
//! say that they did not run.

use futures::future::{BoxFuture, ready};
use prometheus_client::metrics::counter::Counter;
use stator_kv::arena::Arena;
use stator_kv::peer::{DirectReads, PeerSettings, PeerTier};
use stator_kv::tier::{Tier, TierRead, TierReport, Urgency};
use stator_kv::transfer::direct::{DirectArena, DirectError, DirectWay, READ_BYTES_MAX};
use stator_kv::transfer::{
    FleetKey, Lender, LendingStore, LentBlock, LentBlocks, LoanWish, TransferServer,
};
use stator_kv::{Block, BlockForm, SlotId};
use stator_nixl::memory::{Landing, NixlMemory};
use stator_nixl::transfer::{NixlTransfer, OtherSide, TransferPiece, TransferWay};
use stator_nixl::{NixlAgent, NixlBackend, NixlLibrary, NixlWay};
use stator_protos::name::BlockName;
use std::env;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::ops::Range;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

const SLOTS: u32 = 16;
const BLOCK: usize = 256 << 10;
const FORM: BlockForm = BlockForm { fingerprint: [1; 32], block_bytes: BLOCK };
/// Rounds of reads within which the direct path is found.
const ROUNDS_MAX: usize = 500;
const WITHIN: Duration = Duration::from_secs(10);

/// Name of a test, and the test.
type NixlTest = (&'static str, fn(&Arc<NixlLibrary>));

fn main() {
    let arguments: Vec<_> = env::args().collect();
    if arguments.get(1).is_some_and(|role| role == "holder") {
        return hold();
    }
    let Some(path) = env::var_os("STATOR_TEST_NIXL") else {
        eprintln!(
            "not run: agents that read each other by NIXL: STATOR_TEST_NIXL names no library"
        );
        return;
    };
    let library = NixlLibrary::open(Path::new(&path)).expect("the library that was named");
    let tests: [NixlTest; 5] = [
        ("memory_of_another_process_is_read", memory_of_another_process_is_read),
        ("wrong_descriptions_and_parts_are_refused", wrong_descriptions_and_parts_are_refused),
        ("a_peer_tier_reads_blocks_directly", a_peer_tier_reads_blocks_directly),
        ("blocks_go_to_a_file_and_back", blocks_go_to_a_file_and_back),
        ("a_killed_holder_is_an_error_soon", a_killed_holder_is_an_error_soon),
    ];
    for (name, test) in tests {
        let started = Instant::now();
        test(&library);
        println!("test {name} ... ok ({:.1} s)", started.elapsed().as_secs_f64());
    }
}

fn block(slot: u32) -> Vec<u8> {
    let words = 0..BLOCK as u32 / 4;
    words.flat_map(|at| (at.wrapping_mul(2_654_435_761) ^ slot << 7).to_le_bytes()).collect()
}

fn arena() -> Arc<Arena> {
    let arena = Arena::new(SLOTS, BLOCK).expect("the machine has 4 MiB");
    for slot in 0..SLOTS {
        arena.write(SlotId(slot), &block(slot));
    }
    Arc::new(arena)
}

/// Another process: describes its arena and lends its blocks, until its input ends.
fn hold() {
    let path = env::var_os("STATOR_TEST_NIXL").expect("the parent has it");
    let library = NixlLibrary::open(Path::new(&path)).expect("a library");
    let arena = arena();
    let way = Arc::new(NixlWay::new(&library, "holder", &arena).expect("a way"));
    let runtime = Runtime::new().expect("threads");
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port is free");
    let address = listener.local_addr().expect("it has an address");
    let hex: String = way.description().iter().map(|byte| format!("{byte:02x}")).collect();
    let lender = Arc::new(Shelf(arena.clone()));
    let (key, direct) = (FleetKey::default(), Some(way as Arc<dyn DirectWay>));
    let store = LendingStore { arena, lender, form: FORM, key, direct };
    runtime.spawn(TransferServer::new(Arc::new(store)).run(listener));
    println!("arena {address} {hex}");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// Lends all blocks, named by their slots.
struct Shelf(Arc<Arena>);

impl Lender for Shelf {
    fn lend(&self, _: u64, wish: LoanWish) -> BoxFuture<'static, LentBlocks> {
        let lent = wish.names.iter().map(|name| {
            let slot = SlotId(name.0 as u32);
            LentBlock { slot, checksum: self.0.checksum(slot, *name) }
        });
        Box::pin(ready(lent.collect::<Vec<_>>().into()))
    }

    fn release(&self, _: u64) {}
}

struct Holder {
    process: Child,
    /// Address of its transfer server.
    address: SocketAddr,
    description: Vec<u8>,
}

impl Holder {
    fn start() -> Self {
        let program = env::current_exe().expect("this program");
        let mut command = Command::new(program);
        command.arg("holder").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("it starts");
        // The library may write lines of its own.
        let lines = BufReader::new(process.stdout.take().expect("a pipe")).lines();
        let mut lines = lines.map_while(Result::ok);
        let line = lines.find_map(|line| Some(line.strip_prefix("arena ")?.to_owned()));
        let line = line.expect("the holder describes its arena");
        let (address, hex) = line.split_once(' ').expect("two words");
        let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex digits");
        let address = address.parse().expect("an address");
        Self { process, address, description: (0..hex.len()).step_by(2).map(byte).collect() }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn reader(library: &Arc<NixlLibrary>, name: &str) -> NixlWay {
    NixlWay::new(library, name, &arena()).expect("a way")
}

/// Parts of slots, as large as frames are.
fn parts(slots: Range<u32>) -> Vec<Range<u64>> {
    let half = BLOCK as u64 / 2;
    let starts = slots.flat_map(|slot| [0, 1].map(|part| (2 * u64::from(slot) + part) * half));
    starts.map(|start| start..start + half).collect()
}

fn read(from: &mut dyn DirectArena, slots: Range<u32>) -> Result<Vec<u8>, DirectError> {
    let mut read = Vec::new();
    from.read(&parts(slots), WITHIN, &mut |_, bytes| read.extend_from_slice(bytes))?;
    Ok(read)
}

fn memory_of_another_process_is_read(library: &Arc<NixlLibrary>) {
    let holder = Holder::start();
    let way = reader(library, "reader");
    let mut arena = way.open(&holder.description).expect("it describes an arena");
    let (mut bytes, mut busy) = (0, Duration::ZERO);
    for round in 0..4 {
        for first in (0..SLOTS).step_by(4) {
            let started = Instant::now();
            let read = read(&mut *arena, first..first + 4).expect("blocks come");
            // The first round makes the connection.
            if round > 0 {
                busy += started.elapsed();
                bytes += read.len();
            }
            let expected: Vec<u8> = (first..first + 4).flat_map(block).collect();
            assert!(read == expected, "slots from {first}");
        }
    }
    println!("read {bytes} bytes at {:.2} GB/s", bytes as f64 / 1e9 / busy.as_secs_f64());
}

fn wrong_descriptions_and_parts_are_refused(library: &Arc<NixlLibrary>) {
    let holder = Holder::start();
    let way = reader(library, "doubting");
    for length in [0, 8, 15, 16, 40] {
        let error = way.open(&holder.description[..length]).err();
        println!("{length} bytes: {}", error.expect("no arena"));
    }
    let mut arena = way.open(&holder.description).expect("it describes an arena");
    let end = u64::from(SLOTS) * BLOCK as u64;
    let backwards = Range { start: 7, end: 3 };
    for wrong in [end - 1..end + 1, 5..5, backwards, 0..READ_BYTES_MAX as u64 + 1] {
        let read = arena.read(&[wrong], WITHIN, &mut |_, _| panic!("nothing is shown"));
        println!("{}", read.expect_err("no such part"));
    }
    assert!(read(&mut *arena, 0..1).expect("it can be read") == block(0));
}

fn a_peer_tier_reads_blocks_directly(library: &Arc<NixlLibrary>) {
    let holder = Holder::start();
    let runtime = Runtime::new().expect("threads");
    let landing = Arc::new(Arena::new(SLOTS, BLOCK).expect("the machine has 4 MiB"));
    let (sender, reports) = channel();
    let listener = Arc::new(move |report| drop(sender.send(report)));
    let settings = PeerSettings { read_deadline: WITHIN, ..PeerSettings::default() };
    let (key, handle) = (FleetKey::default(), runtime.handle().clone());
    let tier = PeerTier::new(landing.clone(), FORM, key, settings, handle, listener);
    let way = NixlWay::new(library, "tier", &landing).expect("a way");
    tier.read_directly(DirectReads { way: Arc::new(way), bytes: Counter::default() });
    let names = || (0..SLOTS).map(|slot| BlockName(slot.into()));
    let tenant = stator_kv::TenantKey::default();
    let block = |name| Block { name, hash: None, parent: None, depth: 0, tenant };
    tier.hint(holder.address, &names().map(block).collect::<Vec<_>>());
    // The first batches come over TCP, while the arena is being opened.
    for _ in 0..ROUNDS_MAX {
        for name in names() {
            let (slot, urgency) = (SlotId(name.0 as u32), Urgency::Demand);
            landing.write(slot, &[0; BLOCK]);
            tier.read(TierRead { name, slot, urgency });
        }
        let mut missing = SLOTS;
        while missing > 0 {
            let report = reports.recv_timeout(2 * WITHIN).expect("every read ends");
            if let TierReport::Read { result, .. } = report {
                result.expect("blocks come");
                missing -= 1;
            }
        }
        let mut kv = vec![0; BLOCK];
        for slot in 0..SLOTS {
            landing.read(SlotId(slot), &mut kv);
            assert!(kv == self::block(slot), "slot {slot}");
        }
        if tier.counts().direct > 0 {
            println!("{:?}", tier.counts());
            return;
        }
    }
    panic!("nothing was read directly: {:?}", tier.counts());
}

fn blocks_go_to_a_file_and_back(library: &Arc<NixlLibrary>) {
    let agent = NixlAgent::new(library, "filing", NixlBackend::Posix).expect("a back end");
    let file = tempfile::tempfile().expect("a file");
    file.set_len(u64::from(SLOTS) * BLOCK as u64).expect("room");
    let bytes = SLOTS as usize * BLOCK;
    let register = |memory| Arc::new(agent.register(memory).expect("memory"));
    let (from, filed) =
        (register(NixlMemory::Arena(arena())), register(NixlMemory::File(file, bytes)));
    let landing = register(NixlMemory::Landing(Landing::new(bytes)));
    let itself = agent.itself();
    let piece =
        |slot| TransferPiece { local: slot * BLOCK, remote: (slot * BLOCK) as u64, bytes: BLOCK };
    let pieces: Vec<_> = (0..SLOTS as usize).map(piece).collect();
    for (way, region) in [(TransferWay::Write, &from), (TransferWay::Read, &landing)] {
        let other = OtherSide::File(&itself, &filed);
        let mut transfer =
            NixlTransfer::post(&agent, way, region, other, &pieces).expect("it starts");
        assert!(
            transfer.wait(Instant::now() + WITHIN).expect("it works"),
            "{way:?} takes too long"
        );
    }
    let NixlMemory::Landing(landing) = landing.memory() else { panic!("a landing") };
    let mut read = vec![0; BLOCK];
    for slot in 0..SLOTS {
        landing.copy_to(slot as usize * BLOCK, &mut read);
        assert!(read == block(slot), "slot {slot}");
    }
}

fn a_killed_holder_is_an_error_soon(library: &Arc<NixlLibrary>) {
    let mut holder = Holder::start();
    let way = reader(library, "survivor");
    let mut arena = way.open(&holder.description).expect("it describes an arena");
    assert!(read(&mut *arena, 0..1).expect("it can be read") == block(0));
    let (begin, begun) = channel();
    let killer = thread::spawn(move || {
        begun.recv().expect("reads have begun");
        holder.process.kill().expect("it can be killed");
        holder.process.wait().expect("it ends");
        Instant::now()
    });
    // Reads until one fails. Those before it are right.
    let (reads, error) = loop_until_error(&mut *arena, &begin);
    let killed = killer.join().expect("the holder is killed");
    let after = Instant::now().saturating_duration_since(killed);
    println!("{reads} reads, then: {error} ({} ms after the kill)", after.as_millis());
    assert!(after < WITHIN, "it took {after:?}");
    // Another holder is read nevertheless.
    let holder = Holder::start();
    let other = reader(library, "survivor-2");
    let mut arena = other.open(&holder.description).expect("it describes an arena");
    assert!(read(&mut *arena, 3..4).expect("it can be read") == block(3));
}

fn loop_until_error(arena: &mut dyn DirectArena, begin: &Sender<()>) -> (u64, DirectError) {
    let mut reads = 0;
    loop {
        match read(arena, 0..4) {
            Ok(bytes) => {
                let expected: Vec<u8> = (0..4).flat_map(block).collect();
                assert!(bytes == expected, "wrong bytes after {reads} reads");
                reads += 1;
                // The killer may have gone already.
                let _ = begin.send(());
            }
            Err(error) => return (reads, error),
        }
    }
}
