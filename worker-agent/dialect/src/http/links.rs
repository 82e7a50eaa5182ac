//! Connections to an engine, each driven by whoever reads its answer.
//!
//! A token that arrives wakes one task, which reads the socket itself: there is nobody between it
//! and the decoder. Connections that wait for their next request are driven by nobody; that one
//! was closed meanwhile is found out when it is taken.

use super::{CONNECT_TIMEOUT, IDLE_TIMEOUT, MAX_IDLE, fault};
use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::service::Service;
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

type Connector = HttpsConnector<HttpConnector>;
type Driver = http1::Connection<MaybeHttpsStream<TokioIo<TcpStream>>, Full<Bytes>>;

/// The connections to one engine.
pub(super) struct Links {
    connector: TowerToHyperService<Connector>,
    address: Uri,
    idle: Arc<Idle>,
}

/// Connections that wait for their next request, the latest last.
#[derive(Default)]
struct Idle(Mutex<Vec<(Instant, Link)>>);

struct Link {
    sender: SendRequest<Full<Bytes>>,
    /// `None` once the connection has ended.
    driver: Option<Pin<Box<Driver>>>,
}

impl Links {
    pub(super) fn new(connector: Connector, address: Uri) -> Self {
        let connector = TowerToHyperService::new(connector);
        Self { connector, address, idle: Arc::default() }
    }

    /// Closes what has waited for too long.
    pub(super) fn prune(&self) {
        self.idle.0.lock().retain(|(since, _)| since.elapsed() < IDLE_TIMEOUT);
    }

    /// Sends a request, whose URI is a path, and waits for the head of its answer. The error is
    /// for a fault.
    pub(super) async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Answered>, String> {
        while let Some(link) = self.idle.take().await {
            match self.exchange(link, request).await {
                Ok(answer) => return Ok(answer),
                // Where it was closed before anything was sent, the next one may take it.
                Err(mut failed) => match failed.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(fault::with_causes(failed.error())),
                },
            }
        }
        let link = self.connect().await?;
        let answered = self.exchange(link, request).await;
        answered.map_err(|failed| fault::with_causes(failed.error()))
    }

    async fn connect(&self) -> Result<Link, String> {
        let connected = timeout(CONNECT_TIMEOUT, self.connector.call(self.address.clone()));
        let stream = match connected.await {
            Ok(stream) => stream.map_err(|error| fault::with_causes(&*error))?,
            Err(_) => return Err(format!("no connection within {CONNECT_TIMEOUT:?}")),
        };
        let (sender, driver) =
            http1::handshake(stream).await.map_err(|error| fault::with_causes(&error))?;
        Ok(Link { sender, driver: Some(Box::pin(driver)) })
    }

    async fn exchange(
        &self,
        mut link: Link,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Answered>, TrySendError<Request<Full<Bytes>>>> {
        let mut answer = pin!(link.sender.try_send_request(request));
        let driver = &mut link.driver;
        let answer = poll_fn(|context| {
            drive(driver, context);
            answer.as_mut().poll(context)
        });
        let (head, incoming) = answer.await?.into_parts();
        let (link, idle) = (Some(link), self.idle.clone());
        Ok(Response::from_parts(head, Answered { incoming, link, idle }))
    }
}

impl Idle {
    /// The connection that was used last and can be used again; others that cannot are closed.
    async fn take(&self) -> Option<Link> {
        loop {
            let (since, mut link) = self.0.lock().pop()?;
            if since.elapsed() >= IDLE_TIMEOUT {
                // Those before it have waited for longer.
                self.0.lock().clear();
                return None;
            }
            if poll_fn(|context| Poll::Ready(link.is_ready(context))).await {
                return Some(link);
            }
        }
    }

    fn put(&self, link: Link) {
        let mut idle = self.0.lock();
        if idle.len() < MAX_IDLE {
            idle.push((Instant::now(), link));
        }
    }
}

impl Link {
    /// Whether a request can be sent now.
    fn is_ready(&mut self, context: &mut Context<'_>) -> bool {
        drive(&mut self.driver, context);
        matches!(self.sender.poll_ready(context), Poll::Ready(Ok(()))) && self.driver.is_some()
    }
}

/// Reads and writes what can be. Whoever waits for something of it learns why it ended.
fn drive(driver: &mut Option<Pin<Box<Driver>>>, context: &mut Context<'_>) {
    if driver.as_mut().is_some_and(|driver| driver.as_mut().poll(context).is_ready()) {
        *driver = None;
    }
}

/// The body of an answer. Dropped before its end, it closes the connection; read to its end, it
/// gives it back.
pub(crate) struct Answered {
    incoming: Incoming,
    link: Option<Link>,
    idle: Arc<Idle>,
}

impl Answered {
    /// What has been read already. Only driving the connection brings more, so that nobody need be
    /// woken by the body itself.
    fn look(&mut self) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.incoming).poll_frame(&mut Context::from_waker(Waker::noop()))
    }
}

impl Body for Answered {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let mut polled = self.look();
        if polled.is_pending() {
            if let Some(link) = &mut self.link {
                drive(&mut link.driver, context);
            }
            polled = self.look();
        }
        if let Poll::Ready(None) = polled
            && let Some(mut link) = self.link.take()
            && link.is_ready(context)
        {
            self.idle.put(link);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
