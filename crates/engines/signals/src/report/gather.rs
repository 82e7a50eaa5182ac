//! Sorts the series of a page by rank.

use super::rules::{Field, Rule, rules_of};
use super::{Engine, EngineReport, Sleep};
use crate::page::lines::{Labels, Series, all_lines, series};
use crate::page::{Adapters, CacheSize};

/// Most processes of one engine that are told apart.
const PARTS_MAX: usize = 1024;

/// Values of a page, process by process.
#[derive(Debug, Default)]
pub(super) struct PageValues {
    parts: Vec<Part>,
    /// Values of the engine as a whole.
    whole: Part,
    /// The newest series counts: its value is a time.
    adapters: Option<(f64, Adapters)>,
}

/// Values from one process of the engine. The ranks of tensor and pipeline parallelism within one
/// data-parallel rank all report the same.
#[derive(Debug, Default)]
struct Part {
    place: Place,
    sums: [Option<f64>; Field::COUNT],
    cache: Option<CacheSize>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    rank: u16,
    pipeline: u32,
    tensor: u32,
}

/// Reads a page.
pub(super) fn gather(engine: Engine, page: &[u8]) -> PageValues {
    let mut gathered = PageValues::default();
    for (name, rest) in all_lines(page) {
        let rules = rules_of(engine, name);
        if rules.is_empty() {
            continue;
        }
        let Some(series) = series(rest).filter(|series| series.value.is_finite()) else { continue };
        for rule in rules.iter().filter(|rule| rule.fits(series.labels)) {
            gathered.take(engine, rule, series);
        }
    }
    gathered
}

impl PageValues {
    fn take(&mut self, engine: Engine, rule: &Rule, series: Series<'_>) {
        if rule.fields == [Field::Adapters] {
            let newest = self.adapters.as_ref().is_none_or(|(time, _)| series.value > *time);
            if newest {
                let told = Adapters::LABELS.map(|name| series.labels.get(name).unwrap_or_default());
                self.adapters = Some((series.value, Adapters::read(told)));
            }
            return;
        }
        let Some(part) = self.part(engine, series.labels) else { return };
        for field in rule.fields {
            if *field == Field::CacheInfo {
                part.cache = CacheSize::read(series.labels).or(part.cache);
            }
            // A count below zero is none.
            *part.sums[*field as usize].get_or_insert_default() += series.value.max(0.0);
        }
    }

    /// The process of a series; `None` if there is no room for another, or the series has no valid
    /// number.
    fn part(&mut self, engine: Engine, labels: Labels<'_>) -> Option<&mut Part> {
        let place = match engine {
            Engine::Vllm => Place { rank: number(labels, b"engine")?, ..Place::default() },
            Engine::TrtLlm => Place::default(),
            Engine::Sglang => {
                // What the HTTP server counts is of all ranks.
                if labels.get(b"tp_rank").is_none() {
                    return Some(&mut self.whole);
                }
                Place {
                    rank: number(labels, b"dp_rank")?,
                    pipeline: number(labels, b"pp_rank")?,
                    tensor: number(labels, b"tp_rank")?,
                }
            }
        };
        // Series of one process mostly stand together.
        let known = self.parts.iter().rposition(|part| part.place == place);
        match known {
            Some(at) => Some(&mut self.parts[at]),
            None if self.parts.len() < PARTS_MAX => {
                self.parts.push(Part { place, ..Part::default() });
                self.parts.last_mut()
            }
            None => None,
        }
    }

    /// One report for each data-parallel rank, in order.
    pub(super) fn into_reports(mut self, engine: Engine, reports: &mut Vec<EngineReport>) {
        self.parts.sort_unstable_by_key(|part| part.place);
        self.parts.dedup_by_key(|part| part.place.rank);
        let ranks = u32::try_from(self.parts.len()).unwrap_or(u32::MAX);
        let adapters = self.adapters.map(|(_, adapters)| adapters);
        let whole = &self.whole;
        reports.extend(self.parts.iter().map(|part| {
            let mut report = part.report();
            if ranks == 1 {
                report.generation_tokens =
                    whole.count(Field::GenerationTokens).or(report.generation_tokens);
            }
            if engine == Engine::Vllm {
                // It is told as the sum over the ranks, under each of them.
                report.total_blocks = report.total_blocks.map(|blocks| blocks / ranks);
            }
            EngineReport { adapters: adapters.clone(), ..report }
        }));
    }
}

impl Part {
    fn report(&self) -> EngineReport {
        let sum = |field: Field| self.sums[field as usize];
        // Casts saturate.
        let gauge = |field: Field| sum(field).map(|value| value as u32).filter(|value| *value > 0);
        let misses = self.count(Field::PrefixMisses);
        let plus = |field: Field| match (self.count(field), misses) {
            (None, None) => None,
            (count, misses) => Some(count.unwrap_or(0).saturating_add(misses.unwrap_or(0))),
        };
        let hits = self.count(Field::PrefixHits);
        EngineReport {
            rank: self.place.rank,
            running: sum(Field::Running).map(|value| value as u32),
            waiting: sum(Field::Waiting).map(|value| value as u32),
            kv_usage: sum(Field::KvUsage).map(|share| share.clamp(0.0, 1.0)),
            block_size: gauge(Field::BlockSize).or(self.cache.map(|cache| cache.block_size)),
            total_blocks: gauge(Field::TotalBlocks).or(self.cache.map(|cache| cache.blocks)),
            prefix_queries: plus(Field::PrefixQueries),
            // Who tells of misses has told of hits too, had there been any.
            prefix_hits: hits.or(misses.map(|_| 0)),
            prompt_tokens: self.count(Field::PromptTokens),
            generation_tokens: self
                .count(Field::GenerationTokens)
                .or(self.count(Field::RankTokens)),
            preemptions: self.count(Field::Preemptions),
            steps: self.count(Field::Steps),
            steps_s: sum(Field::StepsSeconds),
            last_step_s: sum(Field::LastStepSeconds),
            token_gaps: self.count(Field::TokenGaps),
            token_gaps_s: sum(Field::TokenGapsSeconds),
            sleep: self.sleep(),
            adapters: None,
        }
    }

    fn count(&self, field: Field) -> Option<u64> {
        self.sums[field as usize].map(|value| value as u64)
    }

    fn sleep(&self) -> Option<Sleep> {
        let is = |field: Field| self.sums[field as usize].is_some_and(|value| value > 0.0);
        self.sums[Field::Awake as usize]?;
        Some(match (is(Field::Awake), is(Field::Discarded)) {
            (true, _) => Sleep::Awake,
            (false, true) => Sleep::Discarded,
            (false, false) => Sleep::WeightsOffloaded,
        })
    }
}

/// A label that is a number: 0 where it is missing, `None` where it is something else.
fn number<N: std::str::FromStr + Default>(labels: Labels<'_>, name: &[u8]) -> Option<N> {
    match labels.get(name) {
        Some(value) => std::str::from_utf8(value).ok()?.parse().ok(),
        None => Some(N::default()),
    }
}
