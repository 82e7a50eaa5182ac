//! Made-up workloads, each from a seed.
//!
//! | mix | what it is |
//! | --- | --- |
//! | `chat` | sessions of several turns with pauses; 8 system prompts of 1,024 tokens |
//! | `agents` | the shape of Mooncake's tool-and-agent trace: 39 % share 6,144 tokens and 15 % share 2,560, each with a short tail and a short answer; the rest are sessions with long contexts |
//! | `summarise` | long prompts that nothing shares, short answers |
//! | `batch` | 64 at once, in the background |
//! | `mixed` | 50 % chat, 30 % agents, 10 % summarise, 10 % batch |

use super::{Arrival, Class, Poisson, Request, Run, Workload};
use crate::engine::pool::BlockId;
use crate::random::{Purpose, Random};
use crate::time::{Ps, from_seconds};

/// A made-up workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Mix {
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

/// Longest prompt, so that any request fits a small engine.
const PROMPT_MAX: u32 = 65_536;
const OUTPUT_MAX: u32 = 4_096;
/// Requests of one burst of `batch`.
const BURST: u32 = 64;
/// Who asks.
const TENANTS: u32 = 16;

/// A prefix that many sessions have in common.
#[derive(Clone, Copy)]
struct Shared {
    tokens: u32,
    run: Run,
}

struct Maker {
    workload: Workload,
    random: Random,
    next_block: BlockId,
    chat: Vec<Shared>,
    tools: Vec<Shared>,
    count: u32,
}

/// About `count` requests: the last session may be cut short.
pub(super) fn make(mix: Mix, count: u32, rate: f64, seed: u64, block_size: u32) -> Workload {
    let mut maker = Maker {
        workload: Workload::new(block_size),
        random: Random::new(seed, Purpose::Shapes),
        next_block: 0,
        chat: Vec::new(),
        tools: Vec::new(),
        count,
    };
    maker.chat = (0..8).map(|_| maker.shared(1_024)).collect();
    maker.tools = [512, 6_144, 2_560].map(|tokens| maker.shared(tokens)).into();
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

impl Maker {
    fn missing(&self) -> u32 {
        self.count - (self.workload.requests.len() as u32).min(self.count)
    }

    fn run(&mut self, blocks: u32) -> Run {
        let first = self.next_block;
        self.next_block += blocks;
        Run { first, blocks }
    }

    fn shared(&mut self, tokens: u32) -> Shared {
        let blocks = tokens / self.workload.block_size;
        Shared { tokens, run: self.run(blocks) }
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
        let turns = &turns[..turns.len().min(self.missing() as usize)];
        for (turn, &(question, answer)) in turns.iter().enumerate() {
            let arrival = match turn {
                0 => Arrival::At(at),
                _ => Arrival::After(from_seconds(self.random.exponential(think_s))),
            };
            let mut request = Request::new(arrival, tokens + question, answer);
            tokens += question + answer;
            request.tenant = tenant;
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
        let shared = self.chat[self.random.below(8) as usize];
        let turns = self.turns(5.0, (120.0, 200.0), (60.0, 200.0));
        self.session(at, shared, &turns, 15.0);
    }

    /// Source: the published shape of Mooncake's toolagent trace, clusters 0, 46 and 74.
    fn agent(&mut self, at: Ps) {
        match self.random.below(100) {
            0..39 => {
                let question = self.random.between(100, 2_000);
                let answer = self.random.below(2) * 17 + 3;
                let answer = if answer == 3 { 3 } else { self.random.between(20, 80) };
                self.session(at, self.tools[1], &[(question, answer)], 0.0);
            }
            39..54 => {
                let question = self.random.between(100, 900);
                self.session(at, self.tools[2], &[(question, 20)], 0.0);
            }
            _ => {
                let turns = self.turns(3.0, (5_000.0, 200.0), (800.0, 200.0));
                self.session(at, self.tools[0], &turns, 5.0);
            }
        }
    }

    fn summary(&mut self, at: Ps) {
        let question = self.random.tokens(12_000.0, 0.7, PROMPT_MAX);
        let answer = self.random.tokens(180.0, 0.5, OUTPUT_MAX);
        let alone = Shared { tokens: 0, run: Run { first: 0, blocks: 0 } };
        self.session(at, alone, &[(question, answer)], 0.0);
    }

    fn burst(&mut self, at: Ps) {
        let shared = self.shared(512);
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
