//! Content of prompts: token ids, or words.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};

use crate::seed::Seed;

/// Most words that are read from a file.
const WORDS_MAX: usize = 1_000_000;

/// Token ids below this are special or single bytes in the usual vocabularies.
const FIRST_ID: u32 = 256;

/// A prompt, as it is sent.
#[derive(Clone, Debug, PartialEq)]
pub enum PromptInput {
    /// Token ids.
    Tokens(Vec<u32>),
    /// Words of lower-case ASCII letters, so that JSON needs no escapes.
    Text(String),
}

/// Makes parts of prompts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Token ids from `first` on, `count` of them.
    Tokens {
        /// Lowest id.
        first: u32,
        /// Number of different ids.
        count: u32,
    },
    /// Words of lower-case ASCII letters.
    Words(Arc<[String]>),
}

impl Content {
    /// Token ids of a vocabulary of `vocab_size`, without those that are likely special.
    pub fn tokens(vocab_size: u32) -> Self {
        let first = FIRST_ID.min(vocab_size / 2);
        Self::Tokens { first, count: (vocab_size - first).max(1) }
    }

    /// Common English words, most of which are one token in most vocabularies.
    pub fn common_words() -> Self {
        Self::Words(WORDS.iter().map(|word| (*word).to_owned()).collect())
    }

    /// The words of a file, one a line.
    ///
    /// # Errors
    ///
    /// When it cannot be read, has none or too many, or one of them would need escapes in JSON.
    pub fn words(path: &Path) -> Result<Self> {
        let name = || format!("words: {}", path.display());
        let text = std::fs::read_to_string(path).with_context(name)?;
        let words: Arc<[String]> = text.lines().take(WORDS_MAX + 1).map(str::to_owned).collect();
        ensure!((1..=WORDS_MAX).contains(&words.len()), "{}: not 1 to {WORDS_MAX} words", name());
        let plain =
            |word: &&String| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase());
        if let Some(word) = words.iter().find(|word| !plain(word)) {
            anyhow::bail!("{}: {word:?} is not of lower-case ASCII letters", name());
        }
        Ok(Self::Words(words))
    }

    /// An empty prompt with room for `len` tokens or words.
    pub fn empty(&self, len: usize) -> PromptInput {
        match self {
            Self::Tokens { .. } => PromptInput::Tokens(Vec::with_capacity(len)),
            Self::Words(_) => PromptInput::Text(String::with_capacity(len * 6)),
        }
    }

    /// Appends `len` tokens or words of the stream to `prompt`, which [`Content::empty`] made.
    pub(crate) fn extend(&self, prompt: &mut PromptInput, len: usize, mut seed: Seed) {
        match (self, prompt) {
            (Self::Tokens { first, count }, PromptInput::Tokens(ids)) => {
                ids.extend((0..len).map(|_| first + seed.below(u64::from(*count)) as u32));
            }
            (Self::Words(words), PromptInput::Text(text)) => {
                for _ in 0..len {
                    if !text.is_empty() {
                        text.push(' ');
                    }
                    text.push_str(&words[seed.below(words.len() as u64) as usize]);
                }
            }
            _ => unreachable!("a prompt is extended by its own content"),
        }
    }
}

/// Short, common English words.
#[rustfmt::skip]
const WORDS: [&str; 493] = [
    "about", "above", "after", "again", "air", "all", "also", "always", "animal", "answer",
    "any", "apple", "area", "arm", "ask", "away", "baby", "back", "ball", "bank", "base",
    "bath", "bear", "beat", "bed", "bell", "best", "better", "big", "bird", "black", "blood",
    "blue", "board", "boat", "body", "bone", "book", "born", "both", "box", "boy", "bread",
    "bring", "brother", "brown", "build", "burn", "bus", "busy", "buy", "cake", "call", "camp",
    "car", "card", "care", "carry", "case", "cat", "catch", "cause", "chair", "change",
    "chief", "child", "city", "class", "clean", "clear", "climb", "clock", "close", "cloud",
    "coat", "cold", "color", "come", "cook", "cool", "copy", "corn", "cost", "count", "cover",
    "cow", "cross", "cry", "cup", "cut", "dance", "dark", "day", "dead", "deep", "desk",
    "door", "down", "draw", "dream", "dress", "drink", "drive", "dry", "duck", "dust", "each",
    "ear", "early", "earth", "east", "easy", "eat", "edge", "egg", "end", "enter", "even",
    "ever", "every", "eye", "face", "fact", "fall", "family", "far", "farm", "fast", "father",
    "feel", "feet", "few", "field", "fight", "fill", "find", "fine", "fire", "first", "fish",
    "five", "flat", "floor", "flow", "fly", "follow", "food", "foot", "force", "forest",
    "form", "four", "free", "fresh", "friend", "front", "fruit", "full", "game", "garden",
    "gate", "gave", "get", "girl", "give", "glad", "glass", "gold", "good", "grass", "gray",
    "great", "green", "ground", "group", "grow", "guess", "hair", "half", "hand", "happy",
    "hard", "hat", "head", "hear", "heart", "heat", "heavy", "help", "here", "high", "hill",
    "hold", "hole", "home", "hope", "horse", "hot", "hour", "house", "ice", "idea", "inch",
    "iron", "island", "job", "join", "jump", "just", "keep", "key", "kind", "king", "knee",
    "know", "lake", "land", "large", "last", "late", "laugh", "law", "lead", "leaf", "learn",
    "leave", "left", "leg", "letter", "life", "light", "line", "lion", "list", "little",
    "live", "long", "look", "lost", "loud", "love", "low", "lunch", "made", "make", "man",
    "many", "map", "mark", "meat", "meet", "milk", "mind", "mine", "minute", "miss", "money",
    "month", "moon", "more", "morning", "most", "mother", "mouth", "move", "much", "music",
    "name", "near", "neck", "need", "never", "new", "next", "night", "noise", "north", "nose",
    "note", "now", "number", "ocean", "off", "office", "oil", "old", "once", "one", "only",
    "open", "orange", "order", "other", "our", "out", "over", "own", "page", "paint", "pair",
    "paper", "park", "part", "party", "pass", "past", "path", "pay", "people", "piece",
    "place", "plain", "plan", "plant", "play", "point", "pond", "poor", "pretty", "price",
    "pull", "push", "queen", "question", "quick", "quiet", "rain", "read", "ready", "real",
    "red", "rest", "rice", "rich", "ride", "right", "ring", "river", "road", "rock", "room",
    "root", "rope", "rose", "round", "rule", "run", "safe", "said", "salt", "same", "sand",
    "save", "say", "school", "sea", "seat", "second", "seed", "seem", "sell", "send", "set",
    "seven", "shade", "shape", "sharp", "ship", "shoe", "shop", "short", "shout", "show",
    "side", "sign", "silver", "simple", "sing", "sister", "sit", "six", "size", "skin", "sky",
    "sleep", "slow", "small", "smell", "smile", "snow", "soap", "soft", "soil", "some", "son",
    "song", "soon", "sound", "soup", "south", "space", "speak", "spell", "spoon", "sport",
    "spring", "square", "stand", "star", "start", "state", "stay", "step", "still", "stone",
    "stop", "store", "storm", "story", "street", "strong", "sugar", "summer", "sun", "sure",
    "swim", "table", "tail", "take", "talk", "tall", "tea", "teach", "tell", "ten", "test",
    "thing", "think", "three", "tie", "time", "tiny", "today", "tooth", "top", "town", "trade",
    "train", "tree", "trip", "true", "try", "turn", "two", "under", "use", "very", "visit",
    "voice", "wait", "walk", "wall", "want", "warm", "wash", "water", "wave", "way", "wear",
    "week", "well", "west", "wet", "wheel", "white", "wide", "wild", "will", "wind", "wing",
    "winter", "wish", "wolf", "wood", "word", "work", "world", "write", "yard", "year",
    "yellow", "yes", "young",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::Purpose;

    fn prompt(content: Content, len: usize, seed: u64) -> PromptInput {
        let mut prompt = content.empty(len);
        content.extend(&mut prompt, len, Seed::of(seed, Purpose::Request, 0));
        prompt
    }

    #[test]
    fn token_ids_stay_between_the_special_ones_and_the_end() {
        let PromptInput::Tokens(ids) = prompt(Content::tokens(1000), 5_000, 1) else {
            panic!("no tokens");
        };
        assert_eq!(ids.len(), 5_000);
        assert_eq!((ids.iter().min(), ids.iter().max()), (Some(&256), Some(&999)));
        assert_eq!(Content::tokens(16), Content::Tokens { first: 8, count: 8 });
    }

    #[test]
    fn words_are_counted_and_separated() {
        let PromptInput::Text(text) = prompt(Content::common_words(), 7, 1) else {
            panic!("no text");
        };
        assert_eq!(text.split(' ').filter(|word| WORDS.contains(word)).count(), 7);
    }

    #[test]
    fn words_of_a_file_replace_the_common_ones() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "one\ntwo\n").unwrap();
        let PromptInput::Text(text) = prompt(Content::words(file.path()).unwrap(), 50, 1) else {
            panic!("no text");
        };
        assert_eq!(text.split(' ').filter(|word| ["one", "two"].contains(word)).count(), 50);
        for bad in ["", "one\n\ntwo\n", "it's\n"] {
            std::fs::write(file.path(), bad).unwrap();
            assert!(Content::words(file.path()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn words_need_no_escapes() {
        assert!(WORDS.iter().all(|word| word.bytes().all(|byte| byte.is_ascii_lowercase())));
    }

    #[test]
    fn equal_seeds_make_equal_prompts() {
        assert_eq!(prompt(Content::common_words(), 9, 4), prompt(Content::common_words(), 9, 4));
        assert_ne!(prompt(Content::common_words(), 9, 4), prompt(Content::common_words(), 9, 5));
    }
}
