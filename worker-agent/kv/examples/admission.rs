//! Hits and writes of a disk below host memory on a trace of prompts, by what is written to the disk.
//!
//! `cargo run -p stator-kv --example admission -- TRACE [HOST DISK]...`, where TRACE has one JSON object
//! a line with `hash_ids`, the blocks of a prompt, as in Mooncake's traces. Runs the block store itself;
//! the disk is a queue of names whose reads and writes end at once.

use serde_json::Value;
use stator_kv::policy::{Ghosts, PolicyName};
use stator_kv::store::{
    Action, BlockStore, Filled, OwnerId, RequestId, StoreSettings, TierAdmission, TierId,
    TierSettings,
};
use stator_kv::tier::TierReport;
use stator_kv::{Block, Checksum, Now, SlotId, TenantKey};
use stator_protos::kv_event::Medium;
use stator_protos::name::BlockName;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// A way to fill the tiers: a name, the policy of host memory, what a disk of so many blocks takes, and whether
/// host memory takes a block at its second computation only.
type FillingWay = (&'static str, Option<PolicyName>, fn(usize) -> TierAdmission, bool);

const WAYS: [FillingWay; 5] = [
    ("LRU, all", Some(PolicyName::Lru), |_| TierAdmission::Through, false),
    ("LRU, second touch (Dynamo)", Some(PolicyName::Lru), |_| TierAdmission::SecondTouch, false),
    ("selective (HiCache)", Some(PolicyName::Lru), |_| TierAdmission::Through, true),
    ("selected, all", None, |_| TierAdmission::Through, false),
    ("selected, measured", None, |blocks| TierAdmission::Measured { blocks }, false),
];

fn main() {
    let mut arguments = std::env::args().skip(1);
    let trace = arguments.next().expect("the path of a trace");
    let trace = std::fs::read_to_string(trace).expect("a trace that can be read");
    let prompts: Vec<Vec<BlockName>> = trace.lines().map(prompt).collect();
    let asked: usize = prompts.iter().map(Vec::len).sum();
    let sizes: Vec<usize> =
        arguments.map(|blocks| blocks.parse().expect("a number of blocks")).collect();
    println!("{} prompts, {asked} blocks", prompts.len());
    println!("host disk | way | hits % | written to host | to disk");
    for pair in sizes.chunks_exact(2) {
        for (name, policy, admission, is_selective) in WAYS {
            let seen = is_selective.then(|| Ghosts::new(16 * pair[1]));
            let mut study = Study::new((pair[0], pair[1]), (policy, admission(pair[1])), seen);
            prompts.iter().for_each(|prompt| study.pass(prompt));
            let hits = 100.0 * study.hits as f64 / asked as f64;
            let (host, disk) = (study.host_written, study.disk_written);
            println!("{} {} | {name} | {hits:.1} | {host} | {disk}", pair[0], pair[1]);
        }
    }
}

/// One store, and its disk.
struct Study {
    store: BlockStore,
    owner: OwnerId,
    now: Now,
    requests: u64,
    /// A slot that was granted and not filled.
    spare: Option<SlotId>,
    /// Blocks on the disk, and whether they were read since they were written.
    disk: HashMap<BlockName, bool>,
    order: VecDeque<BlockName>,
    disk_blocks: usize,
    /// Blocks that were computed before, where host memory takes only these.
    seen: Option<Ghosts>,
    hits: u64,
    host_written: u64,
    disk_written: u64,
}

impl Study {
    fn new(
        (host, disk_blocks): (usize, usize),
        (policy, admission): (Option<PolicyName>, TierAdmission),
        seen: Option<Ghosts>,
    ) -> Self {
        let tier = TierSettings { admission, ..TierSettings::new(Medium::Disk) };
        let settings = StoreSettings { policy, ..StoreSettings::new(host as u32, 1, vec![tier]) };
        let mut store = BlockStore::new(settings);
        let owner = store.connect();
        let (now, requests, spare, disk, order) = Default::default();
        let (hits, host_written, disk_written) = Default::default();
        Self {
            store,
            owner,
            now,
            requests,
            spare,
            disk,
            order,
            disk_blocks,
            seen,
            hits,
            host_written,
            disk_written,
        }
    }

    /// A prompt comes: what is there is used, the rest is computed and stored.
    fn pass(&mut self, names: &[BlockName]) {
        self.now += Duration::from_millis(100);
        self.requests += 1;
        let request = RequestId(self.requests);
        let found = self.store.ask(self.owner, request, names, Duration::ZERO, self.now);
        let hits = found.ready.len() + found.pending;
        self.hits += hits as u64;
        self.act();
        for (depth, name) in names.iter().enumerate().skip(hits) {
            let is_known = self.seen.as_mut().is_none_or(|seen| seen.replace(*name));
            if !is_known {
                continue;
            }
            if self.spare.is_none() {
                self.spare = self.store.grant(self.owner, 1, self.now).pop();
                self.act();
            }
            if let Some(slot) = self.spare.take() {
                let block = Block {
                    name: *name,
                    hash: None,
                    parent: None,
                    depth: depth as u32,
                    tenant: TenantKey::default(),
                };
                let filled = self.store.filled(self.owner, slot, block, Checksum(0), self.now);
                self.host_written += u64::from(filled == Filled::Registered);
                // The slot of a block that is there already, behind one that is not, stays ours.
                self.spare = (filled == Filled::Duplicate).then_some(slot);
            }
            self.act();
        }
        self.store.end(self.owner, request, self.now);
        self.act();
    }

    /// The disk does what the store decides, at once.
    fn act(&mut self) {
        const DISK: TierId = TierId(0);
        while let Some(action) = self.store.next_action() {
            match action {
                Action::Read { read, .. } => {
                    self.disk.entry(read.name).and_modify(|was_read| *was_read = true);
                    let result = Ok(Checksum(0));
                    let report = TierReport::Read { name: read.name, slot: read.slot, result };
                    self.store.report(DISK, report, self.now);
                }
                Action::Write { write, .. } => {
                    let (name, slot) = (write.block.name, write.slot);
                    self.disk_written += 1;
                    if self.disk.insert(name, false).is_none() {
                        self.order.push_back(name);
                    }
                    let report = TierReport::Written { name, slot, result: Ok(()) };
                    self.store.report(DISK, report, self.now);
                    self.make_room();
                }
                Action::Ready { .. } | Action::Event(_) => {}
                Action::Cancel { .. } | Action::Forget { .. } | Action::Clear { .. } => {}
            }
        }
    }
}

impl Study {
    /// Overwrites the oldest blocks; those that were read are written anew, as agents do.
    fn make_room(&mut self) {
        while self.disk.len() > self.disk_blocks
            && let Some(oldest) = self.order.pop_front()
        {
            match self.disk.get_mut(&oldest) {
                Some(was_read) if *was_read => {
                    *was_read = false;
                    self.order.push_back(oldest);
                    self.disk_written += 1;
                }
                _ => {
                    self.disk.remove(&oldest);
                    self.store.report(TierId(0), TierReport::Gone(vec![oldest]), self.now);
                }
            }
        }
    }
}

fn prompt(line: &str) -> Vec<BlockName> {
    let line: Value = serde_json::from_str(line).expect("a JSON object a line");
    let ids = line["hash_ids"].as_array().expect("a list of blocks");
    ids.iter().map(|id| BlockName(id.as_u64().expect("a number").into())).collect()
}
