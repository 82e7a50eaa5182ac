//! Reads expressions, by precedence from `?:` down to numbers and fields.

use super::expression::{Expression, Operator, ValueType};

/// Longest expression, in bytes.
const MAX_LENGTH: usize = 4096;
/// Deepest nesting of expressions.
const MAX_DEPTH: u32 = 32;

/// Operators between two parts, those that bind least first. Within a level, longer ones come
/// before those that they begin with.
const LEVELS: [&[(&str, Operator)]; 5] = [
    &[("||", Operator::Or)],
    &[("&&", Operator::And)],
    &[
        ("==", Operator::Equal),
        ("!=", Operator::NotEqual),
        ("<=", Operator::LessOrEqual),
        (">=", Operator::GreaterOrEqual),
        ("<", Operator::Less),
        (">", Operator::Greater),
    ],
    &[("+", Operator::Add), ("-", Operator::Subtract)],
    &[("*", Operator::Multiply), ("/", Operator::Divide), ("%", Operator::Remainder)],
];

/// Reads an expression.
///
/// # Errors
///
/// What is wrong with it, and where, in words.
pub(super) fn parse(text: &str) -> Result<Expression, String> {
    if text.len() > MAX_LENGTH {
        return Err(format!("has {} bytes, limit {MAX_LENGTH}", text.len()));
    }
    let mut parser = Parser { text, rest: text, depth: 0 };
    let expression = parser.choice()?;
    parser.skip_space();
    if parser.rest.is_empty() { Ok(expression) } else { Err(parser.unsupported()) }
}

struct Parser<'t> {
    text: &'t str,
    rest: &'t str,
    depth: u32,
}

impl<'t> Parser<'t> {
    fn choice(&mut self) -> Result<Expression, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!("nests deeper than {MAX_DEPTH}"));
        }
        let condition = self.level(0)?;
        let result = if self.take("?") {
            self.want(&condition, ValueType::Truth)?;
            let yes = self.choice()?;
            if !self.take(":") {
                return Err(self.unsupported());
            }
            let no = self.choice()?;
            self.want(&no, yes.kind())?;
            Expression::Choice(Box::new((condition, yes, no)))
        } else {
            condition
        };
        self.depth -= 1;
        Ok(result)
    }

    fn level(&mut self, level: usize) -> Result<Expression, String> {
        let Some(operators) = LEVELS.get(level) else { return self.unary() };
        let mut left = self.level(level + 1)?;
        while let Some((_, operator)) = operators.iter().find(|(sign, _)| self.take(sign)) {
            let right = self.level(level + 1)?;
            self.want(&left, operator.takes())?;
            self.want(&right, operator.takes())?;
            left = Expression::Pair(*operator, Box::new((left, right)));
        }
        Ok(left)
    }

    fn unary(&mut self) -> Result<Expression, String> {
        self.skip_space();
        let mut signs = Vec::new();
        while let Some(sign) = ["!", "-"].into_iter().find(|sign| self.take(sign)) {
            signs.push(sign);
            if signs.len() > MAX_DEPTH as usize {
                return Err(format!("nests deeper than {MAX_DEPTH}"));
            }
        }
        let mut part = self.primary()?;
        for sign in signs.into_iter().rev() {
            let not = sign == "!";
            self.want(&part, if not { ValueType::Truth } else { ValueType::Number })?;
            let inner = Box::new(part);
            part = if not { Expression::Not(inner) } else { Expression::Negative(inner) };
        }
        Ok(part)
    }

    fn primary(&mut self) -> Result<Expression, String> {
        self.skip_space();
        if self.take("(") {
            let inner = self.choice()?;
            return if self.take(")") { Ok(inner) } else { Err(self.unsupported()) };
        }
        if self.rest.starts_with(|c: char| c.is_ascii_digit()) {
            return self.number();
        }
        let before = self.rest;
        match self.word() {
            "true" => Ok(Expression::Truth(true)),
            "false" => Ok(Expression::Truth(false)),
            "has" if self.take("(") => {
                self.skip_space();
                let path = self.field().ok_or_else(|| self.unsupported())?;
                if self.take(")") { Ok(Expression::Has(path)) } else { Err(self.unsupported()) }
            }
            _ => {
                self.rest = before;
                self.field().map(Expression::Field).ok_or_else(|| self.unsupported())
            }
        }
    }

    fn number(&mut self) -> Result<Expression, String> {
        let length =
            self.rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(self.rest.len());
        let number = self.rest[..length].parse().map_err(|_| self.unsupported())?;
        self.rest = &self.rest[length..];
        Ok(Expression::Number(number))
    }

    /// The path of a field of `usage`, without `usage.`.
    fn field(&mut self) -> Option<String> {
        let before = self.rest;
        if self.word() != "usage" {
            self.rest = before;
            return None;
        }
        let mut path = Vec::new();
        while let Some(rest) = self.rest.strip_prefix('.') {
            self.rest = rest;
            path.push(self.word());
        }
        let complete = !path.is_empty() && path.iter().all(|word| !word.is_empty());
        // Left where it was, for the error to point at.
        if !complete || self.rest.starts_with('(') {
            self.rest = before;
            return None;
        }
        Some(path.join("."))
    }

    /// The letters, digits and underscores that come next.
    fn word(&mut self) -> &'t str {
        let ends = |c: char| !c.is_ascii_alphanumeric() && c != '_';
        let (word, rest) = self.rest.split_at(self.rest.find(ends).unwrap_or(self.rest.len()));
        self.rest = rest;
        word
    }

    fn take(&mut self, sign: &str) -> bool {
        self.skip_space();
        match self.rest.strip_prefix(sign) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn want(&self, part: &Expression, kind: ValueType) -> Result<(), String> {
        if part.kind() == kind {
            return Ok(());
        }
        let at = self.text.len() - self.rest.len();
        let wanted = if kind == ValueType::Number { "a number" } else { "true or false" };
        Err(format!("the part before byte {at} is not {wanted}"))
    }

    fn unsupported(&self) -> String {
        let at = self.text.len() - self.rest.len();
        match self.rest.is_empty() {
            true => "ends too early".to_owned(),
            false => format!("{:?} at byte {at} is not supported", self.rest),
        }
    }
}
