//! A bucket that does not answer, on a paused clock.

use super::bench::{Bench, block, settings};
use crate::SlotId;
use crate::object::{ObjectCounts, ObjectSettings};
use crate::tier::{Tier, TierError, TierRead, Urgency};
use async_trait::async_trait;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Fate of requests for extents.
#[derive(Clone, Copy, Debug, Default)]
enum Weather {
    #[default]
    Fair,
    /// The server is in trouble, and says so.
    Refusing,
    /// The server never answers.
    Hanging,
    /// The server never answers the next request, and then all is fair.
    HangingOnce,
}

/// A bucket in memory with weather, and how often extents were asked for.
#[derive(Debug, Default)]
struct Bucket {
    objects: InMemory,
    weather: Mutex<Weather>,
    asked: Mutex<usize>,
}

impl Bucket {
    fn set(&self, weather: Weather) {
        *self.weather.lock() = weather;
    }

    async fn pass(&self, location: &Path) -> Result<()> {
        if location.as_ref().contains("/index/") {
            return Ok(());
        }
        *self.asked.lock() += 1;
        let weather = *self.weather.lock();
        match weather {
            Weather::Fair => return Ok(()),
            Weather::Refusing => {}
            Weather::Hanging => std::future::pending().await,
            Weather::HangingOnce => {
                self.set(Weather::Fair);
                std::future::pending().await
            }
        }
        Err(object_store::Error::Generic { store: "weather", source: "503".into() })
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a bucket with weather")
    }
}

#[async_trait]
impl ObjectStore for Bucket {
    async fn put_opts(
        &self,
        to: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.pass(to).await?;
        self.objects.put_opts(to, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        to: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(to, options).await
    }

    async fn get_opts(&self, from: &Path, options: GetOptions) -> Result<GetResult> {
        self.pass(from).await?;
        self.objects.get_opts(from, options).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.objects.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.objects.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.objects.copy_opts(from, to, options).await
    }
}

/// A tier whose bucket has the blocks 0 to 39, in extents of eight.
async fn bench(change: impl FnOnce(&mut ObjectSettings)) -> (Bench, Arc<Bucket>) {
    let bucket = Arc::new(Bucket::default());
    let mut settings = settings("s3://weather");
    settings.times.index_read = Duration::from_secs(3_600);
    change(&mut settings);
    let mut bench = Bench::on(settings, Arc::clone(&bucket) as _);
    assert_eq!(bench.write(0..40).await, [Ok(()); 40]);
    *bucket.asked.lock() = 0;
    (bench, bucket)
}

#[tokio::test(start_paused = true)]
async fn a_bucket_that_never_answers_is_a_miss_in_five_seconds() {
    let (mut bench, bucket) = bench(|_| {}).await;
    bucket.set(Weather::Hanging);
    let begun = Instant::now();
    assert_eq!(bench.read(0..40).await, [Err(TierError::Failed); 40]);
    assert_eq!(begun.elapsed(), Duration::from_secs(5));
    // Now the breaker is open: nothing is asked, and nobody waits.
    let asked = *bucket.asked.lock();
    assert_eq!(bench.read(0..40).await, [Err(TierError::Failed); 40]);
    assert_eq!(bench.write(50..52).await, [Err(TierError::Failed); 2]);
    assert!(begun.elapsed() < Duration::from_secs(6));
    assert_eq!(*bucket.asked.lock(), asked);
}

#[tokio::test(start_paused = true)]
async fn the_breaker_lets_one_request_through_and_closes_when_it_succeeds() {
    let (mut bench, bucket) = bench(|_| {}).await;
    bucket.set(Weather::Refusing);
    assert_eq!(bench.read(0..40).await, [Err(TierError::Failed); 40]);
    bucket.set(Weather::Fair);
    tokio::time::advance(Duration::from_secs(29)).await;
    assert_eq!(bench.read(0..8).await, [Err(TierError::Failed); 8]);
    tokio::time::advance(Duration::from_secs(1)).await;
    *bucket.asked.lock() = 0;
    assert_eq!(bench.read(0..8).await, [Ok(()); 8]);
    assert_eq!(*bucket.asked.lock(), 1);
    assert_eq!(bench.read(0..40).await, [Ok(()); 40]);
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_is_asked_for_twice_and_the_first_counts() {
    let (mut bench, bucket) = bench(|_| {}).await;
    bucket.set(Weather::HangingOnce);
    let begun = Instant::now();
    assert_eq!(bench.read(0..8).await, [Ok(()); 8]);
    assert!(begun.elapsed() < Duration::from_secs(1));
    let ObjectCounts { reads, reads_hedged, outages, .. } = bench.tier.counts();
    assert_eq!((reads, reads_hedged, outages), (1, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn too_much_is_refused_at_once_and_all_ends() {
    let (mut bench, bucket) = bench(|settings| settings.limits.queue_blocks = 40).await;
    bucket.set(Weather::Hanging);
    bench.ask_reads(0..100, Urgency::Demand);
    let ends = bench.read_ends(0..100).await;
    assert_eq!(ends[..40], [Err(TierError::Failed); 40]);
    assert_eq!(ends[40..], [Err(TierError::Busy); 60]);
    assert_eq!(bench.write(200..280).await[40..], [Err(TierError::Busy); 40]);
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_goes_before_whoever_may() {
    let (mut bench, _) = bench(|settings| settings.limits.reads = 1).await;
    let ask = |number: u32, urgency| {
        bench.tier.read(TierRead { name: block(number).name, slot: SlotId(number), urgency });
    };
    ask(20, Urgency::Prefetch);
    ask(5, Urgency::Prefetch);
    ask(30, Urgency::Demand);
    assert_eq!(bench.read_order(3).await, [30, 20, 5]);
}

#[tokio::test(start_paused = true)]
async fn closing_has_an_end_whatever_the_bucket_does() {
    let (bench, bucket) = bench(|_| {}).await;
    bucket.set(Weather::Hanging);
    bench.ask_writes(50..60);
    let begun = Instant::now();
    bench.tier.close().await;
    assert!(begun.elapsed() <= Duration::from_secs(65));
}
