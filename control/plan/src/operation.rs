//! Operations that a step consists of.

/// Work of one step, of each copy of the attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum StepWork {
    /// Tokens of one prompt, after others that are cached.
    Prompt { tokens: f64, cached: f64 },
    /// Sequences that decode, with so many tokens each.
    Decode { sequences: f64, context: f64 },
}

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperationKind {
    /// Matrix products of all tokens: attention's, dense layers', shared experts', the head's.
    Products,
    /// Attention of tokens to those before them.
    Attention,
    /// Experts that tokens are sent to.
    Experts,
    /// Sums over the GPUs.
    Exchange,
    /// Time between and beside the others.
    Overhead,
}

/// Time of an operation over all layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct OperationTime {
    pub(crate) kind: OperationKind,
    pub(crate) seconds: f64,
    /// Whether tables have it; the roofline has the others.
    pub(crate) is_tabled: bool,
}

impl StepWork {
    /// Tokens that are computed.
    pub(crate) fn tokens(self) -> f64 {
        match self {
            Self::Prompt { tokens, .. } => tokens,
            Self::Decode { sequences, .. } => sequences,
        }
    }

    /// Tokens whose next one is asked for.
    pub(crate) fn answers(self) -> f64 {
        match self {
            Self::Prompt { .. } => 1.0,
            Self::Decode { sequences, .. } => sequences,
        }
    }
}

impl OperationKind {
    /// The name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Products => "matrix products",
            Self::Attention => "attention",
            Self::Experts => "experts",
            Self::Exchange => "exchange between GPUs",
            Self::Overhead => "overhead",
        }
    }
}
