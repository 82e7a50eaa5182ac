//! Speed of the disk tier: writes, reads, restarts. Prints a table; takes about a minute.
//!
//! `cargo bench -p stator-kv --bench disk [DIR]`
//!
//! The floor moves the same blocks between the same arena and a file of the same size, by the same
//! kernel interface at the same depth, and does nothing else: no checksums, no descriptors, no
//! queue. Tier and floor alternate, so that a noisy disk disturbs both alike. DIR is a directory on
//! the disk to measure; the default is the system's directory for temporary files.
// The floor gives the kernel addresses of the arena.
#![allow(unsafe_code)]

#[cfg(target_os = "linux")]
fn main() {
    let dir = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let dir = dir.map_or_else(std::env::temp_dir, Into::into);
    transfers::measure(&dir);
    restart::measure(&dir);
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("skipped: arenas need Linux");
}

#[cfg(target_os = "linux")]
mod transfers {
    use std::fs::{File, OpenOptions};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, channel};
    use std::time::{Duration, Instant};

    use io_uring::{IoUring, opcode, types};
    use stator_kv::arena::Arena;
    use stator_kv::cipher::{KvCipher, KvKey};
    use stator_kv::disk::{DiskSettings, DiskTier};
    use stator_kv::tier::{Tier, TierRead, TierReport, TierWrite, Urgency};
    use stator_kv::{Block, BlockForm, Checksum, SlotId};
    use stator_protos::name::BlockName;
    use tempfile::TempDir;

    const BLOCK_BYTES: usize = 2 << 20;
    const FORM: BlockForm = BlockForm { fingerprint: [1; 32], block_bytes: BLOCK_BYTES };
    const SLOTS: u32 = 64;
    const DEPTH: u32 = 32;
    /// Blocks of a repetition.
    const BLOCKS: u64 = 128;
    const REPETITIONS: u64 = 7;

    pub(crate) fn measure(dir: &Path) {
        let arena = Arc::new(Arena::new(SLOTS, BLOCK_BYTES).expect("the machine has 128 MiB"));
        for slot in (0..SLOTS).map(SlotId) {
            // All blocks have the same bytes, so that any free slot serves for any block.
            arena.write(slot, &vec![0xa5; BLOCK_BYTES]);
        }
        let rig = Rig::open(dir, arena.clone(), None);
        let sealed = Rig::open(dir, arena.clone(), Some(KvKey::of_secret(b"bench")));
        let floor = Floor::open(dir, arena);
        let mut times: [Vec<Duration>; 6] = Default::default();
        for repetition in 0..REPETITIONS {
            let first = repetition * BLOCKS;
            times[0].push(floor.run(first, true));
            times[1].push(rig.run(first, true));
            times[2].push(floor.run(first, false));
            times[3].push(rig.run(first, false));
            times[4].push(sealed.run(first, true));
            times[5].push(sealed.run(first, false));
        }
        println!(
            "{:<34} {:>10} {:>10} {:>8}",
            "2 MiB at depth 32", "floor GB/s", "tier GB/s", "ratio"
        );
        let [floor_write, write, floor_read, read, sealed_write, sealed_read] = times.map(median);
        for (what, floor, tier) in [
            ("write", floor_write, write),
            ("read", floor_read, read),
            ("write, encrypted", floor_write, sealed_write),
            ("read, encrypted", floor_read, sealed_read),
        ] {
            let rate =
                |time: Duration| (BLOCKS as usize * BLOCK_BYTES) as f64 / time.as_secs_f64() / 1e9;
            let (floor, tier) = (rate(floor), rate(tier));
            println!("{what:<34} {floor:>10.2} {tier:>10.2} {:>8.2}", tier / floor);
        }
        for counts in [rig.tier.counts(), sealed.tier.counts()] {
            let all = BLOCKS * REPETITIONS;
            assert_eq!((counts.written, counts.read), (all, all));
        }
        cipher();
    }

    /// Speed of the cipher alone, over one block in the cache.
    fn cipher() {
        let cipher = KvCipher::new(&KvKey::of_secret(b"bench"), &[1; 32]);
        let (name, mut kv) = (BlockName(1), vec![0x5a; BLOCK_BYTES]);
        let mut times: [Vec<Duration>; 2] = Default::default();
        for _ in 0..200 {
            let started = Instant::now();
            let tag = cipher.seal_block(name, &mut kv);
            times[0].push(started.elapsed());
            let started = Instant::now();
            assert!(cipher.open_block(name, &tag, &mut kv));
            times[1].push(started.elapsed());
        }
        let [seal, open] = times.map(median);
        let rate = |time: Duration| BLOCK_BYTES as f64 / time.as_secs_f64() / 1e9;
        println!("AES-256-GCM of 2 MiB: {:.2} GB/s there, {:.2} back", rate(seal), rate(open));
    }

    fn median(mut times: Vec<Duration>) -> Duration {
        times.sort_unstable();
        times[times.len() / 2]
    }

    /// The place of a block of a repetition that is read: not the order of writing.
    fn scattered(at: u64) -> u64 {
        at * 37 % BLOCKS
    }

    struct Rig {
        tier: DiskTier,
        arena: Arc<Arena>,
        reports: Receiver<TierReport>,
        _dir: TempDir,
    }

    impl Rig {
        fn open(dir: &Path, arena: Arc<Arena>, key: Option<KvKey>) -> Self {
            let dir = TempDir::new_in(dir).expect("the directory can be written");
            let bytes = (BLOCKS * REPETITIONS + 128) * BLOCK_BYTES as u64;
            let settings =
                DiskSettings { depth: DEPTH, key, ..DiskSettings::new(dir.path(), bytes) };
            let (send, reports) = channel();
            let sink = Arc::new(move |report| drop(send.send(report)));
            let tier = DiskTier::open(settings, FORM, arena.clone(), sink).expect("a tier");
            Self { tier, arena, reports, _dir: dir }
        }

        /// Writes or reads the blocks of a repetition, from or to all slots at a time.
        fn run(&self, first: u64, is_write: bool) -> Duration {
            let request = |at: u64| {
                let at = if is_write { at } else { scattered(at) };
                let name = BlockName((first + at).into());
                // Whoever registers a block takes its checksum: that is not the tier's time.
                (name, self.arena.checksum(SlotId(0), name))
            };
            let requests: Vec<_> = (0..BLOCKS).map(request).collect();
            let start = |slot: SlotId, at: usize| {
                let (name, checksum) = requests[at];
                if is_write {
                    let block = Block {
                        name,
                        hash: None,
                        parent: None,
                        depth: 0,
                        tenant: stator_kv::TenantKey::default(),
                    };
                    self.tier.write(TierWrite { block, slot, checksum });
                } else {
                    self.tier.read(TierRead { name, slot, urgency: Urgency::Demand });
                }
            };
            let started = Instant::now();
            let mut next = 0;
            for slot in (0..SLOTS).map(SlotId) {
                start(slot, next);
                next += 1;
            }
            for _ in 0..BLOCKS {
                let slot = match self.reports.recv().expect("the tier lives") {
                    TierReport::Written { slot, result, .. } => result.map(|()| slot),
                    TierReport::Read { slot, result, .. } => result.map(|_: Checksum| slot),
                    report => panic!("{report:?}"),
                };
                let slot = slot.expect("the disk works");
                if next < requests.len() {
                    start(slot, next);
                    next += 1;
                }
            }
            started.elapsed()
        }
    }

    /// A file and a ring.
    struct Floor {
        file: File,
        arena: Arc<Arena>,
        _dir: TempDir,
    }

    impl Floor {
        fn open(dir: &Path, arena: Arc<Arena>) -> Self {
            let dir = TempDir::new_in(dir).expect("the directory can be written");
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(true).custom_flags(libc::O_DIRECT);
            let file = options.open(dir.path().join("floor")).expect("a file with direct I/O");
            let bytes = BLOCKS * REPETITIONS * BLOCK_BYTES as u64;
            let flags = rustix::fs::FallocateFlags::empty();
            rustix::fs::fallocate(&file, flags, 0, bytes).expect("room on the disk");
            Self { file, arena, _dir: dir }
        }

        fn run(&self, first: u64, is_write: bool) -> Duration {
            let mut ring: IoUring = IoUring::builder()
                .setup_single_issuer()
                .setup_defer_taskrun()
                .build(DEPTH)
                .expect("a ring");
            let buffer = libc::iovec {
                iov_base: self.arena.address(SlotId(0)).cast(),
                iov_len: SLOTS as usize * self.arena.stride(),
            };
            // SAFETY: the buffer is the arena, which outlives the ring.
            unsafe { ring.submitter().register_buffers(&[buffer]).expect("memory to register") };
            let entry = |at: u64, slot: u32| {
                let file = types::Fd(self.file.as_raw_fd());
                let memory = self.arena.address(SlotId(slot));
                let bytes = BLOCK_BYTES as u32;
                let at = first + if is_write { at } else { scattered(at) };
                let offset = at * BLOCK_BYTES as u64;
                let entry = if is_write {
                    opcode::WriteFixed::new(file, memory, bytes, 0).offset(offset).build()
                } else {
                    opcode::ReadFixed::new(file, memory, bytes, 0).offset(offset).build()
                };
                entry.user_data(slot.into())
            };
            let started = Instant::now();
            let (mut next, mut ended) = (0, 0);
            let mut free: Vec<u32> = (0..DEPTH).collect();
            while ended < BLOCKS {
                while next < BLOCKS
                    && let Some(slot) = free.pop()
                {
                    // SAFETY: a slot of the arena, which outlives the ring; all that was started
                    // has ended when this function returns.
                    unsafe { ring.submission().push(&entry(next, slot)).expect("a free place") };
                    next += 1;
                }
                ring.submit_and_wait(1).expect("the kernel takes orders");
                for completion in ring.completion() {
                    assert_eq!(completion.result(), BLOCK_BYTES as i32, "the disk works");
                    free.push(completion.user_data() as u32);
                    ended += 1;
                }
            }
            started.elapsed()
        }
    }
}

#[cfg(target_os = "linux")]
mod restart {
    use std::fs::{self, File};
    use std::os::unix::fs::FileExt;
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    use stator_kv::arena::Arena;
    use stator_kv::disk::format::{
        DESCRIPTOR_BYTES, Descriptor, FormSeed, Header, HeaderRead, Place,
    };
    use stator_kv::disk::{DiskSettings, DiskTier};
    use stator_kv::tier::TierReport;
    use stator_kv::{Block, BlockForm, Checksum};
    use stator_protos::name::BlockName;
    use tempfile::TempDir;

    const FORM: BlockForm = BlockForm { fingerprint: [2; 32], block_bytes: 2 << 20 };
    const DISK_BYTES: u64 = 1 << 40;
    const BLOCKS: usize = 500_000;
    const REPETITIONS: usize = 5;

    /// Measures how long a tier of 1 TiB takes to report its blocks after a restart. The tables
    /// are real; the blocks are holes in the files, which nobody reads.
    pub(crate) fn measure(dir: &Path) {
        let dir = TempDir::new_in(dir).expect("the directory can be written");
        let (blocks, _) = open(dir.path());
        assert_eq!(blocks, 0);
        let segments = fill(dir.path());
        let mut times: Vec<_> = (0..REPETITIONS).map(|_| open(dir.path())).collect();
        times.sort_unstable();
        let (blocks, median) = times[times.len() / 2];
        assert_eq!(blocks, BLOCKS);
        println!("restart: {blocks} blocks in {segments} segments reported after {median:.2?}");
    }

    /// Opens the tier, and waits until it has reported all its blocks.
    fn open(dir: &Path) -> (usize, Duration) {
        let arena = Arc::new(Arena::new(1, FORM.block_bytes).expect("the machine has 2 MiB"));
        let (send, reports) = channel();
        let sink = Arc::new(move |report| drop(send.send((report, Instant::now()))));
        let started = Instant::now();
        let settings = DiskSettings::new(dir, DISK_BYTES);
        drop(DiskTier::open(settings, FORM, arena, sink).expect("a tier"));
        let mut found = 0;
        let mut last = started;
        for (report, at) in reports {
            if let TierReport::Found(blocks) = report {
                found += blocks.len();
                last = at;
            }
        }
        (found, last - started)
    }

    /// Writes the segments of a full tier, and returns how many.
    fn fill(dir: &Path) -> usize {
        let mut entries = fs::read_dir(dir).expect("the tier's directory").flatten();
        let folder = entries.next().expect("the form's directory").path();
        let header = fs::read(folder.join("header")).expect("a header");
        let HeaderRead::Whole(header) = Header::decode(&header) else {
            panic!("a header that was just written is whole");
        };
        let (geometry, segment_slots) = (header.geometry(), header.segment_slots);
        let seed = FormSeed::of(&FORM);
        let places: Vec<_> = (0..BLOCKS as u32)
            .map(|at| Place { segment: at / segment_slots, slot: at % segment_slots })
            .collect();
        for places in places.chunk_by(|a, b| a.segment == b.segment) {
            let segment = places[0].segment;
            let mut table = vec![0; geometry.table_pages() * 4096];
            let slots = table.chunks_exact_mut(DESCRIPTOR_BYTES);
            for (place, bytes) in places.iter().zip(slots) {
                let number = segment * segment_slots + place.slot;
                let block = Block {
                    name: BlockName(
                        u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835),
                    ),
                    hash: None,
                    parent: None,
                    depth: number % 1000,
                    tenant: stator_kv::TenantKey::default(),
                };
                let (epoch, length) = (u64::from(segment) + 1, FORM.block_bytes as u32);
                let (checksum, seal) = (Checksum(0), stator_kv::cipher::CipherTag::default());
                let descriptor = Descriptor { block, checksum, epoch, length, seal };
                bytes.copy_from_slice(&descriptor.encode(seed, *place));
            }
            let path = folder.join(format!("segment-{segment:05}"));
            let file = File::create(path).expect("a segment's file");
            file.write_all_at(&table, 0).expect("room for a table");
            file.set_len(geometry.segment_bytes()).expect("a file with holes");
            file.sync_all().expect("the disk works");
        }
        places.last().map_or(0, |place| place.segment as usize + 1)
    }
}
