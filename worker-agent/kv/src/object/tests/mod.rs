//! The tier as its store sees it: what is asked, and what is reported.

mod bench;
mod directory;
