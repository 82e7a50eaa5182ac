//! An endpoint as one request sees it.

use crate::{Endpoint, EngineLoad, InFlight};

/// An endpoint that could take a request, with what producers found out about the two.
#[derive(Clone, Debug)]
pub struct Candidate<'a> {
    /// The endpoint.
    pub endpoint: &'a Endpoint,
    /// What its engine last reported.
    pub load: &'a EngineLoad,
    /// What was sent to it.
    pub in_flight: InFlight,
    /// What it is believed to hold of the prompt, from what it was sent (approximate).
    pub approximate: Option<PrefixMatch>,
    /// What it reported to hold of the prompt (precise).
    pub precise: Option<PrefixMatch>,
    /// The placement core's cost of choosing it; lower is better.
    pub cost: Option<f64>,
    /// What else was found out. Few ask for it, and it is large.
    findings: Option<Box<Findings>>,
}

/// What only some producers find out.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// What prefix producers beyond the first approximate and the precise one believe, each under
    /// the number that it was built with.
    pub named: Vec<(u16, PrefixMatch)>,
    /// What the request would experience there.
    pub latency: Option<PredictedLatency>,
    /// Share of the prompt's multimodal bytes whose embeddings it is believed to hold, 0 to 1.
    pub multimodal: Option<f64>,
}

impl<'a> Candidate<'a> {
    /// A candidate of which only the endpoint's state is known.
    pub fn new(endpoint: &'a Endpoint, load: &'a EngineLoad, in_flight: InFlight) -> Self {
        Self {
            endpoint,
            load,
            in_flight,
            approximate: None,
            precise: None,
            cost: None,
            findings: None,
        }
    }

    /// What else was found out, if anything was.
    pub fn found(&self) -> Option<&Findings> {
        self.findings.as_deref()
    }

    /// What else is found out, to be added to.
    pub fn findings(&mut self) -> &mut Findings {
        self.findings.get_or_insert_default()
    }

    /// What the request would experience there.
    pub fn latency(&self) -> Option<PredictedLatency> {
        self.found()?.latency
    }

    /// Share of the prompt's multimodal bytes whose embeddings it is believed to hold, 0 to 1.
    pub fn multimodal(&self) -> Option<f64> {
        self.found()?.multimodal
    }

    /// What it holds of the prompt, as exactly as is known.
    pub fn prefix(&self) -> Option<PrefixMatch> {
        self.precise.or(self.approximate)
    }
}

/// How much of a prompt an endpoint holds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PrefixMatch {
    /// Leading blocks of the prompt that it holds.
    pub matched_blocks: u32,
    /// Blocks of the prompt.
    pub total_blocks: u32,
    /// Tokens per block.
    pub block_size: u32,
    /// The matched blocks, each weighted by the tier it lies in; equals `matched_blocks` where
    /// all are on the device.
    pub weighted_blocks: f64,
}

impl PrefixMatch {
    /// Share of the prompt's blocks that it holds, 0 to 1; 0 for a prompt without blocks.
    pub fn share(&self) -> f64 {
        match self.total_blocks {
            0 => 0.0,
            total => f64::from(self.matched_blocks) / f64::from(total),
        }
    }

    /// Tokens of the matched blocks.
    pub fn matched_tokens(&self) -> u64 {
        u64::from(self.matched_blocks) * u64::from(self.block_size)
    }
}

/// Predicted latencies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PredictedLatency {
    /// Time to the first token, in milliseconds.
    pub ttft_ms: f64,
    /// Mean time between tokens, in milliseconds.
    pub tpot_ms: f64,
}
