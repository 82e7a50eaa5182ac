//! A TCP relay that can break, stand still and be late.

use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Delay of each piece on a slow link.
const LATE: Duration = Duration::from_millis(40);

/// The behaviour of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Weather {
    /// Carries everything at once.
    #[default]
    Clear,
    /// Breaks connections and refuses new ones.
    Cut,
    /// Carries nothing and breaks nothing.
    Stalled,
    /// Carries each piece late.
    Slow,
}

/// A listener whose connections lead elsewhere. Dropping it ends the listener, not the connections.
pub(crate) struct Relay {
    /// The address that the link listens at.
    pub address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A link to a process whose address may change.
pub(crate) struct Link {
    relay: Relay,
    target: watch::Sender<Option<SocketAddr>>,
    weather: watch::Sender<Weather>,
}

impl Link {
    /// A link that refuses connections until it has a target.
    pub(crate) async fn begin() -> Self {
        let (target, weather) = (watch::Sender::new(None), watch::Sender::new(Weather::Clear));
        let relay = relay(target.subscribe(), weather.subscribe()).await;
        Self { relay, target, weather }
    }

    /// The address that the link listens at.
    pub(crate) fn address(&self) -> SocketAddr {
        self.relay.address
    }

    /// Says where new connections lead.
    pub(crate) fn leads_to(&self, target: SocketAddr) {
        self.target.send_replace(Some(target));
    }

    /// Has this weather during the hold.
    pub(crate) async fn suffer(&self, weather: Weather, hold: Duration) {
        self.weather.send_replace(weather);
        tokio::time::sleep(hold).await;
        self.weather.send_replace(Weather::Clear);
    }
}

/// Relays connections to whatever is the target when they come.
pub(crate) async fn relay(
    target: watch::Receiver<Option<SocketAddr>>,
    weather: watch::Receiver<Weather>,
) -> Relay {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("a bound socket has an address");
    let task = tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let target = *target.borrow();
            if let Some(target) = target {
                tokio::spawn(carry(client, target, weather.clone()));
            }
        }
    });
    Relay { address, task }
}

/// Carries one connection until it ends or is cut.
async fn carry(client: TcpStream, target: SocketAddr, mut weather: watch::Receiver<Weather>) {
    let cut = weather.clone();
    if *weather.borrow_and_update() == Weather::Cut {
        return;
    }
    let Ok(server) = TcpStream::connect(target).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let both = async {
        tokio::join!(
            one_way(from_client, to_server, weather.clone()),
            one_way(from_server, to_client, weather.clone())
        )
    };
    tokio::select! {
        _ = both => {}
        () = becomes(cut, |weather| weather == Weather::Cut) => {}
    }
}

async fn one_way(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    weather: watch::Receiver<Weather>,
) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(bytes @ 1..) = from.read(&mut buffer).await {
        becomes(weather.clone(), |weather| weather != Weather::Stalled).await;
        if *weather.borrow() == Weather::Slow {
            tokio::time::sleep(LATE).await;
        }
        if to.write_all(&buffer[..bytes]).await.is_err() {
            break;
        }
    }
    // The other side reads the end once it has read everything before.
    let _ = to.shutdown().await;
}

async fn becomes(mut weather: watch::Receiver<Weather>, is: impl Fn(Weather) -> bool) {
    if weather.wait_for(|weather| is(*weather)).await.is_err() {
        // The links are gone and will not change again.
        std::future::pending().await
    }
}
