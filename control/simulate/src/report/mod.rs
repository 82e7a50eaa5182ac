//! Reports of runs: a table, JSON, and a page with plots.

pub(crate) mod html;
mod json;
mod svg;
pub(crate) mod table;
#[cfg(test)]
mod tests;

pub(crate) use json::json;
