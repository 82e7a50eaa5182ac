//! Servers that lie, over real connections: no wrong bytes, and every read ends.

use super::bench::{Bench, settings};
use super::s3_server::{Fault, FaultyS3};
use crate::object::{ObjectCredentials, ObjectSettings};
use crate::tier::TierError;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::time::Duration;

/// Settings for a server of the test.
pub(crate) fn on_server(url: &str) -> ObjectSettings {
    let mut settings = settings("s3://blocks/fleet/a");
    settings.endpoint = Some(url.to_owned());
    settings.credentials = Some(ObjectCredentials {
        access_key_id: "testing".into(),
        secret_access_key: "testing".into(),
    });
    // Short, as the tests wait for it on a real clock; the breaker never opens for long.
    settings.times.read = Duration::from_millis(300);
    settings.times.breaker = Duration::from_millis(1);
    settings
}

async fn bench() -> (Bench, Arc<FaultyS3>) {
    let server = FaultyS3::start().await;
    let mut bench = Bench::open(on_server(&server.url));
    assert_eq!(bench.write(0..16).await, [Ok(()); 16]);
    (bench, server)
}

#[tokio::test]
async fn second_process_hits_all_over_http() {
    let (_first, server) = bench().await;
    let mut second = Bench::open(on_server(&server.url));
    second.find(0..16).await;
    assert_eq!(second.read(0..16).await, [Ok(()); 16]);
    assert_eq!(second.write(0..16).await, [Ok(()); 16], "nothing to do");
    let objects = server.objects.lock();
    assert_eq!(objects.keys().filter(|path| !path.contains("/index/")).count(), 2);
}

/// A fault is a miss, or is got over by trying again. It is never taken for the block.
async fn check(fault: Fault, expected: TierError) {
    let (mut bench, server) = bench().await;
    server.set_faults(move || Some(fault));
    let ends = bench.read(0..4).await;
    // The blocks that came before the fault are right.
    let is_expected = |end: &Result<(), TierError>| *end == Err(expected);
    assert!(ends.iter().any(is_expected), "{fault:?}: {ends:?}");
    assert!(ends.iter().all(|end| end.is_ok() || is_expected(end)), "{fault:?}: {ends:?}");
    server.set_faults(|| None);
    if expected == TierError::Failed {
        assert_eq!(bench.read(0..16).await, [Ok(()); 16], "{fault:?}");
    }
    assert_eq!(bench.read(8..16).await, [Ok(()); 8], "{fault:?}");
}

#[tokio::test]
async fn trouble_of_the_server_is_a_failure_that_passes() {
    use Fault::{CutBody, Garbage, Hang, ShortLength, Stall, Unavailable};
    for fault in [Unavailable, Hang, Stall, CutBody, ShortLength, Garbage] {
        check(fault, TierError::Failed).await;
    }
}

#[tokio::test]
async fn blocks_that_have_arrived_count_whatever_follows() {
    let (mut bench, server) = bench().await;
    server.set_faults(|| Some(Fault::LongLength));
    assert_eq!(bench.read(0..4).await, [Ok(()); 4]);
}

#[tokio::test]
async fn wrong_ranges_are_failures() {
    for fault in [Fault::ShiftRange, Fault::WholeObject] {
        check(fault, TierError::Failed).await;
    }
}

#[tokio::test]
async fn wrong_bytes_are_corrupt() {
    check(Fault::FlipBit, TierError::Corrupt).await;
    check(Fault::OtherObject, TierError::Corrupt).await;
}

#[tokio::test]
async fn a_lost_object_is_missing() {
    check(Fault::Missing, TierError::Missing).await;
}

#[tokio::test]
async fn a_shorter_object_under_an_extents_name_is_corrupt_and_no_outage() {
    let (mut bench, server) = bench().await;
    for length in [10_000, 300, 0] {
        for (path, object) in &mut *server.objects.lock() {
            if !path.contains("/index/") {
                object.truncate(length);
            }
        }
        let ends = bench.read(0..16).await;
        assert!(ends.iter().all(Result::is_err), "{ends:?}");
        assert!(!ends.contains(&Err(TierError::Failed)), "{ends:?}");
        // Written again: the extent that is there is no such extent.
        assert_eq!(bench.write(0..16).await, [Ok(()); 16], "{length} bytes");
        assert_eq!(bench.read(0..16).await, [Ok(()); 16]);
    }
    assert_eq!(bench.tier.counts().outages, 0);
}

/// Any mixture of faults and answers: [`Bench::read`] compares all bytes.
#[tokio::test]
async fn whatever_the_server_does_no_byte_is_wrong_and_every_read_ends() {
    let (mut bench, server) = bench().await;
    let mut random = StdRng::seed_from_u64(22);
    let mut fault = random.clone();
    server.set_faults(move || {
        let at = fault.random_range(0..2 * Fault::ALL.len());
        // Silence takes the whole time of a read: a few of them are enough.
        let is_wanted = |fault: &Fault| !matches!(fault, Fault::Hang | Fault::Stall);
        let is_silent = fault.random_bool(0.1);
        Fault::ALL.get(at).copied().filter(|fault| is_silent || is_wanted(fault))
    });
    let (mut right, mut wrong) = (0, 0);
    for _ in 0..60 {
        let start = random.random_range(0..16);
        let ends = bench.read(start..random.random_range(start..16) + 1).await;
        right += ends.iter().filter(|end| end.is_ok()).count();
        wrong += ends.iter().filter(|end| end.is_err()).count();
        // What was found to be bad or lost is written again.
        bench.write(0..16).await;
    }
    assert!(right > 0 && wrong > 0, "{right} right, {wrong} misses");
}
