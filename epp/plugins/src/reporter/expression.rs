//! Expressions over the usage of an answer.

/// An expression whose parts are of the kinds that their operators want.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expression {
    /// A number.
    Number(f64),
    /// True or false.
    Truth(bool),
    /// A field of `usage`, by its path.
    Field(String),
    /// Whether there is such a field.
    Has(String),
    /// The opposite of a truth.
    Not(Box<Expression>),
    /// The negative of a number.
    Negative(Box<Expression>),
    /// Two parts and what is between them.
    Pair(Operator, Box<(Expression, Expression)>),
    /// The second part if the first holds, else the third.
    Choice(Box<(Expression, Expression, Expression)>),
}

/// Type of an expression's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueType {
    /// A number.
    Number,
    /// True or false.
    Truth,
}

/// Operator between two parts of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    And,
    Or,
}

/// The fields of `usage` by path.
pub(super) type UsageLookup<'u> = &'u dyn Fn(&str) -> Option<f64>;

impl Operator {
    /// The kind of both of its sides.
    pub(super) fn takes(self) -> ValueType {
        if matches!(self, Self::And | Self::Or) { ValueType::Truth } else { ValueType::Number }
    }

    fn gives(self) -> ValueType {
        match self {
            Self::Add | Self::Subtract | Self::Multiply | Self::Divide | Self::Remainder => {
                ValueType::Number
            }
            _ => ValueType::Truth,
        }
    }
}

impl Expression {
    /// Type of the expression's value.
    pub(super) fn kind(&self) -> ValueType {
        match self {
            Self::Number(_) | Self::Field(_) | Self::Negative(_) => ValueType::Number,
            Self::Truth(_) | Self::Has(_) | Self::Not(_) => ValueType::Truth,
            Self::Pair(operator, _) => operator.gives(),
            Self::Choice(parts) => parts.1.kind(),
        }
    }

    /// Its number; `None` if it is a truth, or needs a field that is absent.
    pub(super) fn number(&self, usage: UsageLookup<'_>) -> Option<f64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Field(path) => usage(path),
            Self::Negative(part) => part.number(usage).map(|number| -number),
            Self::Choice(parts) => {
                let chosen = if parts.0.truth(usage)? { &parts.1 } else { &parts.2 };
                chosen.number(usage)
            }
            Self::Pair(operator, sides) => {
                let (a, b) = (sides.0.number(usage)?, sides.1.number(usage)?);
                match operator {
                    Operator::Add => Some(a + b),
                    Operator::Subtract => Some(a - b),
                    Operator::Multiply => Some(a * b),
                    Operator::Divide => Some(a / b),
                    Operator::Remainder => Some(a % b),
                    _ => None,
                }
            }
            Self::Truth(_) | Self::Has(_) | Self::Not(_) => None,
        }
    }

    /// Whether it is a truth that holds; not if it needs a field that is absent.
    pub(super) fn holds(&self, usage: UsageLookup<'_>) -> bool {
        self.truth(usage).unwrap_or(false)
    }

    fn truth(&self, usage: UsageLookup<'_>) -> Option<bool> {
        match self {
            Self::Truth(truth) => Some(*truth),
            Self::Has(path) => Some(usage(path).is_some()),
            Self::Not(part) => part.truth(usage).map(|truth| !truth),
            Self::Choice(parts) => {
                let chosen = if parts.0.truth(usage)? { &parts.1 } else { &parts.2 };
                chosen.truth(usage)
            }
            // As in the language itself, one side can decide where the other has no answer.
            Self::Pair(Operator::And, sides) => {
                match (sides.0.truth(usage), sides.1.truth(usage)) {
                    (Some(false), _) | (_, Some(false)) => Some(false),
                    (a, b) => Some(a? && b?),
                }
            }
            Self::Pair(Operator::Or, sides) => match (sides.0.truth(usage), sides.1.truth(usage)) {
                (Some(true), _) | (_, Some(true)) => Some(true),
                (a, b) => Some(a? || b?),
            },
            Self::Pair(operator, sides) => {
                compare(*operator, sides.0.number(usage)?, sides.1.number(usage)?)
            }
            Self::Number(_) | Self::Field(_) | Self::Negative(_) => None,
        }
    }
}

fn compare(operator: Operator, a: f64, b: f64) -> Option<bool> {
    match operator {
        Operator::Equal => Some(a == b),
        Operator::NotEqual => Some(a != b),
        Operator::Less => Some(a < b),
        Operator::LessOrEqual => Some(a <= b),
        Operator::Greater => Some(a > b),
        Operator::GreaterOrEqual => Some(a >= b),
        _ => None,
    }
}
