//! Engines over their GPUs.

use crate::engine::EngineKind;
use serde::Serialize;

/// An engine over its GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WorkerShape {
    /// The engine.
    pub engine: EngineKind,
    /// GPUs that share every layer.
    pub tensor: u32,
    /// Groups of GPUs with a part of the layers each.
    pub pipeline: u32,
    /// Copies of the attention, each with sequences of its own; experts are spread over all.
    pub data: u32,
}

impl WorkerShape {
    /// GPUs of the worker.
    pub fn gpus(self) -> u32 {
        self.tensor * self.pipeline * self.data
    }

    /// The parallelism in a word: `tp4`, `tp2 pp2`, `tp1 dp8`.
    pub fn parallelism(self) -> String {
        let mut text = format!("tp{}", self.tensor);
        for (name, ways) in [("pp", self.pipeline), ("dp", self.data)] {
            if ways > 1 {
                text += &format!(" {name}{ways}");
            }
        }
        text
    }
}
