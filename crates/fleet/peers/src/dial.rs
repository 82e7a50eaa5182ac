//! Connections to peers.

use crate::PeersSettings;
use crate::auth::Token;
use crate::hub::{Hub, PeerOrigin};
use crate::wire::MESSAGE_BYTES_MAX;
use stator_protos::peers as proto;
use stator_protos::peers::peers_client::PeersClient;
use std::net::SocketAddr;
use std::sync::Arc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

/// Why a peer is not heard any more, or was not at all.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    /// There is nobody, or nobody whom we trust.
    #[error("cannot connect: {0:?}")]
    Connect(#[from] tonic::transport::Error),
    /// Our own certificates cannot be read.
    #[error("cannot read a certificate: {0}")]
    Certificate(#[from] std::io::Error),
    /// It refused, or broke off.
    #[error("{0}")]
    Status(#[from] Status),
    /// It did not say who it is.
    #[error("it did not introduce itself")]
    NoHello,
    /// Nothing came for so long.
    #[error("it fell silent")]
    Silent,
}

/// End of listening to an address.
#[derive(Debug)]
pub(crate) enum ListenEnd {
    /// The address is this replica's own, or that of a replica which is heard at another address.
    Known,
    /// It was heard until it broke off.
    Lost(DialError),
}

/// Connects to a peer.
pub(crate) async fn connect(
    address: SocketAddr,
    settings: &PeersSettings,
) -> Result<PeersClient<Channel>, DialError> {
    let scheme = if settings.tls.is_some() { "https" } else { "http" };
    let mut endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))?
        .connect_timeout(settings.connect_timeout)
        .tcp_nodelay(true);
    if let Some(tls) = &settings.tls {
        endpoint = endpoint.tls_config(tls.config().await?)?;
    }
    // The limit of the endpoint ends before a handshake of TLS does.
    let connecting = tokio::time::timeout(settings.connect_timeout, endpoint.connect());
    let channel = connecting.await.map_err(|_| DialError::Silent)??;
    Ok(PeersClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX))
}

/// A request that shows the secret.
pub(crate) fn request<T>(message: T, settings: &PeersSettings) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(secret) = &settings.token {
        Token::new(secret).show(request.metadata_mut());
    }
    request
}

/// Listens to the peer at an address until it breaks off or falls silent.
///
/// # Errors
///
/// When it was not heard at all.
pub(crate) async fn listen(
    hub: &Arc<Hub>,
    address: SocketAddr,
    settings: &PeersSettings,
) -> Result<ListenEnd, DialError> {
    let mut client = connect(address, settings).await?;
    let message = proto::SyncRequest { hello: Some(hub.hello()) };
    let asking = client.sync(request(message, settings));
    let silent = |_| DialError::Silent;
    let frames = tokio::time::timeout(settings.silence, asking).await.map_err(silent)?;
    let mut frames = frames?.into_inner();
    let first = tokio::time::timeout(settings.silence, frames.message()).await.map_err(silent)?;
    let hello = first?.and_then(|frame| frame.hello).ok_or(DialError::NoHello)?;
    // A name may stand for this replica too, and one peer may answer at several addresses.
    let Some(mut origin) = PeerOrigin::new(hub, &hello) else { return Ok(ListenEnd::Known) };
    tracing::info!(%address, "a peer is heard");
    loop {
        match tokio::time::timeout(settings.silence, frames.message()).await {
            Ok(Ok(Some(frame))) => origin.hear(frame),
            Ok(Ok(None)) => return Ok(ListenEnd::Lost(Status::unavailable("it ends").into())),
            Ok(Err(status)) => return Ok(ListenEnd::Lost(status.into())),
            Err(_) => {
                hub.metrics.silent.inc();
                return Ok(ListenEnd::Lost(DialError::Silent));
            }
        }
    }
}
