use super::super::words::{LLAMA3, QWEN2};
use super::*;
use proptest::prelude::*;
use tokenizers::utils::SysRegex;

/// GPT-2's pattern, which the library has built in.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// Characters in which the patterns see a difference, and any others.
fn text() -> impl Strategy<Value = String> {
    let special = "['sSſtTrReEvVmMlLdDkK\u{212a} \\n\\r\\t\u{b}\u{85}\u{a0}\u{2028}\u{3000}\u{200b}x9²Ⅷ٣é\u{301}日.,!_-]{0,24}";
    prop_oneof![special, "\\PC{0,24}", "[\\x00-\\x7f]{0,24}", "(.|\\n){0,12}"]
}

fn words(pattern: Pattern, mut text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    while !text.is_empty() {
        let (word, rest) = text.split_at(pattern.first_word(text));
        words.push(word);
        text = rest;
    }
    words
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// The scanner finds the words that the regular expression finds.
    #[test]
    fn words_are_those_of_the_pattern(text in text()) {
        for (pattern, regex) in [(Pattern::Gpt2, GPT2), (Pattern::Llama3, LLAMA3), (Pattern::Qwen2, QWEN2)] {
            let regex = SysRegex::new(regex).unwrap();
            let expected: Vec<&str> = regex.find_iter(&text).map(|(start, end)| &text[start..end]).collect();
            prop_assert_eq!(words(pattern, &text), expected, "{:?}", pattern);
        }
    }

    /// What is taken for normal is what normalization leaves alone.
    #[test]
    fn texts_taken_for_normal_are_normal(text in text()) {
        if is_surely_nfc(&text) {
            let mut normalized = NormalizedString::from(text.as_str());
            normalized.nfc();
            prop_assert_eq!(normalized.get(), text);
        }
    }
}

#[test]
fn every_character_taken_for_normal_is_and_joins_no_other() {
    let sure: Vec<char> = (0..=0x10_ffff)
        .filter_map(char::from_u32)
        .filter(|c| is_surely_nfc(&c.to_string()))
        .collect();
    assert!(sure.len() > 30_000);
    // Each one twice: once after its neighbour, once after a letter that takes accents.
    let text: String = sure.iter().flat_map(|c| [*c, 'a', *c]).collect();
    let mut normalized = NormalizedString::from(text.as_str());
    normalized.nfc();
    assert!(normalized.get() == text);
}

#[test]
fn every_character_is_in_the_class_of_the_engine() {
    // A letter joins the letters around it, a digit the digits, and so on; see the pattern.
    let regex = SysRegex::new(LLAMA3).unwrap();
    let mut text = String::new();
    for c in (0..=0x10_ffff)
        .filter_map(char::from_u32)
        .filter(|c| u32::from(*c) < 0x3_2000 || u32::from(*c) % 97 == 0)
    {
        text.extend(['x', c, 'x', '1', c, '1', ' ', c, '.', c, '\n']);
    }
    let expected: Vec<&str> =
        regex.find_iter(&text).map(|(start, end)| &text[start..end]).collect();
    assert!(words(Pattern::Llama3, &text) == expected);
}

#[test]
fn what_is_not_known_is_left_to_the_general_path() {
    let known =
        serde_json::json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": true});
    assert_eq!(pattern(&known), Some(Pattern::Gpt2));
    let mut spaced = known.clone();
    spaced["add_prefix_space"] = true.into();
    assert_eq!(pattern(&spaced), None);
    let split = |regex: &str, behavior: &str| {
        let mut last = known.clone();
        last["use_regex"] = false.into();
        let split = serde_json::json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": false});
        pattern(&serde_json::json!({"type": "Sequence", "pretokenizers": [split, last]}))
    };
    assert_eq!(split(QWEN2, "Isolated"), Some(Pattern::Qwen2));
    assert_eq!(split(LLAMA3, "Removed"), None);
    assert_eq!(split(r"\p{L}+", "Isolated"), None);
    assert_eq!(pattern(&Value::Null), None);
}
