//! Strings of JSON: checked 32 bytes at a time, unescaped and escaped.

use crate::scan_error::ScanErrorKind;
use crate::utf8;
use std::borrow::Cow;

/// Bytes of a string that are looked at in one go.
const BLOCK: usize = 32;

/// Checks a string whose opening quote stands before `from`; returns the position after its
/// closing quote, or what is wrong and where.
#[inline]
pub(crate) fn check(bytes: &[u8], from: usize) -> Result<usize, (ScanErrorKind, usize)> {
    let (end, ascii) = find_end(bytes, from)?;
    if !ascii {
        utf8::check(&bytes[from..end - 1]).map_err(|at| (ScanErrorKind::Utf8, from + at))?;
    }
    Ok(end)
}

/// The position after the closing quote, and whether the string is ASCII: `false` may also come
/// of the bytes right after it. What has been checked once needs no more than this.
#[inline]
pub(crate) fn find_end(bytes: &[u8], from: usize) -> Result<(usize, bool), (ScanErrorKind, usize)> {
    let mut at = from;
    let mut ascii = true;
    loop {
        let (mut special, plain) = match bytes.get(at..).and_then(|rest| rest.first_chunk()) {
            Some(block) => masks(block),
            None => masks(&last_block(bytes, at)),
        };
        ascii &= plain;
        let mut next = at + BLOCK;
        while special != 0 {
            let stop = at + special.trailing_zeros() as usize;
            match bytes.get(stop) {
                Some(b'"') => return Ok((stop + 1, ascii)),
                Some(b'\\') => {
                    let end = escape_end(bytes, stop)?;
                    next = next.max(end);
                    // What the escape covers is done with; all of it where it ends later.
                    special &= u32::MAX.checked_shl((end - at) as u32).unwrap_or(0);
                }
                Some(_) => return Err((ScanErrorKind::ControlCharacter, stop)),
                None => return Err((ScanErrorKind::UnexpectedEnd, bytes.len())),
            }
        }
        let (run, plain) = usual_run(bytes, next);
        at = next + run;
        ascii &= plain;
        if run > 0 && bytes[at - 1] == b'\\' {
            // The rest of this escape is still to come.
            at -= 1;
        }
    }
}

/// Length of the blocks from `at` on that have nothing but text and the usual escapes, and
/// whether they are ASCII.
///
/// Text has an escape in most lines and code has several, so that looking at each would cost
/// more than all the rest. Every byte is judged by itself and the one before it instead.
fn usual_run(bytes: &[u8], at: usize) -> (usize, bool) {
    // The second half of an escaped backslash looks like the first half of an escape.
    if bytes.get(at - 1).is_none_or(|&before| before == b'\\') {
        return (0, true);
    }
    let (blocks, _) = bytes[at..].as_chunks::<BLOCK>();
    let (before, _) = bytes[at - 1..].as_chunks::<BLOCK>();
    let mut high = 0;
    for (index, (block, before)) in blocks.iter().zip(before).enumerate() {
        let mut usual = true;
        for (&byte, &before) in block.iter().zip(before) {
            let letter = (byte == b'n') | (byte == b'"') | (byte == b't') | (byte == b'r');
            let text = (byte >= 0x20) & (byte != b'"');
            let escaped = before == b'\\';
            usual &= (escaped & letter) | (!escaped & text);
        }
        if !usual {
            return (index * BLOCK, high < 0x80);
        }
        high |= block.iter().fold(0, |all, &byte| all | byte);
    }
    (blocks.len() * BLOCK, high < 0x80)
}

/// The bytes from `at` on, padded with quotes: the first of these marks the end.
#[cold]
fn last_block(bytes: &[u8], at: usize) -> [u8; BLOCK] {
    let mut block = [b'"'; BLOCK];
    let rest = bytes.get(at..).unwrap_or_default();
    block[..rest.len()].copy_from_slice(rest);
    block
}

/// A bit for each byte that is a quote, a backslash or a control character, and whether all
/// bytes are ASCII.
///
/// The loops over bytes have no exit, so that they become vector instructions.
#[inline]
fn masks(block: &[u8; BLOCK]) -> (u32, bool) {
    let flags = block.map(|byte| u8::from((byte < 0x20) | (byte == b'"') | (byte == b'\\')));
    let ascii = block.iter().fold(0, |all, &byte| all | byte) < 0x80;
    let (words, _) = flags.as_chunks::<8>();
    let words: [u64; BLOCK / 8] = std::array::from_fn(|at| u64::from_le_bytes(words[at]));
    if words.iter().fold(0, |all, &word| all | word) == 0 {
        return (0, ascii);
    }
    // The product moves the lowest bit of each byte to a place of its own in the top one.
    let gather = |word: u64| (word.wrapping_mul(0x0102_0408_1020_4080) >> 56) as u32;
    let special = words.iter().rev().fold(0, |mask, &word| mask << 8 | gather(word));
    (special, ascii)
}

/// The position after the escape whose backslash stands at `at`.
#[inline]
fn escape_end(bytes: &[u8], at: usize) -> Result<usize, (ScanErrorKind, usize)> {
    match bytes.get(at + 1) {
        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(at + 2),
        Some(b'u') => unicode_end(bytes, at),
        Some(_) => Err((ScanErrorKind::Escape, at)),
        None => Err((ScanErrorKind::UnexpectedEnd, bytes.len())),
    }
}

fn unicode_end(bytes: &[u8], at: usize) -> Result<usize, (ScanErrorKind, usize)> {
    let wrong = (ScanErrorKind::Escape, at);
    match code_unit(bytes, at).ok_or(wrong)? {
        0xD800..=0xDBFF => match code_unit(bytes, at + 6) {
            Some(0xDC00..=0xDFFF) => Ok(at + 12),
            _ => Err(wrong),
        },
        0xDC00..=0xDFFF => Err(wrong),
        _ => Ok(at + 6),
    }
}

/// The code unit of the `\uXXXX` at `at`.
fn code_unit(bytes: &[u8], at: usize) -> Option<u32> {
    let digits = bytes.get(at..at + 6)?.strip_prefix(b"\\u")?;
    digits.iter().try_fold(0, |unit, &digit| Some(unit << 4 | char::from(digit).to_digit(16)?))
}

/// The text of a JSON string given with its quotes; nothing where `raw` is not one.
pub fn unquote(raw: &[u8]) -> Option<Cow<'_, str>> {
    let inner = raw.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    if memchr::memchr(b'\\', inner).is_none() {
        return str::from_utf8(inner).ok().map(Cow::Borrowed);
    }
    let mut text = String::with_capacity(inner.len());
    let mut at = 0;
    while let Some(plain) = memchr::memchr(b'\\', &inner[at..]) {
        text.push_str(str::from_utf8(&inner[at..at + plain]).ok()?);
        at += plain;
        let end = escape_end(inner, at).ok()?;
        text.push(escaped(inner, at, end)?);
        at = end;
    }
    text.push_str(str::from_utf8(&inner[at..]).ok()?);
    Some(Cow::Owned(text))
}

/// The character that the escape from `at` to `end` stands for.
fn escaped(bytes: &[u8], at: usize, end: usize) -> Option<char> {
    Some(match bytes[at + 1] {
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => {
            let unit = code_unit(bytes, at)?;
            match end - at {
                6 => char::from_u32(unit)?,
                _ => {
                    let low = code_unit(bytes, at + 6)?;
                    char::from_u32(0x1_0000 + ((unit - 0xD800) << 10) + (low - 0xDC00))?
                }
            }
        }
        same => char::from(same),
    })
}

/// Appends `text` as a JSON string with its quotes.
pub fn write_string(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    for &byte in text.as_bytes() {
        match byte {
            b'"' | b'\\' => out.extend([b'\\', byte]),
            b'\n' => out.extend(b"\\n"),
            b'\r' => out.extend(b"\\r"),
            b'\t' => out.extend(b"\\t"),
            0x08 => out.extend(b"\\b"),
            0x0C => out.extend(b"\\f"),
            0..0x20 => {
                let hex = |digit: u8| b"0123456789abcdef"[usize::from(digit)];
                out.extend(b"\\u00");
                out.extend([hex(byte >> 4), hex(byte & 15)]);
            }
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}

#[cfg(test)]
#[path = "strings_tests.rs"]
mod tests;
