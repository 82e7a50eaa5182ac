//! Sources of a prompt at a worker, as a decision names them and as people read them.

use stator_kv_index::Overlap;
use stator_protos::WorkerRank;
use stator_protos::kv_event::Medium;
use std::fmt;

/// Places that a prompt's leading blocks are expected to come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixSources {
    /// Blocks from the worker itself and its tiers.
    pub own: Overlap,
    /// Blocks behind these that another worker lends.
    pub fetched: u32,
    /// The worker that lends them.
    pub from: Option<WorkerRank>,
}

impl PrefixSources {
    /// Blocks that need not be computed.
    pub fn blocks(&self) -> u32 {
        self.own.blocks() + self.fetched
    }

    /// The sources with the whole prompt, for people: its tokens, and those of a block.
    pub fn of_prompt(self, prompt_tokens: u32, block_tokens: u32) -> PromptSources {
        PromptSources { prefix: self, prompt_tokens, block_tokens }
    }

    /// Blocks from each place, none of which is empty.
    fn parts(&self) -> impl Iterator<Item = (u32, PrefixPlace)> {
        let own = Medium::ALL.map(|medium| (self.own.on(medium), PrefixPlace::Own(medium)));
        let lent = self.from.map(|from| (self.fetched, PrefixPlace::Other(from)));
        own.into_iter().chain(lent).filter(|(blocks, _)| *blocks > 0)
    }

    /// Whether any of them is to be loaded from outside the engine.
    pub(crate) fn loads(&self) -> bool {
        self.blocks() > self.own.on(Medium::Device)
    }
}

/// Place that blocks of a prompt come from.
#[derive(Clone, Copy, Debug)]
enum PrefixPlace {
    Own(Medium),
    Other(WorkerRank),
    /// Blocks that are computed.
    Nowhere,
}

impl fmt::Display for PrefixPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own(medium) => {
                f.write_str(["device", "host", "disk", "remote"][*medium as usize])
            }
            Self::Other(worker) => write!(f, "from worker {worker}"),
            Self::Nowhere => f.write_str("computed"),
        }
    }
}

/// Writes sources for people: `12 blocks device, 40 host, 8 disk, 10 from worker 7/0`.
impl fmt::Display for PrefixSources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = self.parts();
        let Some((blocks, place)) = parts.next() else { return f.write_str("nothing cached") };
        write!(f, "{blocks} blocks {place}")?;
        parts.try_for_each(|(blocks, place)| write!(f, ", {blocks} {place}"))
    }
}

/// Places that a whole prompt is expected to come from, for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromptSources {
    /// Sources of its leading blocks.
    pub prefix: PrefixSources,
    /// Tokens of the prompt; zero where they are not known.
    pub prompt_tokens: u32,
    /// Tokens of a block.
    pub block_tokens: u32,
}

/// Writes blocks and tokens from each place, and those that are computed:
/// `12 blocks (192 tokens) device, 10 (160) from worker 7/0, 3 (40) computed`.
impl fmt::Display for PromptSources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let block = u64::from(self.block_tokens);
        let cached = self.prefix.parts().map(|(blocks, place)| (u64::from(blocks), place));
        let cached = cached.map(|(blocks, place)| (blocks, blocks * block, place));
        let rest =
            u64::from(self.prompt_tokens).saturating_sub(u64::from(self.prefix.blocks()) * block);
        let computed =
            (rest > 0 && block > 0).then(|| (rest.div_ceil(block), rest, PrefixPlace::Nowhere));
        let mut parts = cached.chain(computed);
        let Some((blocks, tokens, place)) = parts.next() else {
            return f.write_str("nothing cached");
        };
        write!(f, "{blocks} blocks ({tokens} tokens) {place}")?;
        parts.try_for_each(|(blocks, tokens, place)| write!(f, ", {blocks} ({tokens}) {place}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stator_protos::WorkerId;

    #[test]
    fn a_whole_prompt_is_told_in_blocks_and_tokens() {
        let other = WorkerRank { worker: WorkerId(7), rank: 0 };
        let own = Overlap::new([2, 3, 0, 1]);
        let sources = PrefixSources { own, fetched: 4, from: Some(other) };
        let told = |sources: PrefixSources, tokens| sources.of_prompt(tokens, 16).to_string();
        let prefix = format!(
            "2 blocks (32 tokens) device, 3 (48) host, 1 (16) remote, 4 (64) from worker {other}"
        );
        assert_eq!(told(sources, 200), format!("{prefix}, 3 (40) computed"));
        assert_eq!(told(sources, 160), prefix);
        let none = PrefixSources::default();
        assert_eq!(told(none, 40), "3 blocks (40 tokens) computed");
        assert_eq!(
            (&*told(none, 0), &*PromptSources::default().to_string()),
            ("nothing cached", "nothing cached")
        );
    }
}
