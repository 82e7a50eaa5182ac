//! What is heard of a pool's endpoints, over real sockets.

use super::*;
use crate::config::tests::good;
use crate::director::tests::{Engine, bench};
use stator_epp_signals::agents::AGENT_PORT_LABEL;
use std::collections::BTreeMap;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Longest wait for anything that must happen.
const DEADLINE: Duration = Duration::from_secs(20);

/// A metrics page of an engine where seven requests wait.
const PAGE: &str =
    "vllm:num_requests_waiting 7\nvllm:num_requests_running 1\nvllm:kv_cache_usage_perc 0.5\n";

/// Answers every request on a connection with the page.
async fn show_page(mut connection: TcpStream) {
    let length = PAGE.len();
    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{PAGE}");
    let (mut request, mut buffer) = (Vec::new(), [0; 1024]);
    while let Ok(read @ 1..) = connection.read(&mut buffer).await {
        request.extend_from_slice(&buffer[..read]);
        if request.ends_with(b"\r\n\r\n") {
            request.clear();
            if connection.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_whose_agent_cannot_be_followed_is_asked_itself() {
    let engine = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = engine.local_addr().expect("it is bound");
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((connection, _)) = engine.accept().await {
            connections.spawn(show_page(connection));
        }
    });
    // Nobody is there: the port was free a moment ago.
    let free = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let agent = free.local_addr().expect("it is bound").port().to_string();
    drop(free);

    let bench = bench("", &[Engine(0, 0, 0.0, &[])]);
    let mut view = (*bench.pool.view()).clone();
    let known = view.endpoints.remove(0);
    let labels = Arc::new(BTreeMap::from([(AGENT_PORT_LABEL.to_owned(), agent)]));
    let worker = known.worker;
    view.endpoints.push(Arc::new(Endpoint { address, labels, ..(*known).clone() }));
    bench.views.send_replace(Arc::new(view.clone()));
    bench.pool.follow_view();
    let lane = Lane::start("scrape").expect("a thread");
    let settings = good("--pool-name=vllm");
    let host = SignalHost { registry: &Metrics::default(), scraping: &lane };
    let signals = Signals::start(&bench.pool, &settings.pools[0], &settings, host);
    let signals = signals.expect("the settings are sound");
    signals.follow(&view);
    let waiting =
        || bench.pool.with(|scheduler, _| scheduler.endpoint(worker).map(|(_, load)| load.waiting));
    let heard = async {
        while waiting() != Some(7) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, heard).await.expect("its page is read in time");
}
