//! All that binds one answer, whatever the model would write.

use crate::guide::Guide;
use crate::thoughts::ThoughtGuard;

/// Rules of one answer. Each follows the answer from its first token on.
#[derive(Clone, Debug, Default)]
pub struct AnswerRules {
    /// The form that the answer has.
    pub guide: Option<Guide>,
    /// The bound of the thoughts before it.
    pub thoughts: Option<ThoughtGuard>,
}

impl AnswerRules {
    /// The token that must come next, if the model has no choice.
    pub fn forced(&self) -> Option<u32> {
        self.thoughts.as_ref()?.forced()
    }

    /// Takes the token that came.
    pub fn advance(&mut self, token: u32) {
        if let Some(guide) = &mut self.guide {
            guide.advance(token);
        }
        if let Some(thoughts) = &mut self.thoughts {
            thoughts.advance(token);
        }
    }
}
