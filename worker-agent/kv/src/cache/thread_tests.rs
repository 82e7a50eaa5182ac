//! Engines and tiers in threads of their own, on the real clock.

use super::testkit::*;
use super::{CacheSettings, CacheTier, Client, Progress, TieredCache};
use crate::store::{RequestId, TierSettings};
use crate::tier::{Tier, TierError, TierRead, TierWrite};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use stator_protos::kv_event::Medium;
use stator_protos::name::BlockName;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

const ENGINES: u64 = 4;
const REQUESTS: u64 = 300;
/// Longer than any wait of a request.
const DEADLINE: Duration = Duration::from_secs(30);

/// A tier that does its work in a thread of its own, every fifth time not.
struct ThreadedTier {
    tier: Arc<FakeTier>,
    work: mpsc::Sender<()>,
}

impl ThreadedTier {
    fn start(tier: FakeTier) -> Self {
        let (work, queue) = mpsc::channel();
        let tier = Arc::new(tier);
        let worker = tier.clone();
        thread::spawn(move || {
            let mut rng = SmallRng::seed_from_u64(1);
            while queue.recv().is_ok() {
                let fault = match rng.random_range(0..10) {
                    0 => Fault::Error(TierError::Missing),
                    1 => Fault::Half,
                    _ => Fault::None,
                };
                worker.finish(rng.random_range(0..worker.queued()), fault);
            }
        });
        Self { tier, work }
    }
}

impl Tier for ThreadedTier {
    fn medium(&self) -> Medium {
        self.tier.medium()
    }

    fn read(&self, read: TierRead) {
        self.tier.read(read);
        let _ = self.work.send(());
    }

    fn write(&self, write: TierWrite) {
        self.tier.write(write);
        let _ = self.work.send(());
    }

    fn forget(&self, names: &[BlockName]) {
        self.tier.forget(names);
    }

    fn clear(&self) {
        self.tier.clear();
    }
}

struct Engine {
    cache: Arc<TieredCache>,
    client: Client,
    progress: mpsc::Receiver<Progress>,
    rng: SmallRng,
}

impl Engine {
    fn new(cache: &Arc<TieredCache>, seed: u64) -> Self {
        let (told, progress) = mpsc::channel();
        let client = cache.connect(Arc::new(move |news| {
            let _ = told.send(news);
        }));
        Self { cache: cache.clone(), client, progress, rng: SmallRng::seed_from_u64(seed) }
    }

    /// Asks for a prompt, waits for what is on its way, and computes the rest. Returns the blocks
    /// that it was given.
    fn serve(&mut self, request: RequestId) -> usize {
        let session = self.rng.random_range(0..12) * 64;
        let prompt = names(session..session + self.rng.random_range(1..9));
        let found = self.client.ask(request, &prompt, Duration::ZERO);
        let (mut slots, mut pending) = (found.ready, found.pending);
        while pending > 0 {
            let news = self.progress.recv_timeout(DEADLINE).expect("every wait ends");
            assert_eq!(news.request, request);
            slots.extend(news.slots);
            pending = news.pending;
        }
        let mut kv = vec![0; BLOCK];
        for (slot, name) in slots.iter().zip(&prompt) {
            self.cache.arena().read(*slot, &mut kv);
            assert_eq!(kv, kv_of(*name));
        }
        self.compute(&prompt[slots.len()..]);
        self.client.end(request);
        slots.len()
    }

    fn compute(&self, missing: &[BlockName]) {
        let granted = self.client.grant(missing.len());
        for (slot, name) in granted.into_iter().zip(missing) {
            self.client.store(slot, block(*name), &kv_of(*name));
        }
    }
}

#[test]
fn engines_in_many_threads_get_the_right_bytes() {
    let mut settings = CacheSettings::new(40);
    settings.tiers.push(CacheTier {
        name: "threaded",
        settings: TierSettings::new(Medium::Disk),
        open: Box::new(|place| {
            let tier = FakeTier::open(place, Medium::Disk, Media::default());
            Ok(Arc::new(ThreadedTier::start(tier)))
        }),
    });
    let cache = TieredCache::open(FORM, settings).unwrap();
    let run = |seed| {
        let mut engine = Engine::new(&cache, seed);
        move || {
            let given: usize = (0..REQUESTS).map(|number| engine.serve(RequestId(number))).sum();
            // Half of the engines end as a connection does whose process lives on for a while.
            if seed % 2 == 0 {
                engine.client.grant(2);
                engine.client.lose().bury();
            }
            given
        }
    };
    let threads: Vec<_> = (0..ENGINES).map(|seed| thread::spawn(run(seed))).collect();
    let given: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert!(given > 500, "only {given} blocks were reused");
}
