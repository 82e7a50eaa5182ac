//! The rule by which an agent that owes answers has been silent for too long.
//!
//! An agent that has requests of a connection says something on it every half second: tokens, or an
//! empty frame while its engines compute. A stopped process, a dead network and a lost machine say
//! nothing, and a long prefill is none of them.

use std::time::Duration;

/// Looks in the longest silence. This process's own pauses, when it could not have heard anything,
/// cost one look and not the whole silence.
const LOOKS: u32 = 8;

/// The silence of one connection. Pure: whoever owns the connection says what happens.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    looks: u32,
    /// Whether the agent ever sent an empty frame; earlier versions do not, and are silent while
    /// they compute.
    beats: bool,
}

impl Silence {
    /// The time between two looks, where `longest` is the longest silence.
    pub(crate) fn pause(longest: Duration) -> Duration {
        (longest / LOOKS).max(Duration::from_millis(1))
    }

    /// A frame has come.
    pub(crate) fn heard(&mut self, is_empty: bool) {
        self.looks = 0;
        self.beats |= is_empty;
    }

    /// Looks at a connection on which requests wait for answers, if it is `owed` any. True where the
    /// silence was too long.
    pub(crate) fn look(&mut self, owed: bool) -> bool {
        self.looks = if owed && self.beats { self.looks + 1 } else { 0 };
        // One more, because the first look may come right after the request.
        self.looks > LOOKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether so many looks in a row find that the silence was too long.
    fn is_too_long(silence: &mut Silence, looks: u32) -> bool {
        (0..looks).any(|_| silence.look(true))
    }

    #[test]
    fn an_agent_is_silent_for_too_long_only_while_it_owes_answers() {
        let mut silence = Silence::default();
        silence.heard(true);
        assert!(!is_too_long(&mut silence, LOOKS));
        assert!(!silence.look(false));
        assert!(!is_too_long(&mut silence, LOOKS));
        silence.heard(false);
        assert!(!is_too_long(&mut silence, LOOKS));
        assert!(silence.look(true));
    }

    #[test]
    fn an_agent_that_never_sent_an_empty_frame_may_compute_in_silence() {
        let mut silence = Silence::default();
        silence.heard(false);
        assert!(!is_too_long(&mut silence, 10 * LOOKS));
    }
}
