//! Clocks: certificates, leases and traces compare times of several machines.

use crate::facts::ClockFacts;
use crate::finding::Finding;

/// Difference from which on a clock is worth a look, seconds. A date is known to 1 s.
const WARNS_S: f64 = 2.0;
/// Difference from which on a lease of 15 s may seem to have ended, seconds.
const WRONG_S: f64 = 10.0;

pub(crate) fn check(clock: &ClockFacts) -> Finding {
    let server = &clock.server;
    let ahead = match &clock.ahead_s {
        Ok(ahead) => *ahead,
        Err(error) => {
            let says = format!("the clock of {server} is unknown: {error}");
            return Finding::note("clock", says, "name a server that answers HTTP with a date");
        }
    };
    let way = if ahead < 0.0 { "behind" } else { "ahead of" };
    let says = format!("{server} is {:.0} s {way} this machine", ahead.abs());
    let advice = "let chrony or systemd-timesyncd keep both clocks: `timedatectl status`";
    match ahead.abs() {
        apart if apart >= WRONG_S => Finding::wrong("clock", says, advice),
        apart if apart >= WARNS_S => Finding::warning("clock", says, advice),
        _ => Finding::fine("clock", format!("{server} has the time of this machine")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Severity;

    fn check_ahead(ahead_s: Result<f64, String>) -> Severity {
        check(&ClockFacts { server: "s".into(), ahead_s }).severity
    }

    #[test]
    fn clocks_may_differ_by_what_a_date_leaves_open() {
        assert_eq!(check_ahead(Ok(1.5)), Severity::Fine);
        assert_eq!(check_ahead(Ok(-3.0)), Severity::Warning);
        assert_eq!(check_ahead(Ok(11.0)), Severity::Wrong);
        assert_eq!(check_ahead(Err("silence".into())), Severity::Note);
        let finding = check(&ClockFacts { server: "s".into(), ahead_s: Ok(-30.0) });
        assert_eq!(finding.says, "s is 30 s behind this machine");
    }
}
