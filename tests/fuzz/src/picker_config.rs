//! Any text is a configuration or is refused with reasons; the explanation of one that loads
//! loads, too, and explains itself.

use stator_epp_config::{LoadOptions, load};

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    for lenient in [false, true] {
        let options = LoadOptions { allow_experimental: true, lenient };
        match load(text, options) {
            Ok(loaded) => check(&loaded.explanation),
            Err(refused) => {
                assert!(!refused.0.is_empty());
                assert!(refused.0.iter().all(|finding| !finding.message.is_empty()));
            }
        }
    }
}

fn check(explanation: &str) {
    let options = LoadOptions { allow_experimental: true, lenient: false };
    let again = load(explanation, options)
        .unwrap_or_else(|refused| panic!("{:?}\n{explanation}", refused.0));
    // Comments tell what was filled in, which is nothing the second time.
    let last =
        load(&again.explanation, options).unwrap_or_else(|refused| panic!("{:?}", refused.0));
    assert_eq!(last.explanation, again.explanation);
}
