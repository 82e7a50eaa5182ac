//! This room is not furnished yet.

fn main() {}
