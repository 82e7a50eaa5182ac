//! Parser for an engine's own flags, without a list of all of them.
//!
//! Without that list nobody can tell which value belongs to which flag, but flags themselves are
//! recognisable: a word that starts with a dash and is no number. That is enough to find flags that
//! come twice, that the agent sets itself, or that replace a default of the agent's.

use super::error::CommandError;

/// Conventions of an engine's command line.
pub(super) struct Dialect {
    /// Short and second names of flags, each with the name that is used here.
    pub aliases: &'static [(&'static str, &'static str)],
    /// Flags that the agent sets, each with the recommended alternative for the user.
    pub reserved: &'static [(&'static str, &'static str)],
    /// Flags that may come more than once.
    pub repeatable: &'static [&'static str],
}

/// Flags of the user.
pub(super) struct Flags {
    given: Vec<UserFlag>,
}

struct UserFlag {
    /// The word as the user wrote it, without a value.
    word: String,
    /// The rest of the word, or the next one where that is no flag.
    value: Option<String>,
    /// The flag's name: without leading dashes, aliases resolved, underscores as dashes; with the
    /// path into a value (`kv-transfer-config.kv_role`) where there is one.
    name: String,
}

impl Flags {
    /// Parses the words after `--` and checks them.
    pub(super) fn new(dialect: &Dialect, words: &[String]) -> Result<Self, CommandError> {
        if let Some(word) = words.first()
            && !is_flag(word)
        {
            return Err(CommandError::NotAFlag { word: word.clone() });
        }
        let flags = Self::read(dialect, words);
        flags.refuse_reserved(dialect)?;
        flags.refuse_repeated(dialect)?;
        Ok(flags)
    }

    /// Parses the words without checks.
    pub(super) fn read(dialect: &Dialect, words: &[String]) -> Self {
        let next = words.iter().skip(1).map(Some).chain([None]);
        let pairs = words.iter().zip(next).filter(|(word, _)| is_flag(word));
        Self { given: pairs.map(|(word, next)| UserFlag::new(dialect, word, next)).collect() }
    }

    /// The value of this flag, if there is one.
    pub(super) fn value(&self, name: &str) -> Option<&str> {
        let given = self.given.iter().find(|given| given.name == name)?;
        given.value.as_deref()
    }

    /// The value of this flag as a number; 1 without one.
    pub(super) fn count(&self, name: &str) -> u32 {
        self.value(name).and_then(|count| count.parse().ok()).unwrap_or(1).max(1)
    }

    /// Whether the user gave this flag, or `--no-` of it, or a part of its value.
    pub(super) fn has(&self, name: &str) -> bool {
        self.given.iter().any(|given| {
            let given = given.whole();
            given == name || given.strip_prefix("no-") == Some(name)
        })
    }

    /// Whether the user gave this flag, rather than `--no-` of it.
    pub(super) fn is_on(&self, name: &str) -> bool {
        self.given.iter().any(|given| given.name == name)
    }

    /// Whether the user gave this flag with its whole value, or this part of it.
    pub(super) fn has_part(&self, name: &str, part: &str) -> bool {
        let path = format!("{name}.{part}");
        self.given.iter().any(|given| given.name == name || given.name == path)
    }

    /// The user's parts of a flag's value: path and value of each.
    pub(super) fn parts<'a>(&'a self, name: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.given.iter().filter(move |given| given.whole() == name).filter_map(|given| {
            let (_, path) = given.name.split_once('.')?;
            Some((path, given.value.as_deref().unwrap_or_default()))
        })
    }

    /// The words without those that are parts of this flag's value.
    pub(super) fn without_parts(dialect: &Dialect, words: &[String], name: &str) -> Vec<String> {
        let mut kept = Vec::new();
        let mut words = words.iter().peekable();
        while let Some(word) = words.next() {
            let flag = is_flag(word).then(|| UserFlag::new(dialect, word, words.peek().copied()));
            match flag.filter(|flag| flag.whole() == name && flag.name != name) {
                None => kept.push(word.clone()),
                // The next word is its value.
                Some(flag) if flag.value.is_some() && !word.contains('=') => drop(words.next()),
                Some(_) => {}
            }
        }
        kept
    }

    fn refuse_reserved(&self, dialect: &Dialect) -> Result<(), CommandError> {
        for given in &self.given {
            let is_it = |name: &str| name == given.whole() || is_abbreviation(given.whole(), name);
            if let Some((_, instead)) = dialect.reserved.iter().find(|(name, _)| is_it(name)) {
                let flag = given.word.clone();
                return Err(CommandError::Reserved { flag, instead });
            }
        }
        Ok(())
    }

    fn refuse_repeated(&self, dialect: &Dialect) -> Result<(), CommandError> {
        for given in &self.given {
            // `--limit.image+ 1 --limit.image+ 2` builds a list.
            let repeatable =
                dialect.repeatable.contains(&given.whole()) || given.name.ends_with('+');
            let count = self.given.iter().filter(|other| other.name == given.name).count();
            if count > 1 && !repeatable {
                return Err(CommandError::Repeated { flag: given.word.clone(), count });
            }
        }
        Ok(())
    }
}

impl UserFlag {
    fn new(dialect: &Dialect, word: &str, next: Option<&String>) -> Self {
        let (word, value) = match word.split_once('=') {
            Some((flag, value)) => (flag, Some(value.to_owned())),
            None => (word, next.filter(|next| !is_flag(next)).cloned()),
        };
        let bare = word.trim_start_matches('-');
        let (head, path) = bare.split_once('.').map_or((bare, None), |(h, p)| (h, Some(p)));
        let head = head.replace('_', "-");
        let alias = dialect.aliases.iter().find(|(alias, _)| *alias == head);
        let head = alias.map_or(head.as_str(), |(_, name)| name);
        let name = path.map_or_else(|| head.to_owned(), |path| format!("{head}.{path}"));
        Self { word: word.to_owned(), value, name }
    }

    /// The flag, without the path into its value.
    fn whole(&self) -> &str {
        self.name.split_once('.').map_or(&self.name, |(head, _)| head)
    }
}

/// Whether a word is a flag rather than a value: `-1` and `-0.5` are values.
fn is_flag(word: &str) -> bool {
    word.strip_prefix('-').is_some_and(|rest| {
        !rest.is_empty() && !rest.starts_with(|c: char| c.is_ascii_digit() || c == '.')
    })
}

/// Whether Python's `argparse` would accept `given` as an abbreviation of `name`.
fn is_abbreviation(given: &str, name: &str) -> bool {
    given.len() > 2 && name.starts_with(given)
}
