//! The size of an image that stands in a body.

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// The alphabet of `data:` addresses; padding may be missing.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Letters of an image that are read, first and at most: its size stands before its pixels, behind
/// what else was written about it, which is mostly nothing. Whole groups of four.
const READ: [usize; 2] = [1 << 10, READ_MAX];
const READ_MAX: usize = 128 << 10;

/// The pixels of an image: a `data:` address, or base64 alone. `None` for other addresses, and where
/// no size is found.
///
/// Formats: PNG, JPEG, GIF, WebP.
pub(crate) fn pixels(content: &str) -> Option<u64> {
    let data = match content.strip_prefix("data:") {
        Some(address) => address.split_once(";base64,")?.1,
        None => content,
    };
    READ.into_iter().find_map(|most| {
        let end = data.len().min(most);
        let bytes = BASE64.decode(data.get(..end)?).ok()?;
        let size = imagesize::blob_size(&bytes).ok()?;
        Some(size.width as u64 * size.height as u64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A PNG of 3 by 2 pixels up to its header's end.
    const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAMAAAACCAIAAAA=";

    #[test]
    fn an_images_size_is_read_where_it_stands_in_the_body() {
        assert_eq!(pixels(PNG), Some(6));
        assert_eq!(pixels(&format!("data:image/png;base64,{PNG}")), Some(6));
        assert_eq!(pixels(PNG.trim_end_matches('=')), Some(6), "without padding");
        let long = format!("{}{}", PNG.replace("AAAA=", "AAAA"), "A".repeat(2 * READ_MAX));
        assert_eq!(pixels(&long), Some(6), "its beginning is enough");
        for other in ["http://a/1.png", "data:image/png,raw", "data:image/png;base64,!", "aGk=", ""]
        {
            assert_eq!(pixels(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn any_content_has_a_size_or_none(content in "(data:image/png;base64,)?[A-Za-z0-9+/=é]{0,80}") {
            pixels(&content);
        }
    }
}
