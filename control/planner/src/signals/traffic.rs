//! Counts and latencies of all requests, from the metrics pages of proxies or pickers.

use super::histogram::Buckets;
use super::page::PageCounts;
use crate::capacity::SlaTargets;
use crate::observation::{LatencySample, TrafficTotals};
use futures::future::join_all;
use stator_http::{Connection, TlsOptions, Url, request};
use std::collections::VecDeque;
use std::time::Duration;

/// Largest page that is read.
const PAGE_BYTES_MAX: usize = 16 << 20;
/// Longest wait for a page.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Time over which latencies are measured, seconds.
const LATENCY_S: f64 = 45.0;

/// Reader of all pages.
pub(crate) struct TrafficReader {
    pages: Vec<Page>,
    totals: TrafficTotals,
    /// Latencies so far, with their times.
    recent: VecDeque<(f64, Buckets, Buckets)>,
}

struct Page {
    url: Url,
    request: Vec<u8>,
    connection: Connection,
    last: Option<PageCounts>,
}

/// Sum of what all pages say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Traffic {
    pub(crate) totals: TrafficTotals,
    /// Prompts that wait for a worker.
    pub(crate) held: u32,
    pub(crate) latency: Option<LatencySample>,
}

impl TrafficReader {
    /// A reader of these pages, each of which has an origin.
    pub(crate) fn new(urls: Vec<Url>, tls: &TlsOptions) -> anyhow::Result<Self> {
        let page = |url: Url| {
            let origin = url.origin(tls)?;
            let request = request("GET", &origin, &url.target, None, None);
            Ok(Page { url, request, connection: Connection::new(origin), last: None })
        };
        let pages = urls.into_iter().map(page).collect::<anyhow::Result<_>>()?;
        Ok(Self { pages, totals: TrafficTotals::default(), recent: VecDeque::new() })
    }

    /// Reads all pages; none if there are none to read.
    ///
    /// # Errors
    ///
    /// The first page that cannot be read: counts of a part of the traffic would look like less of
    /// it.
    pub(crate) async fn read(
        &mut self,
        at_s: f64,
        targets: Option<&SlaTargets>,
    ) -> Result<Option<Traffic>, String> {
        if self.pages.is_empty() {
            return Ok(None);
        }
        let read = join_all(self.pages.iter_mut().map(Page::read)).await;
        let counts: Vec<PageCounts> = read.into_iter().collect::<Result<_, _>>()?;
        let (mut ttft, mut itl) = (Buckets::default(), Buckets::default());
        let mut held = 0.0;
        for (page, now) in self.pages.iter_mut().zip(counts) {
            let begun = PageCounts::default();
            // A process that began again counts from 0.
            let last = page.last.take().filter(|last| last.answers <= now.answers);
            add(&mut self.totals, last.as_ref().unwrap_or(&begun), &now);
            held += now.waiting;
            ttft.merge(&now.ttft);
            itl.merge(&now.itl);
            page.last = Some(now);
        }
        self.recent.push_back((at_s, ttft, itl));
        while self.recent.get(1).is_some_and(|(then, _, _)| at_s - then >= LATENCY_S) {
            self.recent.pop_front();
        }
        let latency = targets.and_then(|targets| self.latency(targets));
        Ok(Some(Traffic { totals: self.totals, held: held as u32, latency }))
    }

    /// Latencies since the oldest page that is kept.
    fn latency(&self, targets: &SlaTargets) -> Option<LatencySample> {
        let ((_, ttft_then, itl_then), (_, ttft, itl)) =
            (self.recent.front()?, self.recent.back()?);
        let (ttft, itl) = (ttft.since(ttft_then), itl.since(itl_then));
        (ttft.count() > 0.0 && itl.count() > 0.0).then(|| LatencySample {
            requests: ttft.count().min(itl.count()),
            ttft_p90_s: ttft.quantile(0.9),
            itl_p90_s: itl.quantile(0.9),
            ttft_good: ttft.share_within(targets.ttft_s),
            itl_good: itl.share_within(targets.itl_s),
        })
    }
}

impl Page {
    async fn read(&mut self) -> Result<PageCounts, String> {
        let Url { host, port, .. } = &self.url;
        let fault = |reason: String| format!("metrics-url: {host}:{port}: {reason}");
        let answer = self.connection.exchange(&self.request, PAGE_BYTES_MAX);
        let answer = match tokio::time::timeout(TIMEOUT, answer).await {
            Err(_) => return Err(fault(format!("no answer within {TIMEOUT:?}"))),
            Ok(answer) => answer.map_err(|error| fault(error.to_string()))?,
        };
        if answer.status != 200 {
            return Err(fault(format!("status {}", answer.status)));
        }
        let counts = PageCounts::parse(&String::from_utf8_lossy(answer.body)).map_err(fault);
        self.connection.done();
        counts
    }
}

/// Adds what one page counted since its last reading.
fn add(totals: &mut TrafficTotals, last: &PageCounts, now: &PageCounts) {
    totals.requests += (now.requests - last.requests).max(0.0);
    totals.prompt_tokens += (now.prompt_tokens - last.prompt_tokens).max(0.0);
    totals.cached_tokens += (now.cached_tokens - last.cached_tokens).max(0.0);
    totals.output_tokens += (now.output_tokens - last.output_tokens).max(0.0);
    totals.answers += (now.answers - last.answers).max(0.0);
}
