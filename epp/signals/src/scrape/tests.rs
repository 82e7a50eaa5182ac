//! The scraper against scripted servers on free ports.

use super::*;
use crate::testkit::DEADLINE;
use stator_epp_scheduler::{EngineLoad, Equipment, Roles};
use stator_protos::load::Load;
use stator_protos::{Generation, WorkerId};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

pub(crate) fn endpoint(address: &str, labels: &[(&str, &str)]) -> Endpoint {
    let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    let address: SocketAddr = address.parse().expect("an address");
    Endpoint {
        worker: WorkerRank { worker: WorkerId(address.port().into()), rank: 0 },
        uid: "uid".into(),
        name: "pod-rank-0".into(),
        pod: "pod".into(),
        namespace: "default".into(),
        address,
        labels: Arc::new(labels.collect()),
        roles: Roles::default(),
    }
}

/// What the scraper said.
#[derive(Debug, PartialEq)]
enum Said {
    Load(WorkerRank, u32),
    Accepting(WorkerRank, bool),
    Unknown(WorkerRank),
}

struct Ear(mpsc::UnboundedSender<Said>);

impl LoadSink for Ear {
    fn load(&self, worker: WorkerRank, load: &EngineLoad) {
        let _ = self.0.send(Said::Load(worker, load.running));
    }
    fn load_unknown(&self, worker: WorkerRank) {
        let _ = self.0.send(Said::Unknown(worker));
    }
    fn agent_equipment(&self, _: WorkerRank, _: Equipment) {
        panic!("nobody here has an agent");
    }
    fn agent_load(&self, _: WorkerRank, _: Generation, _: Load) {
        panic!("nobody here has an agent");
    }
    fn accepting(&self, worker: WorkerRank, accepting: bool) {
        let _ = self.0.send(Said::Accepting(worker, accepting));
    }
}

/// Waits for the next thing said that `wanted` accepts.
async fn heard(ear: &mut mpsc::UnboundedReceiver<Said>, wanted: impl Fn(&Said) -> bool) {
    let listening = async { while !wanted(&ear.recv().await.expect("the scraper lives")) {} };
    tokio::time::timeout(DEADLINE, listening).await.expect("waited in vain");
}

fn scraper(
    change: impl FnOnce(&mut ScrapeSettings),
) -> (Scraper, mpsc::UnboundedReceiver<Said>, SignalMetrics) {
    let mut settings =
        ScrapeSettings { interval: Duration::from_millis(1), ..ScrapeSettings::default() };
    change(&mut settings);
    let (sender, ear) = mpsc::unbounded_channel();
    let metrics = SignalMetrics::default();
    let scraper =
        Scraper::new(settings, Mappings::default(), Arc::new(Ear(sender)), metrics.clone());
    (scraper, ear, metrics)
}

fn page(running: u32) -> String {
    format!(
        "# HELP vllm:num_requests_running Running\nvllm:num_requests_running{{engine=\"0\"}} {running}\n\
        vllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0\n"
    )
}

pub(crate) fn with_length(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn chunked(body: &str) -> String {
    let (one, two) = body.split_at(body.len() / 2);
    let chunk = |part: &str| format!("{:x}\r\n{part}\r\n", part.len());
    let (one, two) = (chunk(one), chunk(two));
    format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{one}{two}0\r\n\r\n")
}

/// Reads a request; its first line. `None` when the other side has closed.
async fn request(stream: &mut TcpStream) -> Option<String> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        if stream.read_buf(&mut request).await.ok()? == 0 {
            return None;
        }
    }
    let text = String::from_utf8(request).expect("ASCII");
    text.lines().next().map(str::to_owned)
}

/// A server that answers every request, on any number of connections, as `answer` says.
pub(crate) async fn server(
    answer: impl Fn(&str) -> Option<String> + Clone + Send + 'static,
) -> Arc<Endpoint> {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let answer = answer.clone();
            tokio::spawn(async move {
                while let Some(line) = request(&mut stream).await {
                    let Some(text) = answer(&line) else { return std::future::pending().await };
                    if stream.write_all(text.as_bytes()).await.is_err() {
                        return;
                    }
                    if text.contains("connection: close") {
                        return;
                    }
                }
            });
        }
    });
    Arc::new(endpoint(&address.to_string(), &[]))
}

#[tokio::test]
async fn pages_come_in_every_form_that_servers_send() {
    let forms: [fn(&str) -> String; 3] = [with_length, chunked, |body| {
        format!("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{body}")
    }];
    for form in forms {
        let server = server(move |_| Some(form(&page(3)))).await;
        let (scraper, mut ear, _) = scraper(|_| ());
        scraper.follow(std::slice::from_ref(&server));
        for _ in 0..3 {
            heard(&mut ear, |said| *said == Said::Load(server.worker, 3)).await;
        }
    }
}

#[tokio::test]
async fn only_what_is_needed_is_asked_for_where_the_server_can() {
    let narrow = server(|line| {
        let asked = "GET /metrics?name%5B%5D=vllm:cache_config_info&\
            name%5B%5D=vllm:engine_sleep_state&name%5B%5D=vllm:gpu_cache_usage_perc&\
            name%5B%5D=vllm:kv_cache_usage_perc&name%5B%5D=vllm:lora_requests_info&\
            name%5B%5D=vllm:num_requests_running&name%5B%5D=vllm:num_requests_waiting HTTP/1.1";
        assert_eq!(line, asked);
        Some(with_length(&page(1)))
    })
    .await;
    let (scraper, mut ear, _) = scraper(|_| ());
    scraper.follow(std::slice::from_ref(&narrow));
    heard(&mut ear, |said| *said == Said::Load(narrow.worker, 1)).await;
}

#[tokio::test]
async fn a_server_that_cannot_is_asked_for_the_whole_page() {
    for refusal in [with_length(""), "HTTP/1.1 400 No\r\ncontent-length: 0\r\n\r\n".into()] {
        let whole = server(move |line| match line {
            "GET /metrics HTTP/1.1" => Some(with_length(&page(2))),
            _ => Some(refusal.clone()),
        })
        .await;
        let (scraper, mut ear, metrics) = scraper(|_| ());
        scraper.follow(std::slice::from_ref(&whole));
        for _ in 0..2 {
            heard(&mut ear, |said| *said == Said::Load(whole.worker, 2)).await;
        }
        assert_eq!((metrics.pages_failed.get(), metrics.pages_incomplete.get()), (0, 0));
    }
}

#[tokio::test]
async fn a_silent_endpoint_delays_no_other_and_becomes_unknown() {
    let silent = server(|_| None).await;
    let quick = server(|_| Some(with_length(&page(1)))).await;
    let (scraper, mut ear, metrics) = scraper(|settings| {
        settings.timeout = Duration::from_millis(20);
        settings.staleness = Duration::from_millis(40);
    });
    scraper.follow(&[silent.clone(), quick.clone()]);
    heard(&mut ear, |said| *said == Said::Load(quick.worker, 1)).await;
    heard(&mut ear, |said| *said == Said::Unknown(silent.worker)).await;
    heard(&mut ear, |said| *said == Said::Load(quick.worker, 1)).await;
    assert_eq!(metrics.stale.get(), 1);
}

#[tokio::test]
async fn an_engine_that_sleeps_takes_nothing() {
    let awake = Arc::new(AtomicBool::new(true));
    let answers = awake.clone();
    let sleeper = server(move |_| {
        let awake = u8::from(answers.load(Ordering::Relaxed));
        let state = "vllm:engine_sleep_state{engine=\"0\",sleep_state=";
        let states = format!("{state}\"awake\"}} {awake}\n{state}\"discard_all\"}} 0\n");
        Some(with_length(&(page(1) + &states)))
    })
    .await;
    let (scraper, mut ear, _) = scraper(|_| ());
    scraper.follow(std::slice::from_ref(&sleeper));
    for now in [true, false, true] {
        awake.store(now, Ordering::Relaxed);
        heard(&mut ear, |said| match said {
            Said::Accepting(_, accepting) => *accepting == now,
            _ => false,
        })
        .await;
    }
}

#[tokio::test]
async fn a_half_broken_page_is_no_report() {
    let broken = server(|_| Some(with_length("vllm:num_requests_running 1\n"))).await;
    let (scraper, mut ear, metrics) = scraper(|settings| settings.staleness = Duration::ZERO);
    scraper.follow(std::slice::from_ref(&broken));
    heard(&mut ear, |said| *said == Said::Unknown(broken.worker)).await;
    assert!(metrics.pages_incomplete.get() > 0);
}

#[tokio::test]
async fn a_page_above_the_limit_is_refused() {
    let forms: [fn(&str) -> String; 3] = [with_length, chunked, |body| {
        format!("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{body}")
    }];
    for form in forms {
        let large = server(move |_| Some(form(&"x".repeat(200_000)))).await;
        let (scraper, mut ear, metrics) = scraper(|settings| {
            settings.page_bytes_max = 50_000;
            settings.staleness = Duration::ZERO;
        });
        scraper.follow(std::slice::from_ref(&large));
        heard(&mut ear, |said| *said == Said::Unknown(large.worker)).await;
        assert!(metrics.pages_failed.get() > 0);
    }
}

/// Source: `TestRuntimePollingEndpointLifecycle` of the llm-d router.
#[tokio::test]
async fn who_is_not_followed_any_more_is_not_asked() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counts = asked.clone();
    let one = server(move |_| {
        counts.fetch_add(1, Ordering::Relaxed);
        Some(with_length(&page(1)))
    })
    .await;
    let two = server(|_| Some(with_length(&page(2)))).await;
    let (scraper, mut ear, metrics) = scraper(|_| ());
    scraper.follow(std::slice::from_ref(&one));
    heard(&mut ear, |said| *said == Said::Load(one.worker, 1)).await;
    scraper.follow(std::slice::from_ref(&two));
    assert_eq!(metrics.scraped.get(), 1);
    let before = asked.load(Ordering::Relaxed);
    heard(&mut ear, |said| *said == Said::Load(two.worker, 2)).await;
    // What was said of the first before it left may still be in the channel, and no more.
    while ear.try_recv().is_ok() {}
    for _ in 0..20 {
        heard(&mut ear, |said| {
            assert_eq!(*said, Said::Load(two.worker, 2));
            true
        })
        .await;
    }
    // As may a question to it be on its way.
    assert!(asked.load(Ordering::Relaxed) <= before + 1);
}

/// Source: `TestRuntimePollingHTTPError` of the llm-d router.
#[tokio::test]
async fn a_page_with_another_status_is_no_report_and_the_next_is_asked_for() {
    let fails = Arc::new(AtomicBool::new(true));
    let answers = fails.clone();
    let server = server(move |_| {
        let whole = with_length(&page(4));
        let failed = whole.replace("200 OK", "500 Internal Server Error");
        Some(if answers.load(Ordering::Relaxed) { failed } else { whole })
    })
    .await;
    let (scraper, mut ear, metrics) = scraper(|settings| settings.staleness = Duration::ZERO);
    scraper.follow(std::slice::from_ref(&server));
    heard(&mut ear, |said| {
        assert_eq!(*said, Said::Unknown(server.worker));
        true
    })
    .await;
    assert!(metrics.pages_failed.get() > 0 && metrics.pages.get() == 0);
    fails.store(false, Ordering::Relaxed);
    heard(&mut ear, |said| *said == Said::Load(server.worker, 4)).await;
}

#[test]
fn a_pod_label_names_the_engine() {
    let mappings = Mappings::default();
    let engine =
        |labels: &[(&str, &str)]| mappings.engine(&endpoint("10.0.0.1:80", labels)).to_owned();
    assert_eq!(engine(&[]), "vllm");
    assert_eq!(engine(&[("llm-d.ai/engine-type", "sglang")]), "sglang");
    let alias = "inference.networking.k8s.io/engine-type";
    assert_eq!(engine(&[(alias, "trtllm-serve")]), "trtllm-serve");
    assert_eq!(engine(&[(alias, "triton"), ("llm-d.ai/engine-type", "sglang")]), "sglang");
    assert_eq!(engine(&[("llm-d.ai/engine-type", "abacus")]), "vllm");
}

#[test]
fn labels_say_where_a_clusters_page_is() {
    let of = |by_labels, labels: &[(&str, &str)]| {
        let settings = ScrapeSettings { by_labels, ..ScrapeSettings::default() };
        settings.page_of(&endpoint("10.0.0.1:80", labels)).to_string()
    };
    let labels = [("metricsAddress", "10.0.0.9"), ("metricsPort", "9090")];
    assert_eq!(of(true, &labels), "10.0.0.9:9090");
    assert_eq!(of(true, &labels[1..]), "10.0.0.1:9090");
    assert_eq!(of(true, &[("metricsPort", "http"), ("metricsAddress", "host")]), "10.0.0.1:80");
    assert_eq!(of(false, &labels), "10.0.0.1:80");
}
