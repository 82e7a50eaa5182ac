//! Splitting text into words as the regular expressions of byte-level tokenizers do, without a
//! regular expression engine.

use std::sync::{LazyLock, OnceLock};
use tokenizers::utils::SysRegex;

/// The split patterns that are known here, letter for letter as they stand in `tokenizer.json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// GPT-2's, which the `ByteLevel` pre-tokenizer has built in.
    Gpt2,
    /// Llama 3's: at most three digits in a word.
    Llama3,
    /// Qwen 2's: every digit is a word.
    Qwen2,
}

/// Source: `tokenizer.json` of the Llama 3 models.
pub(crate) const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Source: `tokenizer.json` of the Qwen 2, 2.5 and 3 models.
pub(crate) const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

impl Pattern {
    /// The pattern of a regular expression, if it is known.
    pub(crate) fn of_regex(regex: &str) -> Option<Self> {
        match regex {
            LLAMA3 => Some(Self::Llama3),
            QWEN2 => Some(Self::Qwen2),
            _ => None,
        }
    }

    /// Length in bytes of the first word of `text`, which is not empty; at least one character.
    pub(crate) fn first_word(self, text: &str) -> usize {
        match self {
            Self::Gpt2 => gpt2_word(text),
            Self::Llama3 => llama3_word(text, 3),
            Self::Qwen2 => llama3_word(text, 1),
        }
    }
}

/// Class of a character in the patterns.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Letter,
    Number,
    Space,
    Other,
}

/// The class and length of the character at `at`; `None` at the end.
#[inline]
fn class_at(text: &str, at: usize) -> Option<(Class, usize)> {
    let byte = *text.as_bytes().get(at)?;
    if byte < 0x80 {
        return Some((ASCII[usize::from(byte)], 1));
    }
    let c = text[at..].chars().next()?;
    Some((class_of(c), c.len_utf8()))
}

/// End of the run of characters that are in `class`.
#[inline]
fn run(text: &str, mut at: usize, class: Class) -> usize {
    while let Some((found, length)) = class_at(text, at) {
        if found != class {
            break;
        }
        at += length;
    }
    at
}

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
fn gpt2_word(text: &str) -> usize {
    if let Some(length) = contraction(text, false) {
        return length;
    }
    let start = usize::from(text.starts_with(' '));
    match class_at(text, start) {
        Some((class, length)) if class != Class::Space => run(text, start + length, class),
        _ => spaces(text),
    }
}

/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits}|
/// ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
fn llama3_word(text: &str, digits: usize) -> usize {
    if let Some(length) = contraction(text, true) {
        return length;
    }
    let Some((class, length)) = class_at(text, 0) else { return 0 };
    let new_line = matches!(text.as_bytes()[0], b'\r' | b'\n');
    match class {
        Class::Letter => run(text, length, Class::Letter),
        Class::Number => {
            let mut end = length;
            for _ in 1..digits {
                match class_at(text, end) {
                    Some((Class::Number, length)) => end += length,
                    _ => break,
                }
            }
            end
        }
        // One character that is neither letter nor number may lead a word of letters.
        _ if !new_line && matches!(class_at(text, length), Some((Class::Letter, _))) => {
            run(text, length, Class::Letter)
        }
        Class::Other => other_word(text, length),
        Class::Space => match class_at(text, length) {
            Some((Class::Other, next)) if text.starts_with(' ') => other_word(text, length + next),
            _ => new_lines(text).unwrap_or_else(|| spaces(text)),
        },
    }
}

/// The rest of `[^\s\p{L}\p{N}]+[\r\n]*`, from `at`.
fn other_word(text: &str, at: usize) -> usize {
    let end = run(text, at, Class::Other);
    end + text.as_bytes()[end..].iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count()
}

/// `\s*[\r\n]+`: the white space at the start, up to its last line break.
fn new_lines(text: &str) -> Option<usize> {
    let end = run(text, 0, Class::Space);
    text[..end].rfind(['\r', '\n']).map(|at| at + 1)
}

/// `\s+(?!\S)|\s+`: white space without its last character, which leads the next word, unless it is
/// the only one or nothing follows.
fn spaces(text: &str) -> usize {
    let end = run(text, 0, Class::Space);
    let last = text[..end].chars().next_back().map_or(0, char::len_utf8);
    if end == text.len() || last == end { end } else { end - last }
}

/// `'s|'t|'re|'ve|'m|'ll|'d`
fn contraction(text: &str, any_case: bool) -> Option<usize> {
    let rest = text.strip_prefix('\'')?;
    let fold = |c: char| match c {
        // The long s is an s where case does not matter.
        'ſ' if any_case => 's',
        c if any_case => c.to_ascii_lowercase(),
        c => c,
    };
    let mut chars = rest.chars();
    let first = chars.next()?;
    match fold(first) {
        's' | 't' | 'm' | 'd' => Some(1 + first.len_utf8()),
        letter @ ('r' | 'v' | 'l') => {
            let expected = if letter == 'l' { 'l' } else { 'e' };
            (fold(chars.next()?) == expected).then_some(3)
        }
        _ => None,
    }
}

const ASCII: [Class; 128] = {
    let mut classes = [Class::Other; 128];
    let mut byte = 0;
    while byte < 128 {
        classes[byte] = match byte as u8 {
            b'a'..=b'z' | b'A'..=b'Z' => Class::Letter,
            b'0'..=b'9' => Class::Number,
            b'\t'..=b'\r' | b' ' => Class::Space,
            _ => Class::Other,
        };
        byte += 1;
    }
    classes
};

/// Characters of one block.
const BLOCK: u32 = 256;

/// The class that the tokenizer's own regular expression engine gives a character, whose version of
/// Unicode is then the one that counts. Asked once for each block of characters that occurs.
#[inline(never)]
fn class_of(c: char) -> Class {
    static BLOCKS: [OnceLock<Box<[Class]>>; 0x1100] = [const { OnceLock::new() }; 0x1100];
    let (block, at) = (u32::from(c) / BLOCK, u32::from(c) % BLOCK);
    BLOCKS[block as usize].get_or_init(|| classes(block))[at as usize]
}

fn classes(block: u32) -> Box<[Class]> {
    static REGEXES: LazyLock<[(Class, SysRegex); 3]> = LazyLock::new(|| {
        let regex = |class, source| {
            (class, SysRegex::new(source).expect("a property is a regular expression"))
        };
        [regex(Class::Letter, r"\p{L}"), regex(Class::Number, r"\p{N}"), regex(Class::Space, r"\s")]
    });
    let of = |c: Option<char>| {
        let mut buffer = [0; 4];
        let text = c.map(|c| &*c.encode_utf8(&mut buffer));
        let found = REGEXES
            .iter()
            .find(|(_, regex)| text.is_some_and(|text| regex.find_iter(text).next().is_some()));
        found.map_or(Class::Other, |(class, _)| *class)
    };
    (block * BLOCK..(block + 1) * BLOCK).map(|code| of(char::from_u32(code))).collect()
}
