//! Metrics of engines' KV events, which pools give when metrics are read.

use crate::exposition::{Metric, Row, SeriesValue, merged, single, write};
use crate::names;
use crate::snapshot::{FeedSnapshot, FeedsSnapshot, PoolReading, SkippedEvents};
use prometheus_client::encoding::DescriptorEncoder;

/// Writes the counts of all pools' feeds. Without a pool that follows events nothing is written.
pub(crate) fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    seen: &[PoolReading<'_>],
) -> std::fmt::Result {
    let feeds: Vec<_> = seen.iter().filter_map(|(_, pool)| pool.feeds.as_ref()).collect();
    // Families without a value would tell that feeds are idle where none are configured.
    if feeds.is_empty() {
        return Ok(());
    }
    let level = |level: fn(&FeedsSnapshot) -> usize| {
        let sum: usize = feeds.iter().map(|feeds| level(feeds)).sum();
        single(Some(SeriesValue::Gauge(sum as f64)))
    };
    write(encoder, &names::FEEDS, &level(|feeds| feeds.engines.len()))?;
    let waiting = |feeds: &FeedsSnapshot| feeds.engines.iter().map(|feed| feed.waiting).sum();
    write(encoder, &names::FEED_QUEUE, &level(waiting))?;
    write(encoder, &names::FEED_CAPACITY, &level(|feeds| feeds.capacity))?;
    encode_engines(encoder, &feeds)?;
    let count = |count: fn(&FeedsSnapshot) -> u64| {
        single(SeriesValue::count(feeds.iter().map(|feeds| count(feeds)).sum()))
    };
    let suppressed = count(|feeds| feeds.removals_suppressed);
    write(encoder, &names::REMOVALS_SUPPRESSED, &suppressed)?;
    write(encoder, &names::REMOVALS_FORWARDED, &count(|feeds| feeds.removals_forwarded))?;
    let stores = feeds.iter().flat_map(|feeds| &feeds.stores_skipped).map(skipped_row);
    write(encoder, &names::STORES_SKIPPED, &merged(stores))?;
    let removals = feeds.iter().flat_map(|feeds| &feeds.removals_skipped).map(skipped_row);
    write(encoder, &names::REMOVALS_SKIPPED, &merged(removals))
}

type Count = fn(&FeedSnapshot) -> u64;

/// Counters of each engine.
const COUNTS: [(&Metric, Count); 2] = [
    (&names::FEED_MESSAGES, |feed| feed.messages),
    (&names::FEED_RECONNECTIONS, |feed| feed.reconnections),
];

/// Operations that can fail, by name.
const ERRORS: [(&str, Count); 2] =
    [("recv", |feed| feed.receive_errors), ("replay", |feed| feed.replay_errors)];

/// Writes the counts of each engine; those of an engine that several pools follow become one sum.
fn encode_engines(
    encoder: &mut DescriptorEncoder<'_>,
    feeds: &[&FeedsSnapshot],
) -> std::fmt::Result {
    let engines = || feeds.iter().flat_map(|feeds| &feeds.engines);
    for (metric, count) in COUNTS {
        let row = |feed| Some((vec![pod(feed)], SeriesValue::count(count(feed))?));
        write(encoder, metric, &merged(engines().filter_map(row)))?;
    }
    let errors = ERRORS.iter().flat_map(|(operation, count)| {
        engines().filter_map(move |feed| {
            Some((vec![pod(feed), ("operation", *operation)], SeriesValue::count(count(feed))?))
        })
    });
    write(encoder, &names::FEED_ERRORS, &merged(errors))
}

fn pod(feed: &FeedSnapshot) -> (&'static str, &str) {
    ("pod_identifier", &*feed.pod)
}

fn skipped_row(skipped: &SkippedEvents) -> Row<'_> {
    let labels = vec![("cache_kind", skipped.cache_kind), ("reason", skipped.reason)];
    (labels, SeriesValue::Counter(skipped.count))
}
