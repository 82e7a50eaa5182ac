//! Tests of the disk tier as a whole, on real files.

use super::format::{DESCRIPTOR_BYTES, Geometry, PAGE_BYTES};
use super::*;
use crate::checksum::checksum;
use crate::disk::counts::ReportSink;
use crate::tier::{TierError, Urgency};
use crate::{Block, SlotId};
use stator_protos::hash::SequenceHash;
use stator_protos::name::BlockName;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::mpsc::Receiver;
use tempfile::TempDir;

mod faults;
mod limits;
mod restart;
mod sealed;

const BLOCK_BYTES: usize = 2 * PAGE_BYTES;
const FORM: BlockForm = BlockForm { fingerprint: [7; 32], block_bytes: BLOCK_BYTES };
const SLOTS: u32 = 16;
const DEADLINE: Duration = Duration::from_secs(30);
/// Segments of 4 blocks each: 9 pages.
const SEGMENT_BYTES: u64 = (9 * PAGE_BYTES) as u64;

/// The KV of a block, which its name decides.
fn kv(name: u128, bytes: usize) -> Vec<u8> {
    let mut kv = vec![0; bytes];
    blake3::Hasher::new().update(&name.to_le_bytes()).finalize_xof().fill(&mut kv);
    kv
}

fn block(name: u128) -> Block {
    let hash = SequenceHash(name as u64);
    Block {
        name: BlockName(name),
        hash: Some(hash),
        parent: None,
        depth: name as u32 % 100,
        tenant: crate::TenantKey::default(),
    }
}

fn settings(dir: &Path, segments: u64) -> DiskSettings {
    let bytes = segments * SEGMENT_BYTES;
    DiskSettings { segment_bytes: SEGMENT_BYTES, ..DiskSettings::new(dir, bytes) }
}

/// An open tier with its arena and its reports.
struct Rig {
    tier: DiskTier,
    arena: Arc<Arena>,
    reports: Receiver<TierReport>,
}

impl Rig {
    fn open(settings: DiskSettings, form: BlockForm) -> Result<Self, OpenError> {
        let arena = Arc::new(Arena::new(SLOTS, form.block_bytes).unwrap());
        let (send, reports) = channel();
        let sink: ReportSink = Arc::new(move |report| drop(send.send(report)));
        let tier = DiskTier::open(settings, form, arena.clone(), sink)?;
        Ok(Self { tier, arena, reports })
    }

    fn with_segments(dir: &Path, segments: u64) -> Self {
        Self::open(settings(dir, segments), FORM).unwrap()
    }

    fn report(&self) -> TierReport {
        self.reports.recv_timeout(DEADLINE).unwrap()
    }

    /// Writes a block from a slot, and waits; evicted blocks are returned.
    fn write(&self, name: u128) -> Vec<BlockName> {
        let slot = SlotId(name as u32 % SLOTS);
        let kv = kv(name, self.arena.block_bytes());
        self.arena.write(slot, &kv);
        let checksum = checksum(BlockName(name), &kv);
        self.tier.write(TierWrite { block: block(name), slot, checksum });
        let mut gone = Vec::new();
        loop {
            match self.report() {
                TierReport::Gone(names) => gone.extend(names),
                TierReport::Found(_) => {}
                report => {
                    let (name, result) = (BlockName(name), Ok(()));
                    assert_eq!(report, TierReport::Written { name, slot, result });
                    return gone;
                }
            }
        }
    }

    /// Reads a block and returns its KV.
    fn read(&self, name: u128) -> Result<Vec<u8>, TierError> {
        let slot = SlotId(name as u32 % SLOTS);
        let urgency = Urgency::Demand;
        self.tier.read(TierRead { name: BlockName(name), slot, urgency });
        loop {
            match self.report() {
                TierReport::Read { name: read, slot: of, result } => {
                    assert_eq!((read, of), (BlockName(name), slot));
                    let mut kv = vec![0; self.arena.block_bytes()];
                    self.arena.read(slot, &mut kv);
                    assert!(result.is_err() || result == Ok(checksum(read, &kv)));
                    return result.map(|_| kv);
                }
                TierReport::Found(_) | TierReport::Gone(_) => {}
                report => panic!("{report:?}"),
            }
        }
    }

    #[track_caller]
    fn check_reads(&self, names: impl IntoIterator<Item = u128>) {
        for name in names {
            assert_eq!(self.read(name), Ok(kv(name, self.arena.block_bytes())), "block {name}");
        }
    }

    /// Closes the tier, and returns all reports that were not asked for yet.
    fn close(self) -> Vec<TierReport> {
        drop(self.tier);
        self.reports.iter().collect()
    }
}

/// Blocks that a tier reports at its start.
fn found(dir: &Path, segments: u64) -> Vec<Block> {
    let reports = Rig::with_segments(dir, segments).close();
    let found = reports.into_iter().filter_map(|report| match report {
        TierReport::Found(blocks) => Some(blocks),
        _ => None,
    });
    found.flatten().collect()
}

fn names(blocks: &[Block]) -> Vec<u128> {
    let mut names: Vec<_> = blocks.iter().map(|block| block.name.0).collect();
    names.sort_unstable();
    names
}

/// The files of a form's directory.
fn files(dir: &Path, form: &BlockForm) -> BTreeMap<String, Vec<u8>> {
    let folder = dir.join(folder::folder_name(form));
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let read = |path: PathBuf| {
        (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(path).unwrap())
    };
    entries.map(read).collect()
}

/// Changes bytes of a segment's file.
fn edit(dir: &Path, segment: u32, change: impl FnOnce(&mut Vec<u8>)) {
    let name = format!("segment-{segment:05}");
    let path = dir.join(folder::folder_name(&FORM)).join(name);
    let mut bytes = fs::read(&path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

#[test]
fn blocks_come_back_as_they_were_and_the_oldest_go() {
    let dir = TempDir::new().unwrap();
    let rig = Rig::with_segments(dir.path(), 8);
    assert!((0..32).all(|name| rig.write(name).is_empty()));
    rig.check_reads(4..32);
    // The first segment has blocks 0 to 3.
    assert_eq!(rig.write(32), [0, 1, 2, 3].map(BlockName));
    rig.check_reads(4..33);
    assert_eq!(rig.read(0), Err(TierError::Missing));
    let counts = rig.tier.counts();
    assert_eq!((counts.written, counts.evicted, counts.read), (33, 4, 28 + 29));
}

#[test]
fn a_block_that_is_there_is_not_written_again() {
    let dir = TempDir::new().unwrap();
    let rig = Rig::with_segments(dir.path(), 8);
    rig.write(1);
    let before = files(dir.path(), &FORM);
    rig.write(1);
    assert_eq!(files(dir.path(), &FORM), before);
}

#[test]
fn a_cleared_tier_is_empty_also_after_a_restart() {
    let dir = TempDir::new().unwrap();
    let rig = Rig::with_segments(dir.path(), 8);
    (0..10).for_each(|name| drop(rig.write(name)));
    rig.tier.clear();
    assert_eq!(rig.read(3), Err(TierError::Missing));
    rig.write(3);
    rig.check_reads([3]);
    rig.close();
    assert_eq!(names(&found(dir.path(), 8)), [3]);
}

#[test]
fn two_agents_do_not_share_a_directory() {
    let dir = TempDir::new().unwrap();
    let _first = Rig::with_segments(dir.path(), 8);
    let second = Rig::open(settings(dir.path(), 8), FORM).err().unwrap().to_string();
    let folder = dir.path().join(folder::folder_name(&FORM));
    assert!(second.contains(folder.to_str().unwrap()), "{second}");
    assert!(second.contains(&format!("process {}", std::process::id())), "{second}");
    // Another form has another directory.
    Rig::open(settings(dir.path(), 8), BlockForm { fingerprint: [8; 32], ..FORM }).unwrap();
}

#[test]
fn only_the_owner_can_look_into_the_directory() {
    use std::os::unix::fs::PermissionsExt;
    let dir = TempDir::new().unwrap();
    let rig = Rig::with_segments(dir.path(), 8);
    rig.write(1);
    let folder = dir.path().join(folder::folder_name(&FORM));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    for file in fs::read_dir(&folder).unwrap() {
        assert_eq!(mode(&file.unwrap().path()), 0o600);
    }
}

#[test]
fn every_device_moves_blocks_of_any_size() {
    for block_bytes in [1, 5000, 3 * PAGE_BYTES, 1 << 20] {
        let form = BlockForm { block_bytes, ..FORM };
        let devices = [device::open, device::open_pool];
        for (open, is_cached) in devices.into_iter().flat_map(|open| [(open, false), (open, true)])
        {
            let dir = TempDir::new().unwrap();
            let geometry = Geometry { block_bytes, segment_slots: 4 };
            let bytes = 8 * geometry.segment_bytes();
            let parts = |arena: &Arc<Arena>, sink| {
                let mut folder =
                    Folder::open(dir.path(), form, FolderWish { geometry, bytes, key: None })
                        .unwrap();
                if is_cached {
                    folder.use_page_cache();
                }
                let inbox = Arc::new(DiskInbox::new(100));
                let (device, waker) = open(arena, 8);
                inbox.set_waker(waker);
                let outlet = Outlet { sink, counters: Arc::default() };
                let arena = arena.clone();
                WorkerParts {
                    device,
                    folder,
                    form,
                    arena,
                    inbox,
                    outlet,
                    depth: 4,
                    tenant_share: None,
                }
            };
            round_trip(block_bytes, &parts);
        }
    }
}

/// Writes blocks, and reads them after a restart.
fn round_trip(block_bytes: usize, parts: &dyn Fn(&Arc<Arena>, ReportSink) -> WorkerParts) {
    let arena = Arc::new(Arena::new(SLOTS, block_bytes).unwrap());
    let all = || (0..SLOTS).map(|at| (SlotId(at), BlockName(at.into())));
    for is_write in [true, false] {
        let (send, reports) = channel();
        let parts = parts(&arena, Arc::new(move |report| drop(send.send(report))));
        let inbox = parts.inbox.clone();
        for (slot, name) in all() {
            let kv = kv(name.0, block_bytes);
            let (block, checksum) = (block(name.0), checksum(name, &kv));
            inbox.push(if is_write {
                arena.write(slot, &kv);
                DiskRequest::Write(TierWrite { block, slot, checksum })
            } else {
                arena.write(slot, &vec![0; block_bytes]);
                DiskRequest::Read(TierRead { name, slot, urgency: Urgency::Demand })
            });
        }
        let mut worker = Worker::start(parts);
        let mut ended = 0;
        while ended < SLOTS {
            assert!(worker.turn());
            for report in reports.try_iter() {
                match report {
                    TierReport::Written { result, .. } => assert_eq!(result, Ok(())),
                    TierReport::Read { result, .. } => assert!(result.is_ok()),
                    TierReport::Found(_) => continue,
                    report => panic!("{report:?}"),
                }
                ended += 1;
            }
        }
        for (slot, name) in all() {
            let mut read = vec![0; block_bytes];
            arena.read(slot, &mut read);
            assert!(read == kv(name.0, block_bytes), "{name:?}");
        }
    }
}

#[test]
fn tier_may_be_dropped_while_it_reports() {
    let dir = TempDir::new().unwrap();
    let arena = Arc::new(Arena::new(SLOTS, BLOCK_BYTES).unwrap());
    let holder = Arc::new(Mutex::new(None::<DiskTier>));
    let (send, reports) = channel();
    let held = holder.clone();
    let sink: ReportSink = Arc::new(move |_| {
        drop(held.lock().take());
        let _ = send.send(());
    });
    let mut lock = holder.lock();
    let tier = lock.insert(DiskTier::open(settings(dir.path(), 8), FORM, arena, sink).unwrap());
    let (name, slot, urgency) = (BlockName(1), SlotId(0), Urgency::Demand);
    tier.read(TierRead { name, slot, urgency });
    drop(lock);
    drop(holder);
    reports.recv_timeout(DEADLINE).unwrap();
    // The thread has ended: it no longer has the other end.
    assert_eq!(reports.recv_timeout(DEADLINE), Err(RecvTimeoutError::Disconnected));
}

#[test]
fn settings_that_make_no_tier_are_refused() {
    let dir = TempDir::new().unwrap();
    let refused = |settings: DiskSettings| match settings.geometry(&FORM) {
        Err(OpenError::Settings(what)) => what,
        other => panic!("{other:?}"),
    };
    let good = settings(dir.path(), 8);
    assert_eq!(
        refused(DiskSettings { bytes: 4096, ..good.clone() }),
        "4096 bytes of disk, the least is 12288 for one block"
    );
    refused(DiskSettings { depth: 0, ..good.clone() });
    refused(DiskSettings { queue_max: 0, ..good.clone() });
    // A small tier has small segments, a large one no more than can be open.
    let slots = |bytes| {
        let form = BlockForm { block_bytes: 2 << 20, ..FORM };
        DiskSettings::new("", bytes).geometry(&form).unwrap().segment_slots
    };
    assert_eq!(slots(1 << 30), 63);
    assert_eq!(slots(100 << 30), 127);
    assert_eq!(slots(1 << 40), 1023);
}
