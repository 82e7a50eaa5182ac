use super::*;
use proptest::prelude::*;

proptest! {
    /// Whatever the text, writing and reading it agrees with serde_json.
    #[test]
    fn strings_are_written_and_read_as_serde_json_does(text in any::<String>()) {
        let mut written = Vec::new();
        write_string(&text, &mut written);
        prop_assert_eq!(&written, &serde_json::to_vec(&text).expect("text serialises"));
        let read = unquote(&written).map(Cow::into_owned);
        prop_assert_eq!(read, Some(text));
        prop_assert_eq!(check(&written, 1), Ok(written.len()));
    }

    /// Strings of arbitrary bytes and escapes are taken exactly where serde_json takes them.
    #[test]
    fn strings_are_checked_as_serde_json_does(pieces in prop::collection::vec(any_piece(), 0..40)) {
        let raw = [b"\"".to_vec(), pieces.concat(), b"\"".to_vec()].concat();
        let model = serde_json::from_slice::<String>(&raw).ok();
        let ours = check(&raw, 1).is_ok_and(|end| end == raw.len());
        prop_assert_eq!(ours, model.is_some());
        if model.is_some() {
            prop_assert_eq!(unquote(&raw).map(Cow::into_owned), model);
        }
    }
}

/// A piece of a string: mostly sound, so that long strings are often accepted.
fn any_piece() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        12 => "[ -!#-\\[\\]-~]{0,70}".prop_map(String::into_bytes),
        4 => "[^\\x00-\\x1f\"\\\\]{0,20}".prop_map(String::into_bytes),
        4 => "\\\\[\"\\\\/bfnrt]".prop_map(String::into_bytes),
        4 => any::<char>().prop_map(utf16_escapes),
        1 => any::<u16>().prop_map(|unit| format!("\\u{unit:04X}").into_bytes()),
        1 => (0xD800_u16..0xE000).prop_map(|unit| format!("\\u{unit:04x}").into_bytes()),
        1 => any::<u8>().prop_map(|byte| vec![byte]),
        1 => "\\\\.".prop_map(String::into_bytes),
    ]
}

fn utf16_escapes(character: char) -> Vec<u8> {
    let mut units = [0; 2];
    let units = character.encode_utf16(&mut units);
    units.iter().flat_map(|unit| format!("\\u{unit:04x}").into_bytes()).collect()
}

proptest! {
    #[test]
    fn masks_mark_what_is_special(block in any::<[u8; BLOCK]>(), near in any::<bool>()) {
        // Many specials and their neighbours, or bytes of any kind.
        let few = b"\"\\\x1f\x20\x7f\x80\xa2a";
        let block = block.map(|byte| if near { few[usize::from(byte) % 8] } else { byte });
        let mask = |is: fn(u8) -> bool| {
            block.iter().rev().fold(0, |mask, &byte| mask << 1 | u32::from(is(byte)))
        };
        let special = mask(|byte| byte < 0x20 || byte == b'"' || byte == b'\\');
        prop_assert_eq!(masks(&block), (special, block.is_ascii()));
    }
}

/// Backslashes in every number at every place of a block, and each kind of byte after them.
#[test]
fn backslashes_are_paired_wherever_blocks_end() {
    for (before, backslashes) in (0..100).flat_map(|before| (0..5).map(move |n| (before, n))) {
        for after in ["n", "\"", "u00e9", "x", "\n", "é", ""] {
            let slashes = "\\".repeat(backslashes);
            let raw = format!("\"{}{slashes}{after}{}\"", "a".repeat(before), "b".repeat(40));
            let expected = serde_json::from_str::<String>(&raw).is_ok();
            let ours = check(raw.as_bytes(), 1).is_ok_and(|end| end == raw.len());
            assert_eq!(ours, expected, "{raw}");
        }
    }
}

#[test]
fn what_is_no_string_has_no_text() {
    for raw in [&b""[..], b"\"", b"abc", b"\"a", b"1", b"null", b"\"\\\"", b"\"\\u12\""] {
        assert_eq!(unquote(raw), None, "{}", raw.escape_ascii());
    }
}
