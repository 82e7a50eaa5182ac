//! Asks a server for the token ids of a request: vLLM's `render` routes.
//!
//! Source: vLLM 0.32 (`/v1/chat/completions/render`), asked as the llm-d router's token producer
//! does.

use parking_lot::Mutex;
use serde::Deserialize;
use stator_http::{Connection, HttpError, Origin, TlsError, TlsOptions, Url, UrlError};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Settings for asking a renderer.
#[derive(Clone, Debug)]
pub struct RenderSettings {
    /// Address of the renderer, `http://localhost:8000` by default.
    pub url: String,
    /// Longest wait for one request, the wait for a connection included; 5 s by default.
    pub timeout: Duration,
    /// Longest wait for a prompt with images, sounds or videos; 30 s by default.
    pub media_timeout: Duration,
    /// Requests that are on their way at once, 64 by default; more wait.
    pub concurrency: usize,
    /// Largest answer, in bytes; 16 MiB by default.
    pub response_bytes_max: usize,
    /// Trusted authorities.
    pub tls: TlsOptions,
}

impl Default for RenderSettings {
    fn default() -> Self {
        Self {
            url: "http://localhost:8000".into(),
            timeout: Duration::from_secs(5),
            media_timeout: Duration::from_secs(30),
            concurrency: 64,
            response_bytes_max: 16 << 20,
            tls: TlsOptions::default(),
        }
    }
}

/// Reason for which there are no token ids.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    /// The renderer's address cannot be used.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// TLS cannot be spoken.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The renderer did not answer.
    #[error(transparent)]
    Fetch(#[from] HttpError),
    /// The renderer did not answer in time.
    #[error("the renderer did not answer within {0:?}")]
    Timeout(Duration),
    /// The renderer refused the request.
    #[error("the renderer answered with status {0}")]
    Status(u16),
    /// The answer is not one prompt's token ids.
    #[error("the renderer's answer has not one list of token ids: {0}")]
    Malformed(String),
}

/// A server that turns requests into token ids, over kept connections.
#[derive(Debug)]
pub struct Renderer {
    settings: RenderSettings,
    origin: Origin,
    base: String,
    turns: Semaphore,
    /// At most as many as there are turns.
    idle: Mutex<Vec<Connection>>,
}

impl Renderer {
    /// A renderer that is asked when needed.
    ///
    /// # Errors
    ///
    /// [`RenderError::Url`] and [`RenderError::Tls`].
    pub fn new(settings: RenderSettings) -> Result<Self, RenderError> {
        let url = Url::parse(&settings.url)?;
        Ok(Self {
            origin: url.origin(&settings.tls)?,
            base: url.target.trim_end_matches('/').to_owned(),
            turns: Semaphore::new(settings.concurrency.max(1)),
            idle: Mutex::default(),
            settings,
        })
    }

    /// The token ids of the request `body`, whose route is `path`: `/v1/chat/completions` or
    /// `/v1/completions`. `has_media` says which limit of time holds.
    ///
    /// # Errors
    ///
    /// [`RenderError`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection, which is all that it leaves behind.
    pub async fn render(
        &self,
        path: &str,
        body: &[u8],
        has_media: bool,
    ) -> Result<Vec<u32>, RenderError> {
        let RenderSettings { timeout, media_timeout, .. } = self.settings;
        let timeout = if has_media { media_timeout } else { timeout };
        match tokio::time::timeout(timeout, self.ask(path, body)).await {
            Ok(tokens) => tokens,
            Err(_) => Err(RenderError::Timeout(timeout)),
        }
    }

    async fn ask(&self, path: &str, body: &[u8]) -> Result<Vec<u32>, RenderError> {
        // The semaphore is never closed.
        let _turn = self.turns.acquire().await;
        let kept = self.idle.lock().pop();
        let mut connection = kept.unwrap_or_else(|| Connection::new(self.origin.clone()));
        let target = format!("{}{path}/render", self.base);
        let request = stator_http::request("POST", &self.origin, &target, None, Some(body));
        let response = connection.exchange(&request, self.settings.response_bytes_max).await?;
        let tokens = match response.status {
            200 => token_ids(response.body),
            status => Err(RenderError::Status(status)),
        };
        if connection.is_up() {
            self.idle.lock().push(connection);
        }
        tokens
    }
}

/// A chat is answered by one object, a completion by a list with one for each prompt.
#[derive(Deserialize)]
#[serde(untagged)]
enum Answer {
    One(Rendered),
    Each(Vec<Rendered>),
}

#[derive(Deserialize)]
struct Rendered {
    token_ids: Vec<u32>,
}

fn token_ids(body: &[u8]) -> Result<Vec<u32>, RenderError> {
    match serde_json::from_slice(body) {
        Ok(Answer::One(rendered)) => Ok(rendered.token_ids),
        Ok(Answer::Each(mut each)) if each.len() == 1 => Ok(each.remove(0).token_ids),
        Ok(Answer::Each(each)) => Err(RenderError::Malformed(format!("{} lists", each.len()))),
        Err(error) => Err(RenderError::Malformed(error.to_string())),
    }
}
