//! Follows the objects of one query: lists them, watches for changes, and begins anew when it must.
//! On any failure its earlier reports stand.

use crate::Cluster;
use crate::api::{Api, ApiError, refusal};
use crate::resource::Query;
use http::{Method, StatusCode};
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout_at};

/// Objects asked for at once.
const PAGE: &str = "500";
/// Most objects of one query.
const OBJECTS_MAX: usize = 100_000;

/// Report of a follower.
#[derive(Clone, Debug, PartialEq)]
pub enum Report<T> {
    /// These are all objects, by name.
    Listed(BTreeMap<String, T>),
    /// This object changed, or is gone, or is no longer of interest.
    Set(String, Option<T>),
    /// The server is out of reach, or refuses.
    Lost,
    /// The server is back.
    Found,
}

/// Time limits and pauses of a follower.
#[derive(Clone, Copy, Debug)]
pub struct FollowTiming {
    /// First wait after a failure; doubles with each further one.
    pub backoff_min: Duration,
    /// Longest wait after a failure.
    pub backoff_max: Duration,
    /// Longest time for one answer.
    pub request_timeout: Duration,
    /// Time after which the server is asked to end a watch, in whole seconds, or up to twice as
    /// long, so that not all end at once. A watch that does not end then is lost.
    pub watch_timeout: Duration,
    /// As `watch_timeout`, for the first watch after a list; doubled with each further watch. A
    /// server that has just learnt of a kind of object may open watches on which nothing ever
    /// comes.
    pub watch_first: Duration,
    /// Grace for a server that ends a watch late.
    pub watch_grace: Duration,
    /// A watch that ended sooner is a failure: else a server that hangs up would be asked
    /// without pause.
    pub watch_min: Duration,
    /// Pause before looking again for a kind of object that is not installed.
    pub absent_retry: Duration,
}

impl Default for FollowTiming {
    fn default() -> Self {
        Self {
            backoff_min: Duration::from_millis(250),
            backoff_max: Duration::from_secs(5),
            request_timeout: Duration::from_secs(30),
            watch_timeout: Duration::from_secs(60),
            watch_first: Duration::from_secs(5),
            watch_grace: Duration::from_secs(10),
            watch_min: Duration::from_secs(1),
            absent_retry: Duration::from_secs(10),
        }
    }
}

/// Reads an object; `None` if it is of no interest.
pub type Decode<T> = Box<dyn Fn(&str) -> serde_json::Result<Option<T>> + Send + Sync>;

/// Follows one query and tells of it until nobody listens.
pub struct Follower<T, U> {
    api: Api,
    query: Query,
    decode: Decode<T>,
    updates: mpsc::Sender<U>,
    wrap: Wrap<T, U>,
    timing: FollowTiming,
    random: SmallRng,
}

/// Makes of a report what its receiver takes: several followers may share one.
pub type Wrap<T, U> = Box<dyn Fn(Report<T>) -> U + Send + Sync>;

/// Nobody listens any more.
struct Unheard;

/// Metadata of every object.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Meta {
    name: String,
    resource_version: String,
}

/// The head of any object or event.
#[derive(Default, Deserialize)]
struct Head {
    #[serde(default)]
    metadata: Meta,
}

/// A follower's record of its own success.
#[derive(Default)]
struct Health {
    /// Since when the server has been out of reach.
    lost: Option<Instant>,
    /// Failures since the last progress.
    failures: u32,
    /// Whether objects were listed and not said to be absent since.
    listed: bool,
    /// Whether the kind of object was not installed at the last look.
    absent: bool,
}

impl Cluster {
    /// A follower of `query`, whose reports go to `updates` as what `wrap` makes of them.
    pub fn follow<T, U>(
        &self,
        query: Query,
        decode: Decode<T>,
        updates: mpsc::Sender<U>,
        wrap: Wrap<T, U>,
    ) -> Follower<T, U> {
        let (api, timing) = (self.api.clone(), self.timing);
        let random = SmallRng::from_os_rng();
        Follower { api, query, decode, updates, wrap, timing, random }
    }
}

impl<T: Send + 'static, U: Send + 'static> Follower<T, U> {
    /// Follows until the receiver of the reports is gone.
    pub async fn run(mut self) {
        let mut health = Health::default();
        // `Unheard` is the end that is meant.
        while let Ok(version) = self.list_until_done(&mut health).await {
            if self.watch_until_gone(version, &mut health).await.is_err() {
                return;
            }
        }
    }

    /// Lists until that succeeds; returns the version to watch from.
    async fn list_until_done(&mut self, health: &mut Health) -> Result<String, Unheard> {
        loop {
            match self.list().await {
                Ok((objects, version)) => {
                    (health.listed, health.absent) = (true, false);
                    self.found(health).await?;
                    self.send(Report::Listed(objects)).await?;
                    return Ok(version);
                }
                Err(ApiError::Absent(_)) => self.absent(health).await?,
                Err(error) => {
                    health.absent = false;
                    self.failed(&error, health).await?;
                }
            }
        }
    }

    async fn list(&self) -> Result<(BTreeMap<String, T>, String), ApiError> {
        #[derive(Deserialize)]
        struct Page<'a> {
            metadata: PageMeta,
            #[serde(borrow, default)]
            items: Vec<&'a RawValue>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct PageMeta {
            resource_version: String,
            #[serde(default)]
            r#continue: String,
        }
        let mut objects = BTreeMap::new();
        // In pages, since an answer to one call is bounded.
        let mut token = String::new();
        loop {
            let parameters = [("limit", PAGE), ("continue", token.as_str())];
            let parameters = &parameters[..if token.is_empty() { 1 } else { 2 }];
            let path = self.query.path(parameters);
            let answer = self.api.call(Method::GET, &path, Vec::new()).await?;
            let page: Page<'_> = serde_json::from_slice(&answer).map_err(malformed)?;
            for item in page.items {
                let (name, object) = self.read(item.get())?;
                objects.extend(object.map(|object| (name, object)));
            }
            if objects.len() > OBJECTS_MAX {
                return Err(ApiError::Malformed(format!("more than {OBJECTS_MAX} objects")));
            }
            token = page.metadata.r#continue;
            if token.is_empty() {
                return Ok((objects, page.metadata.resource_version));
            }
        }
    }

    /// Watches from `version` on until the objects must be listed again.
    async fn watch_until_gone(
        &mut self,
        mut version: String,
        health: &mut Health,
    ) -> Result<(), Unheard> {
        let mut longest = self.timing.watch_first;
        loop {
            let opened = Instant::now();
            longest = longest.min(self.timing.watch_timeout);
            let watched = self.watch(&mut version, longest, health).await?;
            longest *= 2;
            match watched {
                Ok(()) if opened.elapsed() >= self.timing.watch_min => health.failures = 0,
                Ok(()) => self.pause(health).await,
                Err(error @ (ApiError::Gone(_) | ApiError::Absent(_))) => {
                    tracing::debug!(resource = self.query.resource.plural, %error, "listing anew");
                    self.pause(health).await;
                    return Ok(());
                }
                Err(error) => {
                    self.failed(&error, health).await?;
                    // The same bytes would come again.
                    if matches!(error, ApiError::Malformed(_) | ApiError::TooLarge(_)) {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// One watch, until the server ends it, as it is asked to after `longest` or up to twice that.
    /// `version` follows what was reported.
    async fn watch(
        &mut self,
        version: &mut String,
        longest: Duration,
        health: &mut Health,
    ) -> Result<Result<(), ApiError>, Unheard> {
        let duration = longest.mul_f64(1.0 + self.random.random::<f64>());
        let seconds = duration.as_secs().max(1).to_string();
        let path = self.query.path(&[
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", &seconds),
            ("resourceVersion", version),
        ]);
        let mut lines = match self.api.watch(&path).await {
            Ok(lines) => lines,
            Err(error) => return Ok(Err(error)),
        };
        self.found(health).await?;
        let limit = duration + self.timing.watch_grace;
        let deadline = Instant::now() + limit;
        loop {
            let line = match timeout_at(deadline, lines.next()).await {
                Err(_) => return Ok(Err(ApiError::TimedOut(limit))),
                Ok(Err(error)) => return Ok(Err(error)),
                Ok(Ok(None)) => return Ok(Ok(())),
                Ok(Ok(Some(line))) => line,
            };
            match self.event(&line) {
                Err(error) => return Ok(Err(error)),
                Ok((at, report)) => {
                    health.failures = 0;
                    if let Some(report) = report {
                        self.send(report).await?;
                    }
                    // One without a version must not make the next watch begin anywhere.
                    if !at.is_empty() {
                        *version = at;
                    }
                }
            }
        }
    }

    /// The report of an event, and the version after it.
    fn event(&self, line: &[u8]) -> Result<(String, Option<Report<T>>), ApiError> {
        #[derive(Deserialize)]
        struct Event<'a> {
            r#type: &'a str,
            #[serde(borrow)]
            object: &'a RawValue,
        }
        #[derive(Deserialize)]
        struct Status {
            code: u16,
        }
        let event: Event<'_> = serde_json::from_slice(line).map_err(malformed)?;
        let json = event.object.get();
        // A watch reports its failure inside the stream, with a status of its own.
        if event.r#type == "ERROR" {
            let status: Status = serde_json::from_str(json).map_err(malformed)?;
            let status = StatusCode::from_u16(status.code).unwrap_or(StatusCode::BAD_GATEWAY);
            return Err(refusal(status, json.as_bytes()));
        }
        let head: Head = serde_json::from_str(json).map_err(malformed)?;
        let version = head.metadata.resource_version;
        let report = match event.r#type {
            "ADDED" | "MODIFIED" => {
                let (name, object) = self.read(json)?;
                Some(Report::Set(name, object))
            }
            "DELETED" => Some(Report::Set(head.metadata.name, None)),
            _ => None,
        };
        Ok((version, report))
    }

    /// The name of an object and what it says. One that cannot be read is as if it were not
    /// there, so that it hides no others.
    fn read(&self, json: &str) -> Result<(String, Option<T>), ApiError> {
        let head: Head = serde_json::from_str(json).map_err(malformed)?;
        let name = head.metadata.name;
        let object = (self.decode)(json).unwrap_or_else(|error| {
            let resource = self.query.resource.plural;
            tracing::warn!(resource, name, %error, "ignoring an object that cannot be read");
            None
        });
        Ok((name, object))
    }

    /// The kind of object is not installed. Objects that were there before are believed to be
    /// until a second look: a server that restarts does not know all kinds at once.
    async fn absent(&mut self, health: &mut Health) -> Result<(), Unheard> {
        if health.listed && !health.absent {
            self.lost(&ApiError::Absent("kind of object".into()), health).await?;
        } else {
            if health.listed || !health.absent {
                self.found(health).await?;
                self.send(Report::Listed(BTreeMap::new())).await?;
            }
            health.listed = false;
        }
        health.absent = true;
        self.doze(self.timing.absent_retry).await;
        Ok(())
    }

    async fn failed(&mut self, error: &ApiError, health: &mut Health) -> Result<(), Unheard> {
        self.lost(error, health).await?;
        self.pause(health).await;
        Ok(())
    }

    async fn lost(&self, error: &ApiError, health: &mut Health) -> Result<(), Unheard> {
        let (resource, group) = (self.query.resource.plural, self.query.resource.group);
        if health.lost.is_some() {
            tracing::debug!(resource, group, %error, "watch still lost");
            return Ok(());
        }
        tracing::warn!(resource, group, %error, "watch lost, keeping what is known");
        health.lost = Some(Instant::now());
        self.send(Report::Lost).await
    }

    async fn found(&self, health: &mut Health) -> Result<(), Unheard> {
        let Some(since) = health.lost.take() else { return Ok(()) };
        let (resource, group) = (self.query.resource.plural, self.query.resource.group);
        let lost_ms = since.elapsed().as_millis() as u64;
        tracing::info!(resource, group, lost_ms, "watching again");
        self.send(Report::Found).await
    }

    async fn send(&self, report: Report<T>) -> Result<(), Unheard> {
        self.updates.send((self.wrap)(report)).await.map_err(|_| Unheard)
    }

    /// Waits longer with each failure.
    async fn pause(&mut self, health: &mut Health) {
        let doubled = self.timing.backoff_min.saturating_mul(1 << health.failures.min(16));
        health.failures = health.failures.saturating_add(1);
        self.doze(doubled.min(self.timing.backoff_max)).await;
    }

    /// Waits for half of `wait` to all of it, so that not all come back in step.
    async fn doze(&mut self, wait: Duration) {
        sleep(wait.mul_f64(0.5 + self.random.random::<f64>() / 2.0)).await;
    }
}

fn malformed(error: serde_json::Error) -> ApiError {
    ApiError::Malformed(error.to_string())
}
