//! Webhooks: the server that the API server asks before it stores a document, and the upkeep of its
//! certificate and of the objects that lead the API server there.

mod authority;
mod place;
mod upkeep;

pub(crate) use place::{ConversionOwner, WebhookPlace};
pub(crate) use upkeep::{Upkeep, WebhookSettings};

use crate::admission::{answer_conversion, answer_default, answer_validation};
use crate::metrics::OperatorMetrics;
use crate::objects::OperatorSettings;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

/// Largest review: the API server converts the documents of a whole list at once.
const REVIEW_BYTES_MAX: usize = 32 << 20;
/// Reviews that are read and answered at once; further ones wait.
const REVIEWS_MAX: usize = 8;
/// Longest time for one review with its wait; the API server waits for 10 s by default.
const REVIEW_LIMIT: Duration = Duration::from_secs(10);

/// Paths of the webhooks.
const DEFAULT: &str = "/default";
const VALIDATE: &str = "/validate";
const CONVERT: &str = "/convert";

/// Parts that all reviews need.
struct Reviews {
    settings: OperatorSettings,
    /// Name of the operator at the API server.
    operator: String,
    room: Semaphore,
    metrics: OperatorMetrics,
}

/// The application that answers reviews.
pub(crate) fn app(
    settings: OperatorSettings,
    operator: String,
    metrics: OperatorMetrics,
) -> Router {
    let room = Semaphore::new(REVIEWS_MAX);
    let reviews = Arc::new(Reviews { settings, operator, room, metrics });
    let route = |name: &'static str| {
        post(async move |State(reviews): State<Arc<Reviews>>, body: Body| {
            let begun = Instant::now();
            let answer = timeout(REVIEW_LIMIT, reviews.answer(name, body)).await;
            let answer =
                answer.unwrap_or(Err((StatusCode::REQUEST_TIMEOUT, "too slow".to_owned())));
            reviews.metrics.reviewed(name, answer.as_ref().ok(), begun.elapsed());
            answer.map_or_else(IntoResponse::into_response, shown)
        })
    };
    let mut app = Router::new();
    for name in [DEFAULT, VALIDATE, CONVERT] {
        app = app.route(name, route(name));
    }
    app.with_state(reviews)
}

impl Reviews {
    async fn answer(&self, name: &str, body: Body) -> Result<Value, (StatusCode, String)> {
        // The semaphore is never closed.
        let _room = self.room.acquire().await;
        let bytes = to_bytes(body, REVIEW_BYTES_MAX).await;
        let bytes = bytes.map_err(|error| (StatusCode::PAYLOAD_TOO_LARGE, error.to_string()))?;
        let refuse = |error: String| (StatusCode::BAD_REQUEST, error);
        let review: Value =
            serde_json::from_slice(&bytes).map_err(|error| refuse(error.to_string()))?;
        let answer = match name {
            DEFAULT => answer_default(&review, &self.settings),
            VALIDATE => answer_validation(&review, &self.settings, &self.operator),
            _ => answer_conversion(&review),
        };
        answer.map_err(|error| refuse(error.to_string()))
    }
}

fn shown(answer: Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], answer.to_string()).into_response()
}
