//! A director that does as it is told.

use bytes::Bytes;
use stator_epp::exchange::{Director, Interest, Refusal, RequestHead, RoutedRequest, Watch};
use stator_epp::headers::Headers;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::{mpsc, watch};

/// Where every request goes, unless a test says otherwise.
pub(crate) const ENDPOINT: &str = "10.0.0.2:8000";

/// What became of the requests and answers of a test, one line each.
pub(crate) type Log = mpsc::UnboundedReceiver<String>;

/// What the director says to every request.
#[derive(Clone)]
pub(crate) enum Say {
    /// It goes to these endpoints, then `Script::body` and the like apply.
    Route(Vec<SocketAddr>),
    /// It is refused.
    Refuse(Refusal),
    /// Nothing, ever.
    Nothing,
    /// It panics where the body is this; all others go to [`ENDPOINT`].
    Panic(&'static str),
    /// The answer of `Route`, once this is set.
    Later(watch::Receiver<bool>),
}

/// A director that follows a script.
#[derive(Clone)]
pub(crate) struct Script {
    /// What it says.
    pub(crate) say: Say,
    /// The body in place of the one that came.
    pub(crate) body: Option<&'static str>,
    /// Headers it sets.
    pub(crate) set: Vec<(&'static str, String)>,
    /// Scores it tells.
    pub(crate) scores: Vec<(SocketAddr, f64)>,
    /// What it wants to see of the answer.
    pub(crate) interest: Interest,
    /// Headers it sets on the answer.
    pub(crate) reply_set: Vec<(&'static str, String)>,
    /// What it does with the answer's body.
    pub(crate) reply_body: ReplyBody,
    /// Revokes requests when it says so.
    pub(crate) revoke: Option<watch::Receiver<bool>>,
    /// The body in place of one that comes after the decision.
    pub(crate) late_body: Option<&'static str>,
    log: mpsc::UnboundedSender<String>,
}

/// What a watch does with the body of an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplyBody {
    /// Passes it on.
    Pass,
    /// Puts it in capitals.
    Shout,
    /// Holds it back until its end.
    Hold,
}

impl Script {
    /// Routes to [`ENDPOINT`], changes nothing and wants to see nothing.
    pub(crate) fn new() -> (Self, Log) {
        let (log, seen) = mpsc::unbounded_channel();
        let script = Self {
            say: Say::Route(vec![ENDPOINT.parse().expect("it is an address")]),
            body: None,
            set: Vec::new(),
            scores: Vec::new(),
            interest: Interest::Nothing,
            reply_set: Vec::new(),
            reply_body: ReplyBody::Pass,
            revoke: None,
            late_body: None,
            log,
        };
        (script, seen)
    }
}

impl Director for Script {
    type Watch = Follower;

    async fn route(
        &self,
        head: RequestHead,
        body: Option<Vec<Bytes>>,
    ) -> Result<RoutedRequest<Follower>, Refusal> {
        let text = body.as_ref().map(|body| String::from_utf8_lossy(&body.concat()).into_owned());
        let subset = head.subset.as_ref().map(|subset| {
            let texts = subset.0.iter().map(|e| match e.port {
                Some(port) => SocketAddr::new(e.ip, port).to_string(),
                None => e.ip.to_string(),
            });
            texts.collect::<Vec<_>>().join(",")
        });
        let subset = subset.map(|subset| format!(" subset=[{subset}]")).unwrap_or_default();
        let text = text.map(|text| format!(" {text}")).unwrap_or_default();
        let hashes = match head.prefix_hashes.is_empty() {
            true => String::new(),
            false => format!(" hashes={:?}", head.prefix_hashes),
        };
        let line = format!("{} {}{text}{subset}{hashes}", head.method, head.path);
        // A test that does not look at the log drops it.
        let _ = self.log.send(line);
        let mut waiting = Waiting(Some(self.log.clone()));
        let endpoints = match &self.say {
            Say::Route(endpoints) => endpoints.clone(),
            Say::Refuse(refusal) => {
                waiting.0 = None;
                return Err(refusal.clone());
            }
            Say::Nothing => std::future::pending().await,
            Say::Later(said) => {
                let mut said = said.clone();
                said.wait_for(|said| *said).await.expect("the test goes on");
                vec![ENDPOINT.parse().expect("it is an address")]
            }
            Say::Panic(what) => {
                let came = body.as_ref().map(|body| body.concat());
                assert_ne!(came.as_deref(), Some(what.as_bytes()), "it panics as it is told");
                vec![ENDPOINT.parse().expect("it is an address")]
            }
        };
        waiting.0 = None;
        let body = match self.body {
            Some(text) => vec![Bytes::from_static(text.as_bytes())],
            None => body.unwrap_or_default(),
        };
        Ok(RoutedRequest {
            endpoints,
            set_headers: self.set.clone(),
            body,
            scores: self.scores.clone(),
            watch: self.unasked(),
        })
    }

    fn unasked(&self) -> Follower {
        Follower { script: Arc::new(self.clone()), held: Vec::new(), said: None }
    }
}

/// Tells the log when a decision is given up.
struct Waiting(Option<mpsc::UnboundedSender<String>>);

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(log) = &self.0 {
            let _ = log.send("given up".to_owned());
        }
    }
}

/// Follows an answer as the script says.
pub(crate) struct Follower {
    script: Arc<Script>,
    held: Vec<Bytes>,
    /// Is ready when the request is revoked.
    said: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Watch for Follower {
    fn interest(&self) -> Interest {
        self.script.interest
    }

    fn poll_revoked(&mut self, cx: &mut Context<'_>) -> Poll<Refusal> {
        let Some(revoke) = self.script.revoke.clone() else { return Poll::Pending };
        let said = self.said.get_or_insert_with(|| {
            let mut revoke = revoke;
            Box::pin(async move {
                revoke.wait_for(|said| *said).await.expect("the test goes on");
            })
        });
        said.as_mut().poll(cx).map(|()| Refusal {
            status: 429,
            message: "revoked".to_owned(),
            reason: Some("evicted"),
            retry_after: None,
            body: None,
        })
    }

    fn amends(&self) -> bool {
        self.script.late_body.is_some()
    }

    fn amend(&mut self, body: Vec<Bytes>) -> Result<Vec<Bytes>, Refusal> {
        let text = String::from_utf8_lossy(&body.concat()).into_owned();
        let _ = self.script.log.send(format!("late {text}"));
        match &self.script.late_body {
            Some(text) => Ok(vec![Bytes::from_static(text.as_bytes())]),
            None => Ok(body),
        }
    }

    fn headers(
        &mut self,
        status: u16,
        headers: &Headers,
        served: Option<&str>,
    ) -> Vec<(&'static str, String)> {
        let names: Vec<_> = headers.iter().map(|(name, _)| name).collect();
        let served = served.unwrap_or("unknown");
        let _ = self.script.log.send(format!("{status} {} from {served}", names.join(",")));
        self.script.reply_set.clone()
    }

    fn body(&mut self, piece: Bytes, end: bool, out: &mut Vec<Bytes>) {
        match self.script.reply_body {
            ReplyBody::Pass => out.push(piece),
            ReplyBody::Shout => out.push(piece.to_ascii_uppercase().into()),
            ReplyBody::Hold => {
                self.held.push(piece);
                if end {
                    out.append(&mut self.held);
                }
            }
        }
    }

    fn end(&mut self) -> Vec<(String, String, f64)> {
        let _ = self.script.log.send("complete".to_owned());
        vec![("envoy.lb".to_owned(), "x-gateway-inference-request-cost".to_owned(), 7.0)]
    }
}
