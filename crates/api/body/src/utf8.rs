//! Whether bytes are UTF-8, with a short way for the scripts whose letters take three bytes.

/// Checks that `bytes` are UTF-8.
///
/// # Errors
///
/// The position of the first byte that is not.
#[inline(never)]
pub(crate) fn check(bytes: &[u8]) -> Result<(), usize> {
    let mut at = 0;
    loop {
        at += three_byte_run(&bytes[at..]);
        // A window, and not the rest, so that the short way is taken again soon.
        let Some(window) = bytes.get(at..at + 64) else {
            return match str::from_utf8(&bytes[at..]) {
                Ok(_) => Ok(()),
                Err(error) => Err(at + error.valid_up_to()),
            };
        };
        match str::from_utf8(window) {
            Ok(_) => at += window.len(),
            Err(error) => match (error.error_len(), error.valid_up_to()) {
                // The window ends within a character, which the next one begins with.
                (None, valid) if valid > 0 => at += valid,
                (_, valid) => return Err(at + valid),
            },
        }
    }
}

/// Length of the characters of three bytes at the start.
fn three_byte_run(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(word) = bytes[at..].first_chunk::<4>() {
        let word = u32::from_le_bytes(*word);
        // 1110xxxx 10xxxxxx 10xxxxxx, in the order of memory from the lowest byte on.
        let shape = word & 0x00C0_C0F0 == 0x0080_80E0;
        // The bits that tell overlong forms, all clear, and halves of surrogate pairs.
        let bits = word & 0x0000_200F;
        if !shape || bits == 0 || bits == 0x0000_200D {
            break;
        }
        at += 3;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn agree(bytes: &[u8]) {
        let model = str::from_utf8(bytes).map(drop).map_err(|error| error.valid_up_to());
        assert_eq!(check(bytes), model, "{}", bytes.escape_ascii());
    }

    #[test]
    fn the_borders_of_three_bytes_are_exact() {
        for first in 0xDF_u8..=0xF1 {
            for second in [0x7F, 0x80, 0x9F, 0xA0, 0xBF, 0xC0] {
                for third in [0x7F, 0x80, 0xBF, 0xC0] {
                    agree(&[first, second, third]);
                    agree(&[first, second, third, b'a']);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn text_is_judged_as_the_standard_library_does(
            text in "[a-zé预填充😀]{0,80}|\\PC{0,80}",
            damage in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
        ) {
            let mut bytes = text.repeat(3).into_bytes();
            if let Some((at, byte)) = damage.filter(|_| !bytes.is_empty()) {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            agree(&bytes);
        }
    }
}
