//! Reports of runs: a table, JSON, and a page with plots.

pub(crate) mod html;
mod json;
pub(crate) mod outcome;
mod svg;
pub(crate) mod table;
#[cfg(test)]
mod tests;

pub(crate) use json::json;
pub(crate) use outcome::RunOutcome;
