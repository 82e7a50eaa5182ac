use super::super::testkit::WORKER;
use super::*;
use stator_runtime::metrics::Metrics;
use std::future::pending;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// A server that gives each answer once it is told to, and passes on what it was asked.
async fn server() -> (Arc<str>, mpsc::Sender<String>, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/prefix/", listener.local_addr().unwrap()).into();
    let (answers, mut answer) = mpsc::channel::<String>(1);
    let (asked, asks) = mpsc::channel(100);
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                stream.read_buf(&mut request).await.unwrap();
            }
            let _ = asked.try_send(String::from_utf8(request).unwrap());
            let Some(body) = answer.recv().await else { pending().await };
            let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length:";
            let answer = format!("{head} {}\r\n\r\n{body}", body.len());
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    (url, answers, asks)
}

fn source(url: Arc<str>, own_bytes_max: usize) -> MetricsPage {
    MetricsPage { kind: report::Engine::Vllm, url, bearer: Bearer::new("hush"), own_bytes_max }
}

fn shown() -> RankOutlets {
    RankOutlets { worker: WORKER, cache: Arc::default(), tally: Arc::default() }
}

const PAGE: &str = "# HELP vllm:num_requests_running Now.\n# TYPE vllm:num_requests_running gauge\n\
    vllm:num_requests_running{engine=\"0\"} 3.0\n";

/// Reads the process's page until it is so.
async fn until(metrics: &Metrics, so: impl Fn(&str) -> bool) -> String {
    let looking = async {
        loop {
            let text = metrics.render();
            if so(&text) {
                return text;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), looking).await.expect("it comes to that")
}

#[tokio::test]
async fn a_page_is_shown_under_our_names_and_its_own_until_the_life_ends() {
    let (url, answers, mut asks) = server().await;
    let (stock, metrics) = (StockMetrics::default(), Metrics::default());
    stock.show(&metrics);
    let shown = shown();
    let cache = shown.cache.clone();
    let mut following = JoinSet::new();
    following.spawn(follow(source(url, 1 << 20), vec![shown], stock.clone()));
    answers.send(PAGE.into()).await.unwrap();
    let text = until(&metrics, |text| text.contains("\nvllm:")).await;
    let own = "# HELP vllm:num_requests_running Now.\n# TYPE vllm:num_requests_running gauge\n\
        vllm:num_requests_running{worker=\"0000000000000001\",engine=\"0\"} 3.0\n# EOF\n";
    assert!(text.ends_with(own), "{text}");
    let ours = "stator_agent_engine_requests_running{worker=\"0000000000000001\",rank=\"0\"} 3.0\n";
    assert!(text.contains(ours), "{text}");
    assert_eq!(cache.lock().running, 3);
    let asked = asks.recv().await.unwrap();
    assert!(asked.starts_with("GET /prefix/metrics HTTP/1.1\r\n"), "{asked}");
    assert!(asked.contains("\r\nauthorization: Bearer hush\r\n"), "{asked}");
    drop(following);
    until(&metrics, |text| !text.contains("vllm:")).await;
}

#[tokio::test]
async fn nothing_of_the_engines_own_is_shown_where_nobody_wants_it() {
    let (url, answers, _asks) = server().await;
    let (stock, metrics) = (StockMetrics::default(), Metrics::default());
    stock.show(&metrics);
    let mut following = JoinSet::new();
    following.spawn(follow(source(url, 0), vec![shown()], stock));
    answers.send(PAGE.into()).await.unwrap();
    let text = until(&metrics, |text| text.contains("engine_requests_running{")).await;
    assert!(!text.contains("vllm:"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_page_that_is_missed_again_and_again_is_shown_no_more() {
    let (stock, metrics) = (StockMetrics::default(), Metrics::default());
    stock.show(&metrics);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap()).into();
    // Nobody listens there any more.
    drop(listener);
    let mut following = JoinSet::new();
    following.spawn(follow(source(url, 1 << 20), vec![shown()], stock.clone()));
    let text = "# TYPE vllm:x gauge\nvllm:x 1\n".to_owned();
    stock.show_own(Families { text, left_out: 0 });
    for missed in 1..=MISSED_MAX.into() {
        assert!(metrics.render().contains("vllm:x"));
        while stock.pages_failed.get() < missed {
            tokio::time::sleep(INTERVAL).await;
        }
    }
    assert!(!metrics.render().contains("vllm:x"));
}
