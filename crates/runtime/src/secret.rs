//! Secrets that two processes share.

use std::fmt;
use std::fs::File;
use std::hint::black_box;
use std::io::Read;
use std::path::Path;

/// A secret that no log shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Fewest bytes of a secret.
    pub const MIN_BYTES: usize = 16;
    /// Most bytes of a secret.
    pub const MAX_BYTES: usize = 4096;

    /// A secret that can stand in a header: visible ASCII.
    ///
    /// # Errors
    ///
    /// Why it is none, without a word of what it says.
    pub fn new(text: &str) -> Result<Self, String> {
        let bytes = text.len();
        if !(Self::MIN_BYTES..=Self::MAX_BYTES).contains(&bytes) {
            let (min, max) = (Self::MIN_BYTES, Self::MAX_BYTES);
            return Err(format!("{bytes} bytes, {min} to {max}"));
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("it has characters other than visible ASCII".into());
        }
        Ok(Self(text.to_owned()))
    }

    /// The secret that a file holds, without the white space at its end. Blocks for as long as
    /// reading takes.
    ///
    /// # Errors
    ///
    /// Why the file holds none, with its path and without a word of what it says.
    pub fn read(file: &Path) -> Result<Self, String> {
        let path = file.display();
        let mut text = String::new();
        let limit = 2 * Self::MAX_BYTES as u64;
        let read = File::open(file).and_then(|file| file.take(limit).read_to_string(&mut text));
        read.map_err(|error| format!("cannot read {path}: {error}"))?;
        // An editor's last line ends.
        Self::new(text.trim_end()).map_err(|why| format!("{path}: {why}"))
    }

    /// Whether this is the secret, in a time that tells nothing but whether the lengths differ.
    pub fn is(&self, shown: &[u8]) -> bool {
        let own = self.0.as_bytes();
        let differs = |sum: u8, (a, b): (&u8, &u8)| black_box(sum | (a ^ b));
        own.len() == shown.len() && own.iter().zip(shown).fold(0, differs) == 0
    }

    /// The secret itself.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_secret_is_the_same_and_none_is_shown() {
        let secret = Secret::new("correct-horse-battery").unwrap();
        assert!(secret.is(b"correct-horse-battery"));
        for shown in ["", "correct-horse-batterY", "correct-horse-battery1", "correct-horse-batter"]
        {
            assert!(!secret.is(shown.as_bytes()), "{shown}");
        }
        assert_eq!(format!("{secret:?}"), "Secret(..)");
        assert_eq!(secret.reveal(), "correct-horse-battery");
    }

    #[test]
    fn a_file_holds_one_secret_and_its_faults_name_the_file_alone() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("secret");
        std::fs::write(&file, "correct-horse-battery\n").unwrap();
        assert_eq!(Secret::read(&file), Secret::new("correct-horse-battery"));
        std::fs::write(&file, "hush\n").unwrap();
        let fault = Secret::read(&file).unwrap_err();
        assert_eq!(fault, format!("{}: 4 bytes, 16 to 4096", file.display()));
        std::fs::write(&file, "x".repeat(100_000)).unwrap();
        assert!(Secret::read(&file).unwrap_err().ends_with(": 8192 bytes, 16 to 4096"));
        let fault = Secret::read(&dir.path().join("none")).unwrap_err();
        assert!(fault.starts_with("cannot read ") && fault.contains("/none: "), "{fault}");
    }

    #[test]
    fn what_is_too_short_or_fits_no_header_is_no_secret() {
        assert_eq!(Secret::new("short").unwrap_err(), "5 bytes, 16 to 4096");
        assert_eq!(Secret::new(&"x".repeat(4097)).unwrap_err(), "4097 bytes, 16 to 4096");
        for text in ["white space in it", "line\nbreak in it", "not ascii: äöüäöü"] {
            let fault = Secret::new(text).unwrap_err();
            assert_eq!(fault, "it has characters other than visible ASCII", "{text}");
        }
    }
}
