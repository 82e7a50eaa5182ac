//! Throughput of the object tier. `cargo bench -p stator-kv --bench object -- [URL [ENDPOINT]]`, for
//! example `s3://bucket/prefix http://127.0.0.1:5000` with the usual `AWS_` variables. Default: a
//! directory, whose files the system keeps in memory.

use stator_kv::arena::Arena;
use stator_kv::checksum::checksum;
use stator_kv::object::{ObjectSettings, ObjectTier};
use stator_kv::tier::{Tier, TierRead, TierReport, TierWrite, Urgency};
use stator_kv::{Block, BlockForm, SlotId};
use stator_protos::name::BlockName;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const BLOCK_BYTES: usize = 2 << 20;
const BLOCKS: u32 = 128;
const DEADLINE: Duration = Duration::from_secs(120);

fn main() {
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    let directory = tempfile::tempdir().expect("a directory");
    let in_directory = format!("file://{}/kv", directory.path().display());
    let url = args.next().unwrap_or(in_directory);
    let endpoint = args.next();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    for key in [None, Some([1; 32])] {
        for reads_at_a_time in [1, 16] {
            let mut settings =
                ObjectSettings::new(url.parse().expect("a URL"), runtime.handle().clone());
            settings.endpoint = endpoint.clone();
            settings.key = key;
            settings.times.read = DEADLINE;
            settings.times.linger = Duration::from_millis(10);
            settings.limits.reads = reads_at_a_time;
            // Another form each time, so that every run writes.
            let run = u8::from(key.is_some()) * 2 + u8::from(reads_at_a_time > 1);
            let mut fingerprint = [run; 32];
            fingerprint[..4].copy_from_slice(&std::process::id().to_le_bytes());
            let form = BlockForm { fingerprint, block_bytes: BLOCK_BYTES };
            let secret = if key.is_some() { "with a secret" } else { "without a secret" };
            print!("{secret}, {reads_at_a_time} reads at a time: ");
            run_one(settings, form);
        }
    }
}

fn run_one(settings: ObjectSettings, form: BlockForm) {
    let arena = Arc::new(Arena::new(BLOCKS, BLOCK_BYTES).expect("an arena"));
    let (report, reports) = channel();
    let sink = Arc::new(move |said| drop(report.send(said)));
    let tier = ObjectTier::open(settings, form, Arc::clone(&arena), sink).expect("a tier");
    let name = |number: u32| BlockName(u128::from(number) + 1);
    let writes: Vec<_> = (0..BLOCKS)
        .map(|number| {
            let kv: Vec<u8> = (0..BLOCK_BYTES).map(|at| (at as u32 ^ number) as u8).collect();
            arena.write(SlotId(number), &kv);
            let block = Block {
                name: name(number),
                hash: None,
                parent: None,
                depth: number,
                tenant: stator_kv::TenantKey::default(),
            };
            TierWrite { block, slot: SlotId(number), checksum: checksum(block.name, &kv) }
        })
        .collect();
    let begun = Instant::now();
    writes.into_iter().for_each(|write| tier.write(write));
    wait(&reports, BLOCKS);
    let written = begun.elapsed();
    let begun = Instant::now();
    for number in 0..BLOCKS {
        let (name, slot) = (name(number), SlotId(number));
        tier.read(TierRead { name, slot, urgency: Urgency::Demand });
    }
    wait(&reports, BLOCKS);
    let read = begun.elapsed();
    let begun = Instant::now();
    for number in 0..BLOCKS {
        let number = number * 37 % BLOCKS;
        let (name, slot) = (name(number), SlotId(number));
        tier.read(TierRead { name, slot, urgency: Urgency::Demand });
        wait(&reports, 1);
    }
    let single = begun.elapsed();
    let gb = f64::from(BLOCKS) * BLOCK_BYTES as f64 / 1e9;
    println!(
        "write {:.2} GB/s, read {:.2} GB/s in {} requests, one block after another {:.2} ms",
        gb / written.as_secs_f64(),
        gb / read.as_secs_f64(),
        tier.counts().reads - u64::from(BLOCKS),
        single.as_secs_f64() * 1e3 / f64::from(BLOCKS),
    );
}

/// Waits for the ends of so many reads or writes, all of them good.
fn wait(reports: &Receiver<TierReport>, ends: u32) {
    let mut ended = 0;
    while ended < ends {
        match reports.recv_timeout(DEADLINE).expect("an end in time") {
            TierReport::Read { result, .. } => {
                result.expect("a block");
                ended += 1;
            }
            TierReport::Written { result, .. } => {
                result.expect("room");
                ended += 1;
            }
            TierReport::Found(_) | TierReport::Located { .. } | TierReport::Gone(_) => {}
        }
    }
}
