//! The server at the other end.

use crate::answer::{AnswerReader, AnswerSoFar, Piece, error_message};
use crate::args::ChatArgs;
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;
use stator_http::{Answer, AnswerBody, Bearer, LinkSettings, Links, RequestHead, TlsOptions, Url};
use std::io;
use std::time::Duration;

/// Largest list of models, and largest answer that is no stream, in bytes.
const BODY_MAX_BYTES: usize = 16 << 20;
/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A server of OpenAI's API.
pub(crate) struct ChatServer {
    links: Links,
    authority: String,
    /// Path before `/v1`.
    prefix: String,
    key: Option<Bearer>,
    url: String,
}

impl ChatServer {
    /// The server that the arguments name. Nothing is connected yet.
    ///
    /// # Errors
    ///
    /// When the address, the key or a file cannot be used.
    pub(crate) fn new(args: &ChatArgs) -> Result<Self> {
        let url = Url::parse(&args.url).context("url")?;
        let tls = TlsOptions {
            insecure_skip_verify: args.insecure,
            ca_path: args.ca_file.clone(),
            identity: None,
        };
        ensure!(url.https || args.ca_file.is_none(), "ca-file: {:?} is not https", args.url);
        ensure!(url.https || !args.insecure, "insecure: {:?} is not https", args.url);
        let origin = url.origin(&tls)?;
        let key = args.api_key.clone().or_else(|| std::env::var("OPENAI_API_KEY").ok());
        let key = key.filter(|key| !key.is_empty());
        // The key itself stays out of the message.
        let key = key.map(|key| Bearer::new(&key).context("api-key: not a header value"));
        let path = url.target.trim_end_matches('/');
        let settings = LinkSettings { connect_timeout: CONNECT_TIMEOUT, ..LinkSettings::default() };
        Ok(Self {
            authority: origin.authority(),
            prefix: path.strip_suffix("/v1").unwrap_or(path).to_owned(),
            links: Links::new(origin, settings),
            key: key.transpose()?,
            url: args.url.clone(),
        })
    }

    /// Address of the server, as it was given.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Names of the models that the server lists.
    ///
    /// # Errors
    ///
    /// When it does not answer, or refuses.
    pub(crate) async fn models(&self) -> Result<Vec<String>> {
        #[derive(Deserialize)]
        struct Listing {
            data: Vec<Named>,
        }
        #[derive(Deserialize)]
        struct Named {
            id: String,
        }
        let head = self.head("GET", "/v1/models").finish(None);
        let answer = self.send(&head, b"").await?;
        let body = self.accepted(answer).await?;
        let listing: Listing =
            serde_json::from_slice(&body).with_context(|| format!("{}: models", self.url))?;
        Ok(listing.data.into_iter().map(|model| model.id).collect())
    }

    /// Asks for an answer, and hands on its parts as they come.
    ///
    /// # Errors
    ///
    /// When the server does not answer, refuses or breaks off, or a part finds no reader.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection, which tells the server to stop.
    pub(crate) async fn answer(
        &self,
        body: &str,
        mut on_piece: impl FnMut(Piece) -> io::Result<()>,
    ) -> Result<AnswerSoFar> {
        let head = self.head("POST", "/v1/chat/completions").finish(Some(body.len()));
        let answer = self.send(&head, body.as_bytes()).await?;
        if !answer.status.is_success() || !answer.is_event_stream {
            self.accepted(answer).await?;
            bail!("{}: the answer is no stream of events", self.url);
        }
        read_events(answer.body, &mut on_piece).await
    }

    fn head(&self, method: &str, path: &str) -> RequestHead {
        let target = format!("{}{path}", self.prefix);
        let mut head = RequestHead::new(method, &target, &self.authority);
        head.header("content-type", b"application/json")
            .header("accept", b"text/event-stream, application/json")
            .header("user-agent", concat!("stator-chat/", env!("CARGO_PKG_VERSION")).as_bytes())
            .bearer(self.key.as_ref());
        head
    }

    async fn send(&self, head: &[u8], body: &[u8]) -> Result<Answer> {
        self.links.send(head, body).await.with_context(|| self.url.clone())
    }

    /// The body of an answer that is no refusal.
    async fn accepted(&self, mut answer: Answer) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        let read = answer.body.collect(&mut body, BODY_MAX_BYTES).await;
        read.with_context(|| self.url.clone())?;
        if answer.status.is_success() {
            return Ok(body);
        }
        let said = serde_json::from_slice(&body).ok().and_then(|body: Value| error_message(&body));
        let said = said.map(|message| format!(": {message}")).unwrap_or_default();
        bail!("{}: http {}{said}", self.url, answer.status.as_u16())
    }
}

async fn read_events(
    mut body: AnswerBody,
    on_piece: &mut impl FnMut(Piece) -> io::Result<()>,
) -> Result<AnswerSoFar> {
    let mut reader = AnswerReader::default();
    let (mut taken, mut more) = (Ok(()), true);
    while more {
        let read = body.read(|data| {
            if taken.is_ok() {
                taken = reader.feed(data, on_piece);
            }
        });
        more = read.await.context("the answer broke off")?;
        std::mem::replace(&mut taken, Ok(()))?;
    }
    reader.finish()
}
