//! Any page gives reports within their bounds, in order of their ranks, and of the engine's own
//! families what has a label of ours, within its room.

use stator_signals::families::republish;
use stator_signals::report::{Engine, read};

/// Room for families, in bytes.
const ROOM: usize = 4096;

/// Runs the target.
pub(crate) fn run(page: &[u8]) {
    let mut reports = Vec::new();
    for engine in [Engine::Vllm, Engine::Sglang, Engine::TrtLlm] {
        read(engine, page, &mut reports);
        assert!(reports.len() <= 1024);
        assert!(reports.windows(2).all(|pair| pair[0].rank < pair[1].rank));
        for report in &reports {
            assert!(report.kv_usage.is_none_or(|share| (0.0..=1.0).contains(&share)), "{report:?}");
        }
        let shown = republish(engine, page, ("a", "1"), ROOM).text;
        assert!(shown.len() <= ROOM);
        let mut series = shown.lines().filter(|line| !line.starts_with('#'));
        assert!(series.all(|line| line.contains("{a=\"1\"")), "{shown}");
    }
}
