//! Two engines that share requests, of which one dies or stands still: before a request, while
//! prefill runs, once the prompt is computed, while decode streams. A third engine does all of a
//! request, and whatever happens to the two, each request has the answer that this one gives.

use crate::agents::{Agent, Part, answer, completed, stream, streamed, tokens};
use stator_tests::http::Client;
use stator_tests::process::{Process, signal};
use stator_tests::soon;
use stator_tests::stock::{Engine, MODEL, Role};
use tokio::task::JoinHandle;

/// Tokens of an answer that is still on its way when its engines die.
const LONG: u32 = 600;
/// Tokens of its prompt, which leave room for that.
const PROMPT: usize = 1400;
/// What a proxy says where a request goes on elsewhere.
const MOVED: &str = "continuing elsewhere";

/// A prefill and a decode worker, and one that does without them.
pub(crate) struct Three {
    pub(crate) client: Client,
    pub(crate) proxy: Process,
    pub(crate) prefill: Agent,
    pub(crate) decode: Agent,
    pub(crate) alone: Agent,
}

impl Three {
    /// A request of a prompt, on its way, and the answer that is right.
    async fn ask(&self, prompt: Vec<u32>, max_tokens: u32) -> (JoinHandle<Vec<u32>>, Vec<u32>) {
        let expected = self.alone.answers(&prompt, max_tokens).await;
        let client = self.client.clone();
        let asked = async move { answer(&completed(&client, MODEL, &prompt, max_tokens).await).0 };
        (tokio::spawn(asked), expected)
    }

    /// Waits until the two share requests, again or still.
    async fn share_requests(&self) {
        self.shares_requests(&self.client, &self.decode).await;
    }

    /// Waits until a decode worker shares requests of a client.
    async fn shares_requests(&self, client: &Client, decode: &Agent) {
        let before = decode.prefills("prefill_worker").await;
        soon("a request that two share", async {
            for seed in 9000.. {
                let prompt = tokens(seed, 100);
                let (got, _) = answer(&completed(client, MODEL, &prompt, 4).await);
                assert_eq!(got, self.alone.answers(&prompt, 4).await);
                if decode.prefills("prefill_worker").await > before {
                    break;
                }
            }
        })
        .await;
    }

    async fn have_released_all(&self) {
        self.prefill.has_released_all().await;
        self.decode.has_released_all().await;
    }
}

/// The other one waits for it, until nobody does any more.
pub(crate) async fn half_a_pair_is_given_up_in_time(three: &Three) {
    three.share_requests().await;
    let given_up = three.decode.prefills("nobody").await;
    for (n, still) in (1..).zip([&three.prefill, &three.decode]) {
        let core = still.core();
        signal(core, "STOP");
        let (asked, expected) = three.ask(tokens(60 + n, 300), 8).await;
        assert_eq!(asked.await.unwrap(), expected, "{}", three.decode.process.log());
        assert_eq!(three.decode.prefills("nobody").await, given_up + f64::from(n));
        signal(core, "CONT");
        // What it was asked was taken back, so it holds nothing for anybody.
        three.have_released_all().await;
        three.share_requests().await;
    }
}

/// Once the KV is where it is needed nobody misses who computed it, and where decode dies too the
/// answer goes on elsewhere. So do requests that come meanwhile.
pub(crate) async fn both_die_while_decode_streams(three: &mut Three) {
    three.share_requests().await;
    let prompt = tokens(63, 200);
    let expected = three.alone.answers(&prompt, LONG).await;
    let before = three.decode.prefills("prefill_worker").await;
    let mut stream = stream(&three.client, &prompt, LONG).await;
    assert_eq!(three.decode.prefills("prefill_worker").await, before + 1.0);
    three.prefill.kill_engine().await;
    let next = stream.0.next().await.unwrap();
    stream.1.push(serde_json::from_str(&next).unwrap());
    three.decode.kill_engine().await;
    assert_eq!(streamed(stream).await, expected);

    let (asked, expected) = three.ask(tokens(64, 200), 16).await;
    assert_eq!(asked.await.unwrap(), expected);
    three.prefill.recovers().await;
    three.decode.recovers().await;
    three.share_requests().await;
}

/// Its KV is on its way then, or has just come.
pub(crate) async fn one_dies_once_the_prompt_is_computed(three: &mut Three) {
    for (n, decode_dies) in (0..).zip([true, false]) {
        let before = three.prefill.has_computed().await;
        let (asked, expected) = three.ask(tokens(67 + n, 1500), 48).await;
        soon("the prompt is computed", async {
            while three.prefill.has_computed().await < before + 1400.0 {}
        })
        .await;
        let dies = if decode_dies { &mut three.decode } else { &mut three.prefill };
        dies.kill_engine().await;
        assert_eq!(asked.await.unwrap(), expected, "{}", three.decode.process.log());
        let other = if decode_dies { &three.prefill } else { &three.decode };
        other.has_released_all().await;
        let dies = if decode_dies { &mut three.decode } else { &mut three.prefill };
        dies.recovers().await;
        three.share_requests().await;
    }
}

/// How far a request is when a process dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It is not there yet, and nobody knows of the death.
    Coming,
    /// Its prompt is being computed.
    Prefill,
    /// Its prompt is computed, and decode has not looked at the KV. Where both work at once,
    /// prefill waits for decode.
    HandOver,
    /// Its answer is on its way.
    Stream,
}

/// What dies when, first of decode and then of prefill. An agent dies behind two engines of its
/// at most: the pauses before an engine is started again grow with each.
pub(crate) const DEATHS: [(Stage, Part); 12] = [
    (Stage::Prefill, Part::Core),
    (Stage::HandOver, Part::Agent),
    (Stage::Stream, Part::Server),
    (Stage::Coming, Part::Core),
    (Stage::Prefill, Part::Agent),
    (Stage::HandOver, Part::Server),
    (Stage::Stream, Part::Core),
    (Stage::Coming, Part::Agent),
    (Stage::Prefill, Part::Server),
    (Stage::HandOver, Part::Core),
    (Stage::Stream, Part::Agent),
    (Stage::Coming, Part::Server),
];

/// Workers that come back: the agents that were started in the place of those that ended; others
/// start their engines again.
pub(crate) struct Ended {
    pub(crate) halves: Vec<(Role, Option<Process>)>,
    /// What died of those that were not started.
    pub(crate) part: Part,
}

impl Ended {
    pub(crate) async fn come_back(self, three: &mut Three) {
        for (half, process) in self.halves {
            let half = three.half(half);
            match process {
                Some(process) => *half = Agent::ready(half.kind, process).await,
                None => {
                    half.recovers().await;
                    lives_are_counted_once(half, self.part).await;
                }
            }
        }
        three.shares_requests(&three.preferring(&three.decode), &three.decode).await;
        if three.third_decodes() {
            three.shares_requests(&three.preferring(&three.alone), &three.alone).await;
        }
    }
}

/// Under what ended their process, not under what was known of it before.
async fn lives_are_counted_once(half: &Agent, part: Part) {
    let ends = "stator_agent_engine_ends_total";
    let lives = half.metric("stator_agent_engine_lives_total").await;
    assert_eq!(half.metric(ends).await, lives - 1.0, "{}", half.process.log());
    // Where what computes has died vLLM's server ends, and SGLang's kills itself.
    let cause = match (half.kind, part) {
        (Engine::Vllm, Part::Core) => "exit",
        _ => "signal",
    };
    let counted = half.metric(&format!("{ends}{{cause=\"{cause}\"}}")).await;
    assert!(counted >= 1.0, "{cause}: {}", half.process.log());
}

/// Where the third is a decode worker too: the request of a decode worker that dies goes on there,
/// and while that worker comes back, prefill dies under a request of the third. `start` starts an
/// agent by its name, which is its label.
pub(crate) async fn a_process_of_each_half_dies(
    three: &mut Three,
    (stage, part): (Stage, Part),
    start: &impl Fn(&'static str, Role) -> Process,
) -> Ended {
    let again = |name, role| (part == Part::Agent).then(|| start(name, role));
    three.loses(Role::Decode, stage, part).await;
    let decode = (Role::Decode, again("decode", Role::Decode));
    three.loses(Role::Prefill, stage, part).await;
    let prefill = (Role::Prefill, again("prefill", Role::Prefill));
    Ended { halves: vec![decode, prefill], part }
}

/// Where the third does all of a request: each half dies under a request of the other, once that
/// one has come back. What half of a pair has lost goes on at the third.
pub(crate) async fn a_process_of_each_half_dies_in_turn(
    three: &mut Three,
    (stage, part): (Stage, Part),
    start: &impl Fn(Role) -> Process,
) {
    for half in [Role::Decode, Role::Prefill] {
        three.loses(half, stage, part).await;
        let again = (part == Part::Agent).then(|| start(half));
        Ended { halves: vec![(half, again)], part }.come_back(three).await;
    }
}

impl Three {
    /// A client whose requests go to this decode worker where it serves.
    pub(crate) fn preferring(&self, decode: &Agent) -> Client {
        let label = format!("agent={};weight=100", decode.name);
        self.client.clone().with_header("x-stator-labels", &label)
    }

    fn half(&mut self, half: Role) -> &mut Agent {
        if half == Role::Prefill { &mut self.prefill } else { &mut self.decode }
    }

    /// Whether the third is a decode worker too.
    fn third_decodes(&self) -> bool {
        self.alone.kind == Engine::Vllm
    }

    /// The decode worker of the request under which a half dies.
    fn serving(&self, half: Role) -> &Agent {
        if half == Role::Prefill && self.third_decodes() { &self.alone } else { &self.decode }
    }

    /// A process of one half dies when a request is so far, whose answer is the right one.
    pub(crate) async fn loses(&mut self, half: Role, stage: Stage, part: Part) {
        let row = format!("{part:?} of {half:?} dies at {stage:?}");
        let (moved, itself) = (self.moved(), self.alone.prefills_by_itself().await);
        let computed = self.prefill.has_computed().await;
        let held = self.hold(half, stage);
        if stage == Stage::Coming {
            self.half(half).strike(part).await;
        }
        let prompt = tokens(100 + stage as u32 * 10 + part as u32 + half as u32 * 50, PROMPT);
        let max_tokens = if stage == Stage::Stream { LONG } else { 16 };
        let asked = self.asked(half, stage, (prompt.clone(), max_tokens)).await;
        if stage != Stage::Coming {
            self.half(half).strike(part).await;
        }
        self.half(half).knows(part).await;
        if let Some(core) = held {
            signal(core, "CONT");
        }
        let got = asked.await.unwrap();
        assert_eq!(got, self.alone.answers(&prompt, max_tokens).await, "{row}");
        let itself = self.alone.prefills_by_itself().await - itself;
        match (half, stage) {
            // Who hears of the death when is not said.
            (_, Stage::Coming) => {}
            (Role::Prefill, Stage::Stream) => {
                assert_eq!((itself, self.moved()), (0.0, moved), "{row}");
            }
            (Role::Prefill, _) if self.third_decodes() => assert_eq!(itself, 1.0, "{row}"),
            _ => drop(self.proxy.nth_event(MOVED, moved).await),
        }
        self.alone.has_released_all().await;
        if !self.third_decodes() {
            let other = if half == Role::Prefill { &self.decode } else { &self.prefill };
            other.has_released_all().await;
        } else if half == Role::Decode && matches!(stage, Stage::HandOver | Stage::Stream) {
            // The other decode worker got what prefill still had.
            let computed = self.prefill.has_computed().await - computed;
            assert!(computed < 2.0 * PROMPT as f64, "{row}: {computed} tokens");
        }
    }

    /// Has an engine stand still, so that a request comes as far as that and no further. Returns
    /// the process that is to go on once the other half has died.
    fn hold(&self, half: Role, stage: Stage) -> Option<u32> {
        let (of, core) = match stage {
            Stage::Coming | Stage::Stream => return None,
            Stage::Prefill => (Role::Prefill, self.prefill.core()),
            Stage::HandOver => (Role::Decode, self.serving(half).core()),
        };
        signal(core, "STOP");
        Some(core).filter(|_| of != half)
    }

    /// A request that is as far as that.
    async fn asked(
        &self,
        half: Role,
        stage: Stage,
        (prompt, max_tokens): (Vec<u32>, u32),
    ) -> JoinHandle<Vec<u32>> {
        let client = self.preferring(self.serving(half));
        if stage == Stage::Stream {
            let mut begun = stream(&client, &prompt, max_tokens).await;
            // The first token is prefill's.
            for _ in 0..4 {
                let next = begun.0.next().await.unwrap();
                begun.1.push(serde_json::from_str(&next).unwrap());
            }
            return tokio::spawn(streamed(begun));
        }
        let asked =
            tokio::spawn(async move { streamed(stream(&client, &prompt, max_tokens).await).await });
        match stage {
            Stage::Prefill => self.prefill.has_requests().await,
            Stage::HandOver => self.serving(half).has_requests().await,
            Stage::Coming | Stage::Stream => {}
        }
        asked
    }

    /// How often requests went on elsewhere.
    fn moved(&self) -> usize {
        self.proxy.log().matches(MOVED).count()
    }
}
