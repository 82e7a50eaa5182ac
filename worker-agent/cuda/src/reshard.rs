//! Heads of ranks: which rank has which heads, and how KV goes from one number of ranks to another.

use std::ops::Range;

/// Heads that go from one rank to another, counted within each rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadMove {
    /// Rank that has the heads.
    pub from_rank: u32,
    /// The heads among those of that rank.
    pub from: Range<u32>,
    /// Rank that gets the heads.
    pub to_rank: u32,
    /// Their place among those of that rank.
    pub to: Range<u32>,
}

/// Heads of a rank. With more ranks than heads, neighbouring ranks have the same head.
///
/// `None` if heads and ranks do not divide one another.
pub fn heads_of(heads: u32, ranks: u32, rank: u32) -> Option<Range<u32>> {
    if heads == 0 || rank >= ranks {
        return None;
    }
    if heads.is_multiple_of(ranks) {
        let share = heads / ranks;
        return Some(rank * share..(rank + 1) * share);
    }
    let head = rank / (ranks / heads).max(1);
    ranks.is_multiple_of(heads).then_some(head..head + 1)
}

/// Moves that give every target rank its heads, each from the first rank that has it.
///
/// `None` if heads and ranks do not divide one another.
pub fn reshard(heads: u32, from_ranks: u32, to_ranks: u32) -> Option<Vec<HeadMove>> {
    let mut moves = Vec::new();
    for to_rank in 0..to_ranks {
        let wanted = heads_of(heads, to_ranks, to_rank)?;
        let mut next = wanted.start;
        for from_rank in 0..from_ranks {
            let held = heads_of(heads, from_ranks, from_rank)?;
            let (start, end) = (next.max(held.start), wanted.end.min(held.end));
            if start == next && start < end {
                moves.push(HeadMove {
                    from_rank,
                    from: start - held.start..end - held.start,
                    to_rank,
                    to: start - wanted.start..end - wanted.start,
                });
                next = end;
            }
        }
    }
    Some(moves)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_divided_or_shared() {
        assert_eq!(heads_of(8, 2, 1), Some(4..8));
        assert_eq!(heads_of(2, 8, 3), Some(0..1));
        assert_eq!(heads_of(2, 8, 4), Some(1..2));
        assert_eq!(heads_of(8, 3, 0), None);
        assert_eq!(heads_of(8, 2, 2), None);
    }

    #[test]
    fn a_shared_head_comes_from_one_rank() {
        let moves = reshard(2, 4, 1).unwrap();
        let ranks: Vec<_> = moves.iter().map(|head| (head.from_rank, head.to.clone())).collect();
        assert_eq!(ranks, [(0, 0..1), (2, 1..2)]);
    }
}
