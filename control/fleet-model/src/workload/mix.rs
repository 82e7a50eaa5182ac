//! Synthetic workloads, each from a seed.
//!
//! | mix | what it is |
//! | --- | --- |
//! | `chat` | sessions of several turns with pauses; 8 system prompts of 1,024 tokens |
//! | `agents` | the shape of Mooncake's tool-and-agent trace: 39 % share 6,144 tokens and 15 % share 2,560, each with a short tail and a short answer; the rest are sessions with long contexts |
//! | `summarise` | long prompts that nothing shares, short answers |
//! | `batch` | 64 at once, in the background |
//! | `mixed` | 50 % chat, 30 % agents, 10 % summarise, 10 % batch |

use super::{ArrivalTime, Class, Run, Workload, WorkloadRequest};
use crate::engine::block::BlockId;
use crate::random::{Purpose, Random};
use crate::time::{Ps, SECOND, from_seconds};

/// Shape of a synthetic workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mix {
    /// Sessions of several turns.
    Chat,
    /// Long shared prefixes, many short calls.
    Agents,
    /// Long prompts that nothing shares.
    Summarise,
    /// Bursts in the background.
    Batch,
    /// All of these.
    Mixed,
}

/// Parameters of a synthetic workload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SyntheticWorkload {
    /// Its shape.
    pub mix: Mix,
    /// Requests per second.
    pub rate: f64,
    /// LoRA adapters that sessions are for; 0 for none.
    pub adapters: u32,
    /// Tokens per block.
    pub block_size: u32,
}

/// Longest prompt, so that any request fits a small engine.
const PROMPT_MAX: u32 = 65_536;
const OUTPUT_MAX: u32 = 4_096;
/// Requests of one burst of `batch`.
const BURST: u32 = 64;
/// Tenants that send requests.
const TENANTS: u32 = 16;

/// Prompts of `chat` that sessions begin with, and those of `agents`, in tokens.
const CHAT_PREFIXES: [u32; 8] = [1_024; 8];
const TOOL_PREFIXES: [u32; 3] = [512, 6_144, 2_560];

/// A prefix that many sessions have in common, of one adapter.
#[derive(Clone, Copy)]
struct Shared {
    tokens: u32,
    run: Run,
    adapter: Option<u32>,
}

struct Maker {
    workload: Workload,
    random: Random,
    /// Choice of the next adapter, among `adapters`.
    adapter: Random,
    adapters: u32,
    next_block: BlockId,
    /// By adapter, and by prefix.
    chat: Vec<Shared>,
    tools: Vec<Shared>,
    count: u32,
}

impl Workload {
    /// A synthetic workload of about `count` requests: the last session may be cut short.
    pub fn synthetic(synthetic: SyntheticWorkload, count: u32, seed: u64) -> Self {
        let SyntheticWorkload { mix, rate, adapters, block_size } = synthetic;
        let mut maker = Maker {
            workload: Workload::new(block_size),
            random: Random::new(seed, Purpose::Shapes),
            adapter: Random::new(seed, Purpose::Adapters),
            adapters,
            next_block: 0,
            chat: Vec::new(),
            tools: Vec::new(),
            count,
        };
        maker.chat = maker.prefixes(&CHAT_PREFIXES);
        maker.tools = maker.prefixes(&TOOL_PREFIXES);
        // Sessions begin so that requests come at the rate on average.
        let mut starts = Poisson::new(seed, rate);
        while maker.missing() > 0 {
            let before = maker.workload.requests.len();
            let at = starts.next();
            match mix {
                Mix::Chat => maker.chat(at),
                Mix::Agents => maker.agent(at),
                Mix::Summarise => maker.summary(at),
                Mix::Batch => maker.burst(at),
                Mix::Mixed => maker.any(at),
            }
            // A session of n requests stands for n arrivals.
            let made = maker.workload.requests.len() - before;
            for _ in 1..made {
                starts.next();
            }
        }
        maker.workload
    }
}

impl Maker {
    fn missing(&self) -> u32 {
        self.count - (self.workload.requests.len() as u32).min(self.count)
    }

    fn run(&mut self, blocks: u32) -> Run {
        let first = self.next_block;
        self.next_block += blocks;
        Run { first, blocks }
    }

    fn shared(&mut self, tokens: u32, adapter: Option<u32>) -> Shared {
        let blocks = tokens / self.workload.block_size;
        Shared { tokens, run: self.run(blocks), adapter }
    }

    /// Prefixes of each adapter. KV that one adapter computed is of no use to another.
    fn prefixes(&mut self, tokens: &[u32]) -> Vec<Shared> {
        let adapters = match self.adapters {
            0 => vec![None],
            count => (0..count).map(Some).collect(),
        };
        let all =
            adapters.into_iter().flat_map(|adapter| tokens.iter().map(move |n| (*n, adapter)));
        all.map(|(tokens, adapter)| self.shared(tokens, adapter)).collect()
    }

    /// The adapter of the next session: few of them for most.
    fn next_adapter(&mut self) -> Option<u32> {
        let count = self.adapters;
        (count > 0).then(|| self.adapter.below(count).min(self.adapter.below(count)))
    }

    /// One of so many prefixes, as the next session's adapter has it.
    fn prefix_of(&mut self, number: usize, count: usize) -> usize {
        self.next_adapter().map_or(0, |adapter| adapter as usize * count) + number
    }

    /// A session: after the shared prefix each turn adds a question and then its answer.
    fn session(&mut self, at: Ps, shared: Shared, turns: &[(u32, u32)], think_s: f64) {
        let block_size = self.workload.block_size;
        let added: u32 = turns.iter().map(|(question, answer)| question + answer).sum();
        let all = (shared.tokens + added) / block_size;
        let own = self.run(all - shared.run.blocks);
        let mut tokens = shared.tokens;
        // Few tenants ask for much, many for little.
        let tenant = self.random.below(TENANTS).min(self.random.below(TENANTS));
        let session = self.workload.requests.len() as u32;
        let turns = &turns[..turns.len().min(self.missing() as usize)];
        for (turn, &(question, answer)) in turns.iter().enumerate() {
            let arrival = match turn {
                0 => ArrivalTime::At(at),
                _ => ArrivalTime::After(from_seconds(self.random.exponential(think_s))),
            };
            let mut request = WorkloadRequest::new(arrival, tokens + question, answer);
            tokens += question + answer;
            (request.tenant, request.session) = (tenant, session);
            request.adapter = shared.adapter;
            let filled = tokens / block_size - shared.run.blocks;
            let next = self.workload.requests.len() as u32 + 1;
            request.next = (turn + 1 < turns.len()).then_some(next);
            self.workload.push_runs(request, &[shared.run, Run { blocks: filled, ..own }]);
        }
    }

    /// Questions and answers as long as they fit the longest prompt.
    fn turns(&mut self, mean: f64, first: (f64, f64), later: (f64, f64)) -> Vec<(u32, u32)> {
        let count = 1 + self.random.exponential(mean - 1.0).round() as u32;
        let mut turns = Vec::new();
        let mut tokens = 0;
        for turn in 0..count.min(64) {
            let (question, answer) = if turn == 0 { first } else { later };
            let question = self.random.tokens(question, 0.9, PROMPT_MAX / 2);
            let answer = self.random.tokens(answer, 0.8, OUTPUT_MAX);
            tokens += question + answer;
            if turn > 0 && tokens > PROMPT_MAX / 2 {
                break;
            }
            turns.push((question, answer));
        }
        turns
    }

    fn chat(&mut self, at: Ps) {
        let number = self.random.below(CHAT_PREFIXES.len() as u32) as usize;
        let place = self.prefix_of(number, CHAT_PREFIXES.len());
        let shared = self.chat[place];
        let turns = self.turns(5.0, (120.0, 200.0), (60.0, 200.0));
        self.session(at, shared, &turns, 15.0);
    }

    /// Source: the published shape of Mooncake's toolagent trace, clusters 0, 46 and 74.
    fn agent(&mut self, at: Ps) {
        // Of a hundred calls 39 and 15 have a tool's prefix; the others are sessions.
        let kind = self.random.below(100);
        let number = match kind {
            0..39 => 1,
            39..54 => 2,
            _ => 0,
        };
        let place = self.prefix_of(number, TOOL_PREFIXES.len());
        let shared = self.tools[place];
        match kind {
            0..39 => {
                let question = self.random.between(100, 2_000);
                let answer =
                    if self.random.below(2) == 0 { 3 } else { self.random.between(20, 80) };
                self.session(at, shared, &[(question, answer)], 0.0);
            }
            39..54 => {
                let question = self.random.between(100, 900);
                self.session(at, shared, &[(question, 20)], 0.0);
            }
            _ => {
                let turns = self.turns(3.0, (5_000.0, 200.0), (800.0, 200.0));
                self.session(at, shared, &turns, 5.0);
            }
        }
    }

    fn summary(&mut self, at: Ps) {
        let question = self.random.tokens(12_000.0, 0.7, PROMPT_MAX);
        let answer = self.random.tokens(180.0, 0.5, OUTPUT_MAX);
        let adapter = self.next_adapter();
        let alone = Shared { tokens: 0, run: Run { first: 0, blocks: 0 }, adapter };
        self.session(at, alone, &[(question, answer)], 0.0);
    }

    fn burst(&mut self, at: Ps) {
        let adapter = self.next_adapter();
        let shared = self.shared(512, adapter);
        for _ in 0..BURST.min(self.missing()) {
            let question = self.random.tokens(1_200.0, 0.8, PROMPT_MAX / 2);
            let answer = self.random.tokens(400.0, 0.6, OUTPUT_MAX);
            let place = self.workload.requests.len();
            self.session(at, shared, &[(question, answer)], 0.0);
            self.workload.requests[place].class = Class::Background;
        }
    }

    fn any(&mut self, at: Ps) {
        // By requests, not by sessions: a chat has 5 on average, an agent 1.9, a burst 64.
        match self.random.below(10_000) {
            0..2_770 => self.chat(at),
            2_770..7_200 => self.agent(at),
            7_200..9_957 => self.summary(at),
            _ => self.burst(at),
        }
    }
}

/// Moments of a Poisson process.
pub(super) struct Poisson {
    random: Random,
    mean: f64,
    at: f64,
}

impl Poisson {
    pub(super) fn new(seed: u64, rate: f64) -> Self {
        Self { random: Random::new(seed, Purpose::Arrivals), mean: 1.0 / rate, at: 0.0 }
    }

    pub(super) fn next(&mut self) -> Ps {
        self.at += self.random.exponential(self.mean);
        (self.at * SECOND as f64) as Ps
    }
}
