//! Cost of reading metrics pages: `cargo bench -p stator-epp-signals`.
//!
//! The first lines are the reader alone, on one page. The others are the scraper's share of a core
//! (from `/proc/self/stat`, user and system) while it asks 100 endpoints every 50 ms; they are
//! served by a process of its own, with pages as vLLM makes them: whole, or only the lines that
//! were asked for.

use stator_epp_scheduler::{Endpoint, EngineLoad, Equipment, Roles};
use stator_epp_signals::scrape::{LoadReader, Mappings, ScrapeSettings, Scraper};
use stator_epp_signals::{LoadSink, SignalMetrics};
use stator_protos::load::Load;
use stator_protos::{Generation, WorkerId, WorkerRank};
use std::hint::black_box;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const ENDPOINTS: u16 = 100;
const MEASURE: Duration = Duration::from_secs(10);
/// The kernel counts in these.
const TICKS_PER_S: f64 = 100.0;

/// A page of 40 KB: a captured one, and histograms as a busy engine has them.
fn page() -> String {
    let mut page =
        include_str!("../../../crates/engines/signals/fixtures/vllm-0.32.0-dp.txt").to_owned();
    let mut bucket = 0;
    while page.len() < 40 << 10 {
        bucket += 1;
        page.push_str(&format!(
            "vllm:request_time_bucket{{engine=\"0\",le=\"{bucket}\",model_name=\"tiny\"}} 17.0\n"
        ));
    }
    page
}

fn needed(page: &str) -> String {
    let names = ["vllm:num_requests_", "vllm:kv_cache_usage_perc", "vllm:cache_config_info"];
    let lines = page.lines().filter(|line| names.iter().any(|name| line.starts_with(name)));
    lines.map(|line| format!("{line}\n")).collect()
}

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("serve-whole") => serve(&page()),
        Some("serve-needed") => serve(&needed(&page())),
        _ => {
            measure_reader("whole page", &page());
            measure_reader("needed lines", &needed(&page()));
            measure_scraper("serve-whole");
            measure_scraper("serve-needed");
        }
    }
}

fn measure_reader(name: &str, page: &str) {
    let mut reader =
        LoadReader::new(Mappings::default().of(&endpoint(SocketAddr::from(([0; 4], 1)))));
    let (start, mut runs) = (Instant::now(), 0u32);
    while start.elapsed() < Duration::from_millis(500) {
        let _ = black_box(reader.read(black_box(page.as_bytes())));
        runs += 1;
    }
    let ns = start.elapsed().as_nanos() / u128::from(runs);
    println!("reader, {name} ({} bytes): {ns} ns", page.len());
}

fn endpoint(address: SocketAddr) -> Endpoint {
    Endpoint {
        worker: WorkerRank { worker: WorkerId(address.port().into()), rank: 0 },
        uid: "uid".into(),
        name: "pod-rank-0".into(),
        pod: "pod".into(),
        namespace: "default".into(),
        address,
        labels: Arc::default(),
        roles: Roles::default(),
    }
}

#[derive(Default)]
struct Count(AtomicU64);

impl LoadSink for Count {
    fn load(&self, _: WorkerRank, load: &EngineLoad) {
        black_box(load);
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn load_unknown(&self, worker: WorkerRank) {
        println!("{worker} is unknown");
    }
    fn agent_equipment(&self, _: WorkerRank, _: Equipment) {}
    fn agent_load(&self, _: WorkerRank, _: Generation, _: Load) {}
    fn accepting(&self, _: WorkerRank, _: bool) {}
}

fn measure_scraper(mode: &str) {
    let program = std::env::current_exe().expect("this program");
    let mut server =
        Command::new(program).arg(mode).stdout(Stdio::piped()).spawn().expect("a server");
    let lines = BufReader::new(server.stdout.take().expect("its output")).lines();
    let endpoints: Vec<_> = lines
        .take(ENDPOINTS.into())
        .map(|line| line.expect("a line").parse().expect("an address"))
        .map(|address| Arc::new(endpoint(address)))
        .collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let sink = Arc::new(Count::default());
        let (settings, mappings) = (ScrapeSettings::default(), Mappings::default());
        let scraper = Scraper::new(settings, mappings, sink.clone(), SignalMetrics::default());
        scraper.follow(&endpoints);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (pages, cpu, start) = (sink.0.load(Ordering::Relaxed), cpu_s(), Instant::now());
        tokio::time::sleep(MEASURE).await;
        let wall = start.elapsed().as_secs_f64();
        let pages = (sink.0.load(Ordering::Relaxed) - pages) as f64 / wall;
        let share = 100.0 * (cpu_s() - cpu) / wall;
        println!(
            "scraper, {ENDPOINTS} endpoints, {mode}: {pages:.0} pages/s, {share:.1} % of a core"
        );
    });
    server.kill().expect("it runs");
    server.wait().expect("it ends");
}

/// Processor time of this process so far.
fn cpu_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let fields = stat.rsplit(')').next().expect("fields after the name");
    // Fields 14 and 15 of the line are the 12th and 13th after the name.
    let ticks = fields.split_whitespace().skip(11).take(2);
    ticks.map(|ticks| ticks.parse::<f64>().expect("a number")).sum::<f64>() / TICKS_PER_S
}

/// Serves one page on every port, and tells the addresses.
fn serve(page: &str) {
    let length = page.len();
    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{page}");
    let answer: Arc<str> = answer.into();
    let mut threads = Vec::new();
    for _ in 0..ENDPOINTS {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        println!("{}", listener.local_addr().expect("an address"));
        let answer = answer.clone();
        threads.push(std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                answer_all(stream, answer.as_bytes());
            }
        }));
    }
    threads.into_iter().for_each(|thread| thread.join().expect("it never ends"));
}

fn answer_all(mut stream: TcpStream, answer: &[u8]) {
    let mut request = [0; 4096];
    while stream.read(&mut request).is_ok_and(|size| size > 0) {
        if stream.write_all(answer).is_err() {
            return;
        }
    }
}
