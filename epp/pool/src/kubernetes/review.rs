//! Rights to read metrics: the API server knows tokens and their rights.

use super::Cluster;
use super::resource::{ACCESS_REVIEWS, TOKEN_REVIEWS};
use http::Method;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde::Deserialize;
use serde_json::{Value, json};
use stator_kube::{Api, ApiError, Resource};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

/// Time for which a granted right is believed.
const GRANTED_FOR: Duration = Duration::from_secs(60);
/// Time for which a refusal is believed.
const DENIED_FOR: Duration = Duration::from_secs(10);
/// Most answers that are remembered.
const REMEMBERED_MAX: usize = 1024;
/// Longest token that is asked about.
const TOKEN_BYTES_MAX: usize = 16 << 10;
/// Most questions at one time.
const QUESTIONS_MAX: usize = 8;
/// Longest time for one answer, waiting for its turn included.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Rights of the bearer of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadAccess {
    /// Read the path.
    Granted,
    /// Not that: the token is somebody's who has no such right. Status 403.
    Denied,
    /// Nothing: the token is nobody's. Status 401.
    Unknown,
}

/// Asks the API server about tokens, and remembers its answers for a while.
pub struct Reviewer {
    api: Api,
    turns: Semaphore,
    /// Answers by token and path, and until when they are believed.
    answers: Mutex<FxHashMap<(String, String), (ReadAccess, Instant)>>,
}

impl Reviewer {
    /// Asks this cluster's server.
    pub fn new(cluster: &Cluster) -> Self {
        Self {
            api: cluster.kube.api.clone(),
            turns: Semaphore::new(QUESTIONS_MAX),
            answers: Mutex::default(),
        }
    }

    /// Whether the bearer of `token` may get `path`, by a token review and an access review.
    ///
    /// # Errors
    ///
    /// [`ApiError`] if the server does not say; the caller must not grant then.
    pub async fn authorize(&self, token: &str, path: &str) -> Result<ReadAccess, ApiError> {
        if token.is_empty() || token.len() > TOKEN_BYTES_MAX {
            return Ok(ReadAccess::Unknown);
        }
        let key = (token.to_owned(), path.to_owned());
        if let Some((access, _)) =
            self.answers.lock().get(&key).filter(|(_, until)| *until > Instant::now())
        {
            return Ok(*access);
        }
        let ask = async {
            // The semaphore is never closed.
            let _turn = self.turns.acquire().await;
            self.ask(token, path).await
        };
        let late = Err(ApiError::TimedOut(ANSWER_TIMEOUT));
        let access = timeout(ANSWER_TIMEOUT, ask).await.unwrap_or(late)?;
        self.remember(key, access);
        Ok(access)
    }

    fn remember(&self, key: (String, String), access: ReadAccess) {
        let now = Instant::now();
        let believed = if access == ReadAccess::Granted { GRANTED_FOR } else { DENIED_FOR };
        let mut answers = self.answers.lock();
        if answers.len() >= REMEMBERED_MAX {
            answers.retain(|_, (_, until)| *until > now);
        }
        if answers.len() >= REMEMBERED_MAX {
            answers.clear();
        }
        answers.insert(key, (access, now + believed));
    }

    async fn ask(&self, token: &str, path: &str) -> Result<ReadAccess, ApiError> {
        let spec = json!({"token": token});
        let review: TokenStatus = self.review(TOKEN_REVIEWS, "TokenReview", spec).await?;
        if !review.authenticated {
            return Ok(ReadAccess::Unknown);
        }
        let User { username, uid, groups, extra } = review.user;
        let spec = json!({
            "user": username, "uid": uid, "groups": groups, "extra": extra,
            "nonResourceAttributes": {"path": path, "verb": "get"},
        });
        let review: AccessStatus = self.review(ACCESS_REVIEWS, "SubjectAccessReview", spec).await?;
        Ok(if review.allowed { ReadAccess::Granted } else { ReadAccess::Denied })
    }

    async fn review<T: Default + serde::de::DeserializeOwned>(
        &self,
        resource: Resource,
        kind: &str,
        spec: Value,
    ) -> Result<T, ApiError> {
        #[derive(Deserialize)]
        struct Review<T> {
            status: T,
        }
        let version = format!("{}/{}", resource.group, resource.version);
        let review = json!({"apiVersion": version, "kind": kind, "spec": spec}).to_string();
        let answer = self.api.call(Method::POST, &resource.path(None), review.into()).await?;
        let review: Review<T> = serde_json::from_slice(&answer)
            .map_err(|error| ApiError::Malformed(error.to_string()))?;
        Ok(review.status)
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TokenStatus {
    authenticated: bool,
    user: User,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct User {
    username: String,
    uid: String,
    groups: Vec<String>,
    extra: Value,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AccessStatus {
    allowed: bool,
}
