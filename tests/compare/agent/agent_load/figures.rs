//! What a measurement comes to.

use crate::{Args, Failure};
use std::fmt;
use std::ops::Sub;
use std::time::Duration;

/// Length of a tick in `/proc`, the same on all Linux machines that matter.
const TICK: Duration = Duration::from_millis(10);

/// CPU time that processes have used.
#[derive(Clone, Copy)]
pub(crate) struct Usage {
    agent: Duration,
    engine: Duration,
    relay: Duration,
}

impl Usage {
    pub(crate) fn read(args: &Args) -> Result<Self, Failure> {
        Ok(Self {
            agent: cpu_time(args.agent_pid)?,
            engine: cpu_time(args.engine_pid)?,
            relay: args.relay_pid.map_or(Ok(Duration::ZERO), cpu_time)?,
        })
    }

    /// What the agent has used.
    pub(crate) fn of_agent(self) -> Duration {
        self.agent
    }
}

impl Sub for Usage {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            agent: self.agent - before.agent,
            engine: self.engine - before.engine,
            relay: self.relay - before.relay,
        }
    }
}

fn cpu_time(pid: u32) -> Result<Duration, Failure> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit_once(") ").ok_or("stat: no name")?.1;
    let ticks = fields.split(' ').skip(11).take(2).map(str::parse::<u32>);
    Ok(TICK * ticks.sum::<Result<u32, _>>()?)
}

/// What one stream, or all of them, saw while it counted. Times are in microseconds.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) requests: u64,
    pub(crate) tokens: u64,
    /// From sending a request to its first token.
    pub(crate) first: Vec<u32>,
    /// Mean gap between the tokens of a request.
    pub(crate) gaps: Vec<u32>,
    /// From a token's making to its arrival.
    pub(crate) delays: Vec<u32>,
}

/// A line of the table.
pub(crate) struct Figures {
    used: Usage,
    span: Duration,
    seen: Seen,
}

impl Figures {
    pub(crate) const HEAD: &str = " requests/s | tokens/s | agent us/request | agent us/token | relay us/request | relay us/token | engine us/token | TTFT p50 | TTFT p99 | ITL p50 | ITL p99 | delay p50 | delay p99 |";
    pub(crate) const RULE: &str = "-----------:|---------:|-----------------:|---------------:|-----------------:|---------------:|----------------:|---------:|---------:|--------:|--------:|----------:|----------:|";

    pub(crate) fn new(used: Usage, span: Duration) -> Self {
        Self { used, span, seen: Seen::default() }
    }

    pub(crate) fn add(&mut self, mut seen: Seen) {
        self.seen.requests += seen.requests;
        self.seen.tokens += seen.tokens;
        self.seen.first.append(&mut seen.first);
        self.seen.gaps.append(&mut seen.gaps);
        self.seen.delays.append(&mut seen.delays);
    }

    pub(crate) fn sort(&mut self) {
        let Seen { first, gaps, delays, .. } = &mut self.seen;
        for times in [first, gaps, delays] {
            times.sort_unstable();
        }
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { used, span, seen } = self;
        let rate = |count: u64| count as f64 / span.as_secs_f64();
        let us = |time: Duration, count: u64| time.as_secs_f64() * 1e6 / count.max(1) as f64;
        write!(f, " {:>10.0} | {:>8.0} |", rate(seen.requests), rate(seen.tokens))?;
        write!(f, " {:>16.1} |", us(used.agent, seen.requests))?;
        write!(f, " {:>14.2} |", us(used.agent, seen.tokens))?;
        write!(f, " {:>16.1} |", us(used.relay, seen.requests))?;
        write!(f, " {:>14.2} |", us(used.relay, seen.tokens))?;
        write!(f, " {:>15.2} |", us(used.engine, seen.tokens))?;
        for (times, width) in [(&seen.first, 8), (&seen.gaps, 7), (&seen.delays, 9)] {
            for q in [0.5, 0.99] {
                match quantile(times, q) {
                    Some(time) => write!(f, " {time:>width$} |")?,
                    None => write!(f, " {:>width$} |", "-")?,
                }
            }
        }
        Ok(())
    }
}

fn quantile(sorted: &[u32], q: f64) -> Option<u32> {
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}
