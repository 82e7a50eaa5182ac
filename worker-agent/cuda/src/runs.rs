//! Runs of bytes to copy, and the processor that copies them.

/// Bytes that are copied in one piece, as offsets into source and target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRun {
    /// First byte in the source.
    pub from: usize,
    /// First byte in the target.
    pub to: usize,
    /// Bytes.
    pub bytes: usize,
}

/// Joins runs that touch on both sides, and orders them by source.
pub fn coalesce(mut runs: Vec<CopyRun>) -> Vec<CopyRun> {
    runs.sort_by_key(|run| run.from);
    let mut kept = 0;
    for at in 1..runs.len() {
        let (last, run) = (runs[kept], runs[at]);
        let follows = last.from + last.bytes == run.from && last.to + last.bytes == run.to;
        if follows {
            runs[kept].bytes += run.bytes;
        } else {
            kept += 1;
            runs[kept] = run;
        }
    }
    runs.truncate(kept + 1);
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_touches_on_both_sides_is_joined() {
        let run = |from, to, bytes| CopyRun { from, to, bytes };
        assert_eq!(coalesce(vec![]), []);
        assert_eq!(coalesce(vec![run(4, 14, 4), run(0, 10, 4)]), [run(0, 10, 8)]);
        let apart = [run(0, 10, 4), run(4, 15, 4), run(9, 19, 1)];
        assert_eq!(coalesce(apart.to_vec()), apart);
    }
}
