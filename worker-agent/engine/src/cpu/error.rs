//! Why a model cannot be served.

/// Fault in a model's files. Each variant names the file and the fault in it.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file that must be there is not.
    #[error("{file}: not found")]
    MissingFile {
        /// Its name.
        file: String,
    },
    /// A file cannot be parsed.
    #[error("{file}: {message}")]
    Malformed {
        /// Its name.
        file: String,
        /// Message of the parser.
        message: String,
    },
    /// A field has a value that this engine cannot serve.
    #[error("{file}: {field}: {value} is not supported, only {supported}")]
    Unsupported {
        /// The file.
        file: &'static str,
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
        /// The supported alternative.
        supported: &'static str,
    },
    /// A field is missing or makes no sense.
    #[error("{file}: {field}: {message}")]
    Field {
        /// The file.
        file: &'static str,
        /// The field.
        field: &'static str,
        /// The fault.
        message: String,
    },
    /// A weight is in none of the files.
    #[error("no *.safetensors file has the weight {weight:?}")]
    MissingWeight {
        /// Its name.
        weight: String,
    },
    /// A weight is not what the configuration says.
    #[error("{file}: {weight}: {message}")]
    Weight {
        /// The file.
        file: String,
        /// The weight's name.
        weight: String,
        /// The fault.
        message: String,
    },
}
