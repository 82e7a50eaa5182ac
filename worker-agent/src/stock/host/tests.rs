use super::super::testkit::*;
use super::*;
use stator_supervise::{EngineCommand, Policy, Supervisor};

const LIMITS: Limits = Limits {
    start: Duration::from_secs(60),
    hang: Duration::from_secs(20),
    stop: Duration::from_secs(5),
};

/// News as tests compare it.
#[derive(Debug, PartialEq)]
enum Change {
    Up,
    Down(&'static str, String),
    Ended(&'static str),
    Over(String),
}

async fn next(host: &mut Host) -> Option<Change> {
    Some(match host.next().await? {
        News::Up(_) => Change::Up,
        News::Down(End { cause, why }) => Change::Down(cause, why),
        News::Ended(cause) => Change::Ended(cause),
        News::Over(error) => Change::Over(error.to_string()),
    })
}

fn attach(engine: &Arc<Scripted>) -> (Host, Arc<super::super::tally::Tally>) {
    attach_with(engine, None)
}

fn attach_with(
    engine: &Arc<Scripted>,
    canary_idle: Option<Duration>,
) -> (Host, Arc<super::super::tally::Tally>) {
    let (probe, tally) = (engine.probe(canary_idle), Arc::default());
    probe.tallies.set(vec![Arc::clone(&tally)]).unwrap();
    (Host::start(None, Arc::new(probe), LIMITS), tally)
}

#[tokio::test(start_paused = true)]
async fn an_attached_engine_that_is_ill_is_down_until_it_serves_again() {
    let engine = Scripted::new([]);
    let (mut host, _) = attach(&engine);
    assert_eq!(next(&mut host).await, Some(Change::Up));
    *engine.health.lock() = Checkup::Ill;
    assert_eq!(next(&mut host).await, Some(Change::Down("unhealthy", "ill".into())));
    assert_eq!(next(&mut host).await, Some(Change::Ended("unhealthy")));
    let asked = engine.asks.borrow().len();
    *engine.health.lock() = Checkup::Well;
    assert_eq!(next(&mut host).await, Some(Change::Up));
    // A token is the proof of it.
    assert_eq!(engine.asks.borrow().len(), asked + 1);
}

#[tokio::test(start_paused = true)]
async fn one_bad_answer_ends_no_life_and_a_death_is_told_within_a_second() {
    let engine = Scripted::new([]);
    let (mut host, _) = attach(&engine);
    assert_eq!(next(&mut host).await, Some(Change::Up));
    for _ in 0..3 {
        *engine.health.lock() = Checkup::IllFor(1);
        assert!(tokio::time::timeout(INTERVAL * 4, host.next()).await.is_err());
    }
    let died = Instant::now();
    *engine.health.lock() = Checkup::Ill;
    assert!(matches!(next(&mut host).await, Some(Change::Down(..))));
    assert!(died.elapsed() <= Duration::from_secs(1), "{:?}", died.elapsed());
}

#[tokio::test(start_paused = true)]
async fn looks_go_on_while_a_canary_is_awaited() {
    let engine = Scripted::new([vec![last(1)], vec![Step::Never]]);
    let idle = Duration::from_secs(30);
    let (mut host, _) = attach_with(&engine, Some(idle));
    assert_eq!(next(&mut host).await, Some(Change::Up));
    assert!(tokio::time::timeout(idle + INTERVAL * 2, host.next()).await.is_err());
    engine.runs(1).await;
    let died = Instant::now();
    *engine.health.lock() = Checkup::Ill;
    assert_eq!(next(&mut host).await, Some(Change::Down("unhealthy", "ill".into())));
    assert!(died.elapsed() <= Duration::from_secs(1), "{:?}", died.elapsed());
    assert_eq!(next(&mut host).await, Some(Change::Ended("unhealthy")));
    // Nobody waits for that token any more.
    engine.runs(0).await;
    *engine.health.lock() = Checkup::Well;
    assert_eq!(next(&mut host).await, Some(Change::Up));
}

#[tokio::test(start_paused = true)]
async fn a_canary_without_a_token_ends_a_life() {
    let engine = Scripted::new([vec![last(1)], vec![Step::Never]]);
    let (mut host, _) = attach_with(&engine, Some(Duration::from_secs(30)));
    assert_eq!(next(&mut host).await, Some(Change::Up));
    let why = "a canary failed: no token within 60 s";
    assert_eq!(next(&mut host).await, Some(Change::Down("unhealthy", why.into())));
    assert_eq!(next(&mut host).await, Some(Change::Ended("unhealthy")));
    assert_eq!(next(&mut host).await, Some(Change::Up));
}

#[tokio::test(start_paused = true)]
async fn an_attached_engine_that_never_serves_is_given_up() {
    let engine = Scripted::new([]);
    *engine.health.lock() = Checkup::Ill;
    let (mut host, _) = attach(&engine);
    let why = "the engine does not serve after 60 s: ill";
    assert_eq!(next(&mut host).await, Some(Change::Over(why.into())));
    assert_eq!(next(&mut host).await, None);
}

#[tokio::test(start_paused = true)]
async fn an_attached_engine_that_served_is_waited_for() {
    let engine = Scripted::new([]);
    let (mut host, _) = attach(&engine);
    assert_eq!(next(&mut host).await, Some(Change::Up));
    *engine.health.lock() = Checkup::Ill;
    assert!(matches!(next(&mut host).await, Some(Change::Down(..))));
    assert_eq!(next(&mut host).await, Some(Change::Ended("unhealthy")));
    assert!(tokio::time::timeout(LIMITS.start * 3, host.next()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn requests_without_a_step_are_a_hang_and_steps_put_it_off() {
    let engine = Scripted::new([]);
    let (mut host, tally) = attach(&engine);
    assert_eq!(next(&mut host).await, Some(Change::Up));
    let mut entry = tally.enter(1);
    for _ in 0..4 {
        assert!(tokio::time::timeout(LIMITS.hang / 2, host.next()).await.is_err());
        entry.tokens(1);
    }
    let why = "1 requests and no step for 20 s";
    assert_eq!(next(&mut host).await, Some(Change::Down("hung", why.into())));
    assert_eq!(next(&mut host).await, Some(Change::Ended("hung")));
    // It answers, so that it has another life.
    assert_eq!(next(&mut host).await, Some(Change::Up));
}

#[tokio::test(start_paused = true)]
async fn one_who_reads_no_news_can_stop_the_watch() {
    let engine = Scripted::new([]);
    let (host, _) = attach(&engine);
    for health in
        [Checkup::Well, Checkup::Ill, Checkup::Well, Checkup::Ill, Checkup::Well, Checkup::Ill]
    {
        *engine.health.lock() = health;
        assert!(tokio::time::timeout(INTERVAL * 4, pending::<()>()).await.is_err());
    }
    assert!(tokio::time::timeout(LIMITS.stop, host.stop()).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_look_from_before_is_not_taken_for_one_from_now() {
    let engine = Scripted::new([]);
    let mut looks = Looks::new(Arc::new(engine.probe(None)));
    *engine.health.lock() = Checkup::Late;
    assert!(tokio::time::timeout(INTERVAL, looks.next(true)).await.is_err());
    *engine.health.lock() = Checkup::Well;
    looks.forget();
    assert!(matches!(looks.next(false).await, Ok(Some(_))));
    assert!(matches!(looks.next(true).await, Ok(None)));
}

fn launch(engine: &Arc<Scripted>, script: &str, restarts: u32) -> Host {
    let policy = Policy {
        pause_min: Duration::from_millis(1),
        restarts: Some(restarts),
        ..Policy::default()
    };
    let args = vec!["-c".into(), script.into()];
    let command = EngineCommand { program: "sh".into(), args, ..EngineCommand::default() };
    let supervisor = Supervisor::new("test", command, policy);
    let home = tempfile::tempdir().unwrap();
    let probe = Arc::new(engine.probe(None));
    Host::start(Some(Launch { supervisor, home }), probe, LIMITS)
}

/// One whose process ends when [`end`] is told of this pipe.
fn launch_mortal(engine: &Arc<Scripted>) -> (Host, tempfile::TempDir) {
    let pipe = tempfile::tempdir().unwrap();
    let ends = pipe.path().join("ends");
    let status = std::process::Command::new("mkfifo").arg(&ends).status().unwrap();
    assert!(status.success(), "{status}");
    (launch(engine, &format!("read -r _ <'{}'; exit 3", ends.display()), 0), pipe)
}

async fn end(pipe: tempfile::TempDir) {
    let write = move || std::fs::write(pipe.path().join("ends"), "now\n");
    tokio::task::spawn_blocking(write).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_process_that_ends_before_it_serves_is_counted_each_time_and_then_given_up() {
    let engine = Scripted::new([]);
    *engine.health.lock() = Checkup::Ill;
    let mut host = launch(&engine, "exit 3", 1);
    assert_eq!(next(&mut host).await, Some(Change::Ended("exit")));
    assert_eq!(next(&mut host).await, Some(Change::Ended("exit")));
    assert!(matches!(next(&mut host).await, Some(Change::Over(_))));
    assert_eq!(next(&mut host).await, None);
}

#[tokio::test]
async fn the_end_of_a_process_is_told_by_itself_and_no_look_is_awaited() {
    let engine = Scripted::new([]);
    let (mut host, pipe) = launch_mortal(&engine);
    assert_eq!(next(&mut host).await, Some(Change::Up));
    // A look that nothing ends would say that it is ill, and nothing of a process.
    *engine.health.lock() = Checkup::Late;
    end(pipe).await;
    assert!(matches!(next(&mut host).await, Some(Change::Down("exit", _))));
    assert_eq!(next(&mut host).await, Some(Change::Ended("exit")));
    assert!(matches!(next(&mut host).await, Some(Change::Over(_))));
}

#[tokio::test]
async fn a_process_that_serves_is_up_and_down_as_it_answers() {
    let engine = Scripted::new([]);
    let mut host = launch(&engine, "exec sleep 1000", 0);
    assert_eq!(next(&mut host).await, Some(Change::Up));
    *engine.health.lock() = Checkup::Ill;
    assert_eq!(next(&mut host).await, Some(Change::Down("unhealthy", "ill".into())));
    *engine.health.lock() = Checkup::Well;
    // What ended the life is known now: not its process.
    assert_eq!(next(&mut host).await, Some(Change::Ended("unhealthy")));
    assert_eq!(next(&mut host).await, Some(Change::Up));
    host.stop().await;
}

#[tokio::test]
async fn a_life_whose_process_ends_later_is_counted_once_under_what_ended_that() {
    let engine = Scripted::new([]);
    let (mut host, pipe) = launch_mortal(&engine);
    assert_eq!(next(&mut host).await, Some(Change::Up));
    *engine.health.lock() = Checkup::Ill;
    assert_eq!(next(&mut host).await, Some(Change::Down("unhealthy", "ill".into())));
    end(pipe).await;
    assert_eq!(next(&mut host).await, Some(Change::Ended("exit")));
    assert!(matches!(next(&mut host).await, Some(Change::Over(_))));
    assert_eq!(next(&mut host).await, None);
}
