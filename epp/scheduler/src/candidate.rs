//! An endpoint as one request sees it.

use crate::{Endpoint, EngineLoad, InFlight};

/// An endpoint that could take a request, with what producers found out about the two.
#[derive(Clone, Debug)]
pub struct Candidate<'a> {
    /// The endpoint.
    pub endpoint: &'a Endpoint,
    /// Latest report of its engine.
    pub load: &'a EngineLoad,
    /// Load that was sent to it and is not over.
    pub in_flight: InFlight,
    /// The part of the prompt that it is believed to hold, from the prompts it was sent
    /// (approximate).
    pub approximate: Option<PrefixMatch>,
    /// The part of the prompt that it reported to hold (precise).
    pub precise: Option<PrefixMatch>,
    /// The placement core's cost of choosing it; lower is better.
    pub cost: Option<f64>,
    /// Findings that few plug-ins ask for; boxed for their size.
    findings: Option<Box<CandidateFindings>>,
}

/// Findings that only some producers make.
#[derive(Clone, Debug, Default)]
pub struct CandidateFindings {
    /// Matches of prefix producers beyond the first approximate and the precise one, each under the
    /// number that it was built with.
    pub named: Vec<(u16, PrefixMatch)>,
    /// Latencies that the request would have there.
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

    /// The further findings, if there are any.
    pub fn found(&self) -> Option<&CandidateFindings> {
        self.findings.as_deref()
    }

    /// The further findings, to be added to.
    pub fn findings(&mut self) -> &mut CandidateFindings {
        self.findings.get_or_insert_default()
    }

    /// Latencies that the request would have there.
    pub fn latency(&self) -> Option<PredictedLatency> {
        self.found()?.latency
    }

    /// Share of the prompt's multimodal bytes whose embeddings it is believed to hold, 0 to 1.
    pub fn multimodal(&self) -> Option<f64> {
        self.found()?.multimodal
    }

    /// The part of the prompt that it holds, as exactly as is known.
    pub fn prefix(&self) -> Option<PrefixMatch> {
        self.precise.or(self.approximate)
    }
}

/// Part of a prompt that an endpoint holds.
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
