//! Errors of the flags that a user gives to an engine.

/// Reason why there is no command line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// One flag has two values, and the engine would take either.
    #[error("engine flag {flag}: given {count} times, at most once")]
    Repeated {
        /// The flag.
        flag: String,
        /// Number of times.
        count: usize,
    },
    /// A flag contradicts a setting that the agent relies on.
    #[error("engine flag {flag}: set by the agent, {instead}")]
    Reserved {
        /// The flag as the user wrote it.
        flag: String,
        /// The recommended alternative.
        instead: &'static str,
    },
    /// The first word is no flag.
    #[error("engine flags: {word:?} is no flag; the model is named with --model, before `--`")]
    NotAFlag {
        /// The word.
        word: String,
    },
    /// The engine cannot satisfy the options.
    #[error("{engine} cannot be started: {why}")]
    Unsupported {
        /// The engine.
        engine: &'static str,
        /// The missing ability.
        why: String,
    },
}
