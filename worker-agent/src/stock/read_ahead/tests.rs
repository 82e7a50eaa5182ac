use super::super::testkit::{Bed, Step, WORKER, last, raw, whole};
use super::*;
use crate::request_plane::metadata::{PrefillWorker, RequestMetadata};
use crate::request_plane::translate;
use crate::worker::{Command, PrefillOrder};
use stator_engine::RequestKey;
use stator_kv::cache::{CacheSettings, CacheTier, TierOpener, TieredCache};
use stator_kv::connector::EngineChange;
use stator_kv::store::TierSettings;
use stator_kv::tier::{Tier, TierRead, TierReport, TierWrite};
use stator_kv::{Block, BlockForm, SlotId, TenantKey};
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::Medium;
use stator_protos::name::BlockName;
use stator_protos::worker::{Sampling, Submit};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

const BLOCK_SIZE: NonZeroU32 = NonZeroU32::new(16).unwrap();
/// Longest wait of a test.
const DEADLINE: Duration = Duration::from_secs(20);

/// A disk that takes reads and never begins them.
struct SlowDisk {
    reads: mpsc::UnboundedSender<BlockName>,
    cancelled: mpsc::UnboundedSender<BlockName>,
}

impl Tier for SlowDisk {
    fn medium(&self) -> Medium {
        Medium::Disk
    }

    fn read(&self, read: TierRead) {
        let _ = self.reads.send(read.name);
    }

    fn cancel(&self, name: BlockName, _: SlotId) {
        let _ = self.cancelled.send(name);
    }

    fn write(&self, _: TierWrite) {}

    fn forget(&self, _: &[BlockName]) {}

    fn clear(&self) {}
}

/// Tokens of a prompt of three blocks and a half.
fn prompt() -> Vec<u32> {
    (1..57).collect()
}

fn hashes(lora: Option<&str>, salt: Option<&str>) -> Vec<SequenceHash> {
    let mut hashes = Vec::new();
    sequence_hashes(&prompt(), BLOCK_SIZE, HashSeed::new(lora, salt), &mut hashes);
    hashes
}

/// A rank whose engine never looks at its requests, above a disk that holds the first two blocks of the
/// prompt of this adapter and salt.
struct SlowEngine {
    bed: Bed,
    reads: mpsc::UnboundedReceiver<BlockName>,
    cancelled: mpsc::UnboundedReceiver<BlockName>,
    _cache: Arc<TieredCache>,
}

impl SlowEngine {
    fn start(scripts: Vec<Vec<Step>>, lora: Option<&str>, salt: Option<&str>) -> Self {
        let ((read, reads), (drops, cancelled)) =
            (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        let block = |(depth, hash): (u32, SequenceHash)| Block {
            name: BlockName(depth.into()),
            hash: Some(hash),
            parent: None,
            depth,
            tenant: TenantKey::default(),
        };
        let held: Vec<_> = (0..2).zip(hashes(lora, salt)).map(block).collect();
        let open: TierOpener = Box::new(move |place| {
            (place.report)(TierReport::Found(held));
            Ok(Arc::new(SlowDisk { reads: read, cancelled: drops }) as Arc<dyn Tier>)
        });
        let disk = CacheTier { name: "disk", settings: TierSettings::new(Medium::Disk), open };
        let form = BlockForm { fingerprint: [1; 32], block_bytes: 64 };
        let settings = CacheSettings { tiers: vec![disk], ..CacheSettings::new(8) };
        let cache = TieredCache::open(form, settings).unwrap();
        let board = Arc::new(TierBoard::default());
        board.opened(&cache);
        board.engine_changed(EngineChange::Joined { block_tokens: BLOCK_SIZE.get() });
        let bed = Bed::with_tiers(scripts, Some(ReadAhead::new(board, BLOCK_SIZE)));
        bed.begin(1);
        Self { bed, reads, cancelled, _cache: cache }
    }

    /// The disk is asked for the blocks that it has, in their order.
    async fn reads_both(&mut self) {
        for name in 0..2 {
            let read = timeout(DEADLINE, self.reads.recv()).await.expect("a read begins");
            assert_eq!(read, Some(BlockName(name)));
        }
    }
}

#[tokio::test]
async fn the_disk_is_read_before_the_engine_has_looked_at_the_request() {
    for (lora, salt) in [(None, None), (Some("adapter"), None), (None, Some("tenant"))] {
        let mut slow = SlowEngine::start(vec![vec![Step::Never]], lora, salt);
        slow.bed.submit(1, |submit, metadata| {
            submit.token_ids = prompt();
            submit.cache_salt = salt.unwrap_or_default().into();
            metadata.lora = lora.map(str::to_owned);
        });
        slow.reads_both().await;
    }
}

#[tokio::test]
async fn what_is_read_ahead_is_dropped_with_its_request() {
    let mut slow = SlowEngine::start(vec![vec![Step::Never]], None, None);
    slow.bed.submit(1, |submit, _| submit.token_ids = prompt());
    slow.reads_both().await;
    slow.bed.cancel(1);
    for name in 0..2 {
        let dropped = timeout(DEADLINE, slow.cancelled.recv()).await.expect("a read is dropped");
        assert_eq!(dropped, Some(BlockName(name)));
    }
}

#[tokio::test]
async fn a_prompt_that_is_computed_for_another_engine_is_read_before_too() {
    let mut slow = SlowEngine::start(vec![vec![Step::Never]], None, None);
    let (answer, _answered) = oneshot::channel();
    let sampling = Some(Sampling { max_tokens: 1, ..Sampling::default() });
    let submit = Submit { token_ids: prompt(), sampling, ..Submit::default() };
    let order = PrefillOrder {
        request: translate::request(submit, RequestKey(1)).unwrap(),
        metadata: RequestMetadata::default(),
        handover: None,
        ready: watch::Sender::new(0),
        answer,
        ticket: slow.bed.in_flight.enter(),
    };
    slow.bed.commands.try_send(Command::Prefill(order)).unwrap();
    slow.reads_both().await;
}

#[tokio::test]
async fn nothing_is_read_ahead_of_a_prompt_whose_kv_another_worker_brings() {
    let mut slow = SlowEngine::start(vec![vec![last(7)]], None, None);
    slow.bed.submit(1, |submit, metadata| {
        submit.token_ids = prompt();
        let endpoint = "http://127.0.0.1:1".into();
        metadata.prefill = Some(PrefillWorker { endpoint, worker: WORKER, handover: raw("{}") });
    });
    assert_eq!(slow.bed.answers().await, [whole(1, &[7])]);
    assert!(slow.reads.try_recv().is_err());
}
