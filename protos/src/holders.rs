//! Agents that lend KV of a prompt, as the value of a header: `10.0.0.1:7010;blocks=40, h:7010;blocks=8`,
//! the one with most first.

use crate::worker::{KV_HOLDER_ADDRESS_MAX_BYTES, KV_HOLDERS_MAX, KvHolder};
use std::fmt::Write;

/// Writes holders, each an address and its leading blocks. Those whose address is none are left out, and
/// those beyond [`KV_HOLDERS_MAX`]; `None` if nobody is left.
pub fn written<'a>(holders: impl IntoIterator<Item = (&'a str, u32)>) -> Option<String> {
    let mut text = String::new();
    let usable = holders.into_iter().filter(|(address, blocks)| is_usable(address, *blocks));
    for (address, blocks) in usable.take(KV_HOLDERS_MAX) {
        let comma = if text.is_empty() { "" } else { ", " };
        write!(text, "{comma}{address};blocks={blocks}").expect("a text takes all");
    }
    Some(text).filter(|text| !text.is_empty())
}

/// Reads holders. They only make a request faster: what is no holder is passed over, and so are those
/// beyond [`KV_HOLDERS_MAX`].
pub fn read(text: &str) -> Vec<KvHolder> {
    let holder = |part: &str| {
        let (address, blocks) = part.split_once(";blocks=")?;
        let (address, blocks) = (address.trim(), blocks.trim().parse().ok()?);
        is_usable(address, blocks).then(|| KvHolder { address: address.to_owned(), blocks })
    };
    text.split(',').filter_map(holder).take(KV_HOLDERS_MAX).collect()
}

/// Whether a holder can be asked: it has blocks, and an address that a header can carry.
fn is_usable(address: &str, blocks: u32) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b',' | b';' | b'"');
    blocks > 0
        && (1..=KV_HOLDER_ADDRESS_MAX_BYTES).contains(&address.len())
        && address.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn holder(address: &str, blocks: u32) -> KvHolder {
        KvHolder { address: address.to_owned(), blocks }
    }

    #[test]
    fn holders_are_a_list() {
        let text = written([("10.0.0.1:7010", 40), ("[fd00::1]:7010", 8)]);
        assert_eq!(text.as_deref(), Some("10.0.0.1:7010;blocks=40, [fd00::1]:7010;blocks=8"));
        let found = read(&text.unwrap());
        assert_eq!(found, [holder("10.0.0.1:7010", 40), holder("[fd00::1]:7010", 8)]);
    }

    #[test]
    fn what_is_no_holder_is_passed_over() {
        let long = "x".repeat(KV_HOLDER_ADDRESS_MAX_BYTES + 1);
        let odd =
            [("", 1), ("a:1", 0), ("a,b", 1), ("a;b", 1), ("a b", 1), ("\u{e9}", 1), (&*long, 1)];
        assert_eq!(written(odd), None);
        for text in
            ["", "a:1", "a:1;blocks=", "a:1;blocks=-1", "a:1;blocks=0", ";blocks=1", "a b;blocks=1"]
        {
            assert_eq!(read(text), [], "{text}");
        }
        assert_eq!(read("nonsense, a:1;blocks=2,"), [holder("a:1", 2)]);
        let many = ["a:1;blocks=2"; KV_HOLDERS_MAX + 1].join(",");
        assert_eq!(read(&many).len(), KV_HOLDERS_MAX);
    }

    proptest! {
        /// What is written is read again, and nothing that is read breaks.
        #[test]
        fn holders_come_back(given in vec(("[ -~]{0,20}", 0..9_u32), 0..6), noise in ".{0,60}") {
            let text = written(given.iter().map(|(address, blocks)| (&**address, *blocks)));
            let usable = given.iter().filter(|(address, blocks)| is_usable(address, *blocks));
            let expected: Vec<_> =
                usable.take(KV_HOLDERS_MAX).map(|(address, blocks)| holder(address, *blocks)).collect();
            prop_assert_eq!(read(&text.unwrap_or_default()), expected);
            prop_assert!(read(&noise).len() <= KV_HOLDERS_MAX);
        }
    }
}
