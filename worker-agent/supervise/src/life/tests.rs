use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

const SECOND: Duration = Duration::from_secs(1);

/// A life on a clock that the test moves.
struct Bed {
    life: Life,
    now: Instant,
}

impl Bed {
    /// One whose process was just started.
    fn starting(policy: Policy) -> Self {
        let mut bed = Self { life: Life::new(policy), now: Instant::now() };
        assert_eq!(bed.step(Input::Due).action, Some(Action::Start));
        bed.step(Input::Started { pid: 1 });
        bed
    }

    /// One that serves.
    fn ready(policy: Policy) -> Self {
        let mut bed = Self::starting(policy);
        assert_eq!(bed.look(Health::Ready, []).event, Some(Event::Ready));
        bed
    }

    fn step(&mut self, input: Input) -> Step {
        self.life.step(self.now, input)
    }

    fn look(&mut self, health: Health, progress: impl IntoIterator<Item = Progress>) -> Step {
        let progress = progress.into_iter().collect();
        self.step(Input::Observed(Observation { health, progress }))
    }

    /// Looks once a second until something happens; returns it, and the seconds it took.
    fn watch(&mut self, health: &Health, progress: &[Progress]) -> (Step, u64) {
        for second in 1..=1000 {
            self.now += SECOND;
            let step = self.look(health.clone(), progress.iter().copied());
            if step != Step::default() {
                return (step, second);
            }
        }
        (Step::default(), 1000)
    }

    /// Ends the process and returns the pause until the next start.
    fn fail(&mut self) -> Option<Duration> {
        let step = self.step(Input::Ended(exit()));
        let Some(Event::Failed { restart_in, .. }) = step.event else { panic!("{step:?}") };
        restart_in
    }

    /// Waits until it is due, and starts it again.
    fn restart(&mut self) {
        self.now = self.life.due().expect("it is started again");
        assert_eq!(self.step(Input::Due).action, Some(Action::Start));
        self.step(Input::Started { pid: 2 });
    }
}

fn exit() -> Cause {
    Cause::Exit { code: 1, last_words: None }
}

fn gone() -> Health {
    Health::Unavailable("503".into())
}

fn stalled(running: u32) -> [Progress; 1] {
    [Progress { running, counter: 7 }]
}

#[test]
fn pauses_double_up_to_their_limit_and_health_makes_them_short_again() {
    let mut bed = Bed::starting(Policy::default());
    let mut pauses = Vec::new();
    for _ in 0..8 {
        pauses.push(bed.fail().unwrap().as_secs());
        bed.restart();
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
    bed.look(Health::Ready, []);
    bed.now += 299 * SECOND;
    assert_eq!(bed.fail(), Some(60 * SECOND));
    bed.restart();
    bed.look(Health::Ready, []);
    bed.now += 300 * SECOND;
    assert_eq!(bed.fail(), Some(SECOND));
}

#[test]
fn health_that_lasted_counts_although_the_end_was_unhealthy() {
    let mut bed = Bed::starting(Policy::default());
    bed.fail();
    bed.restart();
    bed.fail();
    bed.restart();
    bed.look(Health::Ready, []);
    bed.now += 300 * SECOND;
    bed.look(gone(), []);
    assert_eq!(bed.fail(), Some(SECOND));
}

#[test]
fn a_limit_of_restarts_ends_them() {
    let mut bed = Bed::starting(Policy { restarts: Some(2), ..Policy::default() });
    for _ in 0..2 {
        assert!(bed.fail().is_some());
        bed.restart();
    }
    assert_eq!(bed.fail(), None);
    assert!(bed.life.is_over());
    assert_eq!(bed.life.due(), None);
}

#[test]
fn requests_without_a_step_are_a_hang() {
    let mut bed = Bed::ready(Policy::default());
    let (step, seconds) = bed.watch(&Health::Ready, &stalled(3));
    assert_eq!((step.action, seconds), (Some(Action::Kill), 121));
    let step = bed.step(Input::Ended(Cause::Signal { signal: 9, last_words: None }));
    let Some(Event::Failed { cause: Cause::Hung { running: 3, stalled }, .. }) = step.event else {
        panic!("{step:?}");
    };
    assert_eq!(stalled, 120 * SECOND);
}

#[test]
fn neither_idleness_nor_ignorance_nor_steps_are_a_hang() {
    for progress in [&stalled(0)[..], &[]] {
        let mut bed = Bed::ready(Policy::default());
        assert_eq!(bed.watch(&Health::Ready, progress).0, Step::default(), "{progress:?}");
    }
    let mut bed = Bed::ready(Policy::default());
    for counter in 0..20 {
        bed.now += 60 * SECOND;
        let progress = Some(Progress { running: 1, counter });
        assert_eq!(bed.look(Health::Ready, progress), Step::default());
    }
}

#[test]
fn a_rank_that_hangs_is_found_behind_others_that_work() {
    let mut bed = Bed::ready(Policy::default());
    let mut killed = None;
    for second in 1..=200 {
        bed.now += SECOND;
        // The second begins to hang after a minute; the third has nothing to do.
        let ranks = [(5, second), (2, second.min(60)), (0, 0)];
        let ranks = ranks.map(|(running, counter)| Progress { running, counter });
        let step = bed.look(Health::Ready, ranks);
        if step.action.is_some() {
            killed = Some((step.action, second));
            break;
        }
    }
    assert_eq!(killed, Some((Some(Action::Kill), 180)));
    let State::Killing { cause: Cause::Hung { running: 2, stalled }, .. } = bed.life.state() else {
        panic!("{:?}", bed.life)
    };
    assert_eq!(*stalled, 120 * SECOND);
}

#[test]
fn time_in_which_nobody_looked_is_no_hang() {
    let mut bed = Bed::ready(Policy::default());
    bed.look(Health::Ready, stalled(1));
    bed.now += 3600 * SECOND;
    assert_eq!(bed.look(Health::Ready, stalled(1)), Step::default());
}

#[test]
fn an_engine_that_lost_its_health_is_told_at_once_and_killed_later() {
    let mut bed = Bed::ready(Policy::default());
    let reason = "503".to_owned();
    assert_eq!(bed.look(gone(), []), Step::event(Event::Unhealthy { reason }));
    let (step, seconds) = bed.watch(&gone(), &[]);
    assert_eq!((step.action, seconds), (Some(Action::Kill), 15));
    let step = bed.step(Input::Ended(exit()));
    assert!(matches!(step.event, Some(Event::Failed { cause: Cause::HalfDead { .. }, .. })));
}

#[test]
fn an_engine_that_recovers_serves_again() {
    let mut bed = Bed::ready(Policy::default());
    bed.look(gone(), []);
    bed.now += 14 * SECOND;
    bed.look(gone(), []);
    assert_eq!(bed.look(Health::Ready, []).event, Some(Event::Ready));
    // What was before the recovery does not count.
    bed.look(gone(), []);
    assert_eq!(bed.watch(&gone(), &[]).1, 15);
}

#[test]
fn a_start_that_takes_too_long_ends_with_the_phase_it_reached() {
    let mut bed = Bed::starting(Policy::default());
    bed.step(Input::Progressed(Phase::Compiling));
    assert_eq!(bed.step(Input::Progressed(Phase::LoadingWeights)), Step::default());
    assert_eq!(bed.watch(&gone(), &[]).0, Step::default(), "no health is expected yet");
    bed.now = bed.life.due().unwrap();
    assert_eq!(bed.step(Input::Due).action, Some(Action::Kill));
    let State::Killing { cause, .. } = bed.life.state() else { panic!("{:?}", bed.life) };
    assert_eq!(cause.to_string(), "not ready after 1800s, in phase compiling: 503");
}

#[test]
fn an_engine_is_asked_to_end_and_killed_only_after_the_grace() {
    let mut bed = Bed::ready(Policy::default());
    let grace = 20 * SECOND;
    assert_eq!(bed.step(Input::Stop { grace }), Step::action(Action::Terminate));
    assert_eq!(bed.look(gone(), []), Step::default(), "what ends need not be healthy");
    bed.now += 19 * SECOND;
    assert_eq!(bed.step(Input::Due), Step::default());
    bed.now += SECOND;
    assert_eq!(bed.step(Input::Due), Step::action(Action::Kill));
    let stopped = Event::Stopped { by_itself: false };
    assert_eq!(bed.step(Input::Ended(exit())), Step::event(stopped));
    assert!(bed.life.is_over());
}

#[test]
fn a_process_that_no_kill_ends_is_given_up() {
    let mut bed = Bed::ready(Policy::default());
    bed.look(gone(), []);
    bed.watch(&gone(), &[]);
    bed.now += 59 * SECOND;
    assert_eq!(bed.step(Input::Due), Step::default());
    bed.now = bed.life.due().unwrap();
    let Some(Event::Failed { cause, restart_in: None }) = bed.step(Input::Due).event else {
        panic!("{:?}", bed.life)
    };
    assert_eq!(
        cause.to_string(),
        "half dead: not healthy for 15s: 503; killed, and not gone after 60s"
    );
    assert!(bed.life.is_over());
    assert_eq!(bed.step(Input::Ended(exit())), Step::default(), "it is too late");

    let mut bed = Bed::ready(Policy::default());
    bed.step(Input::Stop { grace: SECOND });
    bed.now += SECOND;
    assert_eq!(bed.step(Input::Due), Step::action(Action::Kill));
    bed.now += 60 * SECOND;
    assert_eq!(bed.step(Input::Due), Step::event(Event::Stopped { by_itself: false }));
    assert!(bed.life.is_over());
}

#[test]
fn an_engine_that_waits_for_its_restart_stops_at_once() {
    let mut bed = Bed::starting(Policy::default());
    bed.fail();
    let stopped = Event::Stopped { by_itself: true };
    assert_eq!(bed.step(Input::Stop { grace: SECOND }), Step::event(stopped));
}

#[derive(Clone, Debug)]
enum Move {
    Wait(u64),
    Look(bool, u32, u64),
    Phase(bool),
    End,
    Stop(u64),
}

fn any_move() -> impl Strategy<Value = Move> {
    prop_oneof![
        (0..400u64).prop_map(Move::Wait),
        (any::<bool>(), 0..2u32, 0..2u64).prop_map(|(h, r, c)| Move::Look(h, r, c)),
        any::<bool>().prop_map(Move::Phase),
        Just(Move::End),
        (0..30u64).prop_map(Move::Stop),
    ]
}

proptest! {
    /// Whatever happens, in whatever order: a process is started only where none runs, signalled
    /// only while one does, and nothing follows the end; at the end none runs but one that a kill
    /// did not end in time. The model is whether a process runs, and when it was killed.
    #[test]
    fn there_is_at_most_one_process(moves in vec(any_move(), 0..200), restarts in 0..5u32) {
        let policy = Policy { restarts: Some(restarts), ..Policy::default() };
        let (mut life, mut now, mut runs) = (Life::new(policy), Instant::now(), false);
        let (mut starts, mut stopping, mut killed) = (0, false, None);
        for next in moves {
            let over = life.is_over();
            let input = match next {
                Move::Wait(seconds) => {
                    now += Duration::from_secs(seconds);
                    Input::Due
                }
                Move::Look(ready, running, counter) => Input::Observed(Observation {
                    health: if ready { Health::Ready } else { gone() },
                    progress: vec![Progress { running, counter }],
                }),
                Move::Phase(serving) => {
                    Input::Progressed(if serving { Phase::Serving } else { Phase::Compiling })
                }
                Move::End if !runs => continue,
                Move::End => {
                    runs = false;
                    Input::Ended(exit())
                }
                Move::Stop(seconds) => {
                    stopping = true;
                    Input::Stop { grace: Duration::from_secs(seconds) }
                }
            };
            let step = life.step(now, input);
            match step.action {
                Some(Action::Start) => {
                    prop_assert!(!runs && !stopping, "{life:?}");
                    (runs, killed) = (true, None);
                    starts += 1;
                    let told = Event::Started { pid: 1, generation: starts };
                    prop_assert_eq!(life.step(now, Input::Started { pid: 1 }), Step::event(told));
                }
                Some(action @ (Action::Terminate | Action::Kill)) => {
                    prop_assert!(runs, "{life:?}");
                    killed = killed.or((action == Action::Kill).then_some(now));
                }
                None => {}
            }
            if over && !matches!(step.event, Some(Event::Stopped { .. })) {
                prop_assert_eq!(step, Step::default());
            }
            let lost = killed.is_some_and(|killed| now - killed >= Duration::from_secs(60));
            prop_assert!(!runs || !life.is_over() || lost, "{life:?}");
        }
    }
}
