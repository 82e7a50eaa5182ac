//! The process as a whole.

use crate::exposition::{Row, SeriesValue, rows, single, write};
use crate::family::{Child, Family};
use crate::histogram::Histogram;
use crate::{buckets, names};
use prometheus_client::encoding::DescriptorEncoder;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The source of this build.
#[derive(Clone, Debug, Default)]
pub struct Build {
    /// Commit of the source.
    pub commit: String,
    /// Branch or tag it was built from.
    pub build_ref: String,
}

/// Way in which a prompt was turned into tokens: label `mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tokenization {
    /// By the model's tokenizer.
    Exact,
    /// By its length as text.
    Text,
    /// Not at all.
    None,
}

/// Reason for which a body was not screened: label `body`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnscreenedReason {
    /// The data plane kept it to itself.
    Unseen,
    /// No parser reads a body of this kind.
    Unread,
}

const UNSCREENED: [&str; 2] = ["unseen", "unread"];

const MODES: [&str; 3] = ["exact", "text", "none"];

/// Counts that no request, decision or stream has.
#[derive(Debug)]
pub struct Process {
    build: Build,
    requests: Histogram,
    responses: Histogram,
    tokenization: [AtomicU64; MODES.len()],
    /// Fields that steer engines, and fields that are on no list.
    fields_removed: [AtomicU64; 2],
    /// Bodies that reached an endpoint unscreened, by [`UNSCREENED`].
    unscreened: [AtomicU64; UNSCREENED.len()],
    picks: Family<1, PickCounts>,
    /// Requests that were placed without their bodies, by [`BODIES`].
    without_body: [AtomicU64; BODIES.len()],
    rewrites_lost: AtomicU64,
}

/// Values of the label `body`: it comes never, or after the decision.
const BODIES: [&str; 2] = ["unseen", "late"];

/// Whether data planes went where one pool's picker sent them. Made once per pool; cheap to
/// clone.
#[derive(Clone, Debug)]
pub struct Picks(Arc<Child<1, PickCounts>>);

#[derive(Debug, Default)]
struct PickCounts {
    honoured: AtomicU64,
    not_honoured: AtomicU64,
}

impl Process {
    pub(crate) fn new(build: Build) -> Self {
        Self {
            build,
            requests: Histogram::new(buckets::REQUEST_PROCESSING_SECONDS),
            responses: Histogram::new(buckets::RESPONSE_PROCESSING_SECONDS),
            tokenization: Default::default(),
            fields_removed: Default::default(),
            unscreened: Default::default(),
            picks: Family::new(usize::MAX),
            without_body: Default::default(),
            rewrites_lost: AtomicU64::new(0),
        }
    }

    /// The time from a request's head until its body was sent on.
    pub fn request_processed(&self, took: Duration) {
        self.requests.observe_duration(took);
    }

    /// The time that the picker spent on an answer, all its pieces together.
    pub fn response_processed(&self, took: Duration) {
        self.responses.observe_duration(took);
    }

    /// A prompt was turned into tokens in this way.
    pub fn tokenized(&self, mode: Tokenization) {
        self.tokenization[mode as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// A request was placed by its head, because its body comes `late` or never.
    pub fn placed_by_head(&self, late: bool) {
        self.without_body[usize::from(late)].fetch_add(1, Ordering::Relaxed);
    }

    /// A body went on as it came, although its model may have had to be rewritten.
    pub fn rewrite_lost(&self) {
        self.rewrites_lost.fetch_add(1, Ordering::Relaxed);
    }

    /// A body lost `steering` fields that steer engines, and `unknown` fields that are on no list.
    pub fn fields_removed(&self, steering: u64, unknown: u64) {
        for (count, more) in self.fields_removed.iter().zip([steering, unknown]) {
            count.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// A body reached an endpoint unscreened.
    pub fn unscreened(&self, why: UnscreenedReason) {
        self.unscreened[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The picks of a pool, from now on in the metrics.
    pub fn picks(&self, pool: &str) -> Picks {
        Picks(self.picks.always(&[pool], PickCounts::default))
    }

    pub(crate) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
        let requests = self.requests.read().map(SeriesValue::Histogram);
        write(encoder, &names::REQUEST_PROCESSING, &single(requests))?;
        let responses = self.responses.read().map(SeriesValue::Histogram);
        write(encoder, &names::RESPONSE_PROCESSING, &single(responses))?;
        let Build { commit, build_ref } = &self.build;
        let build: Row<'_> =
            (vec![("commit", commit), ("build_ref", build_ref)], SeriesValue::Gauge(1.0));
        write(encoder, &names::INFO, &[build])?;
        self.encode_own(encoder)
    }

    fn encode_own(&self, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
        let picks = self.picks.children();
        // From the first day on and not from the first miss, so that a rate has a start.
        let of = |counter: fn(&PickCounts) -> &AtomicU64| {
            rows(&picks, &["pool"], move |child| {
                Some(SeriesValue::Counter(counter(&child.metric).load(Ordering::Relaxed)))
            })
        };
        write(encoder, &names::PICKS_HONOURED, &of(|picks| &picks.honoured))?;
        write(encoder, &names::PICKS_NOT_HONOURED, &of(|picks| &picks.not_honoured))?;
        write(encoder, &names::TOKENIZATION, &labelled("mode", &MODES, &self.tokenization))?;
        write(encoder, &names::WITHOUT_BODY, &labelled("body", &BODIES, &self.without_body))?;
        let removed = self.fields_removed.iter().zip(["steering", "unknown"]);
        let removed = removed.filter_map(|(count, kind)| {
            Some((vec![("kind", kind)], SeriesValue::count(count.load(Ordering::Relaxed))?))
        });
        write(encoder, &names::FIELDS_REMOVED, &removed.collect::<Vec<Row<'_>>>())?;
        let unscreened = labelled("body", &UNSCREENED, &self.unscreened);
        write(encoder, &names::BODIES_UNSCREENED, &unscreened)?;
        let lost = SeriesValue::Counter(self.rewrites_lost.load(Ordering::Relaxed));
        write(encoder, &names::REWRITES_LOST, &single(Some(lost)))
    }
}

/// Counters that one label tells apart.
fn labelled<'a>(
    label: &'static str,
    values: &'a [&'static str],
    counts: &'a [AtomicU64],
) -> Vec<Row<'a>> {
    let row = |(value, count): (&'a &'static str, &AtomicU64)| {
        (vec![(label, *value)], SeriesValue::Counter(count.load(Ordering::Relaxed)))
    };
    values.iter().zip(counts).map(row).collect()
}

impl Picks {
    /// The answer came from the endpoint that was picked.
    pub fn honoured(&self) {
        self.0.metric.honoured.fetch_add(1, Ordering::Relaxed);
    }

    /// The answer came from another endpoint.
    pub fn not_honoured(&self) {
        self.0.metric.not_honoured.fetch_add(1, Ordering::Relaxed);
    }
}
