use super::*;
use crate::command::EngineCommand;
use crate::life::{Health, Progress};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

/// Longest wait for anything that should happen; only a failing test waits that long.
const DEADLINE: Duration = Duration::from_secs(30);
/// What an engine prints when it serves: the tests' sign that the script has come so far.
const SERVES: &str = "echo Application startup complete";

/// A shell script as an engine.
fn engine(script: &str, policy: Policy) -> Supervisor {
    Supervisor::new("engine-under-test", shell(script), policy)
}

fn shell(script: &str) -> EngineCommand {
    let args = vec!["-c".to_owned(), script.to_owned()];
    EngineCommand { program: "sh".into(), args, ..EngineCommand::default() }
}

/// Another command for each start; after the last there is none.
#[derive(Debug)]
struct Commands(VecDeque<EngineCommand>);

impl Recipe for Commands {
    fn command(&mut self) -> Result<EngineCommand, String> {
        self.0.pop_front().ok_or_else(|| "no 1 free ports".to_owned())
    }
}

/// Starts again without a pause, as often as this.
fn at_once(restarts: u32) -> Policy {
    Policy { pause_min: Duration::ZERO, restarts: Some(restarts), ..Policy::default() }
}

async fn next(engine: &mut Supervisor) -> Option<Event> {
    let event = tokio::time::timeout(DEADLINE, engine.next_event()).await;
    event.unwrap_or_else(|_| panic!("nothing happens to {engine:?}"))
}

/// Waits for an event and ignores those before it.
async fn until(engine: &mut Supervisor, what: impl Fn(&Event) -> bool) -> Event {
    loop {
        let event = next(engine).await.expect("it did not end");
        if what(&event) {
            return event;
        }
    }
}

async fn until_it_serves(engine: &mut Supervisor) {
    until(engine, |event| *event == Event::Progressed(Phase::Serving)).await;
}

async fn failure(engine: &mut Supervisor) -> Cause {
    match until(engine, |event| matches!(event, Event::Failed { .. })).await {
        Event::Failed { cause, .. } => cause,
        other => panic!("{other:?}"),
    }
}

fn look(engine: &mut Supervisor, health: Health) {
    let progress = vec![Progress { running: 1, counter: 1 }];
    engine.observe(Observation { health, progress });
}

/// A pipe with a name, which an engine's script opens: its end is the end of all who hold it.
struct Fifo {
    _directory: TempDir,
    path: PathBuf,
    reader: pipe::Receiver,
}

impl Fifo {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("fifo");
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let reader = pipe::OpenOptions::new().open_receiver(&path).unwrap();
        Self { _directory: directory, path, reader }
    }

    async fn closed(&mut self) {
        let mut read = Vec::new();
        let closed = tokio::time::timeout(DEADLINE, self.reader.read_to_end(&mut read)).await;
        closed.expect("all processes of the engine end").unwrap();
    }
}

/// A script that opens the pipe and starts a process that ignores SIGTERM and holds it as well.
fn family(fifo: &Path, end: &str) -> String {
    let child = "(trap '' TERM; while :; do sleep 1000; done) &";
    format!("exec 3>'{}'; {child} {SERVES}; {end}", fifo.display())
}

#[tokio::test]
async fn a_start_is_told_step_by_step() {
    let script = format!("echo Loading weights took 1 s >&2; {SERVES}; exec sleep 1000");
    let mut engine = engine(&script, Policy::default());
    assert_eq!(*engine.state(), State::New);
    let started = next(&mut engine).await;
    let pid = engine.pid().unwrap();
    assert_eq!(started, Some(Event::Started { pid, generation: 1 }));
    until_it_serves(&mut engine).await;
    look(&mut engine, Health::Ready);
    assert_eq!(next(&mut engine).await, Some(Event::Ready));
    assert!(engine.stop(DEADLINE).await);
    assert_eq!(*engine.state(), State::Stopped);
    assert_eq!((next(&mut engine).await, engine.pid()), (None, None));
}

#[tokio::test]
async fn an_exit_is_explained_and_followed_by_a_new_generation() {
    let mut engine = engine("echo 'ValueError: no such model' >&2; exit 3", at_once(1));
    let last_words = Some("ValueError: no such model".to_owned());
    for (generation, restart_in) in [(1, Some(Duration::ZERO)), (2, None)] {
        let started = next(&mut engine).await;
        assert!(
            matches!(started, Some(Event::Started { generation: g, .. }) if g == generation),
            "{started:?}"
        );
        let cause = Cause::Exit { code: 3, last_words: last_words.clone() };
        assert_eq!(next(&mut engine).await, Some(Event::Failed { cause, restart_in }));
    }
    assert_eq!(next(&mut engine).await, None);
}

#[tokio::test]
async fn a_signal_is_told_apart_from_an_exit() {
    let mut engine = engine("kill -SEGV $$", at_once(0));
    assert_eq!(failure(&mut engine).await, Cause::Signal { signal: 11, last_words: None });
}

#[tokio::test]
async fn memory_of_a_device_that_runs_out_is_known_by_what_is_printed() {
    let script = "echo 'torch.OutOfMemoryError: CUDA out of memory.'; echo bye; exit 1";
    let cause = failure(&mut engine(script, at_once(0))).await;
    assert_eq!(cause.to_string(), "out of memory: torch.OutOfMemoryError: CUDA out of memory.");
}

#[tokio::test]
async fn a_program_that_is_missing_is_tried_again() {
    let missing = EngineCommand { program: "/no/such".into(), ..EngineCommand::default() };
    let mut engine = Supervisor::new("engine-under-test", missing, at_once(1));
    for _ in 0..2 {
        let cause = failure(&mut engine).await;
        assert_eq!(cause.label(), "not_started");
        assert!(cause.to_string().starts_with("cannot be started: \"/no/such\": "), "{cause}");
    }
    assert_eq!(next(&mut engine).await, None);
}

#[tokio::test]
async fn every_start_has_a_command_of_its_own() {
    let commands = ["exit 3", "exit 4"].map(shell);
    let mut engine = Supervisor::new("engine-under-test", Commands(commands.into()), at_once(2));
    for code in [3, 4] {
        assert_eq!(failure(&mut engine).await, Cause::Exit { code, last_words: None });
    }
    let error = "no 1 free ports".to_owned();
    assert_eq!(failure(&mut engine).await, Cause::NotStarted { error });
    assert_eq!(next(&mut engine).await, None);
}

#[tokio::test]
async fn a_file_of_the_engines_is_there_at_its_start_for_its_user_alone() {
    let home = TempDir::new().unwrap();
    let path = home.path().join("key.yaml");
    let script =
        format!("ls -l '{0}' | grep -q '^-rw------- ' && exit $(cat '{0}')", path.display());
    let files = |text: &str| vec![(path.clone(), text.to_owned())];
    let commands = ["7", "8"].map(|text| EngineCommand { files: files(text), ..shell(&script) });
    let mut engine = Supervisor::new("engine-under-test", Commands(commands.into()), at_once(1));
    for code in [7, 8] {
        assert_eq!(failure(&mut engine).await, Cause::Exit { code, last_words: None });
    }
}

#[tokio::test]
async fn a_hang_ends_all_processes() {
    let mut fifo = Fifo::new();
    let policy = Policy { hang_timeout: Duration::from_nanos(1), ..at_once(0) };
    let mut engine = engine(&family(&fifo.path, "wait"), policy);
    until_it_serves(&mut engine).await;
    look(&mut engine, Health::Ready);
    look(&mut engine, Health::Ready);
    assert_eq!(next(&mut engine).await, Some(Event::Ready));
    let told = next(&mut engine).await;
    assert!(matches!(told, Some(Event::Unhealthy { .. })), "{told:?}");
    assert_eq!(failure(&mut engine).await.label(), "hung");
    fifo.closed().await;
}

#[tokio::test]
async fn a_half_dead_engine_is_killed() {
    let policy = Policy { unhealthy_timeout: Duration::from_nanos(1), ..at_once(0) };
    let mut engine = engine(&format!("{SERVES}; exec sleep 1000"), policy);
    until_it_serves(&mut engine).await;
    look(&mut engine, Health::Ready);
    for _ in 0..2 {
        look(&mut engine, Health::Unavailable("503".into()));
    }
    assert_eq!(failure(&mut engine).await.label(), "half_dead");
}

#[tokio::test]
async fn a_start_without_end_is_ended() {
    let policy = Policy { start_timeout: Duration::ZERO, ..at_once(0) };
    let cause = failure(&mut engine("exec sleep 1000", policy)).await;
    assert_eq!(cause.label(), "start_timeout");
}

#[tokio::test]
async fn what_ignores_the_request_to_end_is_killed_after_the_grace() {
    let mut fifo = Fifo::new();
    let script = format!("trap '' TERM; {}", family(&fifo.path, "wait"));
    let mut engine = engine(&script, Policy::default());
    until_it_serves(&mut engine).await;
    assert!(!engine.stop(Duration::from_millis(1)).await);
    fifo.closed().await;
}

#[tokio::test]
async fn the_request_to_end_reaches_every_process() {
    // The one that leads waits for its child, which nobody but the supervisor ends.
    let script = format!("sleep 1000 & trap : TERM; {SERVES}; wait; wait");
    let mut engine = engine(&script, Policy::default());
    until_it_serves(&mut engine).await;
    assert!(engine.stop(DEADLINE).await);
}

#[tokio::test]
async fn nothing_outlives_the_process_that_leads() {
    let mut fifo = Fifo::new();
    let mut engine = engine(&family(&fifo.path, "exit 1"), at_once(0));
    assert_eq!(failure(&mut engine).await.label(), "exit");
    fifo.closed().await;
}

#[tokio::test]
async fn nothing_outlives_the_supervisor() {
    let mut fifo = Fifo::new();
    let mut engine = engine(&family(&fifo.path, "wait"), Policy::default());
    until_it_serves(&mut engine).await;
    drop(engine);
    fifo.closed().await;
}

#[tokio::test]
async fn an_engine_that_waits_for_its_restart_can_be_stopped() {
    let policy = Policy { pause_min: DEADLINE * 100, ..Policy::default() };
    let mut engine = engine("exit 1", policy);
    failure(&mut engine).await;
    assert!(engine.stop(Duration::ZERO).await);
}

/// Names the pipe to the process of the next test.
const FIFO: &str = "STATOR_SUPERVISE_TEST_FIFO";

#[tokio::test]
#[ignore = "a process that another test runs"]
async fn a_process_that_supervises() {
    let fifo = PathBuf::from(std::env::var_os(FIFO).expect("the other test sets it"));
    let fifo = fifo.display();
    // What is the supervisor's own is not there.
    let script = format!("exec 3>'{fifo}'; sleep 1000 & [ -z \"${FIFO}\" ] && {SERVES}; wait");
    let mut engine = engine(&script, Policy::default());
    until_it_serves(&mut engine).await;
    println!("the engine runs");
    next(&mut engine).await;
}

#[tokio::test]
async fn nothing_outlives_a_process_that_was_killed() {
    let mut fifo = Fifo::new();
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture"])
        .arg("supervisor::tests::a_process_that_supervises")
        .env(FIFO, &fifo.path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("the engine runs")));
    process.kill().unwrap();
    process.wait().unwrap();
    fifo.closed().await;
}
